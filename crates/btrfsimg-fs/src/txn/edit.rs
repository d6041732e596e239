//! Insert, replace and remove items; splits and merges (`format/08 §8.2`).

use btrfsimg_ondisk::{
    ITEM_HEADER_LEN, Key, KeyPtr, Logical, leaf_data_size, max_item_size, max_key_ptrs, objectid,
};

use super::batch::inode_start;
use super::cow::Step;
use super::{ItemBatch, Transaction};
use crate::block_store::child_expectation;
use crate::error::{Error, Result};
use crate::tree::{Blocks as _, Cursor};

impl Transaction<'_> {
    /// Inserts items, which are in key order and none of which exists: one descent for each leaf, one move for each
    /// run between two existing items.
    ///
    /// # Errors
    /// `Exists` when a key is there already; `NoSpace`; `Corrupt`; `Io`.
    pub fn insert_batch(&mut self, tree: u64, batch: &ItemBatch) -> Result<()> {
        let mut done = 0;
        while done < batch.len() {
            done += self.insert_some(tree, batch, done)?;
            self.spill()?;
        }
        // Copies of shared leaves may have left many.
        if objectid::is_fs_tree(tree) { self.bound_refs() } else { Ok(()) }
    }

    /// Inserts one item.
    ///
    /// # Errors
    /// As [`Transaction::insert_batch`].
    pub fn insert(&mut self, tree: u64, key: Key, data: &[u8]) -> Result<()> {
        let mut batch = ItemBatch::new();
        batch.push(key, data);
        self.insert_batch(tree, &batch)
    }

    /// Inserts the items from `from` on that go into one leaf, or makes room. Says how many went in.
    fn insert_some(&mut self, tree: u64, batch: &ItemBatch, from: usize) -> Result<usize> {
        let key = batch.key(from);
        let path = self.path_to(tree, &key)?;
        let leaf_step = *path.last().expect("a path ends at a leaf");
        let upper = self.upper_bound(&path);
        let leaf = self.dirty_block(leaf_step.at);
        let slot = leaf_step.slot;
        let bound = if slot < leaf.nritems() { Some(leaf.key(slot)) } else { upper };
        if bound == Some(key) {
            return Err(Error::Exists(format!("item {key} of tree {}", objectid::Printed(tree))));
        }
        let run = batch.run_below(from, bound);
        let (fitting, whole) = batch.whole_inodes(from, run, leaf.leaf_free());
        let at_end = slot == leaf.nritems() && slot > 0;
        if fitting > 0 && (whole || !at_end) {
            self.put_items(leaf_step, batch, from..from + fitting);
            if slot == 0 {
                self.fix_first_keys(&path);
            }
            return Ok(fitting);
        }
        if batch.leaf_bytes(from, 1) > max_item_size(self.nodesize() as usize) + ITEM_HEADER_LEN {
            return Err(Error::Invalid(format!("item {key} is larger than a leaf")));
        }
        if at_end {
            let start = inode_start(slot, |i| if i < slot { leaf.key(i) } else { key });
            if start == 0 || start == slot {
                return self.append_leaf(tree, &path, batch, from..from + run);
            }
            self.split_leaf(tree, &path, start)?;
            return Ok(0);
        }
        if slot == 0 && self.dirty_block(leaf_step.at).nritems() == 1 {
            return self.put_before(tree, &path, batch, from..from + run);
        }
        let bulk = slot > 0 && batch.leaf_bytes(from, run) > leaf_data_size(self.nodesize() as usize) / 2;
        let split_at = if bulk { slot } else { self.middle(leaf_step.at) };
        let leaf = self.dirty_block(leaf_step.at);
        let start = inode_start(split_at, |i| leaf.key(i));
        self.split_leaf(tree, &path, if start > 0 { start } else { split_at })?;
        Ok(0)
    }

    fn put_items(&mut self, step: Step, batch: &ItemBatch, range: std::ops::Range<usize>) {
        self.dirty_block_mut(step.at).insert_items(step.slot, batch.range(range));
    }

    /// Puts as many of the items as fit into a new leaf right of the one that `path` ends in.
    fn append_leaf(
        &mut self,
        tree: u64,
        path: &[Step],
        batch: &ItemBatch,
        items: std::ops::Range<usize>,
    ) -> Result<usize> {
        let key = batch.key(items.start);
        let at = self.new_block(tree, 0, key)?;
        let (count, _) = batch.whole_inodes(items.start, items.len(), self.dirty_block(at).leaf_free());
        self.put_items(Step { at, slot: 0 }, batch, items.start..items.start + count);
        self.insert_child(tree, path, path.len() - 1, KeyPtr { key, block: at, generation: self.transid })?;
        Ok(count)
    }

    /// Puts as many of the items as fit into the leaf that `path` ends in, whose only item goes into a new leaf to the right.
    fn put_before(
        &mut self,
        tree: u64,
        path: &[Step],
        batch: &ItemBatch,
        items: std::ops::Range<usize>,
    ) -> Result<usize> {
        let step = *path.last().expect("a path ends at a leaf");
        let key = self.dirty_block(step.at).key(0);
        let right = self.split_block(tree, step.at, 0, key)?;
        let count = batch.fitting(items.start, items.len(), self.dirty_block(step.at).leaf_free());
        self.put_items(step, batch, items.start..items.start + count);
        self.fix_first_keys(path);
        self.insert_child(
            tree,
            path,
            path.len() - 1,
            KeyPtr { key, block: right, generation: self.transid },
        )?;
        Ok(count)
    }

    /// The slot that halves a leaf by bytes.
    fn middle(&self, at: Logical) -> usize {
        let leaf = self.dirty_block(at);
        let (n, total) = (leaf.nritems(), leaf.leaf_used(0..leaf.nritems()));
        (1..n).find(|&slot| leaf.leaf_used(0..slot) * 2 >= total).unwrap_or(n.saturating_sub(1))
    }

    /// Moves the items from `slot` on into a new leaf to the right.
    fn split_leaf(&mut self, tree: u64, path: &[Step], slot: usize) -> Result<()> {
        let at = path.last().expect("a path ends at a leaf").at;
        let key = self.dirty_block(at).key(slot);
        let right = self.split_block(tree, at, slot, key)?;
        self.insert_child(tree, path, path.len() - 1, KeyPtr { key, block: right, generation: self.transid })
    }

    fn split_block(&mut self, tree: u64, at: Logical, slot: usize, key: Key) -> Result<Logical> {
        let level = self.dirty_block(at).level();
        let right_at = self.new_block(tree, level, key)?;
        let mut right = self.dirty_block(right_at).clone();
        self.dirty_block_mut(at).split_into(slot, &mut right);
        *self.dirty_block_mut(right_at) = right;
        Ok(right_at)
    }

    /// Adds a pointer right of the block at `path[depth]`, in its parent; splits parents that are full.
    fn insert_child(&mut self, tree: u64, path: &[Step], depth: usize, ptr: KeyPtr) -> Result<()> {
        let Some(above) = depth.checked_sub(1) else { return self.grow_root(tree, path[0].at, ptr) };
        let Step { at, slot } = path[above];
        let node = self.dirty_block(at);
        let appends = slot + 1 == node.nritems();
        let is_full = if appends { node.nritems() >= self.node_fill() } else { node.node_is_full() };
        if !is_full {
            self.dirty_block_mut(at).insert_key_ptr(slot + 1, ptr);
            return Ok(());
        }
        let (n, level) = (node.nritems(), node.level());
        let right = if appends {
            let right = self.new_block(tree, level, ptr.key)?;
            self.dirty_block_mut(right).insert_key_ptr(0, ptr);
            right
        } else {
            let middle = n / 2;
            let key = self.dirty_block(at).key(middle);
            let right = self.split_block(tree, at, middle, key)?;
            if slot < middle {
                self.dirty_block_mut(at).insert_key_ptr(slot + 1, ptr);
            } else {
                self.dirty_block_mut(right).insert_key_ptr(slot + 1 - middle, ptr);
            }
            right
        };
        let key = self.dirty_block(right).key(0);
        self.insert_child(tree, path, above, KeyPtr { key, block: right, generation: self.transid })
    }

    /// How many children a node gets that is filled from left to right: the rest is for what is inserted later, so that
    /// a small change splits no node.
    fn node_fill(&self) -> usize {
        let capacity = max_key_ptrs(self.nodesize() as usize);
        capacity - capacity / 32
    }

    /// A new root above the old one and its new sibling.
    fn grow_root(&mut self, tree: u64, old: Logical, ptr: KeyPtr) -> Result<()> {
        let block = self.dirty_block(old);
        let (level, key) = (block.level() + 1, block_key(block, ptr.key));
        if level >= btrfsimg_ondisk::MAX_LEVEL {
            return Err(Error::Invalid(format!(
                "tree {} is as high as a tree can be",
                objectid::Printed(tree)
            )));
        }
        let at = self.new_block(tree, level, key)?;
        let root = self.dirty_block_mut(at);
        let generation = root.header().generation.get();
        root.insert_key_ptr(0, KeyPtr { key, block: old, generation });
        root.insert_key_ptr(1, ptr);
        self.set_root(tree, at, level);
        Ok(())
    }

    /// Makes each parent's key the first key of its child, from the leaf up.
    fn fix_first_keys(&mut self, path: &[Step]) {
        for pair in path.windows(2).rev() {
            let key = self.dirty_block(pair[1].at).key(0);
            let Step { at, slot } = pair[0];
            let ptr = self.dirty_block(at).key_ptr(slot);
            if ptr.key == key {
                return;
            }
            self.dirty_block_mut(at).set_key_ptr(slot, KeyPtr { key, ..ptr });
            if slot > 0 {
                return;
            }
        }
    }

    /// Gives the item at `key`, which exists, new data of any length.
    ///
    /// # Errors
    /// `Corrupt` when there is no such item; `NoSpace`; `Io`.
    pub fn replace(&mut self, tree: u64, key: Key, data: &[u8]) -> Result<()> {
        if data.len() > max_item_size(self.nodesize() as usize) {
            return Err(Error::Invalid(format!("item {key} is larger than a leaf")));
        }
        loop {
            let path = self.path_to(tree, &key)?;
            let Step { at, slot } = *path.last().expect("a path ends at a leaf");
            let leaf = self.dirty_block(at);
            let n = leaf.nritems();
            if slot >= n || leaf.key(slot) != key {
                return Err(missing(tree, key));
            }
            if leaf.leaf_free() + leaf.item(slot).data.len() >= data.len() {
                self.dirty_block_mut(at).replace_item(slot, data);
                return Ok(());
            }
            // It keeps its place, so that the nodes above stay right; the last one goes into a leaf of its own.
            self.dirty_block_mut(at).replace_item(slot, &[]);
            let split_at = if slot > 0 && slot + 1 == n { slot } else { self.middle(at) };
            self.split_leaf(tree, &path, split_at)?;
        }
    }

    /// Removes the item at `key`, which exists.
    ///
    /// # Errors
    /// `Corrupt` when there is no such item; `NoSpace`; `Io`.
    pub fn remove(&mut self, tree: u64, key: Key) -> Result<()> {
        if self.remove_range(tree, key, key)? { Ok(()) } else { Err(missing(tree, key)) }
    }

    /// Removes all items with keys in `from..=to`. Says whether there were any. Leaves all of whose items go are not copied
    /// for it, so that removing much needs little space.
    ///
    /// # Errors
    /// `NoSpace`; `Corrupt`; `Io`.
    pub fn remove_range(&mut self, tree: u64, from: Key, to: Key) -> Result<bool> {
        let mut any = false;
        while let Some(first) = Cursor::at_or_after(self, tree, &from)?.map(|c| c.key()).filter(|k| *k <= to)
        {
            any = true;
            if self.remove_whole_leaves(tree, &first, &to)? {
                continue;
            }
            let path = self.path_to(tree, &first)?;
            let Step { at, slot } = *path.last().expect("a path ends at a leaf");
            let leaf = self.dirty_block(at);
            let end = leaf.search(&to).map_or_else(|s| s, |s| s + 1);
            self.dirty_block_mut(at).remove_items(slot..end);
            self.after_removal(tree, &path)?;
        }
        // Not in between: a leaf that holds a part of what goes is nothing that may be on disk.
        self.spill()?;
        if objectid::is_fs_tree(tree) {
            self.with_reserve(Self::bound_refs)?;
        }
        Ok(any)
    }

    /// Takes the leaves from the one that begins with `first` on, as far as all their keys are in `..=to`, out of their
    /// parent. Says whether there were any. None where a leaf may be shared: then what it points to needs the references of a copy.
    fn remove_whole_leaves(&mut self, tree: u64, first: &Key, to: &Key) -> Result<bool> {
        let Some(path) = self.path_above_leaf(tree, first)? else { return Ok(false) };
        let Step { at: parent, slot } = *path.last().expect("a path is not empty");
        let node = self.dirty_block(parent);
        let n = node.nritems();
        let beyond = self.upper_bound(&path);
        let next_key = |slot: usize| if slot + 1 < n { Some(node.key(slot + 1)) } else { beyond };
        if node.key(slot) < *first {
            return Ok(false);
        }
        let whole = (slot..n).take_while(|&slot| next_key(slot).is_some_and(|key| key <= *to)).count();
        let mut done = 0;
        while done < whole {
            let (at, expect) = child_expectation(self.dirty_block(parent), slot, tree);
            // Other trees share nothing: their leaves go unread.
            if objectid::is_fs_tree(tree) {
                let leaf = self.block(at, &expect)?;
                if self.may_be_shared(tree, &leaf, false) {
                    break;
                }
            }
            self.dirty_block_mut(parent).remove_key_ptr(slot);
            self.dirty.remove(&at.0);
            self.count_blocks(tree, -1);
            self.drop_block_ref(tree, at, 0)?;
            done += 1;
        }
        if done > 0 {
            if self.dirty_block(parent).nritems() == 0 {
                self.remove_block(tree, &path)?;
            } else {
                if slot == 0 {
                    self.fix_first_keys(&path);
                }
                self.merge_small(tree, &path)?;
            }
        }
        Ok(done > 0)
    }

    /// Keeps the tree in shape after items went from the leaf that `path` ends in.
    fn after_removal(&mut self, tree: u64, path: &[Step]) -> Result<()> {
        let Step { at, .. } = *path.last().expect("a path ends at a leaf");
        let leaf = self.dirty_block(at);
        if leaf.nritems() == 0 {
            return self.remove_block(tree, path);
        }
        self.fix_first_keys(path);
        self.merge_small(tree, path)
    }

    /// Takes the empty block that `path` ends in out of its parent. An empty root stays, as a leaf.
    fn remove_block(&mut self, tree: u64, path: &[Step]) -> Result<()> {
        let (Step { at, .. }, parents) =
            path.split_last().map(|(l, p)| (*l, p)).expect("a path is not empty");
        let Some(parent) = parents.last() else {
            if self.dirty_block(at).level() > 0 {
                self.free_dirty_block(tree, at)?;
                let leaf = self.new_block(tree, 0, Key::MIN)?;
                self.set_root(tree, leaf, 0);
            }
            return Ok(());
        };
        self.free_dirty_block(tree, at)?;
        self.dirty_block_mut(parent.at).remove_key_ptr(parent.slot);
        if self.dirty_block(parent.at).nritems() == 0 {
            return self.remove_block(tree, parents);
        }
        if parent.slot == 0 {
            self.fix_first_keys(parents);
        }
        self.merge_small(tree, parents)
    }

    /// Makes the only child of the root the root, as often as that holds.
    fn lower_root(&mut self, tree: u64) -> Result<()> {
        loop {
            let at = self.trees[&tree].root.logical;
            let Some(block) = self.dirty.get(&at.0).filter(|b| !b.is_leaf() && b.nritems() == 1) else {
                return Ok(());
            };
            let level = block.level() - 1;
            let child = self.writable_child(tree, at, 0)?;
            self.set_root(tree, child, level);
            self.free_dirty_block(tree, at)?;
        }
    }

    /// Joins each small block of `path`, in which something was removed, with a neighbour under the same parent where both
    /// fit in one: leaves of less than a third, nodes of less than a quarter, as kernels do. Leaves of subvolumes already
    /// below half, and with either neighbour: an image full of small files, half of them removed, then takes more anew. In
    /// the trees that the accounting changes, halves that are joined and split again would never settle; after some passes
    /// none of their blocks is joined.
    fn merge_small(&mut self, tree: u64, path: &[Step]) -> Result<()> {
        let joins = self.joins || objectid::is_fs_tree(tree);
        for depth in (1..path.len()).rev() {
            if joins && self.is_small(tree, path[depth].at) {
                self.merge_children(tree, path[depth - 1])?;
            }
        }
        self.lower_root(tree)
    }

    fn is_small(&self, tree: u64, at: Logical) -> bool {
        let (block, nodesize) = (self.dirty_block(at), self.nodesize() as usize);
        let share = if objectid::is_fs_tree(tree) { 2 } else { 3 };
        match block.is_leaf() {
            true => block.leaf_used(0..block.nritems()) < leaf_data_size(nodesize) / share,
            false => block.nritems() < max_key_ptrs(nodesize) / 4,
        }
    }

    /// Joins the child at `parent` with the one behind it; with the one before it where there is none behind, or where that
    /// one does not fit and the tree is a subvolume.
    fn merge_children(&mut self, tree: u64, parent: Step) -> Result<()> {
        let n = self.dirty_block(parent.at).nritems();
        let behind = (parent.slot + 1 < n).then_some(parent.slot);
        let before = parent.slot.checked_sub(1).filter(|_| behind.is_none() || objectid::is_fs_tree(tree));
        for left_slot in [behind, before].into_iter().flatten() {
            if self.siblings_fit(tree, parent.at, left_slot)? {
                let left = self.writable_child(tree, parent.at, left_slot)?;
                let right = self.writable_child(tree, parent.at, left_slot + 1)?;
                let block = self.dirty_block(right).clone();
                if self.dirty_block_mut(left).try_append(&block) {
                    self.free_dirty_block(tree, right)?;
                    self.dirty_block_mut(parent.at).remove_key_ptr(left_slot + 1);
                }
                break;
            }
        }
        Ok(())
    }

    fn siblings_fit(&self, tree: u64, parent: Logical, left_slot: usize) -> Result<bool> {
        let (node, nodesize) = (self.dirty_block(parent), self.nodesize() as usize);
        let (mut used, mut pointers) = (0, 0);
        for slot in [left_slot, left_slot + 1] {
            let (at, expect) = child_expectation(node, slot, tree);
            let block = self.block(at, &expect)?;
            match block.is_leaf() {
                true => used += block.leaf_used(0..block.nritems()),
                false => pointers += block.nritems(),
            }
        }
        Ok(used <= leaf_data_size(nodesize) && pointers <= max_key_ptrs(nodesize))
    }

    fn set_root(&mut self, tree: u64, at: Logical, level: u8) {
        let transid = self.transid;
        let open = self.trees.get_mut(&tree).expect("a tree that changes is open");
        (open.root.logical, open.root.level, open.root.generation, open.changed) = (at, level, transid, true);
    }
}

/// The first key of a block; of an empty one (being filled from the left), `below`.
fn block_key(block: &btrfsimg_ondisk::TreeBlock, below: Key) -> Key {
    if block.nritems() > 0 { block.key(0) } else { below }
}

fn missing(tree: u64, key: Key) -> Error {
    Error::corrupt("LEAF-07", format!("tree {} has no item {key}", objectid::Printed(tree)))
}
