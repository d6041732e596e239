//! A host tree that holds everything a tree can hold, for judging imports and copies.

mod contents;
mod inodes;
mod names;

use crate::rng::Rng;
use anyhow::{Context, Result};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr, makedev, mknodat,
        utimensat,
    },
    io::Errno,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, lchown},
    },
    path::{Path, PathBuf},
};

/// How much of everything. The same options give the same tree, times included.
#[derive(Debug, Clone)]
pub struct OddTree {
    /// Entries of the directory `many`.
    pub many: usize,
    /// Names of one file in one directory. 300 of these names fill more than one item holds at any node size up
    /// to 16 KiB, so that extended references are needed.
    pub links: usize,
    /// Files of 128 KiB whose sectors leave different residues in an LZO stream.
    pub residues: usize,
    /// The longest symlink target; 3949 is the most at a node size of 4 KiB.
    pub symlink_len: usize,
    /// A file of 6 GiB, nearly all of it hole.
    pub huge: bool,
    /// Of the random contents and times.
    pub seed: u64,
}

impl Default for OddTree {
    fn default() -> Self {
        OddTree { many: 3000, links: 300, residues: 40, symlink_len: 4095, huge: true, seed: 7 }
    }
}

impl OddTree {
    /// As much as the acceptance asks for: a directory of 200,000 entries among it.
    pub fn full() -> OddTree {
        OddTree { many: 200_000, residues: 160, ..OddTree::default() }
    }

    /// Fills the directory `top`, which is created when absent, and its twin `TOP.outside`, which holds a
    /// second name of one file.
    ///
    /// What this user or this file system cannot make is left out, printed, and listed in the result.
    pub fn build(&self, top: &Path) -> Result<BTreeSet<String>> {
        fs::create_dir_all(top).with_context(|| format!("cannot make {}", top.display()))?;
        let mut b = Builder {
            top: top.to_owned(),
            rng: Rng::new(self.seed),
            times: BTreeMap::new(),
            left_out: BTreeSet::new(),
        };
        self.fill(&mut b).with_context(|| format!("cannot fill {}", top.display()))?;
        for what in &b.left_out {
            // Not eprintln: the harness hides what that prints in a test that passes.
            writeln!(io::stderr(), "odd tree without {what}").ok();
        }
        Ok(b.left_out)
    }

    fn fill(&self, b: &mut Builder) -> io::Result<()> {
        contents::sizes(b)?;
        contents::mixtures(b, self.residues)?;
        contents::holes(b, self.huge)?;
        names::names(b)?;
        names::hard_links(b, self.links)?;
        names::symlinks(b, self.symlink_len)?;
        names::deep(b)?;
        names::many(b, self.many)?;
        inodes::special(b)?;
        inodes::modes_and_owners(b)?;
        inodes::xattrs(b)?;
        inodes::times(b)?;
        inodes::top(b)?;
        b.set_times(&b.top.clone())
    }
}

/// Makes entries below the top directory, and knows what could not be made.
struct Builder {
    top: PathBuf,
    rng: Rng,
    /// Times other than drawn ones: (seconds, nanoseconds).
    times: BTreeMap<PathBuf, (i64, i64)>,
    left_out: BTreeSet<String>,
}

impl Builder {
    fn at(&self, name: impl AsRef<[u8]>) -> PathBuf {
        self.top.join(OsStr::from_bytes(name.as_ref()))
    }

    fn dir(&self, name: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.at(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// The mode is set afterwards: no umask shows.
    fn file(&self, name: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.at(name);
        fs::write(&path, contents)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        Ok(path)
    }

    fn node(&mut self, name: &str, kind: FileType, mode: u32, device: (u32, u32)) -> io::Result<()> {
        let path = self.at(name);
        let made = mknodat(CWD, &path, kind, Mode::from_raw_mode(mode), makedev(device.0, device.1));
        if self.allowed("device nodes", made)? {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    fn owner(&mut self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        let done =
            lchown(path, Some(uid), Some(gid)).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
        self.allowed("other owners", done).map(drop)
    }

    /// Of the entry itself, never of a link's target.
    fn xattr(&mut self, path: &Path, name: impl AsRef<[u8]>, value: &[u8]) -> io::Result<()> {
        let name = name.as_ref();
        let set = lsetxattr(path, name, value, XattrFlags::empty());
        let space = name.split(|&b| b == b'.').next().unwrap_or_default();
        self.allowed(&format!("xattrs {}.*", String::from_utf8_lossy(space)), set).map(drop)
    }

    /// `false`, and noted, when the user or the file system lacks it.
    fn allowed(&mut self, what: &str, done: Result<(), Errno>) -> io::Result<bool> {
        match done {
            Ok(()) => Ok(true),
            Err(e) if [Errno::PERM, Errno::ACCESS, Errno::NOTSUP, Errno::INVAL].contains(&e) => {
                self.left_out.insert(format!("{what} ({e})"));
                Ok(false)
            }
            Err(e) => Err(io::Error::other(format!("{what}: {e}"))),
        }
    }

    /// In sorted order, so that the times do not depend on the file system that holds the tree.
    fn set_times(&mut self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path)?.is_dir() {
            let mut names: Vec<_> =
                fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
            names.sort();
            for name in names {
                self.set_times(&name)?;
            }
        }
        let mut draw = |below| i64::try_from(self.rng.below(below)).unwrap_or(0);
        let drawn = (1_500_000_000 + draw(200_000_000), draw(1_000_000_000));
        let (tv_sec, tv_nsec) = self.times.get(path).copied().unwrap_or(drawn);
        let at = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: at, last_modification: at };
        Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::treediff::{self, DiffOptions};
    use std::os::unix::fs::MetadataExt;
    use tempfile::TempDir;

    fn small() -> OddTree {
        OddTree { many: 100, residues: 3, ..OddTree::default() }
    }

    #[test]
    fn same_options_same_tree() {
        let dir = TempDir::new().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        assert_eq!(small().build(&a).unwrap(), small().build(&b).unwrap());
        // The second tree's link counts are compared with its names.
        fs::remove_file(dir.path().join("b.outside")).unwrap();
        let report = treediff::diff(&a, &b, &DiffOptions::default()).unwrap();
        report.assert_equal();
        assert!(report.entries > 500, "{report}");
    }

    #[test]
    fn the_odd_things_are_there() {
        let dir = TempDir::new().unwrap();
        let top = dir.path().join("odd");
        let left_out = small().build(&top).unwrap();
        let stat = |name: &str| fs::symlink_metadata(top.join(name)).unwrap();
        assert_eq!(stat("h1").nlink(), 301);
        assert_eq!(stat("out").nlink(), 2);
        assert_eq!(stat("sparse").len(), 6 << 30);
        assert!(stat("sparse").blocks() * 512 < 1 << 20);
        assert_eq!((stat("old").mtime(), stat("old").mtime_nsec()), (-86_400 * 365, 123_456_789));
        assert_eq!(stat("future").mtime(), 4_500_000_000);
        assert_eq!(stat("setuid").mode() & 0o7777, 0o4755);
        assert_eq!(fs::read_link(top.join("longlink")).unwrap().as_os_str().len(), 4095);
        let longest = fs::read_dir(top.join("names")).unwrap().map(|e| e.unwrap().file_name().len()).max();
        assert_eq!(longest, Some(255));
        if rustix::process::geteuid().is_root() {
            assert_eq!(stat("blk").rdev(), makedev(259, 70_000));
            assert_eq!(left_out, BTreeSet::new());
        }
    }
}
