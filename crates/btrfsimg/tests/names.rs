//! Names and attributes: each edit is made by the command in one image and by the kernel in a copy of it; in the end
//! the kernel must show the same in both.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs::{self, File};
use std::io::Write as _;
use std::process::Stdio;

use btrfsimg_testkit::treediff::{DiffOptions, diff};
use btrfsimg_testkit::{JudgeOptions, Oracle};
use common::{Lab, Ran, command, run, sh};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use writing::{assert_checks_clean, sha256};

/// Files of all kinds, in several subvolumes.
const FILL: &str = r#"
umask 022
text() { yes "line $1 of a file" | head -c "$2"; }
mkdir a d d/full d/empty d/sub into tree tree/x coll many acl sg plain
for f in file over1 over2 one two n1 n2 target times mode owner perm xattr u1 u2 u3 u4; do text $f 5000 > a/$f; done
touch -d 2001-01-01 a/u1; touch -d 2002-01-01 a/u2; touch -d 2000-01-01 a/u3; printf 123 > a/perm3
ln a/file a/link1; ln a/file a/link2; ln -s target a/sym; ln -s ../d a/dirlink; mkfifo a/fifo; mknod a/null c 1 3
chmod 6755 a/owner; setcap cap_net_raw+ep a/owner; chmod 2644 a/perm; printf x > d/full/x
printf 1 > coll/ue2r43xy; printf 2 > coll/c54cvxdh; printf 3 > coll/x
setfattr -n user.ue2r43xy -v 1 a/xattr; setfattr -n user.c54cvxdh -v 2 a/xattr
text many 70000 > many/f; long=$(head -c 200 /dev/zero | tr '\0' n)
for i in $(seq 150); do ln many/f many/$long$i; done
text t 300000 > tree/text; head -c 200000 /dev/urandom > tree/random; printf small > tree/small; ln tree/small tree/x/hard
ln -s ../text tree/x/sym; mkfifo tree/x/fifo; setfattr -n user.a -v b tree/x; chown 7:8 tree/small; chmod 4755 tree/small
truncate -s 3000000 tree/holes; printf mid | dd of=tree/holes bs=1 seek=1500000 conv=notrunc status=none
setfacl -m u:1000:r-x,d:g:50:rwx tree/x; touch -d '2001-02-03 04:05:06.789' tree/x tree/text tree; setcap cap_chown+ep tree/random
setfacl -d -m u:1000:rwx,g:50:r-x,o::--- acl; chgrp 50 acl; chmod 2770 acl; chgrp 60 sg; chmod 2777 sg
setfacl -m u:1000:rw-,g:9:r-- a/mode
btrfs -q subvolume create sub; text s 9000 > sub/x; mkdir sub/dir; printf y > sub/dir/y
btrfs -q subvolume create sub/inner; printf z > sub/inner/z; sync -f .
btrfs -q subvolume snapshot sub snap; btrfs -q subvolume create gone; btrfs -q subvolume create gone/in; printf g > gone/in/g
"#;

/// What the host has for cp.
const SOURCE: &str =
    "umask 022; mkdir -p tree/in; printf c > file; printf c > tree/in/c; ln -s x tree/l; chmod 640 file;
    printf '#!' > tree/prog; chmod 755 tree/prog; mkdir tree/closed; chmod 700 tree/closed;
    ln -s tree dirlink; ln tree/prog tree/in/prog";

/// Lines of a batch, and what a shell does with the mount. `ACL` is an access ACL's value, `SRC` a directory.
const EDITS: &[(&str, &str)] = &[
    ("mv /a/file /a/renamed", "mv a/file a/renamed"),
    ("mv /a/over1 /a/over2", "mv a/over1 a/over2"),
    ("mv -T /d/full /d/empty", "mv -T d/full d/empty"),
    ("mv /a/link1 /d", "mv a/link1 d"),
    ("mv -t /into /a/one /a/two", "mv -t into a/one a/two"),
    ("mv -n /a/n1 /a/n2", "mv -n a/n1 a/n2 || true"),
    ("rm /d/link1", "rm d/link1"),
    ("mv /coll/ue2r43xy /coll/other", "mv coll/ue2r43xy coll/other"),
    ("mv /coll/x /coll/ue2r43xy", "mv coll/x coll/ue2r43xy"),
    ("rm /coll/c54cvxdh", "rm coll/c54cvxdh"),
    ("mv /sub/dir /sub/renamed", "mv sub/dir sub/renamed"),
    ("mv /sub /moved", "mv sub moved"),
    ("mv /moved/inner /into/inner", "mv moved/inner into/inner"),
    ("mv /moved /into/sub", "mv moved into/sub"),
    ("mv /into/sub/x /from-sub", "mv into/sub/x from-sub"),
    ("mv /tree /into/sub/tree", "mv tree into/sub/tree"),
    ("mv /into/sub/tree/x /into/inner/x", "mv into/sub/tree/x into/inner/x"),
    ("rm -r /snap/inner", "rmdir snap/inner"),
    ("rm -r /snap/dir", "rm -r snap/dir"),
    ("rm -r --subvol /gone", "btrfs -q subvolume delete gone/in gone"),
    ("ln /a/target /a/hard", "ln a/target a/hard"),
    ("ln -s ../any/thing /a/soft", "ln -s ../any/thing a/soft"),
    ("ln -s /abs /d/", "ln -s /abs d/"),
    ("ln -sfn elsewhere /a/dirlink", "ln -sfn elsewhere a/dirlink"),
    ("ln -f /a/target /a/n2", "ln -f a/target a/n2"),
    ("ln -f /a/target /a/hard", "ln -f a/target a/hard"),
    ("mv -u /a/u1 /a/u2", "mv -u a/u1 a/u2"),
    ("mv -u /a/u2 /a/u3", "mv -u a/u2 a/u3"),
    ("truncate -r /a/perm3 /a/u1", "truncate -r a/perm3 a/u1"),
    ("truncate -r /a/perm3 -s +10 /a/u4", "truncate -r a/perm3 -s +10 a/u4"),
    ("chattr +Ad /a/u4", "chattr +Ad a/u4"),
    ("chattr = /a/u4", "chattr = a/u4"),
    ("ln /a/sym /a/symhard", "ln -P a/sym a/symhard"),
    ("touch -d '2020-02-02 20:20:20.25' /a/times", "touch -d '2020-02-02 20:20:20.25Z' a/times"),
    ("touch -h -d @-5.5 /a/sym", "touch -h -d @-5.5 a/sym"),
    ("touch -c /a/not-there", "touch -c a/not-there"),
    ("touch /a/new", "touch a/new"),
    ("chmod 4711 /a/times", "chmod 4711 a/times"),
    ("chmod g-r,o+w /a/mode", "chmod g-r,o+w a/mode"),
    ("chmod -R u=rwX,go= /into/sub/renamed", "chmod -R u=rwX,go= into/sub/renamed"),
    ("chmod -R o+r /into", "chmod -R o+r into"),
    ("chown 12:34 /a/owner", "chown 12:34 a/owner"),
    ("chown :77 /a/perm", "chown :77 a/perm"),
    ("chown -h 5 /a/sym", "chown -h 5 a/sym"),
    ("chown -R 100:200 /into/inner", "chown -R 100:200 into/inner"),
    ("mknod /a/dev b 7 300", "mknod a/dev b 7 300"),
    ("mknod -m 600 /a/pipe p", "mknod -m 600 a/pipe p"),
    ("xattr set /a/xattr user.ue2r43xy 0x00ff", "setfattr -n user.ue2r43xy -v 0x00ff a/xattr"),
    ("xattr rm /a/xattr user.c54cvxdh", "setfattr -x user.c54cvxdh a/xattr"),
    ("xattr set /a/dev trusted.t text", "setfattr -n trusted.t -v text a/dev"),
    ("xattr set -h /a/sym security.s 0sAAEC", "setfattr -h -n security.s -v 0sAAEC a/sym"),
    (
        "xattr set /a/target system.posix_acl_access ACL",
        "setfattr -n system.posix_acl_access -v ACL a/target",
    ),
    ("xattr set /a/mode system.posix_acl_access MIN", "setfattr -n system.posix_acl_access -v MIN a/mode"),
    ("xattr set /d system.posix_acl_default ACL", "setfattr -n system.posix_acl_default -v ACL d"),
    ("mkdir /acl/dir", "mkdir acl/dir"),
    ("mkdir -m 700 /acl/closed", "mkdir -m 700 acl/closed"),
    ("mkdir -p /acl/p/q", "mkdir -p acl/p/q"),
    ("touch /acl/dir/file", "touch acl/dir/file"),
    ("mknod /acl/fifo p", "mknod acl/fifo p"),
    ("mknod -m 640 /acl/null c 1 3", "mknod -m 640 acl/null c 1 3"),
    ("ln -s x /acl/link", "ln -s x acl/link"),
    ("cp SRC/file :/acl/copied", "cp SRC/file acl/copied"),
    ("cp -r SRC/tree :/acl/tree", "cp -r SRC/tree acl/tree"),
    ("cp -r SRC/tree/. :/acl/dir", "cp -r SRC/tree/. acl/dir"),
    ("cp -a SRC/file :/acl/archive", "cp -a SRC/file acl/archive"),
    ("mkdir /sg/dir", "mkdir sg/dir"),
    ("mkdir -m 755 /sg/mode", "mkdir -m 755 sg/mode"),
    ("touch /sg/dir/file", "touch sg/dir/file"),
    ("ln -s x /sg/link", "ln -s x sg/link"),
    (
        "mknod /sg/dir/sock s",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sg/dir/sock\")'",
    ),
    ("chmod 644 /sg/dir/sock", "chmod 644 sg/dir/sock"),
    ("rmdir /d/sub", "rmdir d/sub"),
    ("mkdir -p /deep/er/est", "mkdir -p deep/er/est"),
    ("rmdir -p /deep/er/est/", "rmdir -p deep/er/est/"),
    ("rmdir --ignore-fail-on-non-empty /a", "rmdir --ignore-fail-on-non-empty a"),
    ("subvol create /empty", "btrfs -q subvolume create empty"),
    ("rmdir /empty", "rmdir empty"),
    ("chmod --reference /a/owner /a/n2", "chmod --reference a/owner a/n2"),
    ("chmod +111,g=s /a/new", "chmod +111,g=s a/new"),
    ("chown --reference /a/owner -h /a/sym", "chown -h --reference a/owner a/sym"),
    ("touch -t 202001020304.05 /a/times", "TZ=UTC touch -t 202001020304.05 a/times"),
    ("touch -a -r /a/times /a/sym -h", "touch -h -a -r a/times a/sym"),
    ("chattr +iA /a/new", "chattr +iA a/new"),
    ("chattr -i /a/new", "chattr -i a/new"),
    ("chattr =d /a/hard", "chattr =d a/hard"),
    ("chattr +c /many", "chattr +c many"),
    ("chattr -R +D /sg", "chattr -R +D sg 2>/dev/null || true"),
    ("touch /plain/nocow", "touch plain/nocow"),
    ("chattr +C /plain/nocow", "chattr +C plain/nocow"),
    ("chattr +m /plain", "chattr +m plain"),
    ("cp -t :/plain SRC/file SRC/tree/prog", "cp -t plain SRC/file SRC/tree/prog"),
    ("cp -T SRC/file :/plain/nocow", "cp -T SRC/file plain/nocow"),
    ("cp -rT SRC/tree :/plain/tree", "cp -rT SRC/tree plain/tree"),
    ("cp -rT SRC/tree/in :/plain/tree", "cp -rT SRC/tree/in plain/tree"),
    ("cp -P SRC/tree/l :/plain/", "cp -P SRC/tree/l plain/"),
    ("cp -P :/a/dirlink :/plain/sym", "cp -P a/dirlink plain/sym"),
    ("cp -d SRC/dirlink :/plain/dirlink", "cp -d SRC/dirlink plain/dirlink"),
    ("cp -rd SRC/tree :/plain/rd", "cp -rd SRC/tree plain/rd"),
    ("cp -rd :/plain/rd :/plain/rd2", "cp -rd plain/rd plain/rd2"),
    ("cp -rH SRC/dirlink :/plain/h", "cp -rH SRC/dirlink plain/h"),
];

/// The value of an ACL with these entries (tag, permissions, id), in hexadecimal.
fn acl(entries: &[(u16, u16, u32)]) -> String {
    let mut hex = String::from("0x02000000");
    for (tag, perm, id) in entries {
        let bytes = [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
        bytes.iter().for_each(|b| hex.push_str(&format!("{b:02x}")));
    }
    hex
}

const NO_ID: u32 = u32::MAX;
const OWNER: (u16, u16, u32) = (1, 6, NO_ID);
const GROUP: (u16, u16, u32) = (4, 5, NO_ID);
const OTHER: (u16, u16, u32) = (32, 1, NO_ID);
const ANN: (u16, u16, u32) = (2, 7, 1000);
const MASK: (u16, u16, u32) = (16, 5, NO_ID);

/// Runs a batch of these lines.
fn batch(lab: &Lab, lines: &str) -> Ran {
    let mut child = command(&["batch", lab.image.to_str().unwrap(), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code().unwrap(), stdout: output.stdout, stderr }
}

#[track_caller]
fn edited(mkfs_args: &[&str], edits: &[(&str, &str)], in_one: bool) {
    let Some(lab) = Lab::kernel_made(mkfs_args, "rw", |top| drop(sh(top, FILL))) else { return };
    let source = lab.host("src");
    fs::create_dir(&source).unwrap();
    sh(&source, SOURCE);
    let model = lab.host("model.img");
    fs::copy(&lab.image, &model).unwrap();
    // Only one file system of an id can be mounted: the model gets another one.
    sh(lab.dir.path(), "btrfstune -fm model.img");
    let put_in = |text: &str| {
        text.replace("SRC", source.to_str().unwrap())
            .replace("ACL", &acl(&[OWNER, ANN, GROUP, MASK, OTHER]))
            .replace("MIN", &acl(&[OWNER, GROUP, OTHER]))
    };
    let oracle = Oracle::new();
    let mount = oracle.mount(&model, "rw").unwrap().unwrap();
    for (_, theirs) in edits {
        sh(mount.path(), &format!("umask 022; {}", put_in(theirs)));
    }
    drop(mount);
    let lines: Vec<String> = edits.iter().map(|(ours, _)| put_in(ours)).collect();
    for lines in if in_one { vec![lines.join("\n")] } else { lines } {
        let ran = batch(&lab, &lines);
        assert!(ran.code == 0 && ran.stderr.is_empty(), "{lines}: exit {} {}", ran.code, ran.stderr);
        if !in_one {
            assert_checks_clean(&lab.image, &lines);
        }
    }
    let theirs = oracle.mount(&model, "ro").unwrap().unwrap();
    let options = DiffOptions { times: false, ..DiffOptions::default() };
    let ours = oracle.mount(&lab.image, "ro").unwrap().unwrap();
    diff(theirs.path(), ours.path(), &options).unwrap().assert_equal();
    for look in [ACLS, "btrfs subvolume list . | awk '{print $2, $7, $9}'", TIMES, FLAGS] {
        assert_eq!(sh(theirs.path(), look), sh(ours.path(), look), "{look}");
    }
    drop((ours, theirs));
    let judgement = oracle.judge_with(&lab.image, &JudgeOptions::default()).unwrap();
    assert!(judgement.is_ok(), "{judgement}");
    run(&["verify", "--data", lab.image.to_str().unwrap()]).expect(0);
}

/// ACLs as people see them. The order of names in a directory is not compared.
const ACLS: &str =
    "find . -path ./many -prune -o ! -type l -print0 | sort -z | xargs -0 getfacl -n 2>/dev/null";

/// What keeps its times, or was given some. (Reading a directory to move it changes its time of access on a mount.)
const TIMES: &str = "stat -c '%n %y %X' a/times a/sym into/sub/tree/text 2>/dev/null || true
    stat -c '%n %y' into/inner/x 2>/dev/null || true";

const FLAGS: &str =
    "lsattr -d a/u4 a/new a/hard many sg sg/dir sg/dir/file plain plain/nocow 2>/dev/null || true";

#[test]
fn as_the_kernel_does_it_in_one_commit() {
    edited(&[], EDITS, true);
}

#[test]
fn as_the_kernel_does_it_one_by_one() {
    edited(&["-n", "4096"], EDITS, false);
}

/// Links that fill an item, so that further names are elsewhere, come and go.
#[test]
fn many_links() {
    let long = "n".repeat(200);
    let lines: Vec<(String, String)> = (1..=150)
        .step_by(7)
        .flat_map(|i| {
            let old = format!("many/{long}{i}");
            [
                (format!("mv /{old} /many/r{i}"), format!("mv {old} many/r{i}")),
                (format!("ln /many/f /{old}"), format!("ln many/f {old}")),
                (format!("rm /many/{long}{}", i + 1), format!("rm many/{long}{}", i + 1)),
            ]
        })
        .collect();
    let lines: Vec<(&str, &str)> = lines.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    edited(&[], &lines[..lines.len() - 1], true);
}

#[test]
fn a_batch_is_all_or_nothing() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, "mkdir d; printf x > d/x"))) else {
        return;
    };
    let before = sha256(&lab.image);
    for (lines, code, said) in [
        ("mkdir /a\n\n# a comment\nmkdir /d\n", 1, ":4: mkdir /d (nothing was changed): "),
        ("mkdir /a # d\nrm /none", 1, ":2: rm /none (nothing was changed): "),
        ("mkdir /a\nfrobnicate /x", 2, ":2: frobnicate /x (nothing was changed): unrecognized subcommand"),
        ("mkdir /a\nls /", 2, "does not change the image"),
        ("mkdir /a\nchmod 9 /a", 2, "is no mode"),
        ("mkdir /a\nmkdir 'b", 2, "a quotation that does not end"),
        ("mkdir -i other.img /a", 2, "options of the batch"),
        ("mkdir --grow /a", 2, "options of the batch"),
        ("mkdir /a\ncp /no/such/file :/a", 1, ":2: cp /no/such/file :/a (nothing was changed): "),
        ("mkdir /a\ncp /dev/null /dev/zero /nowhere", 2, ":2: "),
        ("mkdir /a\ncp - :/a/x", 2, ":2: cp - :/a/x (nothing was changed): standard input"),
        ("mkdir /a\nwrite /d/x", 2, "standard input is read already"),
        ("mkdir /a\ndefrag /d", 2, "is no part of one commit; run it by itself"),
    ] {
        let ran = batch(&lab, lines);
        assert_eq!(ran.code, code, "{lines}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{lines}: {}", ran.stderr);
        assert_eq!(sha256(&lab.image), before, "{lines}");
    }
    let lines = "mkdir -v \"/a b\" '/c\"d' /e\\ f # three\r\nmv /d/x '/a b/'\nln -s 'x  y' /l\n";
    let ran = batch(&lab, lines).expect(0);
    assert_eq!(ran.text().lines().count(), 3, "{}", ran.text());
    let file = lab.host("edits");
    fs::write(&file, "chmod 700 '/a b'\n").unwrap();
    run(&["batch", lab.image.to_str().unwrap(), file.to_str().unwrap()]).expect(0);
    lab.mounted(|top| {
        let look = "stat -c '%n %a' 'a b' 'a b/x' 'c\"d' 'e f'; readlink l; ls d | wc -l";
        assert_eq!(sh(top, look), "a b 700\na b/x 644\nc\"d 755\ne f 755\nx  y\n0\n");
    });
    assert_checks_clean(&lab.image, "batch");
}

/// Each command that changes an image, in one commit.
#[test]
fn a_batch_knows_every_command() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, "mkdir d; printf 0123456789 > d/x")))
    else {
        return;
    };
    let file = lab.host("file");
    fs::write(&file, "from outside").unwrap();
    let lines = format!(
        "subvol create /s\ncp {file} :/s/f\ncp --reflink=auto :/s/f :/d/g\nwrite --offset 2 /d/x {file}\n\
         truncate -s 5 /s/f\nsubvol snapshot -r /s /d/snap\nmv /s/f /d/f\nchmod 600 /d/f\nchown 1:2 /d/f\n\
         touch -d @7 /d/f\nln /d/f /d/h\nmknod /d/p p\nxattr set /d/f user.a b\nprop set /d compression lzo\n\
         subvol snapshot /d/snap /t\nsubvol delete /s\nrm /d/p\n\
         mkdir /e\nrmdir /e\nchattr +A /d/f\n",
        file = file.display()
    );
    let ran = batch(&lab, &lines);
    assert!(ran.code == 0, "{}", ran.stderr);
    lab.mounted(|top| {
        let look = "cat d/f d/g d/snap/f t/f d/x; stat -c ' %n %a %u %Y %h' d/f; getfattr -n user.a --only-values d/h
            test ! -e s; test ! -e d/p; btrfs property get t ro; btrfs property get d/snap ro";
        let shown = "from from outsidefrom from 01from outside d/f 600 1 7 2\nbro=false\nro=true\n";
        assert_eq!(sh(top, look), shown);
    });
    assert_checks_clean(&lab.image, "batch");
    run(&["verify", "--data", lab.image.to_str().unwrap()]).expect(0);
}

#[test]
fn a_second_writer_waits_when_told() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |_| {}) else { return };
    let held = File::open(&lab.image).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockShared).unwrap();
    let at = |name: &str| lab.at(name);
    run(&["ls", &at("/")]).expect(0);
    let ran = run(&["mkdir", &at("/a")]).expect(1);
    assert!(
        ran.stderr.contains("locked by another process") && ran.stderr.contains("--wait"),
        "{}",
        ran.stderr
    );
    run(&["mkdir", "--wait=0", &at("/a")]).expect(1);
    let waiting = command(&["mkdir", "--wait", &at("/a")]).spawn().unwrap();
    let also = command(&["mkdir", "--wait=60", &at("/b")]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    rustix::fs::flock(&held, FlockOperation::Unlock).unwrap();
    for mut child in [waiting, also] {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(run(&["ls", &at("/")]).expect(0).text(), "a\nb\n");
}

/// While it waits for the first image: the second one is not changed either.
#[test]
fn an_interrupted_command_does_not_go_on_with_the_next_image() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a.img", "b.img"].map(|name| dir.path().join(name));
    for image in [&a, &b] {
        run(&["mkfs", "-q", image.to_str().unwrap(), "-b", "64M"]).expect(0);
    }
    let before = (sha256(&a), sha256(&b));
    let held = File::open(&a).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockShared).unwrap();
    let paths = [&a, &b].map(|image| format!("{}:/", image.display()));
    for args in [["touch", "--wait"], ["defrag", "--wait"]] {
        let args = args.into_iter().chain(paths.iter().map(String::as_str));
        let child =
            command(&args.collect::<Vec<_>>()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.matches("interrupted").count()), (Some(1), 1), "{said}");
        assert_eq!((sha256(&a), sha256(&b)), before);
    }
}

#[test]
fn xattrs_are_shown() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "printf x > f; setfattr -n user.text -v 'a b' f; setfattr -n user.bin -v 0x00ff f; ln -s f l
            setfattr -h -n trusted.l -v 1 l",
        );
    }) else {
        return;
    };
    let at = |path: &str| lab.at(path);
    let shows = |args: &[&str], out: &[u8]| {
        assert_eq!(
            run(args).expect(0).stdout.escape_ascii().to_string(),
            out.escape_ascii().to_string(),
            "{args:?}"
        );
    };
    shows(&["xattr", "list", &at("/f")], b"user.bin\nuser.text\n");
    shows(&["xattr", "get", &at("/l")], b"user.bin=0sAP8=\nuser.text=a b\n");
    shows(&["xattr", "get", "-h", &at("/l")], b"trusted.l=1\n");
    shows(&["xattr", "get", &at("/f"), "user.text"], b"a b\n");
    shows(&["xattr", "get", "--raw", &at("/f"), "user.bin"], b"\x00\xff");
    let json = run(&["xattr", "get", "--json", &at("/f")]).expect(0);
    let json = json.text();
    assert!(json.contains("\"value_b64\": \"AP8=\"") && json.contains("\"version\": 1"), "{json}");
    run(&["xattr", "get", &at("/f"), "user.none"]).expect(1);
}
