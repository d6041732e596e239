//! A regular file whose contents change.

use std::ops::Range;

use btrfsimg_compress::Algorithm;
use btrfsimg_ondisk::{FileExtent, FileExtentKind, FileExtentRange, FileType, KeyType};
use zerocopy::FromZeros as _;

use super::drop::{Extent, drop_range};
use crate::block_store::BlockStore;
use crate::error::{Error, Result};
use crate::lookup::{self, Contents, Place, Scratch, Segments, file_extents, read_segment, with_item};
use crate::txn::{ItemBatch, Transaction};
use crate::write::data::{self, Placement, place, push_extents};
use crate::write::encode::{EncodedData, EncodedExtent, Format};
use crate::write::names::{in_item, update_inode};
use crate::write::setxattr::CAPABILITY_XATTR;
use crate::write::xattr::{feature_of, remove_xattr};

impl Contents for Transaction<'_> {
    fn store(&self) -> &BlockStore {
        self.block_store()
    }
}

/// A file between its old and its new state. Size and `nbytes` go into the inode's item at [`OpenFile::finish`].
pub(super) struct OpenFile<'t, 'v> {
    pub(super) tx: &'t mut Transaction<'v>,
    pub(super) place: Place,
    pub(super) size: u64,
    pub(super) flags: u64,
    pub(super) sector: u64,
    nbytes: u64,
}

impl<'t, 'v> OpenFile<'t, 'v> {
    pub(super) fn open(tx: &'t mut Transaction<'v>, place: Place) -> Result<OpenFile<'t, 'v>> {
        let (size, nbytes, flags) = regular(tx, place)?;
        let sector = u64::from(tx.sectorsize());
        Ok(OpenFile { tx, place, size, flags, sector, nbytes })
    }

    /// Writes what changed into the inode's item.
    pub(super) fn finish(self) -> Result<()> {
        let (now, size, nbytes) = (self.tx.now(), self.size, self.nbytes);
        update_inode(self.tx, self.place, |inode| {
            (inode.size, inode.nbytes) = (size.into(), nbytes.into());
            (inode.mtime, inode.ctime) = (now, now);
        })?;
        remove_xattr(self.tx, self.place, CAPABILITY_XATTR)?;
        Ok(())
    }

    /// What the extents take, as the inode is to say it.
    pub(super) fn nbytes(&self) -> u64 {
        self.nbytes
    }

    pub(super) fn sector_of(&self, offset: u64) -> u64 {
        offset - offset % self.sector
    }

    /// The end of the sector that ends at or behind `offset`, which is at most [`super::FILE_SIZE_MAX`].
    pub(super) fn sector_end(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.sector)
    }

    pub(super) fn format(&self) -> Format {
        Format::of(self.tx)
    }

    /// The bytes `range` of the file, zeros beyond its size.
    pub(super) fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        let within = range.start..range.end.min(self.size).max(range.start);
        let mut bytes = self.read_stored(within)?;
        bytes.resize(usize_of(range.end - range.start)?, 0);
        Ok(bytes)
    }

    /// The bytes that are stored for `range`, beyond the size as well.
    pub(super) fn read_stored(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        read_stored(self.tx, self.place, self.flags, range)
    }

    /// Bytes of the inline extent, if the file has one.
    pub(super) fn inline_len(&self) -> Result<Option<u64>> {
        inline_len(self.tx, self.place)
    }

    /// Whether nothing is stored behind the first sector.
    pub(super) fn is_one_sector(&self) -> Result<bool> {
        let mut more = false;
        file_extents(&*self.tx, self.place, self.sector, |_, _| {
            more = true;
            Ok(false)
        })?;
        Ok(!more)
    }

    pub(super) fn drop(&mut self, range: Range<u64>) -> Result<()> {
        let dropped = drop_range(self.tx, self.place, range)?;
        self.nbytes = self.nbytes.saturating_sub(dropped);
        Ok(())
    }

    /// Puts `extents`, which cover `range` (whole sectors), in the place of what is there.
    pub(super) fn put(
        &mut self,
        range: Range<u64>,
        data: &EncodedData,
        extents: &[EncodedExtent],
    ) -> Result<()> {
        let placement = place(self.tx, data, &extents.iter().collect::<Vec<_>>())?;
        self.put_placed(range, data, extents, &placement)
    }

    /// The same with extents that have their places.
    pub(super) fn put_placed(
        &mut self,
        range: Range<u64>,
        data: &EncodedData,
        extents: &[EncodedExtent],
        placement: &Placement,
    ) -> Result<()> {
        self.drop(range)?;
        for algorithm in Algorithm::ALL {
            if extents.iter().any(|e| e.compression == algorithm.code()) {
                self.tx.set_incompat(feature_of(algorithm));
            }
        }
        let owner = data::Owner { tree: self.place.tree, ino: self.place.ino, flags: self.flags };
        let mut items = ItemBatch::new();
        let added = push_extents(self.tx, &mut items, &owner, data, placement, extents)?;
        self.nbytes = self.nbytes.saturating_add(added);
        self.tx.insert_batch(self.place.tree, &items)
    }

    /// Puts `bytes`, at least one and padded with zeros, as they are from the sector `start` on.
    pub(super) fn put_raw(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let (data, extent) = EncodedData::raw(start, bytes, &self.format());
        self.put(start..start + extent.num_bytes, &data, &[extent])
    }

    /// Puts `bytes` as the whole contents of a file of at most a sector: inline where they fit so, else raw.
    pub(super) fn put_small(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.format().fits_inline_raw(bytes.len()) {
            return self.put_raw(0, bytes);
        }
        self.put_inline(bytes.len() as u64, 0, bytes)
    }

    /// Puts an inline extent in the place of the first sector.
    pub(super) fn put_inline(&mut self, ram_bytes: u64, compression: u8, stored: &[u8]) -> Result<()> {
        self.drop(0..self.sector)?;
        let kind = FileExtentKind::Inline(stored);
        let extent = FileExtent { generation: self.tx.transid(), ram_bytes, compression, kind };
        self.nbytes = self.nbytes.saturating_add(extent.nbytes());
        let mut items = ItemBatch::new();
        items.push_with(self.place.key(KeyType::EXTENT_DATA, 0), |out| extent.write(out));
        self.tx.insert_batch(self.place.tree, &items)
    }

    /// Adds extents of other files as they are; each gets one more reference. Nothing is where they go.
    pub(super) fn put_shared(&mut self, extents: &[Extent]) -> Result<()> {
        let mut items = ItemBatch::new();
        for extent in extents {
            items.push_with(self.place.key(KeyType::EXTENT_DATA, extent.start), |out| extent.write(out));
            if !extent.is_hole() {
                self.nbytes = self.nbytes.saturating_add(extent.range.num_bytes.get());
            }
        }
        self.tx.insert_batch(self.place.tree, &items)?;
        extents.iter().try_for_each(|e| e.change_refs(self.tx, self.place, 1))
    }

    /// Makes the file ready to have bytes, or its new end, at the sector boundary `to`: what it shows between its
    /// size and there is zeros. Nothing happens to what lies at and behind `to`.
    pub(super) fn extend(&mut self, to: u64) -> Result<()> {
        if to >= self.sector {
            self.settle_inline()?;
        }
        let (tail, end) = (self.sector_of(self.size), self.sector_end(self.size));
        if tail < end && tail < to {
            self.zero_tail(tail)?;
        }
        if end < to {
            self.drop_stale(end..to)?;
            self.fill_holes(end..to)?;
        }
        Ok(())
    }

    /// Turns an inline extent shorter than a sector into a regular one, as nothing may follow such a one. (One that
    /// decodes to a whole sector stays: kernels leave it as well.)
    fn settle_inline(&mut self) -> Result<()> {
        if self.inline_len()?.is_none_or(|len| len >= self.sector) {
            return Ok(());
        }
        let bytes = self.read(0..self.sector)?;
        self.put_raw(0, &bytes)
    }

    /// Rewrites the sector `tail`, in which the file ends, if what is stored behind the end is not zeros: a truncation
    /// leaves the old bytes there.
    fn zero_tail(&mut self, tail: u64) -> Result<()> {
        let mut stored = self.read_stored(tail..tail + self.sector)?;
        let (_, behind) = stored.split_at_mut(usize_of(self.size - tail)?);
        if behind.iter().all(|b| *b == 0) {
            return Ok(());
        }
        behind.fill(0);
        self.put_raw(tail, &stored)
    }

    /// Drops data behind the file's end, which an unfinished write may have left; what is preallocated stays.
    fn drop_stale(&mut self, range: Range<u64>) -> Result<()> {
        let mut stale = Vec::new();
        file_extents(&*self.tx, self.place, range.start, |start, extent| {
            let is_data = matches!(extent.kind, FileExtentKind::Regular(_)) && extent.disk_extent().is_some();
            let found =
                start.max(range.start)..start.saturating_add(extent.covers(self.sector)).min(range.end);
            if is_data && !found.is_empty() {
                stale.push(found);
            }
            Ok(start < range.end)
        })?;
        stale.into_iter().try_for_each(|range| self.drop(range))
    }

    /// Adds hole items for what no extent covers in `range` (whole sectors), unless the image has NO_HOLES.
    pub(super) fn fill_holes(&mut self, range: Range<u64>) -> Result<()> {
        if self.tx.no_holes() || range.is_empty() {
            return Ok(());
        }
        let (mut gaps, mut next) = (Vec::new(), range.start);
        file_extents(&*self.tx, self.place, range.start, |start, extent| {
            if start > next {
                gaps.push(next..start.min(range.end));
            }
            next = next.max(start.saturating_add(extent.covers(self.sector)));
            Ok(next < range.end)
        })?;
        if next < range.end {
            gaps.push(next..range.end);
        }
        let mut items = ItemBatch::new();
        for gap in gaps {
            let (generation, len) = (self.tx.transid(), gap.end - gap.start);
            let range = FileExtentRange { num_bytes: len.into(), ..FileExtentRange::new_zeroed() };
            let kind = FileExtentKind::Regular(range);
            let hole = FileExtent { generation, ram_bytes: len, compression: 0, kind };
            items.push_with(self.place.key(KeyType::EXTENT_DATA, gap.start), |out| hole.write(out));
        }
        self.tx.insert_batch(self.place.tree, &items)
    }
}

/// Size, `nbytes` and flags of the regular file at `place`.
pub(super) fn regular(tx: &Transaction<'_>, place: Place) -> Result<(u64, u64, u64)> {
    let inode = lookup::inode(tx, place)?;
    let name = || format!("root={} inode {}", place.tree, place.ino);
    match FileType::from_mode(inode.mode.get()) {
        Some(FileType::REG_FILE) => {
            lookup::check_size(place, inode.size.get())?;
            Ok((inode.size.get(), inode.nbytes.get(), inode.flags.get()))
        }
        Some(FileType::DIR) => Err(Error::IsDirectory(name())),
        _ => Err(Error::Invalid(format!("{}: not a regular file", name()))),
    }
}

/// Bytes of the inline extent of the file at `place`, if it has one.
pub(super) fn inline_len(tx: &Transaction<'_>, place: Place) -> Result<Option<u64>> {
    let key = place.key(KeyType::EXTENT_DATA, 0);
    let found = with_item(tx, place.tree, &key, |data| {
        let extent = FileExtent::parse(data).map_err(|v| in_item(key, &v))?;
        Ok(matches!(extent.kind, FileExtentKind::Inline(_)).then_some(extent.ram_bytes))
    })?;
    Ok(found.flatten())
}

/// The bytes that are stored for `range` of a file with these flags. What a dry run has not written reads as bytes
/// that are not zero.
pub(crate) fn read_stored(
    tx: &mut Transaction<'_>,
    place: Place,
    flags: u64,
    range: Range<u64>,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize_of(range.end - range.start)?];
    if tx.is_dry_run() {
        bytes.fill(1);
        return Ok(bytes);
    }
    tx.flush_csums()?;
    let (owner, mut scratch) = (lookup::Owner::new(place, flags), Scratch::default());
    let mut segments = Segments::of(place, range.clone());
    while let Some(segment) = segments.next(&*tx)? {
        let at = usize_of(segment.offset - range.start)?;
        let part = &mut bytes[at..at + usize_of(segment.len)?];
        read_segment(&*tx, owner, &segment, 0, part, &mut scratch)?;
    }
    Ok(bytes)
}

pub(super) fn usize_of(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::Invalid(format!("{len} bytes at once")))
}
