//! Owner, xattrs, mode and times of what was created, in the order that keeps each of them.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;

use btrfsimg_ondisk::Timespec;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::host::failed;
use super::paths::Spot;
use super::{LeftOut, Shared};
use crate::error::Result;
use crate::lookup;
use crate::read::Info;

const SETID: u32 = 0o6000;

/// The permission bits that the copy of `info` gets, when modes are kept.
pub(super) fn wanted_mode(shared: &Shared<'_>, info: &Info) -> u32 {
    let mode = info.mode() & 0o7777;
    if shared.options.setuid { mode } else { mode & !SETID }
}

/// The mode that a new file or directory is created with; the umask takes from it.
pub(super) fn creation_mode(info: &Info) -> Mode {
    Mode::from_raw_mode(info.mode() & 0o777)
}

/// Sets what the options keep on an open file or directory, which is all ours until now.
pub(super) fn set_on_fd(shared: &Shared<'_>, path: Spot<'_>, fd: BorrowedFd<'_>, info: &Info) -> Result<()> {
    let options = &shared.options;
    if options.owner {
        let (uid, gid) = owner(info);
        or_left_out(shared, path, LeftOut::Owner, rustix::fs::fchown(fd, uid, gid), "set owner")?;
    }
    if options.xattrs {
        set_xattrs(shared, path, info, |name, value| {
            rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty())
        })?;
    }
    note_setid(shared, path, info);
    if options.mode {
        let mode = Mode::from_raw_mode(wanted_mode(shared, info));
        rustix::fs::fchmod(fd, mode).map_err(failed("set mode"))?;
    } else if options.setuid && info.mode() & SETID != 0 {
        let now = rustix::fs::fstat(fd).map_err(failed("stat"))?.st_mode & 0o7777;
        let mode = Mode::from_raw_mode(now | info.mode() & SETID);
        rustix::fs::fchmod(fd, mode).map_err(failed("set mode"))?;
    }
    if options.times && !info.place.is_empty_dir() {
        rustix::fs::futimens(fd, &times(info)).map_err(failed("set times"))?;
    }
    Ok(())
}

/// The same for what cannot be opened: symlinks, fifos, sockets and devices.
pub(super) fn set_on_name(
    shared: &Shared<'_>,
    path: Spot<'_>,
    dir: BorrowedFd<'_>,
    name: &[u8],
    info: &Info,
) -> Result<()> {
    let options = &shared.options;
    let is_symlink = info.file_type() == Some(btrfsimg_ondisk::FileType::SYMLINK);
    if options.owner {
        let (uid, gid) = owner(info);
        let result = rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        or_left_out(shared, path, LeftOut::Owner, result, "set owner")?;
    }
    if options.xattrs {
        // Xattrs have no call that takes a directory; its entry in /proc leads to it, and to nothing else.
        let mut by_proc = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        by_proc.extend_from_slice(name);
        let by_proc = OsString::from_vec(by_proc);
        set_xattrs(shared, path, info, |name, value| {
            rustix::fs::lsetxattr(&by_proc, name, value, XattrFlags::empty())
        })?;
    }
    if !is_symlink {
        note_setid(shared, path, info);
    }
    if options.mode && !is_symlink {
        set_mode_of_name(dir, name, wanted_mode(shared, info))?;
    }
    if options.times {
        rustix::fs::utimensat(dir, name, &times(info), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("set times"))?;
    }
    Ok(())
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
    if info.mode() & SETID != 0 && !shared.options.setuid {
        shared.left_out(&path.path(), LeftOut::Setuid, format!("mode {:04o}", info.mode() & 0o7777));
    }
}

fn set_xattrs(
    shared: &Shared<'_>,
    path: Spot<'_>,
    info: &Info,
    set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
) -> Result<()> {
    for (name, value) in lookup::xattrs(shared.fs, info.place)? {
        let shown = || String::from_utf8_lossy(&name).into_owned();
        if name.starts_with(b"btrfs.") {
            shared.left_out(&path.path(), LeftOut::BtrfsXattr, shown());
            continue;
        }
        // An ACL is a part of the mode, as with cp(1).
        if name.starts_with(b"system.posix_acl_") && !shared.options.mode {
            continue;
        }
        match set(&name, &value) {
            Ok(()) => {}
            Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL)) => {
                shared.left_out(
                    &path.path(),
                    LeftOut::Xattr,
                    format!("{}: {}", shown(), std::io::Error::from(errno)),
                );
            }
            Err(errno) => {
                return Err(crate::Error::io(format!("set xattr {}", shown()))(errno.into()));
            }
        }
    }
    Ok(())
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
