//! Images that lie: trees that would never end, chunks that are not the file system's, free space that is in use.
//!
//! Each is sound but for one thing: all blocks have right checksums and pass the tree checker.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use btrfsimg_fs::block_store::BlockStore;
use btrfsimg_fs::device::Device;
use btrfsimg_fs::tree::{Blocks as _, Cursor, required_root};
use btrfsimg_ondisk::{
    InodeItem, Key, KeyPtr, KeyType, Logical, Physical, RootItem, SUPERBLOCK_OFFSETS, Superblock, TreeBlock,
    block_group_flags as bg, header_flags, max_key_ptrs, objectid,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Levels above the leaves: as many as there can be.
const LEVELS: u8 = 7;
/// Nodes of a level that share their children.
const WIDTH: usize = 40;
/// Where items are put that are the image's no more than by their keys.
const FAR: u64 = 1 << 40;

/// How nodes share children, so that there are far more ways through a tree than it has blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// All pointers of each node lead to the same child; all but the last with a key that is not the child's first.
    OneChild,
    /// Keys are right: what the nodes of a level hold overlaps.
    Overlapping,
}

/// The committed state of an image, to be changed in place.
pub struct Hostile {
    device: Arc<dyn Device>,
    store: BlockStore,
}

impl Hostile {
    /// The image on `device`, sound as yet.
    ///
    /// # Errors
    /// As opening it.
    pub fn open(device: Arc<dyn Device>) -> Result<Hostile> {
        Ok(Hostile { store: BlockStore::open(device.clone())?, device })
    }

    /// Writes a block to every copy, sealed.
    fn put(&self, mut block: TreeBlock) -> Result<()> {
        let csum = self.store.ctx().csum;
        let header = block.header_mut();
        header.flags = (header.flags.get() | header_flags::WRITTEN).into();
        let at = Logical(header.bytenr.get());
        block.header_mut().csum = csum.of_block(block.bytes()).0;
        self.store.write_copies(at, block.bytes())?;
        self.store.wrote_blocks(std::iter::once(at));
        Ok(())
    }

    /// Changes all copies of the superblock.
    ///
    /// # Errors
    /// As writing.
    pub fn edit_superblock(&self, edit: impl Fn(&mut Superblock)) -> Result<()> {
        let mut superblock = *self.store.superblock();
        edit(&mut superblock);
        let len = self.device.len()?;
        for at in SUPERBLOCK_OFFSETS.into_iter().filter(|at| at + 4096 <= len) {
            let sealed = superblock.sealed_for(Physical(at), self.store.ctx().csum);
            self.device.write_at(sealed.as_bytes(), Physical(at))?;
        }
        Ok(())
    }

    /// Changes the root block of `tree` in place.
    ///
    /// # Errors
    /// As reading and writing.
    pub fn edit_root(&self, tree: u64, edit: impl FnOnce(&mut TreeBlock)) -> Result<()> {
        let root = required_root(&self.store, tree)?;
        let mut block = (*self.store.block(root.logical, &root.expectation())?).clone();
        edit(&mut block);
        self.put(block)
    }

    /// The extent that the first free space in the last chunk of the type `flags` follows, and its length.
    ///
    /// # Errors
    /// When there is none.
    pub fn extent_before_free_space(&self, flags: u64) -> Result<(Logical, u64)> {
        let chunk = self.store.chunks().iter().rfind(|c| c.flags & flags != 0).context("no such chunk")?;
        let first = Key::new(chunk.start.0, KeyType::FREE_SPACE_EXTENT, 0);
        let free = self.key_from(objectid::FREE_SPACE_TREE, first)?;
        let end = Key::new(free.objectid - 1, KeyType(u8::MAX), u64::MAX);
        let mut cursor =
            Cursor::at_or_before(&self.store, objectid::EXTENT_TREE, &end)?.context("no extent")?;
        loop {
            let key = cursor.key();
            match key.key_type {
                KeyType::EXTENT_ITEM => return Ok((Logical(key.objectid), key.offset)),
                KeyType::METADATA_ITEM => {
                    return Ok((Logical(key.objectid), self.store.ctx().nodesize as u64));
                }
                _ => ensure!(cursor.previous()?, "no extent"),
            }
        }
    }

    /// The first key from `from` on.
    ///
    /// # Errors
    /// When there is none.
    pub fn key_from(&self, tree: u64, from: Key) -> Result<Key> {
        let cursor = Cursor::at_or_after(&self.store, tree, &from)?;
        Ok(cursor.context("no such item")?.key())
    }

    /// Changes key and data of the item `key`, which keeps its place in its leaf and is not its first.
    ///
    /// # Errors
    /// When there is no such item.
    pub fn edit(&self, tree: u64, key: Key, edit: impl FnOnce(&mut Key, &mut Vec<u8>)) -> Result<()> {
        let root = required_root(&self.store, tree)?;
        let (mut at, mut expect) = (root.logical, root.expectation());
        loop {
            let block = self.store.block(at, &expect)?;
            if !block.is_leaf() {
                let slot = block.child_slot(&key);
                (at, expect) = btrfsimg_fs::block_store::child_expectation(&block, slot, tree);
                continue;
            }
            let mut leaf = (*block).clone();
            let slot = leaf.search(&key).ok().with_context(|| format!("no item {key}"))?;
            let (mut new, mut data) = (key, leaf.item(slot).data.to_vec());
            edit(&mut new, &mut data);
            ensure!(new == key || slot > 0, "it is the first of its leaf");
            leaf.replace_item(slot, &data);
            leaf.set_item_key(slot, new);
            return self.put(leaf);
        }
    }

    /// Makes `tree`, whose root is a leaf, one of eight levels in which nodes share children. The way to the leaf that
    /// was there is right.
    ///
    /// # Errors
    /// When the tree has more blocks than one.
    pub fn share_children(&self, tree: u64, sharing: Sharing) -> Result<()> {
        let root = required_root(&self.store, tree)?;
        ensure!(root.level == 0, "tree {tree} has nodes");
        let leaf = (*self.store.block(root.logical, &root.expectation())?).clone();
        let mut free =
            self.free_blocks(if tree == objectid::CHUNK_TREE { bg::SYSTEM } else { bg::METADATA })?;
        let (generation, uuid) = (leaf.header().generation.get(), leaf.header().chunk_tree_uuid);
        let fsid = self.store.superblock().metadata_fsid();
        let mut new = |level| {
            let at = free.next().context("no room for a block")?;
            let header = TreeBlock::new_header(at, level, tree, generation, fsid, uuid);
            Ok::<_, anyhow::Error>(TreeBlock::empty(self.store.ctx().nodesize, &header))
        };
        let top = match sharing {
            Sharing::OneChild => {
                let per_node = max_key_ptrs(self.store.ctx().nodesize);
                let mut child = leaf;
                for level in 1..=LEVELS {
                    let mut node = new(level)?;
                    for slot in 0..per_node {
                        // Below all keys of the level below.
                        let below = (usize::from(LEVELS - level) * per_node + slot) as u64;
                        let is_last = slot + 1 == per_node;
                        let key = if is_last { child.key(0) } else { Key::new(0, KeyType(0), below) };
                        node.insert_key_ptr(slot, KeyPtr { key, ..pointer_to(&child) });
                    }
                    self.put(node.clone())?;
                    child = node;
                }
                child
            }
            Sharing::Overlapping => {
                let mut below = vec![leaf.clone()];
                for n in 1..WIDTH as u64 {
                    let mut other = new(0)?;
                    let (key, data) = self.item_of(tree, n, &leaf)?;
                    other.insert_items(0, std::iter::once((key, &data[..])));
                    self.put(other.clone())?;
                    below.push(other);
                }
                for level in 1..=LEVELS {
                    let mut nodes = Vec::new();
                    for first in 0..if level == LEVELS { 1 } else { WIDTH } {
                        let mut node = new(level)?;
                        for (slot, child) in below[first..].iter().enumerate() {
                            node.insert_key_ptr(slot, pointer_to(child));
                        }
                        self.put(node.clone())?;
                        nodes.push(node);
                    }
                    below = nodes;
                }
                below.swap_remove(0)
            }
        };
        let at = top.header().bytenr;
        match tree {
            objectid::CHUNK_TREE => {
                self.edit_superblock(|sb| (sb.chunk_root, sb.chunk_root_level) = (at, LEVELS))
            }
            _ => {
                let key = self.key_from(objectid::ROOT_TREE, Key::new(tree, KeyType::ROOT_ITEM, 0))?;
                self.edit(objectid::ROOT_TREE, key, |_, data| {
                    let (item, _) = RootItem::mut_from_prefix(data).expect("a root item is that long");
                    (item.bytenr, item.level) = (at, LEVELS);
                })
            }
        }
    }

    /// Places for blocks, from the end of a chunk down.
    fn free_blocks(&self, flags: u64) -> Result<impl Iterator<Item = Logical> + use<>> {
        let chunk = self.store.chunks().iter().rfind(|c| c.flags & flags != 0).context("no such chunk")?;
        let (end, length, nodesize) = (chunk.end(), chunk.length, self.store.ctx().nodesize as u64);
        Ok((1..length / nodesize).map(move |n| Logical(end - n * nodesize)))
    }

    /// An item that may be in `tree`, behind all that are there; the higher `n`, the farther.
    fn item_of(&self, tree: u64, n: u64, leaf: &TreeBlock) -> Result<(Key, Vec<u8>)> {
        let like = |key_type| {
            let mut items = leaf.items().filter(|item| item.key.key_type == key_type);
            let item = items.next().with_context(|| format!("no {key_type:?} in tree {tree}"))?;
            Ok::<_, anyhow::Error>((item.key, item.data.to_vec()))
        };
        let at = FAR + (n << 30);
        Ok(match tree {
            objectid::CHUNK_TREE => {
                let (key, data) = like(KeyType::CHUNK_ITEM)?;
                (Key { offset: at, ..key }, data)
            }
            objectid::EXTENT_TREE => {
                let (key, data) = like(KeyType::METADATA_ITEM)?;
                (Key { objectid: at, ..key }, data)
            }
            objectid::FREE_SPACE_TREE => (Key::new(at, KeyType::FREE_SPACE_EXTENT, 4096), Vec::new()),
            _ => {
                let (key, mut data) = like(KeyType::INODE_ITEM)?;
                let inode = InodeItem::mut_from_bytes(&mut data).ok().context("short inode item")?;
                (inode.mode, inode.nlink) = (0o100_644.into(), 1.into());
                (Key { objectid: at, ..key }, data)
            }
        })
    }

    /// Has the free space tree call the data extent `at` of `len` bytes free, which free space follows, and its block
    /// group not count it.
    ///
    /// # Errors
    /// When what follows is not free.
    pub fn call_free(&self, at: Logical, len: u64) -> Result<()> {
        let chunk = self.store.chunks().lookup(at).context("no such chunk")?;
        let free = Key::new(at.0 + len, KeyType::FREE_SPACE_EXTENT, 0);
        let key = self.key_from(objectid::FREE_SPACE_TREE, free)?;
        ensure!(key.objectid == at.0 + len && key.key_type == free.key_type, "{key} does not follow");
        self.edit(objectid::FREE_SPACE_TREE, key, |key, _| {
            (key.objectid, key.offset) = (at.0, key.offset + len)
        })?;
        let tree = btrfsimg_fs::tree::block_group_tree(self.store.superblock().compat_ro_flags.get());
        let group = Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
        self.edit(tree, group, |_, data| {
            let used = u64::from_le_bytes(data[..8].try_into().expect("8 bytes")) - len;
            data[..8].copy_from_slice(&used.to_le_bytes());
        })
    }
}

fn pointer_to(block: &TreeBlock) -> KeyPtr {
    let header = block.header();
    KeyPtr { key: block.key(0), block: Logical(header.bytenr.get()), generation: header.generation.get() }
}
