//! What a copy does to files that are there already.

use btrfsimg_ondisk::Timespec;

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
    /// Whether what was modified at `there` stays when something modified at `new` comes.
    pub fn stays(self, there: Timespec, new: Timespec) -> bool {
        let key = |t: Timespec| (t.sec.get(), t.nsec.get());
        match self {
            Existing::Replace => false,
            Existing::Keep => true,
            Existing::Update => key(there) >= key(new),
        }
    }
}
