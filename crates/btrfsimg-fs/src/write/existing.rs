//! What a copy does to files that are there already.

use btrfsimg_ondisk::Timespec;

use crate::error::Result;
use crate::lookup::{self, Place};
use crate::txn::Transaction;

/// Whether files that are there give way to those of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Existing {
    /// They get its contents: cp(1) itself.
    #[default]
    Replace,
    /// They stay: `cp -n`.
    Keep,
    /// They stay unless the copy's source was modified later: `cp -u`.
    Update,
}

impl Existing {
    /// Whether the inode at `place` stays when one with this `mtime` comes.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn stays(self, tx: &Transaction<'_>, place: Place, mtime: Timespec) -> Result<bool> {
        let key = |t: Timespec| (t.sec.get(), t.nsec.get());
        Ok(match self {
            Existing::Replace => false,
            Existing::Keep => true,
            Existing::Update => key(lookup::inode(tx, place)?.mtime) >= key(mtime),
        })
    }
}
