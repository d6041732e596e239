//! Copy-on-write of tree blocks, and paths of blocks that may be changed (`format/08 §8.1, 8.3`).

use std::sync::Arc;

use btrfsimg_ondisk::{
    BackRef, FileExtent, Key, KeyPtr, KeyType, Logical, TreeBlock, header_flags, objectid,
};

use super::Transaction;
use super::chunks::ChunkPolicy;
use super::refs::ExtentKind;
use super::space::SpaceKind;
use crate::block_store::child_expectation;
use crate::error::{Error, Result};
use crate::tree::Blocks;

/// So many extents are together anyway.
const FEW_BLOCKS: usize = 256;

/// One block on a path from a root down: its address and the slot taken in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) at: Logical,
    pub(super) slot: usize,
}

impl Transaction<'_> {
    /// The blocks from the root of `tree` down to the leaf where `key` is or would be, each new in this transaction
    /// and in memory. The last slot is where the key is or would be inserted.
    pub(super) fn path_to(&mut self, tree: u64, key: &Key) -> Result<Vec<Step>> {
        let mut at = self.writable_root(tree)?;
        let mut path = Vec::with_capacity(4);
        loop {
            let block = self.dirty_block(at);
            if block.is_leaf() {
                let slot = block.search(key).unwrap_or_else(|slot| slot);
                path.push(Step { at, slot });
                return Ok(path);
            }
            let slot = block.child_slot(key);
            path.push(Step { at, slot });
            at = self.writable_child(tree, at, slot)?;
        }
    }

    /// The same down to the node above the leaf; `None` when the root is a leaf.
    pub(super) fn path_above_leaf(&mut self, tree: u64, key: &Key) -> Result<Option<Vec<Step>>> {
        let mut at = self.writable_root(tree)?;
        let mut path = Vec::with_capacity(4);
        loop {
            let block = self.dirty_block(at);
            if block.is_leaf() {
                return Ok(None);
            }
            let (slot, level) = (block.child_slot(key), block.level());
            path.push(Step { at, slot });
            if level == 1 {
                return Ok(Some(path));
            }
            at = self.writable_child(tree, at, slot)?;
        }
    }

    /// The smallest key right of the block that `path` ends in.
    pub(super) fn upper_bound(&self, path: &[Step]) -> Option<Key> {
        path.iter().rev().skip(1).find_map(|step| {
            let node = self.dirty_block(step.at);
            (step.slot + 1 < node.nritems()).then(|| node.key(step.slot + 1))
        })
    }

    /// A block of this transaction that is in memory.
    pub(super) fn dirty_block(&self, at: Logical) -> &TreeBlock {
        self.dirty.get(&at.0).expect("a path holds blocks in memory")
    }

    /// The same, to change.
    pub(super) fn dirty_block_mut(&mut self, at: Logical) -> &mut TreeBlock {
        Arc::make_mut(self.dirty.get_mut(&at.0).expect("a path holds blocks in memory"))
    }

    /// The root node of `tree`, copied if it is not new in this transaction.
    pub(super) fn writable_root(&mut self, tree: u64) -> Result<Logical> {
        self.open_tree(tree)?;
        let root = self.trees[&tree].root;
        let block = self.block(root.logical, &root.expectation())?;
        if self.is_mine(&block, root.logical)? {
            // Only what is below a root can be shared.
            self.keep_dirty(root.logical, block);
            return Ok(root.logical);
        }
        let at = self.cow(tree, &block, true)?;
        let open = self.trees.get_mut(&tree).expect("opened above");
        (open.root.logical, open.root.generation, open.changed) = (at, self.transid, true);
        Ok(at)
    }

    /// The child at `slot` of the node at `parent`, copied if it is not new in this transaction.
    pub(super) fn writable_child(&mut self, tree: u64, parent: Logical, slot: usize) -> Result<Logical> {
        let (at, expect) = child_expectation(self.dirty_block(parent), slot, tree);
        let block = self.block(at, &expect)?;
        if self.is_mine(&block, at)? && !self.is_shared(tree, &block, at)? {
            self.keep_dirty(at, block);
            return Ok(at);
        }
        self.check_only_child(tree, parent, slot, at)?;
        let copy = self.cow(tree, &block, false)?;
        let key = self.dirty_block(parent).key(slot);
        let ptr = KeyPtr { key, block: copy, generation: self.transid };
        self.dirty_block_mut(parent).set_key_ptr(slot, ptr);
        Ok(copy)
    }

    /// BLK-13 when the node at `parent` has the child `at` in another slot as well: that would point to what is given back.
    fn check_only_child(&self, tree: u64, parent: Logical, slot: usize, at: Logical) -> Result<()> {
        let node = self.dirty_block(parent);
        let mut others = (0..node.nritems()).filter(|&other| other != slot);
        if others.all(|other| node.key_ptr(other).block != at) {
            return Ok(());
        }
        let violation = btrfsimg_ondisk::Violation::new("BLK-13", format!("child {at} is in two slots"));
        Err(Error::corrupt_block(tree, parent, false, violation))
    }

    /// Whether a block is this transaction's, to be changed where it is. One that only claims its generation is
    /// corruption: nothing of the committed state can be of a later transaction.
    fn is_mine(&mut self, block: &TreeBlock, at: Logical) -> Result<bool> {
        if block.header().generation.get() != self.transid {
            return Ok(false);
        }
        let nodesize = u64::from(self.nodesize());
        if self.dirty.contains_key(&at.0) || self.space.is_own(&self.volume.store, at, nodesize)? {
            return Ok(true);
        }
        let reason = format!("generation {} is later than the superblock's", self.transid);
        let violation = btrfsimg_ondisk::Violation::new("BLK-07", reason);
        Err(Error::corrupt_block(block.header().owner.get(), at, block.is_leaf(), violation))
    }

    /// Whether a block of this transaction is another tree's as well, or no longer its tree's alone: after a snapshot in
    /// the same transaction. What is above it was copied before: a block that others reach through a shared parent
    /// has their references by then.
    fn is_shared(&self, tree: u64, block: &TreeBlock, at: Logical) -> Result<bool> {
        let owner = block.header().owner.get();
        if !self.may_be_shared(tree, block, false) {
            if owner == tree {
                return Ok(false);
            }
            let reason = format!("owner mismatch, have {owner} expect {tree}");
            let violation = btrfsimg_ondisk::Violation::new("BLK-10", reason);
            return Err(Error::corrupt_block(tree, at, block.is_leaf(), violation));
        }
        let (refs, full) = self.block_refs(at, block.level())?;
        Ok(refs != 1 || full || owner != tree)
    }

    /// Has a block of this transaction in memory; it may have been written early.
    fn keep_dirty(&mut self, at: Logical, block: Arc<TreeBlock>) {
        if !self.dirty.contains_key(&at.0) {
            self.put_dirty(at, block);
        }
    }

    fn put_dirty(&mut self, at: Logical, block: Arc<TreeBlock>) {
        if block.is_leaf() {
            self.dirty_leaves.push_back(at.0);
        }
        self.dirty.insert(at.0, block);
    }

    /// A copy of `old` under a new address, with the references that follow (the four cases of `format/08 §8.3`).
    fn cow(&mut self, tree: u64, old: &TreeBlock, is_root: bool) -> Result<Logical> {
        let (old_at, level) = (Logical(old.header().bytenr.get()), old.level());
        let at = self.copy_block(tree, old)?;
        if self.may_be_shared(tree, old, is_root) {
            self.move_references(tree, old)?;
        }
        self.count_blocks(tree, -1);
        self.drop_block_ref(tree, old_at, level)?;
        Ok(at)
    }

    /// A copy of `block` under a new address, as a block of `tree`. What it points to gets no references.
    fn copy_block(&mut self, tree: u64, block: &TreeBlock) -> Result<Logical> {
        let first_key = if block.nritems() > 0 { block.key(0) } else { Key::MIN };
        let at = self.alloc_block(tree, block.level(), first_key)?;
        let mut copy = block.clone();
        let transid = self.transid;
        let header = copy.header_mut();
        header.bytenr = at.0.into();
        header.flags = header_flags::BACKREF_REV.into();
        header.owner = tree.into();
        header.generation = transid.into();
        self.put_dirty(at, Arc::new(copy));
        Ok(at)
    }

    /// A root node for the new tree `tree`: a copy of the root node of `source`, all below it shared.
    pub(super) fn share_root(&mut self, source: u64, tree: u64) -> Result<Logical> {
        let old_at = self.writable_root(source)?;
        let old = self.dirty[&old_at.0].clone();
        let at = self.copy_block(tree, &old)?;
        self.change_child_refs(&old, None, tree, 1)?;
        Ok(at)
    }

    pub(super) fn may_be_shared(&self, tree: u64, block: &TreeBlock, is_root: bool) -> bool {
        let header = block.header();
        let relocated = header.flags.get() & header_flags::RELOC != 0;
        let last_snapshot = match &self.trees[&tree].item {
            Some((_, item)) if objectid::is_fs_tree(tree) => item.last_snapshot.get(),
            _ => return relocated,
        };
        relocated || (!is_root && header.generation.get() <= last_snapshot)
    }

    /// What a possibly shared block points to gets the references that its copy or its other users need.
    fn move_references(&mut self, tree: u64, old: &TreeBlock) -> Result<()> {
        let (at, level) = (Logical(old.header().bytenr.get()), old.level());
        let (refs, full) = self.block_refs(at, level)?;
        let owned = old.header().owner.get() == tree;
        if refs > 1 && owned && !full {
            self.change_child_refs(old, Some(at), tree, 1)?;
            self.set_full_backref(at, level);
        } else if refs > 1 || full {
            self.change_child_refs(old, None, tree, 1)?;
        }
        if refs == 1 && full {
            self.change_child_refs(old, Some(at), tree, -1)?;
        }
        Ok(())
    }

    /// Notes that what the block at `at` points to is referenced by it, not by its tree.
    pub(super) fn set_full_backref(&mut self, at: Logical, level: u8) {
        let kind = ExtentKind::TreeBlock { level, first_key: Key::MIN };
        let nodesize = u64::from(self.nodesize());
        self.refs.set_full_backref(at, nodesize, kind);
    }

    /// Changes the count of references from `block` to all it points to: as references of the block at `parent`, or
    /// else of `tree`.
    pub(super) fn change_child_refs(
        &mut self,
        block: &TreeBlock,
        parent: Option<Logical>,
        tree: u64,
        delta: i64,
    ) -> Result<()> {
        if !block.is_leaf() {
            let back = match parent {
                Some(p) => BackRef::SharedBlock { parent: p.0 },
                None => BackRef::TreeBlock { root: tree },
            };
            for ptr in (0..block.nritems()).map(|slot| block.key_ptr(slot)) {
                self.change_block_ref(ptr.block, block.level() - 1, back, delta)?;
            }
            return Ok(());
        }
        for item in block.items().filter(|i| i.key.key_type == KeyType::EXTENT_DATA) {
            let extent = FileExtent::parse(item.data)
                .map_err(|v| Error::corrupt(v.rule.0, format!("{}: {}", item.key, v.reason)))?;
            let (Some((at, len)), Some(range)) = (extent.disk_extent(), extent.range()) else { continue };
            let back = match parent {
                Some(p) => BackRef::SharedData { parent: p.0 },
                None => BackRef::Data {
                    root: tree,
                    objectid: item.key.objectid,
                    offset: item.key.offset.wrapping_sub(range.offset.get()),
                },
            };
            self.gather_data_ref(at, len, back, delta)?;
        }
        Ok(())
    }

    /// Changes the count of one reference to a tree block; one without references is freed.
    pub(super) fn change_block_ref(
        &mut self,
        at: Logical,
        level: u8,
        back: BackRef,
        delta: i64,
    ) -> Result<()> {
        let nodesize = u64::from(self.nodesize());
        let kind = ExtentKind::TreeBlock { level, first_key: Key::MIN };
        if self.refs.add(at, nodesize, kind, back, delta) {
            self.dirty.remove(&at.0);
            self.space.free(&self.volume.store, at, nodesize)?;
        }
        Ok(())
    }

    /// Drops the reference of `tree` to a block that it no longer points to.
    pub(super) fn drop_block_ref(&mut self, tree: u64, at: Logical, level: u8) -> Result<()> {
        self.change_block_ref(at, level, BackRef::TreeBlock { root: tree }, -1)
    }

    /// Forgets a block of this transaction.
    pub(super) fn free_dirty_block(&mut self, tree: u64, at: Logical) -> Result<()> {
        let level = self.dirty_block(at).level();
        self.dirty.remove(&at.0);
        self.count_blocks(tree, -1);
        self.drop_block_ref(tree, at, level)
    }

    /// A new empty block of `tree`.
    pub(super) fn new_block(&mut self, tree: u64, level: u8, first_key: Key) -> Result<Logical> {
        let at = self.alloc_block(tree, level, first_key)?;
        let sb = &self.superblock;
        let chunk_tree_uuid = self.volume.chunk_tree_uuid;
        let header =
            TreeBlock::new_header(at, level, tree, self.transid, sb.metadata_fsid(), chunk_tree_uuid);
        let block = TreeBlock::empty(sb.nodesize.get() as usize, &header);
        self.put_dirty(at, Arc::new(block));
        Ok(at)
    }

    fn alloc_block(&mut self, tree: u64, level: u8, first_key: Key) -> Result<Logical> {
        let kind = if tree == objectid::CHUNK_TREE { SpaceKind::System } else { SpaceKind::Metadata };
        let nodesize = u64::from(self.nodesize());
        let allocated = match level {
            0 => self.alloc(kind, nodesize, nodesize),
            _ => self.alloc_node(kind, nodesize),
        };
        // It was for a change of a tree that is half made: an item without its data, a block without a parent.
        let at = self.note_failure(allocated)?;
        let extent = ExtentKind::TreeBlock { level, first_key };
        self.refs.create(at, nodesize, extent, BackRef::TreeBlock { root: tree });
        self.count_blocks(tree, 1);
        Ok(at)
    }

    /// In a new file system the nodes of all trees lie together: most changes copy some of each tree, and the extent items of
    /// what they free are in one leaf then.
    fn alloc_node(&mut self, kind: SpaceKind, nodesize: u64) -> Result<Logical> {
        let is_new = matches!(self.volume.policy, ChunkPolicy::Growing { .. });
        if is_new
            && kind != SpaceKind::System
            && self.refs.len() > FEW_BLOCKS
            && let Some(at) = self.space.alloc_node(self.kind_here(kind), nodesize)
        {
            return Ok(at);
        }
        self.alloc(kind, nodesize, nodesize)
    }

    pub(super) fn count_blocks(&mut self, tree: u64, delta: i64) {
        if let Some(open) = self.trees.get_mut(&tree) {
            open.blocks_delta += delta;
        }
    }

    /// Writes the oldest changed leaves to their place when too many are in memory. They stay this transaction's:
    /// no committed superblock reaches them, and they may be changed and written there again.
    pub(super) fn spill(&mut self) -> Result<()> {
        let budget = self.volume.dirty_budget / self.nodesize() as usize;
        if self.dirty.len() <= budget {
            return Ok(());
        }
        let (mut old, mut empty) = (Vec::new(), Vec::new());
        while self.dirty_leaves.len() > budget / 2 {
            let Some(at) = self.dirty_leaves.pop_front() else { break };
            match self.dirty.get(&at) {
                // Not yet what its tree may have on disk: it stays.
                Some(block) if block.nritems() == 0 => empty.push(at),
                Some(_) => old.push(at),
                None => {}
            }
        }
        self.dirty_leaves.extend(empty);
        old.sort_unstable();
        old.dedup();
        self.write_blocks(&old)?;
        for at in old {
            self.dirty.remove(&at);
        }
        Ok(())
    }
}
