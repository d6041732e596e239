//! Operations done by the kernel on a mount.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
};
use std::path::{Path as HostPath, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, bail};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid,
    XattrFlags, chownat, fallocate, ioctl_getflags, ioctl_setflags, lgetxattr, lremovexattr, lsetxattr,
    makedev, mknodat, seek, utimensat,
};
use rustix::io::Errno;

use super::Outcome;
use super::compare::NOCOMPRESS;
use super::op::{FLAGS, Op, Path, acl, bytes};
use crate::{btrfs_progs, command, rng::Rng};

const SECTOR: u64 = 4096;
#[expect(clippy::cast_possible_wrap, reason = "a small flag")]
const NONBLOCK: i32 = OFlags::NONBLOCK.bits() as i32;
/// The inode number of a subvolume's root directory.
const SUBVOLUME_ROOT: u64 = 256;

/// Does `op` below the mount point `top`.
///
/// # Errors
/// When the operation could not even be tried.
pub(super) fn apply(top: &HostPath, op: &Op) -> Result<Outcome> {
    let at = |path: &Path| top.join(OsStr::from_bytes(&path.0));
    if op.is_about_subvolumes() {
        return subvolume(&at, op);
    }
    if let Op::Clone { from, at: source, len, to, to_at, exact } = op {
        let (from, to) = (at(from), at(to));
        let len = if *exact { Some(*len) } else { clonable_of(&from, *source, *len, &to, *to_at) };
        return match len {
            Some(len) => clone(&from, *source, len, &to, *to_at),
            None => Ok(Outcome::of(File::options().read(true).write(true).open(&to).map(drop))),
        };
    }
    Ok(Outcome::of(system_call(top, &at, op)))
}

fn subvolume(at: &dyn Fn(&Path) -> PathBuf, op: &Op) -> Result<Outcome> {
    let run = |words: &[&str], paths: &[PathBuf]| {
        let words = words.iter().map(|word| OsStr::new(*word));
        command::ask("btrfs", words.chain(paths.iter().map(|path| path.as_os_str())))
    };
    // They would follow it.
    let is_symlink = |path| fs::symlink_metadata(at(path)).is_ok_and(|meta| meta.is_symlink());
    let said = match op {
        Op::DeleteSubvolume { path } | Op::SetReadonly { path, .. } | Op::Snapshot { from: path, .. }
            if is_symlink(path) =>
        {
            return Ok(Outcome::Invalid);
        }
        // A name that is there would be followed, or taken for the directory in which the new one goes.
        Op::CreateSubvolume { path: to } | Op::Snapshot { to, .. }
            if fs::symlink_metadata(at(to)).is_ok() =>
        {
            return Ok(Outcome::Refused);
        }
        Op::CreateSubvolume { path } => run(&["subvolume", "create"], &[at(path)])?,
        Op::Snapshot { from, to, readonly: true } => {
            run(&["subvolume", "snapshot", "-r"], &[at(from), at(to)])?
        }
        Op::Snapshot { from, to, .. } => run(&["subvolume", "snapshot"], &[at(from), at(to)])?,
        Op::DeleteSubvolume { path } => run(&["subvolume", "delete"], &[at(path)])?,
        Op::SetReadonly { path, readonly } => {
            let value = if *readonly { "true" } else { "false" };
            let path = at(path);
            command::ask(
                "btrfs",
                [
                    OsStr::new("property"),
                    "set".as_ref(),
                    "-ts".as_ref(),
                    path.as_os_str(),
                    "ro".as_ref(),
                    value.as_ref(),
                ],
            )?
        }
        _ => unreachable!("only operations on subvolumes"),
    };
    Ok(if said.success { Outcome::Done } else { Outcome::of_words(&said.stderr) })
}

fn system_call(top: &HostPath, at: &dyn Fn(&Path) -> PathBuf, op: &Op) -> io::Result<()> {
    // A fifo would wait for its other end.
    let writable = |path: &Path| File::options().write(true).custom_flags(NONBLOCK).open(at(path));
    match op {
        Op::Create { path, mode } => {
            File::options().write(true).create_new(true).mode(*mode).open(at(path)).map(drop)
        }
        Op::Write { path, at, len, pattern, seed } => {
            writable(path)?.write_all_at(&bytes(*pattern, *len, *seed), *at)
        }
        Op::Truncate { path, size } => writable(path)?.set_len(*size),
        Op::Punch { path, at, len } => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let file = writable(path)?;
            let only_holes = match seek(&file, SeekFrom::Data(*at)) {
                Ok(data) => data >= at + len,
                Err(Errno::NXIO) => true,
                Err(error) => return Err(error.into()),
            };
            fallocate(&file, flags, *at, *len)?;
            // Whether a hole in a hole changes the time depends on what the kernel has in memory.
            if only_holes { file.set_modified(SystemTime::now()) } else { Ok(()) }
        }
        Op::Rename { from, to } => fs::rename(at(from), at(to)),
        Op::Link { from, to } => fs::hard_link(at(from), at(to)),
        Op::Symlink { target, path } => symlink(OsStr::from_bytes(target), at(path)),
        // No mode that is drawn has bits that the umask takes.
        Op::Mkdir { path, mode } => DirBuilder::new().mode(*mode).create(at(path)),
        Op::Mknod { path, kind, major, minor } => {
            let kind = FileType::from_raw_mode(*kind);
            let device = if kind == FileType::CharacterDevice || kind == FileType::BlockDevice {
                makedev(*major, *minor)
            } else {
                0
            };
            Ok(mknodat(CWD, at(path), kind, Mode::from_raw_mode(0o644), device)?)
        }
        Op::Unlink { path } => fs::remove_file(at(path)),
        Op::Rmdir { path } => {
            let is_fixed =
                fs::symlink_metadata(at(path)).is_ok_and(|m| m.is_dir() && m.ino() <= SUBVOLUME_ROOT);
            if is_fixed { Ok(()) } else { fs::remove_dir(at(path)) }
        }
        Op::SetXattr { path, name, len, seed } => {
            let set = lsetxattr(at(path), *name, &Rng::new(*seed).bytes(*len), XattrFlags::empty());
            // A value that can be nowhere is found before the inode is looked at.
            if set != Err(Errno::INVAL) {
                refuse_stand_in(&at(path))?;
            }
            Ok(set?)
        }
        Op::RemoveXattr { path, name } => {
            refuse_stand_in(&at(path))?;
            Ok(lremovexattr(at(path), *name)?)
        }
        Op::Property { path, value } => {
            // The kernel says that all is well and does nothing, where the library says so.
            let kind = fs::symlink_metadata(at(path))?.file_type();
            if !kind.is_file() && !kind.is_dir() {
                return Err(Errno::INVAL.into());
            }
            refuse_stand_in(&at(path))?;
            Ok(lsetxattr(at(path), "btrfs.compression", value.as_bytes(), XattrFlags::empty())?)
        }
        Op::Chmod { path, mode } => {
            refuse_stand_in(&at(path))?;
            fs::set_permissions(at(path), Permissions::from_mode(*mode))
        }
        Op::Chown { path, uid, gid } => {
            refuse_stand_in(&at(path))?;
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            Ok(chownat(CWD, at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
        }
        Op::SetTimes { path, sec, nsec } => {
            refuse_stand_in(&at(path))?;
            let time = Timespec { tv_sec: *sec, tv_nsec: i64::from(*nsec) };
            let times = Timestamps { last_access: time, last_modification: time };
            Ok(utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)?)
        }
        Op::Allocate { path, at, len, keep_size } => {
            let flags = if *keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
            Ok(fallocate(&writable(path)?, flags, *at, *len)?)
        }
        Op::SetFlags { path, flags } => {
            let kind = fs::symlink_metadata(at(path))?.file_type();
            // Any change of flags puts a property to zlib or takes it away, which the library does not.
            let has_property = lgetxattr(at(path), "btrfs.compression", &mut [0; 64][..]).is_ok();
            if has_property || !kind.is_file() && !kind.is_dir() {
                return Err(Errno::INVAL.into());
            }
            refuse_stand_in(&at(path))?;
            let file = File::open(at(path))?;
            let mut now = ioctl_getflags(&file)?.bits();
            // The kernel's own mark of what did not compress forbids flags that the library sets.
            if now & NOCOMPRESS != 0 {
                now &= !NOCOMPRESS;
                ioctl_setflags(&file, IFlags::from_bits_retain(now))?;
            }
            Ok(ioctl_setflags(&file, IFlags::from_bits_retain(now & !FLAGS | flags))?)
        }
        Op::SetAcl { path, is_default, seed } => {
            refuse_stand_in(&at(path))?;
            // Linux 6.18 sets ACLs in read-only subvolumes, as nothing else.
            lsetxattr(at(path), "trusted.probe", b"", XattrFlags::empty())?;
            lremovexattr(at(path), "trusted.probe")?;
            // What is wrong is the argument: a file has no entries, a symlink no ACL.
            match lsetxattr(at(path), acl_name(*is_default), &acl(*seed), XattrFlags::empty()) {
                Err(Errno::ACCESS | Errno::OPNOTSUPP) => Err(Errno::INVAL.into()),
                set => Ok(set?),
            }
        }
        Op::Commit => Ok(rustix::fs::syncfs(File::open(top)?)?),
        Op::Clone { .. }
        | Op::CreateSubvolume { .. }
        | Op::Snapshot { .. }
        | Op::DeleteSubvolume { .. }
        | Op::SetReadonly { .. } => {
            unreachable!("done by other programs")
        }
    }
}

pub(super) fn acl_name(is_default: bool) -> &'static str {
    if is_default { "system.posix_acl_default" } else { "system.posix_acl_access" }
}

/// What stands for a subvolume in a snapshot is in the kernel's memory only, and so are its owner and times.
fn refuse_stand_in(path: &HostPath) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_dir() && meta.ino() < SUBVOLUME_ROOT { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// What FICLONERANGE takes of a range of `len` bytes: whole sectors, and the rest of a file's end where that is not
/// before the target's end. `None`: nothing.
pub(super) fn clonable(at: u64, len: u64, size: u64, to_at: u64, to_size: u64) -> Option<u64> {
    let left = size.checked_sub(at).filter(|left| *left > 0)?;
    let len = if len < left { len } else { left };
    let len = if len % SECTOR != 0 && to_at + len < to_size { len / SECTOR * SECTOR } else { len };
    (len > 0).then_some(len)
}

/// The same of two paths; all of `len` where they are no files, so that the kernel says what is wrong.
fn clonable_of(from: &HostPath, at: u64, len: u64, to: &HostPath, to_at: u64) -> Option<u64> {
    let size = |path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len());
    match (size(from), size(to)) {
        (Some(have), Some(there)) => clonable(at, len, have, to_at, there),
        _ => Some(len),
    }
}

/// FICLONERANGE(2), which no safe function of ours reaches. Exits with the errno.
const CLONE: &str = "use Fcntl; my ($from, $at, $len, $to, $to_at) = @ARGV;
    sysopen(my $source, $from, O_RDONLY | O_NONBLOCK) or exit $! + 0;
    sysopen(my $target, $to, O_RDWR | O_NONBLOCK) or exit $! + 0;
    ioctl($target, 0x4020940d, pack('qQQQ', fileno($source), $at, $len, $to_at)) or exit $! + 0;";

fn clone(from: &HostPath, at: u64, len: u64, to: &HostPath, to_at: u64) -> Result<Outcome> {
    let number = |n: u64| OsString::from(n.to_string());
    let args = ["-e".into(), CLONE.into(), from.into(), number(at), number(len), to.into(), number(to_at)];
    let said = command::ask("perl", args)?;
    match said.code {
        Some(0) => Ok(Outcome::Done),
        Some(errno) if said.stderr.is_empty() => Ok(Outcome::of_errno(errno)),
        _ => bail!("perl: {}", said.stderr.trim()),
    }
}

/// Waits until deleted subvolumes are gone from the disk.
///
/// # Errors
/// When btrfs-progs cannot be started.
pub(super) fn settle(top: &HostPath) -> Result<()> {
    command::ask("btrfs", [OsStr::new("subvolume"), "sync".as_ref(), top.as_os_str()])?;
    Ok(())
}

/// The read-only subvolumes, by path.
///
/// # Errors
/// When btrfs-progs fail.
pub(super) fn readonly_subvolumes(top: &HostPath) -> Result<Vec<String>> {
    let listed =
        command::run("btrfs", [OsStr::new("subvolume"), "list".as_ref(), "-r".as_ref(), top.as_os_str()])?;
    let mut paths: Vec<String> = listed
        .lines()
        .filter_map(|line| line.split_once(" path ").map(|(_, path)| path.to_owned()))
        .collect();
    paths.sort();
    Ok(paths)
}

/// `btrfs check` finds nothing.
///
/// # Errors
/// When btrfs-progs cannot be started.
pub(super) fn check(image: &HostPath) -> Result<Vec<String>> {
    btrfs_progs::check(image)
}
