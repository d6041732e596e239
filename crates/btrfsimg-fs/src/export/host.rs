//! Files and directories of the host, relative to open directories, never through a symlink.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType as HostType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// An error of the host while `action` was done.
pub(super) fn failed(action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::io(action)(errno.into())
}

/// Opens the directory that is copied into. It is the user's own path: its symlinks are followed.
pub(super) fn open_target(dir: &Path) -> Result<OwnedFd> {
    rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::io(dir.display().to_string())(errno.into()))
}

/// Opens the directory `name` in `dir`.
pub(super) fn open_dir(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// The device and inode of an open file: what tells directories apart.
pub(super) fn identity(fd: impl AsFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A new regular file, or an existing one emptied. Says whether it is new.
pub(super) fn create_file(
    dir: impl AsFd,
    name: &[u8],
    mode: Mode,
    image: Option<(u64, u64)>,
) -> Result<(OwnedFd, bool)> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    let new = flags | OFlags::CREATE | OFlags::EXCL;
    match rustix::fs::openat(dir.as_fd(), name, new, mode) {
        Ok(fd) => return Ok((fd, true)),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed("create")(errno)),
    }
    // NONBLOCK: to open a fifo for writing would wait for a reader.
    let fd =
        rustix::fs::openat(dir.as_fd(), name, flags | OFlags::NONBLOCK, Mode::empty()).map_err(|errno| {
            match errno {
                Errno::LOOP => not_replaced("a symlink"),
                Errno::ISDIR => not_replaced("a directory"),
                Errno::NXIO => not_replaced("no regular file"),
                errno => failed("open for writing")(errno),
            }
        })?;
    let stat = rustix::fs::fstat(&fd).map_err(failed("stat"))?;
    if HostType::from_raw_mode(stat.st_mode) != HostType::RegularFile {
        return Err(not_replaced("no regular file"));
    }
    if image == Some((stat.st_dev, stat.st_ino)) {
        return Err(not_replaced("the image itself"));
    }
    rustix::fs::ftruncate(&fd, 0).map_err(failed("truncate"))?;
    Ok((fd, false))
}

fn not_replaced(what: &str) -> Error {
    Error::Exists(format!("the target is {what}"))
}

/// Runs `make`, which creates `name` in `dir`; in the place of what is there, unless it is a directory.
pub(super) fn replacing(
    dir: impl AsFd,
    name: &[u8],
    action: &'static str,
    image: Option<(u64, u64)>,
    make: impl Fn() -> Result<(), Errno>,
) -> Result<()> {
    match make() {
        Err(Errno::EXIST) => {
            let there =
                rustix::fs::statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("stat"))?;
            if image == Some((there.st_dev, there.st_ino)) {
                return Err(not_replaced("the image itself"));
            }
            rustix::fs::unlinkat(dir, name, AtFlags::empty()).map_err(|errno| match errno {
                Errno::ISDIR | Errno::PERM => not_replaced("a directory"),
                errno => failed("replace")(errno),
            })?;
            make().map_err(failed(action))
        }
        result => result.map_err(failed(action)),
    }
}

/// Writes all of `bytes` at `offset`.
pub(super) fn write_all_at(fd: impl AsFd, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd.as_fd(), bytes, offset) {
            Ok(0) => return Err(Error::io("write")(std::io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                bytes = &bytes[n..];
                offset = offset.saturating_add(n as u64);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("write")(errno)),
        }
    }
    Ok(())
}
