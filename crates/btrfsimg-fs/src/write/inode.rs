//! New inodes and their items.

use std::sync::Arc;

use btrfsimg_compress::Property;
use btrfsimg_ondisk::{
    FileType, InodeItem, Key, KeyType, Timespec, inode_flags, max_xattr_size, name_hash, write_dir_entry,
    write_inode_ref,
};
use zerocopy::IntoBytes;

use crate::posix_acl::Acl;
use crate::txn::ItemBatch;

/// The name of the xattr that holds the compression property.
pub const COMPRESSION_XATTR: &[u8] = b"btrfs.compression";

const SETGID: u32 = 0o2000;

/// What an inode is, but for its contents.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Type and permission bits as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, `(major << 20) | minor`.
    pub rdev: u64,
    /// See [`inode_flags`].
    pub flags: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Last change of the contents.
    pub mtime: Timespec,
    /// Creation.
    pub otime: Timespec,
    /// Permission bits that a new inode does not get where no default ACL decides.
    pub umask: u32,
}

impl Attributes {
    /// An inode with `mode`, owned by 0:0, made `now`.
    pub fn new(mode: u32, now: Timespec) -> Attributes {
        let (atime, ctime, mtime, otime) = (now, now, now, now);
        Attributes { mode, uid: 0, gid: 0, rdev: 0, flags: 0, atime, ctime, mtime, otime, umask: 0 }
    }

    /// The type that its directory entries have.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::REG_FILE)
    }

    /// The item of a new inode with one name.
    pub fn inode_item(&self, transid: u64, size: u64, nbytes: u64) -> InodeItem {
        InodeItem {
            generation: transid.into(),
            transid: transid.into(),
            size: size.into(),
            nbytes: nbytes.into(),
            nlink: 1.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mode: self.mode.into(),
            rdev: self.rdev.into(),
            flags: self.flags.into(),
            atime: self.atime,
            ctime: self.ctime,
            mtime: self.mtime,
            otime: self.otime,
            ..InodeItem::zeroed()
        }
    }

    /// The group that entries of this directory get: its own, if it has the setgid bit.
    pub fn group_for_entries(&self) -> Option<u32> {
        group_for_entries(self.mode, self.gid)
    }

    /// Takes on what an existing directory passes on to its entries.
    pub(crate) fn pass_on(&mut self, of: &Inherited) {
        self.flags = of.flags;
        self.mode &= !SETGID;
        if let Some(group) = of.group {
            self.mode |= SETGID;
            self.gid = group;
        }
    }

    /// What a new inode inherits of rights: the group of a directory with the setgid bit, and for directories the bit;
    /// the default ACL, which takes the place of the umask. Returns the ACLs that it has, as xattrs.
    pub fn inherit_access(&mut self, parent: &Inherited) -> Vec<Xattr> {
        let is_dir = self.file_type() == FileType::DIR;
        if let Some(group) = parent.group {
            self.gid = group;
            self.mode |= if is_dir { SETGID } else { 0 };
        }
        match &parent.default_acl {
            // The bits of a symlink mean nothing, and the kernel leaves them.
            _ if self.file_type() == FileType::SYMLINK => Vec::new(),
            Some(acl) => {
                let (mode, xattrs) = acl.inherit(self.mode, is_dir);
                self.mode = mode;
                xattrs
            }
            None => {
                self.mode &= !self.umask;
                Vec::new()
            }
        }
    }

    /// What else a new inode inherits from its directory (`format/05 §5.4`): flags, and for files and directories the
    /// property, level included. Returns the property as it is stored.
    pub fn inherit(&mut self, parent: &Inherited) -> Option<Property> {
        let is_file = self.file_type() == FileType::REG_FILE;
        if parent.flags & inode_flags::NOCOMPRESS != 0 {
            self.flags |= inode_flags::NOCOMPRESS;
        } else {
            self.flags |= parent.flags & inode_flags::COMPRESS;
        }
        if parent.flags & inode_flags::NODATACOW != 0 {
            self.flags |= inode_flags::NODATACOW | if is_file { inode_flags::NODATASUM } else { 0 };
            return None;
        }
        let takes_it = is_file || self.file_type() == FileType::DIR;
        let property = parent.property.clone().filter(|p| takes_it && p.algorithm().is_some())?;
        self.flags = (self.flags & !inode_flags::NOCOMPRESS) | inode_flags::COMPRESS;
        Some(property)
    }
}

/// What new entries of a directory inherit.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    /// The directory's inode flags.
    pub flags: u64,
    /// Its compression property.
    pub property: Option<Property>,
    /// Its group, if it has the setgid bit.
    pub group: Option<u32>,
    /// Its default ACL.
    pub default_acl: Option<Arc<Acl>>,
}

/// The group that entries of a directory with this mode and group get, if not their maker's.
pub(super) fn group_for_entries(mode: u32, gid: u32) -> Option<u32> {
    (mode & SETGID != 0).then_some(gid)
}

/// An xattr's name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Name and value of each, borrowed.
pub fn borrowed(xattrs: &[Xattr]) -> impl Iterator<Item = (&[u8], &[u8])> {
    xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
}

/// Whether an xattr fits an item.
pub fn xattr_fits(name: &[u8], value: &[u8], nodesize: usize) -> bool {
    name.len() <= btrfsimg_ondisk::NAME_LEN_MAX && name.len() + value.len() <= max_xattr_size(nodesize)
}

/// Adds the XATTR_ITEMs of an inode, given by name and value, in key order; names with one hash share an item.
pub fn push_xattrs<'x>(
    items: &mut ItemBatch,
    ino: u64,
    transid: u64,
    xattrs: impl IntoIterator<Item = (&'x [u8], &'x [u8])>,
) {
    let mut sorted: Vec<_> = xattrs.into_iter().map(|x| (name_hash(x.0), x)).collect();
    sorted.sort_unstable();
    for same_hash in sorted.chunk_by(|a, b| a.0 == b.0) {
        items.push_with(Key::new(ino, KeyType::XATTR_ITEM, same_hash[0].0), |out| {
            for (_, (name, value)) in same_hash {
                write_dir_entry(out, Key::MIN, transid, FileType::XATTR, name, value);
            }
        });
    }
}

/// Adds the first items of a new inode: INODE_ITEM, and INODE_REF for its first name.
pub fn push_inode(items: &mut ItemBatch, ino: u64, inode: &InodeItem, parent: u64, index: u64, name: &[u8]) {
    items.push(Key::new(ino, KeyType::INODE_ITEM, 0), inode.as_bytes());
    items.push_with(Key::new(ino, KeyType::INODE_REF, parent), |out| write_inode_ref(out, index, name));
}
