//! What a copy does to files that are there already.

use btrfsimg_ondisk::{FileType, Timespec};

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

    /// What becomes of something of type `there`, or of that to which the symlink there leads, when something of type `new`
    /// comes to its name; each with the time of its modification. As in cp(1), but that this writes into pipes and devices.
    pub(crate) fn meeting(self, there: (FileType, Timespec), new: (FileType, Timespec)) -> Meeting {
        match (there.0, new.0) {
            (FileType::DIR, FileType::DIR) => Meeting::Merge,
            (_, FileType::DIR) => Meeting::Refuse("cannot overwrite something else with a directory"),
            _ if self.stays(there.1, new.1) => Meeting::Stay,
            (FileType::DIR, _) => Meeting::Refuse("cannot overwrite a directory with something else"),
            (FileType::REG_FILE, FileType::REG_FILE) => Meeting::Contents,
            (_, FileType::REG_FILE) if self != Existing::Remove => Meeting::Refuse(NO_FILE),
            _ => Meeting::Instead,
        }
    }
}

/// Why a regular file does not go to the name of a pipe, a device or a socket.
pub(crate) const NO_FILE: &str = "not overwriting what is no regular file (--remove-destination replaces it)";

/// What becomes of something when something else of its name comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meeting {
    /// A directory takes the entries of the other.
    Merge,
    /// A regular file takes the contents of the other, if its other names may have them.
    Contents,
    /// It goes, and the new one comes.
    Instead,
    /// It stays, and the new one does not come.
    Stay,
    /// The same, though it was not asked for.
    Refuse(&'static str),
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
