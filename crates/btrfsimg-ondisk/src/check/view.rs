//! What the checks see of a block: its bytes, and its slots one by one with the one before.

use zerocopy::FromBytes;

use crate::block::{DiskKeyPtr, ItemHeader, KeyPtr};
use crate::{DiskKey, HEADER_LEN, Header, ITEM_HEADER_LEN, KEY_PTR_LEN, Key, Logical, objectid};

/// A block's bytes, and what its header says of them. Access checks its bounds.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) bytes: &'a [u8],
    /// `None` when the block is shorter than a header.
    header: Option<&'a Header>,
}

impl<'a> View<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> View<'a> {
        View { bytes, header: Header::ref_from_prefix(bytes).ok().map(|(h, _)| h) }
    }

    pub(crate) fn header(&self) -> Option<&'a Header> {
        self.header
    }

    pub(crate) fn level(&self) -> u8 {
        self.header.map_or(0, |h| h.level)
    }

    pub(crate) fn owner(&self) -> u64 {
        self.header.map_or(0, |h| h.owner.get())
    }

    fn entry_len(&self) -> usize {
        if self.level() == 0 { ITEM_HEADER_LEN } else { KEY_PTR_LEN }
    }

    /// Slots whose headers or pointers lie inside the block.
    pub(crate) fn slots(&self) -> usize {
        let said = self.header.map_or(0, |h| h.nritems.get());
        let room = self.bytes.len().saturating_sub(HEADER_LEN) / self.entry_len();
        usize::try_from(said).unwrap_or(usize::MAX).min(room)
    }

    fn entry<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
        &self,
        slot: usize,
        len: usize,
    ) -> Option<&'a T> {
        let at = HEADER_LEN.checked_add(slot.checked_mul(len)?)?;
        T::ref_from_prefix(self.bytes.get(at..)?).ok().map(|(t, _)| t)
    }

    pub(crate) fn key(&self, slot: usize) -> Option<Key> {
        if slot >= self.slots() {
            return None;
        }
        self.entry::<DiskKey>(slot, self.entry_len()).map(DiskKey::get)
    }

    pub(crate) fn item_header(&self, slot: usize) -> Option<&'a ItemHeader> {
        (slot < self.slots() && self.level() == 0).then(|| self.entry(slot, ITEM_HEADER_LEN))?
    }

    pub(crate) fn key_ptr(&self, slot: usize) -> Option<KeyPtr> {
        if slot >= self.slots() || self.level() == 0 {
            return None;
        }
        let p = self.entry::<DiskKeyPtr>(slot, KEY_PTR_LEN)?;
        Some(KeyPtr { key: p.key.get(), block: Logical(p.blockptr.get()), generation: p.generation.get() })
    }

    fn data(&self, header: &ItemHeader) -> Option<&'a [u8]> {
        let start = usize::try_from(header.offset.get()).ok()?.checked_add(HEADER_LEN)?;
        self.bytes.get(start..start.checked_add(usize::try_from(header.size.get()).ok()?)?)
    }

    fn key_and_data(&self, slot: usize) -> Option<(Key, &'a [u8])> {
        let header = self.item_header(slot)?;
        Some((header.key.get(), self.data(header)?))
    }

    /// The item at `slot` and the one before it, if the item's data lie inside the block.
    pub(crate) fn item(&self, slot: usize) -> Option<ItemAt<'a>> {
        let (key, data) = self.key_and_data(slot)?;
        let before = slot.checked_sub(1).and_then(|s| self.key_and_data(s));
        Some(ItemAt { slot, key, data, before, owner: self.owner() })
    }

    /// The items of a leaf whose data lie inside the block; none of a node.
    pub(crate) fn items(self) -> impl Iterator<Item = ItemAt<'a>> {
        let slots = if self.level() == 0 { self.slots() } else { 0 };
        let owner = self.owner();
        let mut before = None;
        (0..slots).filter_map(move |slot| {
            let this = self.key_and_data(slot);
            let item = this.map(|(key, data)| ItemAt { slot, key, data, before, owner });
            before = this;
            item
        })
    }
}

/// An item, and what its checks may look at besides.
#[derive(Clone, Copy)]
pub(crate) struct ItemAt<'a> {
    pub(crate) slot: usize,
    pub(crate) key: Key,
    pub(crate) data: &'a [u8],
    /// The item before it in the leaf.
    pub(crate) before: Option<(Key, &'a [u8])>,
    /// The tree that owns the leaf.
    pub(crate) owner: u64,
}

impl ItemAt<'_> {
    /// The kernel's rule for items of an inode: what comes before is an item of the same inode, in leaves that
    /// subvolumes own. (Those of a relocation tree keep the owner of what they copy; log trees and the data relocation
    /// tree are exempt.)
    #[doc(alias = "check_prev_ino")]
    pub(crate) fn follows_its_inode(&self) -> bool {
        match self.before {
            Some((key, _)) if objectid::is_fs_tree(self.owner) => key.objectid == self.key.objectid,
            _ => true,
        }
    }
}

/// Whether `n` is a multiple of the power of two `unit`.
pub(crate) fn is_aligned(n: u64, unit: u64) -> bool {
    n & unit.wrapping_sub(1) == 0
}
