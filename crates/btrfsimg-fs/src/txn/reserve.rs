//! Metadata space that only removing and shrinking may use, so that a full image can always be emptied.
//!
//! Removing needs space too: what it changes is copied first, and what it frees is free after the commit only. The
//! kernel's global reserve is for the same.

use btrfsimg_ondisk::objectid;

use super::Transaction;
use super::chunks::{ChunkPolicy, DEVICE_START};
use super::space::SpaceKind;
use crate::block_store::BlockStore;
use crate::error::Result;
use crate::tree::root_item;

/// Tree blocks in the reserve on top of the trees that removing may have to copy whole.
const SPARE_NODES: u64 = 64;
/// Bytes of the largest reserve.
const RESERVE_MAX: u64 = 512 << 20;

/// What is kept, and whether it may be used now.
#[derive(Default)]
pub(super) struct Reserve {
    bytes: Option<u64>,
    pub(super) open: bool,
}

impl Reserve {
    /// Bytes of metadata that are kept: a copy of every tree that removing one file may change all over.
    pub(super) fn bytes(&mut self, store: &BlockStore) -> Result<u64> {
        if let Some(bytes) = self.bytes {
            return Ok(bytes);
        }
        let mut bytes = SPARE_NODES * store.ctx().nodesize as u64;
        for tree in [objectid::EXTENT_TREE, objectid::CSUM_TREE, objectid::FREE_SPACE_TREE] {
            let used = root_item(store, tree)?.map_or(0, |(_, item)| item.bytes_used.get());
            bytes = bytes.saturating_add(used);
        }
        Ok(*self.bytes.insert(bytes.min(RESERVE_MAX)))
    }
}

/// Bytes of a device that chunks can still take, beside the `taken` ones.
fn allocatable(total_bytes: u64, taken: u64) -> u64 {
    total_bytes.saturating_sub(DEVICE_START).saturating_sub(taken)
}

impl Transaction<'_> {
    /// Does what frees space in the end: it may use what is kept for that.
    ///
    /// # Errors
    /// What `remove` returns.
    pub fn with_reserve<T>(&mut self, remove: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let was = std::mem::replace(&mut self.reserve.open, true);
        let result = remove(self);
        self.reserve.open = was;
        result
    }

    /// Whether the reserve is whole when a chunk of `length` bytes takes unallocated space for data, which are never
    /// what it is kept for.
    pub(super) fn chunk_leaves_reserve(&mut self, kind: SpaceKind, length: u64) -> Result<bool> {
        let ChunkPolicy::Existing { total_bytes, grow: false } = self.volume.policy else { return Ok(true) };
        if kind != SpaceKind::Data {
            return Ok(true);
        }
        let wanted = self.reserve.bytes(&self.volume.store)?;
        let taken = self.device_bytes_used().saturating_add(length.saturating_mul(self.copies_of(kind)));
        let unallocated = allocatable(total_bytes, taken) / self.copies_of(SpaceKind::Metadata);
        let short = wanted.saturating_sub(unallocated);
        Ok(self.space.available(&self.volume.store, SpaceKind::Metadata, short)? >= short)
    }

    /// Whether the reserve is whole when `len` bytes of `kind` are taken.
    pub(super) fn keeps_reserve(&mut self, kind: SpaceKind, len: u64) -> Result<bool> {
        let ChunkPolicy::Existing { total_bytes, grow: false } = self.volume.policy else { return Ok(true) };
        if self.reserve.open || !matches!(kind, SpaceKind::Metadata | SpaceKind::Mixed) {
            return Ok(true);
        }
        let wanted = self.reserve.bytes(&self.volume.store)?.saturating_add(len);
        if self.space.available_now(kind) >= wanted {
            return Ok(true);
        }
        loop {
            let unallocated = allocatable(total_bytes, self.device_bytes_used()) / self.copies_of(kind);
            let short = wanted.saturating_sub(unallocated);
            if self.space.available(&self.volume.store, kind, short)? >= short {
                return Ok(true);
            }
            if !self.remove_empty_group(kind)? {
                return Ok(false);
            }
        }
    }
}
