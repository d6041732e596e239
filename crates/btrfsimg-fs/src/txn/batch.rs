//! Items on their way into a tree.

use btrfsimg_ondisk::{ITEM_HEADER_LEN, Key, KeyType};

/// Items in key order, their data in one buffer.
#[derive(Default, Clone)]
pub struct ItemBatch {
    items: Vec<(Key, std::ops::Range<usize>)>,
    data: Vec<u8>,
}

impl ItemBatch {
    /// No items.
    pub fn new() -> ItemBatch {
        ItemBatch::default()
    }

    /// Adds an item whose data `write` appends.
    pub fn push_with(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.data.len();
        write(&mut self.data);
        self.items.push((key, start..self.data.len()));
    }

    /// Adds an item.
    pub fn push(&mut self, key: Key, data: &[u8]) {
        self.push_with(key, |out| out.extend_from_slice(data));
    }

    /// Replaces the data of item `i` by others of the same length.
    ///
    /// # Panics
    /// When the length differs.
    pub fn replace_data(&mut self, i: usize, data: &[u8]) {
        self.data[self.items[i].1.clone()].copy_from_slice(data);
    }

    /// Puts the items in key order.
    pub fn sort(&mut self) {
        if !self.items.is_sorted_by(|a, b| a.0 < b.0) {
            self.items.sort_by_key(|(key, _)| *key);
        }
    }

    /// How many items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of data.
    pub fn data_len(&self) -> usize {
        self.data.len()
    }

    /// Forgets all items, keeps the buffers.
    pub fn clear(&mut self) {
        self.items.clear();
        self.data.clear();
    }

    /// The key of item `i`.
    pub fn key(&self, i: usize) -> Key {
        self.items[i].0
    }

    /// The items `range`.
    pub fn range(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = (Key, &[u8])> + Clone {
        self.items[range].iter().map(|(key, r)| (*key, &self.data[r.clone()]))
    }

    /// How many items from `from` on have keys below `bound`.
    pub(super) fn run_below(&self, from: usize, bound: Option<Key>) -> usize {
        let rest = &self.items[from..];
        bound.map_or(rest.len(), |bound| rest.partition_point(|(key, _)| *key < bound))
    }

    /// How many of the `run` items from `from` on fit in `free` bytes of a leaf.
    pub(super) fn fitting(&self, from: usize, run: usize, free: usize) -> usize {
        let mut used = 0;
        self.items[from..from + run]
            .iter()
            .take_while(|(_, r)| {
                used += r.len() + ITEM_HEADER_LEN;
                used <= free
            })
            .count()
    }

    /// The same, but no more than leave the next leaf to begin where it may ([`inode_start`]); where that is none, as many
    /// as fit. Says too whether it is not that.
    pub(super) fn whole_inodes(&self, from: usize, run: usize, free: usize) -> (usize, bool) {
        let fitting = self.fitting(from, run, free);
        let whole = if fitting == run { run } else { inode_start(fitting, |i| self.key(from + i)) };
        if whole > 0 { (whole, true) } else { (fitting, false) }
    }

    /// Leaf bytes of the `run` items from `from` on, headers included.
    pub(super) fn leaf_bytes(&self, from: usize, run: usize) -> usize {
        self.items[from..from + run].iter().map(|(_, r)| r.len() + ITEM_HEADER_LEN).sum()
    }
}

/// Where a leaf that would begin with item `at` should begin instead: with the INODE_ITEM, where item `at` is a name of
/// that inode. Linux looks for an inode's properties no further than the leaf of its item, unless the next leaf begins
/// with an xattr (docs/format-notes.md).
pub(super) fn inode_start(at: usize, key: impl Fn(usize) -> Key) -> usize {
    let is_name = |key: Key| matches!(key.key_type, KeyType::INODE_REF | KeyType::INODE_EXTREF);
    let mut start = at;
    while start > 0 && is_name(key(start)) && key(start - 1).objectid == key(start).objectid {
        start -= 1;
    }
    start
}
