//! A new size, and holes.

use std::ops::Range;

use btrfsimg_ondisk::FileExtentKind;

use super::FILE_SIZE_MAX;
use super::file::{OpenFile, regular, usize_of};
use crate::error::{Error, Result};
use crate::lookup::{Place, file_extents};
use crate::txn::Transaction;

/// Gives the regular file at `place` the size `size`: what is beyond goes, what is added reads as zeros.
///
/// # Errors
/// `IsDirectory`, `Invalid` when it is no regular file or would be larger than [`FILE_SIZE_MAX`]; `Corrupt` when its
/// last sector cannot be read; `NoSpace`; `Io`.
pub fn truncate(tx: &mut Transaction<'_>, place: Place, size: u64) -> Result<()> {
    if size > FILE_SIZE_MAX {
        return Err(Error::Invalid(format!("file too large: {size} bytes, at most {FILE_SIZE_MAX}")));
    }
    let resize = |tx: &mut Transaction<'_>| {
        let mut file = OpenFile::open(tx, place)?;
        if size > file.size {
            file.grow(size)?
        } else {
            file.shrink(size)?
        }
        file.size = size;
        file.finish()
    };
    let (old, ..) = regular(tx, place)?;
    if size < old { tx.with_reserve(resize) } else { resize(tx) }
}

/// Makes a hole of the bytes `range` of the regular file at `place`, whose size stays; what is beyond it does not
/// count. Sectors that are in `range` only in part get zeros.
///
/// # Errors
/// As [`truncate`].
pub fn punch_hole(tx: &mut Transaction<'_>, place: Place, range: Range<u64>) -> Result<()> {
    tx.with_reserve(|tx| punch(tx, place, range))
}

fn punch(tx: &mut Transaction<'_>, place: Place, range: Range<u64>) -> Result<()> {
    let mut file = OpenFile::open(tx, place)?;
    let end = file.sector_end(file.size);
    // Up to the end of the file is up to the end of its last sector.
    let range = range.start..if range.end >= file.size { end } else { range.end };
    if range.is_empty() || !file.has_extents(&range)? {
        return Ok(());
    }
    let (first, last) = (file.sector_end(range.start), file.sector_of(range.end));
    if first > last {
        file.zero(range)?;
    } else {
        file.zero(range.start..first)?;
        file.zero(last..range.end)?;
        file.drop(first..last)?;
        file.fill_holes(first..last)?;
    }
    file.finish()
}

impl OpenFile<'_, '_> {
    fn grow(&mut self, size: u64) -> Result<()> {
        if size <= self.sector && self.inline_len()?.is_some() && self.is_one_sector()? {
            let bytes = self.read(0..size)?;
            return self.put_small(&bytes);
        }
        self.extend(self.sector_end(size))
    }

    fn shrink(&mut self, size: u64) -> Result<()> {
        self.drop(self.sector_end(size)..u64::MAX)?;
        match self.inline_len()? {
            Some(len) if len > size => {
                let bytes = self.read(0..size)?;
                self.put_small(&bytes)
            }
            _ => Ok(()),
        }
    }

    /// Whether anything but holes is in `range`.
    fn has_extents(&self, range: &Range<u64>) -> Result<bool> {
        let mut found = false;
        file_extents(&*self.tx, self.place, range.start, |start, extent| {
            let is_hole = matches!(extent.kind, FileExtentKind::Regular(r) if r.disk_bytenr.get() == 0);
            found = start < range.end && !is_hole;
            Ok(start < range.end && !found)
        })?;
        Ok(found)
    }

    /// Puts zeros in the place of `range`, a part of one sector.
    fn zero(&mut self, range: Range<u64>) -> Result<()> {
        let start = self.sector_of(range.start);
        if range.is_empty() || range.start >= self.size {
            return Ok(());
        }
        let mut bytes = self.read(start..start + self.sector)?;
        let part = &mut bytes[usize_of(range.start - start)?..usize_of(range.end - start)?];
        if part.iter().all(|b| *b == 0) {
            return Ok(());
        }
        part.fill(0);
        if self.size <= self.sector && self.inline_len()?.is_some() && self.is_one_sector()? {
            return self.put_small(&bytes[..usize_of(self.size)?]);
        }
        self.put_raw(start, &bytes)
    }
}
