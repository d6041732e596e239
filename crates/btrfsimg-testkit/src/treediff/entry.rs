//! One entry that both trees have.

use super::{DiffKind, DiffOptions, Report, compared, show};
use crate::sparse;
use rustix::{
    buffer::spare_capacity,
    fs::{lgetxattr, llistxattr},
    io::Errno,
};
use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Permission bits with setuid, setgid and sticky.
const MODE_BITS: u32 = 0o7777;
/// What a name list or value of an xattr can be at most (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_MAX: usize = 64 << 10;
/// Files up to this size are read whole: asking for their holes costs more.
const SMALL: u64 = 1 << 20;

/// Where the entry is.
pub(super) struct Paths {
    pub(super) a: PathBuf,
    pub(super) b: PathBuf,
}

/// What lstat says of it.
pub(super) struct Stats<'a> {
    pub(super) a: &'a Metadata,
    pub(super) b: &'a Metadata,
}

impl Stats<'_> {
    fn both<T: PartialEq>(&self, field: impl Fn(&Metadata) -> T) -> Option<(T, T)> {
        let (a, b) = (field(self.a), field(self.b));
        (a != b).then_some((a, b))
    }
}

/// Adds what differs; `false` when the types do, which leaves nothing else to compare.
pub(super) fn compare(
    report: &mut Report,
    options: &DiffOptions,
    path: &Path,
    at: &Paths,
    stats: &Stats<'_>,
) -> bool {
    if let Some((a, b)) = stats.both(|m| m.mode() & !MODE_BITS) {
        report.add(path, DiffKind::Type, format_args!("{a:o} {b:o}"));
        return false;
    }
    inode(report, options, path, stats);
    if options.xattrs {
        xattrs(report, options, path, at);
    }
    let kind = stats.a.file_type();
    if kind.is_symlink() {
        match (fs::read_link(&at.a), fs::read_link(&at.b)) {
            (Ok(a), Ok(b)) if a == b => {}
            (Ok(a), Ok(b)) => report.add(path, DiffKind::Target, format_args!("{a:?} {b:?}")),
            (Err(e), _) | (_, Err(e)) => report.add(path, DiffKind::Unreadable, e),
        }
    } else if (kind.is_char_device() || kind.is_block_device())
        && let Some((a, b)) = stats.both(Metadata::rdev)
    {
        report.add(path, DiffKind::Device, format_args!("{a:#x} {b:#x}"));
    } else if kind.is_file() {
        file(report, path, at, stats);
    }
    true
}

fn inode(report: &mut Report, options: &DiffOptions, path: &Path, stats: &Stats<'_>) {
    if options.modes
        && let Some((a, b)) = stats.both(|m| m.mode() & MODE_BITS)
    {
        report.add(path, DiffKind::Mode, format_args!("{a:o} {b:o}"));
    }
    if options.owners
        && let Some((a, b)) = stats.both(|m| (m.uid(), m.gid()))
    {
        report.add(path, DiffKind::Owner, format_args!("{a:?} {b:?}"));
    }
    if options.times
        && let Some((a, b)) = stats.both(|m| (m.mtime(), m.mtime_nsec()))
    {
        report.add(path, DiffKind::Mtime, format_args!("{a:?} {b:?}"));
    }
}

fn file(report: &mut Report, path: &Path, at: &Paths, stats: &Stats<'_>) {
    if let Some((a, b)) = stats.both(Metadata::len) {
        return report.add(path, DiffKind::Size, format_args!("{a} {b}"));
    }
    match first_difference(at, stats.a.len()) {
        Ok(None) => {}
        Ok(Some(offset)) => report.add(path, DiffKind::Content, format_args!("from byte {offset} on")),
        Err(e) => report.add(path, DiffKind::Unreadable, e),
    }
}

/// The first offset at which two files of equal size differ. What is a hole in both is not read.
fn first_difference(at: &Paths, len: u64) -> io::Result<Option<u64>> {
    if len == 0 {
        return Ok(None);
    }
    let (a, b) = (File::open(&at.a)?, File::open(&at.b)?);
    let ranges = if len <= SMALL {
        std::iter::once(0..len).collect()
    } else {
        sparse::union(sparse::data_ranges(&a, len)?, sparse::data_ranges(&b, len)?)
    };
    let mut found = None;
    let mut other = Vec::new();
    for range in ranges {
        let end = range.end;
        let mut reached = range.start;
        sparse::read_range(&a, range, |offset, bytes| {
            other.resize(bytes.len(), 0);
            let got = sparse::read_full_at(&b, &mut other, offset)?;
            let same = bytes.iter().zip(&other[..got]).take_while(|(x, y)| x == y).count();
            reached = offset + bytes.len() as u64;
            if same < bytes.len() && found.is_none() {
                found = Some(offset + same as u64);
            }
            Ok(())
        })?;
        if found.is_none() && reached < end {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the first file ended early"));
        }
        if found.is_some() {
            break;
        }
    }
    Ok(found)
}

fn xattrs(report: &mut Report, options: &DiffOptions, path: &Path, at: &Paths) {
    match (read_xattrs(&at.a, options), read_xattrs(&at.b, options)) {
        (Ok(a), Ok(b)) => {
            for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
                let (va, vb) = (a.get(name), b.get(name));
                if va != vb {
                    let say = |v: Option<&Vec<u8>>| v.map_or_else(|| "absent".to_owned(), |v| show(v));
                    let detail = format!("{} {} {}", show(name), say(va), say(vb));
                    report.add(path, DiffKind::Xattrs, detail);
                }
            }
        }
        (Err(e), _) | (_, Err(e)) => report.add(path, DiffKind::Unreadable, format_args!("xattrs: {e}")),
    }
}

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

fn read_xattrs(path: &Path, options: &DiffOptions) -> io::Result<Xattrs> {
    let mut list = Vec::with_capacity(XATTR_MAX);
    match llistxattr(path, spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::NOTSUP) => return Ok(Xattrs::new()),
        Err(e) => return Err(e.into()),
    }
    let mut out = Xattrs::new();
    for name in list.split(|&b| b == 0).filter(|name| !name.is_empty() && compared(name, options)) {
        let mut value = Vec::with_capacity(XATTR_MAX);
        match lgetxattr(path, name, spare_capacity(&mut value)) {
            Ok(_) => {}
            // Some names are listed but have no value to give (ACLs where there are none, other users' trusted.*).
            Err(Errno::NODATA) => continue,
            Err(e) => return Err(e.into()),
        }
        value.shrink_to_fit();
        out.insert(name.to_vec(), value);
    }
    Ok(out)
}
