//! Files and directories of the host, relative to open directories, never through a symlink.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType as HostType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::Shared;
use super::attributes::creation_mode;
use super::dirs::Dir;
use super::paths::PathNode;
use crate::error::{Error, Result};
use crate::existing::{Existing, NO_FILE, SymlinkFault};
use crate::read::Info;

/// An error of the host while `action` was done.
pub(super) fn failed(action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::io(action)(errno.into())
}

/// The umask of this process, which the system tells of without a change to it.
pub(super) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    umask.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
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

/// A new regular file for `info`, or the one that is there, emptied. Says whether it is new.
pub(super) fn create_file(
    shared: &Shared<'_>,
    dir: &Dir,
    name: &[u8],
    info: &Info,
) -> Result<(OwnedFd, bool)> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
    let create = || rustix::fs::openat(dir.fd(), name, flags, creation_mode(&shared.options.preserve, info));
    match create() {
        Ok(fd) => return Ok((fd, true)),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed("create")(errno)),
    }
    let image = shared.options.image;
    let stat = rustix::fs::statat(dir.fd(), name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("stat"))?;
    let is_link = HostType::from_raw_mode(stat.st_mode) == HostType::Symlink;
    let existing = shared.options.existing;
    let gives_way = |stat: &Stat| !shared.options.preserve.writes_into(stat.st_nlink, existing);
    let instead = || {
        rustix::fs::unlinkat(dir.fd(), name, AtFlags::empty()).map_err(failed("replace"))?;
        Ok((create().map_err(failed("create"))?, true))
    };
    if !is_link {
        check_goes(&stat, existing, image)?;
    }
    // Whether or not it may be opened.
    if existing == Existing::Remove || !is_link && gives_way(&stat) {
        return instead();
    }
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = match is_link {
        true => through_symlink(shared, &dir.state.node, name, flags)?,
        false => rustix::fs::openat(dir.fd(), name, flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(failed("open for writing"))?,
    };
    let stat = rustix::fs::fstat(&fd).map_err(failed("stat"))?;
    check_goes(&stat, existing, image)?;
    if gives_way(&stat) {
        return instead();
    }
    rustix::fs::ftruncate(&fd, 0).map_err(failed("truncate"))?;
    Ok((fd, false))
}

/// Refuses to write into what is no regular file or to replace a directory, and to do either with the image itself.
fn check_goes(stat: &Stat, existing: Existing, image: Option<(u64, u64)>) -> Result<()> {
    match HostType::from_raw_mode(stat.st_mode) {
        HostType::RegularFile if image == Some((stat.st_dev, stat.st_ino)) => {
            Err(not_replaced("the image itself"))
        }
        HostType::RegularFile => Ok(()),
        HostType::Directory => Err(not_replaced("a directory")),
        _ if existing == Existing::Remove => Ok(()),
        _ => Err(Error::Exists(NO_FILE.to_owned())),
    }
}

/// Opens what the symlink `name` of a directory leads to, where no part of its way leaves the top of the tree.
fn through_symlink(shared: &Shared<'_>, node: &Arc<PathNode>, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let fault = |fault: SymlinkFault| Error::Invalid(fault.to_string());
    let Some(top) = shared.top.get() else { return Err(not_replaced("a symlink")) };
    let names = node.names();
    let path: Vec<&[u8]> = names.iter().map(|node| node.name()).chain([name]).collect();
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(top, path.join(&b'/'), flags, Mode::empty(), beneath).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => fault(SymlinkFault::Dangling),
        Errno::XDEV => fault(SymlinkFault::LeadsOut),
        Errno::ISDIR | Errno::NXIO => fault(SymlinkFault::NoFile),
        // Too deep for a path, or a kernel that cannot hold it back.
        Errno::NAMETOOLONG | Errno::NOSYS => not_replaced("a symlink"),
        errno => failed("open for writing")(errno),
    })
}

fn not_replaced(what: &str) -> Error {
    Error::Exists(format!("the target is {what}"))
}

/// Makes `name` in `dir` by `make`; in the place of what is there, unless it is a directory. That goes only when the new one
/// is made, under another name until then.
pub(super) fn replacing(
    dir: impl AsFd,
    name: &[u8],
    action: &'static str,
    image: Option<(u64, u64)>,
    make: impl Fn(&[u8]) -> Result<(), Errno>,
) -> Result<()> {
    match make(name) {
        Err(Errno::EXIST) => {}
        result => return result.map_err(failed(action)),
    }
    let dir = dir.as_fd();
    let there = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("stat"))?;
    // Whatever its type is, it gives way.
    check_goes(&there, Existing::Remove, image)?;
    let mut tries = (0..u32::MAX).map(|n| format!(".btrfsimg-{}-{n}", std::process::id()).into_bytes());
    let made = tries.find_map(|name| match make(&name) {
        Err(Errno::EXIST) => None,
        result => Some(result.map(|()| name)),
    });
    let new = made.unwrap_or(Err(Errno::EXIST)).map_err(failed(action))?;
    rustix::fs::renameat(dir, &new[..], dir, name).map_err(|errno| {
        // It is ours; that it stays is the lesser fault.
        let _ = rustix::fs::unlinkat(dir, &new[..], AtFlags::empty());
        failed("replace")(errno)
    })
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
