//! References to extents: many of them, and such as have one hash; and what is not committed when a change failed.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/writing.rs"]
mod writing;

use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::Arc;

use btrfsimg_compress::WorkspacePool;
use btrfsimg_fs::Error;
use btrfsimg_fs::device::{Access, FileDevice, MemDevice};
use btrfsimg_fs::lookup::{Place, find_entry};
use btrfsimg_fs::txn::{ItemBatch, Sharing, Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::contents::{Codec, clone_range, punch_hole, truncate, write_at};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::remove_tree;
use btrfsimg_ondisk::{BackRef, FileExtent, Key, KeyType, Logical, data_ref_hash, objectid};
use btrfsimg_testkit::hostile::Hostile;
use btrfsimg_testkit::{Oracle, btrfs_progs, synthetic};
use writing::{findings, new_file_system, now, open};

const SECTOR: u64 = 4096;
/// Offsets with the same crc32c behind any inode number: their differences are multiples of its polynomial.
const COLLIDING: [u64; 3] = [0, 0x105e_c76f_1000, 0x20bd_8ede_2000];

fn file(tx: &mut Transaction<'_>, name: &str) -> Place {
    create(tx, Place::TOP, name.as_bytes(), Attributes::new(0o100_644, now()), Vec::new()).unwrap()
}

fn write(tx: &mut Transaction<'_>, place: Place, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    let pool = WorkspacePool::new(1);
    let mut codec = Codec::new(tx, &pool, CompressionPolicy::default());
    write_at(tx, place, offset, bytes, &mut codec)
}

/// The file extent at `offset`: address, length, and what refers to it there.
fn extent_at(tx: &Transaction<'_>, place: Place, offset: u64) -> (Logical, u64, BackRef) {
    let key = place.key(KeyType::EXTENT_DATA, offset);
    let data = btrfsimg_fs::tree::lookup(tx, place.tree, &key).unwrap().unwrap();
    let (at, len) = FileExtent::parse(&data).unwrap().disk_extent().unwrap();
    (at, len, BackRef::Data { root: place.tree, objectid: place.ino, offset })
}

/// An image with the file `from`, one sector, which `to` shares: six times where the references are in the extent's
/// item, then where they have one hash.
fn colliding() -> (Arc<MemDevice>, Place, Place) {
    let device = new_file_system(4096);
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    let (from, to) = (file(&mut tx, "from"), file(&mut tx, "to"));
    let hashes = COLLIDING.map(|offset| data_ref_hash(to.tree, to.ino, offset));
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    write(&mut tx, from, 0, &[7; 4096]).unwrap();
    tx.commit().unwrap();
    for at in (1..6).map(|n| n << 30).chain(COLLIDING) {
        // Each with a commit, so that the extent's item gets them one by one.
        let mut tx = volume.begin(now()).unwrap();
        clone_range(&mut tx, from, 0..SECTOR, to, at).unwrap();
        tx.commit().unwrap();
    }
    (device, from, to)
}

/// The offsets of the keyed items less the hash that they have in common.
fn keyed(volume: &Volume, to: Place, extent: Logical) -> Vec<u64> {
    let hash = data_ref_hash(to.tree, to.ino, 0);
    let (first, last) = (
        Key::new(extent.0, KeyType::EXTENT_DATA_REF, 0),
        Key::new(extent.0, KeyType::EXTENT_DATA_REF, u64::MAX),
    );
    let mut found = Vec::new();
    btrfsimg_fs::tree::walk_items(volume.store(), objectid::EXTENT_TREE, &first, &last, |item| {
        found.push(item.key.offset - hash);
        Ok(true)
    })
    .unwrap();
    found
}

fn assert_sound(device: &MemDevice) {
    assert_eq!(findings(device, &[]), [""; 0]);
    if Oracle::new().has_progs() {
        let image = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(image.path(), device.contents()).unwrap();
        assert_eq!(btrfs_progs::check(image.path()).unwrap(), [""; 0]);
    }
}

/// Whichever goes first leaves a gap; the others are found behind it.
#[test]
fn references_with_one_hash_go_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (device, from, to) = colliding();
        let mut volume = open(&device);
        let tx = volume.begin(now()).unwrap();
        let (extent, len, _) = extent_at(&tx, from, 0);
        drop(tx);
        assert_eq!(keyed(&volume, to, extent), [0, 1, 2], "the image is not what the test is for");
        for n in order {
            let at = COLLIDING[n];
            let mut tx = volume.begin(now()).unwrap();
            punch_hole(&mut tx, to, at..at + SECTOR).unwrap();
            tx.commit().unwrap();
            assert_sound(&device);
        }
        assert_eq!(keyed(&volume, to, extent), [0; 0]);
        // One that was removed comes again; then it is all there is, behind a gap.
        let mut tx = volume.begin(now()).unwrap();
        COLLIDING.iter().for_each(|at| clone_range(&mut tx, from, 0..SECTOR, to, *at).unwrap());
        tx.commit().unwrap();
        let mut tx = volume.begin(now()).unwrap();
        for at in (1..6).map(|n| n << 30).chain([COLLIDING[order[0]], COLLIDING[order[1]]]) {
            punch_hole(&mut tx, to, at..at + SECTOR).unwrap();
        }
        truncate(&mut tx, from, 0).unwrap();
        tx.commit().unwrap();
        let last = COLLIDING[order[2]];
        let mut tx = volume.begin(now()).unwrap();
        let (_, _, back) = extent_at(&tx, to, last);
        let key = to.key(KeyType::EXTENT_DATA, last);
        assert_eq!(tx.sharing(to.tree, &key, extent, len, back).unwrap(), Sharing::Own(1), "{order:?}");
        truncate(&mut tx, to, 0).unwrap();
        tx.commit().unwrap();
        assert_sound(&device);
    }
}

/// The kernel takes the first one away, and we the last; and the other way round.
#[test]
fn references_with_one_hash_between_us_and_the_kernel() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() {
        return;
    }
    for (theirs, ours) in [(0, 2), (2, 0), (1, 2), (0, 1)] {
        let (device, _, to) = colliding();
        let image = tempfile::NamedTempFile::new().unwrap();
        let punch = |device: &Arc<MemDevice>| {
            let mut volume = open(device);
            let mut tx = volume.begin(now()).unwrap();
            punch_hole(&mut tx, to, COLLIDING[ours]..COLLIDING[ours] + SECTOR).unwrap();
            tx.commit().unwrap();
        };
        let by_kernel = |bytes: Vec<u8>| {
            std::fs::write(image.path(), bytes).unwrap();
            let mount = oracle.mount(image.path(), "").unwrap().unwrap();
            let mut file = std::fs::File::options().write(true).open(mount.path().join("to")).unwrap();
            // Other bytes in its place: the reference goes.
            file.seek(SeekFrom::Start(COLLIDING[theirs])).unwrap();
            file.write_all(&[9; 4096]).unwrap();
            drop(file);
            assert_eq!(mount.unmount().unwrap(), [""; 0]);
            Arc::new(MemDevice::new(std::fs::read(image.path()).unwrap()))
        };
        let first = by_kernel(device.contents());
        punch(&first);
        assert_sound(&first);
        punch(&device);
        assert_sound(&by_kernel(device.contents()));
    }
}

/// More references than are kept in memory: of one extent, and of many.
#[test]
fn references_in_memory_are_bounded() {
    const COUNT: u64 = 40_000;
    const MAX: usize = 32 << 10;
    let device = new_file_system(16_384);
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    let place = file(&mut tx, "many");
    write(&mut tx, place, 0, &[7; 4096]).unwrap();
    let (at, len, _) = extent_at(&tx, place, 0);
    let data =
        btrfsimg_fs::tree::lookup(&tx, place.tree, &place.key(KeyType::EXTENT_DATA, 0)).unwrap().unwrap();
    truncate(&mut tx, place, COUNT * SECTOR).unwrap();
    let mut items = ItemBatch::new();
    (1..COUNT).for_each(|n| items.push(place.key(KeyType::EXTENT_DATA, n * SECTOR), &data));
    tx.insert_batch(place.tree, &items).unwrap();
    let mut most = 0;
    for n in 1..COUNT {
        let back = BackRef::Data { root: place.tree, objectid: place.ino, offset: n * SECTOR };
        tx.change_data_ref(at, len, back, 1).unwrap();
        most = most.max(tx.gathered_refs());
    }
    assert!(most > MAX / 2 && most <= MAX + 1, "{most} changes were in memory");
    let mut inode = btrfsimg_fs::lookup::inode(&tx, place).unwrap();
    inode.nbytes = (COUNT * SECTOR).into();
    tx.replace(place.tree, place.key(KeyType::INODE_ITEM, 0), zerocopy::IntoBytes::as_bytes(&inode)).unwrap();
    tx.commit().unwrap();
    assert_sound(&device);
    // And away with them.
    let mut tx = volume.begin(now()).unwrap();
    truncate(&mut tx, place, SECTOR).unwrap();
    let most = tx.gathered_refs();
    assert!(most <= MAX, "{most} changes were in memory");
    tx.commit().unwrap();
    assert_sound(&device);
}

/// As many extents, of as many files, in one step.
#[test]
fn freed_extents_in_memory_are_bounded() {
    const MAX: usize = 32 << 10;
    let image = tempfile::Builder::new().tempdir().unwrap();
    let path = image.path().join("i.img");
    synthetic::make_image(&path, 1 << 30, 40_000).unwrap();
    let device = Arc::new(FileDevice::open(&path, Access::Write, 0).unwrap());
    let mut volume = Volume::open(device, VolumeOptions::default()).unwrap();
    let mut tx = volume.begin(now()).unwrap();
    let mut most = 0;
    for n in 0..40 {
        let name = format!("d{n}");
        let entry = find_entry(&tx, Place::TOP, name.as_bytes()).unwrap().unwrap();
        let dir = Place { ino: entry.location.objectid, ..Place::TOP };
        remove_tree(&mut tx, Place::TOP, name.as_bytes(), dir, &name).unwrap();
        most = most.max(tx.gathered_refs());
    }
    assert!(most > MAX / 2 && most <= MAX + 1, "{most} changes were in memory");
    tx.commit().unwrap();
    if Oracle::new().has_progs() {
        assert_eq!(btrfs_progs::check(&path).unwrap(), [""; 0]);
    }
}

/// An image that is corrupt where a change would touch it is refused before anything is written.
#[test]
fn an_unreadable_checksum_tree_is_found_before_data_are_written() {
    let device = new_file_system(16_384);
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    let place = file(&mut tx, "f");
    write(&mut tx, place, 0, &[7; 8192]).unwrap();
    tx.commit().unwrap();
    let before = device.contents();
    let hostile = Hostile::open(device.clone()).unwrap();
    // Another tree's block, in place of the checksums'.
    hostile.edit_root(objectid::CSUM_TREE, |block| block.header_mut().owner = 5.into()).unwrap();
    let broken = device.contents();
    assert!(broken != before);
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    assert!(find_entry(&tx, Place::TOP, b"f").unwrap().is_some());
    // What checksums the free space has is looked for first.
    for at in [8192, 100] {
        let failed = write(&mut tx, place, at, &[9; 4096]);
        assert!(matches!(failed, Err(Error::Corrupt(_))), "{failed:?}");
    }
    drop(tx);
    assert!(device.contents() == broken);
}

/// A generation that has no next one.
#[test]
fn the_last_generation_is_not_followed_by_the_first() {
    let device = new_file_system(16_384);
    let hostile = Hostile::open(device.clone()).unwrap();
    hostile.edit_root(objectid::ROOT_TREE, |block| block.header_mut().generation = u64::MAX.into()).unwrap();
    hostile.edit_superblock(|sb| sb.generation = u64::MAX.into()).unwrap();
    let mut volume = open(&device);
    assert!(matches!(volume.begin(now()), Err(Error::Corrupt(c)) if c.violation.rule.0 == "SB-19"));
}
