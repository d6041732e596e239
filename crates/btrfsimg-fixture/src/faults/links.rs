//! LK-: inodes, names and extents against each other.

use btrfsimg_ondisk::{
    DIR_ITEM_HEAD_LEN, DiskKey, FileType, InodeItem, Key, KeyType, inode_refs, name_hash, objectid,
    write_dir_entry, write_inode_ref,
};

use super::{S_IFDIR, S_IFLNK, S_IFREG, blocks, edit_inode, in_subvolumes, inode, kind, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::Spot;

super::table! {
    "inode-nlink": "LK-01", kernel reads, check names,
    "makes a file's link count one more than its names", needs "a regular file",
    |image, target| edit_inode(image, target, |i| kind(i) == S_IFREG, |i| i.nlink += 1);
    "dir-index-missing": "LK-02", kernel reads, check names,
    "removes an entry from a directory's index", needs "a directory entry",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| i.slot > 0)?);
        image.remove(&spot)
    };
    "dir-item-missing": "LK-02", kernel refuses, check names,
    "removes an entry by hash from a directory", needs "a directory entry",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_ITEM, |i| i.slot > 0)?);
        image.remove(&spot)
    };
    "inode-ref-missing": "LK-02", kernel reads, check names,
    "removes the reference of an inode's name", needs "an inode",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::INODE_REF, |i| {
            i.slot > 0 && i.key.objectid != i.key.offset
        })?);
        image.remove(&spot)
    };
    "inode-ref-itself": "LK-02", kernel reads, check names,
    "makes the only name of a file one in itself, as a root directory has it", needs "a file with one name",
    |image, target| {
        let spot = some!(inode(image, target, |i| kind(i) == S_IFREG && i.nlink == 1)?);
        some!(unlink(image, &spot)?);
        let mut reference = Vec::new();
        write_inode_ref(&mut reference, 0, b"..");
        let key = Key::new(spot.key.objectid, KeyType::INODE_REF, spot.key.objectid);
        image.insert(spot.tree, key, &reference).map(|s| s.map(drop))
    };
    "inode-ref-index": "LK-02", kernel reads, check names,
    "gives the reference of a name another index than its directory", needs "an inode",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::INODE_REF, |i| i.key.objectid != i.key.offset)?);
        image.edit::<zerocopy::little_endian::U64>(&spot, |index| *index += 1000)
    };
    "dir-index-name": "LK-02", kernel refuses, check names,
    "changes a name in a directory's index", needs "a directory entry",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |_| true)?);
        image.edit_bytes(&spot, |data| data[DIR_ITEM_HEAD_LEN] ^= 1)
    };
    "dir-item-target": "LK-02", kernel refuses, check names,
    "makes an entry by hash point to an inode that does not exist", needs "a directory entry",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_ITEM, |i| i.data[8] == KeyType::INODE_ITEM.0)?);
        image.edit::<DiskKey>(&spot, |location| location.objectid = (1 << 40).into())
    };
    "dir-index-type": "LK-03", kernel reads, check names,
    "gives an entry in a directory's index another type than its inode", needs "an entry of a regular file",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| i.data[29] == FileType::REG_FILE.0)?);
        image.edit_at::<u8>(&spot, 29, |b| *b = FileType::FIFO.0)
    };
    "subvolume-entry-type": "LK-03", kernel reads, check names,
    "gives a subvolume's entry in a directory's index the type of a file", needs "an entry of a subvolume",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| i.data[8] == KeyType::ROOT_ITEM.0)?);
        image.edit_at::<u8>(&spot, 29, |b| *b = FileType::REG_FILE.0)
    };
    "dir-size": "LK-04", kernel reads, check names,
    "makes a directory's size two more than its names", needs "a directory below the root",
    |image, target| edit_inode(image, target, |i| kind(i) == S_IFDIR, |i| i.size += 2);
    "inode-nbytes": "LK-05", kernel reads, check names,
    "makes a file's nbytes a sector more than its extents", needs "a regular file",
    |image, target| edit_inode(image, target, |i| kind(i) == S_IFREG, |i| i.nbytes += 4096);
    "dir-nbytes": "LK-12", kernel reads, check misses,
    "gives a directory nbytes of half a kilobyte", needs "a directory below the root",
    |image, target| edit_inode(image, target, |i| kind(i) == S_IFDIR, |i| i.nbytes = 512.into());
    "special-nbytes": "LK-12", kernel reads, check misses,
    "gives a fifo, socket or device nbytes of a sector", needs "a fifo, socket or device",
    |image, target| {
        let special = |i: &InodeItem| ![S_IFREG, S_IFDIR, S_IFLNK].contains(&kind(i));
        edit_inode(image, target, special, |i| i.nbytes = 4096.into())
    };
    "inode-orphan-missing": "LK-06", kernel reads, check names,
    "unlinks a file without an orphan item", needs "a file with one name",
    |image, target| {
        let spot = some!(inode(image, target, |i| kind(i) == S_IFREG && i.nlink == 1)?);
        some!(unlink(image, &spot)?);
        // Items before it in its leaf may be gone.
        let spot = some!(in_subvolumes(image, target, KeyType::INODE_ITEM, |i| {
            (i.tree, i.key) == (spot.tree, spot.key)
        })?);
        image.edit::<InodeItem>(&spot, |i| i.nlink = 0.into())
    };
    "orphan-item-stale": "LK-07", kernel reads, check misses,
    "adds an orphan item of an inode that does not exist", needs "room in the last leaf of a subvolume",
    |image, _| {
        let tree = some!(image.subvolumes()?.first().copied());
        let key = Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, 1 << 40);
        image.append(tree, |_| key, &[]).map(|s| s.map(drop))
    };
    "dir-loop": "LK-08", kernel reads, check misses,
    "moves a directory into one that is in it", needs "a directory in a directory below the root, and room",
    |image, target| {
        // The root directory alone may be its own parent: the new one is a directory in the directory.
        let holder = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| {
            i.key.objectid != objectid::FIRST_FREE && is_directory_entry(i.data)
        })?);
        let key = Key::new(holder.key.objectid, KeyType::INODE_ITEM, 0);
        let spot = some!(image.find_key(holder.tree, key)?);
        let name = some!(unlink(image, &spot)?);
        let (tree, ino) = (spot.tree, spot.key.objectid);
        let index = 70_000;
        let location = Key::new(ino, KeyType::INODE_ITEM, 0);
        let mut entry = Vec::new();
        write_dir_entry(&mut entry, location, 1, FileType::DIR, &name, b"");
        let mut reference = Vec::new();
        write_inode_ref(&mut reference, index, &name);
        let child = some!(child_directory(image, tree, ino)?);
        some!(image.insert(tree, Key::new(ino, KeyType::INODE_REF, child), &reference)?);
        some!(image.insert(tree, Key::new(child, KeyType::DIR_ITEM, name_hash(&name)), &entry)?);
        some!(image.insert(tree, Key::new(child, KeyType::DIR_INDEX, index), &entry)?);
        let child = some!(image.find_key(tree, Key::new(child, KeyType::INODE_ITEM, 0))?);
        image.edit::<InodeItem>(&child, |i| i.size += 2 * name.len() as u64)
    };
    "inode-item-missing": "LK-09", kernel reads, check names,
    "adds an item of an inode that does not exist", needs "room in the last leaf of a subvolume",
    |image, _| blocks::stray(image, KeyType::VERITY_DESC_ITEM, &[0; 8]);
    "inode-size-small": "LK-10", kernel reads, check misses,
    "makes a file end before its last extent", needs "a regular file with data at an offset",
    |image, target| {
        let spot = some!(super::in_subvolumes(image, target, KeyType::EXTENT_DATA, |i| {
            i.key.offset > 0 && i.data.len() == 53 && i.data[20] == 1 && i.data[21..29] != [0; 8]
        })?);
        let size = spot.key.offset - 1;
        let inode = some!(image.find_key(spot.tree, Key::new(spot.key.objectid, KeyType::INODE_ITEM, 0))?);
        image.edit::<InodeItem>(&inode, |i| i.size = size.into())
    };
}

/// Takes the only name of an inode from its directory and from the inode; gives it.
fn unlink(image: &mut Image, inode: &Spot) -> Found<Vec<u8>> {
    let (tree, ino) = (inode.tree, inode.key.objectid);
    let reference = some!(image.find(&crate::Target::Any, crate::place::Trees::One(tree), |i| {
        i.key.objectid == ino && i.is(KeyType::INODE_REF)
    })?);
    let data = image.item(&reference)?;
    let refs = inode_refs(reference.key, &data).unwrap_or_default();
    let [only] = refs[..] else { return Ok(None) };
    let (dir, index, name) = (only.parent, only.index, only.name.to_vec());
    some!(image.remove(&reference)?);
    some!(image.remove_key(tree, Key::new(dir, KeyType::DIR_INDEX, index))?);
    let by_hash = some!(image.find_key(tree, Key::new(dir, KeyType::DIR_ITEM, name_hash(&name)))?);
    if image.item(&by_hash)?.len() != DIR_ITEM_HEAD_LEN + name.len() {
        return Ok(None);
    }
    some!(image.remove(&by_hash)?);
    let dir = some!(image.find_key(tree, Key::new(dir, KeyType::INODE_ITEM, 0))?);
    some!(image.edit::<InodeItem>(&dir, |i| i.size -= 2 * name.len() as u64)?);
    Ok(Some(name))
}

fn is_directory_entry(data: &[u8]) -> bool {
    data[29] == FileType::DIR.0 && data[8] == KeyType::INODE_ITEM.0
}

/// A directory in the directory `dir`.
fn child_directory(image: &Image, tree: u64, dir: u64) -> Found<u64> {
    let entry = some!(image.find(&crate::Target::Any, crate::place::Trees::One(tree), |i| {
        i.key.objectid == dir && i.is(KeyType::DIR_INDEX) && is_directory_entry(i.data)
    })?);
    Ok(image.get::<DiskKey>(&entry, 0)?.map(|location| location.objectid.get()))
}
