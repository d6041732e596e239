//! The subvolume that is mounted when none is named.

use btrfsimg_ondisk::{DirItems, FileType, KeyType, incompat, name_hash, objectid, write_dir_entry};

use super::super::names::in_item;
use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::tree::lookup as lookup_item;
use crate::txn::Transaction;

/// Makes `tree` the default subvolume; 5 is the top-level one, the default of a new file system.
///
/// # Errors
/// `NotFound` when there is no such subvolume; as any change of a tree.
pub fn set_default(tx: &mut Transaction<'_>, tree: u64) -> Result<()> {
    let Some((location, _)) = lookup::subvolume(tx, tree)? else {
        return Err(Error::NotFound(format!("subvolume {tree}")));
    };
    let dir = Place { tree: objectid::ROOT_TREE, ino: objectid::ROOT_TREE_DIR };
    let key = dir.key(KeyType::DIR_ITEM, name_hash(b"default"));
    let Some(bucket) = lookup_item(tx, dir.tree, &key)? else {
        return Err(Error::corrupt("ROOT-13", "the root tree has no entry for the default subvolume"));
    };
    let mut data = Vec::with_capacity(bucket.len());
    for entry in DirItems::parse(key, &bucket, tx.nodesize() as usize).map_err(|v| in_item(key, &v))? {
        let at = if entry.name == b"default" { location } else { entry.location };
        write_dir_entry(&mut data, at, entry.transid, FileType::DIR, entry.name, entry.data);
    }
    tx.replace(dir.tree, key, &data)?;
    tx.set_incompat(incompat::DEFAULT_SUBVOL);
    Ok(())
}
