//! Who else uses an extent.

use btrfsimg_ondisk::{BackRef, InlineRef, Key, Logical};

use super::Transaction;
use super::refs::ExtentKind;
use crate::block_store::child_expectation;
use crate::error::Result;
use crate::tree::Blocks as _;

/// A data extent as one file sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Nothing else refers to it, and this file as often as this by the reference that was asked about.
    Own(u64),
    /// Another file or tree does, or this file at another place.
    Shared,
}

impl Transaction<'_> {
    /// Whether the data extent at `at` is used by anything but the file extents that have the reference `back`; `item`
    /// is the key of one of them in `tree`. A leaf that a snapshot shares makes all its extents shared.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn sharing(
        &mut self,
        tree: u64,
        item: &Key,
        at: Logical,
        len: u64,
        back: BackRef,
    ) -> Result<Sharing> {
        let Some(own) = self.own_reference(tree, item, back)? else { return Ok(Sharing::Shared) };
        let (is_new, all_pending, own_pending) = self.refs.pending_of(at, own);
        let (all, count) = if is_new { (0, 0) } else { self.written_references(at, len, own)? };
        let all = all.saturating_add_signed(all_pending);
        let count = count.saturating_add_signed(own_pending);
        Ok(if count > 0 && all == count { Sharing::Own(count) } else { Sharing::Shared })
    }

    /// References of a data extent as its items say: all, and those by `back`.
    fn written_references(&self, at: Logical, len: u64, back: BackRef) -> Result<(u64, u64)> {
        let (_, view) = self.find_extent(at, ExtentKind::Data, len)?;
        let inline = view.inline.iter().find_map(|r| match r {
            InlineRef::Ref(b, n) if *b == back => Some(*n),
            _ => None,
        });
        let count = match inline {
            Some(n) => u64::from(n),
            None => self.find_keyed_ref(at, back)?.map_or(0, |(_, n)| u64::from(n)),
        };
        Ok((view.head.refs.get(), count))
    }

    /// How the leaf that holds `item` refers to its extents: as `back`, or for itself; `None` when it is shared.
    fn own_reference(&mut self, tree: u64, item: &Key, back: BackRef) -> Result<Option<BackRef>> {
        self.open_tree(tree)?;
        let root = self.trees[&tree].root;
        let (mut at, mut expect, mut is_root) = (root.logical, root.expectation(), true);
        let mut own = back;
        loop {
            let block = self.block(at, &expect)?;
            if self.may_be_shared(tree, &block, is_root) {
                let (refs, full) = self.block_refs(at, block.level())?;
                if refs > 1 {
                    return Ok(None);
                }
                if full && block.is_leaf() {
                    own = BackRef::SharedData { parent: at.0 };
                }
            }
            if block.is_leaf() {
                return Ok(Some(own));
            }
            (at, expect) = child_expectation(&block, block.child_slot(item), tree);
            is_root = false;
        }
    }
}
