//! The cost of a change follows the change, not the image: counted in tree blocks.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::path::Path;
use std::sync::Arc;

use btrfsimg_compress::PropertyChange;
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::import::{self, Preserve, Sparse};
use btrfsimg_fs::lookup::{Place, resolve};
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::unlink_checked;
use btrfsimg_fs::write::xattr::set_compression;
use btrfsimg_ondisk::Timespec;
use btrfsimg_testkit::{btrfs_progs, synthetic};

/// What the project promises.
const READ_MAX: u64 = 64;
const WRITTEN_MAX: u64 = 32;

/// Tree blocks that a change reads and writes, from opening to the end of the commit.
fn cost(image: &Path, change: impl FnOnce(&mut Transaction<'_>)) -> (u64, u64) {
    let device = Arc::new(FileDevice::open(image, Access::Write, 0).unwrap());
    let mut volume = Volume::open(device, VolumeOptions::default()).unwrap();
    let mut tx = volume.begin(Timespec::new(1_700_000_001, 0)).unwrap();
    change(&mut tx);
    tx.commit().unwrap();
    volume.store().counters()
}

fn copy_in(tx: &mut Transaction<'_>, file: &Path, dir: &[u8], name: &[u8]) {
    let dir = resolve(tx, Place::TOP, dir, true).unwrap();
    let options = import::Options {
        preserve: Preserve::NONE,
        compression: CompressionPolicy::default(),
        workers: 1,
        sparse: Sparse::Auto,
        clamp: None,
        exclude: Vec::new(),
        existing: Default::default(),
        list: false,
        cancel: None,
        progress: None,
    };
    let report = import::import_entry(tx, file, dir, name, true, &options).unwrap();
    assert!(report.failures.is_empty());
}

#[test]
fn a_small_change_costs_the_same_on_any_image() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    for files in [1_000, 50_000] {
        let image = dir.path().join(format!("{files}.img"));
        synthetic::make_image(&image, 100 << 30, files).unwrap();
        assert_eq!(btrfs_progs::check(&image).unwrap(), [""; 0]);
        let middle = format!("/d{}", files / 2000);
        let middle = middle.as_bytes();
        let zstd = PropertyChange::parse_strict("zstd:5").unwrap();
        let costs = [
            cost(&image, |tx| {
                let place = resolve(tx, Place::TOP, &[middle, b"/f7"].concat(), true).unwrap();
                set_compression(tx, place, &zstd, "f7").unwrap();
            }),
            cost(&image, |tx| {
                let place = resolve(tx, Place::TOP, middle, true).unwrap();
                let attributes = Attributes::new(0o040_755, tx.now());
                create(tx, place, b"new", attributes, Vec::new()).unwrap();
            }),
            cost(&image, |tx| copy_in(tx, &file, middle, b"copy")),
            cost(&image, |tx| {
                let dir = resolve(tx, Place::TOP, middle, true).unwrap();
                let place = resolve(tx, Place::TOP, &[middle, b"/f9"].concat(), true).unwrap();
                unlink_checked(tx, dir, b"f9", place, "f9").unwrap();
            }),
        ];
        for (i, (read, written)) in costs.into_iter().enumerate() {
            assert!(
                read <= READ_MAX && written <= WRITTEN_MAX,
                "{files} files, change {i}: {read} {written}"
            );
        }
        assert_eq!(btrfs_progs::check(&image).unwrap(), [""; 0]);
    }
}
