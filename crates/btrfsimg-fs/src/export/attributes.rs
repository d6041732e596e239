//! Owner, xattrs, mode and times of what was created, in the order that keeps each of them.

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;

use btrfsimg_ondisk::{FileType, Timespec, inode_flags};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::host::failed;
use super::paths::Spot;
use super::{LeftOut, Shared};
use crate::error::{Error, Result};
use crate::lookup;
use crate::posix_acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR, is_acl};
use crate::preserve::{Modes, Preserve};
use crate::read::{COMPRESSION_XATTR, Info};

const SETID: u32 = 0o6000;

/// The permission bits that the copy of `info` gets, when modes are kept.
pub(super) fn wanted_mode(shared: &Shared<'_>, info: &Info) -> u32 {
    let mode = info.mode() & 0o7777;
    if shared.options.setuid { mode } else { mode & !SETID }
}

/// The mode that a new file or directory is created with; the umask takes from it.
pub(super) fn creation_mode(preserve: &Preserve, info: &Info) -> Mode {
    Mode::from_raw_mode(preserve.creation_mode(info.mode()))
}

/// Sets what is kept on an open file or directory, which is all ours until now.
pub(super) fn set_on_fd(shared: &Shared<'_>, path: Spot<'_>, fd: BorrowedFd<'_>, info: &Info) -> Result<()> {
    let preserve = &shared.options.preserve;
    if preserve.owner {
        let (uid, gid) = owner(info);
        or_left_out(shared, path, LeftOut::Owner, rustix::fs::fchown(fd, uid, gid), "set owner")?;
    }
    let rights = set_xattrs(shared, path, info, &OnHost::Open(fd))?;
    note_setid(shared, path, info);
    if preserve.keeps_mode() {
        let mode = Mode::from_raw_mode(wanted_mode(shared, info) & rights);
        rustix::fs::fchmod(fd, mode).map_err(failed("set mode"))?;
    } else if shared.options.setuid && info.mode() & SETID != 0 {
        let now = rustix::fs::fstat(fd).map_err(failed("stat"))?.st_mode & 0o7777;
        let mode = Mode::from_raw_mode(now | info.mode() & SETID);
        rustix::fs::fchmod(fd, mode).map_err(failed("set mode"))?;
    }
    if preserve.times && !info.place.is_empty_dir() {
        rustix::fs::futimens(fd, &times(info)).map_err(failed("set times"))?;
    }
    Ok(())
}

/// Gives an open file or directory that is new the mode of any new one, where that is asked for: a default ACL of its directory
/// took the place of the umask.
pub(super) fn set_default_mode(shared: &Shared<'_>, fd: BorrowedFd<'_>, info: &Info) -> Result<()> {
    let Some(mode) = shared.default_mode(info) else { return Ok(()) };
    OnHost::Open(fd).remove(ACCESS_XATTR).map_err(failed("remove an ACL"))?;
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)).map_err(failed("set mode"))
}

/// The same for what cannot be opened: symlinks, fifos, sockets and devices.
pub(super) fn set_on_name(
    shared: &Shared<'_>,
    path: Spot<'_>,
    dir: BorrowedFd<'_>,
    name: &[u8],
    info: &Info,
) -> Result<()> {
    let preserve = &shared.options.preserve;
    let is_symlink = info.file_type() == Some(FileType::SYMLINK);
    if preserve.owner {
        let (uid, gid) = owner(info);
        let result = rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        or_left_out(shared, path, LeftOut::Owner, result, "set owner")?;
    }
    // Xattrs have no call that takes a directory; its entry in /proc leads to it, and to nothing else.
    let mut by_proc = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    by_proc.extend_from_slice(name);
    let on_host = OnHost::Named(by_proc);
    let rights = set_xattrs(shared, path, info, &on_host)?;
    if let Some(mode) = shared.default_mode(info).filter(|_| !is_symlink) {
        on_host.remove(ACCESS_XATTR).map_err(failed("remove an ACL"))?;
        set_mode_of_name(dir, name, mode)?;
    }
    if !is_symlink {
        note_setid(shared, path, info);
    }
    if preserve.keeps_mode() && !is_symlink {
        set_mode_of_name(dir, name, wanted_mode(shared, info) & rights)?;
    }
    if preserve.times {
        rustix::fs::utimensat(dir, name, &times(info), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("set times"))?;
    }
    Ok(())
}

/// Gives a file that is still empty its compression property, so that a host on btrfs stores it so.
pub(super) fn set_property(shared: &Shared<'_>, fd: &OwnedFd, info: &Info) {
    let flags = inode_flags::COMPRESS | inode_flags::NOCOMPRESS;
    if shared.options.preserve.xattrs
        && info.item.flags.get() & flags != 0
        && let Ok(Some(value)) = lookup::xattr(shared.fs, info.place, COMPRESSION_XATTR)
    {
        // Where it is not taken, that is said when all attributes are set.
        let _ = rustix::fs::fsetxattr(fd, COMPRESSION_XATTR, &value, XattrFlags::empty());
    }
}

/// Sets the mode of a special file: by a handle on the very inode, so that no symlink in its place is followed.
fn set_mode_of_name(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle: OwnedFd =
        rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(failed("open to set its mode"))?;
    let by_proc = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    fs::set_permissions(by_proc, fs::Permissions::from_mode(mode)).map_err(crate::Error::io("set mode"))
}

fn owner(info: &Info) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(info.item.uid.get())), Some(Gid::from_raw(info.item.gid.get())))
}

fn times(info: &Info) -> Timestamps {
    let time = |t: Timespec| rustix::fs::Timespec {
        tv_sec: t.sec.get(),
        tv_nsec: t.nsec.get().min(999_999_999).into(),
    };
    Timestamps { last_access: time(info.item.atime), last_modification: time(info.item.mtime) }
}

fn note_setid(shared: &Shared<'_>, path: Spot<'_>, info: &Info) {
    let is_wanted = shared.options.preserve.mode != Modes::Default;
    if info.mode() & SETID != 0 && !shared.options.setuid && is_wanted {
        shared.left_out(&path.path(), LeftOut::Setuid, format!("mode {:04o}", info.mode() & 0o7777));
    }
}

/// What has xattrs on the host.
enum OnHost<'f> {
    Open(BorrowedFd<'f>),
    /// By its path; a symlink is meant itself.
    Named(Vec<u8>),
}

impl OnHost<'_> {
    fn set(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        match self {
            OnHost::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            OnHost::Named(path) => rustix::fs::lsetxattr(&path[..], name, value, XattrFlags::empty()),
        }
    }

    /// Removes it, where it is there.
    fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        let mut none = [0; 0];
        let found = match self {
            OnHost::Open(fd) => rustix::fs::fgetxattr(fd, name, &mut none),
            OnHost::Named(path) => rustix::fs::lgetxattr(&path[..], name, &mut none),
        };
        match (found, self) {
            (Err(Errno::NODATA | Errno::OPNOTSUPP), _) => Ok(()),
            (Err(errno), _) => Err(errno),
            (Ok(_), OnHost::Open(fd)) => rustix::fs::fremovexattr(fd, name),
            (Ok(_), OnHost::Named(path)) => rustix::fs::lremovexattr(&path[..], name),
        }
    }
}

/// Sets the xattrs that come along; where the mode does, an ACL that came from the directory goes. Gives the bits of the mode
/// that stay: where the host takes no ACL, nobody gets more rights than that gave.
fn set_xattrs(shared: &Shared<'_>, path: Spot<'_>, info: &Info, target: &OnHost<'_>) -> Result<u32> {
    let preserve = &shared.options.preserve;
    let mut rights = !0;
    if !preserve.takes_xattrs() {
        return Ok(rights);
    }
    let xattrs = lookup::xattrs(shared.fs, info.place)?;
    if preserve.keeps_mode() && info.file_type() != Some(FileType::SYMLINK) {
        let acls = [ACCESS_XATTR, DEFAULT_XATTR].into_iter().take(1 + usize::from(info.is_dir()));
        for acl in acls.filter(|acl| xattrs.iter().all(|(name, _)| name != acl)) {
            target.remove(acl).map_err(failed("remove an ACL"))?;
        }
    }
    for (name, value) in xattrs.iter().filter(|(name, _)| preserve.takes_xattr(name)) {
        let shown = || String::from_utf8_lossy(name).into_owned();
        let left_out = |what| match target.set(name, value) {
            Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL)) => {
                let reason = std::io::Error::from(errno);
                shared.left_out(&path.path(), what, format!("{}: {reason}", shown()));
                Ok(true)
            }
            set => set.map(|()| false).map_err(|e| Error::io(format!("set xattr {}", shown()))(e.into())),
        };
        if is_acl(name) {
            if left_out(LeftOut::Acl)? && name == ACCESS_XATTR {
                // One without entries says nothing; of one that cannot be read nobody else gets anything.
                let alone = Acl::parse(value).map(|acl| acl.map_or(0o777, |acl| acl.mode_alone()));
                rights = !0o777 | alone.unwrap_or(0o700);
            }
        } else if name == COMPRESSION_XATTR {
            left_out(LeftOut::BtrfsXattr)?;
        } else if name.starts_with(b"btrfs.") {
            shared.left_out(&path.path(), LeftOut::BtrfsXattr, shown());
        } else {
            left_out(LeftOut::Xattr)?;
        }
    }
    Ok(rights)
}

/// What only root may do is left out, and is no failure.
fn or_left_out(
    shared: &Shared<'_>,
    path: Spot<'_>,
    what: LeftOut,
    result: Result<(), Errno>,
    action: &'static str,
) -> Result<()> {
    match result {
        Err(errno @ (Errno::PERM | Errno::INVAL)) => {
            shared.left_out(&path.path(), what, std::io::Error::from(errno).to_string());
            Ok(())
        }
        result => result.map_err(failed(action)),
    }
}
