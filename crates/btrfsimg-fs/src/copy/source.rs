//! Where copies come from.

use std::collections::HashSet;

use btrfsimg_ondisk::InodeItem;

use crate::error::Result;
use crate::lookup::{self, Place};
use crate::read::Filesystem;
use crate::txn::Transaction;
use crate::write::inode::Xattr;

/// The image that is copied from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// The one that is changed, as the transaction has it.
    Here,
    /// Another one, at rest.
    Other(&'a Filesystem),
}

/// An entry of a directory that is copied.
pub(super) struct Child {
    pub(super) name: Vec<u8>,
    pub(super) place: Place,
}

/// Does the same in either view.
macro_rules! in_view {
    ($source:expr, $tx:expr, $view:ident => $what:expr) => {
        match $source {
            Source::Here => {
                let $view = $tx;
                $what
            }
            Source::Other($view) => $what,
        }
    };
}

impl Source<'_> {
    pub(super) fn is_here(self) -> bool {
        matches!(self, Source::Here)
    }

    pub(super) fn inode(self, tx: &Transaction<'_>, place: Place) -> Result<InodeItem> {
        in_view!(self, tx, view => lookup::inode(view, place))
    }

    pub(super) fn xattrs(self, tx: &Transaction<'_>, place: Place) -> Result<Vec<Xattr>> {
        in_view!(self, tx, view => lookup::xattrs(view, place))
    }

    pub(super) fn symlink_target(self, tx: &Transaction<'_>, place: Place) -> Result<Vec<u8>> {
        in_view!(self, tx, view => lookup::symlink_target(view, place))
    }

    /// The entries of a directory, subvolumes by their root directories. What cannot be read is an error in its place.
    pub(super) fn entries(self, tx: &Transaction<'_>, dir: Place) -> Result<Vec<Result<Child>>> {
        in_view!(self, tx, view => {
            let (mut found, mut seen) = (Vec::new(), HashSet::new());
            lookup::entries(view, dir, |entry| {
                found.push(entry.and_then(|(_, entry)| match seen.insert(entry.name.to_vec()) {
                    true => Ok((entry.name.to_vec(), entry.location)),
                    false => Err(lookup::second_entry(dir, entry.name)),
                }));
                Ok(true)
            })?;
            let child = |(name, location): (Vec<u8>, _)| {
                Ok(Child { place: lookup::target(view, dir, &name, location)?, name })
            };
            Ok(found.into_iter().map(|entry| entry.and_then(child)).collect())
        })
    }
}
