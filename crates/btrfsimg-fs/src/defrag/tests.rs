//! What looking for windows costs: counted in items.

use std::sync::Arc;

use btrfsimg_compress::WorkspacePool;
use btrfsimg_ondisk::{CsumType, Timespec};

use super::file::FileCursor;
use super::{DEFAULT_TARGET, Options};
use crate::device::MemDevice;
use crate::lookup::{Place, inode};
use crate::mkfs::{self, Features, Size, finish_size, make};
use crate::txn::{Transaction, Volume, VolumeOptions};
use crate::write::contents::{Codec, write_at};
use crate::write::create::create;
use crate::write::encode::CompressionPolicy;
use crate::write::inode::Attributes;

fn in_new_image(test: impl FnOnce(&mut Transaction<'_>)) {
    let now = Timespec::new(1_000_000_000, 0);
    let options = mkfs::Options {
        sectorsize: 4096,
        nodesize: 16_384,
        features: Features::default(),
        csum: CsumType::Crc32c,
        label: Vec::new(),
        fsid: None,
        reproducible: false,
        now,
        size: Size::Exact(256 << 20),
    };
    let (device, geometry) = (Arc::new(MemDevice::default()), options.geometry().unwrap());
    let mut volume = Volume::blank(device, &geometry, VolumeOptions::default()).unwrap();
    let mut tx = volume.begin(now).unwrap();
    make(&mut tx, &options).unwrap();
    finish_size(&mut tx, options.size, false).unwrap();
    tx.commit().unwrap();
    test(&mut volume.begin(now).unwrap());
}

/// Items passed while a file with an extent of a sector in each of so many places is defragmented.
fn passed(
    tx: &mut Transaction<'_>,
    name: &str,
    places: impl Iterator<Item = u64>,
    request: Option<&str>,
) -> u64 {
    let pool = WorkspacePool::new(1);
    let file =
        create(tx, Place::TOP, name.as_bytes(), Attributes::new(0o100_644, tx.now()), Vec::new()).unwrap();
    let mut codec = Codec::new(tx, &pool, CompressionPolicy::default());
    for place in places {
        write_at(tx, file, place * 4096, &[7; 4096], &mut codec).unwrap();
    }
    let request = request.map(|r| r.parse().unwrap());
    let options = Options { request, recompress: false, target: DEFAULT_TARGET, unshare: false };
    let item = inode(tx, file).unwrap();
    let mut cursor = FileCursor::new(tx, Vec::new(), file, &item, &options).unwrap();
    while cursor.advance(tx, &options, &pool).is_ok_and(|more| more) {}
    cursor.items
}

#[test]
fn each_extent_is_looked_up_once_or_twice() {
    in_new_image(|tx| {
        let holes = passed(tx, "holes", (0..3000).map(|n| n * 2), None);
        let pairs = passed(tx, "pairs", (0..2000).map(|n| n / 2 * 3 + n % 2), None);
        let adjacent = passed(tx, "adjacent", 0..2000, Some("zstd"));
        assert!((3000..3100).contains(&holes), "{holes}");
        assert!((2000..2100).contains(&pairs), "{pairs}");
        assert!((2000..2100).contains(&adjacent), "{adjacent}");
    });
}
