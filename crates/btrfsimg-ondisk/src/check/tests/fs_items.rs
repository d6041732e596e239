//! DIR-, INO-, REF-, FE-, CS-.

use super::fixtures::{csum_leaf, entry, extent, fs_leaf, range, slot};
use super::{check, check_len, check_patch, check_taken};
use crate::{FileExtentKind, FileType, Key, KeyType, TreeBlock, name_hash, objectid};

const FILE: Key = Key::new(257, KeyType::INODE_ITEM, 0);

#[test]
fn dir_items() {
    let sound = fs_leaf();
    check(&sound, "DIR-01", |b| b.remove_items(slot::INODE..slot::XATTR));
    for at in [slot::DIR_ITEM, slot::DIR_INDEX, slot::XATTR] {
        check_len(&sound, "DIR-02", at, 29);
        check_patch(&sound, "DIR-04", at, 29, &[0]);
        check_patch(&sound, "DIR-04", at, 29, &[9]);
        check_patch(&sound, "DIR-06", at, 27, &256u16.to_le_bytes());
        check_patch(&sound, "DIR-09", at, 27, &255u16.to_le_bytes());
    }
    check_patch(&sound, "DIR-05", slot::DIR_ITEM, 29, &[8]);
    check_patch(&sound, "DIR-05", slot::XATTR, 29, &[1]);
    check_patch(&sound, "DIR-07", slot::XATTR, 25, &u16::MAX.to_le_bytes());
    check_patch(&sound, "DIR-08", slot::DIR_ITEM, 25, &1u16.to_le_bytes());
    check_patch(&sound, "DIR-09", slot::XATTR, 25, &6u16.to_le_bytes());
    check_patch(&sound, "DIR-10", slot::DIR_ITEM, 30, b"M");
    check_patch(&sound, "DIR-10", slot::XATTR, 35, b"b");
    check_len(&sound, "DIR-02", slot::DIR_ITEM, 35);
}

#[test]
fn dir_locations() {
    let sound = fs_leaf();
    let set = |key: Key| crate::DiskKey::from(key);
    let bad = [
        Key::new(255, KeyType::INODE_ITEM, 0),
        Key::new(257, KeyType::INODE_ITEM, 1),
        Key::new(u64::MAX - 254, KeyType::INODE_ITEM, 0),
        Key::new(0, KeyType::ROOT_ITEM, 0),
        Key::new(2, KeyType::ROOT_ITEM, 0),
        Key::new(1 << 48, KeyType::ROOT_ITEM, 0),
        Key::new(257, KeyType::EXTENT_DATA, 0),
    ];
    for location in bad {
        check_patch(&sound, "DIR-03", slot::DIR_ITEM, 0, zerocopy::IntoBytes::as_bytes(&set(location)));
    }
    for location in [FILE, Key::new(0, KeyType::UNTYPED, 1), Key::new(2, KeyType::ROOT_ITEM, 0)] {
        check_patch(&sound, "DIR-03", slot::XATTR, 0, zerocopy::IntoBytes::as_bytes(&set(location)));
    }
    check_taken(&sound, "DIR-03", |b| {
        let location = Key::new(300, KeyType::ROOT_ITEM, 0);
        b.replace_item(slot::XATTR, &entry(location, FileType::XATTR, b"user.a", b"value"));
    });
    check_taken(&sound, "DIR-03", |b| {
        let location = Key::new(257, KeyType::UNTYPED, 0);
        b.replace_item(slot::DIR_ITEM, &entry(location, FileType::REG_FILE, b"name", b""));
    });
    // A subvolume as the location of an entry is legal, whatever its offset.
    for offset in [0, u64::MAX] {
        let mut block = sound.clone();
        let location = Key::new(300, KeyType::ROOT_ITEM, offset);
        block.replace_item(slot::DIR_ITEM, &entry(location, FileType::DIR, b"name", b""));
        assert!(super::broken_rules(&block).is_empty());
    }
}

/// The directory's entry `name`, in both its items.
fn name_entry(block: &mut TreeBlock, name: &[u8]) {
    let item = entry(FILE, FileType::REG_FILE, name, b"");
    block.replace_item(slot::DIR_ITEM, &item);
    block.set_item_key(slot::DIR_ITEM, Key::new(256, KeyType::DIR_ITEM, name_hash(name)));
    block.replace_item(slot::DIR_INDEX, &item);
}

#[test]
fn names_and_entries_that_kernels_take() {
    let sound = fs_leaf();
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"nul\0"] {
        check(&sound, "DIR-11", |b| name_entry(b, name));
    }
    let twice =
        [entry(FILE, FileType::REG_FILE, b"name", b""), entry(FILE, FileType::REG_FILE, b"name", b"")];
    check(&sound, "DIR-12", |b| b.replace_item(slot::DIR_ITEM, &twice.concat()));
    check(&sound, "DIR-13", |b| {
        b.replace_item(slot::DIR_INDEX, &{
            [entry(FILE, FileType::REG_FILE, b"a", b""), entry(FILE, FileType::REG_FILE, b"b", b"")].concat()
        })
    });
    for index in [0, 1, 1 << 63] {
        check(&sound, "DIR-13", |b| {
            b.set_item_key(slot::DIR_INDEX, Key::new(256, KeyType::DIR_INDEX, index))
        });
    }
    check_len(&sound, "DIR-13", slot::DIR_ITEM, 0);
    let zero = Key::new(0, KeyType::UNTYPED, 0);
    let xattr = |name: &'static [u8], value: &'static [u8]| {
        move |b: &mut TreeBlock| {
            b.set_item_key(slot::XATTR, Key::new(257, KeyType::XATTR_ITEM, name_hash(name)));
            b.replace_item(slot::XATTR, &entry(zero, FileType::XATTR, name, value));
        }
    };
    check(&sound, "DIR-14", xattr(b"odd.a", b"1"));
    check(&sound, "DIR-14", xattr(b"btrfs.compression", b"brotli"));
    // Linux 6.18 lists the entry as if the bit were not there.
    check_patch(&sound, "DIR-16", slot::DIR_ITEM, 29, &[0x81]);
    check_patch(&sound, "DIR-16", slot::DIR_INDEX, 29, &[0x81]);
    let mut good = sound.clone();
    xattr(b"btrfs.compression", b"zstd:3")(&mut good);
    assert!(super::broken_rules(&good).is_empty());
}

/// Two names with one hash share an item.
#[test]
fn colliding_names_are_sound() {
    let mut block = fs_leaf();
    let both = [&b"ue2r43xy"[..], b"c54cvxdh"].map(|name| entry(FILE, FileType::REG_FILE, name, b""));
    block.set_item_key(slot::DIR_ITEM, Key::new(256, KeyType::DIR_ITEM, name_hash(b"ue2r43xy")));
    block.replace_item(slot::DIR_ITEM, &both.concat());
    assert!(super::broken_rules(&block).is_empty());
}

#[test]
fn inodes() {
    let sound = fs_leaf();
    let last = slot::SYMLINK_INODE;
    check(&sound, "INO-01", |b| b.set_item_key(last, Key::new(u64::MAX - 20, KeyType::INODE_ITEM, 0)));
    check(&sound, "INO-02", |b| b.set_item_key(last, Key::new(259, KeyType::INODE_ITEM, 1)));
    check_len(&sound, "INO-03", slot::INODE, 159);
    check_patch(&sound, "INO-04", slot::INODE, 0, &12u64.to_le_bytes());
    check_patch(&sound, "INO-05", slot::INODE, 8, &12u64.to_le_bytes());
    check_patch(&sound, "INO-06", slot::INODE, 52, &0o300_644u32.to_le_bytes());
    for mode in [0u32, 0o644, 0o050_000, 0o170_000] {
        check_patch(&sound, "INO-07", slot::INODE, 52, &mode.to_le_bytes());
    }
    check_patch(&sound, "INO-08", slot::DIR_INODE, 40, &2u32.to_le_bytes());
    check_patch(&sound, "INO-09", slot::INODE, 64, &0x1000u64.to_le_bytes());
    check_patch(&sound, "INO-10", slot::INODE, 64, &(1u64 << 33).to_le_bytes());
    check_patch(&sound, "INO-11", slot::INODE, 64, &2u64.to_le_bytes());
    for flag in [0x40u64, 0x80] {
        check_patch(&sound, "INO-12", slot::SYMLINK_INODE, 64, &flag.to_le_bytes());
    }
    for size in [1 << 63, u64::MAX - 4094, u64::MAX] {
        check_patch(&sound, "INO-13", slot::INODE, 16, &size.to_le_bytes());
    }
}

#[test]
fn inode_refs() {
    let sound = fs_leaf();
    check(&sound, "REF-01", |b| b.remove_items(slot::INODE..slot::INODE + 1));
    check_len(&sound, "REF-02", slot::INODE_REF, 10);
    check_len(&sound, "REF-03", slot::INODE_REF, 10 + 4 + 5);
    check_patch(&sound, "REF-04", slot::INODE_REF, 8, &5u16.to_le_bytes());
    check_patch(&sound, "REF-05", slot::INODE_REF, 8, &0u16.to_le_bytes());
    check_len(&sound, "REF-02", slot::EXTREF, 18);
    check_patch(&sound, "REF-04", slot::EXTREF, 16, &200u16.to_le_bytes());
    // As Linux 6.18: the length is judged before the room.
    check_patch(&sound, "REF-05", slot::EXTREF, 16, &500u16.to_le_bytes());
    check_patch(&sound, "REF-07", slot::EXTREF, 18, b"L");
    check(&sound, "REF-05", |b| {
        let long = [&[0; 8][..], &500u16.to_le_bytes(), &[b'a'; 500]].concat();
        b.replace_item(slot::INODE_REF, &long);
    });
}

#[test]
fn file_extents() {
    let sound = fs_leaf();
    let reg = slot::REGULAR;
    check(&sound, "FE-01", |b| b.set_item_key(slot::PREALLOC, Key::new(257, KeyType::EXTENT_DATA, 20481)));
    check(&sound, "FE-02", |b| b.remove_items(slot::INLINE - 1..slot::INLINE));
    check_len(&sound, "FE-03", reg, 20);
    check_patch(&sound, "FE-04", reg, 20, &[3]);
    check_patch(&sound, "FE-05", reg, 16, &[4]);
    check_patch(&sound, "FE-06", reg, 17, &[1]);
    check(&sound, "FE-07", |b| b.set_item_key(slot::INLINE, Key::new(258, KeyType::EXTENT_DATA, 4096)));
    check_patch(&sound, "FE-09", slot::INLINE, 8, &6u64.to_le_bytes());
    check_len(&sound, "FE-10", reg, 54);
    for at in [8, 21, 29, 37, 45] {
        check_patch(&sound, "FE-11", reg, at, &4097u64.to_le_bytes());
    }
    check_patch(&sound, "FE-12", slot::PREALLOC, 45, &(u64::MAX - 4095).to_le_bytes());
    check_patch(&sound, "FE-13", reg, 45, &12288u64.to_le_bytes());
}

#[test]
fn file_extents_that_kernels_take() {
    let sound = fs_leaf();
    check_patch(&sound, "FE-14", slot::PREALLOC, 45, &0u64.to_le_bytes());
    check_patch(&sound, "FE-15", slot::PREALLOC, 37, &8192u64.to_le_bytes());
    check_patch(&sound, "FE-15", slot::COMPRESSED, 37, &4096u64.to_le_bytes());
    // Kernels take the block, and refuse to read the file.
    check_taken(&sound, "FE-16", |b| {
        let mut data = b.item(slot::PREALLOC).data.to_vec();
        data[16] = 1;
        b.replace_item(slot::PREALLOC, &data);
    });
    check_patch(&sound, "FE-17", slot::REGULAR, 8, &16384u64.to_le_bytes());
    check(&sound, "FE-18", |b| {
        let big = FileExtentKind::Regular(range(2 << 24, 4096, 0, 12288));
        b.replace_item(slot::COMPRESSED, &extent(big, 256 << 10, 3));
    });
    check_patch(&sound, "FE-28", slot::REGULAR, 0, &(super::fixtures::GENERATION + 2).to_le_bytes());
    check_patch(&sound, "FE-28", slot::INLINE, 0, &u64::MAX.to_le_bytes());
    let inline = |stored: &'static [u8], ram: u64, compression: u8| {
        move |b: &mut TreeBlock| {
            b.replace_item(slot::INLINE, &extent(FileExtentKind::Inline(stored), ram, compression));
        }
    };
    check(&sound, "FE-19", inline(b"", 0, 0));
    check(&sound, "FE-19", inline(&[0; 4096], 4096, 0));
    check(&sound, "FE-19", inline(b"x", 4097, 1));
    for (stored, ram, compression) in [(&[0; 4095][..], 4095, 0), (b"x", 4096, 1)] {
        let mut good = sound.clone();
        good.replace_item(slot::INLINE, &extent(FileExtentKind::Inline(stored), ram, compression));
        assert!(super::broken_rules(&good).is_empty());
    }
}

#[test]
fn csums() {
    let sound = csum_leaf();
    let at = sound.key(1).offset;
    check(&sound, "CS-01", |b| b.set_item_key(1, Key::new(u64::MAX, KeyType::EXTENT_CSUM, at)));
    check(&sound, "CS-02", |b| {
        b.set_item_key(1, Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at + 1))
    });
    check_len(&sound, "CS-03", 1, 7);
    check_taken(&sound, "CS-03", |b| b.replace_item(1, b""));
    check_len(&sound, "CS-04", 0, 12);
}
