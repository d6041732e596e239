//! References to extents, gathered in memory and written to the extent tree in runs (`format/08 §8.3, 8.4`).

use std::collections::BTreeMap;

use btrfsimg_ondisk::{
    BackRef, ExtentItem, ExtentItemView, InlineRef, Key, KeyType, Logical, TreeBlockInfo, extent_flags,
    incompat, leaf_data_size, objectid, write_extent_item,
};

use super::{ItemBatch, Transaction};
use crate::error::{Error, Result};
use crate::tree::{Cursor, lookup, walk_items};

/// What an extent is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExtentKind {
    /// A tree block, and its first key when it was allocated.
    TreeBlock { level: u8, first_key: Key },
    /// File data.
    Data,
}

/// The changes to one extent since its item was last written.
#[derive(Clone, Debug)]
pub(super) struct RefHead {
    len: u64,
    kind: ExtentKind,
    /// Allocated in this transaction, its item not written yet.
    is_new: bool,
    set_full_backref: bool,
    deltas: Vec<(BackRef, i64)>,
}

/// Extents with changes, by logical address.
#[derive(Default, Debug)]
pub(super) struct DelayedRefs {
    heads: BTreeMap<u64, RefHead>,
}

impl DelayedRefs {
    /// Notes a newly allocated extent with its first reference.
    pub(super) fn create(&mut self, at: Logical, len: u64, kind: ExtentKind, back: BackRef) {
        let head = RefHead { len, kind, is_new: true, set_full_backref: false, deltas: vec![(back, 1)] };
        self.heads.insert(at.0, head);
    }

    /// Notes `delta` references more (or less). Says whether that ended an extent whose item was never written.
    pub(super) fn add(&mut self, at: Logical, len: u64, kind: ExtentKind, back: BackRef, delta: i64) -> bool {
        let head = self.head(at, len, kind);
        match head.deltas.iter_mut().find(|(b, _)| *b == back) {
            Some((_, count)) => *count += delta,
            None => head.deltas.push((back, delta)),
        }
        head.deltas.retain(|(_, count)| *count != 0);
        let ended = head.is_new && head.deltas.is_empty();
        if ended {
            self.heads.remove(&at.0);
        }
        ended
    }

    /// Notes that the children of the block at `at` are referenced by it, not by its tree.
    pub(super) fn set_full_backref(&mut self, at: Logical, len: u64, kind: ExtentKind) {
        self.head(at, len, kind).set_full_backref = true;
    }

    fn head(&mut self, at: Logical, len: u64, kind: ExtentKind) -> &mut RefHead {
        let fresh = RefHead { len, kind, is_new: false, set_full_backref: false, deltas: Vec::new() };
        self.heads.entry(at.0).or_insert(fresh)
    }

    /// The pending change of the number of references, whether FULL_BACKREF is to be set, and whether the extent has
    /// no item yet.
    fn pending(&self, at: Logical) -> (i64, bool, bool) {
        self.heads.get(&at.0).map_or((0, false, false), |h| {
            (h.deltas.iter().map(|(_, d)| d).sum(), h.set_full_backref, h.is_new)
        })
    }

    /// Whether the item of the extent at `at` is yet to be written, and what is not written of its references: of all,
    /// and of `back`.
    pub(super) fn pending_of(&self, at: Logical, back: BackRef) -> (bool, i64, i64) {
        let Some(head) = self.heads.get(&at.0) else { return (false, 0, 0) };
        let own = head.deltas.iter().filter(|(b, _)| *b == back);
        (head.is_new, head.deltas.iter().map(|(_, d)| d).sum(), own.map(|(_, d)| d).sum())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }
}

impl Transaction<'_> {
    /// References of the tree block at `at` and whether it has FULL_BACKREF, pending changes included.
    pub(super) fn block_refs(&self, at: Logical, level: u8) -> Result<(u64, bool)> {
        let (delta, pending_full, is_new) = self.refs.pending(at);
        if is_new {
            return Ok((u64::try_from(delta).map_err(|_| underflow(at))?, pending_full));
        }
        let (_, view) = self.find_extent(
            at,
            ExtentKind::TreeBlock { level, first_key: Key::MIN },
            u64::from(self.nodesize()),
        )?;
        let refs = view.head.refs.get().checked_add_signed(delta).ok_or_else(|| underflow(at))?;
        Ok((refs, pending_full || view.head.flags.get() & extent_flags::FULL_BACKREF != 0))
    }

    /// Writes all gathered references to the extent tree. Changing it gathers more: goes on until none are left.
    pub(super) fn run_refs(&mut self) -> Result<()> {
        while !self.refs.is_empty() {
            let heads = std::mem::take(&mut self.refs.heads);
            let mut new_items = ItemBatch::new();
            for (at, head) in heads {
                if head.is_new {
                    self.push_new_extent(&mut new_items, Logical(at), &head)?;
                } else {
                    self.apply_refs(Logical(at), &head)?;
                }
            }
            new_items.sort();
            self.insert_batch(objectid::EXTENT_TREE, &new_items)?;
        }
        Ok(())
    }

    fn skinny(&self) -> bool {
        self.superblock.has_incompat(incompat::SKINNY_METADATA)
    }

    /// Longest extent item before references become keyed items (`format/02 §2.9`).
    fn inline_limit(&self) -> usize {
        leaf_data_size(self.nodesize() as usize) / 16 - btrfsimg_ondisk::ITEM_HEADER_LEN
    }

    fn extent_key(&self, at: Logical, kind: ExtentKind, len: u64) -> Key {
        match kind {
            ExtentKind::TreeBlock { level, .. } if self.skinny() => {
                Key::new(at.0, KeyType::METADATA_ITEM, u64::from(level))
            }
            _ => Key::new(at.0, KeyType::EXTENT_ITEM, len),
        }
    }

    fn push_new_extent(&self, items: &mut ItemBatch, at: Logical, head: &RefHead) -> Result<()> {
        let key = self.extent_key(at, head.kind, head.len);
        let mut item = ExtentItem::zeroed();
        item.generation = self.transid.into();
        let full = if head.set_full_backref { extent_flags::FULL_BACKREF } else { 0 };
        item.flags = match head.kind {
            ExtentKind::TreeBlock { .. } => extent_flags::TREE_BLOCK | full,
            ExtentKind::Data => extent_flags::DATA,
        }
        .into();
        let info = tree_block_info(head.kind).filter(|_| key.key_type == KeyType::EXTENT_ITEM);
        let mut refs: Vec<(BackRef, u32)> =
            head.deltas.iter().map(|&(b, n)| Ok((b, count(at, n)?))).collect::<Result<_>>()?;
        refs.sort_by(|a, b| a.0.inline_order(&b.0));
        item.refs = refs.iter().map(|&(_, n)| u64::from(n)).sum::<u64>().into();
        let mut room = self.inline_limit().saturating_sub(24 + info.map_or(0, |_| 18));
        let mut inline = Vec::with_capacity(refs.len());
        for (back, n) in refs {
            if back.inline_len() <= room {
                room -= back.inline_len();
                inline.push(InlineRef::Ref(back, n));
            } else {
                items.push(Key::new(at.0, back.key_type(), back.sequence()), &back.keyed_data(n));
            }
        }
        items.push_with(key, |out| write_extent_item(out, &item, info.as_ref(), &inline));
        Ok(())
    }

    /// The key and contents of the item of an extent that exists.
    pub(super) fn find_extent(
        &self,
        at: Logical,
        kind: ExtentKind,
        len: u64,
    ) -> Result<(Key, ExtentItemView)> {
        // With SKINNY_METADATA both kinds of item may coexist (`format/02 §2.3`).
        for key in [self.extent_key(at, kind, len), Key::new(at.0, KeyType::EXTENT_ITEM, len)] {
            if let Some(data) = lookup(self, objectid::EXTENT_TREE, &key)? {
                let view = ExtentItemView::parse(key, &data)
                    .map_err(|v| Error::corrupt(v.rule.0, format!("extent item {key}: {}", v.reason)))?;
                return Ok((key, view));
            }
        }
        Err(Error::corrupt("XR-04", format!("extent {at} length {len} has no extent item")))
    }

    fn apply_refs(&mut self, at: Logical, head: &RefHead) -> Result<()> {
        let (key, mut view) = self.find_extent(at, head.kind, head.len)?;
        for &(back, delta) in &head.deltas {
            let refs = view.head.refs.get().checked_add_signed(delta).ok_or_else(|| underflow(at))?;
            view.head.refs = refs.into();
            self.apply_ref(at, &mut view, back, delta)?;
        }
        if view.head.refs.get() == 0 {
            let last = Key::new(at.0, KeyType::SHARED_DATA_REF, u64::MAX);
            self.remove_range(objectid::EXTENT_TREE, key, last)?;
            return self.free_extent(at, head.len, head.kind);
        }
        if head.set_full_backref {
            view.head.flags = (view.head.flags.get() | extent_flags::FULL_BACKREF).into();
        }
        let mut data = Vec::new();
        write_extent_item(&mut data, &view.head, view.tree_block_info.as_ref(), &view.inline);
        self.replace(objectid::EXTENT_TREE, key, &data)
    }

    /// Changes one reference's count, where it is: inline or keyed; a new one goes inline while there is room.
    fn apply_ref(&mut self, at: Logical, view: &mut ExtentItemView, back: BackRef, delta: i64) -> Result<()> {
        let inline = view.inline.iter().position(|r| matches!(r, InlineRef::Ref(b, _) if *b == back));
        if let Some(i) = inline {
            let InlineRef::Ref(_, old) = view.inline[i] else { unreachable!("just matched") };
            match i64::from(old) + delta {
                0 => _ = view.inline.remove(i),
                n if n > 0 => view.inline[i] = InlineRef::Ref(back, count(at, n)?),
                _ => return Err(underflow(at)),
            }
            return Ok(());
        }
        if let Some((key, old)) = self.find_keyed_ref(at, back)? {
            return match i64::from(old) + delta {
                0 => self.remove(objectid::EXTENT_TREE, key),
                n if n > 0 => self.replace(objectid::EXTENT_TREE, key, &back.keyed_data(count(at, n)?)),
                _ => Err(underflow(at)),
            };
        }
        if delta < 0 {
            return Err(Error::corrupt("XR-02", format!("extent {at} has no back reference {back:?}")));
        }
        if inline_bytes(view) + back.inline_len() <= self.inline_limit() {
            let place = view.inline.iter().position(|r| match r {
                InlineRef::Ref(b, _) => b.inline_order(&back).is_gt(),
                InlineRef::Owner(_) => false,
            });
            view.inline.insert(place.unwrap_or(view.inline.len()), InlineRef::Ref(back, count(at, delta)?));
            return Ok(());
        }
        let key = self.free_keyed_slot(at, back)?;
        self.insert(objectid::EXTENT_TREE, key, &back.keyed_data(count(at, delta)?))
    }

    /// The keyed item of `back`, if there is one. Data references with equal hashes stand side by side.
    pub(super) fn find_keyed_ref(&self, at: Logical, back: BackRef) -> Result<Option<(Key, u32)>> {
        let first = Key::new(at.0, back.key_type(), back.sequence());
        let last = Key::new(at.0, back.key_type(), if is_hashed(back) { u64::MAX } else { back.sequence() });
        let (mut found, mut expected) = (None, first.offset);
        walk_items(self, objectid::EXTENT_TREE, &first, &last, |item| {
            match BackRef::parse_keyed(item.key, item.data) {
                Some((b, n)) if b == back => found = Some((item.key, n)),
                _ => {}
            }
            let adjacent = item.key.offset == expected;
            expected = expected.wrapping_add(1);
            Ok(found.is_none() && adjacent)
        })?;
        Ok(found)
    }

    /// A key for a new keyed item: the hash, or the first free one behind it.
    fn free_keyed_slot(&self, at: Logical, back: BackRef) -> Result<Key> {
        let mut key = Key::new(at.0, back.key_type(), back.sequence());
        while let Some(c) = Cursor::at_or_after(self, objectid::EXTENT_TREE, &key)?
            && c.key() == key
        {
            key.offset = key.offset.wrapping_add(1);
        }
        Ok(key)
    }

    /// Gives back the space of an extent without references; data lose their checksums.
    fn free_extent(&mut self, at: Logical, len: u64, kind: ExtentKind) -> Result<()> {
        match kind {
            ExtentKind::Data => self.remove_csums(at, len)?,
            // What is there next is not to be overwritten.
            ExtentKind::TreeBlock { .. } => _ = self.dirty.remove(&at.0),
        }
        self.space.free(&self.volume.store, at, len)
    }
}

fn is_hashed(back: BackRef) -> bool {
    matches!(back, BackRef::Data { .. })
}

fn inline_bytes(view: &ExtentItemView) -> usize {
    let refs: usize = view
        .inline
        .iter()
        .map(|r| match r {
            InlineRef::Ref(back, _) => back.inline_len(),
            InlineRef::Owner(_) => 9,
        })
        .sum();
    24 + view.tree_block_info.map_or(0, |_| 18) + refs
}

fn tree_block_info(kind: ExtentKind) -> Option<TreeBlockInfo> {
    match kind {
        ExtentKind::TreeBlock { level, first_key } => Some(TreeBlockInfo { key: first_key.into(), level }),
        ExtentKind::Data => None,
    }
}

/// A reference's count as it is stored.
fn count(at: Logical, n: i64) -> Result<u32> {
    u32::try_from(n)
        .map_err(|_| Error::corrupt("XR-01", format!("extent {at} has {n} references of one kind")))
}

fn underflow(at: Logical) -> Error {
    Error::corrupt("XR-01", format!("extent {at} has fewer references than users"))
}
