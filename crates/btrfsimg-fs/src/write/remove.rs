//! Removing names and trees.

use btrfsimg_ondisk::FileType;

use super::doomed::Doomed;
use super::names::{check_attributes, check_changeable, remove_entry, remove_inode_ref, unlink};
use super::subvol::{self, DeleteOptions};
use crate::error::{Error, Result};
use crate::lookup::{Place, entries, find_entry, target};
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
    check_attributes(tx, target, shown)?;
    tx.with_reserve(|tx| unlink(tx, dir, name, target))
}

/// Removes the empty directory `name`, or what stands for a subvolume that is not there.
///
/// # Errors
/// `NotEmpty`; `ReadOnly`; `Invalid` for a subvolume; as any change of a tree.
pub fn rmdir(tx: &mut Transaction<'_>, dir: Place, name: &[u8], shown: &str) -> Result<()> {
    let entry = find_entry(tx, dir, name)?.ok_or_else(|| Error::NotFound(shown.to_owned()))?;
    let place = target(tx, dir, name, entry.location)?;
    check_changeable(tx, dir, shown, true)?;
    if place.is_empty_dir() {
        return subvol::remove_stand_in(tx, dir, name);
    }
    // Who may not is told so before what it is, as the kernel does.
    if !entry.is_subvolume() {
        check_attributes(tx, place, shown)?;
    }
    if entry.file_type != FileType::DIR {
        return Err(Error::NotDirectory(shown.to_owned()));
    }
    if entry.is_subvolume() {
        return Err(Error::Invalid(format!(
            "{shown}: is a subvolume; delete it with 'btrfsimg subvol delete'"
        )));
    }
    if has_entries(tx, place)? {
        return Err(Error::NotEmpty(shown.to_owned()));
    }
    tx.with_reserve(|tx| unlink(tx, dir, name, place))
}

/// Whether there is anything in a directory.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn has_entries(tx: &Transaction<'_>, dir: Place) -> Result<bool> {
    let mut any = false;
    entries(tx, dir, |entry| {
        entry?;
        any = true;
        Ok(false)
    })?;
    Ok(any)
}

/// How a tree is removed.
pub struct RemoveOptions<'o> {
    /// Subvolumes in it are deleted, with those in them ([`subvol::delete_with`]); else they are a reason to refuse.
    pub subvolumes: bool,
    /// Told of what is removed, a directory before what is in it, and whether it is a directory.
    pub removed: &'o mut dyn FnMut(&str, bool),
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
    let mut options = RemoveOptions { subvolumes: false, removed: &mut |_, _| {} };
    remove_tree_with(tx, dir, name, top, shown, &mut options)
}

/// The same by options.
///
/// # Errors
/// As [`remove_tree`], and [`subvol::delete_with`].
pub fn remove_tree_with(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    top: Place,
    shown: &str,
    options: &mut RemoveOptions<'_>,
) -> Result<()> {
    let (mut doomed, mut subvolumes) = (Doomed::default(), Vec::new());
    // A directory that holds itself would never end.
    let mut seen = std::collections::HashSet::from([top.ino]);
    let inode = check_attributes(tx, top, shown)?;
    doomed.add(tx, top, &inode, dir.ino, name)?;
    (options.removed)(shown, true);
    let mut stack = vec![(top, shown.to_owned())];
    while let Some((place, shown)) = stack.pop() {
        entries(&*tx, place, |entry| {
            let (_, entry) = entry?;
            let shown = format!("{shown}/{}", String::from_utf8_lossy(entry.name));
            let child = target(tx, place, entry.name, entry.location)?;
            if entry.is_subvolume() {
                if !options.subvolumes && !child.is_empty_dir() {
                    return Err(Error::Invalid(format!(
                        "{shown}: is a subvolume; nothing was removed ('rm -r --subvol' removes it too)"
                    )));
                }
                // What stands for one that is not there goes with its directory.
                if !child.is_empty_dir() {
                    subvolumes.push((place, entry.name.to_vec(), shown.clone()));
                }
                (options.removed)(&shown, true);
                return Ok(true);
            }
            let inode = check_attributes(tx, child, &shown)?;
            doomed.add(tx, child, &inode, place.ino, entry.name)?;
            let is_dir = FileType::from_mode(inode.mode.get()) == Some(FileType::DIR);
            (options.removed)(&shown, is_dir);
            if is_dir {
                if !seen.insert(child.ino) {
                    return Err(Error::corrupt("LK-08", format!("{shown}: a directory loop")));
                }
                stack.push((child, shown));
            }
            Ok(true)
        })?;
    }
    tx.with_reserve(|tx| {
        for (dir, name, shown) in &subvolumes {
            let mut options = DeleteOptions { shown, recursive: true, drop_at_once: 0, deleted: &mut |_| {} };
            subvol::delete_with(tx, *dir, name, &mut options)?;
        }
        let index = remove_inode_ref(tx, top, dir.ino, name)?;
        remove_entry(tx, dir, name, index)?;
        doomed.remove(tx, dir.tree)
    })
}
