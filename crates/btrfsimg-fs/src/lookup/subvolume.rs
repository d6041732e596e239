//! Subvolumes: which there are, and where.

use btrfsimg_ondisk::{Key, RootItem, objectid, root_flags};

use super::{Items, Place, find_entry, root_item};
use crate::error::{Error, Result};

/// The ROOT_ITEM of the subvolume `tree` and its key. `None` where there is none, or one that is being deleted.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn subvolume(items: &impl Items, tree: u64) -> Result<Option<(Key, RootItem)>> {
    if !objectid::is_fs_tree(tree) {
        return Ok(None);
    }
    Ok(root_item(items, tree)?.filter(|(_, item)| item.refs.get() != 0))
}

/// Whether the subvolume `tree` is read-only (the property `ro`).
///
/// # Errors
/// `NotFound` when there is no such subvolume; `Corrupt`, `Io`.
pub fn subvolume_is_readonly(items: &impl Items, tree: u64) -> Result<bool> {
    let (_, item) = root_item(items, tree)?.ok_or_else(|| Error::NotFound(format!("subvolume {tree}")))?;
    Ok(item.flags.get() & root_flags::RDONLY != 0)
}

/// The subvolume that is mounted when none is named: 5 when none was set.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn default_subvolume(items: &impl Items) -> Result<u64> {
    let dir = Place { tree: objectid::ROOT_TREE, ino: objectid::ROOT_TREE_DIR };
    let entry = find_entry(items, dir, b"default")?;
    Ok(entry.map_or(objectid::FS_TREE, |e| e.location.objectid))
}
