//! Edits of images that the kernel made, in which nothing is as this project would have made it.
//!
//! Each edit is made twice: by the command in the image, and by cp(1), rm(1) and mkdir(1) on a directory that holds
//! the same. In the end the kernel must show the same in both.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs;
use std::path::{Path, PathBuf};

use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::txn::{TreeDrop, Volume, VolumeOptions};
use btrfsimg_ondisk::Timespec;
use btrfsimg_testkit::btrfs_progs;
use btrfsimg_testkit::treediff::DiffOptions;
use btrfsimg_testkit::{JudgeOptions, Oracle};
use common::{Lab, run, sh};
use writing::{assert_checks_clean, field};

/// Files with every layout, snapshots, and sharing between them. $COMPRESS is set per directory by a property.
const FILL: &str = r#"
pattern() { yes "line $1 of a file that compresses" | head -c "$2"; }
mkdir -p keep/deep/er gone/a/b merge/x plain setgid
chgrp 77 setgid; chmod 2775 setgid
for d in zlib lzo zstd; do mkdir $d; btrfs property set $d compression $d; pattern $d 700000 > $d/text; done
pattern 1 300000 > plain/text; head -c 3000000 /dev/urandom > plain/random; pattern 2 100 > plain/inline
fallocate -l 2000000 plain/prealloc; printf x | dd of=plain/prealloc bs=1 seek=900000 conv=notrunc status=none
truncate -s 5000000 plain/sparse; pattern 3 70000 | dd of=plain/sparse bs=4096 seek=777 conv=notrunc status=none
touch plain/nocow; chattr +C plain/nocow; pattern 4 100000 > plain/nocow
for i in $(seq 400); do pattern $i $((i * 17)) > gone/a/f$i; done
for i in $(seq 100); do printf $i > merge/x/f$i; done
printf old > merge/file; ln -s file merge/link; ln plain/random gone/hardlink; mkfifo gone/fifo
setfattr -n user.one -v 1 keep; setfattr -n user.two -v $(head -c 2000 /dev/zero | tr '\0' v) plain/text
sync -f .
btrfs -q subvolume create sub; cp -r plain sub/; sync -f .
btrfs -q subvolume snapshot sub snap; btrfs -q subvolume snapshot -r sub frozen
cp --reflink=always plain/random gone/reflink; cp --reflink=always plain/text sub/reflink
dd if=/dev/urandom of=gone/reflink bs=4096 seek=100 count=20 conv=notrunc status=none; sync -f .
"#;

/// The same edits as lines of two kinds: what the command is told, and what the shell does with the model.
/// `IMG` is the image's address, `SRC` a directory of the host.
const EDITS: &[(&str, &str)] = &[
    ("mkdir -p IMG:/new/a/b/c", "mkdir -p new/a/b/c"),
    ("mkdir -m 1777 IMG:/new/tmp", "mkdir -m 1777 new/tmp"),
    ("cp SRC/file IMG:/new/", "cp SRC/file new/"),
    ("cp SRC/file IMG:/new/other", "cp SRC/file new/other"),
    ("cp SRC/big IMG:/plain/random", "cp SRC/big plain/random"),
    ("cp SRC/file SRC/big IMG:/keep/deep", "cp SRC/file SRC/big keep/deep"),
    ("cp -r SRC/tree IMG:/new", "cp -r SRC/tree new"),
    ("cp -a SRC/tree IMG:/new/archive", "cp -a SRC/tree new/archive"),
    ("cp -r SRC/tree/. IMG:/merge", "cp -r SRC/tree/. merge"),
    ("cp -a SRC/tree IMG:/keep/deep/er/", "cp -a SRC/tree keep/deep/er/"),
    ("cp SRC/big IMG:/zlib/big", "cp SRC/big zlib/big"),
    ("cp -r SRC/tree IMG:/lzo/", "cp -r SRC/tree lzo/"),
    ("cp -a SRC/tree IMG:/sub/tree", "cp -a SRC/tree sub/tree"),
    ("cp SRC/big IMG:/snap/plain/random", "cp SRC/big snap/plain/random"),
    ("cp --compress zstd:9 SRC/big IMG:/plain/zstd9", "cp SRC/big plain/zstd9"),
    ("truncate -s 150001 IMG:/zlib/text", "truncate -s 150001 zlib/text"),
    ("truncate -s 9000001 IMG:/plain/prealloc", "truncate -s 9000001 plain/prealloc"),
    ("truncate -s 50 IMG:/plain/inline", "truncate -s 50 plain/inline"),
    ("truncate -s 5000 IMG:/merge/file", "truncate -s 5000 merge/file"),
    (
        "write --offset 123457 IMG:/lzo/text SRC/file",
        "dd if=SRC/file of=lzo/text bs=64k oflag=seek_bytes seek=123457 conv=notrunc status=none",
    ),
    (
        "write --offset 700000 IMG:/sub/plain/random SRC/big",
        "dd if=SRC/big of=sub/plain/random bs=64k oflag=seek_bytes seek=700000 conv=notrunc status=none",
    ),
    (
        "write --offset 3000 IMG:/plain/sparse SRC/file",
        "dd if=SRC/file of=plain/sparse bs=64k oflag=seek_bytes seek=3000 conv=notrunc status=none",
    ),
    (
        "write --offset 20000 IMG:/keep/holes SRC/file",
        "dd if=SRC/file of=keep/holes bs=64k oflag=seek_bytes seek=20000 conv=notrunc status=none",
    ),
    ("truncate -s 100 IMG:/zstd/text", "truncate -s 100 zstd/text"),
    ("cp --reflink=always IMG:/plain/random IMG:/plain/cloned", "cp plain/random plain/cloned"),
    (
        "write --offset 65536 IMG:/plain/cloned SRC/file",
        "dd if=SRC/file of=plain/cloned bs=64k oflag=seek_bytes seek=65536 conv=notrunc status=none",
    ),
    ("rm IMG:/plain/text IMG:/plain/inline", "rm plain/text plain/inline"),
    ("rm -r IMG:/gone", "rm -r gone"),
    ("rm IMG:/sub/reflink", "rm sub/reflink"),
    ("rm -r IMG:/snap/plain", "rm -r snap/plain"),
    ("rm -f IMG:/not/there", "true"),
    ("cp -r SRC/tree IMG:/gone", "cp -r SRC/tree gone"),
    ("cp -r SRC/tree SRC/file IMG:/setgid/", "cp -r SRC/tree SRC/file setgid/"),
    ("mkdir IMG:/setgid/dir", "mkdir setgid/dir"),
    ("rm -r IMG:/gone IMG:/new/tree", "rm -r gone new/tree"),
];

fn make_source(source: &Path) {
    let script = r#"
    mkdir -p tree/sub/empty tree/x
    yes 'text of a file' | head -c 5000 > file; chmod 640 file
    (yes 'text of a larger file' | head -c 1500000; head -c 700000 /dev/urandom; head -c 300000 /dev/zero) > big
    cp big tree/big; cp file tree/file; ln -s file tree/link; ln -s /nowhere tree/sub/dangling
    ln tree/big tree/sub/hardlink; printf i > tree/sub/inline; : > tree/sub/none; mkfifo tree/sub/fifo
    for i in $(seq 300); do printf "$i new" > tree/x/f$i; done
    setfattr -n user.x -v y tree/file; setfattr -n user.d -v z tree/sub; chown 12:34 tree/sub/inline
    truncate -s 3000000 tree/holes; printf mid | dd of=tree/holes bs=1 seek=1500000 conv=notrunc status=none
    chmod 2750 tree/sub; chmod 4755 tree/file
    touch -d '2001-02-03 04:05:06.789' tree/big tree/sub tree"#;
    fs::create_dir_all(source).unwrap();
    sh(source, &format!("umask 022; {script}"));
}

/// A line for the command, with the places put in.
fn edit(lab: &Lab, line: &str) {
    let image = lab.image.display().to_string();
    let words: Vec<String> = line
        .split(' ')
        .map(|w| w.replace("IMG", &image).replace("SRC", lab.host("src").to_str().unwrap()))
        .collect();
    let ran = run(&words);
    assert!(ran.code == 0 && ran.stderr.is_empty(), "{line}: exit {} {}", ran.code, ran.stderr);
    assert_checks_clean(&lab.image, line);
}

/// What the kernel says of each image with a cache of free space of version 1.
const DEPRECATED: &str = "space cache v1 is being deprecated";

/// Who makes an empty image.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Maker {
    Progs,
    Ours,
}

impl Maker {
    fn make(self, image: &Path, args: &[&str]) {
        match self {
            Maker::Progs => btrfs_progs::mkfs(image, 512 << 20, args).unwrap(),
            Maker::Ours => {
                let head = ["mkfs", "-q", "-b", "512M", image.to_str().unwrap()];
                let ran = run(&[&head, args].concat()).expect(0);
                assert_eq!(ran.stderr, "");
                assert_checks_clean(image, "mkfs");
            }
        }
    }
}

/// As [`Lab::kernel_made`], whatever the kernel says of the first version of the cache of free space.
fn kernel_made(maker: Maker, mkfs_args: &[&str], options: &str, prepare: &str) -> Option<Lab> {
    let oracle = Oracle::new();
    if !oracle.has_progs() || !oracle.has_kernel() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("k.img");
    maker.make(&image, mkfs_args);
    let mount = oracle.mount(&image, options).unwrap()?;
    sh(mount.path(), FILL);
    sh(mount.path(), prepare);
    let said = mount.unmount().unwrap();
    assert!(said.iter().all(|line| line.contains(DEPRECATED)), "{said:?}");
    Some(Lab { dir, image })
}

/// What the kernel made with `mkfs_args` and `options`, changed by `prepare` on the mount, then edited.
fn edited(mkfs_args: &[&str], options: &str, prepare: &str) {
    edited_from(Maker::Progs, mkfs_args, options, prepare);
}

fn edited_from(maker: Maker, mkfs_args: &[&str], options: &str, prepare: &str) {
    let Some(lab) = kernel_made(maker, mkfs_args, options, prepare) else { return };
    make_source(&lab.host("src"));
    let model = lab.host("model");
    fs::create_dir(&model).unwrap();
    lab.mounted(|top| {
        sh(top, &format!("cp -a --reflink=never . {}", model.display()));
    });
    let source = lab.host("src").display().to_string();
    for (ours, theirs) in EDITS {
        edit(&lab, ours);
        sh(&model, &format!("umask 022; {}", theirs.replace("SRC", &source)));
    }
    let oracle = Oracle::new();
    let diff = DiffOptions { times: false, ..DiffOptions::default() };
    let judge = JudgeOptions { source: Some(&model), diff, ..JudgeOptions::default() };
    let mut judgement = oracle.judge_with(&lab.image, &judge).unwrap();
    judgement.faults.retain(|fault| !fault.contains(DEPRECATED));
    assert!(judgement.is_ok(), "{maker:?} {mkfs_args:?} {options} {prepare}: {judgement}");
}

#[test]
fn an_image_as_mkfs_makes_it() {
    edited(&[], "rw", "true");
}

#[test]
fn small_and_large_nodes() {
    edited(&["-n", "4096", "--csum", "xxhash"], "rw,compress=zstd", "true");
    edited(&["-n", "65536", "--csum", "sha256"], "rw,compress-force=lzo", "true");
}

#[test]
fn one_copy_and_two() {
    edited(&["-d", "dup", "--csum", "blake2"], "rw", "true");
    edited(&["-m", "single"], "rw,compress=zlib", "true");
}

/// Free space without a tree of its own: in the cache of version 1, or nowhere.
#[test]
fn free_space_without_a_tree() {
    edited(&["-R", "^free-space-tree"], "rw,space_cache=v1", "true");
    edited(&["-R", "^free-space-tree"], "rw,nospace_cache", "true");
}

#[test]
fn nodes_of_32k_and_explicit_holes() {
    edited(&["-n", "32k", "-O", "^no-holes"], "rw,compress=zlib", "true");
}

/// As mkfs of btrfs-progs before 3.13 left it; kernels make the tree when they mount.
#[test]
fn without_a_tree_of_uuids() {
    let Some(lab) = Lab::kernel_made(&["-K"], "ro", |_| {}) else { return };
    make_source(&lab.host("src"));
    without_uuid_tree(&lab.image);
    for line in [
        "subvol create IMG:/s",
        "cp -a SRC/tree IMG:/s/tree",
        "subvol snapshot IMG:/s IMG:/snap",
        "subvol snapshot -r IMG:/snap IMG:/s/frozen",
        "rm -r IMG:/snap/tree/sub",
        "subvol delete IMG:/s/frozen",
        "mv IMG:/s IMG:/moved",
    ] {
        edit(&lab, line);
    }
    assert!(!btrfs_progs::dump_tree(&lab.image, &[]).unwrap().contains("UUID_TREE"));
    let mount = Oracle::new().mount(&lab.image, "rw").unwrap().unwrap();
    let tree = lab.host("src/tree").display().to_string();
    assert_eq!(
        sh(mount.path(), &format!("diff -r --no-dereference -x fifo moved/tree {tree}; ls snap/tree")),
        "big\nfile\nholes\nlink\nx\n"
    );
    sh(
        mount.path(),
        "btrfs -q subvolume snapshot moved again; sync -f .; until btrfs inspect-internal dump-tree -t 9 $(findmnt -no SOURCE .) | grep -c SUBVOL >/dev/null; do sleep 0.1; done",
    );
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    edit(&lab, "subvol delete IMG:/again");
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

/// Takes the UUID tree out of an image.
fn without_uuid_tree(image: &Path) {
    const UUID_TREE: u64 = 9;
    let device = std::sync::Arc::new(FileDevice::open(image, Access::Write, 0).unwrap());
    let mut volume = Volume::open(device, VolumeOptions::default()).unwrap();
    let mut tx = volume.begin(Timespec::new(1_700_000_000, 0)).unwrap();
    tx.root_item_mut(UUID_TREE).unwrap().unwrap().refs = 0.into();
    tx.store_root_item(UUID_TREE).unwrap();
    assert!(TreeDrop::new(UUID_TREE).step(&mut tx, 100).unwrap());
    tx.superblock_mut().uuid_tree_generation = 0.into();
    tx.commit().unwrap();
}

/// btrfs-progs still make the old form of references to tree blocks by tuning an image down.
#[test]
fn fat_references_to_tree_blocks() {
    edited(&["-O", "^skinny-metadata"], "rw", "true");
}

#[test]
fn mixed_block_groups_and_explicit_holes() {
    let features = "^no-holes,^skinny-metadata,^extref";
    edited(&["-M", "-O", "^no-holes", "-R", "^free-space-tree"], "rw,space_cache=v1", "true");
    edited_from(Maker::Ours, &["-M", "-O", features, "--csum", "xxhash"], "rw,compress=zstd", "true");
}

#[test]
fn a_tree_of_block_groups() {
    edited_from(Maker::Ours, &["-O", "block-group-tree"], "rw", "true");
}

/// Edits of an image that is empty at first, and that no kernel here mounts.
const EDITS_UNMOUNTED: &[(&str, &str)] = &[
    ("cp -a SRC/tree IMG:/a", "cp -a SRC/tree a"),
    ("mkdir IMG:/zlib IMG:/lzo IMG:/zstd", "mkdir zlib lzo zstd"),
    ("prop set IMG:/zlib compression zlib", "true"),
    ("prop set IMG:/lzo compression lzo", "true"),
    ("prop set IMG:/zstd compression zstd:9", "true"),
    ("cp -r SRC/tree IMG:/lzo/", "cp -r SRC/tree lzo/"),
    ("cp SRC/big SRC/file IMG:/zlib/", "cp SRC/big SRC/file zlib/"),
    ("cp -r SRC/tree IMG:/zstd/", "cp -r SRC/tree zstd/"),
    ("cp SRC/big IMG:/a/x/f1", "cp SRC/big a/x/f1"),
    ("cp SRC/file IMG:/zstd/tree/big", "cp SRC/file zstd/tree/big"),
    ("truncate -s 700001 IMG:/lzo/tree/big", "truncate -s 700001 lzo/tree/big"),
    (
        "write --offset 123457 IMG:/lzo/tree/big SRC/file",
        "dd if=SRC/file of=lzo/tree/big bs=64k oflag=seek_bytes seek=123457 conv=notrunc status=none",
    ),
    ("truncate -s 300000 IMG:/zlib/file", "truncate -s 300000 zlib/file"),
    (
        "write --offset 200000 IMG:/zlib/far SRC/file",
        "dd if=SRC/file of=zlib/far bs=64k oflag=seek_bytes seek=200000 conv=notrunc status=none",
    ),
    ("cp --reflink=always IMG:/a/big IMG:/a/cloned", "cp a/big a/cloned"),
    (
        "write --offset 65536 IMG:/a/cloned SRC/file",
        "dd if=SRC/file of=a/cloned bs=64k oflag=seek_bytes seek=65536 conv=notrunc status=none",
    ),
    ("rm -r IMG:/lzo IMG:/a/sub", "rm -r lzo a/sub"),
    ("cp -r SRC/tree IMG:/b", "cp -r SRC/tree b"),
    ("rm IMG:/b/holes IMG:/zlib/big", "rm b/holes zlib/big"),
];

/// Sectors larger than the pages of this machine: btrfs-progs are the judge.
#[test]
fn sectors_that_no_kernel_here_mounts() {
    if !Oracle::new().has_progs() {
        return;
    }
    for (maker, args) in [
        (Maker::Progs, &["-s", "8k", "-n", "16k"][..]),
        (Maker::Progs, &["-s", "16k", "-n", "16k", "-M", "-O", "^no-holes"]),
        (Maker::Progs, &["-s", "64k", "-n", "64k", "--csum", "sha256"]),
        (Maker::Ours, &["-s", "64k", "-O", "^no-holes,^skinny-metadata"]),
        (Maker::Ours, &["-s", "16k", "-n", "32k", "-O", "^free-space-tree"]),
        (Maker::Ours, &["-s", "8k", "-M"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab { image: dir.path().join("s.img"), dir };
        maker.make(&lab.image, args);
        make_source(&lab.host("src"));
        let (source, model) = (lab.host("src").display().to_string(), lab.host("model"));
        fs::create_dir(&model).unwrap();
        for (ours, theirs) in EDITS_UNMOUNTED {
            edit(&lab, ours);
            sh(&model, &format!("umask 022; {}", theirs.replace("SRC", &source)));
        }
        let restored = lab.host("restored");
        fs::create_dir(&restored).unwrap();
        btrfs_progs::restore(&lab.image, &restored).unwrap();
        let compare = format!("diff -r --no-dereference -x fifo . {}", restored.display());
        assert_eq!(sh(&model, &compare), "", "{maker:?} {args:?}");
        let verify = run(&["verify", "--data", lab.image.to_str().unwrap()]);
        assert_eq!(verify.code, 0, "{maker:?} {args:?}: {}{}", verify.text(), verify.stderr);
    }
}

#[test]
fn quotas() {
    edited(&[], "rw", "btrfs quota enable .; btrfs quota rescan -w . >/dev/null; btrfs qgroup limit 1G sub");
}

/// A balance leaves full back references and blocks that the relocation made.
#[test]
fn after_a_balance() {
    edited(&[], "rw", "btrfs -q balance start --full-balance . >/dev/null; sync -f .");
    let more = "for i in 1 2 3; do btrfs -q subvolume snapshot sub s$i; touch s$i/plain/new; sync -f .; done
        btrfs -q balance start -m . >/dev/null; echo x > sub/y; sync -f .";
    edited(&["-n", "4096"], "rw", more);
}

#[test]
fn properties_as_the_kernel_sees_them() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir d e; printf x > e/f; touch nocow; chattr +C nocow; btrfs -q subvolume create s; mkfifo p",
        );
    }) else {
        return;
    };
    make_source(&lab.host("src"));
    let at = |path: &str| lab.at(path);
    let big = lab.host("src/big");
    let flags = || {
        let flags = field(&btrfs_progs::dump_super(&lab.image, &[]).unwrap(), "incompat_flags");
        u64::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap()
    };
    let first_flags = flags();
    let (lzo, zstd) = (8, 16);
    for (value, incompat, kernel, attribute, extents) in [
        ("zstd:10", zstd, "compression=zstd:10\n", "c", "zstd"),
        ("lzo", zstd | lzo, "compression=lzo\n", "c", "lzo"),
        ("zlib:9", zstd | lzo, "compression=zlib:9\n", "c", "zlib"),
        ("zstd:-5", zstd | lzo, "compression=zstd:-5\n", "c", "zstd"),
        ("none", zstd | lzo, "compression=none\n", "m", "none"),
        ("", zstd | lzo, "", "", "none"),
    ] {
        let dir =
            if value.is_empty() { "/d/reset".to_owned() } else { format!("/d/{}", value.replace(':', "_")) };
        edit(&lab, &format!("mkdir IMG:{dir}"));
        run(&["prop", "set", &at(&dir), "compression", value]).expect(0);
        assert_checks_clean(&lab.image, value);
        assert_eq!(flags(), first_flags | incompat, "{value}");
        // What is made below inherits, level included (but `none` as the flag alone), and is compressed so.
        edit(&lab, &format!("mkdir -p IMG:{dir}/sub/sub"));
        run(&["cp", big.to_str().unwrap(), &at(&format!("{dir}/sub/sub/big"))]).expect(0);
        assert_checks_clean(&lab.image, value);
        assert_eq!(run(&["prop", "get", &at(&dir), "compression"]).expect(0).text(), kernel);
        lab.mounted(|top| {
            let inherited = if value == "none" { "" } else { kernel };
            for (path, says) in [("", kernel), ("/sub", inherited), ("/sub/sub/big", inherited)] {
                assert_eq!(
                    sh(top, &format!("btrfs property get .{dir}{path} compression")),
                    says,
                    "{dir}{path}"
                );
                let lsattr = sh(top, &format!("lsattr -d .{dir}{path}"));
                let flags: String =
                    lsattr.split(' ').next().unwrap().chars().filter(|c| "cm".contains(*c)).collect();
                assert_eq!(flags, attribute, "{dir}{path}");
            }
            assert!(fs::read(top.join(format!(".{dir}/sub/sub/big"))).unwrap() == fs::read(&big).unwrap());
        });
        let ino = run(&["stat", "--json", &at(&format!("{dir}/sub/sub/big"))]).expect(0);
        let ino = ino.text().split("\"inode\": ").nth(1).unwrap().split(',').next().unwrap().to_owned();
        let dump = btrfs_progs::dump_tree(&lab.image, &["-t", "5"]).unwrap();
        let first = dump.split(&format!("key ({ino} EXTENT_DATA 0)")).nth(1).unwrap();
        let words: Vec<&str> = first.split_whitespace().collect();
        let compression = words[words.iter().position(|w| *w == "compression").unwrap() + 2];
        assert_eq!(compression.trim_matches(['(', ')']), extents, "{value}");
    }
    assert!(run(&["prop", "set", &at("/nocow"), "compression", "zstd"]).expect(1).stderr.contains("nocow"));
    assert!(run(&["prop", "set", &at("/p"), "compression", "zstd"]).expect(1).stderr.contains("/p"));
    run(&["prop", "set", &at("/e/f"), "compression", "lzo"]).expect(0);
    run(&["prop", "set", &at("/s"), "ro", "true"]).expect(0);
    run(&["prop", "set", lab.image.to_str().unwrap(), "label", "a label"]).expect(0);
    assert_checks_clean(&lab.image, "ro and label");
    assert!(run(&["mkdir", &at("/s/d")]).expect(1).stderr.contains("/s/d"));
    lab.mounted(|top| {
        assert_eq!(sh(top, "btrfs property get e/f compression"), "compression=lzo\n");
        assert_eq!(sh(top, "btrfs property get s ro; btrfs filesystem label ."), "ro=true\na label\n");
    });
    run(&["prop", "set", &at("/s"), "ro", "false"]).expect(0);
    edit(&lab, "mkdir IMG:/s/d");
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

/// In turn: the kernel edits what the command made, the command edits that.
#[test]
fn the_kernel_and_the_command_in_turn() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab { image: dir.path().join("t.img"), dir };
    let (source, model): (PathBuf, PathBuf) = (lab.host("src"), lab.host("model"));
    make_source(&source);
    let tree = source.join("tree");
    let image = lab.image.to_str().unwrap();
    run(&["mkfs", "-q", image, "-r", tree.to_str().unwrap(), "--compress", "zstd:3", "-b", "300M"]).expect(0);
    sh(&source, &format!("cp -a tree {}", model.display()));
    let source = source.display().to_string();
    for round in 0..6 {
        let kernel = format!(
            "umask 022; mkdir k{round}; cp -r {source}/tree k{round}/; rm -rf k{round}/tree/x/f1*; mv k{round}/tree/big k{round}/moved
            printf changed{round} | dd of=k{round}/moved bs=1 seek={round}5555 conv=notrunc status=none
            truncate -s 700000 k{round}/tree/file; rm -rf o{}/archive/sub o{}/new; ln k{round}/moved k{round}/link; sync -f .",
            round - 1, round - 1
        );
        let options = ["rw", "rw,compress-force=zstd:1", "rw,compress=lzo,autodefrag"]
            [usize::try_from(round).unwrap() % 3];
        let mount = oracle.mount(&lab.image, options).unwrap().unwrap();
        sh(mount.path(), &kernel);
        assert_eq!(mount.unmount().unwrap(), [""; 0], "round {round}");
        sh(&model, &kernel);
        for (ours, theirs) in [
            (format!("mkdir -p IMG:/o{round}/new/dir"), format!("mkdir -p o{round}/new/dir")),
            (
                format!("cp -a SRC/tree IMG:/o{round}/archive"),
                format!("cp -a {source}/tree o{round}/archive"),
            ),
            (format!("rm -r IMG:/k{round}/tree"), format!("rm -r k{round}/tree")),
            (format!("cp SRC/big IMG:/k{round}/moved"), format!("cp {source}/big k{round}/moved")),
        ] {
            edit(&lab, &ours);
            sh(&model, &format!("umask 022; {theirs}"));
        }
        let options = DiffOptions { times: false, ..DiffOptions::default() };
        let judge = JudgeOptions { source: Some(&model), diff: options, ..JudgeOptions::default() };
        let judgement = oracle.judge_with(&lab.image, &judge).unwrap();
        assert!(judgement.is_ok(), "round {round}: {judgement}");
    }
}
