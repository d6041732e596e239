//! References to extents, gathered in memory and written to the extent tree in runs (`format/08 §8.3, 8.4`).

use std::collections::BTreeMap;

use btrfsimg_ondisk::{
    BackRef, ExtentItem, ExtentItemView, InlineRef, Key, KeyType, Logical, TreeBlockInfo, extent_flags,
    incompat, leaf_data_size, objectid, write_extent_item,
};

use rustc_hash::FxHashMap;

use super::{ItemBatch, Transaction};
use crate::error::{Error, Result};
use crate::tree::{Cursor, lookup, walk_items};

/// Items that can have been where the hash of a data reference points to and behind it: more are in no extent tree.
const COLLISIONS_MAX: u64 = u32::MAX as u64;

/// Changes of references in memory before they are written to the extent tree; half as many where more than
/// that wait.
const DELAYED_REFS_MAX: usize = 32 << 10;
/// References of new tree blocks wait: written all at once, the leaves that hold them are few and lie side by side, so
/// that a later change that copies one of them need not copy many more. So many do.
const WAITING_MAX: usize = 96 << 10;

/// Passes over the gathered references, and of the whole accounting, in which blocks are joined. A few are enough, as a
/// rule.
pub(super) const JOINING_PASSES: usize = 12;

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
    deltas: Deltas,
}

/// Changes of the references to one extent, in the order in which they came.
#[derive(Clone, Default, Debug)]
struct Deltas {
    list: Vec<(BackRef, i64)>,
    /// Where each is in the list, once that is longer than [`FEW`].
    index: FxHashMap<BackRef, usize>,
    sum: i64,
    /// How many are not 0.
    live: usize,
}

/// So many are searched one by one.
const FEW: usize = 8;

impl Deltas {
    fn position(&self, back: BackRef) -> Option<usize> {
        match self.list.len() {
            0..=FEW => self.list.iter().position(|(b, _)| *b == back),
            _ => self.index.get(&back).copied(),
        }
    }

    /// Says whether the reference is one that was not in the list.
    fn add(&mut self, back: BackRef, delta: i64) -> bool {
        let known = self.position(back);
        let at = known.unwrap_or(self.list.len());
        if known.is_none() {
            self.list.push((back, 0));
            // All of them, the first time.
            let from = if self.index.is_empty() { 0 } else { at };
            if self.list.len() > FEW {
                let new = self.list[from..].iter().zip(from..);
                self.index.extend(new.map(|((back, _), at)| (*back, at)));
            }
        }
        let count = &mut self.list[at].1;
        self.live -= usize::from(*count != 0);
        *count += delta;
        self.live += usize::from(*count != 0);
        self.sum += delta;
        known.is_none()
    }

    fn of(&self, back: BackRef) -> i64 {
        self.position(back).map_or(0, |at| self.list[at].1)
    }

    /// Those that are not 0.
    fn iter(&self) -> impl Iterator<Item = (BackRef, i64)> + '_ {
        self.list.iter().copied().filter(|(_, delta)| *delta != 0)
    }
}

/// Extents with changes, by logical address.
#[derive(Default, Debug)]
pub(super) struct DelayedRefs {
    heads: BTreeMap<u64, RefHead>,
    /// Changes of all of them.
    deltas: usize,
    /// How many were left when the others were written last.
    waiting: usize,
}

impl DelayedRefs {
    /// Notes a newly allocated extent with its first reference.
    pub(super) fn create(&mut self, at: Logical, len: u64, kind: ExtentKind, back: BackRef) {
        let mut deltas = Deltas::default();
        deltas.add(back, 1);
        self.deltas += 1;
        let head = RefHead { len, kind, is_new: true, set_full_backref: false, deltas };
        self.heads.insert(at.0, head);
    }

    /// Notes `delta` references more (or less). Says whether that ended an extent whose item was never written.
    pub(super) fn add(&mut self, at: Logical, len: u64, kind: ExtentKind, back: BackRef, delta: i64) -> bool {
        let head = self.head(at, len, kind);
        let more = usize::from(head.deltas.add(back, delta));
        let ended = head.is_new && head.deltas.live == 0;
        let gone = if ended { head.deltas.list.len() } else { 0 };
        if ended {
            self.heads.remove(&at.0);
        }
        self.deltas = self.deltas + more - gone;
        ended
    }

    /// Notes that the children of the block at `at` are referenced by it, not by its tree.
    pub(super) fn set_full_backref(&mut self, at: Logical, len: u64, kind: ExtentKind) {
        self.head(at, len, kind).set_full_backref = true;
    }

    fn head(&mut self, at: Logical, len: u64, kind: ExtentKind) -> &mut RefHead {
        let fresh = RefHead { len, kind, is_new: false, set_full_backref: false, deltas: Deltas::default() };
        self.heads.entry(at.0).or_insert(fresh)
    }

    /// The pending change of the number of references, whether FULL_BACKREF is to be set, and whether the extent has
    /// no item yet.
    fn pending(&self, at: Logical) -> (i64, bool, bool) {
        self.heads.get(&at.0).map_or((0, false, false), |h| (h.deltas.sum, h.set_full_backref, h.is_new))
    }

    /// Whether the item of the extent at `at` is yet to be written, and what is not written of its references: of all,
    /// and of `back`.
    pub(super) fn pending_of(&self, at: Logical, back: BackRef) -> (bool, i64, i64) {
        let Some(head) = self.heads.get(&at.0) else { return (false, 0, 0) };
        (head.is_new, head.deltas.sum, head.deltas.of(back))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// How many changes are in memory.
    pub(super) fn len(&self) -> usize {
        self.heads.len().max(self.deltas)
    }

    fn take(&mut self) -> BTreeMap<u64, RefHead> {
        std::mem::take(self).heads
    }

    /// Takes out all but the new tree blocks.
    fn take_others(&mut self) -> BTreeMap<u64, RefHead> {
        let waits = |head: &RefHead| head.is_new && head.kind != ExtentKind::Data;
        let (waiting, others) = self.take().into_iter().partition(|(_, head)| waits(head));
        self.heads = waiting;
        self.waiting = self.heads.len();
        self.deltas = self.heads.values().map(|head| head.deltas.list.len()).sum();
        others
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

    /// Writes all gathered references to the extent tree. Changing it gathers more: goes on until none are left. That
    /// comes to an end where blocks are only split; joined in between, they could be split again for ever.
    pub(super) fn run_refs(&mut self) -> Result<()> {
        let mut passes = 0;
        while !self.refs.is_empty() {
            let heads = self.refs.take();
            let joins = self.joins && passes < JOINING_PASSES;
            let before = std::mem::replace(&mut self.joins, joins);
            let written = self.write_refs(heads);
            self.joins = before;
            written?;
            passes += 1;
        }
        Ok(())
    }

    /// The same where many are gathered. Only where every extent has all its references: one that has none is freed.
    pub(super) fn bound_refs(&mut self) -> Result<()> {
        if self.refs.len() <= DELAYED_REFS_MAX.max(self.refs.waiting + DELAYED_REFS_MAX / 2) {
            return Ok(());
        }
        if self.refs.waiting > WAITING_MAX {
            return self.run_refs();
        }
        let heads = self.refs.take_others();
        self.write_refs(heads)
    }

    /// Has a transaction that changes very many inodes take no more memory: between two changes, when nothing is half
    /// done.
    ///
    /// # Errors
    /// As changing a tree.
    pub fn bound_memory(&mut self) -> Result<()> {
        self.spill()?;
        self.bound_refs()
    }

    fn write_refs(&mut self, heads: BTreeMap<u64, RefHead>) -> Result<()> {
        let mut new_items = ItemBatch::new();
        for (at, head) in heads {
            if head.is_new {
                self.push_new_extent(&mut new_items, Logical(at), &head)?;
            } else {
                self.apply_refs(Logical(at), &head)?;
            }
        }
        new_items.sort();
        self.insert_batch(objectid::EXTENT_TREE, &new_items)
    }

    /// Changes of references that are in memory.
    pub fn gathered_refs(&self) -> usize {
        self.refs.len()
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
            head.deltas.iter().map(|(b, n)| Ok((b, count(at, n)?))).collect::<Result<_>>()?;
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
        for (back, delta) in head.deltas.iter() {
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
        if delta < 0 {
            return self.drop_keyed(at, back, delta.unsigned_abs());
        }
        let (key, old) = self.keyed_slot(at, back)?;
        if let Some(old) = old {
            let data = back.keyed_data(count(at, i64::from(old) + delta)?);
            return self.replace(objectid::EXTENT_TREE, key, &data);
        }
        if inline_bytes(view) + back.inline_len() <= self.inline_limit() {
            let place = view.inline.iter().position(|r| match r {
                InlineRef::Ref(b, _) => b.inline_order(&back).is_gt(),
                InlineRef::Owner(_) => false,
            });
            view.inline.insert(place.unwrap_or(view.inline.len()), InlineRef::Ref(back, count(at, delta)?));
            return Ok(());
        }
        self.insert(objectid::EXTENT_TREE, key, &back.keyed_data(count(at, delta)?))
    }

    /// Takes `left` references out of the keyed items of `back`: mostly one, but a kernel makes a second one where the
    /// first stands behind a gap.
    fn drop_keyed(&mut self, at: Logical, back: BackRef, mut left: u64) -> Result<()> {
        while left > 0 {
            let (key, old) = self.find_keyed_ref(at, back)?.ok_or_else(|| {
                Error::corrupt("XR-02", format!("extent {at} has no back reference {back:?}"))
            })?;
            match u64::from(old) {
                0 => return Err(underflow(at)),
                old if old <= left => {
                    self.remove(objectid::EXTENT_TREE, key)?;
                    left -= old;
                }
                old => {
                    let rest = count(at, i64::try_from(old - left).map_err(|_| underflow(at))?)?;
                    return self.replace(objectid::EXTENT_TREE, key, &back.keyed_data(rest));
                }
            }
        }
        Ok(())
    }

    /// The keyed item of `back`, if there is one. A data reference is at its hash or, where others had that, behind it: side
    /// by side when they came, with gaps once some of them have gone.
    pub(super) fn find_keyed_ref(&self, at: Logical, back: BackRef) -> Result<Option<(Key, u32)>> {
        let first = Key::new(at.0, back.key_type(), back.sequence());
        let behind = if is_hashed(back) { COLLISIONS_MAX } else { 0 };
        let last = Key { offset: first.offset.saturating_add(behind), ..first };
        let mut found = None;
        walk_items(self, objectid::EXTENT_TREE, &first, &last, |item| {
            match BackRef::parse_keyed(item.key, item.data) {
                Some((b, n)) if b == back => found = Some((item.key, n)),
                _ => {}
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// Where a reference to `back` is added: its item at the hash or side by side behind it, with its count; else the
    /// first key there that is free. One behind a gap is not looked for, as kernels do not: all references of a root to
    /// an extent may stand there.
    fn keyed_slot(&self, at: Logical, back: BackRef) -> Result<(Key, Option<u32>)> {
        let mut key = Key::new(at.0, back.key_type(), back.sequence());
        while let Some(c) = Cursor::at_or_after(self, objectid::EXTENT_TREE, &key)?
            && c.key() == key
        {
            match BackRef::parse_keyed(key, c.item().data) {
                Some((b, n)) if b == back => return Ok((key, Some(n))),
                _ => key.offset = key.offset.wrapping_add(1),
            }
        }
        Ok((key, None))
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
