//! What the host says of files: stat, directory entries, xattrs, contents with holes.

use std::ffi::{CStr, CString};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use btrfsimg_ondisk::{Timespec, inode_flags};
use rustix::fs::{AtFlags, IFlags, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::write::inode::Attributes;

/// Most bytes of a file whose size nobody knows: they are in memory at once.
const UNSIZED_MAX: usize = 64 << 20;
/// Bytes of such a file that are read at a time: most are empty.
const UNSIZED_PIECE: usize = 4 << 10;

/// A directory of the source, by its path from the top.
#[derive(Debug)]
pub(super) struct SourceDir {
    /// Path from the top, without a leading slash; empty for the top itself.
    pub(super) relative: Vec<u8>,
}

impl SourceDir {
    /// The path of an entry from the top.
    pub(super) fn join(&self, name: &[u8]) -> Vec<u8> {
        let slash: &[u8] = if self.relative.is_empty() { b"" } else { b"/" };
        [&self.relative, slash, name].concat()
    }
}

/// The top of a source tree.
pub(super) struct Source {
    top: OwnedFd,
    pub(super) path: PathBuf,
}

impl Source {
    /// Opens the directory at `path`.
    pub(super) fn open(path: PathBuf) -> io::Result<Source> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Source { top, path })
    }

    /// Opens a directory below the top: component by component, none of them a symlink, so that a tree that changes
    /// meanwhile cannot lead out of it.
    pub(super) fn open_dir(&self, dir: &SourceDir) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut at = rustix::fs::openat(&self.top, c".", flags, Mode::empty())?;
        for component in dir.relative.split(|b| *b == b'/').filter(|c| !c.is_empty()) {
            at = rustix::fs::openat(&at, component, flags, Mode::empty())?;
        }
        Ok(at)
    }
}

/// Opens the directory `name` of `dir`.
pub(super) fn open_subdir(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// What stat says of an entry.
#[derive(Clone, Debug)]
pub(super) struct Stat {
    pub(super) attributes: Attributes,
    pub(super) device: (u32, u32),
    pub(super) ino: u64,
    pub(super) nlink: u32,
    pub(super) size: u64,
    /// Bytes that it takes on its file system.
    pub(super) allocated: u64,
}

/// Stat of an entry of `dir`, or of `dir` itself when `name` is empty. Symlinks are not followed.
pub(super) fn stat(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Stat> {
    let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let x = rustix::fs::statx(dir, name, at, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let time = |t: rustix::fs::StatxTimestamp| Timespec::new(t.tv_sec, t.tv_nsec);
    let (ctime, mtime) = (time(x.stx_ctime), time(x.stx_mtime));
    // Some file systems say that they know the time of birth, and give 0.
    let born = x.stx_mask & StatxFlags::BTIME.bits() != 0 && x.stx_btime.tv_sec != 0;
    let is_device = matches!(x.stx_mode & 0o170_000, 0o020_000 | 0o060_000);
    let rdev = (u64::from(x.stx_rdev_major) << 20) | u64::from(x.stx_rdev_minor);
    Ok(Stat {
        attributes: Attributes {
            mode: u32::from(x.stx_mode),
            uid: x.stx_uid,
            gid: x.stx_gid,
            rdev: if is_device { rdev } else { 0 },
            flags: 0,
            atime: time(x.stx_atime),
            ctime,
            mtime,
            otime: if born { time(x.stx_btime) } else { ctime },
            umask: 0,
        },
        device: (x.stx_dev_major, x.stx_dev_minor),
        ino: x.stx_ino,
        nlink: x.stx_nlink,
        size: x.stx_size,
        allocated: x.stx_blocks * 512,
    })
}

/// The names in a directory but "." and "..", sorted by bytes.
pub(super) fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a regular file for reading.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner may ask for NOATIME.
        Err(Errno::PERM) => Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?),
        other => Ok(other?),
    }
}

/// The inode flags that `chattr` shows of an open file or directory, as far as btrfs has them. None where its file
/// system has no such flags.
pub(super) fn flags_of(file: BorrowedFd<'_>, is_dir: bool) -> u64 {
    let Ok(shown) = rustix::fs::ioctl_getflags(file) else { return 0 };
    let nodatacow =
        if is_dir { inode_flags::NODATACOW } else { inode_flags::NODATACOW | inode_flags::NODATASUM };
    let table = [
        (IFlags::COMPRESSED, inode_flags::COMPRESS),
        (IFlags::from_bits_retain(0x400), inode_flags::NOCOMPRESS),
        (IFlags::NOCOW, nodatacow),
        (IFlags::IMMUTABLE, inode_flags::IMMUTABLE),
        (IFlags::APPEND, inode_flags::APPEND),
        (IFlags::NODUMP, inode_flags::NODUMP),
        (IFlags::NOATIME, inode_flags::NOATIME),
        (IFlags::SYNC, inode_flags::SYNC),
        (IFlags::DIRSYNC, inode_flags::DIRSYNC),
    ];
    table.iter().filter(|(theirs, _)| shown.contains(*theirs)).fold(0, |flags, (_, ours)| flags | ours)
}

/// The target of a symlink.
pub(super) fn read_link(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes())
}

/// A regular file that is open for reading, by several workers where it is large.
#[derive(Clone, Debug)]
pub(super) struct SourceFile(Arc<OpenFile>);

#[derive(Debug)]
struct OpenFile {
    fd: OwnedFd,
    /// The range of data that was found last, up to its hole. Finding a hole may cost the file system time for every
    /// page before it (tmpfs), and the offset of a file is a lock: so none is sought twice.
    data: Mutex<Range<u64>>,
}

impl SourceFile {
    pub(super) fn new(fd: OwnedFd) -> SourceFile {
        SourceFile(Arc::new(OpenFile { fd, data: Mutex::new(0..0) }))
    }

    /// Fills `buf` from `offset`, as far as the file goes. Says how many bytes.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&self.0.fd, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    /// Makes `bytes` all bytes of a file whose size nobody knows, as those in /proc.
    pub(super) fn read_to_end(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.clear();
        loop {
            let start = bytes.len();
            bytes.resize(start + UNSIZED_PIECE, 0);
            let got = self.read(&mut bytes[start..], start as u64)?;
            bytes.truncate(start + got);
            if got < UNSIZED_PIECE {
                return Ok(());
            }
            if bytes.len() > UNSIZED_MAX {
                let reason = format!("stat says 0 bytes, and there are more than {UNSIZED_MAX}");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
            }
        }
    }

    /// Bytes of the file now.
    pub(super) fn size(&self) -> io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&self.0.fd)?.st_size).unwrap_or(0))
    }

    /// The first range of data at or after `from`, as far as the source's file system knows; `None` when only a
    /// hole is left. File systems that know no holes have one range.
    pub(super) fn next_data(&self, from: u64, size: u64) -> io::Result<Option<Range<u64>>> {
        if from >= size {
            return Ok(None);
        }
        let mut known = self.0.data.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(&from) {
            let start = match rustix::fs::seek(&self.0.fd, SeekFrom::Data(from)) {
                Ok(start) => start,
                Err(Errno::NXIO) => return Ok(None),
                Err(Errno::INVAL) => return Ok(Some(from..size)),
                Err(e) => return Err(e.into()),
            };
            *known = start..rustix::fs::seek(&self.0.fd, SeekFrom::Hole(start))?;
        }
        let start = known.start.max(from);
        Ok((start < size).then(|| start..known.end.min(size)))
    }
}

impl AsFd for SourceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
