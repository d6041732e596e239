//! Are two host trees equal? The question behind every import, export and copy.

mod entry;
mod links;

use self::links::Links;
use anyhow::{Context, Result};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    fs::{self, File, Metadata},
    io,
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

/// What is compared besides names, types, sizes, device numbers, link targets and contents.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    /// Modification times, to the nanosecond.
    pub times: bool,
    /// Permission bits, setuid, setgid and sticky.
    pub modes: bool,
    /// User and group.
    pub owners: bool,
    /// Which names are links of one file, and that the second tree's link counts are its names' number.
    pub links: bool,
    /// Extended attributes, `btrfs.*` never.
    pub xattrs: bool,
    /// Xattrs whose names begin so are not compared.
    pub ignore_xattrs: Vec<String>,
}

impl Default for DiffOptions {
    fn default() -> Self {
        DiffOptions {
            times: true,
            modes: true,
            owners: true,
            links: true,
            xattrs: true,
            ignore_xattrs: Vec::new(),
        }
    }
}

/// The outcome of [`diff`].
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Entries that both trees have, the top directory included.
    pub entries: usize,
    /// In the order of the walk; link groups last.
    pub differences: Vec<Difference>,
}

impl Report {
    /// Whether nothing differs.
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty()
    }

    /// Panics with the first differences unless nothing differs.
    #[track_caller]
    pub fn assert_equal(&self) {
        assert!(self.is_equal(), "the trees differ:\n{self}");
    }

    fn add(&mut self, path: &Path, kind: DiffKind, detail: impl fmt::Display) {
        self.differences.push(Difference { path: path.to_owned(), kind, detail: detail.to_string() });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        for difference in self.differences.iter().take(SHOWN) {
            writeln!(f, "{difference}")?;
        }
        write!(f, "{} differences in {} entries", self.differences.len(), self.entries)
    }
}

/// One way in which one entry differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Below the two top directories; empty for these themselves.
    pub path: PathBuf,
    /// What differs.
    pub kind: DiffKind,
    /// The two values, first tree first.
    pub detail: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {}", self.kind, self.path, self.detail)
    }
}

/// What can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum DiffKind {
    /// Not in the second tree.
    Missing,
    /// Only in the second tree.
    Extra,
    Type,
    Mode,
    Owner,
    Device,
    Size,
    Mtime,
    Target,
    Xattrs,
    /// The names of one file are not the same in both trees.
    Links,
    /// A link count of the second tree is not the number of its names.
    Nlink,
    Content,
    Unreadable,
}

/// Compares all that is below two directories, and these themselves.
///
/// Directories are held open on the way down and entries named relative to them, so that no path is too long.
pub fn diff(a: &Path, b: &Path, options: &DiffOptions) -> Result<Report> {
    let tops = Pair { a: Side::open(a)?, b: Side::open(b)? };
    let mut walk = Walk { options, report: Report::default(), links: Links::default() };
    let metadata = |side: &Side| side.dir.metadata();
    let (ma, mb) = (metadata(&tops.a)?, metadata(&tops.b)?);
    walk.report.entries += 1;
    let stats = entry::Stats { a: &ma, b: &mb };
    entry::compare(&mut walk.report, options, Path::new(""), &tops.paths(OsStr::new("")), &stats);
    walk.directory(&tops, Path::new(""));
    let Walk { mut report, links, .. } = walk;
    if options.links {
        links.compare(&mut report);
    }
    Ok(report)
}

/// An open directory of one tree.
struct Side {
    dir: File,
}

impl Side {
    fn open(path: &Path) -> Result<Side> {
        let dir = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        anyhow::ensure!(dir.metadata()?.is_dir(), "{} is not a directory", path.display());
        Ok(Side { dir })
    }

    /// A short path to an entry, however deep the directory lies.
    fn path(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/self/fd").join(self.dir.as_raw_fd().to_string()).join(name)
    }

    fn list(&self) -> io::Result<BTreeMap<OsString, Metadata>> {
        fs::read_dir(self.path(OsStr::new("")))?
            .map(|entry| {
                let name = entry?.file_name();
                let metadata = fs::symlink_metadata(self.path(&name))?;
                Ok((name, metadata))
            })
            .collect()
    }
}

/// The same directory in both trees.
struct Pair {
    a: Side,
    b: Side,
}

impl Pair {
    fn paths(&self, name: &OsStr) -> entry::Paths {
        entry::Paths { a: self.a.path(name), b: self.b.path(name) }
    }
}

struct Walk<'a> {
    options: &'a DiffOptions,
    report: Report,
    links: Links,
}

impl Walk<'_> {
    fn directory(&mut self, pair: &Pair, at: &Path) {
        let (in_a, mut in_b) = match (pair.a.list(), pair.b.list()) {
            (Ok(in_a), Ok(in_b)) => (in_a, in_b),
            (Err(e), _) | (_, Err(e)) => return self.report.add(at, DiffKind::Unreadable, e),
        };
        for (name, ma) in &in_a {
            let path = at.join(name);
            let Some(mb) = in_b.remove(name) else {
                self.report.add(&path, DiffKind::Missing, "");
                continue;
            };
            self.both(pair, name, &path, &entry::Stats { a: ma, b: &mb });
        }
        for name in in_b.keys() {
            self.report.add(&at.join(name), DiffKind::Extra, "");
        }
    }

    fn both(&mut self, pair: &Pair, name: &OsStr, path: &Path, stats: &entry::Stats<'_>) {
        self.report.entries += 1;
        let paths = pair.paths(name);
        if !entry::compare(&mut self.report, self.options, path, &paths, stats) {
            return;
        }
        if !stats.a.is_dir() {
            self.links.add(path, stats);
            return;
        }
        match (Side::open(&paths.a), Side::open(&paths.b)) {
            (Ok(a), Ok(b)) => self.directory(&Pair { a, b }, path),
            (Err(e), _) | (_, Err(e)) => self.report.add(path, DiffKind::Unreadable, e),
        }
    }
}

/// (device, inode): one file, whatever its names.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Xattr names are bytes; `btrfs.*` are the driver's own view of properties, not data of the tree.
fn compared(name: &[u8], options: &DiffOptions) -> bool {
    !name.starts_with(b"btrfs.") && !options.ignore_xattrs.iter().any(|p| name.starts_with(p.as_bytes()))
}

/// A lossless way to show a name.
fn show(name: &[u8]) -> String {
    format!("{:?}", OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests;
