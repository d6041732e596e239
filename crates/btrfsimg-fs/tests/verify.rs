//! A sound image of mkfs.btrfs, broken in one way across blocks, with its checksums made right: the rule that was
//! broken is the first that verify names. (Rules of one block have their tests in btrfsimg-ondisk.)

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::io;
use std::process::Command;
use std::sync::Arc;

use btrfsimg_fs::block_store::{BlockStore, child_expectation};
use btrfsimg_fs::device::{Device, MemDevice};
use btrfsimg_fs::verify::{Options, verify};
use btrfsimg_ondisk::{
    CsumType, Key, KeyType, Logical, ParentExpectation, Physical, RootItem, SUPERBLOCK_LEN, Superblock,
    TreeBlock, objectid,
};
use zerocopy::FromBytes;

/// The image, and how to find things in it.
struct Base {
    bytes: Vec<u8>,
    store: BlockStore,
}

/// The image with some bytes replaced.
struct Patched<'a> {
    base: &'a [u8],
    patches: Vec<(u64, Vec<u8>)>,
}

impl Device for Patched<'_> {
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()> {
        let start = usize::try_from(at.0).map_err(io::Error::other)?;
        let end = start.checked_add(buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(self.base.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        for (place, bytes) in &self.patches {
            let place = usize::try_from(*place).map_err(io::Error::other)?;
            for (i, byte) in bytes.iter().enumerate() {
                if (start..end).contains(&(place + i)) {
                    buf[place + i - start] = *byte;
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: Physical) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.base.len() as u64)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl Base {
    /// `None` without mkfs.btrfs.
    fn make() -> Option<Base> {
        let dir = tempfile::tempdir().unwrap();
        let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
        std::fs::create_dir_all(tree.join("sub")).unwrap();
        std::fs::write(tree.join("big"), vec![7; 300_000]).unwrap();
        std::fs::write(tree.join("small"), "hello").unwrap();
        std::fs::write(tree.join("sub/file"), vec![9; 5000]).unwrap();
        for i in 0..200 {
            std::fs::write(tree.join(format!("many{i:03}")), "x").unwrap();
        }
        std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let made = Command::new("mkfs.btrfs")
            .args(["-q", "-n", "4096", "--rootdir"])
            .arg(&tree)
            .arg(&image)
            .output();
        if !made.is_ok_and(|o| o.status.success()) {
            assert!(std::env::var_os("BTRFSIMG_REQUIRE_ORACLES").is_none(), "mkfs.btrfs is missing");
            println!("skipped: no mkfs.btrfs --rootdir");
            return None;
        }
        let bytes = std::fs::read(&image).unwrap();
        let store = BlockStore::open(Arc::new(MemDevice::new(bytes.clone()))).unwrap();
        Some(Base { bytes, store })
    }

    /// The leaf of `tree` in which the first key from `from` on is, and its slot.
    fn find(&self, tree: u64, from: Key) -> (TreeBlock, usize) {
        let sb = self.store.superblock();
        let (mut at, level) = match tree {
            objectid::CHUNK_TREE => (Logical(sb.chunk_root.get()), sb.chunk_root_level),
            objectid::ROOT_TREE => (Logical(sb.root.get()), sb.root_level),
            _ => {
                let (leaf, slot) = self.find(objectid::ROOT_TREE, Key::new(tree, KeyType::ROOT_ITEM, 0));
                let root = RootItem::parse(leaf.item(slot).data).unwrap();
                (Logical(root.bytenr.get()), root.level)
            }
        };
        let mut expect = ParentExpectation { level: Some(level), ..ParentExpectation::default() };
        loop {
            let block = self.store.read_block(at, &expect).unwrap();
            if block.is_leaf() {
                let slot = block.search(&from).unwrap_or_else(|slot| slot);
                assert!(slot < block.nritems(), "no {from} in its leaf");
                return ((*block).clone(), slot);
            }
            (at, expect) = child_expectation(&block, block.child_slot(&from), tree);
        }
    }

    /// The block's bytes with a right checksum, at each of its places.
    fn places(&self, mut block: TreeBlock) -> Vec<(u64, Vec<u8>)> {
        let csum = CsumType::Crc32c.of_block(block.bytes());
        block.header_mut().csum = csum.0;
        let at = Logical(block.header().bytenr.get());
        let places = self.store.chunks().map(at, 4096).unwrap();
        places.map(|p| (p.physical.0, block.bytes().to_vec())).collect()
    }

    /// The rules broken with these patches, without consequences: those that are errors, and the others.
    fn judge(&self, patches: Vec<(u64, Vec<u8>)>) -> (Vec<String>, Vec<String>) {
        let device = Patched { base: &self.bytes, patches };
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        let summary =
            verify(&device, &Options::new().with_data(true), &mut |f| match f.severity().is_error() {
                true if !f.consequence => errors.push(f.rule.to_string()),
                // Some versions of mkfs leave such items.
                false if f.rule.0 != "FS-10" => warnings.push(f.rule.to_string()),
                _ => {}
            });
        assert_eq!(summary.unwrap().is_sound(), errors.is_empty());
        (errors, warnings)
    }

    /// Those that are errors.
    fn rules(&self, patches: Vec<(u64, Vec<u8>)>) -> Vec<String> {
        self.judge(patches).0
    }

    /// Breaks the item from `from` on in `tree` and expects `rule` first.
    fn check(&self, rule: &str, tree: u64, from: Key, break_it: impl FnOnce(&mut TreeBlock, usize)) {
        let (mut leaf, slot) = self.find(tree, from);
        break_it(&mut leaf, slot);
        let rules = self.rules(self.places(leaf));
        assert_eq!(rules.first().map(String::as_str), Some(rule), "{rules:?}");
    }

    /// [`Base::check`], by adding to the u64 at byte `at` of the item.
    fn check_add(&self, rule: &str, tree: u64, from: Key, at: usize, add: u64) {
        self.check(rule, tree, from, |leaf, slot| {
            let mut data = leaf.item(slot).data.to_vec();
            let value = u64::from_le_bytes(data[at..at + 8].try_into().unwrap()).wrapping_add(add);
            data[at..at + 8].copy_from_slice(&value.to_le_bytes());
            leaf.replace_item(slot, &data);
        });
    }

    /// The number of the inode that `name` in the root directory names.
    fn ino(&self, name: &[u8]) -> u64 {
        let hash = btrfsimg_ondisk::name_hash(name);
        let (leaf, slot) = self.find(5, Key::new(256, KeyType::DIR_ITEM, hash));
        u64::from_le_bytes(leaf.item(slot).data[..8].try_into().unwrap())
    }
}

fn first(objectid: u64, key_type: KeyType) -> Key {
    Key::new(objectid, key_type, 0)
}

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
    base.check("FE-26", 5, first(sub, KeyType::EXTENT_DATA), |leaf, slot| {
        leaf.insert_items(slot, std::iter::once((first(sub, KeyType::EXTENT_DATA), &inline[..])));
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
