//! Directories that were there and take the attributes of the source's, as `cp -a SRC/. DST` has it.

use super::Importer;
use super::walk::Merged;
use crate::error::{Error, Result};
use crate::lookup::Place;
use crate::write::inode::COMPRESSION_XATTR;
use crate::write::names::update_inode;
use crate::write::xattr::{set_property_as_stored, set_xattr};

impl Importer<'_, '_> {
    /// Sets them, behind all that is put into the directories. xattrs that no leaf holds are failures.
    pub(super) fn settle_merged(&mut self) -> Result<()> {
        for Merged { relative, ino, attributes, xattrs } in std::mem::take(&mut self.walker.merged) {
            let place = Place { tree: self.tree, ino };
            for (name, value) in xattrs.sorted() {
                let set = match name == COMPRESSION_XATTR {
                    true => set_property_as_stored(self.tx, place, value),
                    false => set_xattr(self.tx, place, name, value),
                };
                match set {
                    Err(Error::Invalid(reason)) => self.walker.fail(&relative, &reason),
                    set => set?,
                }
            }
            update_inode(self.tx, place, |inode| {
                let a = &attributes;
                (inode.uid, inode.gid, inode.mode) = (a.uid.into(), a.gid.into(), a.mode.into());
                (inode.atime, inode.mtime) = (a.atime, a.mtime);
            })?;
        }
        Ok(())
    }
}
