//! Moves between subvolumes, which no rename can make: a copy, as of mv(1), and what was copied goes.

use super::tree::copy_one_subvolume;
use super::{Options, Reflink};
use crate::error::{Error, Result};
use crate::existing::Existing;
use crate::lookup::Place;
use crate::preserve::Preserve;
use crate::txn::Transaction;
use crate::write::encode::CompressionPolicy;
use crate::write::remove::{remove_tree, unlink_checked};
use crate::write::rename::Rename;

/// Makes the entry `name` of `from_dir`, with all below it, the entry `new_name` of `to_dir`, a directory of another
/// subvolume. What has that name already goes, as in [`rename`](crate::write::rename::rename). Owners, modes, times of access and change,
/// xattrs and hard links within the tree stay, and extents are shared; inode numbers and times of creation are new, and
/// so are inode flags: those that `to_dir` passes on, with its property where the source has none.
///
/// # Errors
/// As [`rename`](crate::write::rename::rename); `Invalid` for a tree with a subvolume in it, which moves by itself. The caller drops the
/// transaction then.
pub fn relocate(
    tx: &mut Transaction<'_>,
    from_dir: Place,
    name: &[u8],
    to_dir: Place,
    new_name: &[u8],
) -> Result<()> {
    let shown = String::from_utf8_lossy(name).into_owned();
    let change = Rename::find(tx, from_dir, name, to_dir, new_name)?;
    change.check(tx)?;
    change.remove_target(tx)?;
    let source = change.source;
    let options = Options {
        preserve: Preserve::ALL,
        reflink: Reflink::Auto,
        existing: Existing::Replace,
        compression: CompressionPolicy::default(),
        clamp: None,
        workers: 1,
        cancel: None,
        list: false,
    };
    let report = copy_one_subvolume(tx, source.place, name, to_dir, new_name, &options)?;
    if let Some((path, error)) = report.failures.into_iter().next() {
        return Err(match error {
            Error::Invalid(why) => Error::Invalid(format!("{}: {why}", String::from_utf8_lossy(&path))),
            error => error,
        });
    }
    match source.is_dir() {
        true => remove_tree(tx, from_dir, name, source.place, &shown),
        false => unlink_checked(tx, from_dir, name, source.place, &shown),
    }
}
