//! Items in key order that go on behind faults.

use btrfsimg_ondisk::{BlockContext, Item, Key};

use super::Filesystem;
use crate::block_store::Page;
use crate::error::{Error, Result};
use crate::lookup::Items;

impl Filesystem {
    /// What is wrong with the first leaf that may hold keys in `from..=to` and whose items are no more sure than its
    /// bytes: of a salvage, which reads them.
    pub(super) fn doubt(&self, tree: u64, from: &Key, to: &Key) -> Option<Error> {
        let root = self.tree_root(tree).ok()?;
        let mut doubt = None;
        // What cannot be read is met by who reads it.
        let _ = self.store.leaves(tree, &(root.logical, root.expectation()), from, to, &mut |leaf| {
            doubt = leaf.ok().and_then(|(page, _)| page.doubt()).map(Error::again);
            Ok(doubt.is_none())
        });
        doubt
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
        self.store.leaves(tree, &(root.logical, root.expectation()), from, to, &mut |leaf| {
            let (page, slots) = match leaf {
                Ok(leaf) => leaf,
                Err(e) => return each(Err(e)),
            };
            for slot in slots {
                let item = page.item(slot, tree, &self.store);
                if is_wanted(page, slot, item.is_err(), from, to) && !each(item)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn with_last(
        &self,
        tree: u64,
        from: &Key,
        to: &Key,
        found: &mut dyn FnMut(Item<'_>) -> Result<()>,
    ) -> Result<()> {
        let root = self.tree_root(tree)?;
        let level = |at, expect| -> Result<_> {
            let page = self.store.page(at, &expect)?;
            let slots = page.slots(from, to);
            Ok((page, slots))
        };
        let mut path = vec![level(root.logical, root.expectation())?];
        while let Some((page, slots)) = path.last_mut() {
            let Some(slot) = slots.next_back() else {
                path.pop();
                continue;
            };
            if let Some((at, expect)) = page.child(slot, tree) {
                let below = level(at, expect)?;
                path.push(below);
                continue;
            }
            let item = page.item(slot, tree, &self.store);
            if is_wanted(page, slot, item.is_err(), from, to) {
                return found(item?);
            }
        }
        Ok(())
    }

    fn context(&self) -> &BlockContext {
        self.store.ctx()
    }
}

/// Whether the item in `slot` is one of `from..=to`: its key is, or it is bad, its key too, and the one before it is.
fn is_wanted(page: &Page, slot: usize, is_bad: bool, from: &Key, to: &Key) -> bool {
    let is_between = |slot| (from..=to).contains(&&page.key(slot));
    page.fault().is_none() || is_between(slot) || (is_bad && slot.checked_sub(1).is_some_and(is_between))
}
