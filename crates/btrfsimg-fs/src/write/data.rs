//! Placing encoded data: allocation, file extents, references.

use btrfsimg_ondisk::{
    BackRef, EXTENT_MAX, FileExtent, FileExtentKind, FileExtentRange, Key, KeyType, Logical, inode_flags,
};

use super::encode::{EncodedData, EncodedExtent};
use crate::error::Result;
use crate::txn::{ItemBatch, Transaction};

/// Where the stored bytes of an [`EncodedData`] went.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Start in the data, and address: pieces in order, each up to where the next starts.
    pieces: Vec<(usize, Logical)>,
}

impl Placement {
    /// The address of the extent whose stored bytes start at `start`.
    fn of(&self, start: usize) -> Logical {
        let i = self.pieces.partition_point(|(s, _)| *s <= start) - 1;
        let (piece, at) = self.pieces[i];
        Logical(at.0 + (start - piece) as u64)
    }
}

/// Allocates space for all of `data` and writes it: in one piece if there is one that long, else extent by extent.
///
/// # Errors
/// `NoSpace`, `Io`.
pub fn place(tx: &mut Transaction<'_>, data: &EncodedData, extents: &[&EncodedExtent]) -> Result<Placement> {
    if data.data.is_empty() {
        return Ok(Placement { pieces: Vec::new() });
    }
    if let Some(at) = tx.alloc_data_in_place(data.data.len() as u64)? {
        tx.write_data(at, &data.data)?;
        return Ok(Placement { pieces: vec![(0, at)] });
    }
    // One by one, so that what is left in the block groups is used before a chunk is added.
    let mut pieces = Vec::with_capacity(extents.len());
    for extent in extents.iter().filter(|e| !e.inline) {
        let at = tx.alloc_data(extent.stored.len() as u64)?;
        tx.write_data(at, &data.data[extent.stored.clone()])?;
        pieces.push((extent.stored.start, at));
    }
    Ok(Placement { pieces })
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
    for extent in extents {
        let mut item = FileExtent {
            generation: tx.transid(),
            ram_bytes: extent.num_bytes,
            compression: extent.compression,
            kind: FileExtentKind::Inline(&[]),
        };
        item.kind = match extent.inline {
            true => FileExtentKind::Inline(&data.inline[extent.stored.clone()]),
            false => FileExtentKind::Regular(create_extent(tx, owner, data, placement, extent)?),
        };
        nbytes += item.nbytes();
        let key = Key::new(owner.ino, KeyType::EXTENT_DATA, extent.file_offset);
        items.push_with(key, |out| item.write(out));
    }
    Ok(nbytes)
}

fn create_extent(
    tx: &mut Transaction<'_>,
    owner: &Owner,
    data: &EncodedData,
    placement: &Placement,
    extent: &EncodedExtent,
) -> Result<FileExtentRange> {
    let (at, len) = (placement.of(extent.stored.start), extent.stored.len() as u64);
    debug_assert!(len <= EXTENT_MAX);
    let (sectorsize, width) = (tx.sectorsize() as usize, tx.csum_width());
    let csums = match owner.flags & inode_flags::NODATASUM {
        0 => &data.csums[extent.stored.start / sectorsize * width..extent.stored.end / sectorsize * width],
        _ => &[],
    };
    let back = BackRef::Data { root: owner.tree, objectid: owner.ino, offset: extent.file_offset };
    tx.create_data_extent(at, len, back, csums)?;
    Ok(FileExtentRange {
        disk_bytenr: at.0.into(),
        disk_num_bytes: len.into(),
        offset: 0.into(),
        num_bytes: extent.num_bytes.into(),
    })
}
