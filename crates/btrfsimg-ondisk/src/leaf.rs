//! In-place edit of a [`TreeBlock`]: insert, remove, resize and split, keeping the frame sound.
//!
//! Whoever edits keeps the keys in order; the tree checker judges the block again before it is written.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use crate::block::{DiskKeyPtr, Header, ItemHeader, KeyPtr, TreeBlock, header_flags};
use crate::{HEADER_LEN, ITEM_HEADER_LEN, KEY_PTR_LEN, Key, Logical, leaf_data_size, max_key_ptrs};

#[expect(clippy::cast_possible_truncation, reason = "offsets inside a block of at most 64 KiB")]
fn u32_of(n: usize) -> zerocopy::little_endian::U32 {
    (n as u32).into()
}

impl TreeBlock {
    /// An empty block of `nodesize` bytes with this header (whose `nritems` is ignored).
    pub fn empty(nodesize: usize, header: &Header) -> TreeBlock {
        let mut block = TreeBlock { bytes: vec![0; nodesize].into_boxed_slice() };
        *block.header_mut() = *header;
        block.header_mut().nritems = 0.into();
        block
    }

    /// The header of a block at `logical`, not yet written.
    pub fn new_header(
        logical: Logical,
        level: u8,
        owner: u64,
        generation: u64,
        fsid: [u8; 16],
        chunk_tree_uuid: [u8; 16],
    ) -> Header {
        Header {
            fsid,
            bytenr: logical.0.into(),
            flags: header_flags::BACKREF_REV.into(),
            chunk_tree_uuid,
            generation: generation.into(),
            owner: owner.into(),
            level,
            ..Header::zeroed()
        }
    }

    /// The header, to change.
    pub fn header_mut(&mut self) -> &mut Header {
        Header::mut_from_prefix(&mut self.bytes).map(|(h, _)| h).expect("a block is longer than its header")
    }

    /// All bytes, to seal the block (checksum, flags) or to damage it in tests.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn set_nritems(&mut self, n: usize) {
        self.header_mut().nritems = u32_of(n);
    }

    /// Where the data of the items before `slot` start, from the end of the header.
    fn data_start(&self, slot: usize) -> usize {
        match slot.checked_sub(1) {
            None => leaf_data_size(self.bytes.len()),
            Some(prev) => self.item_header(prev).offset.get() as usize,
        }
    }

    /// Bytes left in a leaf for headers and data.
    pub fn leaf_free(&self) -> usize {
        let n = self.nritems();
        self.data_start(n) - n * ITEM_HEADER_LEN
    }

    /// Bytes that the items `slots` of a leaf take, headers included.
    pub fn leaf_used(&self, slots: Range<usize>) -> usize {
        self.data_start(slots.start) - self.data_start(slots.end) + slots.len() * ITEM_HEADER_LEN
    }

    /// Inserts `items`, in key order, before `slot` of a leaf: one size pass, one move of headers and one of data.
    ///
    /// # Panics
    /// When they do not fit ([`TreeBlock::leaf_free`]).
    pub fn insert_items<'a>(&mut self, slot: usize, items: impl Iterator<Item = (Key, &'a [u8])> + Clone) {
        let (count, size) = items.clone().fold((0, 0), |(n, s), (_, d)| (n + 1, s + d.len()));
        assert!(size + count * ITEM_HEADER_LEN <= self.leaf_free(), "items do not fit the leaf");
        let n = self.nritems();
        let end = self.data_start(slot);
        let tail = self.data_start(n);
        self.bytes.copy_within(HEADER_LEN + tail..HEADER_LEN + end, HEADER_LEN + tail - size);
        let at = HEADER_LEN + slot * ITEM_HEADER_LEN;
        let headers_end = HEADER_LEN + n * ITEM_HEADER_LEN;
        self.bytes.copy_within(at..headers_end, at + count * ITEM_HEADER_LEN);
        self.set_nritems(n + count);
        let mut offset = end;
        for (i, (key, data)) in items.enumerate() {
            offset -= data.len();
            self.put_header(slot + i, key, offset, data.len());
            self.bytes[HEADER_LEN + offset..][..data.len()].copy_from_slice(data);
        }
        self.shift_offsets(slot + count..n + count, size, true);
    }

    fn put_header(&mut self, slot: usize, key: Key, offset: usize, size: usize) {
        let header = ItemHeader { key: key.into(), offset: u32_of(offset), size: u32_of(size) };
        let at = HEADER_LEN + slot * ITEM_HEADER_LEN;
        self.bytes[at..at + ITEM_HEADER_LEN].copy_from_slice(header.as_bytes());
    }

    /// Moves the recorded data offsets of `slots` by `by` bytes, down or up.
    fn shift_offsets(&mut self, slots: Range<usize>, by: usize, down: bool) {
        let table = &mut self.bytes[HEADER_LEN..][slots.start * ITEM_HEADER_LEN..slots.end * ITEM_HEADER_LEN];
        for raw in table.chunks_exact_mut(ITEM_HEADER_LEN) {
            let header = ItemHeader::mut_from_bytes(raw).expect("25 bytes are an item header");
            let offset = header.offset.get() as usize;
            header.offset = u32_of(if down { offset - by } else { offset + by });
        }
    }

    /// Removes the items `slots` of a leaf.
    pub fn remove_items(&mut self, slots: Range<usize>) {
        let n = self.nritems();
        let (start, end, tail) =
            (self.data_start(slots.start), self.data_start(slots.end), self.data_start(n));
        let size = start - end;
        self.bytes.copy_within(HEADER_LEN + tail..HEADER_LEN + end, HEADER_LEN + tail + size);
        let at = |s: usize| HEADER_LEN + s * ITEM_HEADER_LEN;
        self.bytes.copy_within(at(slots.end)..at(n), at(slots.start));
        let left = n - slots.len();
        self.bytes[at(left)..at(n)].fill(0);
        self.bytes[HEADER_LEN + tail..HEADER_LEN + tail + size].fill(0);
        self.set_nritems(left);
        self.shift_offsets(slots.start..left, size, false);
    }

    /// Gives the item at `slot` new data, of any length that fits.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn replace_item(&mut self, slot: usize, data: &[u8]) {
        let header = self.item_header(slot);
        if header.size.get() as usize == data.len() {
            let at = HEADER_LEN + header.offset.get() as usize;
            self.bytes[at..at + data.len()].copy_from_slice(data);
            return;
        }
        self.remove_items(slot..slot + 1);
        self.insert_items(slot, std::iter::once((header.key.get(), data)));
    }

    /// Gives the item at `slot` another key, between those of its neighbours.
    pub fn set_item_key(&mut self, slot: usize, key: Key) {
        let header = self.item_header(slot);
        self.put_header(slot, key, header.offset.get() as usize, header.size.get() as usize);
    }

    /// Moves the entries from `slot` on to the front of `right`, an empty block of the same level.
    pub fn split_into(&mut self, slot: usize, right: &mut TreeBlock) {
        let n = self.nritems();
        if self.is_leaf() {
            right.insert_items(0, (slot..n).map(|s| self.item(s)).map(|i| (i.key, i.data)));
            self.remove_items(slot..n);
            return;
        }
        let at = |s: usize| HEADER_LEN + s * KEY_PTR_LEN;
        right.bytes[at(0)..at(n - slot)].copy_from_slice(&self.bytes[at(slot)..at(n)]);
        right.set_nritems(n - slot);
        self.bytes[at(slot)..at(n)].fill(0);
        self.set_nritems(slot);
    }

    /// Appends all entries of `right`, whose keys are greater, if they fit. Says whether they did.
    pub fn try_append(&mut self, right: &TreeBlock) -> bool {
        let (n, m) = (self.nritems(), right.nritems());
        if self.is_leaf() {
            if right.leaf_used(0..m) > self.leaf_free() {
                return false;
            }
            self.insert_items(n, right.items().map(|i| (i.key, i.data)));
            return true;
        }
        if n + m > max_key_ptrs(self.bytes.len()) {
            return false;
        }
        let at = |s: usize| HEADER_LEN + s * KEY_PTR_LEN;
        self.bytes[at(n)..at(n + m)].copy_from_slice(&right.bytes[at(0)..at(m)]);
        self.set_nritems(n + m);
        true
    }

    /// Whether a node has no room for another pointer.
    pub fn node_is_full(&self) -> bool {
        self.nritems() >= max_key_ptrs(self.bytes.len())
    }

    /// Inserts a pointer before `slot` of a node that is not full.
    pub fn insert_key_ptr(&mut self, slot: usize, ptr: KeyPtr) {
        let n = self.nritems();
        let at = HEADER_LEN + slot * KEY_PTR_LEN;
        self.bytes.copy_within(at..HEADER_LEN + n * KEY_PTR_LEN, at + KEY_PTR_LEN);
        self.set_nritems(n + 1);
        self.set_key_ptr(slot, ptr);
    }

    /// Replaces the pointer at `slot` of a node.
    pub fn set_key_ptr(&mut self, slot: usize, ptr: KeyPtr) {
        let raw = DiskKeyPtr {
            key: ptr.key.into(),
            blockptr: ptr.block.0.into(),
            generation: ptr.generation.into(),
        };
        let at = HEADER_LEN + slot * KEY_PTR_LEN;
        self.bytes[at..at + KEY_PTR_LEN].copy_from_slice(raw.as_bytes());
    }

    /// Removes the pointer at `slot` of a node.
    pub fn remove_key_ptr(&mut self, slot: usize) {
        let n = self.nritems();
        let at = |s: usize| HEADER_LEN + s * KEY_PTR_LEN;
        self.bytes.copy_within(at(slot + 1)..at(n), at(slot));
        self.bytes[at(n - 1)..at(n)].fill(0);
        self.set_nritems(n - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyType;

    fn leaf() -> TreeBlock {
        TreeBlock::empty(4096, &Header::zeroed())
    }

    fn contents(block: &TreeBlock) -> Vec<(u64, Vec<u8>)> {
        block.items().map(|i| (i.key.objectid, i.data.to_vec())).collect()
    }

    fn check_packed(block: &TreeBlock) {
        let mut end = leaf_data_size(4096);
        for slot in 0..block.nritems() {
            let h = block.item_header(slot);
            end -= h.size.get() as usize;
            assert_eq!(h.offset.get() as usize, end, "slot {slot}");
        }
    }

    /// Random edits against a sorted vector.
    #[test]
    fn a_leaf_is_a_sorted_vector() {
        let (mut block, mut model) = (leaf(), Vec::<(u64, Vec<u8>)>::new());
        let mut seed = 12345u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % n
        };
        for round in 0..20_000u32 {
            let data = vec![round.to_le_bytes()[0]; random(60)];
            match (random(3), model.is_empty()) {
                (0, _) | (_, true) => {
                    let id = random(1 << 30) as u64;
                    let Err(at) = model.binary_search_by_key(&id, |e| e.0) else { continue };
                    if block.leaf_free() < data.len() + ITEM_HEADER_LEN {
                        continue;
                    }
                    assert_eq!(block.search(&Key::new(id, KeyType(1), 0)), Err(at));
                    block.insert_items(at, std::iter::once((Key::new(id, KeyType(1), 0), &data[..])));
                    model.insert(at, (id, data));
                }
                (1, _) => {
                    let at = random(model.len());
                    let end = (at + random(4)).min(model.len());
                    block.remove_items(at..end);
                    model.drain(at..end);
                }
                _ => {
                    let at = random(model.len());
                    if block.leaf_free() + model[at].1.len() < data.len() {
                        continue;
                    }
                    block.replace_item(at, &data);
                    model[at].1 = data;
                }
            }
            check_packed(&block);
            assert_eq!(contents(&block), model);
        }
    }

    #[test]
    fn split_and_append_are_inverse() {
        let mut block = leaf();
        let datas: Vec<Vec<u8>> = (0..20u8).map(|i| vec![i; usize::from(i)]).collect();
        block.insert_items(0, datas.iter().zip(0u64..).map(|(d, i)| (Key::new(i, KeyType(1), 0), &d[..])));
        let (before, mut right) = (contents(&block), leaf());
        block.split_into(7, &mut right);
        assert_eq!((block.nritems(), right.nritems()), (7, 13));
        check_packed(&right);
        assert!(block.try_append(&right));
        assert_eq!(contents(&block), before);
    }
}
