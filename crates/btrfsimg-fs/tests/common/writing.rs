//! A new file system in memory, and what verify says of it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::sync::Arc;

use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::mkfs::{Features, Options, Size, finish_size, make};
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use btrfsimg_fs::verify;
use btrfsimg_ondisk::{CsumType, Timespec, Uuid};

/// When everything happens.
pub fn now() -> Timespec {
    Timespec::new(1_700_000_000, 123)
}

/// Far enough for two superblock copies.
pub const SIZE: u64 = 96 << 20;

/// An empty file system, committed.
pub fn new_file_system(nodesize: u32) -> Arc<MemDevice> {
    file_system_with(|options| Options { nodesize, ..options })
}

/// The same, with other options.
pub fn file_system_with(change: impl FnOnce(Options) -> Options) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::default());
    let options = change(Options {
        sectorsize: 4096,
        nodesize: 16_384,
        features: Features::default(),
        csum: CsumType::Crc32c,
        label: b"model".to_vec(),
        fsid: Some(Uuid::from_bytes([7; 16])),
        reproducible: true,
        now: now(),
        size: Size::Exact(SIZE),
    });
    let mut volume =
        Volume::blank(device.clone(), &options.geometry().unwrap(), VolumeOptions::default()).unwrap();
    let mut tx = volume.begin(now()).unwrap();
    make(&mut tx, &options).unwrap();
    finish_size(&mut tx, options.size, false).unwrap();
    tx.commit().unwrap();
    device
}

/// Opens what is committed.
pub fn open(device: &Arc<MemDevice>) -> Volume {
    Volume::open(device.clone(), VolumeOptions::default()).unwrap()
}

/// What verify finds, but for the rules that begin with one of `allowed`.
pub fn findings(device: &MemDevice, allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let options = verify::Options::new().with_data(true).with_threads(1);
    verify::verify(device, &options, &mut |finding| {
        let rule = finding.rule.to_string();
        if !allowed.iter().any(|a| rule.starts_with(a)) {
            found.push(format!("{rule} {finding}"));
        }
    })
    .unwrap();
    found
}
