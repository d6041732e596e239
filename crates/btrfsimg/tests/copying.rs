//! Copies into, out of, between and within images, each against what cp(1) makes of the same on a mount.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use btrfsimg_testkit::oracle::Oracle;
use common::{Lab, run, sh};
use serde_json::Value;

/// A copy: what is there, in a directory of its own, and the words of cp, with `s/` for the source and `d` for that directory.
type Case<'c> = (&'c str, &'c str);

/// All that tells the results of copies apart, but for times.
const LOOK: &str = "find . -printf '%P %y %m %U:%G %n %l\\n' | sort; find . ! -type l | sort | xargs getfacl -n | grep -v ^#.[og]
    find . -type f | sort | while read f; do echo $f: $(head -c 40 $f; cksum < $f); getfattr -d $f; done
    find . -type f -links +1 -printf '%i %P\\n' | sort -k2 | awk '!n[$1] {n[$1]=++c} {print n[$1], $2}'";

/// Makes each copy with cp(1), and with ours in all directions. The trees and the exit codes must be the same.
#[track_caller]
fn as_cp_does(comes: &str, cases: &[Case<'_>]) {
    as_cp_does_under("0", comes, cases);
}

/// The same under a umask.
#[track_caller]
fn as_cp_does_under(umask: &str, comes: &str, cases: &[Case<'_>]) {
    let fill = |top: &Path| drop(sh(top, comes));
    let Some(source) = Lab::kernel_made(&[], "rw", fill) else { return };
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, "mkdir theirs out in across within src");
        fill(&top.join("src"));
        for dir in ["theirs", "out", "in", "across", "within"] {
            for (n, (there, _)) in cases.iter().enumerate() {
                sh(&top.join(dir), &format!("mkdir {n}; cd {n}; {there}"));
            }
        }
    }) else {
        return;
    };
    let words = |copy: &str, from: &str, to: &str| {
        let word = |word: &str| match (word.strip_prefix("s/"), word.strip_prefix('d')) {
            (Some(rest), _) => format!("{from}/{rest}"),
            (None, Some(rest)) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => word.to_owned(),
        };
        copy.split(' ').map(word).collect::<Vec<_>>()
    };
    let ours = |dir: &str, from: &str, to: &str| {
        let copy = |(n, (_, copy)): (usize, &Case<'_>)| {
            let mut args = vec!["cp".to_owned(), "--no-sync".to_owned()];
            args.extend(words(copy, from, &format!("{to}/{dir}/{n}")));
            let mut command = Command::new("sh");
            let script = format!("umask {umask}; exec \"$@\"");
            command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_btrfsimg")]).args(&args);
            let output = command.output().unwrap();
            (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        cases.iter().enumerate().map(copy).collect::<Vec<_>>()
    };
    let oracle = Oracle::new();
    let mount = oracle.mount(&lab.image, "rw").unwrap().unwrap();
    let (top, image) = (mount.path().to_str().unwrap(), format!("{}:", source.image.display()));
    let out = ours("out", &image, top);
    let mut theirs = Vec::new();
    source.mounted(|from| {
        for (n, (_, copy)) in cases.iter().enumerate() {
            let words = words(copy, from.to_str().unwrap(), &format!("{top}/theirs/{n}")).join(" ");
            theirs.push(sh(from, &format!("umask {umask}; cp {words} 2>&1 || echo failed")));
        }
    });
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    let across = ours("across", &image, &lab.at(""));
    let within = ours("within", &lab.at("/src"), &lab.at(""));
    let mut inside = Vec::new();
    source.mounted(|from| inside = ours("in", from.to_str().unwrap(), &lab.at("")));
    lab.mounted(|top| {
        let look = |dir: &str, n: usize| sh(&top.join(dir).join(n.to_string()), LOOK);
        for (dir, said) in [("out", out), ("in", inside), ("across", across), ("within", within)] {
            for (n, case) in cases.iter().enumerate() {
                let code = i32::from(theirs[n].ends_with("failed\n"));
                assert_eq!(said[n].0, code, "{dir}: {case:?}: {} {}", said[n].1, theirs[n]);
                let (ours, theirs) = (look(dir, n), look("theirs", n));
                let lines = |this: &str, other: &str| -> Vec<String> {
                    this.lines().filter(|line| other.lines().all(|o| o != *line)).map(str::to_owned).collect()
                };
                let differ = (lines(&ours, &theirs), lines(&theirs, &ours));
                assert!(ours == theirs, "{dir}: {case:?}: {}\n{differ:#?}", said[n].1);
            }
        }
    });
    oracle.judge(&lab.image, None).unwrap().assert_ok();
}

/// One that has other names: without links kept all of them get the new contents, else they keep theirs.
#[test]
fn a_file_with_other_names() {
    let there = "mkdir t; echo old > a; ln a b; echo one > t/a; ln t/a t/b; echo single > t/c";
    let copies = [
        "s/a d/a",
        "-p s/a s/two d",
        "-d s/a d/a",
        "-a s/a s/two d",
        "-P --preserve=links s/a s/two d",
        "-r s/t s/a d",
        "-rp s/. d",
        "-a s/. d",
        "-rd s/t d",
        "-r --preserve=links s/. d",
        "-a --no-preserve=links s/t s/a d",
    ];
    let cases = copies.map(|copy| (there, copy));
    let comes = "echo new > a; echo two > two; ln two twin; mkdir t; echo 1 > t/a; ln t/a t/c; echo 2 > t/b";
    as_cp_does(comes, &cases);
}

/// An ACL is a part of the mode: with it it comes, and what is there goes; a mode alone would give the group its mask.
#[test]
fn acls_come_and_go_with_the_mode() {
    let there = "setfacl -m d:u:7:rwx .; mkdir t t/dd; echo old > t/f; echo old > t/plain; echo old > f
        setfacl -m u:8:rwx f t/f t/plain; setfacl -m u:8:rwx -m d:u:9:rwx t/dd; setfattr -n user.old -v 1 t/plain";
    let mut copies = Vec::new();
    for way in ["-r", "-rp", "-a", "-r --preserve", "-a --no-preserve=xattr", "-a --no-preserve=ownership"]
        .map(str::to_owned)
        .into_iter()
        .chain(
            ["mode", "ownership", "timestamps", "xattr", "mode,xattr"].map(|p| format!("-r --preserve={p}")),
        )
    {
        copies.push(format!("{way} s/t s/f s/new d"));
        copies.push(format!("{way} s/t/. d/fresh"));
    }
    let cases: Vec<_> = copies.iter().map(|copy| (there, copy.as_str())).collect();
    let comes = "echo f > f; chown 3:4 f; chmod 640 f; setfacl -m u:5:rwx,g::r f; cp -p f new; mkdir t t/dd
        cp -p f t/f; echo p > t/plain; chmod 664 t/plain; setfattr -n user.x -v 1 f t/f t/dd; echo g > t/dd/g
        setfacl -m u:5:rwx -m d:u:6:rwx t/dd; mkfifo t/pipe; setfacl -m u:5:rw t/pipe; ln -s f t/l; mkdir -m 750 t/e";
    as_cp_does(comes, &cases);
}

/// Without the mode what is new has that of any new file, and what was there keeps its own.
#[test]
fn modes_that_are_not_kept() {
    let there = "mkdir -m 705 t; echo old > t/old; chmod 604 t/old";
    let comes =
        "mkdir -m 1750 t; mkdir -m 2711 t/d; echo 1 > t/f; chmod 6751 t/f; echo 2 > t/old; chmod 400 t/old
        mkfifo -m 640 t/p; ln -s f t/l; setfacl -m u:7:rwx t/f; python3 -c 'import socket
socket.socket(socket.AF_UNIX).bind(\"t/s\")'";
    let copies = ["-r", "-a", "-p"].map(|way| {
        ["mode", "all", "mode,ownership"].map(|not| match way {
            "-p" => format!("-p --no-preserve={not} s/t/f s/t/old d/t"),
            way => format!("{way} --no-preserve={not} s/t d"),
        })
    });
    let copies = copies.concat();
    // Images have no umask: new files are made there as under this one.
    as_cp_does_under("022", comes, &copies.iter().map(|copy| (there, copy.as_str())).collect::<Vec<_>>());
}

/// Names of one inode below several sources.
#[test]
fn links_between_sources() {
    let there = "mkdir old; echo old > old/x; ln old/x y";
    let copies = [
        "-a s/a s/b d",
        "-r s/a s/b d",
        "-a s/a/x s/b/y d",
        "-d s/b/y s/a/x d",
        "-a s/b s/a/l s/a/x d",
        "-a s/a/. s/b d",
        "-a s/a s/b s/c/b d",
        "-a -T s/a d",
        "-a s/a/x s/c/x d",
        "-r --preserve=links s/a s/a/x s/b/y d/old",
    ];
    let comes = "mkdir a b c c/b; echo 1 > a/x; ln a/x b/y; ln a/x b/z; ln -s q a/l; ln a/l b/m
        echo other > c/b/y; echo cx > c/x; mkfifo a/p; ln a/p b/p";
    as_cp_does(comes, &copies.map(|copy| (there, copy)));
}

/// A file, a directory, a symlink and a socket each over each, newer and older ones.
#[test]
fn every_kind_over_every_kind() {
    let fill = |kind: &str, contents: &str, time: &str| {
        let one = format!(
            "case {kind} in f) echo {contents} > $at;; d) mkdir $at;; l) ln -s {contents} $at;; s) sockets=\"$sockets $at\";; esac"
        );
        let all = format!(
            "for old in f d l s; do for new in f d l s; do for n in 1 2; do at=$old$n$new; {one}; done; done; done"
        );
        let sockets =
            "import socket, sys\nfor path in sys.argv[1:]: socket.socket(socket.AF_UNIX).bind(path)";
        format!("mkdir t; cd t; {all}; python3 -c '{sockets}' $sockets; touch -h -d {time} *1*")
    };
    let (there, comes) = (fill("$old", "nothing", "2005-01-01"), fill("$new", "new", "2001-01-01"));
    let ways = ["-r", "-a", "-rn", "-an", "-ru", "-au", "-r --remove-destination", "-a --remove-destination"];
    let copies = ways.map(|way| format!("{way} s/t d"));
    as_cp_does(&comes, &copies.iter().map(|copy| (&there[..], copy.as_str())).collect::<Vec<_>>());
}

/// Where cp(1) would write into a pipe or a device, it stays, and so does the file.
#[test]
fn no_file_goes_into_a_device() {
    let make = "mkdir t; mkfifo t/f; mknod t/g c 1 3";
    let comes = "mkdir t; echo f > t/f; echo g > t/g; cp t/f t/g .";
    let Some(source) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, comes))) else { return };
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, make))) else { return };
    let host = tempfile::tempdir().unwrap();
    sh(host.path(), &format!("mkdir in out; cd in; {comes}; cd ../out; {make}"));
    let (image, within) = (format!("{}:", source.image.display()), lab.at(""));
    let (inside, out) = (host.path().join("in"), host.path().join("out"));
    let ways = [(inside.to_str().unwrap(), &within[..]), (&image, &within), (&image, out.to_str().unwrap())];
    let copy = |words: &str, from: &str, to: &str| {
        let word = |word: &str| match (word.strip_prefix("s/"), word.strip_prefix("d/")) {
            (Some(rest), _) => format!("{from}/{rest}"),
            (_, Some(rest)) => format!("{to}/{rest}"),
            _ => word.to_owned(),
        };
        let words: Vec<_> = words.split(' ').map(word).collect();
        run(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (from, to) in ways {
        for words in ["cp -r s/t d/", "cp s/f d/t", "cp s/f s/g d/t"] {
            let ran = copy(words, from, to).expect(1);
            let says = ran.stderr.contains("no regular file (--remove-destination replaces it)");
            assert!(says, "{words}, {from} to {to}: {}", ran.stderr);
        }
    }
    let look = |top: &Path| sh(top, "find t -printf '%P %y\\n' | sort");
    assert_eq!(look(&out), " d\nf p\ng c\n");
    lab.mounted(|top| assert_eq!(look(top), " d\nf p\ng c\n"));
    for (from, to) in ways {
        copy("cp -r --remove-destination s/t d/", from, to).expect(0);
    }
    assert_eq!(look(&out), " d\nf f\ng f\n");
    lab.mounted(|top| assert_eq!(look(top), " d\nf f\ng f\n"));
}

/// What stands where something comes that cannot be made there stays.
#[test]
fn nothing_goes_before_the_new_one_is_made() {
    let Some(lab) =
        Lab::kernel_made(&[], "rw", |top| drop(sh(top, "mkdir t; mknod t/null c 1 3; ln -s new t/link")))
    else {
        return;
    };
    let out = tempfile::tempdir().unwrap();
    sh(out.path(), "mkdir t; echo precious > t/null; ln -s old t/link");
    // Root without the capability that it takes to make devices.
    let copy = Command::new("setpriv")
        .args(["--bounding-set=-mknod", "--inh-caps=-mknod", env!("CARGO_BIN_EXE_btrfsimg"), "cp", "-a"])
        .args([&lab.at("/t"), out.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(copy.status.code(), Some(1), "{}", String::from_utf8_lossy(&copy.stderr));
    let look = sh(out.path(), "cat t/null; readlink t/link; ls -A t");
    assert_eq!(look, "precious\nnew\nlink\nnull\n");
}

/// A file goes through a symlink to a file of the same tree, and through no other one there.
#[test]
fn symlinks_in_the_way() {
    let there = "mkdir t t/sub; cd t; echo old > target; echo old > twin; ln twin twin2; echo old > sub/deep
        ln -s target f; ln -s sub/../sub/deep g; echo old > h; ln -s ../h sub/h; ln -s twin i; ln -s nothing dangling
        ln -s loop loop; ln -s sub dir; ln -s target l; echo old > l2; ln -s sub sub2
        touch -d 2000-01-01 target sub/deep; touch -h -d 2005-01-01 f g";
    let copies = [
        "-r s/t d",
        "-a s/t d",
        "-a s/t/. d/t",
        "-ru s/t d",
        "-rp --no-preserve=timestamps s/t d",
        "-r --remove-destination s/t d",
    ];
    let comes =
        "mkdir t t/sub t/sub2; cd t; for f in f g sub/h i dangling loop dir; do echo new $f > $f; done
        ln -s new l; ln -s new l2; touch -h -d 2001-01-01 f g";
    let cases = copies.map(|copy| (there, copy));
    let operands = [
        "s/f d/t/f",
        "-a s/f d/t",
        "-p s/f d/t/dangling",
        "s/dangling s/f d/t",
        "-d s/t/l d/t/l",
        "--remove-destination s/f s/dangling d/t",
    ];
    let comes = format!("echo f > f; echo d > dangling; {comes}");
    as_cp_does(&comes, &[&cases[..], &operands.map(|copy| (there, copy))[..]].concat());
}

/// What a symlink leads to is written, and then goes itself, as another entry takes its name.
#[test]
fn what_a_symlink_leads_to_may_go_in_the_same_copy() {
    let there = "mkdir t; echo old > t/f; ln -s f t/a1";
    let comes = "mkdir t; echo 1 > t/a1; ln -s elsewhere t/f; echo 3 > t/last";
    as_cp_does(comes, &["-r s/t d", "-ru s/t d", "-a s/t d"].map(|copy| (there, copy)));
}

/// Files that go into one file that is there, by other names of it or symlinks to it, go one after the other: the last is what
/// it is. The first are long, and others come between.
#[test]
fn several_files_into_one() {
    let names = "for f in $(seq 100 139); do";
    let there = format!(
        "mkdir t l; echo old > t/000; echo old > l/000; touch -d 2000-01-01 t/000 l/000; {names} ln t/000 t/$f; ln -s 000 l/$f; done"
    );
    let comes = format!(
        "mkdir t l; for f in 000 050; do yes $f | head -c 1500000 > t/$f; done; {names} echo $f > t/$f; done; cp t/* l; echo 1 > t/130"
    );
    let copies = ["-r s/t s/l d", "-ru s/t s/l d", "-a s/t s/l d", "-r --preserve=links s/l d"];
    as_cp_does(&comes, &copies.map(|copy| (&there[..], copy)));
}

/// Where links are kept, a file that has other names when its turn comes becomes a new one, also when the other name goes next.
#[test]
fn the_other_name_goes_next() {
    let there = "for d in sym file pipe; do mkdir $d; echo old > $d/a; chmod 666 $d/a; ln $d/a $d/b; done";
    let comes = "for d in sym file pipe; do mkdir $d; echo secret > $d/a; chmod 600 $d/a; done
        ln -s q sym/b; echo B > file/b; mkfifo pipe/b";
    let copies = ["-dr s/. d", "-r --preserve=links s/sym s/file s/pipe d", "-a s/. d", "-r s/. d"];
    as_cp_does(comes, &copies.map(|copy| (there, copy)));
}

/// With `-u` what is newer stays, and the names that come later become names of it.
#[test]
fn links_to_what_stays() {
    let there = "mkdir t; echo newer > t/a; echo newer > t/c; ln -s a t/l";
    let comes =
        "mkdir t; echo 1 > t/a; ln t/a t/b; ln t/a t/c; echo 2 > t/k; ln t/k t/l; touch -d 2000-01-01 t/*";
    let copies = ["-au s/t d", "-ru --preserve=links s/t/. d/t", "-an s/t d", "-au s/t/b s/t/a d/t"];
    as_cp_does(comes, &copies.map(|copy| (there, copy)));
}

/// Where a further name leads to the copy already, the copy stays.
#[test]
fn a_symlink_to_its_other_name_takes_no_copy_away() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, "echo new > x; ln x y"))) else { return };
    let out = lab.host("out");
    fs::create_dir(&out).unwrap();
    sh(&out, "echo old > x; ln -s x y");
    run(&["cp", "-a", &lab.at("/x"), &lab.at("/y"), out.to_str().unwrap()]).expect(0);
    assert_eq!(sh(&out, "cat x y"), "new\nnew\n");
}

/// A symlink to what is newer stands where a further name comes: it goes, and not the file.
#[test]
fn a_symlink_to_what_stays_gives_way_to_a_link() {
    let there = "echo old > target; ln -s target y; touch -d 2020-01-01 target";
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, there))) else { return };
    let from = lab.host("from");
    fs::create_dir(&from).unwrap();
    sh(&from, "echo new > x; ln x y; touch -d 2010-01-01 x");
    run(&["cp", "-au", &format!("{}/.", from.display()), &lab.at("/")]).expect(0);
    lab.mounted(|top| {
        assert_eq!(sh(top, "cat x y target; stat -c %h x target"), "new\nnew\nold\n2\n1\n");
    });
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

/// A symlink in a tree that leads out of it is not written through, into whatever it is copied.
#[test]
fn symlinks_that_lead_out_of_the_tree() {
    let there =
        "mkdir d d/t d/t/sub; echo old > victim; ln -s ../../victim d/t/up; ln -s \"$PWD/victim\" d/t/abs
        ln -s sub/../../../victim d/t/round; ln -s /victim d/t/root";
    let comes = "mkdir t; for f in up abs round root last; do echo new > t/$f; done";
    let Some(source) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, comes))) else { return };
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, &format!("{there}; {comes}")))) else {
        return;
    };
    let out = lab.host("out");
    fs::create_dir(&out).unwrap();
    sh(&out, there);
    let from = lab.host("from");
    fs::create_dir(&from).unwrap();
    sh(&from, comes);
    let from = from.join("t").to_str().unwrap().to_owned();
    let image = format!("{}:/t", source.image.display());
    for way in ["-r", "-a"] {
        let to = out.join("d").to_str().unwrap().to_owned();
        for (from, to) in
            [(&image, &to), (&from, &lab.at("/d")), (&image, &lab.at("/d")), (&lab.at("/t"), &lab.at("/d"))]
        {
            let ran = run(&["cp", way, from, to]).expect(1);
            let refused = ran.stderr.lines().filter(|l| l.contains("leads out of the tree")).count();
            assert_eq!(refused, 4, "{from} {to}: {}", ran.stderr);
        }
    }
    let check = |top: &Path| {
        assert_eq!(fs::read_to_string(top.join("victim")).unwrap(), "old\n");
        assert_eq!(fs::read_to_string(top.join("d/t/last")).unwrap(), "new\n");
    };
    check(&out);
    lab.mounted(check);
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

/// What one source brings is no way for the next one: a symlink of the image, and a file of its name.
#[test]
fn symlinks_from_one_source_do_not_lead_the_next_one_out() {
    let comes = "mkdir a b c; ln -s ../victim a/l; echo evil > b/l; cp -r b c/a";
    let Some(source) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, comes))) else { return };
    let at = |path: &str| format!("{}:{path}", source.image.display());
    let cases: [(&[&str], i32); 4] =
        [(&["/a/l", "/b/l"], 1), (&["/a/.", "/b/l"], 1), (&["/a/.", "/b/."], 1), (&["/a", "/c/a"], 1)];
    for (n, (words, code)) in cases.into_iter().enumerate() {
        let dir = source.host(&n.to_string());
        fs::create_dir_all(dir.join("d")).unwrap();
        fs::write(dir.join("victim"), "old").unwrap();
        fs::write(dir.join("d/victim"), "old").unwrap();
        let mut args = vec!["cp".to_owned(), "-a".to_owned()];
        args.extend(words.iter().map(|word| at(word)));
        args.push(dir.join("d").to_str().unwrap().to_owned());
        run(&args).expect(code);
        assert_eq!(fs::read_to_string(dir.join("victim")).unwrap(), "old", "{words:?}");
    }
}

/// Where the host takes no ACLs the copy fails as cp(1)'s does, and the mode gives nobody more than the ACL did.
#[test]
fn an_acl_that_the_host_does_not_take() {
    let fill = "echo f > f; chmod 600 f; setfacl -m u:5:rwx f; echo p > plain; chmod 664 plain";
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, fill))) else { return };
    let dir = lab.host("ram");
    fs::create_dir(&dir).unwrap();
    sh(lab.dir.path(), "mount -t ramfs ramfs ram");
    let ran = ["-p", "-a", "--preserve=mode"].map(|way| {
        let to = dir.join(way.trim_start_matches('-').replace('=', ""));
        let ran = run(&["cp", way, &lab.at("/f"), to.to_str().unwrap()]);
        (ran.code, sh(&dir, &format!("stat -c %a {}", to.display())), ran.stderr)
    });
    let plain = run(&["cp", "-p", &lab.at("/plain"), dir.to_str().unwrap()]).code;
    sh(lab.dir.path(), "umount ram");
    assert_eq!(plain, 0);
    for (code, mode, said) in ran {
        assert_eq!((code, mode.as_str()), (1, "600\n"), "{said}");
        assert!(said.contains("/f: system.posix_acl_access: Operation not supported"), "{said}");
    }
}

/// The compression property goes to a host on btrfs, before the data; elsewhere the copy says that it did not.
#[test]
fn the_compression_property_on_the_host() {
    let fill = "for f in zlib zstd lzo none; do touch $f; btrfs property set $f compression $f; yes | head -c 300000 > $f; done
        setfattr -n btrfs.compression -v zstd:7 zstd; mkdir d; btrfs property set d compression lzo; yes | head -c 300000 > plain
        touch d/zlib; btrfs property set d/zlib compression zlib; yes | head -c 9000000 > d/zlib; mkdir e; echo > e/f";
    let Some(source) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, fill))) else { return };
    let Some(host) = Lab::kernel_made(&[], "rw", |_| {}) else { return };
    let oracle = Oracle::new();
    let mount = oracle.mount(&host.image, "rw").unwrap().unwrap();
    let to = mount.path().to_str().unwrap().to_owned();
    let ran = run(&["cp", "-a", &source.at("/."), &to]).expect(0);
    assert_eq!(ran.stderr, "");
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    let look = |lab: &Lab| {
        let mut seen = String::new();
        lab.mounted(|top| {
            seen = sh(
                top,
                "getfattr -R -m btrfs -d . | sort; find . -type f -o -type d | sort | xargs lsattr -d; for f in zlib zstd lzo none plain d/zlib; do \
                echo $f $(filefrag -v $f | grep -c encoded); md5sum $f; done",
            );
        });
        seen
    };
    assert_eq!(look(&host), look(&source));
    let out = host.host("out");
    let ran = run(&["cp", "-a", &source.at("/zstd"), out.to_str().unwrap()]);
    if ran.code == 0 && !ran.stderr.is_empty() {
        assert!(ran.stderr.contains("btrfs.compression"), "{}", ran.stderr);
    }
    oracle.judge(&host.image, None).unwrap().assert_ok();
}

/// Each word of --preserve keeps what it says, and nothing else.
#[test]
fn what_is_listed_is_kept() {
    let stat_line = |stat: &Value| {
        let file = &stat["files"][0];
        let xattr = file["xattrs"].as_array().unwrap().iter().map(|x| x["name"].as_str().unwrap());
        let year = if file["mtime"][0].as_u64().unwrap() < 1_000_000_000 { "2001" } else { "x" };
        let mode = file["mode"].as_str().unwrap().trim_start_matches('0');
        let owner = format!("{}:{}", file["uid"], file["gid"]);
        [mode, &owner, year].into_iter().chain(xattr).collect::<Vec<_>>().join(" ")
    };
    let dir = tempfile::tempdir().unwrap();
    let host = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    sh(
        dir.path(),
        "echo x > f; chown 5:6 f; chmod 2751 f; setfattr -n user.a -v 1 f; touch -d 2001-02-03 f; ln f g",
    );
    run(&["mkfs", "-q", "-b", "200M", &host("a.img")]).expect(0);
    let image = format!("{}:", host("a.img"));
    run(&["cp", "-a", &host("f"), &format!("{image}/f")]).expect(0);
    let cases = [
        ("--preserve=mode", "751 0:0 x"),
        ("--preserve=ownership", "751 5:6 x"),
        ("--preserve=timestamps", "751 0:0 2001"),
        ("--preserve=mode,ownership", "2751 5:6 x"),
        ("-p", "2751 5:6 2001"),
        ("-a", "2751 5:6 2001 user.a"),
        ("--preserve=xattr", "751 0:0 x user.a"),
    ];
    let minus = [
        ("mode", "644 5:6 2001 user.a"),
        ("ownership", "751 0:0 2001 user.a"),
        ("timestamps", "2751 5:6 x user.a"),
        ("xattr", "2751 5:6 2001"),
        ("all", "644 0:0 x"),
    ];
    let minus = minus.map(|(what, seen)| (format!("--no-preserve={what}"), seen));
    let cases = cases.map(|(way, seen)| (vec![way], seen)).into_iter();
    let cases = cases.chain(minus.iter().map(|(way, seen)| (vec!["-a", way], *seen)));
    for (n, (ways, expected)) in cases.enumerate() {
        let targets = [format!("{image}/in{n}"), format!("{image}/within{n}"), host(&format!("out{n}"))];
        for (from, to) in [host("f"), format!("{image}/f"), format!("{image}/f")].iter().zip(&targets) {
            let args = [&["cp"], &ways[..], &[from.as_str(), to]].concat();
            // On the host those bits take a word of their own.
            let setuid = if expected.starts_with("2751") { "--setuid" } else { "--force" };
            let args = [&args[..], &[setuid]].concat();
            run(&args).expect(0);
            let seen = if to.contains(".img:") {
                let stat = run(&["stat", "--json", to]).expect(0);
                stat_line(&serde_json::from_slice(&stat.stdout).unwrap())
            } else {
                let meta = fs::metadata(to).unwrap();
                let year = if meta.mtime() < 1_000_000_000 { "2001" } else { "x" };
                let xattr = sh(dir.path(), &format!("getfattr -m user {to} | sed 1d"));
                let line = format!("{:o} {}:{} {year} {xattr}", meta.mode() & 0o7777, meta.uid(), meta.gid());
                line.trim().to_owned()
            };
            assert_eq!(seen, expected, "{ways:?} {from} {to}");
        }
    }
}
