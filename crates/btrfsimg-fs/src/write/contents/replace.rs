//! The same bytes in other extents.

use std::ops::Range;

use btrfsimg_ondisk::KeyType;
use zerocopy::IntoBytes as _;

use super::file::OpenFile;
use crate::error::Result;
use crate::lookup::{self, Place};
use crate::txn::Transaction;
use crate::write::data::Placement;
use crate::write::encode::{EncodedData, EncodedExtent};

/// Puts `extents`, which hold the bytes that are there and have their places, where something else covers `range` (whole
/// sectors, all of it covered). Size, times, sequence and xattrs stay: the file is as it was.
///
/// # Errors
/// `IsDirectory`, `Invalid` when it is no regular file; `NoSpace` for metadata, `Corrupt`, `Io`.
pub fn replace_extents(
    tx: &mut Transaction<'_>,
    place: Place,
    range: Range<u64>,
    data: &EncodedData,
    extents: &[EncodedExtent],
    placement: &Placement,
) -> Result<()> {
    let mut file = OpenFile::open(tx, place)?;
    file.put_placed(range, data, extents, placement)?;
    let nbytes = file.nbytes();
    let mut inode = lookup::inode(tx, place)?;
    (inode.nbytes, inode.transid) = (nbytes.into(), tx.transid().into());
    tx.replace(place.tree, place.key(KeyType::INODE_ITEM, 0), inode.as_bytes())?;
    tx.touch_subvolume(place.tree)
}
