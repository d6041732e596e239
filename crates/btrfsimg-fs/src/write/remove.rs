//! Removing names and trees.

use btrfsimg_ondisk::FileType;

use super::doomed::Doomed;
use super::names::{check_changeable, remove_entry, remove_inode_ref, unlink};
use crate::error::{Error, Result};
use crate::lookup::{Place, entries};
use crate::txn::Transaction;

/// Removes one name whose inode may be changed.
///
/// # Errors
/// `ReadOnly`; as any change of a tree.
pub fn unlink_checked(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    target: Place,
    shown: &str,
) -> Result<()> {
    check_changeable(tx, target, shown, true)?;
    tx.with_reserve(|tx| unlink(tx, dir, name, target))
}

/// Whether a directory has no entries.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn is_empty_dir(tx: &Transaction<'_>, dir: Place) -> Result<bool> {
    let mut empty = true;
    entries(tx, dir, |entry| {
        entry?;
        empty = false;
        Ok(false)
    })?;
    Ok(empty)
}

/// Removes the directory `name` of `dir`, whose inode is `top`, and all below it. Not recursive: trees may be deep.
///
/// All is looked at before anything changes. Then inodes go in their order, whole leaves at a time: directories are
/// not emptied entry by entry, so that a full image has room for it.
///
/// # Errors
/// `Invalid` when there is a subvolume in it; `ReadOnly` for inodes that may not go; as any change of a tree. The
/// caller drops the transaction then, so that nothing is removed.
pub fn remove_tree(tx: &mut Transaction<'_>, dir: Place, name: &[u8], top: Place, shown: &str) -> Result<()> {
    let mut doomed = Doomed::default();
    // A directory that holds itself would never end.
    let mut seen = std::collections::HashSet::from([top.ino]);
    let inode = check_changeable(tx, top, shown, true)?;
    doomed.add(tx, top, &inode, dir.ino, name)?;
    let mut stack = vec![(top, shown.to_owned())];
    while let Some((place, shown)) = stack.pop() {
        entries(&*tx, place, |entry| {
            let (_, entry) = entry?;
            let shown = format!("{shown}/{}", String::from_utf8_lossy(entry.name));
            if entry.is_subvolume() {
                return Err(Error::Invalid(format!("{shown}: is a subvolume; nothing was removed")));
            }
            let child = Place { tree: place.tree, ino: entry.location.objectid };
            let inode = check_changeable(tx, child, &shown, true)?;
            doomed.add(tx, child, &inode, place.ino, entry.name)?;
            if FileType::from_mode(inode.mode.get()) == Some(FileType::DIR) {
                if !seen.insert(child.ino) {
                    return Err(Error::corrupt("LK-08", format!("{shown}: a directory loop")));
                }
                stack.push((child, shown));
            }
            Ok(true)
        })?;
    }
    tx.with_reserve(|tx| {
        let index = remove_inode_ref(tx, top, dir.ino, name)?;
        remove_entry(tx, dir, name, index)?;
        doomed.remove(tx, dir.tree)
    })
}
