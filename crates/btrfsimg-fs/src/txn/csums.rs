//! Checksums of data in the csum tree (`format/03 §3.4`).

use std::ops::Range;

use btrfsimg_ondisk::{CsumType, Key, KeyType, Logical, leaf_data_size, objectid};

use super::runs::Runs;
use super::{ItemBatch, Transaction};
use crate::block_store::BlockStore;
use crate::error::Result;
use crate::tree::{Blocks, Cursor};

/// Items gathered before they go into the tree.
const BATCH_ITEMS: usize = 32;

/// Freed ranges that are gathered before their checksums go.
const DROPPED_MAX: usize = 4096;

/// What is to be done in the csum tree. No sector is in both of the parts.
#[derive(Default)]
pub(super) struct PendingCsums {
    /// Checksums of consecutive sectors that are not in the tree yet.
    start: u64,
    bytes: Vec<u8>,
    ready: ItemBatch,
    /// Sectors whose checksums are to be removed.
    dropped: Runs,
}

impl PendingCsums {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.ready.is_empty() && self.dropped.len() == 0
    }
}

fn csum_key(at: u64) -> Key {
    Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at)
}

/// Whether the committed state has checksums of any sector in `run`.
pub(super) fn is_any_over(store: &BlockStore, run: &Range<u64>) -> Result<bool> {
    // A file system that is being made has no trees yet.
    if store.superblock().generation.get() == 0 || store.root(objectid::CSUM_TREE)?.is_none() {
        return Ok(false);
    }
    Ok(last_item_below(store, run.end)?.is_some_and(|(covered, _)| covered.end > run.start))
}

/// The last checksums that begin before `end`, and the range that they are of.
fn last_item_below(blocks: &impl Blocks, end: u64) -> Result<Option<(Range<u64>, Vec<u8>)>> {
    let (width, sectorsize) = (blocks.ctx().csum.width(), blocks.ctx().sectorsize);
    let cursor = Cursor::at_or_before(blocks, objectid::CSUM_TREE, &csum_key(end.saturating_sub(1)))?;
    Ok(cursor.filter(|c| c.key().key_type == KeyType::EXTENT_CSUM).map(|c| {
        let (start, data) = (c.key().offset, c.item().data);
        let end = start.saturating_add((data.len() / width) as u64 * sectorsize);
        (start..end, data.to_vec())
    }))
}

impl Transaction<'_> {
    /// The checksum of blocks and data.
    pub fn csum_type(&self) -> CsumType {
        self.volume.store.ctx().csum
    }

    /// Bytes of the checksum of a sector.
    pub fn csum_width(&self) -> usize {
        self.volume.store.ctx().csum.width()
    }

    /// Most bytes of checksums that the kernel puts in one item.
    fn csum_item_max(&self) -> usize {
        let width = self.csum_width();
        (((leaf_data_size(self.nodesize() as usize) - 50) / width) - 1).min(4096) * width
    }

    /// Adds the checksums of the sectors from `at` on.
    pub(super) fn add_csums(&mut self, at: Logical, csums: &[u8]) -> Result<()> {
        if csums.is_empty() {
            return Ok(());
        }
        let sectorsize = u64::from(self.sectorsize());
        let (width, max) = (self.csum_width() as u64, self.csum_item_max());
        if self.pending_csums.dropped.touches(&(at.0..at.0 + csums.len() as u64 / width * sectorsize)) {
            self.flush_dropped_csums()?;
        }
        let pending = &mut self.pending_csums;
        let end = pending.start + pending.bytes.len() as u64 / width * sectorsize;
        if pending.bytes.is_empty() {
            pending.start = at.0;
        } else if end != at.0 {
            let bytes = std::mem::take(&mut pending.bytes);
            pending.ready.push(csum_key(pending.start), &bytes);
            pending.start = at.0;
        }
        pending.bytes.extend_from_slice(csums);
        while pending.bytes.len() >= max {
            let rest = pending.bytes.split_off(max);
            pending.ready.push(csum_key(pending.start), &pending.bytes);
            pending.start += max as u64 / width * sectorsize;
            pending.bytes = rest;
        }
        if pending.ready.len() >= BATCH_ITEMS { self.insert_ready_csums() } else { Ok(()) }
    }

    fn insert_ready_csums(&mut self) -> Result<()> {
        let mut ready = std::mem::take(&mut self.pending_csums.ready);
        ready.sort();
        let inserted = self.insert_batch(objectid::CSUM_TREE, &ready);
        self.note_failure(inserted)
    }

    /// Puts all gathered checksums into the tree, and takes those of freed sectors out.
    pub(crate) fn flush_csums(&mut self) -> Result<()> {
        self.flush_dropped_csums()?;
        self.flush_added_csums()
    }

    fn flush_added_csums(&mut self) -> Result<()> {
        let pending = &mut self.pending_csums;
        if !pending.bytes.is_empty() {
            let bytes = std::mem::take(&mut pending.bytes);
            pending.ready.push(csum_key(pending.start), &bytes);
        }
        self.insert_ready_csums()
    }

    /// Removes the checksums over space that was just handed out, in the end: they are of something that is gone, and
    /// Linux, which leaves them where it finds them, overwrites them as well.
    pub(super) fn remove_stale_csums(&mut self) -> Result<()> {
        let stale = std::mem::take(&mut self.space.stale_csums);
        stale.iter().try_for_each(|run| self.remove_csums(Logical(run.start), run.end - run.start))
    }

    /// Removes the checksums of the `len` bytes at `at`, in the end: ranges that touch go in one.
    pub(super) fn remove_csums(&mut self, at: Logical, len: u64) -> Result<()> {
        if !self.pending_csums.bytes.is_empty() || !self.pending_csums.ready.is_empty() {
            self.flush_added_csums()?;
        }
        self.pending_csums.dropped.insert(at.0..at.0.saturating_add(len));
        if self.pending_csums.dropped.len() < DROPPED_MAX { Ok(()) } else { self.flush_dropped_csums() }
    }

    fn flush_dropped_csums(&mut self) -> Result<()> {
        let dropped = std::mem::take(&mut self.pending_csums.dropped);
        let removed = dropped.iter().try_for_each(|range| self.remove_csum_range(range));
        self.note_failure(removed)
    }

    /// Items that reach beyond the range keep the rest.
    #[expect(clippy::cast_possible_truncation, reason = "indexes inside an item")]
    fn remove_csum_range(&mut self, range: Range<u64>) -> Result<()> {
        let (width, sectorsize) = (self.csum_width(), u64::from(self.sectorsize()));
        let index = |start: u64, at: u64| ((at - start) / sectorsize) as usize * width;
        let head = last_item_below(self, range.start)?.filter(|(covered, _)| covered.end > range.start);
        let tail = last_item_below(self, range.end)?.filter(|(covered, _)| covered.end > range.end);
        let tail = tail.map(|(covered, data)| data[index(covered.start, range.end)..].to_vec());
        if let Some((covered, data)) = head {
            let kept = &data[..index(covered.start, range.start)];
            self.replace(objectid::CSUM_TREE, csum_key(covered.start), kept)?;
        }
        self.remove_range(objectid::CSUM_TREE, csum_key(range.start), csum_key(range.end - 1))?;
        match tail {
            Some(data) => self.insert(objectid::CSUM_TREE, csum_key(range.end), &data),
            None => Ok(()),
        }
    }
}
