//! Mode, owner and times of existing inodes.

use btrfsimg_ondisk::{FileType, InodeItem, Timespec};

use super::names::{check_attributes, check_times, update_inode};
use super::setxattr::CAPABILITY_XATTR;
use super::xattr::{remove_xattr, set_xattr};
use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::posix_acl::{ACCESS_XATTR, Acl};
use crate::txn::Transaction;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o0010;
const PERMISSIONS: u32 = 0o7777;

/// Sets the permission bits (`mode & 07777`), and in an ACL the entries that they stand for.
///
/// # Errors
/// `ReadOnly` for an inode that may not be changed; `Invalid` for a symlink; as any change of a tree.
pub fn chmod(tx: &mut Transaction<'_>, place: Place, mode: u32) -> Result<()> {
    let inode = changeable(tx, place)?;
    if FileType::from_mode(inode.mode.get()) == Some(FileType::SYMLINK) {
        return Err(Error::Invalid("operation not supported: a symlink has no mode of its own".to_owned()));
    }
    let acl = lookup::xattr(tx, place, ACCESS_XATTR)?;
    // What the kernel cannot read it leaves, too.
    if let Some(Ok(Some(acl))) = acl.map(|value| Acl::parse(&value)) {
        set_xattr(tx, place, ACCESS_XATTR, &acl.with_mode(mode).to_bytes())?;
    }
    let now = tx.now();
    update_inode(tx, place, |inode| {
        inode.mode = (inode.mode.get() & !PERMISSIONS | mode & PERMISSIONS).into();
        inode.ctime = now;
    })
}

/// Sets owner and group, those that are given. As in the kernel, anything but a directory loses what gives rights by
/// its owner: the setuid bit, the setgid bit where the group may execute it, and capabilities.
///
/// # Errors
/// `ReadOnly` for an inode that may not be changed; `Invalid` for the id that means none; as any change of a tree.
pub fn chown(tx: &mut Transaction<'_>, place: Place, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let inode = changeable(tx, place)?;
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Error::Invalid(format!("invalid argument: {} is no owner", u32::MAX)));
    }
    let is_dir = FileType::from_mode(inode.mode.get()) == Some(FileType::DIR);
    if !is_dir {
        remove_xattr(tx, place, CAPABILITY_XATTR)?;
    }
    let now = tx.now();
    update_inode(tx, place, |inode| {
        let mode = inode.mode.get();
        let drops = if is_dir { 0 } else { SETUID | if mode & GROUP_EXEC != 0 { SETGID } else { 0 } };
        inode.mode = (mode & !drops).into();
        inode.uid = uid.map_or(inode.uid, Into::into);
        inode.gid = gid.map_or(inode.gid, Into::into);
        inode.ctime = now;
    })
}

/// Sets the times that are given; the time of the change is now.
///
/// # Errors
/// `ReadOnly` for an inode that may not be changed; as any change of a tree.
pub fn set_times(
    tx: &mut Transaction<'_>,
    place: Place,
    atime: Option<Timespec>,
    mtime: Option<Timespec>,
) -> Result<()> {
    changeable(tx, place)?;
    let now = tx.now();
    update_inode(tx, place, |inode| {
        inode.atime = atime.unwrap_or(inode.atime);
        inode.mtime = mtime.unwrap_or(inode.mtime);
        inode.ctime = now;
    })
}

/// Sets both times to now, as touch(1) without a time does: append-only inodes take that as well.
///
/// # Errors
/// `ReadOnly` for an inode that may not be changed; as any change of a tree.
pub fn touch(tx: &mut Transaction<'_>, place: Place) -> Result<()> {
    check_times(tx, place, &format!("inode {}", place.ino))?;
    let now = tx.now();
    update_inode(tx, place, |inode| (inode.atime, inode.mtime, inode.ctime) = (now, now, now))
}

/// The inode, which must be neither read-only nor immutable nor append-only.
fn changeable(tx: &Transaction<'_>, place: Place) -> Result<InodeItem> {
    check_attributes(tx, place, &format!("inode {}", place.ino))
}
