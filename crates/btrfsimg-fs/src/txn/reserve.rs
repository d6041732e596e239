//! Metadata space that only removing and shrinking may use, so that a full image can always be emptied.
//!
//! Removing needs space too: what it changes is copied first, and what it frees is free after the commit only. The
//! kernel's global reserve is for the same, and a kernel that finds less than it wants makes no file, however much of the
//! data space is free.

use btrfsimg_ondisk::objectid;

use super::Transaction;
use super::chunks::{ChunkPolicy, DEVICE_START};
use super::space::SpaceKind;
use crate::block_store::BlockStore;
use crate::error::Result;
use crate::tree::root_item;

/// Tree blocks in the reserve on top of the trees that removing may have to copy whole: what a kernel that mounts the
/// image wants free before it lets a file be made, with half of it deleted or not (measured with Linux 6.18).
const KERNEL_NODES: u64 = 600;
/// The same of images so small that it would be much of them: a part of the device, but not less than this.
const SPARE_NODES: u64 = 64;
/// Which part.
const SHARE: u64 = 16;
/// The part of the device that data leave to metadata on top, where they take unallocated space: trees grow while that is
/// filled, and when half of an image is deleted and filled again.
const GROWTH_SHARE: u64 = 50;
/// Bytes of the largest reserve, and of the most that is left for growth.
const RESERVE_MAX: u64 = 512 << 20;

/// What is kept, and whether it may be used now.
#[derive(Default)]
pub(super) struct Reserve {
    /// Bytes of the trees that removing one file may change all over.
    trees: Option<u64>,
    pub(super) open: bool,
}

impl Reserve {
    fn trees(&mut self, store: &BlockStore) -> Result<u64> {
        if let Some(bytes) = self.trees {
            return Ok(bytes);
        }
        let mut bytes = 0u64;
        for tree in [objectid::EXTENT_TREE, objectid::CSUM_TREE, objectid::FREE_SPACE_TREE] {
            let used = root_item(store, tree)?.map_or(0, |(_, item)| item.bytes_used.get());
            bytes = bytes.saturating_add(used);
        }
        Ok(*self.trees.insert(bytes.min(RESERVE_MAX)))
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

    /// Bytes of metadata that are kept on a device of `total_bytes`.
    pub(super) fn reserve_bytes(&mut self, total_bytes: u64) -> Result<u64> {
        let nodesize = u64::from(self.nodesize());
        let share = total_bytes / SHARE / self.copies_of(self.kind_here(SpaceKind::Metadata)) / nodesize;
        let nodes = share.clamp(SPARE_NODES, KERNEL_NODES);
        Ok(self.reserve.trees(&self.volume.store)?.saturating_add(nodes * nodesize))
    }

    /// Whether the reserve is whole when a chunk of `length` bytes takes unallocated space for data, which are never
    /// what it is kept for.
    pub(super) fn chunk_leaves_reserve(&mut self, kind: SpaceKind, length: u64) -> Result<bool> {
        let ChunkPolicy::Existing { total_bytes, grow: false } = self.volume.policy else { return Ok(true) };
        if kind != SpaceKind::Data {
            return Ok(true);
        }
        let growth = (total_bytes / GROWTH_SHARE).min(RESERVE_MAX);
        let wanted = self.reserve_bytes(total_bytes)?.saturating_add(growth);
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
        let wanted = self.reserve_bytes(total_bytes)?.saturating_add(len);
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
