//! The file that a command writes to.

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Place, find_entry, resolve, resolve_parent};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::names::check_changeable;

use crate::address::Address;

/// What becomes of a file that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is made: empty, 0:0, mode 0644.
    Make,
    /// Nothing is done.
    Leave,
}

/// The inode at `address`, symlinks followed; `None` where there is none and none is to be made.
pub(super) fn open_file(
    tx: &mut Transaction<'_>,
    start: Place,
    address: &Address,
    missing: Missing,
) -> Result<Option<Place>> {
    match resolve(tx, start, &address.path, true) {
        Ok(place) => return Ok(Some(place)),
        Err(Error::NotFound(_)) if missing == Missing::Leave => return Ok(None),
        Err(Error::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    if address.path.ends_with(b"/") {
        return Err(Error::IsDirectory(address.to_string()).into());
    }
    let (dir, name) = resolve_parent(tx, start, &address.path)?;
    if find_entry(tx, dir, name)?.is_some() {
        return Err(dangling().into());
    }
    check_changeable(tx, dir, &address.to_string(), false)?;
    let mut attributes = Attributes::new(0o100_666, tx.now());
    attributes.umask = 0o022;
    Ok(Some(create(tx, dir, name, attributes, Vec::new())?))
}

/// The error of writing to a symlink that leads to nothing.
pub(super) fn dangling() -> Error {
    Error::Invalid("not writing through a dangling symlink; remove it first".to_owned())
}
