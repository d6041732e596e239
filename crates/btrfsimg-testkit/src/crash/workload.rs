//! What is done to an image while the power fails.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use btrfsimg_compress::WorkspacePool;
use btrfsimg_fs::Preserve;
use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::import::{Links, Options as ImportOptions, Sparse, Target, import_tree};
use btrfsimg_fs::lookup::{self, Place, entries, find_entry, target};
use btrfsimg_fs::mkfs::{Features, Options, Size, finish_size, make};
use btrfsimg_fs::trim::Method;
use btrfsimg_fs::txn::{Transaction, TreeDrop, Volume, VolumeOptions};
use btrfsimg_fs::write::contents::{self, Codec};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::remove_tree;
use btrfsimg_fs::write::subvol;
use btrfsimg_fs::{Error, Result as FsResult};
use btrfsimg_ondisk::{CsumType, Timespec, Uuid};
use tempfile::TempDir;

use super::device_space::{
    files_defragmented, group_given_away, group_taken_back, image_grown, space_trimmed,
};
use crate::rng::Rng;

/// An image and a change of it.
pub struct Workload {
    /// What it is called.
    pub name: &'static str,
    /// The image before.
    pub start: Vec<u8>,
    /// Bytes that the kernel must still be able to write to the image at any time; 0 where it is full.
    pub room: usize,
    /// Whether the change asks for holes, which a [`FailingDevice`](super::FailingDevice) has none of.
    pub punches: bool,
    /// How the image is opened for the change.
    pub options: VolumeOptions,
    /// The change: one or more commits. Made again on the same image, it makes the same.
    pub change: Box<Change>,
}

/// A change of an image.
pub type Change = dyn Fn(&mut Volume) -> FsResult<()> + Send + Sync;

/// When everything happens.
pub fn now() -> Timespec {
    Timespec::new(1_700_000_000, 123)
}

/// Far enough for a second superblock.
pub(super) const SIZE: u64 = 72 << 20;
/// Too small for it; soon full.
pub(super) const SMALL: u64 = 40 << 20;
/// What the kernel writes to an image that is not full.
const ROOM: usize = 256 << 10;
/// References that change in one step of a deletion: some steps for a small tree.
const DROP_STEP: usize = 40;
/// So little that everything spills.
const BUDGET: usize = 64 << 10;

/// An empty file system in memory, whose UUID is drawn from `seed`.
///
/// # Errors
/// As making one.
pub fn new_image(nodesize: u32, size: u64, seed: u64) -> Result<Arc<MemDevice>> {
    new_image_with(Features::default(), nodesize, size, seed)
}

/// The same with these features.
///
/// # Errors
/// As making one.
pub fn new_image_with(features: Features, nodesize: u32, size: u64, seed: u64) -> Result<Arc<MemDevice>> {
    let device = Arc::new(MemDevice::default());
    let options = Options {
        sectorsize: 4096,
        nodesize,
        features,
        csum: CsumType::Crc32c,
        label: b"crash".to_vec(),
        fsid: Some(Uuid::from_u64_pair(seed.wrapping_add(1), 0x8000_0000_0000_0007)),
        reproducible: true,
        now: now(),
        size: Size::Exact(size),
    };
    let mut volume = Volume::blank(device.clone(), &options.geometry()?, VolumeOptions::default())?;
    let mut tx = volume.begin(now())?;
    make(&mut tx, &options)?;
    finish_size(&mut tx, options.size, false)?;
    tx.commit()?;
    Ok(device)
}

/// All workloads; `scale` 1 for tests, more for longer ones.
///
/// # Errors
/// When the images before cannot be made.
pub fn all(scale: usize) -> Result<Vec<Workload>> {
    Ok(vec![
        tree_copied_in(scale)?,
        tree_removed(scale)?,
        files_changed(scale)?,
        snapshot_deleted(scale)?,
        full_image()?,
        image_grown()?,
        group_given_away()?,
        group_taken_back()?,
        files_defragmented(scale)?,
        space_trimmed(Method::Zeros)?,
        space_trimmed(Method::Holes)?,
    ])
}

/// A tree copied in: leaves spill, chunks are allocated, files of the same name are replaced.
///
/// # Errors
/// When the image before cannot be made.
pub fn tree_copied_in(scale: usize) -> Result<Workload> {
    let source = source_tree(120 * scale, 1)?;
    let before = source_tree(40, 2)?;
    let start = filled(4096, SIZE, |tx| import(tx, before.path()))?;
    Ok(Workload {
        name: "a tree copied in",
        start,
        room: ROOM,
        punches: false,
        options: VolumeOptions { dirty_budget: Some(BUDGET), ..VolumeOptions::default() },
        change: Box::new(move |volume| {
            let mut tx = volume.begin(now())?;
            import(&mut tx, source.path())?;
            tx.commit()
        }),
    })
}

/// Trees removed, with all that they alone held.
///
/// # Errors
/// When the image before cannot be made.
pub fn tree_removed(scale: usize) -> Result<Workload> {
    let before = source_tree(150 * scale, 3)?;
    let start = filled(4096, SIZE, |tx| import(tx, before.path()))?;
    Ok(Workload {
        name: "a tree removed",
        start,
        room: ROOM,
        punches: false,
        options: VolumeOptions { dirty_budget: Some(BUDGET), ..VolumeOptions::default() },
        change: Box::new(|volume| {
            let mut tx = volume.begin(now())?;
            let dir = child(&tx, Place::TOP, b"dir1")?;
            remove_tree(&mut tx, Place::TOP, b"dir1", dir, "/dir1")?;
            tx.commit()
        }),
    })
}

/// Files that grow, shrink, get holes and share extents.
///
/// # Errors
/// When the image before cannot be made.
pub fn files_changed(scale: usize) -> Result<Workload> {
    let before = source_tree(80 * scale, 5)?;
    let start = filled(4096, SIZE, |tx| import(tx, before.path()))?;
    Ok(Workload {
        name: "files grown and truncated",
        start,
        room: ROOM,
        punches: false,
        options: VolumeOptions { dirty_budget: Some(BUDGET), ..VolumeOptions::default() },
        change: Box::new(|volume| {
            let mut tx = volume.begin(now())?;
            change_files(&mut tx)?;
            tx.commit()
        }),
    })
}

/// Changes the contents of every file in one of the directories, in one of six ways.
fn change_files(tx: &mut Transaction<'_>) -> FsResult<()> {
    let dir = child(tx, Place::TOP, b"dir0")?;
    let (mut files, mut rng) = (Vec::new(), Rng::new(6));
    entries(tx, dir, |entry| {
        files.push(Place { tree: dir.tree, ino: entry?.1.location.objectid });
        Ok(true)
    })?;
    let pool = WorkspacePool::new(1);
    let policy = CompressionPolicy { build_default: "lzo".parse().ok(), ..CompressionPolicy::default() };
    let mut codec = Codec::new(tx, &pool, policy);
    for (n, file) in files.iter().copied().enumerate() {
        let size = lookup::inode(tx, file)?.size.get();
        match n % 6 {
            0 => contents::write_at(tx, file, size, &rng.bytes(70_000), &mut codec)?,
            1 => contents::write_at(tx, file, size / 2, &[b'x'; 150_000], &mut codec)?,
            2 => contents::truncate(tx, file, size / 3)?,
            3 => contents::truncate(tx, file, size + 1_000_000)?,
            4 => contents::punch_hole(tx, file, size / 4..size / 2)?,
            _ => {
                let whole = lookup::inode(tx, files[0])?.size.get() / 4096 * 4096;
                contents::clone_range(tx, files[0], 0..whole, file, 4096)?;
            }
        }
    }
    Ok(())
}

/// A snapshot is made, changed and deleted, in steps: each is a commit.
///
/// # Errors
/// When the image before cannot be made.
pub fn snapshot_deleted(scale: usize) -> Result<Workload> {
    let before = source_tree(100 * scale, 7)?;
    let start = filled(4096, SIZE, |tx| {
        import(tx, before.path())?;
        let attributes = Attributes::new(0o040_755, now());
        create(tx, Place::TOP, b"snapshots", attributes, Vec::new()).map(drop)
    })?;
    Ok(Workload {
        name: "a snapshot and its deletion",
        start,
        room: ROOM,
        punches: false,
        options: VolumeOptions::default(),
        change: Box::new(|volume| {
            let step = |volume: &mut Volume, change: &dyn Fn(&mut Transaction<'_>) -> FsResult<()>| {
                let mut tx = volume.begin(now())?;
                change(&mut tx)?;
                tx.commit()
            };
            // Each goes on from where it was when the power went.
            step(volume, &|tx| {
                let dir = child(tx, Place::TOP, b"snapshots")?;
                match find_entry(tx, dir, b"snapshot")? {
                    Some(_) => Ok(()),
                    None => subvol::snapshot(tx, Place::TOP.tree, dir, b"snapshot", false).map(drop),
                }
            })?;
            step(volume, &|tx| {
                let dir = child(tx, Place::TOP, b"snapshots")?;
                let Some(entry) = find_entry(tx, dir, b"snapshot")? else { return Ok(()) };
                let top = target(tx, dir, b"snapshot", entry.location)?;
                if find_entry(tx, top, b"dir1")?.is_none() {
                    return Ok(());
                }
                let changed = child(tx, top, b"dir1")?;
                remove_tree(tx, top, b"dir1", changed, "/dir1")
            })?;
            let mut tx = volume.begin(now())?;
            let dir = child(&tx, Place::TOP, b"snapshots")?;
            let tree = subvol::begin_delete(&mut tx, dir, b"snapshot")?;
            tx.commit()?;
            let mut rest = TreeDrop::new(tree);
            loop {
                let mut tx = volume.begin(now())?;
                let finished = subvol::finish(&mut tx, &mut rest, DROP_STEP)?;
                tx.commit()?;
                if finished {
                    return Ok(());
                }
            }
        }),
    })
}

/// More than fits, which is given up; then something that fits, with the same handle.
///
/// # Errors
/// When the image before cannot be made.
pub fn full_image() -> Result<Workload> {
    let before = source_tree(60, 4)?;
    let start = filled(16_384, SMALL, |tx| import(tx, before.path()))?;
    let source = TempDir::new()?;
    for n in 0..24 {
        fs::write(source.path().join(format!("large{n}")), Rng::new(n).bytes(2 << 20))?;
    }
    Ok(Workload {
        name: "a full image",
        start,
        room: 0,
        punches: false,
        options: VolumeOptions::default(),
        change: Box::new(move |volume| {
            let mut tx = volume.begin(now())?;
            let filled = import(&mut tx, source.path()).and_then(|()| tx.commit());
            match filled {
                Err(Error::NoSpace { .. }) => {}
                Err(other) => return Err(other),
                Ok(()) => return Err(Error::Invalid("48 MiB fit into 40 MiB".to_owned())),
            }
            let mut tx = volume.begin(now())?;
            create(&mut tx, Place::TOP, b"fits", Attributes::new(0o040_755, now()), Vec::new())?;
            tx.commit()
        }),
    })
}

/// An image that holds what `fill` puts into it.
pub(super) fn filled(
    nodesize: u32,
    size: u64,
    fill: impl FnOnce(&mut Transaction<'_>) -> FsResult<()>,
) -> Result<Vec<u8>> {
    let device = new_image(nodesize, size, size)?;
    let mut volume = Volume::open(device.clone(), VolumeOptions::default())?;
    let mut tx = volume.begin(now())?;
    fill(&mut tx)?;
    tx.commit()?;
    Ok(device.contents())
}

pub(super) fn child(tx: &Transaction<'_>, dir: Place, name: &[u8]) -> FsResult<Place> {
    let found = find_entry(tx, dir, name)?;
    let entry = found.ok_or_else(|| Error::NotFound(String::from_utf8_lossy(name).into_owned()))?;
    Ok(Place { tree: dir.tree, ino: entry.location.objectid })
}

/// Merges the host directory `source` into the root directory.
pub(super) fn import(tx: &mut Transaction<'_>, source: &Path) -> FsResult<()> {
    let options = ImportOptions {
        preserve: Preserve { times: false, ..Preserve::ALL },
        compression: CompressionPolicy::default(),
        workers: 1,
        sparse: Sparse::Always,
        clamp: None,
        exclude: Vec::new(),
        cancel: None,
        progress: None,
        existing: btrfsimg_fs::Existing::Replace,
        list: false,
    };
    let report = import_tree(tx, source, Target::Into(Place::TOP), &options, &mut Links::default())?;
    match report.failures.first() {
        None => Ok(()),
        Some(failure) => Err(Error::Invalid(format!("{}: {}", failure.path.display(), failure.reason))),
    }
}

/// Small and larger files in a few directories, links, and long names.
pub(super) fn source_tree(files: usize, seed: u64) -> Result<TempDir> {
    let top = TempDir::new().context("no place for a tree")?;
    let mut rng = Rng::new(seed);
    for n in 0..files {
        let dir = top.path().join(format!("dir{}", n % 4));
        fs::create_dir_all(&dir)?;
        let len = match n % 10 {
            0 => 100_000 + rng.index(100_000),
            1..5 => 4000 + rng.index(9000),
            _ => rng.index(2000),
        };
        let file = dir.join(format!("file {n} {}", "x".repeat(n % 90)));
        fs::write(&file, rng.bytes(len))?;
        match n % 16 {
            3 => fs::hard_link(&file, top.path().join(format!("link{n}")))?,
            7 => symlink(format!("dir1/file {n}"), top.path().join(format!("symlink{n}")))?,
            _ => {}
        }
    }
    Ok(top)
}
