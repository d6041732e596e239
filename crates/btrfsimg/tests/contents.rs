//! Commands on the contents of files: truncate, write, and cp within and between images. The kernel, cp(1) and
//! truncate(1) say what is right.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use btrfsimg_testkit::btrfs_progs;
use btrfsimg_testkit::oddtree::OddTree;
use btrfsimg_testkit::oracle::Oracle;
use btrfsimg_testkit::treediff::{DiffOptions, diff};
use common::{Lab, Ran, command, run, sh};

fn run_with_input<S: AsRef<std::ffi::OsStr>>(args: &[S], input: &Path) -> Ran {
    let output = command(args).stdin(File::open(input).unwrap()).output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn checks_clean(lab: &Lab) {
    assert_eq!(btrfs_progs::check(&lab.image).unwrap(), [""; 0]);
}

/// Bytes in use, by btrfs-progs.
fn used(lab: &Lab) -> u64 {
    let dump = btrfs_progs::dump_super(&lab.image, &[]).unwrap();
    let line = dump.lines().find_map(|l| l.strip_prefix("bytes_used")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn truncate_and_write_as_on_a_mount() {
    let fill =
        "yes text | head -c 100000 > f; cp f g; printf short > s; btrfs -q subvolume create v; cp f v/f";
    let Some(lab) = Lab::kernel_made(&[], "rw,compress=zstd", |top| {
        sh(top, fill);
    }) else {
        return;
    };
    // The same by coreutils on the host.
    let host = lab.host("same");
    fs::create_dir(&host).unwrap();
    sh(
        &host,
        "yes text | head -c 100000 > f; cp f g; printf short > s; mkdir v; cp f v/f; seq 30000 > ../input",
    );
    let steps: &[(&[&str], &str)] = &[
        (&["truncate", "-s", "4097", "/f"], "truncate -s 4097 f"),
        (&["truncate", "-s", "+7000", "/f", "/s"], "truncate -s +7000 f s"),
        (&["truncate", "-s", "-5000", "/v/f"], "truncate -s -5000 v/f"),
        (&["truncate", "--size=%4k", "/g"], "truncate -s %4K g"),
        (&["truncate", "-s", "3M", "/new"], "truncate -s 3M new"),
        (&["truncate", "-c", "-s", "3", "/none"], "truncate -c -s 3 none"),
        (
            &["write", "--offset", "5000", "/g", "INPUT"],
            "dd if=../input of=g bs=1 seek=5000 conv=notrunc status=none",
        ),
        (&["write", "--append", "/s", "INPUT"], "cat ../input >> s"),
        (&["write", "--append", "--compress", "lzo", "/made", "INPUT"], "cat ../input >> made"),
        (
            &["write", "--offset", "200k", "/v/f", "INPUT"],
            "dd if=../input of=v/f bs=1k seek=200 conv=notrunc status=none",
        ),
    ];
    let input = lab.host("input").to_str().unwrap().to_owned();
    for (ours, theirs) in steps {
        let words: Vec<String> = ours
            .iter()
            .map(|word| match *word {
                "INPUT" => input.clone(),
                path if path.starts_with('/') => lab.at(path),
                other => other.to_owned(),
            })
            .collect();
        run(&words).expect(0);
        sh(&host, theirs);
    }
    run_with_input(&["write", "--append", &lab.at("/made")], Path::new(&input)).expect(0);
    sh(&host, "cat ../input >> made");
    checks_clean(&lab);
    let options = DiffOptions { times: false, ..DiffOptions::default() };
    lab.mounted(|top| diff(&host, top, &options).unwrap().assert_equal());
}

/// Times on inodes that may not be changed otherwise: whatever a mount lets through.
#[test]
fn touching_what_is_append_only_or_immutable_is_as_on_a_mount() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        drop(sh(top, "touch a i; mkdir ad id; chattr +a a ad; chattr +i i id"))
    }) else {
        return;
    };
    let forms = [&[][..], &["-a"], &["-m"], &["-d", "@1000"], &["-m", "-d", "@1000"], &["-r", "REF"]];
    let cases = || ["a", "i", "ad", "id"].into_iter().flat_map(|f| forms.map(|form| (f, form)));
    let mount = Oracle::new().mount(&lab.image, "rw").unwrap().unwrap();
    let by_kernel: Vec<bool> = cases()
        .map(|(file, form)| {
            let form = form.iter().map(|word| if *word == "REF" { "a" } else { word });
            let mut command = Command::new("touch");
            command.args(form).arg(file).current_dir(mount.path());
            command.output().unwrap().status.success()
        })
        .collect();
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    assert!(by_kernel.contains(&true) && by_kernel.contains(&false));
    for ((file, form), allowed) in cases().zip(by_kernel) {
        let at = |name: &str| lab.at(&format!("/{name}"));
        let form = form.iter().map(|word| if *word == "REF" { at("a") } else { (*word).to_owned() });
        let words: Vec<String> = std::iter::once("touch".to_owned()).chain(form).chain([at(file)]).collect();
        assert_eq!(run(&words).code == 0, allowed, "{words:?}");
    }
}

#[test]
fn what_may_not_be_written_is_refused_and_stays() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        let script =
            "echo log > append; chattr +a append; echo x > fixed; chattr +i fixed; ln -s nowhere dangling
            btrfs -q subvolume create ro; echo y > ro/f; btrfs property set ro ro true; mkdir d";
        sh(top, script);
    }) else {
        return;
    };
    let before = fs::read(&lab.image).unwrap();
    let input = lab.host("input");
    fs::write(&input, "new").unwrap();
    let input = input.to_str().unwrap();
    for (args, says) in [
        (vec!["truncate", "-s", "0", "/fixed"], "operation not permitted: the inode is immutable"),
        (vec!["truncate", "-s", "0", "/append"], "operation not permitted: the inode is append-only"),
        (vec!["write", "/append", input], "operation not permitted: the inode is append-only"),
        (vec!["write", "/fixed", input], "operation not permitted"),
        (vec!["write", "/ro/f", input], "read-only file system"),
        (vec!["truncate", "-s", "1", "/ro/new"], "read-only file system"),
        (vec!["truncate", "-s", "1", "/d"], "is a directory"),
        (vec!["truncate", "-s", "9223372036854775808", "/append"], ""),
        (vec!["write", "/dangling", input], "dangling symlink"),
        (vec!["cp", input, "/dangling"], "dangling symlink"),
        (vec!["cp", input, "/ro/f"], "read-only file system"),
        (vec!["cp", "/append", "/append"], "same file"),
        (vec!["cp", "/d", "/e"], "copy it with -r"),
        (vec!["cp", "/append", "/fixed"], "operation not permitted"),
        (vec!["cp", "/append", "/ro/g"], "read-only file system"),
    ] {
        let words: Vec<String> = args
            .iter()
            .map(|w| if *w != input && w.starts_with('/') { lab.at(w) } else { (*w).to_owned() })
            .collect();
        let ran = run(&words);
        assert!(ran.code == 1 || ran.code == 2, "{args:?}: {} {}", ran.code, ran.stderr);
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        assert!(fs::read(&lab.image).unwrap() == before, "{args:?} has changed the image");
    }
    run(&["write", "--append", &lab.at("/append"), input]).expect(0);
    lab.mounted(|top| assert_eq!(fs::read(top.join("append")).unwrap(), b"log\nnew"));
}

#[test]
fn copies_within_an_image_share_their_extents() {
    let tree = OddTree { many: 100, links: 30, residues: 10, huge: false, ..OddTree::default() };
    let Some(lab) = Lab::kernel_made(&[], "rw,compress=zstd", |top| {
        tree.build(&top.join("odd")).unwrap();
        let script = "btrfs -q subvolume create s; head -c 3000000 /dev/urandom > s/big; fallocate -l 1M s/prealloc
            btrfs -q subvolume create s/inner; yes text | head -c 200000 > s/inner/f; truncate -s 5000000 s/sparse
            touch s/nocow; chattr +C s/nocow; echo data > s/nocow; btrfs property set s/inner compression zstd";
        sh(top, script);
    }) else {
        return;
    };
    let before = used(&lab);
    run(&["cp", "-q", "-a", "--reflink=always", &lab.at("/s"), &lab.at("/odd"), &lab.at("/copy")]).expect(1);
    run(&["mkdir", &lab.at("/copy")]).expect(0);
    let refused =
        run(&["cp", "-q", "-a", "--reflink=always", &lab.at("/s"), &lab.at("/odd"), &lab.at("/copy")]);
    let refused = refused.expect(1).stderr;
    assert!(refused.contains("/s/nocow: ") && refused.matches("nodatasum").count() == 1, "{refused}");
    run(&["cp", "-a", &lab.at("/s/."), &lab.at("/copy/s")]).expect(0);
    assert!(used(&lab) - before < 1 << 20, "{} bytes more", used(&lab) - before);
    run(&["cp", "-q", "-a", "--reflink=never", &lab.at("/s/."), &lab.at("/stored")]).expect(0);
    assert!(used(&lab) - before > 3_000_000, "{} bytes more", used(&lab) - before);
    // The copy of a nodatacow file has checksums: it cannot share, and is stored.
    run(&["cp", &lab.at("/s/nocow"), &lab.at("/plain")]).expect(0);
    let ran = run(&["cp", "--reflink=always", &lab.at("/s/nocow"), &lab.at("/other")]).expect(1);
    assert!(ran.stderr.contains("nodatasum"), "{}", ran.stderr);
    let ran = run(&["cp", "-r", &lab.at("/copy"), &lab.at("/copy/s")]).expect(1);
    assert!(ran.stderr.contains("into itself"), "{}", ran.stderr);
    checks_clean(&lab);
    lab.mounted(|top| {
        let options = DiffOptions::default();
        diff(&top.join("odd"), &top.join("copy/odd"), &options).unwrap().assert_equal();
        diff(&top.join("s"), &top.join("copy/s"), &options).unwrap().assert_equal();
        diff(&top.join("s"), &top.join("stored"), &options).unwrap().assert_equal();
        assert_eq!(sh(top, "btrfs property get copy/s/inner compression"), "compression=zstd\n");
        assert_eq!(fs::read(top.join("plain")).unwrap(), b"data\n");
        assert!(!top.join("other").exists());
    });
}

/// A file is read again from where it stood, to say how large the image would have to be; a pipe cannot be.
#[test]
fn what_standard_input_needs_is_said_where_it_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab { image: dir.path().join("i.img"), dir };
    let (image, input) = (lab.image.to_str().unwrap(), lab.host("input"));
    File::create(&input).unwrap().set_len(40 << 20).unwrap();
    run(&["mkfs", "-q", "-b", "32M", image]).expect(0);
    let (to, at) = (lab.at("/f"), ["write", "--offset", "5000"]);
    let mut sizes = Vec::new();
    for args in [&["cp", "-", &to][..], &[&at[..], &[&to]].concat()] {
        let ran = run_with_input(args, &input).expect(5);
        let size = writing::size_that_will_do(&ran);
        sizes.push(size);
        let other = lab.host("other.img");
        run(&["mkfs", "-q", "-f", "-b", &size.to_string(), other.to_str().unwrap()]).expect(0);
        let args: Vec<String> = args.iter().map(|w| w.replace("i.img", "other.img")).collect();
        run_with_input(&args, &input).expect(0);
        assert_eq!(btrfs_progs::check(&other).unwrap(), [""; 0]);
    }
    let dir = lab.dir.path();
    let ours = env!("CARGO_BIN_EXE_btrfsimg");
    let script =
        format!("(dd bs=8M count=1 of=/dev/null status=none; {ours} cp - i.img:/f 2>&1) < input || echo $?");
    let said = sh(dir, &script);
    let size = said.split("a size of ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let less = sizes[0] - size.parse::<u64>().unwrap();
    assert!(said.ends_with("5\n") && (4 << 20..16 << 20).contains(&less), "{said}");
    let said = sh(dir, &format!("cat input | {ours} cp - i.img:/f 2>&1 || echo $?"));
    assert!(said.ends_with("5\n") && said.contains("--grow") && !said.contains("a size of"), "{said}");
    assert_eq!(run(&["ls", &lab.at("/")]).expect(0).text(), "");
}

#[test]
fn copies_between_images() {
    // What a leaf of the other image can hold.
    let small = OddTree { symlink_len: 3949, huge: false, ..OddTree::default() };
    let tree = OddTree { many: 100, links: 30, residues: 10, ..small };
    let Some(from) = Lab::kernel_made(&["-O", "^no-holes"], "rw,compress=lzo", |top| {
        tree.build(&top.join("odd")).unwrap();
        sh(
            top,
            "btrfs -q subvolume create s; head -c 3000000 /dev/urandom > s/big; ln s/big s/link; chmod 750 s",
        );
    }) else {
        return;
    };
    let Some(to) = Lab::kernel_made(&["-n", "4096"], "rw", |top| {
        sh(top, "mkdir s; echo old > s/big; chown 5:6 s");
    }) else {
        return;
    };
    let ran = run(&["cp", "-a", "--reflink=always", &from.at("/s/big"), &to.at("/x")]).expect(1);
    assert!(ran.stderr.contains("within one image"), "{}", ran.stderr);
    run(&["cp", "-q", "-a", "--compress", "zstd", &from.at("/s/."), &to.at("/s")]).expect(0);
    run(&["cp", "-q", "-a", &from.at("/odd"), &to.at("/odd")]).expect(0);
    checks_clean(&to);
    to.mounted(|target| {
        from.mounted(|source| {
            diff(&source.join("s"), &target.join("s"), &DiffOptions::default()).unwrap().assert_equal();
            diff(&source.join("odd"), &target.join("odd"), &DiffOptions::default()).unwrap().assert_equal();
        });
    });
}

#[test]
fn cp_into_an_image_as_cp_does() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir d e; echo old > d/f; ln -s d/f link; ln -s /d/f e/f; echo keep > keep; touch -d 2100-01-01 keep",
        );
    }) else {
        return;
    };
    let host = lab.host("src");
    fs::create_dir(&host).unwrap();
    sh(&host, "echo new > f; chmod 4750 .; setfattr -n user.x -v y .; chown 7:8 .; touch -d 2001-02-03 .");
    let file = host.join("f");
    let file = file.to_str().unwrap();
    // Through symlinks, given by themselves or found in a directory.
    run(&["cp", file, &lab.at("/link")]).expect(0);
    lab.mounted(|top| {
        assert_eq!(fs::read(top.join("d/f")).unwrap(), b"new\n");
        assert!(top.join("link").is_symlink());
    });
    fs::write(host.join("f"), "newer\n").unwrap();
    run(&["cp", file, &lab.at("/e")]).expect(0);
    // What is there stays.
    run(&["cp", "-n", file, &lab.at("/keep")]).expect(0);
    run(&["cp", "-u", file, &lab.at("/keep")]).expect(0);
    run(&["cp", "-n", &lab.at("/d/f"), &lab.at("/keep")]).expect(0);
    run(&["cp", "-u", &lab.at("/d/f"), &lab.at("/keep")]).expect(0);
    let said = run(&["cp", "-v", "-f", file, &lab.at("/d")]).expect(0);
    assert!(said.text().contains("src/f"), "{}", said.text());
    let out = lab.host("out");
    fs::write(&out, "there").unwrap();
    sh(lab.dir.path(), "touch -d 2200-01-01 out");
    run(&["cp", "-n", &lab.at("/d/f"), out.to_str().unwrap()]).expect(0);
    run(&["cp", "-u", &lab.at("/d/f"), out.to_str().unwrap()]).expect(0);
    assert_eq!(fs::read(&out).unwrap(), b"there");
    sh(lab.dir.path(), "touch -d 1999-01-01 out");
    let said = run(&["cp", "-v", "-u", &lab.at("/d/f"), out.to_str().unwrap()]).expect(0);
    assert!(said.text().contains(":/d/f' -> '"), "{}", said.text());
    assert_eq!(fs::read(&out).unwrap(), b"newer\n");
    // Standard input, and files whose size stat does not know.
    run_with_input(&["cp", "-", &lab.at("/stdin")], Path::new(file)).expect(0);
    run_with_input(&["cp", "-", &lab.at("/link")], Path::new("/proc/filesystems")).expect(0);
    run(&["cp", "/proc/filesystems", &lab.at("/proc")]).expect(0);
    assert!(
        run_with_input(&["cp", "-", &lab.at("/d")], Path::new(file))
            .expect(1)
            .stderr
            .contains("name of a file")
    );
    // SRC/. gives the directory its attributes, with -a only.
    let ran = run(&["cp", "-r", &format!("{}/.", host.display()), &lab.at("/e")]).expect(1);
    assert!(ran.stderr.contains("/f: not writing through a symlink"), "{}", ran.stderr);
    run(&["cp", "-r", "--remove-destination", &format!("{}/.", host.display()), &lab.at("/e")]).expect(0);
    lab.mounted(|top| assert_eq!(fs::metadata(top.join("e")).unwrap().uid(), 0));
    run(&["cp", "-a", &format!("{}/.", host.display()), &lab.at("/")]).expect(0);
    checks_clean(&lab);
    lab.mounted(|top| {
        let known = fs::read("/proc/filesystems").unwrap();
        assert!(!known.is_empty());
        assert_eq!(fs::read(top.join("keep")).unwrap(), b"keep\n");
        assert_eq!(fs::read(top.join("stdin")).unwrap(), b"newer\n");
        assert_eq!(fs::read(top.join("d/f")).unwrap(), known);
        assert_eq!(fs::read(top.join("proc")).unwrap(), known);
        assert!(!top.join("e/f").is_symlink() && fs::read(top.join("e/f")).unwrap() == b"newer\n");
        let (ours, theirs) = (fs::metadata(top).unwrap(), fs::metadata(&host).unwrap());
        assert_eq!((ours.uid(), ours.gid(), ours.mode()), (7, 8, theirs.mode()));
        assert_eq!((ours.mtime(), ours.mtime_nsec()), (theirs.mtime(), theirs.mtime_nsec()));
        assert_eq!(sh(top, "getfattr --only-values -n user.x ."), "y");
    });
}
