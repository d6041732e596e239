//! What a copy keeps of its source: one rule for copies into, out of, within and between images.

use btrfsimg_ondisk::{FileType, InodeItem};

use crate::existing::Existing;
use crate::posix_acl::is_acl;

/// What a copy keeps of its source. Each stands by itself, as the words of cp(1)'s `--preserve` do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preserve {
    /// Permission bits, those of what was there as well, and the ACLs that say more than those. Setuid and setgid bits
    /// are rights of the owner: they come along where that does.
    pub mode: bool,
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
        Preserve { mode: true, owner: true, times: true, xattrs: true, links: true, flags: true };
    /// None of them.
    pub const NONE: Preserve =
        Preserve { mode: false, owner: false, times: false, xattrs: false, links: false, flags: false };

    /// Whether the xattr `name` comes along. An ACL is a part of the mode: a mode without its ACL would give the group what
    /// the ACL's mask says.
    pub(crate) fn takes_xattr(&self, name: &[u8]) -> bool {
        if is_acl(name) { self.mode } else { self.xattrs }
    }

    /// Whether any xattr may come along.
    pub(crate) fn takes_xattrs(&self) -> bool {
        self.mode || self.xattrs
    }

    /// Whether what was there gets anything but contents.
    pub(crate) fn changes_existing(&self) -> bool {
        self.mode || self.owner || self.times || self.xattrs
    }

    /// The bits of a mode that come along to what is new.
    pub(crate) fn mode_bits(&self) -> u32 {
        if self.mode && self.owner { !0 } else { !0o6000 }
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
        if self.mode {
            inode.mode = (mode & self.mode_bits()).into();
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
