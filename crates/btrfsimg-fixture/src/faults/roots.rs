//! ROOT-: root items and subvolumes.

use btrfsimg_ondisk::{
    DiskKey, FileType, InodeItem, Key, KeyType, RootItem, RootRefHead, name_hash, objectid, root_flags,
    write_dir_entry,
};
use zerocopy::IntoBytes;

use super::{S_IFREG, in_subvolumes, in_tree, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Spot, Target};

super::table! {
    "space-cache-inode-without-header": "LEAF-09", kernel reads, check misses,
    "adds the inode of a v1 space cache, and no header that names it", needs "room in the root tree",
    |image, _| {
        let mut inode = InodeItem::zeroed();
        (inode.generation, inode.transid) = (1.into(), 1.into());
        (inode.nlink, inode.mode) = (1.into(), (S_IFREG | 0o600).into());
        let key = Key::new(objectid::FIRST_FREE + 1000, KeyType::INODE_ITEM, 0);
        image.insert(objectid::ROOT_TREE, key, inode.as_bytes()).map(|s| s.map(drop))
    };
    "root-item-reloc-key": "ROOT-01", kernel refuses, check names,
    "adds a relocation tree of no tree", needs "room in the root tree",
    |image, target| {
        let spot = some!(subvolume(image, target)?);
        let data = image.item(&spot)?;
        let key = Key::new(objectid::TREE_RELOC, KeyType::ROOT_ITEM, 0);
        image.insert(objectid::ROOT_TREE, key, &data).map(|s| s.map(drop))
    };
    "root-item-reloc-tree": "ROOT-01", kernel refuses, check names,
    "adds a relocation tree of the chunk tree", needs "room in the root tree",
    |image, target| {
        let spot = some!(subvolume(image, target)?);
        let data = image.item(&spot)?;
        let key = Key::new(objectid::TREE_RELOC, KeyType::ROOT_ITEM, objectid::CHUNK_TREE);
        image.insert(objectid::ROOT_TREE, key, &data).map(|s| s.map(drop))
    };
    "root-item-size": "ROOT-02", kernel refuses, check misses,
    "cuts the last byte of a subvolume's root item", needs "a subvolume",
    |image, target| {
        let spot = some!(subvolume(image, target)?);
        image.edit_bytes(&spot, |data| data.truncate(438))
    };
    "root-item-generation": "ROOT-03", kernel refuses, check names,
    "gives a root item a generation from the future", needs "a subvolume",
    |image, target| {
        let future = image.ctx().generation + 1000;
        edit(image, target, |r| (r.generation, r.generation_v2) = (future.into(), future.into()))
    };
    "root-item-generation-v2": "ROOT-03", kernel refuses, check misses,
    "gives a root item a second generation from the future", needs "a subvolume",
    |image, target| {
        let future = image.ctx().generation + 1000;
        edit(image, target, |r| r.generation_v2 = future.into())
    };
    "root-item-last-snapshot": "ROOT-03", kernel refuses, check misses,
    "says that the last snapshot of a subvolume is from the future", needs "a subvolume",
    |image, target| {
        let future = image.ctx().generation + 1000;
        edit(image, target, |r| r.last_snapshot = future.into())
    };
    "root-item-unaligned": "ROOT-04", kernel refuses, check names,
    "points a root item into the middle of a sector", needs "a subvolume",
    |image, target| edit(image, target, |r| r.bytenr += 512);
    "root-item-level": "ROOT-05", kernel refuses, check names,
    "gives a root item level 8", needs "a subvolume",
    |image, target| edit(image, target, |r| r.level = 8);
    "root-item-drop-level": "ROOT-06", kernel refuses, check misses,
    "says that a subvolume's deletion is under way at level 0", needs "a subvolume",
    |image, target| edit(image, target, |r| {
        (r.drop_progress, r.drop_level) = (DiskKey::from(Key::new(300, KeyType::INODE_ITEM, 0)), 0);
    });
    "root-item-flags": "ROOT-07", kernel refuses, check misses,
    "sets a root flag that nothing knows", needs "a subvolume",
    |image, target| edit(image, target, |r| r.flags |= 1 << 5);
    "root-tree-missing": "ROOT-09", kernel refuses, check names,
    "removes the root item of the checksum tree", needs "a checksum tree",
    |image, _| image.remove_key(objectid::ROOT_TREE, Key::new(objectid::CSUM_TREE, KeyType::ROOT_ITEM, 0));
    "root-item-second": "ROOT-09", kernel reads, check names,
    "adds a second root item of the UUID tree, at another key", needs "a UUID tree, and room in the root tree",
    |image, _| {
        let key = Key::new(objectid::UUID_TREE, KeyType::ROOT_ITEM, 0);
        let spot = some!(image.find_key(objectid::ROOT_TREE, key)?);
        let data = image.item(&spot)?;
        image.insert(objectid::ROOT_TREE, Key { offset: 1, ..key }, &data).map(|s| s.map(drop))
    };
    "subvolume-backref-missing": "ROOT-10", kernel reads, check names,
    "removes the back reference of a subvolume", needs "a subvolume below the top level",
    |image, target| {
        let root = (objectid::ROOT_TREE, KeyType::ROOT_BACKREF);
        let spot = some!(in_tree(image, target, root, |_| true)?);
        image.remove(&spot)
    };
    "subvolume-ref-missing": "ROOT-10", kernel reads, check names,
    "removes the forward reference of a subvolume", needs "a subvolume below the top level",
    |image, target| {
        let root = (objectid::ROOT_TREE, KeyType::ROOT_REF);
        let spot = some!(in_tree(image, target, root, |_| true)?);
        image.remove(&spot)
    };
    "subvolume-ref-name-long": "LEAF-10", kernel refuses, check names,
    "gives the forward reference of a subvolume a name of 256 bytes", needs "a subvolume below the top level, and room in the root tree",
    |image, target| {
        let root = (objectid::ROOT_TREE, KeyType::ROOT_REF);
        let head = size_of::<RootRefHead>();
        let spot = some!(in_tree(image, target, root, |i| i.has_room(256))?);
        image.edit_bytes(&spot, |data| {
            data.resize(head + 256, b'x');
            data[head - 2..head].copy_from_slice(&256u16.to_le_bytes());
        })
    };
    "subvolume-ref-dirid": "ROOT-10", kernel reads, check names,
    "makes the forward reference of a subvolume name another directory", needs "a subvolume below the top level",
    |image, target| {
        let root = (objectid::ROOT_TREE, KeyType::ROOT_REF);
        let spot = some!(in_tree(image, target, root, |_| true)?);
        image.edit::<RootRefHead>(&spot, |r| r.dirid += 1)
    };
    "subvolume-orphan-missing": "ROOT-11", kernel reads, check names,
    "makes a subvolume one that is being deleted, without its orphan item", needs "a subvolume below the top level",
    |image, target| {
        let spot = some!(lower(image, target)?);
        image.edit::<RootItem>(&spot, |r| r.refs = 0.into())
    };
    "subvolume-root-dirid": "ROOT-12", kernel refuses, check names,
    "makes a root item name another inode as the root directory", needs "a subvolume below the top level",
    |image, target| {
        let spot = some!(lower(image, target)?);
        image.edit::<RootItem>(&spot, |r| r.root_dirid += 1 << 32)
    };
    "subvolume-root-dir-name": "ROOT-12" or "LK-11", kernel reads, check names,
    "gives a subvolume's root directory a name other than `..`", needs "a subvolume",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::INODE_REF, |i| {
            (i.key.objectid, i.key.offset) == (objectid::FIRST_FREE, objectid::FIRST_FREE)
        })?);
        image.edit_bytes(&spot, |data| data[10] = b'x')
    };
    "subvolume-root-dir-type": "LK-11" or "ROOT-12", kernel refuses, check names,
    "makes a subvolume's root directory a regular file", needs "a subvolume",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::INODE_ITEM, |i| {
            i.key.objectid == objectid::FIRST_FREE
        })?);
        image.edit::<InodeItem>(&spot, |i| i.mode = (i.mode.get() & 0o7777 | S_IFREG).into())
    };
    "default-subvolume-missing": "ROOT-13", kernel refuses, check misses,
    "makes a subvolume that does not exist the default one", needs "a default subvolume's entry",
    |image, _| {
        let root = (objectid::ROOT_TREE, KeyType::DIR_ITEM);
        let spot = some!(in_tree(image, &Target::Any, root, |i| i.key.objectid == objectid::ROOT_TREE_DIR)?);
        image.edit::<DiskKey>(&spot, |location| location.objectid = 70_000.into())
    };
    "uuid-item-subvolume": "ROOT-14", kernel reads, check misses,
    "makes a UUID item name a subvolume that does not have it", needs "a UUID tree with an item",
    |image, target| {
        let spot = some!(in_tree(image, target, (objectid::UUID_TREE, KeyType::UUID_SUBVOL), |_| true)?);
        image.edit_bytes(&spot, |data| data[..8].copy_from_slice(&70_000u64.to_le_bytes()))
    };
    "subvolume-received-uuid": "ROOT-15", kernel reads, check misses,
    "gives a writable subvolume a received UUID", needs "a writable subvolume",
    |image, target| {
        let subvolumes = image.subvolumes()?;
        let spot = some!(in_tree(image, target, (objectid::ROOT_TREE, KeyType::ROOT_ITEM), |i| {
            subvolumes.contains(&i.key.objectid)
                && RootItem::parse(i.data).is_some_and(|r| r.flags & root_flags::RDONLY == 0)
        })?);
        image.edit::<RootItem>(&spot, |r| r.received_uuid = [7; 16])
    };
    "subvolume-entry-dangling": "ROOT-16", kernel reads, check misses,
    "adds an entry of a subvolume that does not exist to the top level", needs "room in the first leaf of the top level",
    |image, _| {
        let (tree, dir, name, index) = (objectid::FS_TREE, objectid::FIRST_FREE, b"gone", 70_000);
        let mut entry = Vec::new();
        let location = Key::new(70_000, KeyType::ROOT_ITEM, u64::MAX);
        write_dir_entry(&mut entry, location, 1, FileType::DIR, name, b"");
        some!(image.insert(tree, Key::new(dir, KeyType::DIR_ITEM, name_hash(name)), &entry)?);
        some!(image.insert(tree, Key::new(dir, KeyType::DIR_INDEX, index), &entry)?);
        let root = some!(image.find_key(tree, Key::new(dir, KeyType::INODE_ITEM, 0))?);
        image.edit::<InodeItem>(&root, |i| i.size += 2 * name.len() as u64)
    };
    "subvolume-top-root-dirid": "ROOT-12", kernel reads, check names,
    "makes the top-level subvolume's root item name another inode as the root directory", needs "a superblock",
    |image, _| {
        let spot = some!(image.find_key(objectid::ROOT_TREE, Key::new(objectid::FS_TREE, KeyType::ROOT_ITEM, 0))?);
        image.edit::<RootItem>(&spot, |r| r.root_dirid += 1 << 32)
    };
    "data-reloc-root-dirid": "ROOT-12", kernel reads, check names,
    "makes the root item of the data relocation tree name another inode as the root directory", needs "a superblock",
    |image, _| {
        let key = Key::new(objectid::DATA_RELOC_TREE, KeyType::ROOT_ITEM, 0);
        let spot = some!(image.find_key(objectid::ROOT_TREE, key)?);
        image.edit::<RootItem>(&spot, |r| r.root_dirid += 1 << 32)
    };
    "subvolume-in-itself": "ROOT-17", kernel reads, check misses,
    "moves a subvolume into itself, name and all",
    needs "a subvolume in the top directory, and room in its first leaf",
    |image, target| into_itself(image, target);
}

/// The root item of a subvolume.
fn subvolume(image: &Image, target: &Target) -> Found<Spot> {
    let subvolumes = image.subvolumes()?;
    in_tree(image, target, (objectid::ROOT_TREE, KeyType::ROOT_ITEM), |i| {
        subvolumes.contains(&i.key.objectid) && i.data.len() == RootItem::zeroed().as_bytes().len()
    })
}

/// The same, below the top level.
fn lower(image: &Image, target: &Target) -> Found<Spot> {
    let root = (objectid::ROOT_TREE, KeyType::ROOT_ITEM);
    in_tree(image, target, root, |i| {
        objectid::is_fs_tree(i.key.objectid) && i.key.objectid != objectid::FS_TREE
    })
}

fn edit(image: &mut Image, target: &Target, edit: impl FnOnce(&mut RootItem)) -> Found<()> {
    let spot = some!(subvolume(image, target)?);
    image.edit(&spot, edit)
}

/// Moves a subvolume from the top directory into its own root directory.
fn into_itself(image: &mut Image, target: &Target) -> Found<()> {
    let (top, dir) = (objectid::FS_TREE, objectid::FIRST_FREE);
    let spot = some!(in_tree(image, target, (objectid::ROOT_TREE, KeyType::ROOT_REF), |i| {
        i.key.objectid == top && i.data.starts_with(&dir.to_le_bytes())
    })?);
    let (data, id) = (image.item(&spot)?, spot.key.offset);
    let head: RootRefHead = some!(image.get(&spot, 0)?);
    let name = data[size_of::<RootRefHead>()..].to_vec();
    some!(image.replace(&spot, Key { objectid: id, ..spot.key }, &data)?);
    let back = Key::new(id, KeyType::ROOT_BACKREF, top);
    let spot = some!(image.find_key(objectid::ROOT_TREE, back)?);
    some!(image.replace(&spot, Key { offset: id, ..back }, &data)?);
    let keys = [
        Key::new(dir, KeyType::DIR_ITEM, name_hash(&name)),
        Key::new(dir, KeyType::DIR_INDEX, head.sequence.get()),
    ];
    for key in keys {
        let spot = some!(image.find_key(top, key)?);
        let entry = image.item(&spot)?;
        if image.find_key(id, key)?.is_some() {
            return Ok(None);
        }
        some!(image.remove(&spot)?);
        some!(image.insert(id, key, &entry)?);
    }
    let inode = Key::new(dir, KeyType::INODE_ITEM, 0);
    let spot = some!(image.find_key(top, inode)?);
    some!(image.edit::<InodeItem>(&spot, |i| i.size -= 2 * name.len() as u64)?);
    let spot = some!(image.find_key(id, inode)?);
    image.edit::<InodeItem>(&spot, |i| i.size += 2 * name.len() as u64)
}
