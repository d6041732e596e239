//! Very many files of 64 KiB of 'A': from names of one inode, and as the kernel writes them from a buffer.

use crate::{measure, measure::Cost, trees};
use anyhow::{Context, Result};
use btrfsimg_testkit::{btrfs_progs, mount::Mount};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

const FILE: usize = 64 << 10;
/// Names of one source directory: one inode, so that the source costs nothing.
const NAMES_PER_DIR: usize = 10_000;

/// The command under test, and a directory on a tmpfs to work in.
pub(crate) struct Place<'p> {
    pub(crate) binary: &'p Path,
    pub(crate) dir: &'p Path,
}

impl Place<'_> {
    /// Runs the command.
    pub(crate) fn run(&self, words: &[&str]) -> Result<Cost> {
        let argv = [self.binary.into()].into_iter().chain(words.iter().map(OsString::from));
        measure::run(&argv.collect::<Vec<_>>())
    }

    /// `n` files of 64 KiB of 'A', each with so many xattrs.
    pub(crate) fn files(&self, n: usize, xattrs: usize) -> Result<PathBuf> {
        let (top, bytes) = (self.dir.join("files"), vec![b'A'; FILE]);
        let xattrs: Vec<_> =
            (0..xattrs).map(|x| (format!("user.property{x}"), format!("some-value-{x}"))).collect();
        for i in 0..n {
            let dir = top.join((i / NAMES_PER_DIR).to_string());
            if i.is_multiple_of(NAMES_PER_DIR) {
                fs::create_dir_all(&dir)?;
            }
            let file = dir.join(i.to_string());
            fs::write(&file, &bytes)?;
            for (name, value) in &xattrs {
                rustix::fs::setxattr(&file, name.as_str(), value.as_bytes(), rustix::fs::XattrFlags::CREATE)?;
            }
        }
        Ok(top)
    }

    /// `n` names of one file of 64 KiB of 'A' with so many xattrs. Copied without -a, each becomes a file of its own.
    pub(crate) fn names_of_one_inode(&self, n: usize, xattrs: usize) -> Result<PathBuf> {
        let top = self.dir.join("names");
        fs::create_dir_all(&top)?;
        let first = self.dir.join("A");
        fs::remove_file(&first).ok();
        fs::write(&first, vec![b'A'; FILE])?;
        for x in 0..xattrs {
            let (name, value) = (format!("user.property{x}"), format!("some-value-{x}"));
            let words = ["-n", &name, "-v", &value, &first.display().to_string()].map(OsString::from);
            trees::run("setfattr", words)?;
        }
        for i in 0..n {
            let dir = top.join((i / NAMES_PER_DIR).to_string());
            if i.is_multiple_of(NAMES_PER_DIR) {
                fs::create_dir(&dir)?;
            }
            fs::hard_link(&first, dir.join(i.to_string()))?;
        }
        Ok(top)
    }

    /// Copies `source` into a new image, into a directory with the property `lzo`, xattrs included; then lists it. Costs
    /// of both.
    pub(crate) fn copy_into_property(&self, source: &Path) -> Result<(Cost, Cost)> {
        let image = self.dir.join("image");
        let (name, dir) = (image.display().to_string(), format!("{}:/d", image.display()));
        self.run(&["mkfs", "-q", "-f", "-b", "100G", &name])?;
        self.run(&["mkdir", &dir])?;
        self.run(&["prop", "set", &dir, "compression", "lzo"])?;
        let source = source.display().to_string();
        let cost = self.run(&["cp", "-q", "-r", "--preserve=xattr", &source, &dir])?;
        let listing = self.run(&["ls", "-l", "-R", &dir])?;
        fs::remove_file(image)?;
        Ok((cost, listing))
    }

    /// The kernel writing the same bytes from a buffer: seconds, umount included.
    pub(crate) fn by_the_kernel(&self, n: usize) -> Result<f64> {
        let image = self.dir.join("kernel");
        btrfs_progs::mkfs(&image, 16 << 30, &[])?;
        let mount = Mount::open(&image, "rw")?;
        let dir = mount.path().join("d");
        fs::create_dir(&dir)?;
        let set = ["property", "set", &dir.display().to_string(), "compression", "lzo"].map(OsString::from);
        trees::run("btrfs", set).context("cannot set the property")?;
        let (buffer, start) = (vec![b'A'; FILE], Instant::now());
        for i in 0..n {
            let below = dir.join((i / NAMES_PER_DIR).to_string());
            if i.is_multiple_of(NAMES_PER_DIR) {
                fs::create_dir(&below)?;
            }
            fs::write(below.join(i.to_string()), &buffer)?;
        }
        mount.unmount()?;
        let seconds = start.elapsed().as_secs_f64();
        fs::remove_file(image)?;
        Ok(seconds)
    }
}
