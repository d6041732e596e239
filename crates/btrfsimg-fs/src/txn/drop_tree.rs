//! Dropping a tree that nothing refers to any more, in steps (`format/08 §8.9`).
//!
//! What only the tree uses is freed. A block that others use too keeps what it points to: where that was referenced in
//! the name of the tree, it is referenced by the block from then on (FULL_BACKREF). How far the drop is stands in the
//! ROOT_ITEM in the kernel's own way, so that the kernel can go on with it, and we with what the kernel began.

use std::sync::Arc;

use btrfsimg_ondisk::{BackRef, Key, Logical, ParentExpectation, RootItem, TreeBlock, objectid};
use rustc_hash::FxHashSet;

use super::Transaction;
use crate::block_store::child_expectation;
use crate::error::{Error, Result};
use crate::tree::Blocks;

/// The drop of one tree, over as many transactions as it takes.
pub struct TreeDrop {
    tree: u64,
    /// Shared nodes all below which is done: not to be walked again after a commit.
    converted: FxHashSet<u64>,
}

/// A node on the way down to where the drop is.
struct Node {
    at: Logical,
    block: Arc<TreeBlock>,
    /// The child that is next. Those before it are gone.
    slot: usize,
    full: bool,
}

impl Node {
    /// The reference by which it holds what it points to.
    fn reference(&self) -> BackRef {
        match self.full {
            true => BackRef::SharedBlock { parent: self.at.0 },
            false => BackRef::TreeBlock { root: self.block.header().owner.get() },
        }
    }

    fn child(&self, tree: u64) -> (Logical, ParentExpectation) {
        child_expectation(&self.block, self.slot, tree)
    }
}

/// How many extents may get other references before a step ends, and how many there were before it.
#[derive(Clone, Copy)]
struct Budget {
    start: usize,
    limit: usize,
}

impl Budget {
    fn is_spent(self, tx: &Transaction<'_>) -> bool {
        tx.refs.len().saturating_sub(self.start) >= self.limit
    }
}

impl TreeDrop {
    /// The drop of `tree`, from where its ROOT_ITEM says that it is.
    pub fn new(tree: u64) -> TreeDrop {
        TreeDrop { tree, converted: FxHashSet::default() }
    }

    /// The tree.
    pub fn tree(&self) -> u64 {
        self.tree
    }

    /// Drops a part: ends soon after the references of `limit` extents have changed (but does some in any case). Says
    /// whether the tree is gone, its ROOT_ITEM included. Until it is, nothing may change the tree.
    ///
    /// # Errors
    /// `Invalid` for a tree that is in use; ROOT-09 when there is none; as any change of a tree.
    pub fn step(&mut self, tx: &mut Transaction<'_>, limit: usize) -> Result<bool> {
        let budget = Budget { start: tx.refs.len(), limit: limit.max(1) };
        let mut path = self.resume(tx)?;
        let (root_at, root_level) = (path[0].at, path[0].block.level());
        let root_reference = path[0].full.then_some(BackRef::SharedBlock { parent: root_at.0 });
        if root_level == 0 {
            drop_leaf(tx, &path[0].block, root_at, path[0].full)?;
            path.clear();
        }
        while let Some(node) = path.last_mut() {
            if node.slot == node.block.nritems() {
                path.pop();
                if let Some(parent) = path.last_mut() {
                    drop_child(tx, parent)?;
                }
                continue;
            }
            if budget.is_spent(tx) {
                let (key, level) = (node.block.key(node.slot), node.block.level());
                self.save(tx, key, level)?;
                return Ok(false);
            }
            let (at, expect) = node.child(self.tree);
            let level = node.block.level() - 1;
            let (refs, full) = tx.block_refs(at, level)?;
            match refs {
                0 => return Err(unreferenced(at)),
                1 if level == 0 => {
                    let leaf = tx.block(at, &expect)?;
                    drop_leaf(tx, &leaf, at, full)?;
                    drop_child(tx, node)?;
                }
                1 => {
                    let block = tx.block(at, &expect)?;
                    path.push(Node { at, block, slot: 0, full });
                }
                _ => {
                    if self.convert(tx, at, expect, budget)? {
                        drop_child(tx, node)?;
                    }
                }
            }
        }
        let reference = root_reference.unwrap_or(BackRef::TreeBlock { root: self.tree });
        tx.change_block_ref(root_at, root_level, reference, -1)?;
        tx.remove_root_item(self.tree)?;
        Ok(true)
    }

    /// The nodes from the root down to where the drop is; a root that is a leaf alone.
    fn resume(&self, tx: &mut Transaction<'_>) -> Result<Vec<Node>> {
        let item = *self.item(tx)?;
        if item.refs.get() != 0 {
            return Err(Error::Invalid(format!("subvolume {} is in use", self.tree)));
        }
        let root = tx.trees[&self.tree].root;
        let (progress, drop_level) = (item.drop_progress.get(), item.drop_level);
        let begun = progress.objectid != 0;
        if begun && (drop_level == 0 || drop_level > root.level) {
            let reason = format!("invalid drop level, have {drop_level} expect [1, {}]", root.level);
            return Err(Error::corrupt("ROOT-05", reason));
        }
        let mut path: Vec<Node> = Vec::with_capacity(usize::from(root.level) + 1);
        let (mut at, mut expect) = (root.logical, root.expectation());
        loop {
            let block = tx.block(at, &expect)?;
            let level = block.level();
            let (refs, full) = tx.block_refs(at, level)?;
            if refs != 1 {
                let reason = format!("block {at} of a tree that is dropped has {refs} references, expect 1");
                return Err(Error::corrupt("XR-01", reason));
            }
            let slot = if begun { block.child_slot(&progress) } else { 0 };
            path.push(Node { at, block, slot, full });
            if !begun || level <= drop_level {
                return Ok(path);
            }
            (at, expect) = path[path.len() - 1].child(self.tree);
        }
    }

    fn item<'t>(&self, tx: &'t mut Transaction<'_>) -> Result<&'t mut RootItem> {
        let tree = self.tree;
        tx.root_item_mut(tree)?
            .ok_or_else(|| Error::Invalid(format!("tree {} cannot be dropped", objectid::Printed(tree))))
    }

    fn save(&self, tx: &mut Transaction<'_>, key: Key, level: u8) -> Result<()> {
        let item = self.item(tx)?;
        (item.drop_progress, item.drop_level) = (key.into(), level);
        Ok(())
    }

    /// Has the blocks of the tree's own in a subtree that others use too refer to what they point to by themselves.
    /// Each block is sound before and after, so that it may end between any two. Says whether all is done.
    fn convert(
        &mut self,
        tx: &mut Transaction<'_>,
        at: Logical,
        expect: ParentExpectation,
        budget: Budget,
    ) -> Result<bool> {
        let mut path: Vec<Node> = self.convert_block(tx, at, &expect)?.into_iter().collect();
        while let Some(node) = path.last_mut() {
            if node.slot == node.block.nritems() {
                self.converted.insert(node.at.0);
                path.pop();
                continue;
            }
            if budget.is_spent(tx) {
                return Ok(false);
            }
            let (at, expect) = node.child(self.tree);
            node.slot += 1;
            path.extend(self.convert_block(tx, at, &expect)?);
        }
        Ok(true)
    }

    /// Converts one block. The node whose children are next, if there are any to look at: blocks of other trees hold
    /// none of ours.
    fn convert_block(
        &mut self,
        tx: &mut Transaction<'_>,
        at: Logical,
        expect: &ParentExpectation,
    ) -> Result<Option<Node>> {
        let level = expect.level.unwrap_or(0);
        if self.converted.contains(&at.0) || expect.generation.is_some_and(|g| g <= self.born(tx)) {
            return Ok(None);
        }
        let (refs, full) = tx.block_refs(at, level)?;
        if refs == 0 {
            return Err(unreferenced(at));
        }
        if level == 0 && full {
            return Ok(None);
        }
        let block = tx.block(at, expect)?;
        let owner = block.header().owner.get();
        if owner != self.tree {
            return Ok(None);
        }
        if !full {
            tx.change_child_refs(&block, Some(at), owner, 1)?;
            tx.change_child_refs(&block, None, owner, -1)?;
            tx.set_full_backref(at, level);
        }
        Ok((level > 0).then_some(Node { at, block, slot: 0, full: true }))
    }

    /// The transaction up to which all blocks are older than the tree, so no block of its own is among them.
    fn born(&self, tx: &Transaction<'_>) -> u64 {
        tx.trees.get(&self.tree).and_then(|open| open.item.as_ref()).map_or(0, |(key, _)| key.offset)
    }
}

/// Drops what a leaf that only this tree uses refers to.
fn drop_leaf(tx: &mut Transaction<'_>, leaf: &TreeBlock, at: Logical, full: bool) -> Result<()> {
    tx.change_child_refs(leaf, full.then_some(at), leaf.header().owner.get(), -1)
}

/// Drops a node's reference to its next child, and goes on to the one after it.
fn drop_child(tx: &mut Transaction<'_>, node: &mut Node) -> Result<()> {
    let child = node.block.key_ptr(node.slot).block;
    tx.change_block_ref(child, node.block.level() - 1, node.reference(), -1)?;
    node.slot += 1;
    Ok(())
}

fn unreferenced(at: Logical) -> Error {
    Error::corrupt("XR-01", format!("block {at} has 0 references, expect more"))
}
