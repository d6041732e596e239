//! An image under change: what is changed stays in memory until all of it is written.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use btrfsimg_fs::block_store::{BlockStore, check_order, child_expectation};
use btrfsimg_fs::device::Device;
use btrfsimg_fs::{Error, Result};
use btrfsimg_ondisk::{
    BlockContext, Key, KeyType, Logical, ParentExpectation, Physical, RootItem, SUPERBLOCK_LEN,
    SUPERBLOCK_OFFSETS, Superblock, TreeBlock, objectid,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::place::Visit;

/// A file system being broken.
pub struct Image {
    device: Arc<dyn Device>,
    store: BlockStore,
    blocks: BTreeMap<u64, Changed>,
    /// Copies of the superblock by their offset.
    supers: BTreeMap<u64, Superblock>,
    raw: Vec<(Physical, Vec<u8>)>,
    changes: Vec<Change>,
}

/// A block as it will be written.
struct Changed {
    block: TreeBlock,
    /// Which copy gets it; `None` is all.
    mirror: Option<usize>,
    bad_checksum: bool,
}

/// Something that was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// What it is about: an item, a header, a superblock, data.
    pub what: String,
    /// The tree.
    pub tree: Option<u64>,
    /// The block, or the data.
    pub logical: Option<u64>,
    /// The offset on the device, for what is not a tree block.
    pub physical: Option<u64>,
    /// The slot in the block.
    pub slot: Option<usize>,
    /// The key in it, before.
    pub key: Option<Key>,
    /// The first byte that differs, in the item, the header, the superblock or the data.
    pub offset: Option<usize>,
}

impl Change {
    pub(crate) fn new(what: impl Into<String>) -> Change {
        let what = what.into();
        Change { what, tree: None, logical: None, physical: None, slot: None, key: None, offset: None }
    }
}

impl fmt::Display for Change {
    /// `item changed: root=5 block=30408704 slot=3 key=(257 DIR_ITEM 1) offset=27`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.what)?;
        if let Some(tree) = self.tree {
            write!(f, " root={}", objectid::Printed(tree))?;
        }
        if let Some(logical) = self.logical {
            write!(f, " {}={logical}", if self.tree.is_some() { "block" } else { "logical" })?;
        }
        if let Some(physical) = self.physical {
            write!(f, " physical={physical}")?;
        }
        if let Some(slot) = self.slot {
            write!(f, " slot={slot}")?;
        }
        if let Some(key) = self.key {
            write!(f, " key={key}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " offset={offset}")?;
        }
        Ok(())
    }
}

impl Image {
    /// The file system on `device`.
    ///
    /// # Errors
    /// As opening it for reading: a fault is applied to an image that is whole.
    pub fn open(device: Arc<dyn Device>) -> Result<Image> {
        let store = BlockStore::open(device.clone())?;
        Ok(Image {
            device,
            store,
            blocks: BTreeMap::new(),
            supers: BTreeMap::new(),
            raw: Vec::new(),
            changes: Vec::new(),
        })
    }

    /// What checks of a block need: sizes, checksum, generation.
    pub fn ctx(&self) -> &BlockContext {
        self.store.ctx()
    }

    /// The superblock that the image was opened by.
    pub fn superblock(&self) -> &Superblock {
        self.store.superblock()
    }

    pub(crate) fn store(&self) -> &BlockStore {
        &self.store
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn nodesize(&self) -> u64 {
        self.ctx().nodesize as u64
    }

    pub(crate) fn sector(&self) -> u64 {
        self.ctx().sectorsize
    }

    /// Writes all that was changed, checksums made right; gives the changes in order.
    ///
    /// # Errors
    /// `Io`; the image may then be half changed.
    pub fn write(self) -> Result<Vec<Change>> {
        let csum = self.ctx().csum;
        let put = |bytes: &[u8], at: Physical| {
            self.device.write_at(bytes, at).map_err(Error::io(format!("write at {at}")))
        };
        for (at, changed) in &self.blocks {
            let mut block = changed.block.clone();
            let mut sum = csum.of_block(block.bytes()).0;
            sum[0] ^= u8::from(changed.bad_checksum);
            block.header_mut().csum = sum;
            let places = self.store.chunks().map(Logical(*at), self.nodesize())?;
            for (_, place) in places.enumerate().filter(|(i, _)| changed.mirror.is_none_or(|m| m == *i)) {
                put(block.bytes(), place.physical)?;
            }
        }
        for (at, bytes) in &self.raw {
            put(bytes, *at)?;
        }
        for (at, superblock) in &self.supers {
            put(superblock.as_bytes(), Physical(*at))?;
        }
        Ok(self.changes)
    }

    pub(crate) fn changed(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// The root blocks of all trees: id, address, level.
    pub(crate) fn root_of(&self, tree: u64) -> Result<Option<(Logical, u8)>> {
        let sb = self.superblock();
        match tree {
            objectid::ROOT_TREE => return Ok(Some((Logical(sb.root.get()), sb.root_level))),
            objectid::CHUNK_TREE => return Ok(Some((Logical(sb.chunk_root.get()), sb.chunk_root_level))),
            _ => {}
        }
        let mut found = None;
        self.each_root(&mut |key, item| {
            if key.objectid == tree {
                found = Some((Logical(item.bytenr.get()), item.level));
            }
        })?;
        Ok(found)
    }

    /// Trees with inodes that can be reached, 5 first.
    pub(crate) fn subvolumes(&self) -> Result<Vec<u64>> {
        let mut ids = Vec::new();
        self.each_root(&mut |key, item| {
            if objectid::is_fs_tree(key.objectid) && item.refs.get() > 0 {
                ids.push(key.objectid);
            }
        })?;
        Ok(ids)
    }

    fn each_root(&self, each: &mut dyn FnMut(Key, RootItem)) -> Result<()> {
        self.walk(objectid::ROOT_TREE, &mut |_, _, block| {
            if block.is_leaf() {
                for item in block.items().filter(|i| i.key.key_type == KeyType::ROOT_ITEM) {
                    if let Some(root) = RootItem::parse(item.data) {
                        each(item.key, root);
                    }
                }
            }
            ControlFlow::Continue(())
        })
    }

    /// Every block of a tree in key order, nodes before what they lead to; a tree that is not there has none.
    pub(crate) fn walk(&self, tree: u64, visit: &mut Visit<'_>) -> Result<()> {
        let Some((at, level)) = self.root_of(tree)? else { return Ok(()) };
        let expect = ParentExpectation { level: Some(level), ..ParentExpectation::default() };
        self.walk_from(tree, at, &expect, &mut (Vec::new(), None), visit).map(drop)
    }

    /// `path` is what is above, and the last key that was visited.
    fn walk_from(
        &self,
        tree: u64,
        at: Logical,
        expect: &ParentExpectation,
        path: &mut (Vec<(Logical, usize)>, Option<Key>),
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let block = self.block(at, expect)?;
        if visit(&path.0, at, &block).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if block.is_leaf() {
            path.1 = block.nritems().checked_sub(1).map(|slot| block.key(slot)).or(path.1);
        } else {
            for slot in 0..block.nritems() {
                let (child, expect) = child_expectation(&block, slot, tree);
                check_order(path.1, block.key(slot), child)?;
                path.0.push((at, slot));
                let flow = self.walk_from(tree, child, &expect, path, visit)?;
                path.0.pop();
                if flow.is_break() {
                    return Ok(flow);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A block as it will be.
    pub(crate) fn block(&self, at: Logical, expect: &ParentExpectation) -> Result<TreeBlock> {
        match self.blocks.get(&at.0) {
            Some(changed) => Ok(changed.block.clone()),
            None => Ok((*self.store.read_block(at, expect)?).clone()),
        }
    }

    /// A block, to change: all its copies are written.
    pub(crate) fn block_mut(&mut self, at: Logical) -> Result<&mut TreeBlock> {
        Ok(&mut self.entry(at)?.block)
    }

    fn entry(&mut self, at: Logical) -> Result<&mut Changed> {
        let block = self.block(at, &ParentExpectation::default())?;
        let fresh = Changed { block, mirror: None, bad_checksum: false };
        Ok(self.blocks.entry(at.0).or_insert(fresh))
    }

    /// Makes `block` what will be at `at`, whatever was there.
    pub(crate) fn put_block(&mut self, at: Logical, block: TreeBlock) {
        self.blocks.insert(at.0, Changed { block, mirror: None, bad_checksum: false });
    }

    /// Leaves the block at `at` with a wrong checksum, on one copy or on all.
    pub(crate) fn spoil_checksum(&mut self, at: Logical, mirror: Option<usize>) -> Result<()> {
        let entry = self.entry(at)?;
        (entry.bad_checksum, entry.mirror) = (true, mirror);
        Ok(())
    }

    /// Writes the block at `at` to one of its copies only.
    pub(crate) fn only_mirror(&mut self, at: Logical, mirror: usize) -> Result<()> {
        self.entry(at)?.mirror = Some(mirror);
        Ok(())
    }

    /// Copies of a logical range.
    pub(crate) fn copies(&self, at: Logical, len: u64) -> Result<Vec<Physical>> {
        Ok(self.store.chunks().map(at, len)?.map(|p| p.physical).collect())
    }

    /// Bytes to be written at a place of the device as they are.
    pub(crate) fn write_physical(&mut self, at: Physical, bytes: Vec<u8>) {
        self.raw.push((at, bytes));
    }

    /// Where superblocks are on this image.
    pub(crate) fn superblock_copies(&self) -> Result<Vec<u64>> {
        let len = self.device.len().map_err(Error::io("length of the image"))?;
        let total = len.min(self.superblock().dev_item.total_bytes.get());
        Ok(SUPERBLOCK_OFFSETS.into_iter().filter(|at| at + (SUPERBLOCK_LEN as u64) < total).collect())
    }

    /// Changes every copy of the superblock.
    pub(crate) fn edit_supers(&mut self, edit: impl Fn(&mut Superblock)) -> Result<()> {
        for at in self.superblock_copies()? {
            self.edit_super(at, &edit)?;
        }
        Ok(())
    }

    /// Changes the copy of the superblock at `at`; its checksum is made right for the algorithm that it had.
    pub(crate) fn edit_super(&mut self, at: u64, edit: impl Fn(&mut Superblock)) -> Result<()> {
        let before = match self.supers.get(&at) {
            Some(superblock) => *superblock,
            None => {
                let mut bytes = vec![0; SUPERBLOCK_LEN];
                let read = self.device.read_at(&mut bytes, Physical(at));
                read.map_err(Error::io(format!("superblock at {at}")))?;
                Superblock::read_from_bytes(&bytes)
                    .map_err(|_| Error::corrupt("SB-01", "short superblock"))?
            }
        };
        let mut after = before;
        edit(&mut after);
        let offset = before.as_bytes().iter().zip(after.as_bytes()).position(|(a, b)| a != b);
        if after.csum == before.csum {
            after.csum = self.ctx().csum.of_block(after.as_bytes()).0;
        }
        self.supers.insert(at, after);
        self.changed(Change { physical: Some(at), offset, ..Change::new("superblock changed") });
        Ok(())
    }
}
