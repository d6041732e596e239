//! Removing names and trees.

use btrfsimg_ondisk::FileType;

use super::names::{check_changeable, unlink};
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
    unlink(tx, dir, name, target)
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

/// An entry on its way out.
struct Doomed {
    dir: Place,
    name: Vec<u8>,
    place: Place,
    shown: String,
}

/// Removes the directory `name` of `dir`, whose inode is `top`, and all below it. Not recursive: trees may be deep.
///
/// # Errors
/// `Invalid` when there is a subvolume in it; `ReadOnly` for inodes that may not go; as any change of a tree. The
/// caller drops the transaction then, so that nothing is removed.
pub fn remove_tree(tx: &mut Transaction<'_>, dir: Place, name: &[u8], top: Place, shown: &str) -> Result<()> {
    // A directory that holds itself would never end.
    let mut on_stack = std::collections::HashSet::from([top.ino]);
    let mut stack = vec![Doomed { dir, name: name.to_vec(), place: top, shown: shown.to_owned() }];
    while let Some(last) = stack.last() {
        let (place, shown) = (last.place, last.shown.clone());
        check_changeable(tx, place, &shown, true)?;
        let before = stack.len();
        let mut leaves = Vec::new();
        entries(tx, place, |entry| {
            let (_, entry) = entry?;
            let shown = format!("{shown}/{}", String::from_utf8_lossy(entry.name));
            if entry.is_subvolume() {
                return Err(Error::Invalid(format!("{shown}: is a subvolume; nothing was removed")));
            }
            let child = Place { tree: place.tree, ino: entry.location.objectid };
            let doomed = Doomed { dir: place, name: entry.name.to_vec(), place: child, shown };
            if entry.file_type != FileType::DIR {
                leaves.push(doomed);
            } else if on_stack.insert(child.ino) {
                stack.push(doomed);
            } else {
                return Err(Error::corrupt("LK-08", format!("{}: a directory loop", doomed.shown)));
            }
            Ok(true)
        })?;
        for leaf in leaves {
            unlink_checked(tx, leaf.dir, &leaf.name, leaf.place, &leaf.shown)?;
        }
        if stack.len() == before {
            let done = stack.pop().expect("it was just the last");
            on_stack.remove(&done.place.ino);
            unlink(tx, done.dir, &done.name, done.place)?;
        }
    }
    Ok(())
}
