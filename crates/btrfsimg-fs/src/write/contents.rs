//! Contents of existing inodes.

use btrfsimg_ondisk::{BackRef, FileExtent, KeyType};

use super::names::in_item;
use crate::error::Result;
use crate::lookup::Place;
use crate::tree::walk_items;
use crate::txn::Transaction;

/// Removes every file extent of an inode from the file offset `from` (a multiple of the sector) on, with its
/// reference to an extent on disk. Extents that begin before `from` stay whole.
///
/// # Errors
/// As any change of a tree.
pub fn drop_extents(tx: &mut Transaction<'_>, place: Place, from: u64) -> Result<()> {
    let (first, last) = (place.key(KeyType::EXTENT_DATA, from), place.key(KeyType::EXTENT_DATA, u64::MAX));
    let mut refs = Vec::new();
    walk_items(&*tx, place.tree, &first, &last, |item| {
        let extent = FileExtent::parse(item.data).map_err(|v| in_item(item.key, &v))?;
        if let (Some((at, len)), Some(range)) = (extent.disk_extent(), extent.range()) {
            refs.push((at, len, item.key.offset.wrapping_sub(range.offset.get())));
        }
        Ok(true)
    })?;
    // The leaves become this transaction's own first: where one was shared, its extents get the references of the
    // copy that are dropped here.
    tx.remove_range(place.tree, first, last)?;
    for (at, len, offset) in refs {
        let back = BackRef::Data { root: place.tree, objectid: place.ino, offset };
        tx.change_data_ref(at, len, back, -1)?;
    }
    Ok(())
}
