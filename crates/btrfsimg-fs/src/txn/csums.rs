//! Checksums of data in the csum tree (`format/03 §3.4`).

use btrfsimg_ondisk::{Key, KeyType, Logical, leaf_data_size, objectid};

use super::{ItemBatch, Transaction};
use crate::error::Result;
use crate::tree::{Cursor, walk_items};

/// Items gathered before they go into the tree.
const BATCH_ITEMS: usize = 32;

/// Checksums of consecutive sectors that are not in the tree yet.
#[derive(Default)]
pub(super) struct PendingCsums {
    start: u64,
    bytes: Vec<u8>,
    ready: ItemBatch,
}

fn csum_key(at: u64) -> Key {
    Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at)
}

impl Transaction<'_> {
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
        self.insert_batch(objectid::CSUM_TREE, &ready)
    }

    /// Puts all gathered checksums into the tree.
    pub(crate) fn flush_csums(&mut self) -> Result<()> {
        let pending = &mut self.pending_csums;
        if !pending.bytes.is_empty() {
            let bytes = std::mem::take(&mut pending.bytes);
            pending.ready.push(csum_key(pending.start), &bytes);
        }
        self.insert_ready_csums()
    }

    /// Removes the checksums of the `len` bytes at `at`; items that reach beyond keep the rest.
    #[expect(clippy::cast_possible_truncation, reason = "indexes inside an item")]
    pub(super) fn remove_csums(&mut self, at: Logical, len: u64) -> Result<()> {
        self.flush_csums()?;
        let (width, sectorsize) = (self.csum_width(), u64::from(self.sectorsize()));
        let end = at.0 + len;
        let span = |data: &[u8]| (data.len() / width) as u64 * sectorsize;
        let first = match Cursor::at_or_before(self, objectid::CSUM_TREE, &csum_key(at.0))? {
            Some(c)
                if c.key().key_type == KeyType::EXTENT_CSUM
                    && c.key().offset + span(c.item().data) > at.0 =>
            {
                c.key()
            }
            _ => csum_key(at.0),
        };
        let mut overlapping = Vec::new();
        walk_items(self, objectid::CSUM_TREE, &first, &csum_key(end - 1), |item| {
            overlapping.push((item.key, item.data.to_vec()));
            Ok(true)
        })?;
        for (key, data) in overlapping {
            let (start, item_end) = (key.offset, key.offset + span(&data));
            self.remove(objectid::CSUM_TREE, key)?;
            let index = |addr: u64| ((addr - start) / sectorsize) as usize * width;
            if start < at.0 {
                self.insert(objectid::CSUM_TREE, key, &data[..index(at.0)])?;
            }
            if item_end > end {
                self.insert(objectid::CSUM_TREE, csum_key(end), &data[index(end)..])?;
            }
        }
        Ok(())
    }
}
