//! Placing encoded data: allocation, file extents, references.

use std::ops::Range;

use btrfsimg_compress::{Algorithm, Decoder};
use btrfsimg_ondisk::{
    BackRef, EXTENT_MAX, FileExtent, FileExtentKind, FileExtentRange, Key, KeyType, Logical, inode_flags,
};

use super::encode::{EncodedData, EncodedExtent, Format};
use crate::error::{Error, Result};
use crate::txn::{ItemBatch, Transaction};

/// Where the stored bytes of an [`EncodedData`] went.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Start in the data, and address: pieces in order, each up to where the next starts.
    pieces: Vec<(usize, Logical)>,
    /// Extents that are stored raw instead, by the start of what they were.
    raw: Vec<(usize, Raw)>,
}

/// An extent that was compressed, and is stored as it was before, where free space is in pieces.
#[derive(Clone, Debug)]
struct Raw {
    data: EncodedData,
    extent: EncodedExtent,
    placement: Placement,
}

impl Placement {
    /// The extent as it was placed, with what it is in.
    fn placed<'p>(
        &'p self,
        data: &'p EncodedData,
        extent: &'p EncodedExtent,
    ) -> (&'p EncodedData, &'p EncodedExtent, &'p Placement) {
        let is_it = |(start, _): &&(usize, Raw)| !extent.inline && *start == extent.stored.start;
        match self.raw.iter().find(is_it) {
            Some((_, raw)) => (&raw.data, &raw.extent, &raw.placement),
            None => (data, extent, self),
        }
    }

    /// Whether an extent that was compressed is stored raw.
    pub fn has_raw_instead(&self) -> bool {
        !self.raw.is_empty()
    }

    /// The extents on disk, as address and bytes, that `extents` of `data` were placed in.
    pub fn disk_extents<'p>(
        &'p self,
        data: &'p EncodedData,
        extents: impl IntoIterator<Item = &'p EncodedExtent>,
    ) -> impl Iterator<Item = (Logical, u64)> {
        extents.into_iter().filter(|extent| !extent.inline).flat_map(move |extent| {
            let (_, extent, placement) = self.placed(data, extent);
            placement.of(extent.stored.clone()).map(|(part, at)| (at, part.len() as u64))
        })
    }

    /// Where the stored bytes `range` are: ranges of them with their addresses.
    fn of(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Logical)> + '_ {
        let first = self.pieces.partition_point(|(start, _)| *start <= range.start).saturating_sub(1);
        let ends = self.pieces[first..].iter().skip(1).map(|(start, _)| *start).chain([usize::MAX]);
        let within = move |((piece, at), end): (&(usize, Logical), usize)| {
            let part = range.start.max(*piece)..range.end.min(end);
            let address = Logical(at.0 + (part.start - piece) as u64);
            (part.start < part.end).then_some((part, address))
        };
        self.pieces[first..].iter().zip(ends).map_while(within)
    }
}

/// Allocates space for all of `data` and writes it: in one piece if there is one that long, else extent by extent; one
/// that is compressed and fits nowhere in one piece is stored raw, in several.
///
/// # Errors
/// `NoSpace`, `Io`.
pub fn place(tx: &mut Transaction<'_>, data: &EncodedData, extents: &[&EncodedExtent]) -> Result<Placement> {
    if data.data.is_empty() {
        return Ok(Placement::default());
    }
    if let Some(at) = tx.alloc_data_in_place(data.data.len() as u64)? {
        tx.write_data(at, &data.data)?;
        return Ok(Placement { pieces: vec![(0, at)], ..Placement::default() });
    }
    // One by one, so that what is left in the block groups is used before a chunk is added.
    let mut placement = Placement::default();
    for extent in extents.iter().filter(|e| !e.inline) {
        match place_extent(tx, data, extent, &mut placement.pieces) {
            Err(full @ Error::NoSpace { .. }) if extent.compression != 0 => {
                let raw = place_raw(tx, data, extent).map_err(|error| match error {
                    Error::NoSpace { .. } => full,
                    other => other,
                })?;
                placement.raw.push((extent.stored.start, raw));
            }
            done => done?,
        }
    }
    Ok(placement)
}

/// Stores raw, as kernels do, what is compressed and does not fit in one piece.
fn place_raw(tx: &mut Transaction<'_>, data: &EncodedData, extent: &EncodedExtent) -> Result<Raw> {
    let unknown = || Error::Invalid(format!("compression {} of an extent", extent.compression));
    let algorithm = Algorithm::from_code(extent.compression).ok_or_else(unknown)?;
    let length = usize::try_from(extent.num_bytes).map_err(|_| unknown())?;
    let (stored, mut bytes) = (&data.data[extent.stored.clone()], vec![0; length]);
    Decoder::new()
        .decode_extent(algorithm, stored, tx.sectorsize(), &mut bytes)
        .map_err(|error| Error::Invalid(error.to_string()))?;
    let (data, extent) = EncodedData::raw(extent.file_offset, &bytes, &Format::of(tx));
    let mut placement = Placement::default();
    place_extent(tx, &data, &extent, &mut placement.pieces)?;
    Ok(Raw { data, extent, placement })
}

/// Allocates and writes one extent; one that is stored raw in several pieces, where free space is in pieces.
fn place_extent(
    tx: &mut Transaction<'_>,
    data: &EncodedData,
    extent: &EncodedExtent,
    pieces: &mut Vec<(usize, Logical)>,
) -> Result<()> {
    let sectorsize = tx.sectorsize() as usize;
    let (mut at, mut longest) = (extent.stored.start, extent.stored.len());
    while at < extent.stored.end {
        let len = longest.min(extent.stored.end - at);
        match tx.alloc_data(len as u64) {
            Ok(place) => {
                tx.write_data(place, &data.data[at..at + len])?;
                pieces.push((at, place));
                at += len;
            }
            Err(Error::NoSpace { .. }) if extent.compression == 0 && len > sectorsize => {
                longest = (len / 2).next_multiple_of(sectorsize);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The inode whose extents are placed.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Its subvolume.
    pub tree: u64,
    /// Its number.
    pub ino: u64,
    /// Its flags: data of a nodatasum inode have no checksums.
    pub flags: u64,
}

/// Adds the EXTENT_DATA items of one inode's extents, which are in file order, and notes their references and
/// checksums. Returns what they add to the inode's `nbytes`.
///
/// # Errors
/// As any change of a tree.
pub fn push_extents(
    tx: &mut Transaction<'_>,
    items: &mut ItemBatch,
    owner: &Owner,
    data: &EncodedData,
    placement: &Placement,
    extents: &[EncodedExtent],
) -> Result<u64> {
    let mut nbytes = 0;
    let placed: Vec<_> = extents.iter().map(|extent| placement.placed(data, extent)).collect();
    for &(data, extent, placement) in &placed {
        let mut push = |file_offset: u64, ram_bytes: u64, kind: FileExtentKind<'_>| {
            let item =
                FileExtent { generation: tx.transid(), ram_bytes, compression: extent.compression, kind };
            nbytes += item.nbytes();
            let key = Key::new(owner.ino, KeyType::EXTENT_DATA, file_offset);
            items.push_with(key, |out| item.write(out));
        };
        if extent.inline {
            let stored = FileExtentKind::Inline(&data.inline[extent.stored.clone()]);
            push(extent.file_offset, extent.num_bytes, stored);
            continue;
        }
        for (part, at) in placement.of(extent.stored.clone()) {
            // Only what is stored raw comes in parts, and there a stored byte is a byte of the file.
            let skipped = (part.start - extent.stored.start) as u64;
            let num_bytes = if extent.compression == 0 { part.len() as u64 } else { extent.num_bytes };
            let range = FileExtentRange {
                disk_bytenr: at.0.into(),
                disk_num_bytes: (part.len() as u64).into(),
                offset: 0.into(),
                num_bytes: num_bytes.into(),
            };
            push(extent.file_offset + skipped, num_bytes, FileExtentKind::Regular(range));
        }
    }
    for (data, extent, placement) in placed.into_iter().filter(|(_, extent, _)| !extent.inline) {
        for (part, at) in placement.of(extent.stored.clone()) {
            let file_offset = extent.file_offset + (part.start - extent.stored.start) as u64;
            create_extent(tx, owner, data, part, at, file_offset)?;
        }
    }
    Ok(nbytes)
}

/// Adds the EXTENT_DATA item of a hole: whole sectors that read as zeros. Only images without NO_HOLES need them.
pub fn push_hole(items: &mut ItemBatch, ino: u64, transid: u64, range: Range<u64>) {
    let num_bytes = range.end - range.start;
    let kind = FileExtentKind::Regular(FileExtentRange {
        disk_bytenr: 0.into(),
        disk_num_bytes: 0.into(),
        offset: 0.into(),
        num_bytes: num_bytes.into(),
    });
    let item = FileExtent { generation: transid, ram_bytes: num_bytes, compression: 0, kind };
    items.push_with(Key::new(ino, KeyType::EXTENT_DATA, range.start), |out| item.write(out));
}

/// Notes a data extent with its first reference and its checksums.
fn create_extent(
    tx: &mut Transaction<'_>,
    owner: &Owner,
    data: &EncodedData,
    stored: Range<usize>,
    at: Logical,
    file_offset: u64,
) -> Result<()> {
    if stored.len() as u64 > EXTENT_MAX {
        return Err(Error::Invalid(format!("an extent of {} bytes, at most {EXTENT_MAX}", stored.len())));
    }
    let (sectorsize, width) = (tx.sectorsize() as usize, tx.csum_width());
    let csums = match owner.flags & inode_flags::NODATASUM {
        0 => &data.csums[stored.start / sectorsize * width..stored.end / sectorsize * width],
        _ => &[],
    };
    let back = BackRef::Data { root: owner.tree, objectid: owner.ino, offset: file_offset };
    tx.create_data_extent(at, stored.len() as u64, back, csums)
}
