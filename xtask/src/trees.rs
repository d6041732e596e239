//! Source trees, and a place in memory to put them.

use anyhow::{Context, Result, ensure};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// A tmpfs that is gone, with all that is in it, when dropped.
pub(crate) struct Tmpfs {
    dir: Option<TempDir>,
}

impl Tmpfs {
    /// `size` bytes are the most it takes; what is not used costs nothing.
    pub(crate) fn mount(size: u64) -> Result<Tmpfs> {
        let dir = tempfile::Builder::new().prefix("btrfsimg-tmpfs-").tempdir()?;
        let options = format!("size={size},mode=0755,nr_inodes=0");
        let args = ["-t", "tmpfs", "-o", &options, "btrfsimg-speed"].map(OsStr::new);
        run("mount", args.into_iter().chain([dir.path().as_os_str()])).context("a tmpfs needs root")?;
        Ok(Tmpfs { dir: Some(dir) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.as_ref().map_or(Path::new(""), TempDir::path)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        if run("umount", [dir.path()]).is_err() {
            // Deleting the directory would take long and may delete what is mounted below.
            run("umount", [OsStr::new("-l"), dir.path().as_os_str()]).ok();
            eprintln!("xtask: {} is left behind", dir.keep().display());
        }
    }
}

/// Bytes that a tree's contents are, holes included.
pub(crate) fn size(tree: &Path) -> Result<u64> {
    let args = ["-s", "-B1", "--apparent-size"].map(OsStr::new);
    let output = Command::new("du").args(args).arg(tree).output().context("cannot run du")?;
    // du is content to leave out what it may not read; so are we, for an estimate.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).context("du says no size")
}

/// `cp -a TREE/. TARGET`
pub(crate) fn copy(tree: &Path, target: &Path) -> Result<()> {
    std::fs::create_dir_all(target)?;
    run("cp", [OsStr::new("-a"), contents(tree).as_os_str(), target.as_os_str()])
}

/// `TREE/.`, which cp(1) takes as what is in the tree and its top's own attributes.
pub(crate) fn contents(tree: &Path) -> PathBuf {
    let mut path = tree.as_os_str().to_owned();
    path.push("/.");
    path.into()
}

/// Runs to success.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<()> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} fails: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
