//! Copies into, out of, between and within images to where something is: what stays, goes and is written, as cp(1) has it.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/as_cp.rs"]
mod as_cp;
mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use as_cp::as_cp_does;
use btrfsimg_testkit::oracle::Oracle;
use common::{Lab, run, sh};

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
