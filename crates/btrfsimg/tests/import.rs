//! Trees of the host into images: with few file descriptors, and over what is there as cp(1) does it on a mount.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs;
use std::path::Path;
use std::process::Command;

use btrfsimg_testkit::btrfs_progs;
use btrfsimg_testkit::oracle::{JudgeOptions, Oracle};
use btrfsimg_testkit::treediff::{DiffOptions, diff};
use common::{Lab, Ran, run, sh};
use writing::finish;

/// Runs the command where a process may have 256 files open.
fn with_few_files(args: &[&str]) -> Ran {
    with_files(256, args)
}

fn with_files(limit: u32, args: &[&str]) -> Ran {
    let mut command = Command::new("sh");
    let shell = format!("ulimit -n {limit}; exec \"$@\"");
    command.args(["-c", &shell, "sh", env!("CARGO_BIN_EXE_btrfsimg")]).args(args);
    finish(&mut command)
}

/// Makes many directories with a file or two, and many one in the other.
fn make_wide_and_deep(top: &Path) {
    for n in 0..1200 {
        let dir = top.join(n.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("file"), n.to_string()).unwrap();
        if n % 8 == 0 {
            fs::hard_link(dir.join("file"), dir.join("link")).unwrap();
        }
        if n % 40 == 0 {
            fs::write(dir.join("large"), vec![7; 1_100_000]).unwrap();
        }
    }
    let mut deep = top.to_owned();
    for level in 0..1000 {
        deep.push("d");
        fs::create_dir(&deep).unwrap();
        if level % 4 == 0 {
            fs::write(deep.join("file"), level.to_string()).unwrap();
        }
    }
}

#[test]
fn few_open_files_are_enough() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    make_wide_and_deep(&path("tree"));
    for threads in ["2", "64"] {
        let image = text(&format!("{threads}.img"));
        with_few_files(&["mkfs", "-q", "--threads", threads, "-r", &text("tree"), &image]).expect(0);
    }
    let judge = JudgeOptions { source: Some(&path("tree")), write_bytes: 0, ..JudgeOptions::default() };
    Oracle::new().judge_with(&path("2.img"), &judge).unwrap().assert_ok();
    run(&["mkfs", "-q", "-b", "300M", &text("into.img")]).expect(0);
    with_few_files(&["cp", "-a", &text("tree"), &format!("{}:/", text("into.img"))]).expect(0);
    with_few_files(&["cp", "-a", &format!("{}:/tree", text("into.img")), &text("out")]).expect(0);
    diff(&path("tree"), &path("out"), &DiffOptions::default()).unwrap().assert_equal();
    with_files(64, &["cp", "-a", &format!("{}:/tree", text("into.img")), &text("out64")]).expect(0);
    diff(&path("tree"), &path("out64"), &DiffOptions::default()).unwrap().assert_equal();
}

/// What is there: names of one inode and of more, in a directory for each way to copy.
const THERE: &str = r#"
    for d in plain n u older; do
      mkdir $d; ( cd $d; mkdir a b ab abc ac-be z z/sub
        echo old > a/a; echo old > b/b; echo a > ab/a; echo b > ab/b
        echo old > abc/a; ln abc/a abc/b; ln abc/a abc/c
        echo a > ac-be/a; ln ac-be/a ac-be/c; echo b > ac-be/b; ln ac-be/b ac-be/e
        ln -s old z/l; echo q > z/sub/q; ln z/sub/q z/other; echo s > z/s; ln z/s z/t )
    done
    find older -exec touch -h -d 2000-01-01 {} +; echo x > x; ln x y; echo old > single"#;

/// What comes: two names of one inode in each directory, and more in the last one.
const COMES: &str = r#"
    for d in a b ab abc ac-be z; do mkdir -p s/$d; echo new $d > s/$d/a; ln s/$d/a s/$d/b; done
    ln -s new s/z/l; ln s/z/l s/z/l2; mkdir s/z/sub; ln s/z/a s/z/sub/q
    echo solo > s/z/other; echo one > s/z/s; echo two > s/z/t
    find s -exec touch -h -d 2001-02-03 {} +"#;

/// Options and what is copied where.
const COPIES: &[&str] = &[
    "-a s/. /plain",
    "-a -n s/. /n",
    "-a -u s/. /u",
    "-a -u s/. /older",
    "-a s/z/other /x",
    "-r s/z/a /single",
];

#[test]
fn links_are_made_and_broken_as_cp_does_it_over_what_is_there() {
    // cp(1) goes through a directory as that gives its names: btrfs, in the order in which they were made.
    let Some(source) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, COMES))) else { return };
    for from_image in [false, true] {
        let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, THERE))) else { return };
        sh(lab.dir.path(), "cp k.img twin.img; btrfstune -fm twin.img");
        let (oracle, twin) = (Oracle::new(), lab.host("twin.img"));
        source.mounted(|top| {
            let mount = oracle.mount(&twin, "rw").unwrap().unwrap();
            COPIES.iter().for_each(|c| {
                drop(sh(top, &format!("cp {}", c.replace(" /", &format!(" {}/", mount.path().display())))))
            });
            if !from_image {
                COPIES.iter().for_each(|c| copy_in(&lab, top, c));
            }
        });
        if from_image {
            let from = format!(" {}:/s/", source.image.display());
            COPIES.iter().for_each(|c| copy_in(&lab, lab.dir.path(), &c.replace(" s/", &from)));
        }
        let theirs = oracle.mount(&twin, "ro").unwrap().unwrap();
        let options = DiffOptions { times: false, ..DiffOptions::default() };
        lab.mounted(|ours| diff(theirs.path(), ours, &options).unwrap().assert_equal());
        drop(theirs);
        oracle.judge(&lab.image, None).unwrap().assert_ok();
    }
}

/// Runs one of [`COPIES`] in `dir`.
fn copy_in(lab: &Lab, dir: &Path, copy: &str) {
    let (before, to) = copy.rsplit_once(' ').unwrap();
    let args: Vec<String> = ["cp"].into_iter().chain(before.split(' ')).map(str::to_owned).collect();
    let ran = finish(common::command(&[&args[..], &[lab.at(to)]].concat()).current_dir(dir)).expect(0);
    assert_eq!(ran.stderr, "", "{copy}");
}

/// An image with small leaves, and a mounted file system that holds longer xattrs.
fn with_long_xattrs(test: impl FnOnce(&Lab, &Path)) {
    let Some(source) = Lab::kernel_made(&["-n", "64k"], "rw", |_| {}) else { return };
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab { image: dir.path().join("small.img"), dir };
    run(&["mkfs", "-q", "-n", "4k", "-b", "200M", lab.image.to_str().unwrap()]).expect(0);
    let mount = Oracle::new().mount(&source.image, "rw").unwrap().unwrap();
    test(&lab, mount.path());
}

#[test]
fn an_xattr_that_no_leaf_holds_is_one_failure_whatever_is_there() {
    with_long_xattrs(|lab, source| {
        let long = "$(head -c 5000 /dev/zero | tr '\\0' x)";
        sh(source, "mkdir s s/d; echo 1 > s/d/f; setfattr -n user.a -v short s/d s/d/f");
        let cp = || run(&["cp", "-a", source.join("s").to_str().unwrap(), &lab.at("/")]);
        cp().expect(0);
        sh(
            source,
            &format!("setfattr -n user.a -v {long} s/d/f s/d; setfattr -n user.b -v b s/d/f; echo 2 > s/d/f"),
        );
        for round in 0..2 {
            let ran = cp().expect(1);
            for name in ["s/d", "s/d/f"] {
                let shown = format!("{}: xattr user.a", source.join(name).display());
                assert!(ran.stderr.contains(&shown), "{round}: {}", ran.stderr);
            }
        }
        lab.mounted(|top| {
            // What setxattr(2) refuses leaves the old value.
            let seen = sh(&top.join("s/d"), "cat f; getfattr -d f .");
            assert_eq!(
                seen.lines().filter(|l| l.contains('=')).collect::<Vec<_>>(),
                ["user.a=\"short\"", "user.b=\"b\"", "user.a=\"short\""]
            );
            assert!(seen.starts_with("2\n"), "{seen}");
        });
        Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
    });
}

/// Files with each property and none, with text in them.
const PROPERTIES: &str = "
    for f in zlib lzo none plain; do
      mkdir -p $f; for to in zlib lzo none plain nocow; do
        touch $f/$to; if [ $f != plain ]; then btrfs property set $f/$to compression $f; fi; yes $f $to | head -c 300000 > $f/$to
      done
    done";

/// The other way round.
const OTHERS: &str = "
    for f in zlib lzo none plain; do
      mkdir -p $f; for to in zlib lzo none plain nocow; do
        touch $f/$to; case $to in nocow) chattr +C $f/$to;; plain) ;; *) btrfs property set $f/$to compression $to;; esac
        echo old > $f/$to
      done
    done; sync";

#[test]
fn a_file_that_is_there_takes_the_property_with_the_contents() {
    let Some(source) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, PROPERTIES))) else { return };
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, OTHERS))) else { return };
    sh(lab.dir.path(), "cp k.img twin.img; btrfstune -fm twin.img");
    let (oracle, twin) = (Oracle::new(), lab.host("twin.img"));
    source.mounted(|from| {
        let mount = oracle.mount(&twin, "rw").unwrap().unwrap();
        sh(from, &format!("cp -a . {}", mount.path().display()));
        run(&["cp", "-a", &format!("{}/.", from.display()), &lab.at("/")]).expect(0);
    });
    let look = |top: &Path| {
        sh(top, "find . -type f | sort | xargs lsattr; find . -type f | sort | xargs getfattr -d -m btrfs")
    };
    let theirs = oracle.mount(&twin, "ro").unwrap().unwrap();
    lab.mounted(|ours| {
        assert_eq!(look(ours), look(theirs.path()));
        diff(theirs.path(), ours, &DiffOptions { times: false, ..DiffOptions::default() })
            .unwrap()
            .assert_equal();
    });
    drop(theirs);
    assert_eq!(compressions(&lab.image), compressions(&twin));
    oracle.judge(&lab.image, None).unwrap().assert_ok();
}

/// The compression of each file's first extent, by dump-tree.
fn compressions(image: &Path) -> Vec<String> {
    let dump = btrfs_progs::dump_tree(image, &["-t", "5"]).unwrap();
    let (mut found, mut key) = (Vec::new(), String::new());
    for line in dump.lines().map(str::trim) {
        if let Some((_, k)) = line.split_once("key (").filter(|(_, k)| k.contains(" EXTENT_DATA 0)")) {
            key = k.split(' ').next().unwrap().to_owned();
        } else if line.starts_with("extent compression") && !key.is_empty() {
            found.push(format!("{} {line}", std::mem::take(&mut key)));
        }
    }
    assert!(found.len() > 15, "{dump}");
    found
}

/// By cp(1) an ACL belongs to the mode: --preserve=xattr alone leaves it to the directory.
#[test]
fn without_the_mode_an_acl_is_the_directorys() {
    let Some(source) = Lab::kernel_made(&[], "rw", |top| {
        let fill =
            "echo a > f; setfacl -m u:2:r f; setfattr -n user.x -v 1 f; mkdir d; setfacl -d -m u:3:r d";
        sh(top, fill);
    }) else {
        return;
    };
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir theirs in across out; setfacl -d -m u:1:rwx *; for d in *; do echo old > $d/there; done",
        );
    }) else {
        return;
    };
    let oracle = Oracle::new();
    let ours = |from: &str, to: &str| {
        let (f, d) = (format!("{from}/f"), format!("{from}/d"));
        run(&["cp", "-r", "--preserve=xattr", &f, &d, to]).expect(0);
        run(&["cp", "--preserve=xattr", &f, &format!("{to}/there")]).expect(0);
    };
    let image = format!("{}:", source.image.display());
    let mount = oracle.mount(&lab.image, "rw").unwrap().unwrap();
    ours(&image, mount.path().join("out").to_str().unwrap());
    source.mounted(|from| {
        let to = mount.path().join("theirs");
        sh(from, &format!("cp -r --preserve=xattr f d {0}; cp --preserve=xattr f {0}/there", to.display()));
    });
    drop(mount);
    ours(&image, &lab.at("/across"));
    source.mounted(|from| ours(from.to_str().unwrap(), &lab.at("/in")));
    lab.mounted(|top| {
        let look = |dir| sh(&top.join(dir), "getfacl -n -R .; getfattr -d f there");
        for dir in ["in", "across", "out"] {
            assert_eq!(look(dir), look("theirs"), "{dir}");
        }
    });
    oracle.judge(&lab.image, None).unwrap().assert_ok();
}

#[test]
fn pipes_and_devices_are_read_without_r_and_copied_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let host = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, fifo) = (host("a.img"), host("fifo"));
    run(&["mkfs", "-q", "-b", "200M", &image]).expect(0);
    let at = |path: &str| format!("{image}:{path}");
    sh(dir.path(), "mkfifo fifo; mkdir d; mkfifo d/fifo");
    let (writer, bytes) = (fifo.clone(), vec![b'x'; 300_000]);
    let written = bytes.clone();
    let writing = std::thread::spawn(move || fs::write(writer, written).unwrap());
    run(&["cp", &fifo, &at("/from-fifo")]).expect(0);
    writing.join().unwrap();
    let shell = "printf text | \"$1\" cp /dev/stdin \"$2\"";
    let words = ["-c", shell, "sh", env!("CARGO_BIN_EXE_btrfsimg"), &at("/from-pipe")];
    finish(Command::new("sh").args(words)).expect(0);
    run(&["cp", "/dev/null", &at("/null")]).expect(0);
    run(&["cp", "/dev/null", &at("/")]).expect(0);
    run(&["cp", "-r", &host("d"), &at("/d")]).expect(0);
    let read = |path: &str| run(&["cat", &at(path)]).expect(0).stdout;
    assert!(read("/from-fifo") == bytes);
    assert_eq!(read("/from-pipe"), b"text");
    assert_eq!(read("/null"), b"");
    assert!(run(&["stat", &at("/d/fifo")]).expect(0).text().contains("fifo"));
    writing::assert_checks_clean(Path::new(&image), "streams were copied in");
}
