//! The trees of a transaction and their ROOT_ITEMs (`format/02 §2.8`).

use btrfsimg_ondisk::{Key, Logical, RootItem, objectid};
use zerocopy::IntoBytes;

use super::{OpenTree, Transaction};
use crate::error::{Error, Result};
use crate::tree::{Cursor, TreeRoot, required_root, root_item};

impl Transaction<'_> {
    /// Loads the root of `tree`, if it is not yet.
    pub(super) fn open_tree(&mut self, tree: u64) -> Result<()> {
        if self.trees.contains_key(&tree) {
            return Ok(());
        }
        let item = match tree {
            objectid::ROOT_TREE | objectid::CHUNK_TREE => None,
            _ => root_item(self, tree)?,
        };
        if let Some((key, _)) = &item {
            self.check_only_root_item(*key)?;
        }
        let root = required_root(self, tree)?;
        self.trees.insert(tree, OpenTree { root, item, changed: false, blocks_delta: 0 });
        Ok(())
    }

    /// ROOT-09 when there is a root item before `key` that is the same tree's: who reads that one would see blocks that are
    /// given back.
    fn check_only_root_item(&self, key: Key) -> Result<()> {
        let (tree, first) = (key.objectid, Key { offset: 0, ..key });
        match Cursor::at_or_after(self, objectid::ROOT_TREE, &first)?.map(|cursor| cursor.item().key) {
            Some(found) if found < key => {
                let reason = format!("tree {} has two root items", objectid::Printed(tree));
                Err(Error::corrupt("ROOT-09", reason))
            }
            _ => Ok(()),
        }
    }

    /// Makes a new tree: one empty leaf, and `item` (its root's place is filled in) at `key` in the root tree.
    ///
    /// # Errors
    /// `NoSpace`; as any change of a tree.
    pub fn create_tree(&mut self, tree: u64, item: Option<(Key, RootItem)>) -> Result<()> {
        let unset = TreeRoot { tree, logical: Logical(0), level: 0, generation: self.transid };
        if let Some((key, item)) = &item {
            self.insert(objectid::ROOT_TREE, *key, item.as_bytes())?;
        }
        self.trees.insert(tree, OpenTree { root: unset, item, changed: true, blocks_delta: 0 });
        let logical = self.new_block(tree, 0, Key::MIN)?;
        self.trees.get_mut(&tree).expect("inserted above").root.logical = logical;
        Ok(())
    }

    /// Makes the tree `key.objectid` a snapshot of the tree `source`: its root node is a copy, all below is shared.
    /// Its ROOT_ITEM, at `key`, is that of `source` as it is now, with what `change` changes.
    ///
    /// # Errors
    /// `NotFound` when `source` is no tree with a ROOT_ITEM; as any change of a tree.
    pub fn create_snapshot(
        &mut self,
        source: u64,
        key: Key,
        change: impl FnOnce(&mut RootItem),
    ) -> Result<()> {
        let (tree, transid, nodesize) = (key.objectid, self.transid, i64::from(self.nodesize()));
        self.open_tree(source)?;
        let open = self.trees.get_mut(&source).expect("opened above");
        let Some((_, item)) = &mut open.item else {
            return Err(Error::NotFound(format!("subvolume {source}")));
        };
        item.last_snapshot = transid.into();
        open.changed = true;
        let mut copy = *item;
        let blocks = open.blocks_delta.saturating_mul(nodesize);
        copy.bytes_used = copy.bytes_used.get().saturating_add_signed(blocks).into();
        change(&mut copy);
        self.insert(objectid::ROOT_TREE, key, copy.as_bytes())?;
        let logical = self.share_root(source, tree)?;
        let root = TreeRoot { tree, logical, level: self.trees[&source].root.level, generation: transid };
        let open = OpenTree { root, item: Some((key, copy)), changed: true, blocks_delta: 0 };
        self.trees.insert(tree, open);
        Ok(())
    }

    /// Takes the ROOT_ITEM of a tree that has no blocks any more out of the root tree.
    pub(super) fn remove_root_item(&mut self, tree: u64) -> Result<()> {
        if let Some(open) = self.trees.remove(&tree)
            && let Some((key, _)) = open.item
        {
            self.remove(objectid::ROOT_TREE, key)?;
        }
        Ok(())
    }

    /// Bytes of the blocks of a tree that this transaction has opened; 0 of others.
    pub(crate) fn tree_bytes(&self, tree: u64) -> u64 {
        let Some(open) = self.trees.get(&tree) else { return 0 };
        let before = open.item.as_ref().map_or(0, |(_, item)| item.bytes_used.get());
        before.saturating_add_signed(open.blocks_delta.saturating_mul(i64::from(self.nodesize())))
    }

    /// The ROOT_ITEM of `tree` as it will be, for its caller to change flags and the like.
    ///
    /// # Errors
    /// ROOT-09 when there is no such tree.
    pub fn root_item_mut(&mut self, tree: u64) -> Result<Option<&mut RootItem>> {
        self.open_tree(tree)?;
        let open = self.trees.get_mut(&tree).expect("opened above");
        open.changed = true;
        Ok(open.item.as_mut().map(|(_, item)| item))
    }

    /// Puts the ROOT_ITEM of `tree` as it is now into the root tree, where what looks it up in this transaction finds it.
    /// Else that is done at commit.
    ///
    /// # Errors
    /// As any change of a tree.
    pub fn store_root_item(&mut self, tree: u64) -> Result<()> {
        match self.trees.get(&tree).and_then(|open| open.item) {
            Some((key, item)) => self.replace(objectid::ROOT_TREE, key, item.as_bytes()),
            None => Ok(()),
        }
    }

    /// Notes that inodes of a subvolume have changed.
    ///
    /// # Errors
    /// ROOT-09 when there is no such tree.
    pub fn touch_subvolume(&mut self, tree: u64) -> Result<()> {
        let (transid, now) = (self.transid, self.now);
        if let Some(item) = self.root_item_mut(tree)? {
            item.ctransid = transid.into();
            item.ctime = now;
        }
        Ok(())
    }

    /// Writes the ROOT_ITEMs of changed trees into the root tree. Says whether any differed from what it has.
    pub(super) fn write_root_items(&mut self) -> Result<bool> {
        let nodesize = u64::from(self.nodesize());
        let mut items = Vec::new();
        for open in self.trees.values_mut().filter(|o| o.changed) {
            let Some((key, item)) = &mut open.item else { continue };
            item.bytenr = open.root.logical.0.into();
            item.level = open.root.level;
            item.generation = open.root.generation.into();
            item.generation_v2 = item.generation;
            let blocks = std::mem::take(&mut open.blocks_delta);
            let bytes =
                item.bytes_used.get().saturating_add_signed(blocks.saturating_mul(nodesize.cast_signed()));
            item.bytes_used = bytes.into();
            items.push((*key, *item));
        }
        let mut changed = false;
        for (key, item) in items {
            let same =
                crate::tree::lookup(self, objectid::ROOT_TREE, &key)?.as_deref() == Some(item.as_bytes());
            if !same {
                self.replace(objectid::ROOT_TREE, key, item.as_bytes())?;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// The root of a tree as it is now, if it exists.
    pub(super) fn current_root(&self, tree: u64) -> Result<Option<TreeRoot>> {
        use crate::tree::Blocks as _;
        self.root(tree)
    }
}
