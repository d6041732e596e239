//! Operations done by the library on an image, with the checks that the command makes.

use std::ops::Range;
use std::path::Path as HostPath;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use btrfsimg_compress::{PropertyChange, WorkspacePool};
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::lookup::{self, Entry, Place, SegmentKind, Segments, find_entry, target};
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::contents::{self, Codec};
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::flags::{set_flags, visible};
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::names::{check_changeable, refuse_existing};
use btrfsimg_fs::write::{attributes, create, link, remove, rename, setxattr, subvol, xattr};
use btrfsimg_fs::{Error, Result as FsResult};
use btrfsimg_ondisk::{FileType, InodeItem, Timespec, inode_flags};

use super::Outcome;
use super::kernel::{acl_name, clonable};
use super::op::{Op, Path, acl, bytes};
use crate::rng::Rng;

/// So little that leaves spill.
const BUDGET: usize = 64 << 10;

/// Does `ops`, in one transaction up to each [`Op::Commit`], and says how each ended.
///
/// # Errors
/// When the image cannot be opened or committed, and for errors that are no answer to an operation: corruption, I/O.
pub(super) fn apply(
    image: &HostPath,
    ops: &[Op],
    policy: &CompressionPolicy,
    seed: u64,
) -> Result<Vec<(Outcome, String)>> {
    let options =
        VolumeOptions { dirty_budget: (seed % 2 == 1).then_some(BUDGET), ..VolumeOptions::default() };
    let mut volume = Volume::open(Arc::new(FileDevice::open(image, Access::Write, 0)?), options)?;
    let pool = WorkspacePool::new(1);
    let mut outcomes = Vec::with_capacity(ops.len());
    for ops in ops.split_inclusive(|op| *op == Op::Commit) {
        let mut tx = volume.begin(now()?)?;
        let mut codec = Codec::new(&tx, &pool, *policy);
        for op in ops {
            outcomes.push(match one(&mut tx, op, &mut codec) {
                Ok(()) => (Outcome::Done, String::new()),
                Err(error) => (outcome(op, &error)?, error.to_string()),
            });
        }
        tx.commit()?;
    }
    Ok(outcomes)
}

fn now() -> Result<Timespec> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(Timespec::new(i64::try_from(since.as_secs())?, since.subsec_nanos()))
}

fn outcome(op: &Op, error: &Error) -> Result<Outcome> {
    Ok(match error {
        Error::NotFound(_) => Outcome::NotFound,
        Error::Exists(_) => Outcome::Exists,
        Error::NotDirectory(_) => Outcome::NotDirectory,
        Error::IsDirectory(_) => Outcome::IsDirectory,
        Error::NotEmpty(_) => Outcome::NotEmpty,
        Error::ReadOnly(_) => Outcome::Forbidden,
        // What kernels say too where the kind of inode is wrong: a hard link to a directory.
        Error::Invalid(why) if why.contains("operation not permitted") => Outcome::Forbidden,
        Error::Invalid(_) => Outcome::Invalid,
        Error::NoSpace { .. } => Outcome::NoSpace,
        other => bail!("{op:?}: {other}"),
    })
}

/// A name and what it names.
struct Named<'p> {
    dir: Place,
    name: &'p [u8],
    entry: Entry,
    place: Place,
}

impl Named<'_> {
    /// Whether it is the root of a subvolume, or the stand-in for one.
    fn is_fixed(&self) -> bool {
        self.entry.is_subvolume()
    }
}

/// The directory and the last component of a path.
fn parent<'p>(tx: &Transaction<'_>, path: &'p Path) -> FsResult<(Place, &'p [u8])> {
    let (dir, name) = lookup::resolve_parent(tx, Place::TOP, &path.0)?;
    if !is_dir(&lookup::inode(tx, dir)?) {
        return Err(Error::NotDirectory(shown(path)));
    }
    Ok((dir, name))
}

fn named<'p>(tx: &Transaction<'_>, path: &'p Path) -> FsResult<Named<'p>> {
    let (dir, name) = parent(tx, path)?;
    let entry = find_entry(tx, dir, name)?.ok_or_else(|| Error::NotFound(shown(path)))?;
    let place = target(tx, dir, name, entry.location)?;
    Ok(Named { dir, name, entry, place })
}

/// The directory in which `path` may be made.
fn vacant<'p>(tx: &Transaction<'_>, path: &'p Path) -> FsResult<(Place, &'p [u8])> {
    let (dir, name) = parent(tx, path)?;
    refuse_existing(tx, dir, name, &shown(path))?;
    check_changeable(tx, dir, &shown(path), false)?;
    Ok((dir, name))
}

/// The inode at `path`, the last symlink followed, which may be changed.
fn changeable(tx: &Transaction<'_>, path: &Path, follow: bool) -> FsResult<Place> {
    let place = lookup::resolve(tx, Place::TOP, &path.0, follow)?;
    check_changeable(tx, place, &shown(path), false)?;
    Ok(place)
}

/// A regular file that may be written, not only appended to.
fn writable(tx: &Transaction<'_>, path: &Path) -> FsResult<Place> {
    let place = lookup::resolve(tx, Place::TOP, &path.0, true)?;
    match FileType::from_mode(lookup::inode(tx, place)?.mode.get()) {
        Some(FileType::REG_FILE) => {}
        Some(FileType::DIR) => return Err(Error::IsDirectory(shown(path))),
        _ => return Err(Error::Invalid(shown(path))),
    }
    check_changeable(tx, place, &shown(path), true)?;
    Ok(place)
}

/// Whether there are no data in the bytes `range` of a file.
fn is_hole(tx: &Transaction<'_>, file: Place, range: Range<u64>) -> FsResult<bool> {
    let mut segments = Segments::of(file, range);
    while let Some(segment) = segments.next(tx)? {
        if !matches!(segment.kind, SegmentKind::Hole) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_dir(inode: &InodeItem) -> bool {
    FileType::from_mode(inode.mode.get()) == Some(FileType::DIR)
}

fn shown(path: &Path) -> String {
    path.0.escape_ascii().to_string()
}

fn one(tx: &mut Transaction<'_>, op: &Op, codec: &mut Codec<'_>) -> FsResult<()> {
    match op {
        Op::Create { .. } | Op::Mkdir { .. } | Op::Mknod { .. } | Op::Symlink { .. } => make(tx, op),
        Op::Write { .. } | Op::Truncate { .. } | Op::Punch { .. } | Op::Clone { .. } => change(tx, op, codec),
        Op::Rename { .. } | Op::Link { .. } | Op::Unlink { .. } | Op::Rmdir { .. } => move_names(tx, op),
        Op::Commit => Ok(()),
        _ if op.is_about_subvolumes() => subvolumes(tx, op),
        _ => set_attributes(tx, op),
    }
}

fn make(tx: &mut Transaction<'_>, op: &Op) -> FsResult<()> {
    let now = tx.now();
    match op {
        Op::Create { path, mode } => {
            let (dir, name) = vacant(tx, path)?;
            create::create(tx, dir, name, Attributes::new(0o100_000 | mode, now), Vec::new()).map(drop)
        }
        Op::Mkdir { path, mode } => {
            let (dir, name) = vacant(tx, path)?;
            create::create(tx, dir, name, Attributes::new(0o040_000 | mode, now), Vec::new()).map(drop)
        }
        Op::Mknod { path, kind, major, minor } => {
            let (dir, name) = vacant(tx, path)?;
            let is_device = [0o020_000, 0o060_000].contains(kind);
            let rdev = if is_device { (u64::from(*major) << 20) | u64::from(*minor) } else { 0 };
            let attributes = Attributes { rdev, ..Attributes::new(kind | 0o644, now) };
            create::create(tx, dir, name, attributes, Vec::new()).map(drop)
        }
        Op::Symlink { target, path } => {
            let (dir, name) = vacant(tx, path)?;
            create::symlink(tx, dir, name, Attributes::new(0o120_777, now), target).map(drop)
        }
        _ => Ok(()),
    }
}

fn change(tx: &mut Transaction<'_>, op: &Op, codec: &mut Codec<'_>) -> FsResult<()> {
    match op {
        Op::Write { path, at, len, pattern, seed } => {
            let place = writable(tx, path)?;
            contents::write_at(tx, place, *at, &bytes(*pattern, *len, *seed), codec)
        }
        Op::Truncate { path, size } => {
            let place = writable(tx, path)?;
            contents::truncate(tx, place, *size)
        }
        Op::Punch { path, at, len } => {
            let place = writable(tx, path)?;
            let only_holes = is_hole(tx, place, *at..at + len)?;
            contents::punch_hole(tx, place, *at..at + len)?;
            let now = tx.now();
            if only_holes { attributes::set_times(tx, place, None, Some(now)) } else { Ok(()) }
        }
        Op::Clone { from, at, len, to, to_at, exact } => {
            let source = lookup::resolve(tx, Place::TOP, &from.0, true)?;
            let inode = lookup::inode(tx, source)?;
            let kind = FileType::from_mode(inode.mode.get());
            if matches!(kind, Some(FileType::CHRDEV | FileType::BLKDEV | FileType::SOCK)) {
                // It cannot be opened.
                return Err(Error::Invalid(shown(from)));
            }
            let target = writable(tx, to)?;
            match kind {
                Some(FileType::REG_FILE) => {}
                Some(FileType::DIR) => return Err(Error::IsDirectory(shown(from))),
                _ => return Err(Error::Invalid(shown(from))),
            }
            let to_size = lookup::inode(tx, target)?.size.get();
            let len =
                if *exact { Some(*len) } else { clonable(*at, *len, inode.size.get(), *to_at, to_size) };
            match len {
                None => Ok(()),
                Some(len) => contents::clone_range(tx, source, *at..at + len, target, *to_at),
            }
        }
        _ => Ok(()),
    }
}

fn move_names(tx: &mut Transaction<'_>, op: &Op) -> FsResult<()> {
    match op {
        Op::Rename { from, to } => {
            let (from_dir, name) = parent(tx, from)?;
            let (to_dir, new_name) = parent(tx, to)?;
            if let Some((above, stand_in)) = lookup::stand_in_above(tx, Place::TOP, &to.0)? {
                rename::refuse_into_itself(tx, from_dir, name, (above, &stand_in))?;
            }
            rename::rename(tx, from_dir, name, to_dir, new_name)
        }
        Op::Link { from, to } => {
            let from = named(tx, from)?;
            let (dir, name) = vacant(tx, to)?;
            link::link(tx, from.place, dir, name)
        }
        Op::Unlink { path } => {
            let old = named(tx, path)?;
            // As the kernel: who may not is told so before what it is.
            check_changeable(tx, old.dir, &shown(path), true)?;
            if old.place.tree == old.dir.tree && !old.place.is_empty_dir() {
                check_changeable(tx, old.place, &shown(path), true)?;
            }
            if old.entry.file_type == FileType::DIR {
                return Err(Error::IsDirectory(shown(path)));
            }
            remove::unlink_checked(tx, old.dir, old.name, old.place, &shown(path))
        }
        Op::Rmdir { path } => {
            let old = named(tx, path)?;
            if old.is_fixed() {
                return Ok(());
            }
            check_changeable(tx, old.dir, &shown(path), false)?;
            remove::rmdir(tx, old.dir, old.name, &shown(path))
        }
        _ => Ok(()),
    }
}

fn set_attributes(tx: &mut Transaction<'_>, op: &Op) -> FsResult<()> {
    match op {
        Op::SetXattr { path, name, len, seed } => {
            let place = lookup::resolve(tx, Place::TOP, &path.0, false)?;
            setxattr::setxattr(tx, place, name.as_bytes(), &Rng::new(*seed).bytes(*len))
        }
        Op::RemoveXattr { path, name } => {
            let place = lookup::resolve(tx, Place::TOP, &path.0, false)?;
            setxattr::removexattr(tx, place, name.as_bytes())
        }
        Op::Property { path, value } => {
            let place = lookup::resolve(tx, Place::TOP, &path.0, false)?;
            check_changeable(tx, place, &shown(path), true)?;
            let change =
                PropertyChange::parse_strict(value).map_err(|error| Error::Invalid(error.to_string()))?;
            xattr::set_compression(tx, place, &change, &shown(path))
        }
        Op::Chmod { path, mode } => {
            let place = changeable(tx, path, true)?;
            attributes::chmod(tx, place, *mode)
        }
        Op::Chown { path, uid, gid } => {
            let place = changeable(tx, path, false)?;
            attributes::chown(tx, place, *uid, *gid)
        }
        Op::SetFlags { path, flags } => {
            let place = lookup::resolve(tx, Place::TOP, &path.0, false)?;
            let inode = lookup::inode(tx, place)?;
            let may_have =
                matches!(FileType::from_mode(inode.mode.get()), Some(FileType::REG_FILE | FileType::DIR));
            if !may_have || lookup::xattr(tx, place, b"btrfs.compression")?.is_some() {
                return Err(Error::Invalid(shown(path)));
            }
            // What the ioctl calls them.
            let names = [
                (0x10, inode_flags::IMMUTABLE),
                (0x20, inode_flags::APPEND),
                (0x40, inode_flags::NODUMP),
                (0x80, inode_flags::NOATIME),
                (0x80_0000, inode_flags::NODATACOW),
            ];
            // In two steps, as on the kernel's side.
            let now = visible(inode.flags.get()) & !inode_flags::NOCOMPRESS;
            if now != visible(inode.flags.get()) {
                set_flags(tx, place, now, &shown(path))?;
            }
            let put =
                |all: u64, (name, bit): (u32, u64)| if flags & name == 0 { all & !bit } else { all | bit };
            set_flags(tx, place, names.into_iter().fold(now, put), &shown(path)).map(drop)
        }
        Op::SetAcl { path, is_default, seed } => {
            let place = lookup::resolve(tx, Place::TOP, &path.0, false)?;
            check_changeable(tx, place, &shown(path), true)?;
            let is_dir = FileType::from_mode(lookup::inode(tx, place)?.mode.get()) == Some(FileType::DIR);
            if *is_default && !is_dir {
                return Err(Error::Invalid(shown(path)));
            }
            setxattr::setxattr(tx, place, acl_name(*is_default).as_bytes(), &acl(*seed))
        }
        Op::SetTimes { path, sec, nsec } => {
            let place = changeable(tx, path, false)?;
            let time = Timespec::new(*sec, *nsec);
            attributes::set_times(tx, place, Some(time), Some(time))
        }
        _ => Ok(()),
    }
}

fn subvolumes(tx: &mut Transaction<'_>, op: &Op) -> FsResult<()> {
    let root_of = |tx: &Transaction<'_>, path: &Path| {
        let place = lookup::resolve(tx, Place::TOP, &path.0, false)?;
        let is_root = place == Place::root(place.tree);
        if is_root { Ok(place.tree) } else { Err(Error::Invalid(shown(path))) }
    };
    match op {
        Op::CreateSubvolume { path } => {
            let (dir, name) = vacant(tx, path)?;
            let attributes = Attributes::new(0o040_755, tx.now());
            subvol::create(tx, dir, name, attributes, Vec::new()).map(drop)
        }
        Op::Snapshot { from, to, readonly } => {
            let source = root_of(tx, from)?;
            let (dir, name) = vacant(tx, to)?;
            subvol::snapshot(tx, source, dir, name, *readonly).map(drop)
        }
        Op::DeleteSubvolume { path } => {
            let old = named(tx, path)?;
            // Before it asks the kernel, btrfs-progs look whether it is one.
            if old.place != Place::root(old.place.tree) {
                return Err(Error::Invalid(shown(path)));
            }
            check_changeable(tx, old.dir, &shown(path), false)?;
            let deleted = subvol::delete(tx, old.dir, old.name)?;
            if deleted.finished { Ok(()) } else { Err(Error::Invalid("too large for one step".to_owned())) }
        }
        Op::SetReadonly { path, readonly } => {
            let tree = root_of(tx, path)?;
            subvol::set_readonly(tx, tree, *readonly, false)
        }
        _ => Ok(()),
    }
}
