//! An inode and all that is below it.

use std::collections::HashSet;
use std::ffi::OsString;

use anyhow::Context as _;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_ondisk::FileType;

use crate::address::{Address, ImageArgs};
use crate::edit::EditCx;

/// What chmod and chown change, where `first` is a path as well when a reference says how.
pub(crate) fn targets(
    image: &ImageArgs,
    first: &OsString,
    paths: &[OsString],
    has_reference: bool,
) -> anyhow::Result<Vec<Address>> {
    let first = has_reference.then_some(first);
    first.into_iter().chain(paths).map(|word| image.address(word)).collect()
}

/// An inode by one of its names.
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) file_type: FileType,
    /// As messages have it.
    pub(crate) shown: String,
}

/// Changes what each address of a command names, with `recursive` all below it too, and says the lines that `change`
/// gives. `follow`: a symlink leads to what is changed; below a directory none does.
pub(crate) fn change_each(
    cx: &mut EditCx<'_, '_>,
    recursive: bool,
    follow: bool,
    mut change: impl FnMut(&mut Transaction<'_>, &Found, bool) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<()> {
    let (mut said, verbose) = (Vec::new(), cx.verbose);
    cx.each(|cx, address| {
        let (place, shown) = (cx.resolve(address, follow)?, address.to_string());
        if !recursive {
            let found = Found { place, file_type: file_type(cx.tx, place)?, shown };
            said.extend(change(cx.tx, &found, verbose)?);
            return Ok(());
        }
        for_each_below(cx.tx, place, shown, |tx, found| {
            said.extend(change(tx, found, verbose).context(found.shown.clone())?);
            Ok(())
        })
    })?;
    said.into_iter().for_each(|line| cx.say(|| line));
    Ok(())
}

/// Calls `each` with the inode `top`, and, if it is a directory, with all entries below it, across subvolumes, a
/// directory before what is in it. No symlink is followed. Not recursive: trees may be deep.
fn for_each_below(
    tx: &mut Transaction<'_>,
    top: Place,
    shown: String,
    mut each: impl FnMut(&mut Transaction<'_>, &Found) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let file_type = file_type(tx, top)?;
    let mut seen = HashSet::new();
    let mut stack = vec![Found { place: top, file_type, shown }];
    while let Some(found) = stack.pop() {
        // What stands for a subvolume that is not there cannot be changed.
        if found.place.is_empty_dir() {
            continue;
        }
        each(tx, &found)?;
        tx.bound_memory()?;
        if found.file_type != FileType::DIR {
            continue;
        }
        if !seen.insert(found.place) {
            return Err(Error::corrupt("LK-08", format!("{}: a directory loop", found.shown)).into());
        }
        let before = stack.len();
        lookup::entries(tx, found.place, |entry| {
            let (_, entry) = entry?;
            let shown = format!("{}/{}", found.shown, crate::output::shown(entry.name));
            let place = lookup::target(tx, found.place, entry.name, entry.location)?;
            stack.push(Found { place, file_type: entry.file_type, shown });
            Ok(true)
        })?;
        stack[before..].reverse();
    }
    Ok(())
}

/// The type of an inode.
pub(crate) fn file_type(tx: &Transaction<'_>, place: Place) -> btrfsimg_fs::Result<FileType> {
    let mode = lookup::inode(tx, place)?.mode.get();
    Ok(FileType::from_mode(mode).unwrap_or(FileType::REG_FILE))
}
