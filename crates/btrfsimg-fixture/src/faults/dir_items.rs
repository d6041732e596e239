//! DIR-: directory entries and xattrs.

use btrfsimg_ondisk::{
    DIR_ITEM_HEAD_LEN, DiskKey, FileType, InodeItem, Key, KeyType, name_hash, write_dir_entry,
    write_inode_ref,
};
use zerocopy::FromBytes;
use zerocopy::little_endian::U16;

use super::{blocks, in_subvolumes, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Spot, Target, Trees};

/// Where the fields of an entry's head are.
const DATA_LEN: usize = 25;
const NAME_LEN: usize = 27;
const TYPE: usize = 29;
const NAME: usize = DIR_ITEM_HEAD_LEN;

super::table! {
    "dir-item-no-inode": "DIR-01", kernel refuses, check names,
    "adds a directory entry under an inode that has no other item", needs "room in the last leaf of a subvolume",
    |image, _| {
        let mut data = Vec::new();
        let location = Key::new(257, KeyType::INODE_ITEM, 0);
        write_dir_entry(&mut data, location, 1, FileType::REG_FILE, b"stray", b"");
        let key = KeyType::DIR_INDEX;
        blocks::stray(image, key, &data)
    };
    "dir-item-head-cut": "DIR-02", kernel refuses, check misses,
    "leaves a part of an entry's head behind an entry", needs "a directory entry, and room in its leaf",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_ITEM, |i| i.has_room(10))?);
        image.edit_bytes(&spot, |data| data.extend_from_slice(&[0; 10]))
    };
    "dir-item-location": "DIR-03", kernel refuses, check misses,
    "makes an entry point to an inode at an offset", needs "a directory entry",
    |image, target| {
        let spot = some!(file_entry(image, target)?);
        image.edit::<DiskKey>(&spot, |location| location.offset = 1.into())
    };
    "dir-item-location-type": "DIR-03", kernel refuses, check names,
    "makes an entry point to an item that is neither inode nor subvolume", needs "a directory entry",
    |image, target| {
        let spot = some!(file_entry(image, target)?);
        image.edit::<DiskKey>(&spot, |location| location.key_type = KeyType::EXTENT_DATA)
    };
    "xattr-location": "DIR-03", kernel refuses, check misses,
    "gives an xattr a location", needs "an xattr",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::XATTR_ITEM, |_| true)?);
        image.edit::<DiskKey>(&spot, |location| {
            *location = DiskKey::from(Key::new(257, KeyType::INODE_ITEM, 0));
        })
    };
    "dir-item-type": "DIR-04", kernel refuses, check names,
    "gives an entry a type that does not exist", needs "a directory entry",
    |image, target| byte(image, target, KeyType::DIR_ITEM, TYPE, 9);
    "dir-item-type-none": "DIR-04", kernel refuses, check names,
    "takes the type from an entry", needs "a directory entry",
    |image, target| byte(image, target, KeyType::DIR_INDEX, TYPE, 0);
    "dir-item-type-encrypted": "DIR-16", kernel reads, check names,
    "marks the name of an entry as encrypted", needs "a directory entry",
    |image, target| {
        let spot = some!(file_entry(image, target)?);
        image.edit_at::<u8>(&spot, TYPE, |b| *b |= 0x80)
    };
    "dir-item-is-xattr": "DIR-05", kernel refuses, check names,
    "makes a directory entry an xattr by its type", needs "a directory entry",
    |image, target| byte(image, target, KeyType::DIR_ITEM, TYPE, 8);
    "xattr-is-file": "DIR-05", kernel refuses, check misses,
    "makes an xattr a file by its type", needs "an xattr",
    |image, target| byte(image, target, KeyType::XATTR_ITEM, TYPE, 1);
    "dir-item-name-len": "DIR-06", kernel refuses, check names,
    "makes a name longer than 255 bytes", needs "a directory entry",
    |image, target| length(image, target, KeyType::DIR_ITEM, NAME_LEN, 256);
    "xattr-data-len": "DIR-07", kernel refuses, check misses,
    "makes an xattr's value longer than a leaf", needs "an xattr",
    |image, target| length(image, target, KeyType::XATTR_ITEM, DATA_LEN, u16::MAX);
    "dir-item-data-len": "DIR-08", kernel refuses, check misses,
    "gives a directory entry data behind its name", needs "a directory entry",
    |image, target| length(image, target, KeyType::DIR_ITEM, DATA_LEN, 1);
    "dir-item-name-len-overflow": "DIR-09", kernel refuses, check names,
    "makes a name longer than its item", needs "a directory entry",
    |image, target| length(image, target, KeyType::DIR_ITEM, NAME_LEN, 255);
    "dir-index-name-len-overflow": "DIR-09", kernel refuses, check names,
    "makes a name in the index longer than its item", needs "a directory entry",
    |image, target| length(image, target, KeyType::DIR_INDEX, NAME_LEN, 255);
    "xattr-data-len-overflow": "DIR-09", kernel refuses, check misses,
    "makes an xattr's value longer than its item", needs "an xattr",
    |image, target| {
        let max = u16::try_from(image.nodesize() / 2).unwrap_or(2048);
        length(image, target, KeyType::XATTR_ITEM, DATA_LEN, max)
    };
    "dir-item-name-hash": "DIR-10", kernel refuses, check names,
    "changes a name, so that its key is not its hash", needs "a directory entry",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_ITEM, |_| true)?);
        image.edit_bytes(&spot, |data| data[NAME] ^= 1)
    };
    "xattr-name-hash": "DIR-10", kernel refuses, check misses,
    "changes an xattr's name, so that its key is not its hash", needs "an xattr",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::XATTR_ITEM, |_| true)?);
        // Behind the prefix, which would make it another kind of xattr.
        image.edit_bytes(&spot, |data| {
            let len = usize::from(u16::from_le_bytes([data[NAME_LEN], data[NAME_LEN + 1]]));
            data[NAME + len - 1] ^= 1;
        })
    };
    "dir-index-name-slash": "DIR-11", kernel refuses, check names,
    "puts a slash into a name", needs "a directory entry",
    |image, target| byte(image, target, KeyType::DIR_INDEX, NAME, b'/');
    "dir-index-name-nul": "DIR-11", kernel reads, check names,
    "puts a NUL into a name", needs "a directory entry",
    |image, target| byte(image, target, KeyType::DIR_INDEX, NAME, 0);
    "dir-item-name-dot-dot": "DIR-11", kernel refuses, check names,
    "renames an entry to `..`, hash and all", needs "a directory entry, and room in its leaf",
    |image, target| rename(image, target, b"..");
    "dir-item-name-dot": "DIR-11", kernel refuses, check names,
    "renames an entry to `.`, hash and all", needs "a directory entry, and room in its leaf",
    |image, target| rename(image, target, b".");
    "dir-item-name-empty": "DIR-11", kernel refuses, check names,
    "takes all of an entry's name, hash and all", needs "a directory entry, and room in its leaf",
    |image, target| rename(image, target, b"");
    "dir-item-name-twice": "DIR-12", kernel reads, check names,
    "lists an entry twice in its hash bucket", needs "a directory entry, and room in its leaf",
    |image, target| twice(image, target, KeyType::DIR_ITEM);
    "dir-index-two-entries": "DIR-13" or "DIR-12", kernel reads, check names,
    "puts two entries at one index", needs "a directory entry, and room in its leaf",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| i.has_room(2 * i.data.len()))?);
        image.edit_bytes(&spot, |data| {
            let mut other = data.clone();
            if let Some(last) = other.last_mut() {
                *last ^= 1;
            }
            data.extend_from_slice(&other);
        })
    };
    "dir-index-low": "DIR-13", kernel reads, check names,
    "moves an entry to index 1, which stands for `..`", needs "a directory with an entry",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| {
            i.slot == 0 || i.leaf.key(i.slot - 1) < Key { offset: 1, ..i.key }
        })?);
        image.rekey(&spot, Key { offset: 1, ..spot.key })
    };
    "dir-index-high": "DIR-13", kernel loops, check names,
    "moves a directory's last entry to index 2^63", needs "a directory with an entry, and another inode behind it",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| {
            i.next().is_some_and(|next| next > Key { offset: u64::MAX, ..i.key })
        })?);
        image.rekey(&spot, Key { offset: 1 << 63, ..spot.key })
    };
    "xattr-prefix": "DIR-14", kernel reads, check misses,
    "gives an xattr a prefix that kernels do not know, hash and all", needs "an xattr, and room in its leaf",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::XATTR_ITEM, |_| true)?);
        let mut data = image.item(&spot)?;
        let name_len = usize::from(u16::from_le_bytes([data[NAME_LEN], data[NAME_LEN + 1]]));
        data[NAME] = b'q';
        let hash = name_hash(&data[NAME..NAME + name_len]);
        image.replace(&spot, Key { offset: hash, ..spot.key }, &data)
    };
    "xattr-compression-value": "DIR-14", kernel reads, check misses,
    "makes a compression property name an algorithm that does not exist", needs "a compression property",
    |image, target| {
        let name = b"btrfs.compression";
        let spot = some!(in_subvolumes(image, target, KeyType::XATTR_ITEM, |i| i.data[NAME..].starts_with(name))?);
        image.edit_bytes(&spot, |data| {
            if let Some(first) = data.get_mut(NAME + name.len()) {
                *first = b'q';
            }
        })
    };
    "dir-item-in-file": "DIR-15", kernel reads, check names,
    "links a file into a regular file, as if that were a directory", needs "two regular files, and room in their leaves",
    |image, target| {
        let is_file = |i: &InodeItem| super::kind(i) == super::S_IFREG;
        let dir = some!(super::inode(image, target, is_file)?);
        let (tree, parent, name) = (dir.tree, dir.key.objectid, b"stray");
        let file = some!(image.find(&Target::Any, Trees::One(tree), |i| {
            i.is(KeyType::INODE_ITEM)
                && i.key.objectid != parent
                && i.has_room(100)
                && InodeItem::ref_from_bytes(i.data).is_ok_and(is_file)
        })?);
        let (mut entry, mut reference) = (Vec::new(), Vec::new());
        let location = Key::new(file.key.objectid, KeyType::INODE_ITEM, 0);
        write_dir_entry(&mut entry, location, 1, FileType::REG_FILE, name, b"");
        write_inode_ref(&mut reference, 2, name);
        some!(image.edit::<InodeItem>(&file, |i| i.nlink += 1)?);
        some!(image.insert(tree, Key::new(file.key.objectid, KeyType::INODE_REF, parent), &reference)?);
        some!(image.insert(tree, Key::new(parent, KeyType::DIR_ITEM, name_hash(name)), &entry)?);
        image.insert(tree, Key::new(parent, KeyType::DIR_INDEX, 2), &entry).map(|s| s.map(drop))
    };
}

/// An entry of an inode, not of a subvolume.
fn file_entry(image: &Image, target: &Target) -> Found<Spot> {
    in_subvolumes(image, target, KeyType::DIR_ITEM, |i| i.data[8] == KeyType::INODE_ITEM.0)
}

fn byte(image: &mut Image, target: &Target, key_type: KeyType, at: usize, value: u8) -> Found<()> {
    let spot = some!(in_subvolumes(image, target, key_type, |_| true)?);
    image.edit_at::<u8>(&spot, at, |b| *b = value)
}

/// Gives an entry by hash another name.
fn rename(image: &mut Image, target: &Target, name: &[u8]) -> Found<()> {
    let spot = some!(in_subvolumes(image, target, KeyType::DIR_ITEM, |i| i.has_room(40))?);
    let mut data = image.item(&spot)?;
    data.truncate(NAME);
    let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
    data[NAME_LEN..NAME_LEN + 2].copy_from_slice(&len.to_le_bytes());
    data.extend_from_slice(name);
    image.replace(&spot, Key { offset: name_hash(name), ..spot.key }, &data)
}

/// Sets a length of the first entry of an item.
fn length(image: &mut Image, target: &Target, key_type: KeyType, at: usize, value: u16) -> Found<()> {
    let spot = some!(in_subvolumes(image, target, key_type, |_| true)?);
    image.edit_at::<U16>(&spot, at, |b| *b = value.into())
}

fn twice(image: &mut Image, target: &Target, key_type: KeyType) -> Found<()> {
    let spot = some!(in_subvolumes(image, target, key_type, |i| i.has_room(i.data.len()))?);
    image.edit_bytes(&spot, |data| data.extend_from_within(..))
}
