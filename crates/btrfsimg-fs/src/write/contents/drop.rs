//! Taking a range out of a file's extents.

use std::ops::Range;

use btrfsimg_ondisk::{BackRef, FileExtent, FileExtentKind, FileExtentRange, KeyType};

use crate::error::{Error, Result};
use crate::lookup::{Place, file_extents};
use crate::txn::Transaction;

/// File extents that are looked at together.
pub(super) const BATCH: usize = 1024;

/// A file extent that is not inline, on its own.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// Where in the file.
    pub(super) start: u64,
    pub(super) generation: u64,
    pub(super) ram_bytes: u64,
    pub(super) compression: u8,
    pub(super) prealloc: bool,
    pub(super) range: FileExtentRange,
}

impl Extent {
    /// The extent at the file offset `start`; `None` when it is inline.
    pub(super) fn new(start: u64, extent: &FileExtent<'_>) -> Option<Extent> {
        let range = *extent.range()?;
        let prealloc = matches!(extent.kind, FileExtentKind::Prealloc(_));
        let (generation, ram_bytes, compression) = (extent.generation, extent.ram_bytes, extent.compression);
        Some(Extent { start, generation, ram_bytes, compression, prealloc, range })
    }

    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.range.num_bytes.get())
    }

    pub(super) fn is_hole(&self) -> bool {
        self.range.disk_bytenr.get() == 0
    }

    /// The part that covers `from..to` of the file, which lies inside: the same extent on disk, seen through a
    /// smaller window.
    pub(super) fn part(&self, from: u64, to: u64) -> Result<Extent> {
        let mut part = Extent { start: from, ..*self };
        part.range.num_bytes = (to - from).into();
        if self.is_hole() {
            // Of one that the kernel cut, the offset is not 0.
            (part.ram_bytes, part.range.offset) = (to - from, 0.into());
        } else {
            let offset = self.range.offset.get().checked_add(from - self.start);
            part.range.offset = offset
                .ok_or_else(|| {
                    Error::corrupt("FE-15", format!("file extent at {} wraps around", self.start))
                })?
                .into();
        }
        Ok(part)
    }

    /// What refers to its extent on disk when it belongs to `place`.
    pub(super) fn back_ref(&self, place: Place) -> BackRef {
        let offset = self.start.wrapping_sub(self.range.offset.get());
        BackRef::Data { root: place.tree, objectid: place.ino, offset }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let kind = match self.prealloc {
            true => FileExtentKind::Prealloc(self.range),
            false => FileExtentKind::Regular(self.range),
        };
        let (generation, ram_bytes, compression) = (self.generation, self.ram_bytes, self.compression);
        FileExtent { generation, ram_bytes, compression, kind }.write(out);
    }

    /// Changes the references of `place` to its extent on disk, unless it is a hole.
    pub(super) fn change_refs(&self, tx: &mut Transaction<'_>, place: Place, delta: i64) -> Result<()> {
        if self.is_hole() || delta == 0 {
            return Ok(());
        }
        let (at, len) = (self.range.disk_bytenr.get(), self.range.disk_num_bytes.get());
        tx.change_data_ref(btrfsimg_ondisk::Logical(at), len, self.back_ref(place), delta)
    }
}

/// Removes the bytes `range` from the file extents of an inode, with the references to what is on disk. Extents that
/// reach beyond keep the rest: in two parts, when `range` lies inside. Returns what that takes from the inode's
/// `nbytes`; the inode's item is the caller's to change.
///
/// Both ends are multiples of the sector; an end of `u64::MAX` means all.
///
/// # Errors
/// `Corrupt`; as any change of a tree.
pub fn drop_range(tx: &mut Transaction<'_>, place: Place, range: Range<u64>) -> Result<u64> {
    let (mut next, mut nbytes) = (range.start, 0_u64);
    while next < range.end {
        let overlapping = overlapping(tx, place, next..range.end)?;
        let Some(last) = overlapping.last() else { break };
        next = last.end;
        nbytes = nbytes.saturating_add(drop_batch(tx, place, &overlapping, &range)?);
        if overlapping.len() < BATCH {
            break;
        }
    }
    Ok(nbytes)
}

/// An item that overlaps what is dropped.
struct Overlapping {
    start: u64,
    end: u64,
    nbytes: u64,
    /// `None` for an inline one.
    extent: Option<Extent>,
}

/// The first items of the file that overlap `range`.
fn overlapping(tx: &Transaction<'_>, place: Place, range: Range<u64>) -> Result<Vec<Overlapping>> {
    let sectorsize = u64::from(tx.sectorsize());
    let mut found = Vec::new();
    file_extents(tx, place, range.start, |start, extent| {
        if start >= range.end {
            return Ok(false);
        }
        let end = start.saturating_add(extent.covers(sectorsize));
        let (from, to) = (start.max(range.start), end.min(range.end));
        let whole = extent.nbytes();
        let own = Extent::new(start, &extent);
        if own.is_none() && (from, to) != (start, end) {
            let reason = format!("root={} inode {}: inline extent of {whole} bytes", place.tree, place.ino);
            return Err(Error::corrupt("FE-19", reason));
        }
        let nbytes = if own.is_some_and(|e| !e.is_hole()) { to - from } else { whole };
        found.push(Overlapping { start, end, nbytes, extent: own });
        Ok(found.len() < BATCH)
    })?;
    Ok(found)
}

fn drop_batch(
    tx: &mut Transaction<'_>,
    place: Place,
    items: &[Overlapping],
    range: &Range<u64>,
) -> Result<u64> {
    let key = |offset| place.key(KeyType::EXTENT_DATA, offset);
    let (mut nbytes, mut data) = (0_u64, Vec::new());
    // The leaves become this transaction's own first: where one was shared, its extents get the references of the
    // copy that are dropped here.
    if let (Some(first), Some(last)) = (items.iter().find(|i| i.start >= range.start), items.last()) {
        tx.remove_range(place.tree, key(first.start), key(last.start))?;
    }
    for item in items {
        nbytes = nbytes.saturating_add(item.nbytes);
        let Some(extent) = &item.extent else { continue };
        let mut parts = 0;
        if item.start < range.start {
            data.clear();
            extent.part(item.start, range.start)?.write(&mut data);
            tx.replace(place.tree, key(item.start), &data)?;
            parts += 1;
        }
        if item.end > range.end {
            data.clear();
            extent.part(range.end, item.end)?.write(&mut data);
            tx.insert(place.tree, key(range.end), &data)?;
            parts += 1;
        }
        // Head and tail have the same back reference: their offsets in file and extent grow together.
        extent.change_refs(tx, place, parts - 1)?;
    }
    Ok(nbytes)
}
