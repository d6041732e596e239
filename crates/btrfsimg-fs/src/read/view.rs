//! Items in key order that go on behind faults.

use std::sync::{Arc, PoisonError};

use btrfsimg_ondisk::{
    BlockContext, FramedBlock, Item, Key, Logical, MAX_LEVEL, ParentExpectation, TreeBlock, Violation,
};

use super::Filesystem;
use crate::block_store::{check_order, child_expectation};
use crate::error::{Error, Result};
use crate::lookup::Items;
use crate::tree::TreeRoot;

/// A block as far as it can be read.
enum Page {
    /// Every check passed.
    Sound(Arc<TreeBlock>),
    /// A leaf whose frame is sound, some of whose items are not.
    Damaged(Logical, FramedBlock),
}

impl Page {
    fn nritems(&self) -> usize {
        match self {
            Page::Sound(block) => block.nritems(),
            Page::Damaged(_, block) => block.slots(),
        }
    }

    fn key(&self, slot: usize) -> Key {
        match self {
            Page::Sound(block) => block.key(slot),
            Page::Damaged(_, block) => block.key(slot).unwrap_or(Key::MAX),
        }
    }

    /// The first slot whose key is not below `key`.
    fn first_at_or_after(&self, key: &Key) -> usize {
        match self {
            Page::Sound(block) => block.search(key).unwrap_or_else(|slot| slot),
            Page::Damaged(..) => (0..self.nritems()).find(|&s| self.key(s) >= *key).unwrap_or(self.nritems()),
        }
    }

    /// The slot behind the last whose key is not above `key`.
    fn first_after(&self, key: &Key) -> usize {
        match self {
            Page::Sound(block) => block.search(key).map_or_else(|slot| slot, |slot| slot + 1),
            Page::Damaged(..) => (0..self.nritems()).rfind(|&s| self.key(s) <= *key).map_or(0, |s| s + 1),
        }
    }

    /// The node, unless it is a leaf.
    fn node(&self) -> Option<&Arc<TreeBlock>> {
        match self {
            Page::Sound(block) if !block.is_leaf() => Some(block),
            _ => None,
        }
    }
}

/// A block on the way down, and which of its slots are still to visit.
struct Level {
    page: Page,
    slots: std::ops::Range<usize>,
}

impl Filesystem {
    /// The block at `logical`; a leaf with bad items as far as it can be read. A salvage takes one of another
    /// generation where all else that the pointer says holds.
    fn page(&self, logical: Logical, expect: &ParentExpectation) -> Result<Page> {
        let fault = match (self.page_as(logical, expect), &self.stale) {
            (Err(fault @ Error::Corrupt(_)), Some(_)) => fault,
            (page, _) => return page,
        };
        let any_generation = ParentExpectation { generation: None, ..*expect };
        let Ok(page) = self.page_as(logical, &any_generation) else { return Err(fault) };
        if let Some(stale) = &self.stale {
            stale.lock().unwrap_or_else(PoisonError::into_inner).insert(logical, fault);
        }
        Ok(page)
    }

    fn page_as(&self, logical: Logical, expect: &ParentExpectation) -> Result<Page> {
        let fault = match self.store.read_block(logical, expect) {
            Ok(block) => return Ok(Page::Sound(block)),
            Err(e) => e,
        };
        if expect.level == Some(0) && matches!(fault, Error::Corrupt(_)) {
            return self.store.framed(logical, expect).map(|b| Page::Damaged(logical, b)).ok_or(fault);
        }
        Err(fault)
    }

    /// The root block of a tree, a leaf as far as it can be read: only whether it can.
    pub(super) fn page_of(&self, root: &TreeRoot) -> Result<()> {
        self.page(root.logical, &root.expectation()).map(drop)
    }

    /// The level below `at`, with the slots that may hold keys in `from..=to`.
    fn level(&self, at: Logical, expect: &ParentExpectation, from: &Key, to: &Key) -> Result<Level> {
        let page = self.page(at, expect)?;
        let slots = match page.node() {
            Some(node) => node.child_slot(from)..node.child_slot(to) + 1,
            None => page.first_at_or_after(from)..page.first_after(to),
        };
        Ok(Level { page, slots })
    }
}

/// The item in `slot` of a leaf, or its fault.
fn item_at<'p>(page: &'p Page, slot: usize, tree: u64, ctx: &BlockContext) -> Result<Item<'p>> {
    match page {
        Page::Sound(block) => Ok(block.item(slot)),
        Page::Damaged(logical, block) => block
            .item(slot, ctx)
            .unwrap_or_else(|| Err(Violation::new("LEAF-05", "no such slot")))
            .map_err(|v| Error::corrupt_block(tree, *logical, true, v)),
    }
}

impl Items for Filesystem {
    fn walk(
        &self,
        tree: u64,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(Result<Item<'_>>) -> Result<bool>,
    ) -> Result<()> {
        let root = self.tree_root(tree)?;
        let mut path = Vec::with_capacity(usize::from(MAX_LEVEL));
        path.push(self.level(root.logical, &root.expectation(), from, to)?);
        let mut last = None;
        while let Some(level) = path.last_mut() {
            let Some(slot) = level.slots.next() else {
                path.pop();
                continue;
            };
            let key = level.page.key(slot);
            if let Some(node) = level.page.node() {
                let (at, expect) = child_expectation(node, slot, tree);
                match check_order(last, key, at).and_then(|()| self.level(at, &expect, from, to)) {
                    Ok(below) => path.push(below),
                    Err(e) => {
                        last = last.max(Some(key));
                        if !each(Err(e))? {
                            return Ok(());
                        }
                    }
                }
                continue;
            }
            last = Some(key);
            if !each(item_at(&level.page, slot, tree, self.store.ctx()))? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn with_last(
        &self,
        tree: u64,
        from: &Key,
        to: &Key,
        found: &mut dyn FnMut(Item<'_>) -> Result<()>,
    ) -> Result<()> {
        let root = self.tree_root(tree)?;
        let mut path = vec![self.level(root.logical, &root.expectation(), from, to)?];
        while let Some(level) = path.last_mut() {
            let Some(slot) = level.slots.next_back() else {
                path.pop();
                continue;
            };
            let Some(node) = level.page.node() else {
                return found(item_at(&level.page, slot, tree, self.store.ctx())?);
            };
            let (at, expect) = child_expectation(node, slot, tree);
            let below = self.level(at, &expect, from, to)?;
            path.push(below);
        }
        Ok(())
    }

    fn context(&self) -> &BlockContext {
        self.store.ctx()
    }
}
