//! Contents of files that the kernel made are changed, and the kernel reads them back.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/file_model.rs"]
mod file_model;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::lookup;
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use btrfsimg_ondisk::{Timespec, inode_flags};
use btrfsimg_testkit::{Oracle, btrfs_progs};
use file_model::{File, Op, apply, ops};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;

/// Files with every kind of extent, two of them in a subvolume that has a snapshot.
const FILES: &str = r#"
pattern() { yes "line $1 of a file that compresses" | head -c "$2"; }
pattern 1 300000 > parts; sync
dd if=/dev/urandom of=parts bs=4096 seek=5 count=9 conv=notrunc status=none; sync
cp --reflink=always parts shared; truncate -s 150001 shared
printf 'short' > inline; sync
head -c 4096 /dev/zero | tr '\0' a > sector; sync
head -c 4096 /dev/zero | tr '\0' a > sector_and_more; sync; pattern 2 50000 >> sector_and_more; sync
printf 'short' > inline_then_prealloc; sync
fallocate -n -o 4096 -l 20000 inline_then_prealloc; sync
fallocate -l 300000 prealloc; printf x | dd of=prealloc bs=1 seek=150000 conv=notrunc status=none
touch beyond; fallocate -n -l 200000 beyond; pattern 7 10000 | dd of=beyond conv=notrunc status=none; sync
truncate -s 250001 sparse; pattern 3 70000 | dd of=sparse bs=4096 seek=7 conv=notrunc status=none
touch nocow; chattr +C nocow; pattern 5 100000 > nocow
btrfs -q subvolume create s; pattern 6 200000 > s/a; cp --reflink=always parts s/b; sync
btrfs -q subvolume snapshot -r s snap; pattern 8 30000 >> s/a
"#;
const NAMES: &[&str] = &[
    "parts",
    "shared",
    "inline",
    "sector",
    "sector_and_more",
    "inline_then_prealloc",
    "prealloc",
    "beyond",
    "sparse",
    "nocow",
    "s/a",
    "s/b",
];
const SNAPSHOT: &[&str] = &["snap/a", "snap/b"];

fn sh(dir: &Path, script: &str) {
    let output = Command::new("bash").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn read_all<'n>(top: &Path, names: &[&'n str]) -> BTreeMap<&'n str, Vec<u8>> {
    names.iter().map(|name| (*name, fs::read(top.join(name)).unwrap())).collect()
}

/// Drawn with the same seed in every run.
fn draw(runner: &mut TestRunner) -> Vec<Op> {
    (0..6).flat_map(|_| ops(NAMES.len()).new_tree(runner).unwrap().current()).collect()
}

/// Changes the files of the image at `path`, which hold `bytes`, in three commits.
fn change(path: &Path, bytes: &BTreeMap<&str, Vec<u8>>, runner: &mut TestRunner) -> Vec<File> {
    let device = Arc::new(FileDevice::open(path, Access::Write, 0).unwrap());
    let options = VolumeOptions { no_sync: true, ..VolumeOptions::default() };
    let mut volume = Volume::open(device, options).unwrap();
    let mut files = Vec::new();
    for round in 0..3 {
        let mut tx = volume.begin(Timespec::new(1_700_000_000, 1)).unwrap();
        if round == 0 {
            for name in NAMES {
                let place = lookup::resolve(&tx, Place::TOP, name.as_bytes(), false).unwrap();
                let flags = lookup::inode(&tx, place).unwrap().flags.get();
                let nodatasum = flags & inode_flags::NODATASUM != 0;
                files.push(File { place, bytes: bytes[name].clone(), nodatasum });
            }
        }
        draw(runner).iter().for_each(|op| apply(&mut tx, &mut files, op));
        tx.commit().unwrap();
    }
    files
}

fn trial(mkfs_args: &[&str], options: &str, runner: &mut TestRunner) {
    let what = format!("{mkfs_args:?} {options}");
    let oracle = Oracle::new();
    if !oracle.has_progs() || !oracle.has_kernel() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("k.img");
    btrfs_progs::mkfs(&image, 256 << 20, mkfs_args).unwrap();
    let mount = oracle.mount(&image, options).unwrap().unwrap();
    sh(mount.path(), FILES);
    let (before, snapshot) = (read_all(mount.path(), NAMES), read_all(mount.path(), SNAPSHOT));
    assert_eq!(mount.unmount().unwrap(), [""; 0]);

    let files = change(&image, &before, runner);

    let mount = oracle.mount(&image, "ro").unwrap().unwrap();
    for (name, file) in NAMES.iter().zip(&files) {
        assert!(fs::read(mount.path().join(name)).unwrap() == file.bytes, "{what}: {name} differs");
    }
    assert!(read_all(mount.path(), SNAPSHOT) == snapshot, "{what}: the snapshot has changed");
    assert_eq!(mount.unmount().unwrap(), [""; 0], "{what}");
    oracle.judge(&image, None).unwrap().assert_ok();

    // The kernel goes on where we ended: what it shows behind the old ends is zeros.
    let mount = oracle.mount(&image, "rw").unwrap().unwrap();
    for name in NAMES {
        sh(mount.path(), &format!("truncate -s +70000 {name}; printf end >> {name}"));
    }
    assert_eq!(mount.unmount().unwrap(), [""; 0], "{what}");
    let mount = oracle.mount(&image, "ro").unwrap().unwrap();
    for (name, file) in NAMES.iter().zip(&files) {
        let want = [file.bytes.as_slice(), &[0; 70_000], b"end"].concat();
        assert!(
            fs::read(mount.path().join(name)).unwrap() == want,
            "{what}: {name} differs after the kernel"
        );
    }
    assert_eq!(mount.unmount().unwrap(), [""; 0], "{what}");
    assert_eq!(btrfs_progs::check(&image).unwrap(), [""; 0], "{what}");
}

#[test]
fn the_kernel_reads_what_we_make_of_its_files() {
    let mut runner = TestRunner::deterministic();
    trial(&[], "rw", &mut runner);
    trial(&["-n", "4096", "--csum", "xxhash"], "rw,compress-force=zstd", &mut runner);
    trial(&["-O", "^no-holes"], "rw,compress-force=lzo", &mut runner);
    trial(&["-O", "^no-holes", "--csum", "sha256"], "rw,compress-force=zlib", &mut runner);
}
