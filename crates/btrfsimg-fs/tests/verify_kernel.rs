//! An image that the kernel made, with snapshots, compression and quotas, broken in one way: what verify says first,
//! where, and at what cost.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod damage;

use std::path::Path;
use std::process::Command;

use btrfsimg_fs::verify::{Finding, Options};
use btrfsimg_ondisk::{
    CsumType, Key, KeyPtr, KeyType, Logical, Physical, SUPERBLOCK_LEN, Superblock, objectid,
};
use btrfsimg_testkit::{Oracle, btrfs_progs};
use damage::{Base, first};
use zerocopy::{FromBytes, IntoBytes};

const SNAPSHOTS: u64 = 30;

/// `None` where this machine cannot make it.
fn kernel_made() -> Option<Base> {
    let oracle = Oracle::new();
    if !oracle.has_progs() || !oracle.has_kernel() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    btrfs_progs::mkfs(&image, 160 << 20, &["-n", "4096"]).unwrap();
    let mount = oracle.mount(&image, "rw,compress-force=zstd:3").unwrap()?;
    let top = mount.path();
    for i in 0..300 {
        std::fs::write(top.join(format!("small{i:03}")), format!("{i}")).unwrap();
    }
    std::fs::write(top.join("packed"), "all the same words ".repeat(5000)).unwrap();
    btrfs(&["subvolume", "create"], &[&top.join("little")]);
    std::fs::write(top.join("little/file"), "inline").unwrap();
    for i in 0..SNAPSHOTS {
        std::fs::write(top.join(format!("new{i:03}")), "new").unwrap();
        btrfs(&["subvolume", "snapshot"], &[top, &top.join(format!("snapshot{i:03}"))]);
    }
    btrfs(&["quota", "enable"], &[top]);
    btrfs(&["quota", "rescan", "-w"], &[top]);
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    Some(Base::of(&image))
}

fn btrfs(words: &[&str], paths: &[&Path]) {
    let output = Command::new("btrfs").args(words).args(paths).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn errors(findings: &[Finding]) -> Vec<&str> {
    let errors = findings.iter().filter(|f| f.severity().is_error() && !f.consequence);
    errors.map(|f| f.rule.0).collect()
}

/// The leaf of `little`, which has no other.
fn little(base: &Base) -> u64 {
    let (root, slot) = base.find(objectid::ROOT_TREE, first(256, KeyType::ROOT_ITEM));
    u64::from_le_bytes(root.item(slot).data[176..184].try_into().unwrap())
}

/// QG-01, unless the numbers are marked as inconsistent.
fn quotas(base: &Base) {
    let info = |id| Key::new(0, KeyType::QGROUP_INFO, id);
    base.check_add("QG-01", objectid::QUOTA_TREE, info(256), 8, 4096);
    base.check_add("QG-01", objectid::QUOTA_TREE, info(5), 24, 4096u64.wrapping_neg());
    let (mut leaf, slot) = base.find(objectid::QUOTA_TREE, info(256));
    let mut data = leaf.item(slot).data.to_vec();
    data[8] ^= 0x10;
    leaf.replace_item(slot, &data);
    assert_eq!(leaf.key(0).key_type, KeyType::QGROUP_STATUS);
    let mut status = leaf.item(0).data.to_vec();
    status[16] |= 4;
    leaf.replace_item(0, &status);
    assert_eq!(base.judge(base.places(leaf)), (Vec::new(), Vec::new()));
}

fn orphans_and_kinds(base: &Base) {
    let (mut leaf, _) = base.find(256, first(256, KeyType::INODE_ITEM));
    let end = leaf.nritems();
    let key = Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, 9999);
    leaf.insert_items(end, std::iter::once((key, &[][..])));
    assert_eq!(base.judge(base.places(leaf)), (Vec::new(), vec!["LK-07".to_owned()]));
    // Full back references in a leaf that points to nothing: only its flag says so.
    base.check_add("XR-03", objectid::EXTENT_TREE, first(little(base), KeyType::METADATA_ITEM), 16, 0x100);
}

/// Each copy of the bytes of an extent of `packed`, with one byte changed.
fn compressed(base: &Base) {
    let ino = base.ino(b"packed");
    let (leaf, slot) = base.find(5, first(ino, KeyType::EXTENT_DATA));
    let data = leaf.item(slot).data;
    assert_eq!(data[16], 3, "zstd");
    let at = u64::from_le_bytes(data[21..29].try_into().unwrap());
    let physical = base.store.chunks().map(Logical(at), 4096).unwrap().next().unwrap().physical.0;
    let broken = || vec![(physical, vec![0xff; 16])];
    let (findings, _) = base.findings(broken(), &Options::new().with_decode(true));
    assert_eq!(errors(&findings), ["FE-25"]);
    let fault = findings.iter().find(|f| f.rule.0 == "FE-25").unwrap();
    assert_eq!(fault.place.path.as_deref(), Some(&b"/packed"[..]), "{fault}");
    let (findings, _) = base.findings(broken(), &Options::new().with_data(true));
    assert_eq!(errors(&findings), ["CS-09"]);
    let fault = findings.iter().find(|f| f.rule.0 == "CS-09").unwrap();
    assert_eq!(fault.place.path.as_deref(), Some(&b"/packed"[..]), "{fault}");
    let (_, sound) = base.findings(Vec::new(), &Options::new().with_decode(true));
    assert!(sound.is_sound());
}

/// What snapshots share is read once, and a fault in it is said once.
fn shared(base: &Base) {
    let (reads, blocks) = base.reads();
    // Two copies; quotas take one more walk, and each tree's root is looked at.
    assert!(reads < blocks * 6, "{reads} reads for {blocks} blocks in {SNAPSHOTS} snapshots");
    let small = base.ino(b"small100");
    let (mut leaf, slot) = base.find(5, first(small, KeyType::INODE_ITEM));
    let mut data = leaf.item(slot).data.to_vec();
    data[24] ^= 1;
    leaf.replace_item(slot, &data);
    assert_eq!(base.rules(base.places(leaf)), ["LK-05"]);
    // The pointer of one snapshot to a shared block.
    let (root, slot) = base.find(objectid::ROOT_TREE, first(270, KeyType::ROOT_ITEM));
    let item = root.item(slot).data;
    assert!(item[238] > 0, "the snapshot has nodes");
    let at = Logical(u64::from_le_bytes(item[176..184].try_into().unwrap()));
    let expect = btrfsimg_ondisk::ParentExpectation::default();
    let mut node = (*base.store.read_block(at, &expect).unwrap()).clone();
    let ptr = node.key_ptr(1);
    node.set_key_ptr(1, KeyPtr { generation: ptr.generation + 1, ..ptr });
    assert_eq!(base.rules(base.places(node)).first().map(String::as_str), Some("BLK-07"));
}

/// A reference is named with whose it is.
fn references(base: &Base) {
    let (mut leaf, slot) = base.find(objectid::EXTENT_TREE, first(little(base), KeyType::METADATA_ITEM));
    let mut data = leaf.item(slot).data.to_vec();
    data[25..33].copy_from_slice(&270u64.to_le_bytes());
    leaf.replace_item(slot, &data);
    let (findings, _) = base.findings(base.places(leaf), &Options::new());
    assert_eq!(errors(&findings), ["XR-02"]);
    let said = findings.iter().find(|f| f.rule.0 == "XR-02").unwrap().to_string();
    assert!(said.contains("listed and not used 1× by tree 270"), "{said}");
    assert!(said.contains("used and not listed 1× by tree 256"), "{said}");
}

/// Without the root tree's root, a backup root of the superblock is gone by.
fn backup_roots(base: &Base) {
    let sb = base.store.superblock();
    let places = base.store.chunks().map(Logical(sb.root.get()), 4096).unwrap();
    let zeros: Vec<_> = places.map(|p| (p.physical.0, vec![0; 4096])).collect();
    let (findings, summary) = base.findings(zeros, &Options::new());
    assert!(
        errors(&findings).first().is_some_and(|rule| rule.starts_with("BLK-")),
        "{:?}",
        errors(&findings)
    );
    let generation = summary.backup_generation.unwrap();
    assert!(generation < sb.generation.get());
    assert!(summary.inodes > 300, "{summary:?}");
}

fn superblock_copies(base: &Base) {
    let at = 0x400_0000;
    let bytes = &base.bytes[at..at + SUPERBLOCK_LEN];
    let mut sb = Superblock::read_from_bytes(bytes).unwrap();
    sb.label[0] ^= b'x';
    let sealed = sb.sealed_for(Physical(at as u64), CsumType::Crc32c);
    let judged = base.judge(vec![(at as u64, sealed.as_bytes().to_vec())]);
    assert_eq!(judged, (Vec::new(), vec!["SB-23".to_owned()]));
}

#[test]
fn faults_in_an_image_of_the_kernel() {
    let Some(base) = kernel_made() else { return };
    assert_eq!(base.judge(Vec::new()), (Vec::new(), Vec::new()), "the sound image");
    quotas(&base);
    orphans_and_kinds(&base);
    compressed(&base);
    shared(&base);
    references(&base);
    backup_roots(&base);
    superblock_copies(&base);
}

/// An image as a power cut leaves it after an fsync.
fn with_log() -> Option<Base> {
    let oracle = Oracle::new();
    if !oracle.has_progs() || !oracle.has_kernel() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, cut) = (dir.path().join("image"), dir.path().join("cut"));
    btrfs_progs::mkfs(&image, 160 << 20, &["-n", "4096"]).unwrap();
    let mount = oracle.mount(&image, "rw,noatime,commit=300").unwrap()?;
    let file = std::fs::File::create(mount.path().join("file")).unwrap();
    btrfs(&["filesystem", "sync"], &[mount.path()]);
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 40_000], 0).unwrap();
    file.sync_all().unwrap();
    btrfsimg_testkit::sparse::copy(&image, &cut).unwrap();
    drop(file);
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    Some(Base::of(&cut))
}

/// Of data that only the log knows, only the log has the checksums.
#[test]
fn logged_data_have_checksums() {
    let Some(base) = with_log() else { return };
    let log = vec!["LOG-01".to_owned()];
    assert_eq!(base.judge(Vec::new()), (Vec::new(), log.clone()));
    let any = btrfsimg_ondisk::ParentExpectation::default();
    let root = base.store.read_block(Logical(base.store.superblock().log_root.get()), &any).unwrap();
    let item = btrfsimg_ondisk::RootItem::parse(root.item(0).data).unwrap();
    let tree = base.store.read_block(Logical(item.bytenr.get()), &any).unwrap();
    let mut leaf = (*tree).clone();
    let csums = (0..leaf.nritems()).find(|slot| leaf.key(*slot).key_type == KeyType::EXTENT_CSUM).unwrap();
    leaf.remove_items(csums..csums + 1);
    assert_eq!(base.judge(base.places(leaf)), (vec!["CS-06".to_owned()], log));
}

/// An image with quotas whose `deleted` subvolume, 257, the kernel has dropped in part, and shares with 256 and 258.
fn half_dropped() -> Option<(tempfile::TempDir, std::path::PathBuf)> {
    let oracle = Oracle::new();
    if !oracle.has_progs() || !oracle.has_kernel() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let (whole, half) = (dir.path().join("whole"), dir.path().join("half"));
    btrfs_progs::mkfs(&whole, 400 << 20, &["-n", "4096"]).unwrap();
    let mount = oracle.mount(&whole, "rw").unwrap()?;
    let at = |name: &str| mount.path().join(name);
    btrfs(&["quota", "enable"], &[mount.path()]);
    btrfs(&["subvolume", "create"], &[&at("live")]);
    for i in 0..12_000 {
        std::fs::write(at(&format!("live/file-{i}")), [7; 300]).unwrap();
    }
    btrfs(&["subvolume", "snapshot"], &[&at("live"), &at("deleted")]);
    btrfs(&["subvolume", "snapshot"], &[&at("live"), &at("kept")]);
    for i in (0..12_000).step_by(3) {
        std::fs::write(at(&format!("deleted/file-{i}")), [9; 5000]).unwrap();
    }
    btrfs(&["filesystem", "sync"], &[mount.path()]);
    btrfs(&["quota", "rescan", "-w"], &[mount.path()]);
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    // Unmounting ends the drop between two steps, if it has begun and has not come to its end.
    for wait in 0..60 {
        btrfsimg_testkit::sparse::copy(&whole, &half).unwrap();
        let mount = oracle.mount(&half, "rw").unwrap()?;
        btrfs(&["subvolume", "delete"], &[&mount.path().join("deleted")]);
        btrfs(&["filesystem", "sync"], &[mount.path()]);
        std::thread::sleep(std::time::Duration::from_millis(wait * 4));
        assert_eq!(mount.unmount().unwrap(), [""; 0]);
        if drop_progress(&half, 257).is_some_and(|key| key != Key::new(0, KeyType(0), 0)) {
            return Some((dir, half));
        }
        std::fs::remove_file(&half).unwrap();
    }
    panic!("the kernel never stopped in the middle");
}

/// How far the deletion of a subvolume has come; `None` where it is gone.
fn drop_progress(image: &Path, id: u64) -> Option<Key> {
    let base = Base::of(image);
    let (leaf, slot) = base.find(objectid::ROOT_TREE, first(id, KeyType::ROOT_ITEM));
    let is_it = leaf.key(slot).objectid == id;
    is_it.then(|| btrfsimg_ondisk::RootItem::parse(leaf.item(slot).data).unwrap().drop_progress.get())
}

/// While a subvolume is half deleted, what others share with it is not settled; all else is, and kernels go on.
#[test]
fn quotas_of_a_half_deleted_subvolume() {
    let Some((_dir, image)) = half_dropped() else { return };
    let base = Base::of(&image);
    let (quota, _) = base.find(objectid::QUOTA_TREE, Key::new(0, KeyType::QGROUP_STATUS, 0));
    assert_eq!(quota.item(0).data[16], 1, "quotas are on, and settled");
    // mkfs.btrfs leaves FS-10.
    let (found, _) = base.findings(Vec::new(), &Options::new().with_data(true));
    assert!(found.iter().all(|f| f.rule.0 == "FS-10"), "{found:#?}");
    let (found, _) = {
        let (mut leaf, slot) = base.find(objectid::QUOTA_TREE, Key::new(0, KeyType::QGROUP_INFO, 5));
        let mut data = leaf.item(slot).data.to_vec();
        data[9] ^= 0x40;
        leaf.replace_item(slot, &data);
        base.findings(base.places(leaf), &Options::new())
    };
    assert_eq!(errors(&found), ["QG-01"], "of the top, which shares nothing");
    let mount = Oracle::new().mount(&image, "rw").unwrap().unwrap();
    btrfs(&["subvolume", "sync"], &[mount.path()]);
    assert_eq!(mount.unmount().unwrap(), [""; 0], "the kernel's log");
    assert_eq!(drop_progress(&image, 257), None);
    let (found, _) = Base::of(&image).findings(Vec::new(), &Options::new().with_data(true));
    assert_eq!(errors(&found), [""; 0], "now all groups are judged");
    assert!(btrfs_progs::check(&image).unwrap().is_empty());
}
