//! Directories that were there and take the attributes of the source's, as `cp -a SRC/. DST` has it.

use super::Importer;
use super::walk::Merged;
use crate::error::Result;
use crate::lookup::Place;
use crate::write::names::update_inode;

impl Importer<'_, '_> {
    /// Sets them, behind all that is put into the directories. xattrs that no leaf holds are failures.
    pub(super) fn settle_merged(&mut self) -> Result<()> {
        let preserve = self.options.preserve;
        for Merged { relative, ino, attributes: from, xattrs } in std::mem::take(&mut self.walker.merged) {
            let place = Place { tree: self.tree, ino };
            self.put_xattrs(place, &relative, &xattrs)?;
            update_inode(self.tx, place, |inode| {
                preserve.put_access(inode, (from.mode, from.uid, from.gid));
                if preserve.times {
                    (inode.atime, inode.mtime) = (from.atime, from.mtime);
                }
            })?;
        }
        Ok(())
    }
}
