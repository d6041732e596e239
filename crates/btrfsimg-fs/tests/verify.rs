//! A sound image of mkfs.btrfs, broken in one way across blocks, with its checksums made right: the rule that was
//! broken is the first that verify names. (Rules of one block have their tests in btrfsimg-ondisk.)

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod damage;

use btrfsimg_fs::verify::Options;
use btrfsimg_ondisk::{
    CsumType, Header, Key, KeyType, Logical, Physical, ROOT_ITEM_V0_LEN, SUPERBLOCK_LEN, Superblock,
    TreeBlock, header_flags, objectid,
};
use damage::{Base, first};
use zerocopy::{FromBytes, IntoBytes as _};

fn inodes_and_names(base: &Base) {
    let (big, small) = (base.ino(b"big"), base.ino(b"small"));
    let inode = |ino| first(ino, KeyType::INODE_ITEM);
    base.check_add("LK-01", 5, inode(big), 40, 1);
    base.check_add("LK-04", 5, inode(256), 16, 2);
    base.check_add("LK-05", 5, inode(big), 24, 4096);
    base.check_add("LK-02", 5, first(small, KeyType::INODE_REF), 0, 1);
    base.check("LK-02", 5, first(256, KeyType::DIR_INDEX), |leaf, slot| {
        let mut data = leaf.item(slot).data.to_vec();
        data[30] ^= 1;
        leaf.replace_item(slot, &data);
    });
    base.check("LK-02", 5, first(256, KeyType::DIR_INDEX), |leaf, slot| leaf.remove_items(slot..slot + 1));
    base.check("LK-03", 5, first(256, KeyType::DIR_INDEX), |leaf, slot| {
        let mut data = leaf.item(slot).data.to_vec();
        data[29] = 5;
        leaf.replace_item(slot, &data);
    });
    let inline = [&[0; 8][..], &3u64.to_le_bytes(), &[0; 5], b"odd"].concat();
    let sub = base.ino(b"sub");
    // Behind its last item: what would come next may be the first of another leaf.
    base.check("FE-26", 5, first(sub, KeyType::DIR_INDEX), |leaf, slot| {
        assert_eq!(leaf.key(slot).objectid, sub);
        leaf.insert_items(slot + 1, std::iter::once((first(sub, KeyType::EXTENT_DATA), &inline[..])));
    });
}

fn extents(base: &Base) {
    let big = base.ino(b"big");
    let extent = first(big, KeyType::EXTENT_DATA);
    base.check_add("FE-24", 5, extent, 21, 64 << 20);
    let data_at = {
        let (leaf, slot) = base.find(5, extent);
        u64::from_le_bytes(leaf.item(slot).data[21..29].try_into().unwrap())
    };
    let item = first(data_at, KeyType::EXTENT_ITEM);
    base.check_add("XR-01", 2, item, 0, 1);
    base.check_add("XR-02", 2, item, 24 + 1 + 8, 1);
    base.check_add("XR-02", 2, item, 24 + 1 + 16, 4096);
    let root = base.store.superblock().root.get();
    base.check_add("XR-02", 2, first(root, KeyType::METADATA_ITEM), 25, 4);
    base.check("XR-04", 2, first(root, KeyType::METADATA_ITEM), |leaf, slot| {
        leaf.remove_items(slot..slot + 1)
    });
    base.check_add("BG-08", 2, block_group(base), 0, 4096u64.wrapping_neg());
    base.check_add("BG-07", 2, block_group(base), 16, 0x20u64.wrapping_neg());
    let csum = first(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM);
    base.check("CS-06", 7, csum, |leaf, slot| {
        let data = leaf.item(slot).data[4..].to_vec();
        let key = leaf.key(slot);
        leaf.replace_item(slot, &data);
        leaf.set_item_key(slot, Key::new(key.objectid, key.key_type, key.offset + 4096));
    });
    base.check("CS-05", 7, csum, |leaf, slot| {
        let key = Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, 1 << 50);
        let end = leaf.nritems();
        assert!(slot < end);
        leaf.insert_items(end, std::iter::once((key, &[0; 4][..])));
    });
    let physical = base.store.chunks().map(Logical(data_at), 4096).unwrap().next().unwrap().physical.0;
    let rules = base.rules(vec![(physical + 4096 + 17, vec![0xff])]);
    assert_eq!(rules, ["CS-09"]);
}

/// The first metadata block group.
fn block_group(base: &Base) -> Key {
    let metadata = base.store.chunks().iter().find(|c| c.flags & 4 != 0).unwrap();
    first(metadata.start.0, KeyType::BLOCK_GROUP_ITEM)
}

fn devices_and_free_space(base: &Base) {
    base.check_add("DEV-05", 3, first(1, KeyType::DEV_ITEM), 16, 4096);
    let dev_extent = first(1, KeyType::DEV_EXTENT);
    base.check_add("DE-06", 4, dev_extent, 16, 1 << 40);
    base.check_add("DE-07", 4, dev_extent, 24, 4096u64.wrapping_neg());
    base.check("DE-09", 4, dev_extent, |leaf, slot| leaf.remove_items(slot..slot + 1));
    let group = block_group(base).objectid;
    let info = first(group, KeyType::FREE_SPACE_INFO);
    base.check_add("FS-06", 10, info, 0, 1);
    base.check("FS-04", 10, info, |leaf, slot| leaf.remove_items(slot..slot + 1));
    base.check("FS-08", 10, info, |leaf, slot| {
        let key = leaf.key(slot + 1);
        assert_eq!(key.key_type, KeyType::FREE_SPACE_EXTENT);
        leaf.set_item_key(slot + 1, Key { offset: key.offset - 4096, ..key });
    });
    for (rule, at) in [("SB-20", 112), ("SB-21", 120)] {
        let mut sb = Superblock::read_from_bytes(&base.bytes[65536..65536 + SUPERBLOCK_LEN]).unwrap();
        let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut sb);
        bytes[at + 2] ^= 1;
        let sealed = sb.sealed_for(Physical(65536), CsumType::Crc32c);
        let rules = base.rules(vec![(65536, zerocopy::IntoBytes::as_bytes(&sealed).to_vec())]);
        assert_eq!(rules, [rule]);
    }
    let (errors, warnings) = base.judge(vec![(0x400_0000, vec![0; SUPERBLOCK_LEN])]);
    assert_eq!((errors.len(), &warnings[..]), (0, &["SB-23".to_owned()][..]));
}

fn roots(base: &Base) {
    let root = |tree| first(tree, KeyType::ROOT_ITEM);
    base.check("ROOT-09", 1, root(7), |leaf, slot| leaf.remove_items(slot..slot + 1));
    base.check_add("ROOT-13", 1, first(objectid::ROOT_TREE_DIR, KeyType::DIR_ITEM), 0, 700);
    base.check_add("BLK-07", 1, root(5), 160, 1u64.wrapping_neg());
    base.check("BLK-06", 1, root(4), |leaf, slot| {
        let mut data = leaf.item(slot).data.to_vec();
        data[238] += 1;
        leaf.replace_item(slot, &data);
    });
    base.check_add("BLK-01", 1, root(9), 176, 1 << 40);
}

/// One bad mirror of two is named, whichever it is; so are two that differ.
fn mirrors(base: &Base) {
    let (leaf, slot) = base.find(5, first(256, KeyType::INODE_ITEM));
    for mirror in [0, 1] {
        let mut places = base.places(leaf.clone());
        assert_eq!(places.len(), 2, "metadata are DUP");
        places[mirror].1[200] ^= 1;
        assert_eq!(base.rules(vec![places.swap_remove(mirror)])[0], "BLK-05");
        let mut other = leaf.clone();
        let mut data = other.item(slot).data.to_vec();
        data[72] ^= 1;
        other.replace_item(slot, &data);
        assert_eq!(base.rules(vec![base.places(other).swap_remove(mirror)]), ["DUP-01"]);
    }
}

/// What is damaged and unsupported too is damaged: that is what its owner must hear.
#[test]
fn corruption_comes_before_what_is_not_supported() {
    let Some(base) = Base::make() else { return };
    let unknown = |sb: &mut Superblock| sb.incompat_flags |= 1 << 40;
    let patch = |edit: &dyn Fn(&mut Superblock)| {
        let mut sb = *base.store.superblock();
        edit(&mut sb);
        let copies = [65536, 64 << 20].into_iter();
        let sealed = |at| sb.sealed_for(Physical(at), CsumType::Crc32c).as_bytes().to_vec();
        copies.map(|at| (at, sealed(at))).collect::<Vec<_>>()
    };
    let damaged = patch(&|sb| {
        unknown(sb);
        sb.stripesize = 4095.into();
    });
    assert_eq!(base.rules(damaged), ["SB-13"]);
    assert!(base.refuses(patch(&unknown)), "only unsupported");
}

/// Root items that lead to the same blocks do not make verify read them again.
#[test]
fn many_roots_of_one_tree_are_read_once() {
    const ROOTS: u64 = 30;
    let Some(base) = Base::with_nodes_of("16384") else { return };
    let (sound, _) = base.reads();
    let item_of = |tree| {
        let (leaf, slot) = base.find(1, first(tree, KeyType::ROOT_ITEM));
        assert_eq!(leaf.key(slot).objectid, tree);
        let data = leaf.item(slot).data[..ROOT_ITEM_V0_LEN].to_vec();
        (leaf, slot, data)
    };
    let (mut leaf, slot, data) = item_of(objectid::FREE_SPACE_TREE);
    let keys = (1..=ROOTS).map(|n| Key::new(objectid::FREE_SPACE_TREE, KeyType::ROOT_ITEM, n));
    leaf.insert_items(slot + 1, keys.map(|key| (key, &data[..])));
    let (reads, _) = base.reads_with(base.places(leaf));
    assert!(reads <= sound + 4, "{reads} reads, {sound} in the sound image");

    // A log of as many subvolumes, each with the top level's blocks.
    let (_, _, data) = item_of(objectid::FS_TREE);
    let sb = *base.store.superblock();
    let chunk = base.store.chunks().lookup(Logical(sb.root.get())).unwrap();
    let at = Logical(chunk.end() - (1 << 20));
    let like = base.find(1, first(objectid::FS_TREE, KeyType::ROOT_ITEM)).0;
    let (fsid, uuid, generation) =
        (like.header().fsid, like.header().chunk_tree_uuid, sb.generation.get() + 1);
    let header = TreeBlock::new_header(at, 0, objectid::TREE_LOG, generation, fsid, uuid);
    let header = Header { flags: (header.flags.get() | header_flags::WRITTEN).into(), ..header };
    let mut log = TreeBlock::empty(16384, &header);
    let keys = (0..ROOTS).map(|n| Key::new(objectid::TREE_LOG, KeyType::ROOT_ITEM, 256 + n));
    log.insert_items(0, keys.map(|key| (key, &data[..])));
    let mut patches = base.places(log);
    let logged = Superblock { log_root: at.0.into(), ..sb };
    let sealed = logged.sealed_for(Physical(65536), CsumType::Crc32c);
    patches.push((65536, sealed.as_bytes().to_vec()));
    let (findings, _) = base.findings(patches.clone(), &Options::new());
    assert!(findings.iter().any(|f| f.rule.0 == "LOG-02"), "the log is read");
    let (reads, blocks) = base.reads_with(patches);
    assert!(reads <= sound + 2 * blocks, "{reads} reads, {sound} in the sound image of {blocks} blocks");
}

/// A bad sector is named while others are still to be read.
#[test]
fn bad_data_are_named_while_more_are_read() {
    // A leaf of sha256 covers half a MiB of data.
    const SIZE: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), vec![b'f'; usize::try_from(SIZE).unwrap()]).unwrap();
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let args = ["-q", "-n", "4096", "--csum", "sha256", "--rootdir"];
    let made = std::process::Command::new("mkfs.btrfs").args(args).arg(&tree).arg(&image).output();
    if !made.is_ok_and(|o| o.status.success()) {
        assert!(std::env::var_os("BTRFSIMG_REQUIRE_ORACLES").is_none(), "mkfs.btrfs is missing");
        return;
    }
    let base = Base::of(&image);
    let sector = base.bytes.chunks(4096).position(|sector| sector == [b'f'; 4096]).unwrap() as u64 * 4096;
    let patches = vec![(sector + 5, b"!".to_vec())];
    let options = Options::new().with_data(true);
    assert_eq!(base.findings(patches.clone(), &options).1.data_bytes, SIZE);
    let (first, all) = base.reads_before("CS-09", patches, &options);
    assert!(all - first >= 8, "{first} reads of {all}");
}

#[test]
fn faults_across_blocks() {
    let Some(base) = Base::make() else { return };
    assert_eq!(base.judge(Vec::new()), (Vec::new(), Vec::new()), "the sound image");
    inodes_and_names(&base);
    extents(&base);
    devices_and_free_space(&base);
    roots(&base);
    mirrors(&base);
}
