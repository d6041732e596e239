//! Search and walk in B-trees, the same for an open file system and for a transaction's view of it.

use std::sync::Arc;

use btrfsimg_ondisk::{
    BlockContext, Item, Key, KeyType, Logical, ParentExpectation, RootItem, TreeBlock, compat_ro, objectid,
};

use crate::block_store::{BlockStore, check_order, child_expectation};
use crate::error::{Error, Result};

/// Where a tree's root node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeRoot {
    /// The tree's id.
    pub tree: u64,
    /// The root node's address.
    pub logical: Logical,
    /// Its level.
    pub level: u8,
    /// Its generation.
    pub generation: u64,
}

impl TreeRoot {
    /// The root that a ROOT_ITEM of `tree` points to.
    pub fn of_item(tree: u64, item: &RootItem) -> TreeRoot {
        TreeRoot {
            tree,
            logical: Logical(item.bytenr.get()),
            level: item.level,
            generation: item.generation.get(),
        }
    }

    /// What the root node's block must be.
    pub fn expectation(&self) -> ParentExpectation {
        ParentExpectation {
            level: Some(self.level),
            generation: Some(self.generation),
            first_key: None,
            tree: Some(self.tree),
        }
    }
}

/// The tree that holds BLOCK_GROUP_ITEMs.
pub fn block_group_tree(compat_ro_flags: u64) -> u64 {
    if compat_ro_flags & compat_ro::BLOCK_GROUP_TREE != 0 {
        objectid::BLOCK_GROUP_TREE
    } else {
        objectid::EXTENT_TREE
    }
}

/// A source of tree blocks: the committed state, or a transaction's.
pub trait Blocks {
    /// The block at `logical`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    fn block(&self, logical: Logical, expect: &ParentExpectation) -> Result<Arc<TreeBlock>>;

    /// The root of `tree`, if there is such a tree.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    fn root(&self, tree: u64) -> Result<Option<TreeRoot>>;

    /// What block checks need.
    fn ctx(&self) -> &BlockContext;
}

impl Blocks for BlockStore {
    fn block(&self, logical: Logical, expect: &ParentExpectation) -> Result<Arc<TreeBlock>> {
        self.read_block(logical, expect)
    }

    fn root(&self, tree: u64) -> Result<Option<TreeRoot>> {
        let sb = self.superblock();
        let special = |logical: u64, level, generation: u64| TreeRoot {
            tree,
            logical: Logical(logical),
            level,
            generation,
        };
        Ok(match tree {
            objectid::ROOT_TREE => Some(special(sb.root.get(), sb.root_level, sb.generation.get())),
            objectid::CHUNK_TREE => {
                Some(special(sb.chunk_root.get(), sb.chunk_root_level, sb.chunk_root_generation.get()))
            }
            _ => root_item(self, tree)?.map(|(_, item)| TreeRoot::of_item(tree, &item)),
        })
    }

    fn ctx(&self) -> &BlockContext {
        BlockStore::ctx(self)
    }
}

/// The ROOT_ITEM of `tree` and its key: the last one, as a snapshot's offset is its transaction.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn root_item(blocks: &impl Blocks, tree: u64) -> Result<Option<(Key, RootItem)>> {
    let last = Key::new(tree, KeyType::ROOT_ITEM, u64::MAX);
    let Some(cursor) = Cursor::at_or_before(blocks, objectid::ROOT_TREE, &last)? else { return Ok(None) };
    let item = cursor.item();
    if (item.key.objectid, item.key.key_type) != (tree, KeyType::ROOT_ITEM) {
        return Ok(None);
    }
    Ok(Some((item.key, parse_root_item(&item)?)))
}

/// A ROOT_ITEM; ROOT-02 when it is none.
pub(crate) fn parse_root_item(item: &Item<'_>) -> Result<RootItem> {
    RootItem::parse(item.data)
        .ok_or_else(|| Error::corrupt("ROOT-02", format!("root item {} has an invalid size", item.key)))
}

/// The root of `tree`, which must exist.
///
/// # Errors
/// ROOT-09 when it does not.
pub fn required_root(blocks: &impl Blocks, tree: u64) -> Result<TreeRoot> {
    blocks.root(tree)?.ok_or_else(|| {
        let name = objectid::tree_name(tree).unwrap_or("subvolume");
        Error::corrupt("ROOT-09", format!("tree {} ({name}) is missing", objectid::Printed(tree)))
    })
}

/// A position at an item of a tree.
pub struct Cursor<'b, B> {
    blocks: &'b B,
    tree: u64,
    /// From the root down to the leaf.
    path: Vec<(Arc<TreeBlock>, usize)>,
}

impl<'b, B: Blocks> Cursor<'b, B> {
    /// At the first item whose key is not below `key`, if any.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn at_or_after(blocks: &'b B, tree: u64, key: &Key) -> Result<Option<Self>> {
        let mut cursor = Cursor::descend(blocks, tree, key)?;
        let (leaf, slot) = cursor.leaf();
        if slot < leaf.nritems() {
            return Ok(Some(cursor));
        }
        Ok(cursor.next_leaf()?.then_some(cursor))
    }

    /// At the last item whose key is not above `key`, if any.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn at_or_before(blocks: &'b B, tree: u64, key: &Key) -> Result<Option<Self>> {
        let mut cursor = Cursor::descend(blocks, tree, key)?;
        let (leaf, slot) = cursor.leaf();
        if slot < leaf.nritems() && leaf.key(slot) == *key {
            return Ok(Some(cursor));
        }
        Ok(cursor.previous()?.then_some(cursor))
    }

    /// To where `key` is or would be in its leaf; the slot may be one past the leaf's last.
    fn descend(blocks: &'b B, tree: u64, key: &Key) -> Result<Self> {
        let root = required_root(blocks, tree)?;
        let (mut at, mut expect) = (root.logical, root.expectation());
        let mut path = Vec::with_capacity(usize::from(root.level) + 1);
        loop {
            let block = blocks.block(at, &expect)?;
            if block.is_leaf() {
                let slot = block.search(key).unwrap_or_else(|slot| slot);
                path.push((block, slot));
                return Ok(Cursor { blocks, tree, path });
            }
            let slot = block.child_slot(key);
            (at, expect) = child_expectation(&block, slot, tree);
            path.push((block, slot));
        }
    }

    fn leaf(&self) -> (&TreeBlock, usize) {
        let (leaf, slot) = self.path.last().expect("a path ends at a leaf");
        (leaf, *slot)
    }

    /// The item here.
    pub fn item(&self) -> Item<'_> {
        let (leaf, slot) = self.leaf();
        leaf.item(slot)
    }

    /// The key here.
    pub fn key(&self) -> Key {
        let (leaf, slot) = self.leaf();
        leaf.key(slot)
    }

    /// Moves to the next item. Says whether there is one.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    #[expect(clippy::should_implement_trait, reason = "a cursor lends its items")]
    pub fn next(&mut self) -> Result<bool> {
        let (leaf, slot) = self.path.last_mut().expect("a path ends at a leaf");
        *slot += 1;
        if *slot < leaf.nritems() {
            return Ok(true);
        }
        self.next_leaf()
    }

    /// Moves to the item before. Says whether there is one.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn previous(&mut self) -> Result<bool> {
        loop {
            let (leaf, slot) = self.path.last_mut().expect("a path ends at a leaf");
            if *slot > 0 {
                *slot = (*slot - 1).min(leaf.nritems().saturating_sub(1));
                return Ok(leaf.nritems() > 0);
            }
            if !self.previous_leaf()? {
                return Ok(false);
            }
        }
    }

    fn next_leaf(&mut self) -> Result<bool> {
        let last = self.leaf_keys().map(|(_, last)| last);
        if !self.step(|slot, n| Some(slot + 1).filter(|s| *s < n), |_| 0)? {
            return Ok(false);
        }
        let Some((first, _)) = self.leaf_keys() else { return Ok(false) };
        check_order(last, first, Logical(self.leaf().0.header().bytenr.get()))?;
        Ok(true)
    }

    fn previous_leaf(&mut self) -> Result<bool> {
        let first = self.leaf_keys().map(|(first, _)| first);
        let at = Logical(self.leaf().0.header().bytenr.get());
        if !self.step(|slot, _| slot.checked_sub(1), TreeBlock::nritems)? {
            return Ok(false);
        }
        let last = self.leaf_keys().map(|(_, last)| last);
        first.map_or(Ok(()), |first| check_order(last, first, at))?;
        Ok(true)
    }

    /// The first and the last key of the leaf; an empty one is the root.
    fn leaf_keys(&self) -> Option<(Key, Key)> {
        let (leaf, _) = self.leaf();
        leaf.nritems().checked_sub(1).map(|last| (leaf.key(0), leaf.key(last)))
    }

    /// Moves to a neighbouring leaf: up to where `sideways` finds a slot, then down its near edge.
    fn step(
        &mut self,
        sideways: impl Fn(usize, usize) -> Option<usize>,
        near_edge: impl Fn(&TreeBlock) -> usize,
    ) -> Result<bool> {
        let turn =
            self.path.iter().rposition(|(b, slot)| !b.is_leaf() && sideways(*slot, b.nritems()).is_some());
        let Some(depth) = turn else { return Ok(false) };
        self.path.truncate(depth + 1);
        let (node, slot) = &mut self.path[depth];
        *slot = sideways(*slot, node.nritems()).expect("found just now");
        loop {
            let (node, slot) = self.path.last().expect("not empty");
            let (at, expect) = child_expectation(node, *slot, self.tree);
            let block = self.blocks.block(at, &expect)?;
            let edge = near_edge(&block);
            let is_leaf = block.is_leaf();
            self.path.push((block, if is_leaf { edge } else { edge.saturating_sub(usize::from(edge > 0)) }));
            if is_leaf {
                return Ok(true);
            }
        }
    }
}

/// The data of the item with exactly `key`.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn lookup(blocks: &impl Blocks, tree: u64, key: &Key) -> Result<Option<Vec<u8>>> {
    let cursor = Cursor::at_or_after(blocks, tree, key)?;
    Ok(cursor.filter(|c| c.key() == *key).map(|c| c.item().data.to_vec()))
}

/// Calls `each` with every item whose key is in `from..=to`, in order, until it returns `false`.
///
/// # Errors
/// `Corrupt`, `Io`, and what `each` returns.
pub fn walk_items(
    blocks: &impl Blocks,
    tree: u64,
    from: &Key,
    to: &Key,
    mut each: impl FnMut(Item<'_>) -> Result<bool>,
) -> Result<()> {
    let Some(mut cursor) = Cursor::at_or_after(blocks, tree, from)? else { return Ok(()) };
    while cursor.key() <= *to {
        if !each(cursor.item())? || !cursor.next()? {
            break;
        }
    }
    Ok(())
}
