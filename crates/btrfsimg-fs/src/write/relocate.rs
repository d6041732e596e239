//! Moves between subvolumes, which no rename can make: new inodes that share the extents of the old ones, which go.

use std::collections::HashMap;

use btrfsimg_ondisk::{FileType, InodeItem, inode_flags};

use super::contents::clone_range;
use super::create::create_as_given;
use super::inode::Attributes;
use super::link::link;
use super::names::{unlink, update_inode};
use super::remove::{remove_tree, unlink_checked};
use super::rename::{self, Named};
use super::subvol::remove_stand_in;
use crate::error::{Error, Result};
use crate::lookup::{self, Place, check_name, entries};
use crate::txn::Transaction;

/// Makes the entry `name` of `from_dir`, with all below it, the entry `new_name` of `to_dir`, a directory of another
/// subvolume. What has that name already goes, as in [`rename::rename`]. Owners, modes, times of access and change,
/// flags, xattrs and hard links within the tree stay; inode numbers and times of creation do not.
///
/// # Errors
/// As [`rename::rename`]; `Invalid` for a tree with a subvolume in it, which moves by itself.
pub fn relocate(
    tx: &mut Transaction<'_>,
    from_dir: Place,
    name: &[u8],
    to_dir: Place,
    new_name: &[u8],
) -> Result<()> {
    check_name(new_name)?;
    let shown = String::from_utf8_lossy(name).into_owned();
    let source = Named::find(tx, from_dir, name)?.ok_or_else(|| Error::NotFound(shown.clone()))?;
    let target = Named::find(tx, to_dir, new_name)?;
    rename::check(tx, &source, to_dir, new_name, target.as_ref())?;
    match &target {
        Some(old) if old.place.is_empty_dir() => remove_stand_in(tx, to_dir, new_name)?,
        Some(old) => unlink(tx, to_dir, new_name, old.place)?,
        None => {}
    }
    copy(tx, source.place, to_dir, new_name, &shown)?;
    match source.is_dir() {
        true => remove_tree(tx, from_dir, name, source.place, &shown),
        false => unlink_checked(tx, from_dir, name, source.place, &shown),
    }
}

/// An entry that is still to be copied.
struct Entry {
    from: Place,
    dir: Place,
    name: Vec<u8>,
    shown: String,
}

/// Copies an inode and all below it. Not recursive: trees may be deep.
fn copy(tx: &mut Transaction<'_>, from: Place, dir: Place, name: &[u8], shown: &str) -> Result<()> {
    let mut stack = vec![Entry { from, dir, name: name.to_vec(), shown: shown.to_owned() }];
    // New inodes of those with several names, and directories whose times are set when all is in them.
    let (mut linked, mut dirs) = (HashMap::new(), HashMap::new());
    while let Some(entry) = stack.pop() {
        if let Some(known) = linked.get(&entry.from) {
            link(tx, *known, entry.dir, &entry.name)?;
            continue;
        }
        let inode = lookup::inode(tx, entry.from)?;
        let place = copy_inode(tx, &entry, &inode)?;
        let is_dir = FileType::from_mode(inode.mode.get()) == Some(FileType::DIR);
        if !is_dir {
            if inode.nlink.get() > 1 {
                linked.insert(entry.from, place);
            }
            continue;
        }
        if dirs.insert(entry.from, (place, inode)).is_some() {
            return Err(Error::corrupt("LK-08", format!("{}: a directory loop", entry.shown)));
        }
        entries(tx, entry.from, |child| {
            let (_, child) = child?;
            let shown = format!("{}/{}", entry.shown, String::from_utf8_lossy(child.name));
            let target = lookup::target(tx, entry.from, child.name, child.location)?;
            if target.tree != entry.from.tree || target.is_empty_dir() {
                return Err(Error::Invalid(format!("{shown}: is a subvolume; move it by itself first")));
            }
            stack.push(Entry { from: target, dir: place, name: child.name.to_vec(), shown });
            Ok(true)
        })?;
    }
    dirs.into_values().try_for_each(|(place, inode)| set_times(tx, place, &inode))
}

/// Makes a new inode like another, with its contents.
fn copy_inode(tx: &mut Transaction<'_>, entry: &Entry, inode: &InodeItem) -> Result<Place> {
    let mut attributes = Attributes::new(inode.mode.get(), tx.now());
    (attributes.uid, attributes.gid) = (inode.uid.get(), inode.gid.get());
    // What fs-verity keeps beside the contents does not come along.
    (attributes.rdev, attributes.flags) = (inode.rdev.get(), inode.flags.get() & !inode_flags::RO_VERITY);
    (attributes.atime, attributes.mtime) = (inode.atime, inode.mtime);
    let xattrs = lookup::xattrs(tx, entry.from)?;
    let kind = attributes.file_type();
    let target = match kind {
        FileType::SYMLINK => Some(lookup::symlink_target(tx, entry.from)?),
        _ => None,
    };
    let place = create_as_given(tx, entry.dir, &entry.name, attributes, xattrs, target.as_deref())?;
    if kind == FileType::REG_FILE && inode.size.get() > 0 {
        let capability = lookup::xattr(tx, place, super::setxattr::CAPABILITY_XATTR)?;
        clone_range(tx, entry.from, 0..inode.size.get(), place, 0)?;
        // Writing takes it away; moving does not.
        if let Some(value) = capability {
            super::xattr::set_xattr(tx, place, super::setxattr::CAPABILITY_XATTR, &value)?;
        }
        set_times(tx, place, inode)?;
    }
    Ok(place)
}

fn set_times(tx: &mut Transaction<'_>, place: Place, like: &InodeItem) -> Result<()> {
    let mode = like.mode;
    update_inode(tx, place, |inode| {
        (inode.atime, inode.mtime, inode.mode) = (like.atime, like.mtime, mode);
    })
}
