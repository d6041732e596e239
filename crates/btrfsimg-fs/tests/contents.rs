//! Contents of files inside a transaction, against a model of what a file is: its bytes.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/file_model.rs"]
mod file_model;
#[path = "common/writing.rs"]
mod writing;

use std::sync::Arc;

use btrfsimg_fs::Error;
use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::mkfs::{Features, Options, Size};
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_ondisk::{Key, KeyType, incompat, inode_flags, objectid};
use btrfsimg_testkit::{Oracle, btrfs_progs};
use file_model::{File, Op, apply, ops, read};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use writing::{file_system_with, findings, now, open};

/// What an image is like.
#[derive(Clone, Copy, Debug)]
struct Shape {
    sectorsize: u32,
    nodesize: u32,
    no_holes: bool,
}

const USUAL: Shape = Shape { sectorsize: 4096, nodesize: 16_384, no_holes: true };

/// The shapes that tests draw from.
const SHAPES: [Shape; 5] = [
    USUAL,
    Shape { nodesize: 4096, ..USUAL },
    Shape { no_holes: false, ..USUAL },
    Shape { sectorsize: 16_384, no_holes: false, ..USUAL },
    Shape { sectorsize: 65_536, nodesize: 65_536, no_holes: true },
];

/// An image with three empty files, the last one without checksums.
fn start(shape: Shape) -> (Arc<MemDevice>, Vec<File>) {
    let mut features = Features::default();
    if !shape.no_holes {
        features.incompat &= !incompat::NO_HOLES;
    }
    let Shape { sectorsize, nodesize, .. } = shape;
    let device = file_system_with(|options| Options { sectorsize, nodesize, features, ..options });
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    let mut files = Vec::new();
    for (name, flags) in [("a", 0), ("b", 0), ("c", inode_flags::NODATACOW | inode_flags::NODATASUM)] {
        let mut attributes = Attributes::new(0o100_644, now());
        attributes.flags = flags;
        let place = create(&mut tx, Place::TOP, name.as_bytes(), attributes, Vec::new()).unwrap();
        files.push(File { place, bytes: Vec::new(), nodatasum: flags != 0 });
    }
    tx.commit().unwrap();
    (device, files)
}

fn check(shape: Shape, ops: &[Op]) -> Arc<MemDevice> {
    let (device, mut files) = start(shape);
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    for op in ops {
        match op {
            Op::Commit => {
                tx.commit().unwrap();
                tx = volume.begin(now()).unwrap();
            }
            op => apply(&mut tx, &mut files, op),
        }
    }
    tx.commit().unwrap();
    let fs = Filesystem::open(device.clone()).unwrap();
    for (i, file) in files.iter().enumerate() {
        assert!(read(&fs, file.place) == file.bytes, "file {i} differs");
    }
    assert_eq!(findings(&device, &[]), [""; 0]);
    device
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_are_their_bytes(shape in prop::sample::select(SHAPES.to_vec()), ops in ops(3)) {
        check(shape, &ops);
    }
}

#[test]
fn bytes_behind_the_old_end_never_come_back() {
    // The tail of a sector, of an inline extent, and of a compressed extent; then the file grows in each way.
    for first in [100, 5000, 200_000_u64] {
        for compress in [None, Some("zstd")] {
            for grow in 0..3 {
                let write = |offset, len| Op::Write { file: 0, offset, len, kind: 1, compress };
                let last = match grow {
                    0 => Op::Truncate { file: 0, size: first + 10_000 },
                    1 => write(first + 7000, 10),
                    _ => Op::Clone { from: 1, to: 0, start: 0, len: None, at: 303_104 },
                };
                let other = Op::Write { file: 1, offset: 0, len: 9000, kind: 2, compress };
                check(SHAPES[1], &[write(0, first), other, Op::Truncate { file: 0, size: first - 50 }, last]);
            }
        }
    }
}

#[test]
fn btrfs_check_agrees_whatever_the_sector() {
    if !Oracle::new().has_progs() {
        return;
    }
    let mut runner = TestRunner::deterministic();
    for shape in SHAPES {
        let changes: Vec<Op> = (0..3).flat_map(|_| ops(3).new_tree(&mut runner).unwrap().current()).collect();
        let device = check(shape, &changes);
        let image = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(image.path(), device.contents()).unwrap();
        assert_eq!(btrfs_progs::check(image.path()).unwrap(), [""; 0], "{shape:?}");
    }
}

/// A leaf that was to be split, in an image that is full: what is left in memory is no state of the tree.
#[test]
fn what_failed_half_way_is_not_committed() {
    let device = file_system_with(|options| Options { size: Size::Exact(32 << 20), ..options });
    let before = device.contents();
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    let key = |n: u64| Key::new(1000 + n, KeyType::XATTR_ITEM, 0);
    for n in 0..2000 {
        tx.insert(objectid::FS_TREE, key(n), b"short").unwrap();
    }
    let failed = (0..2000).find(|n| tx.replace(objectid::FS_TREE, key(*n), &[7; 15_000]).is_err());
    assert!(failed.is_some(), "an image of this size holds all that");
    // Its user goes on, and other changes succeed.
    tx.superblock_mut().label[0] = b'x';
    assert!(matches!(tx.commit(), Err(Error::NoSpace { .. })));
    assert_eq!(findings(&device, &[]), [""; 0]);
    let label = |bytes: &[u8]| bytes[0x1_012b];
    assert_eq!(label(&device.contents()), label(&before));
}
