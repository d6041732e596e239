//! What a copy does to files that are there already.

use btrfsimg_ondisk::Timespec;

/// Whether files that are there give way to those of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Existing {
    /// They get its contents: cp(1) itself.
    #[default]
    Replace,
    /// They go, and new ones come: `cp --remove-destination`.
    Remove,
    /// They stay: `cp -n`.
    Keep,
    /// They stay unless the copy's source was modified later: `cp -u`.
    Update,
}

impl Existing {
    /// Whether a regular file goes to where a symlink that stands there leads.
    pub(crate) fn follows_symlinks(self) -> bool {
        matches!(self, Existing::Replace | Existing::Update)
    }

    /// Whether what was modified at `there` stays when something modified at `new` comes.
    pub fn stays(self, there: Timespec, new: Timespec) -> bool {
        let key = |t: Timespec| (t.sec.get(), t.nsec.get());
        match self {
            Existing::Replace | Existing::Remove => false,
            Existing::Keep => true,
            Existing::Update => key(there) >= key(new),
        }
    }
}

/// Why a symlink that stands where a regular file of a tree goes is not written through. As cp(1) does, copies write through one
/// that leads to a regular file; but to none outside the tree that they go to: such a symlink may be from an image, and
/// nobody has named the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SymlinkFault {
    /// It leads to nothing.
    Dangling,
    /// Its way is absolute, or goes above the top of the tree.
    LeadsOut,
    /// It leads to something else than a regular file.
    NoFile,
}

impl std::fmt::Display for SymlinkFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SymlinkFault::Dangling => {
                "not writing through a dangling symlink (--remove-destination replaces it)"
            }
            SymlinkFault::LeadsOut => {
                "not writing through a symlink that leads out of the tree (--remove-destination replaces it)"
            }
            SymlinkFault::NoFile => {
                "not writing through a symlink to what is no regular file (--remove-destination replaces it)"
            }
        })
    }
}
