//! Sharing extents between files.

use std::ops::Range;

use btrfsimg_ondisk::{FileExtent, FileExtentKind, KeyType, inode_flags};

use super::FILE_SIZE_MAX;
use super::drop::{BATCH, Extent};
use super::file::{OpenFile, inline_len, read_stored, regular};
use crate::error::{Error, Result};
use crate::lookup::{Place, file_extents, with_item};
use crate::txn::Transaction;
use crate::write::names::in_item;

/// Has the bytes of the file `to` from `at` on be those in `range` of the file `from`, by sharing their extents, as
/// `FICLONERANGE` does. Files of different subvolumes, or one and the same. `to` grows where they end beyond it. An
/// inline extent is copied.
///
/// # Errors
/// `IsDirectory`, `Invalid` when one is no regular file; `Invalid` when `at` or an end of `range` is no multiple of the
/// sector (but `range` may end where `from` does, if that is not before the end of `to`), `range` goes beyond
/// `from`, both overlap in one file, or only one of the files has checksums; `Corrupt`, `NoSpace`, `Io`.
#[doc(alias = "FICLONERANGE")]
pub fn clone_range(
    tx: &mut Transaction<'_>,
    from: Place,
    range: Range<u64>,
    to: Place,
    at: u64,
) -> Result<()> {
    let (from_size, _, from_flags) = regular(tx, from)?;
    let mut file = OpenFile::open(tx, to)?;
    if range.is_empty() {
        return Ok(());
    }
    let source = Source { place: from, size: from_size, flags: from_flags };
    let end = check(&file, &source, &range, at)?;
    file.extend(at)?;
    file.drop(at..at + (file.sector_end(range.end) - range.start))?;
    file.clone_all(&source, &range, at)?;
    file.size = file.size.max(end);
    let (first, last) = (file.sector_of(at), file.sector_end(end));
    file.fill_holes(first..last)?;
    file.finish()
}

/// Reads what [`clone_range`] reads of all of the file `from`: what is wrong with that is known before anything is
/// changed.
///
/// # Errors
/// `Corrupt`, `Io`.
pub(crate) fn check_source(tx: &mut Transaction<'_>, from: Place) -> Result<()> {
    let (size, _, flags) = regular(tx, from)?;
    let sector = u64::from(tx.sectorsize());
    let mut parts = Parts::of(from, 0..size.checked_next_multiple_of(sector).unwrap_or(size));
    if inline_len(tx, from)?.is_some() {
        // Of a larger file, it is decoded.
        if size > sector {
            read_stored(tx, from, flags, 0..sector)?;
        }
        parts.skip_to(sector);
    }
    while parts.next_batch(tx)?.len() == BATCH {}
    Ok(())
}

struct Source {
    place: Place,
    size: u64,
    flags: u64,
}

/// Says where the clone ends in `file`.
fn check(file: &OpenFile<'_, '_>, source: &Source, range: &Range<u64>, at: u64) -> Result<u64> {
    let invalid = |what: String| Err(Error::Invalid(format!("cannot share extents: {what}")));
    let (sector, len) = (file.sector, range.end - range.start);
    if range.end > source.size {
        return invalid(format!("bytes up to {} of a file of {}", range.end, source.size));
    }
    let end = at.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
    let Some(end) = end else { return invalid("the file would be too large".to_owned()) };
    if !at.is_multiple_of(sector) || !range.start.is_multiple_of(sector) {
        return invalid(format!("{} and {at} must be multiples of {sector}", range.start));
    }
    let at_ends = range.end == source.size && end >= file.size;
    if !range.end.is_multiple_of(sector) && !at_ends {
        return invalid(format!("{} is no multiple of {sector} and not the end of both files", range.end));
    }
    let covered = file.sector_end(range.end) - range.start;
    if source.place == file.place && at < range.start + covered && range.start < at + covered {
        return invalid("the ranges overlap".to_owned());
    }
    if (source.flags ^ file.flags) & inode_flags::NODATASUM != 0 {
        return invalid("one of the files has no checksums (nodatasum)".to_owned());
    }
    Ok(end)
}

/// What of a file's extents lies in a range, a batch at a time; no holes, nothing inline.
struct Parts {
    place: Place,
    range: Range<u64>,
    /// Where the next extent may begin at the earliest; the first one may begin before it.
    next: Option<u64>,
}

impl Parts {
    fn of(place: Place, range: Range<u64>) -> Parts {
        Parts { place, range, next: None }
    }

    /// Goes on at `start`, where no extent before it reaches to.
    fn skip_to(&mut self, start: u64) {
        self.next = Some(start);
    }

    /// The next ones: fewer than a batch are the last.
    fn next_batch(&mut self, tx: &Transaction<'_>) -> Result<Vec<Extent>> {
        let (mut parts, end) = (Vec::new(), self.range.end);
        let from = self.next.unwrap_or(self.range.start);
        if from >= end {
            return Ok(parts);
        }
        file_extents(tx, self.place, from, |start, extent| {
            let Some(extent) = Extent::new(start, &extent).filter(|e| e.start < end) else {
                return Ok(start < end);
            };
            if self.next.is_some_and(|next| start < next) {
                let (tree, ino) = (self.place.tree, self.place.ino);
                let reason =
                    format!("root={tree} inode {ino}: file extent at {start} overlaps the one before");
                return Err(Error::corrupt("FE-22", reason));
            }
            let part = extent.part(start.max(from), extent.end().min(end))?;
            self.next = Some(extent.end());
            if !extent.is_hole() {
                parts.push(part);
            }
            Ok(parts.len() < BATCH)
        })?;
        Ok(parts)
    }
}

impl OpenFile<'_, '_> {
    /// Puts the extents of `range` at `at`, where nothing is.
    fn clone_all(&mut self, source: &Source, range: &Range<u64>, at: u64) -> Result<()> {
        let mut parts = Parts::of(source.place, range.start..self.sector_end(range.end));
        if range.start == 0 && inline_len(self.tx, source.place)?.is_some() {
            self.copy_inline(source, range, at)?;
            parts.skip_to(self.sector);
        }
        loop {
            let mut shared = parts.next_batch(self.tx)?;
            for part in &mut shared {
                part.start = part.start - range.start + at;
            }
            self.put_shared(&shared)?;
            if shared.len() < BATCH {
                return Ok(());
            }
        }
    }

    /// Copies the inline extent of `source`: as it is when it is all of both files, else as a sector of bytes.
    fn copy_inline(&mut self, source: &Source, range: &Range<u64>, at: u64) -> Result<()> {
        let whole = range.end == source.size && source.size <= self.sector;
        if at == 0 && whole && self.is_one_sector()? {
            let key = source.place.key(KeyType::EXTENT_DATA, 0);
            let item = with_item(&*self.tx, source.place.tree, &key, |data| Ok(data.to_vec()))?;
            let item = item.unwrap_or_default();
            let extent = FileExtent::parse(&item).map_err(|v| in_item(key, &v))?;
            if let FileExtentKind::Inline(stored) = extent.kind {
                return self.put_inline(extent.ram_bytes, extent.compression, stored);
            }
        }
        let len = self.sector.min(source.size);
        let bytes = read_stored(self.tx, source.place, source.flags, 0..len)?;
        self.put_raw(at, &bytes)
    }
}
