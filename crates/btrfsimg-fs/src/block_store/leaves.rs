//! The leaves of a tree in key order, behind faults too.

use std::ops::Range;

use btrfsimg_ondisk::{Key, Logical, MAX_LEVEL, ParentExpectation};
use rustc_hash::FxHashSet;

use super::{BlockStore, Page, Root, check_order};
use crate::error::{Error, Result};

/// A leaf, and which of its slots are wanted; or why there is none.
pub type Leaf<'p> = Result<(&'p Page, Range<usize>)>;

/// A block on the way down, and which of its slots are still to visit.
struct Level {
    page: Page,
    slots: Range<usize>,
}

impl BlockStore {
    /// Calls `each` with every leaf below `root`, of `tree`, that may hold keys in `from..=to`, and with the slots of it
    /// that may, until it returns `false`; with an error in the place of what cannot be read.
    ///
    /// # Errors
    /// Where the root cannot be read; what `each` returns.
    pub fn leaves(
        &self,
        tree: u64,
        root: &Root,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(Leaf<'_>) -> Result<bool>,
    ) -> Result<()> {
        let level = |at, expect: &ParentExpectation| {
            let page = self.page(at, expect)?;
            let slots = page.slots(from, to);
            Ok(Level { page, slots })
        };
        let mut path = Vec::with_capacity(usize::from(MAX_LEVEL));
        path.push(level(root.0, &root.1)?);
        let mut order = Order::default();
        while let Some(Level { page, slots }) = path.last_mut() {
            if page.is_leaf() {
                if !each(Ok((page, slots.clone())))? {
                    return Ok(());
                }
                path.pop();
                continue;
            }
            let Some((at, expect)) = slots.next().and_then(|slot| page.child(slot, tree)) else {
                path.pop();
                continue;
            };
            match order
                .before(at, &expect)
                .and_then(|()| level(at, &expect))
                .and_then(|l| order.of(at, &expect, l))
            {
                Ok(below) => path.push(below),
                Err(e) => {
                    order.last = order.last.max(expect.first_key);
                    if !each(Err(e))? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// What ends a walk: keys ascend over a whole tree, and no block that is not sound, whose keys say little, is
/// visited twice.
#[derive(Default)]
struct Order {
    /// The greatest key that was visited.
    last: Option<Key>,
    damaged: FxHashSet<u64>,
}

impl Order {
    fn before(&self, at: Logical, expect: &ParentExpectation) -> Result<()> {
        expect.first_key.map_or(Ok(()), |key| check_order(self.last, key, at))
    }

    fn of(&mut self, at: Logical, expect: &ParentExpectation, below: Level) -> Result<Level> {
        match &below.page {
            Page::Sound(_) => self.last = self.last.max(below.page.last_key()),
            page => {
                if !self.damaged.insert(at.0) {
                    return Err(Error::corrupt("BLK-13", format!("block {at} is reached twice in one tree")));
                }
                if page.is_leaf() {
                    self.last = self.last.max(expect.first_key);
                }
            }
        }
        Ok(below)
    }
}
