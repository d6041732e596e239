//! What a copy keeps of its source: one rule for copies into, out of, within and between images.

use btrfsimg_ondisk::{FileType, InodeItem};

use crate::existing::Existing;
use crate::posix_acl::is_acl;

/// The permission bits of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Modes {
    /// Those of the source, also for what was there, and the ACLs that say more than those. Setuid and setgid bits are
    /// rights of the owner: they come along where that does.
    Kept,
    /// Those of the source for what is new, as far as the umask leaves them: cp(1) itself.
    OfNew,
    /// Of what is new those of any new file or directory, whatever the source has: `cp --no-preserve=mode`.
    Default,
}

/// What a copy keeps of its source. Each stands by itself, as the words of cp(1)'s `--preserve` do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preserve {
    /// The permission bits.
    pub mode: Modes,
    /// Owner and group.
    pub owner: bool,
    /// The times.
    pub times: bool,
    /// Xattrs but ACLs, the compression property too.
    pub xattrs: bool,
    /// Several names of one inode stay one inode; else each name is a file of its own.
    pub links: bool,
    /// What chattr(1) sets: only for images that are made, as cp(1) has nothing like it.
    pub flags: bool,
}

impl Preserve {
    /// All of them.
    pub const ALL: Preserve =
        Preserve { mode: Modes::Kept, owner: true, times: true, xattrs: true, links: true, flags: true };
    /// None of them.
    pub const NONE: Preserve = Preserve {
        mode: Modes::OfNew,
        owner: false,
        times: false,
        xattrs: false,
        links: false,
        flags: false,
    };

    /// Whether what was there gets the mode of the source as well.
    pub fn keeps_mode(&self) -> bool {
        self.mode == Modes::Kept
    }

    /// Whether the xattr `name` comes along. An ACL is a part of the mode: a mode without its ACL would give the group what
    /// the ACL's mask says.
    pub(crate) fn takes_xattr(&self, name: &[u8]) -> bool {
        if is_acl(name) { self.keeps_mode() } else { self.xattrs }
    }

    /// Whether any xattr may come along.
    pub(crate) fn takes_xattrs(&self) -> bool {
        self.keeps_mode() || self.xattrs
    }

    /// Whether what was there gets anything but contents.
    pub(crate) fn changes_existing(&self) -> bool {
        self.keeps_mode() || self.owner || self.times || self.xattrs
    }

    /// The mode of what is new in an image, made of the source's. No umask takes from that; a new file that nobody
    /// gives a mode has 0644, a directory 0755.
    pub(crate) fn mode_of_new(&self, mode: u32) -> u32 {
        match self.mode {
            Modes::Kept if self.owner => mode,
            Modes::Kept | Modes::OfNew => mode & !0o6000,
            Modes::Default if FileType::from_mode(mode) == Some(FileType::SYMLINK) => mode,
            Modes::Default => mode & !0o7777 | default_mode(mode) & !0o022,
        }
    }

    /// The mode that something new is made with on the host, where the umask takes from it.
    pub(crate) fn creation_mode(&self, mode: u32) -> u32 {
        if self.mode == Modes::Default { default_mode(mode) } else { mode & 0o777 }
    }

    /// Gives an inode that was there the source's owner and mode, as far as they are kept. A new owner is not given the rights
    /// of the old one's programs.
    pub(crate) fn put_access(&self, inode: &mut InodeItem, (mode, uid, gid): (u32, u32, u32)) {
        if self.owner {
            let is_file = FileType::from_mode(inode.mode.get()) == Some(FileType::REG_FILE);
            if is_file && (inode.uid.get(), inode.gid.get()) != (uid, gid) {
                inode.mode = (inode.mode.get() & !0o6000).into();
            }
            (inode.uid, inode.gid) = (uid.into(), gid.into());
        }
        if self.keeps_mode() {
            inode.mode = self.mode_of_new(mode).into();
        }
    }

    /// Whether a regular file that is there and has `nlink` names is written into, so that all of its names have the new
    /// contents; else the name that is copied to becomes a new file, and the others keep what they have.
    ///
    /// As cp(1) does it (GNU coreutils 9.1, for an operand and within a tree, whatever the source's number of names): it writes
    /// into the file, but where links are kept (`-a`, `-d`, `--preserve=links`) it unlinks the name of a file that has others.
    pub(crate) fn writes_into(&self, nlink: impl Into<u64>, existing: Existing) -> bool {
        existing != Existing::Remove && (!self.links || nlink.into() < 2)
    }
}

/// Of any new file: as cp(1) has it, for sockets too.
fn default_mode(mode: u32) -> u32 {
    match FileType::from_mode(mode) {
        Some(FileType::DIR | FileType::SOCK) => 0o777,
        _ => 0o666,
    }
}
