//! LOG-: logs that the next mount replays.

use btrfsimg_ondisk::{
    Header, InodeItem, Key, KeyType, Logical, ParentExpectation, RootItem, STRIPE_LEN, TreeBlock,
    block_group_flags as bg, header_flags, objectid, write_inode_ref,
};
use zerocopy::IntoBytes;

use super::{S_IFREG, in_subvolumes, some, superblock};
use crate::error::Found;
use crate::image::Image;

/// Inodes and indices that no small image has.
const INO: u64 = 70_000;
const INDEX: u64 = 70_000;

super::table! {
    "log-tree": "LOG-01", kernel reads, check misses,
    "gives the file system an empty log tree to replay", needs "room for a block in a metadata block group",
    |image, _| {
        let at = some!(image.free_block(bg::METADATA, |_| true)?);
        top(image, at, &[])
    };
    "log-tree-in-data": "LOG-02", kernel reads, check misses,
    "gives the file system an empty log tree that lies among data", needs "room for a block in a data block group",
    |image, _| {
        let at = some!(image.free_block(bg::DATA, |at| at % STRIPE_LEN == 0)?);
        top(image, at, &[])
    };
    "log-tree-orphan-item": "LOG-03", kernel refuses, check misses,
    "puts an orphan item into the tree of logs", needs "room for a block in a metadata block group",
    |image, _| {
        let at = some!(image.free_block(bg::METADATA, |_| true)?);
        top(image, at, &[(Key::new(objectid::TREE_LOG, KeyType::ORPHAN_ITEM, 0), Vec::new())])
    };
    "log-tree-root-ref": "LOG-03", kernel reads, check misses,
    "puts an item of another kind behind those of the tree of logs", needs "room for a block in a metadata block group",
    |image, _| {
        let at = some!(image.free_block(bg::METADATA, |_| true)?);
        let mut data = Vec::new();
        // As a ROOT_REF: directory, index, name.
        data.extend_from_slice(&objectid::FIRST_FREE.to_le_bytes());
        write_inode_ref(&mut data, INDEX, b"x");
        top(image, at, &[(Key::new(objectid::TREE_LOG, KeyType::ROOT_REF, objectid::FIRST_FREE), data)])
    };
    "log-name-index-low": "LOG-04", kernel reads, check misses,
    "logs a file whose name has index 0", needs "room for two blocks in metadata block groups",
    |image, _| log_of(image, &[file(image, INO, 0, b"logged")]);
    "log-name-index-twice": "LOG-04", kernel refuses, check misses,
    "logs two files at one index of their directory", needs "room for two blocks in metadata block groups",
    |image, _| log_of(image, &[file(image, INO, INDEX, b"logged"), file(image, INO + 1, INDEX, b"logged, too")]);
    "log-name-index-taken": "LOG-04", kernel refuses, check misses,
    "logs a file at the index of another name of its directory",
    needs "a name in the top directory, and room for two blocks in metadata block groups",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| {
            (i.tree, i.key.objectid) == (objectid::FS_TREE, objectid::FIRST_FREE)
        })?);
        log_of(image, &[file(image, INO, spot.key.offset, b"logged")])
    };
    "log-name-index-subvolume": "LOG-04", kernel refuses, check misses,
    "logs a file at the index of a subvolume, and the directory that has the subvolume's number",
    needs "a subvolume and a directory of one number, the first in the top directory, and room for two blocks in metadata block groups",
    |image, target| {
        let inode = |id| image.find_key(objectid::FS_TREE, Key::new(id, KeyType::INODE_ITEM, 0));
        let spot = some!(in_subvolumes(image, target, KeyType::DIR_INDEX, |i| {
            let in_top = (i.tree, i.key.objectid) == (objectid::FS_TREE, objectid::FIRST_FREE);
            in_top && subvolume(i.data).is_some_and(|id| matches!(inode(id), Ok(Some(_))))
        })?);
        let id = some!(subvolume(&image.item(&spot)?));
        let inode = some!(inode(id)?);
        let item = image.item(&inode)?;
        log_of(image, &[vec![(inode.key, item)], file(image, INO, spot.key.offset, b"logged")])
    };
}

/// The number of the subvolume that a directory's entry leads to, if it is above that of a root directory.
fn subvolume(entry: &[u8]) -> Option<u64> {
    let id = u64::from_le_bytes(*entry.first_chunk()?);
    (entry[8] == KeyType::ROOT_ITEM.0 && id > objectid::FIRST_FREE).then_some(id)
}

type Items = Vec<(Key, Vec<u8>)>;

/// The items of an empty file in the top directory.
fn file(image: &Image, ino: u64, index: u64, name: &[u8]) -> Items {
    let transid = image.ctx().generation + 1;
    let mut inode = InodeItem::zeroed();
    (inode.generation, inode.transid) = (transid.into(), transid.into());
    (inode.nlink, inode.mode) = (1.into(), (S_IFREG | 0o600).into());
    let mut reference = Vec::new();
    write_inode_ref(&mut reference, index, name);
    vec![
        (Key::new(ino, KeyType::INODE_ITEM, 0), inode.as_bytes().to_vec()),
        (Key::new(ino, KeyType::INODE_REF, objectid::FIRST_FREE), reference),
    ]
}

/// Makes a log of the top-level subvolume that holds these files.
fn log_of(image: &mut Image, files: &[Items]) -> Found<()> {
    let at = some!(image.free_block(bg::METADATA, |_| true)?);
    let node = image.nodesize();
    let log = some!(image.free_block(bg::METADATA, |other| other >= at.0 + node)?);
    put(image, log, &files.concat())?;
    let mut root = RootItem::zeroed();
    root.bytenr = log.0.into();
    root.generation = (image.ctx().generation + 1).into();
    root.generation_v2 = root.generation;
    root.refs = 1.into();
    let key = Key::new(objectid::TREE_LOG, KeyType::ROOT_ITEM, objectid::FS_TREE);
    top(image, at, &[(key, root.as_bytes().to_vec())])
}

/// Puts a tree of logs at `at`.
fn top(image: &mut Image, at: Logical, items: &[(Key, Vec<u8>)]) -> Found<()> {
    put(image, at, items)?;
    superblock::supers(image, |sb| (sb.log_root, sb.log_root_level) = (at.0.into(), 0))
}

/// Puts a leaf of a log at `at`.
fn put(image: &mut Image, at: Logical, items: &[(Key, Vec<u8>)]) -> btrfsimg_fs::Result<()> {
    let sb = *image.superblock();
    let generation = sb.generation.get() + 1;
    let like = image.block(sb.root.get().into(), &ParentExpectation::default())?;
    let (fsid, uuid) = (like.header().fsid, like.header().chunk_tree_uuid);
    let header = TreeBlock::new_header(at, 0, objectid::TREE_LOG, generation, fsid, uuid);
    let header = Header { flags: (header.flags.get() | header_flags::WRITTEN).into(), ..header };
    let mut block = TreeBlock::empty(image.ctx().nodesize, &header);
    block.insert_items(0, items.iter().map(|(key, data)| (*key, &data[..])));
    image.put_block(at, block);
    Ok(())
}
