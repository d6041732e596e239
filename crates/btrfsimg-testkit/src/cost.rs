//! What small changes cost, in tree blocks.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use btrfsimg_compress::PropertyChange;
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::import::{self, Preserve, Sparse};
use btrfsimg_fs::lookup::{Place, resolve};
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::unlink_checked;
use btrfsimg_fs::write::xattr::set_compression;
use btrfsimg_ondisk::Timespec;

/// Tree blocks that one small change may read, from opening to the end of the commit.
pub const READ_MAX: u64 = 64;
/// Tree blocks that it may write.
pub const WRITTEN_MAX: u64 = 32;

/// What a change cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The change.
    pub what: &'static str,
    /// Tree blocks read.
    pub read: u64,
    /// Tree blocks written.
    pub written: u64,
}

/// Sets a property, makes a directory, copies `file` in and removes a file, each a commit, in the directory `dir` of an
/// image by [`crate::synthetic`].
///
/// # Errors
/// As the changes; when one costs more than it may.
pub fn small_changes(image: &Path, dir: &str, file: &Path) -> Result<Vec<Cost>> {
    let zstd = PropertyChange::parse_strict("zstd:5").ok().context("zstd is an algorithm")?;
    let find =
        |tx: &Transaction<'_>, name: &str| resolve(tx, Place::TOP, format!("{dir}{name}").as_bytes(), true);
    let costs = vec![
        cost(image, "prop set", |tx| Ok(set_compression(tx, find(tx, "/f7")?, &zstd, "f7")?))?,
        cost(image, "mkdir", |tx| {
            let attributes = Attributes::new(0o040_755, tx.now());
            create(tx, find(tx, "")?, b"new", attributes, Vec::new())?;
            Ok(())
        })?,
        cost(image, "cp", |tx| copy_in(tx, file, find(tx, "")?))?,
        cost(image, "rm", |tx| {
            let (dir, file) = (find(tx, "")?, find(tx, "/f9")?);
            Ok(unlink_checked(tx, dir, b"f9", file, "f9")?)
        })?,
    ];
    for c in &costs {
        ensure!(c.read <= READ_MAX && c.written <= WRITTEN_MAX, "{}: {c:?}", image.display());
    }
    Ok(costs)
}

fn cost(
    image: &Path,
    what: &'static str,
    change: impl FnOnce(&mut Transaction<'_>) -> Result<()>,
) -> Result<Cost> {
    let device = Arc::new(FileDevice::open(image, Access::Write, 0)?);
    let mut volume = Volume::open(device, VolumeOptions::default())?;
    let mut tx = volume.begin(Timespec::new(1_700_000_001, 0))?;
    change(&mut tx)?;
    tx.commit()?;
    let (read, written) = volume.store().counters();
    Ok(Cost { what, read, written })
}

fn copy_in(tx: &mut Transaction<'_>, file: &Path, dir: Place) -> Result<()> {
    let options = import::Options {
        preserve: Preserve::NONE,
        compression: CompressionPolicy::default(),
        workers: 1,
        sparse: Sparse::Auto,
        clamp: None,
        exclude: Vec::new(),
        existing: Default::default(),
        list: false,
        cancel: None,
        progress: None,
    };
    let report = import::import_entry(tx, file, dir, b"copy", true, &options)?;
    ensure!(report.failures.is_empty(), "{:?}", report.failures);
    Ok(())
}
