//! What small changes cost, in tree blocks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use btrfsimg_compress::{PropertyChange, WorkspacePool};
use btrfsimg_fs::Preserve;
use btrfsimg_fs::block_store::{BlockStore, child_expectation};
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::import::{self, Links, Sparse};
use btrfsimg_fs::lookup::{Place, resolve};
use btrfsimg_fs::tree::Blocks as _;
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::attributes::chmod;
use btrfsimg_fs::write::contents::{Codec, write_at};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::unlink_checked;
use btrfsimg_fs::write::rename::rename;
use btrfsimg_fs::write::xattr::set_compression;
use btrfsimg_ondisk::{Timespec, objectid};

/// Tree blocks that one small change may read, from opening to the end of the commit.
pub const READ_MAX: u64 = 64;
/// Tree blocks that it may write.
pub const WRITTEN_MAX: u64 = 32;

/// What a change cost.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The change.
    pub what: &'static str,
    /// Tree blocks read.
    pub read: u64,
    /// Tree blocks written.
    pub written: u64,
    /// The same by tree and level.
    pub by_tree: BTreeMap<(u64, u8), u64>,
}

/// Small changes of all kinds, each a commit, in the directories `dir` and `other` of an image by [`crate::synthetic`]. A
/// copy of `file` goes in.
///
/// # Errors
/// As the changes; when one costs more than it may.
pub fn small_changes(image: &Path, dir: &str, other: &str, file: &Path) -> Result<Vec<Cost>> {
    let zstd = PropertyChange::parse_strict("zstd:5").ok().context("zstd is an algorithm")?;
    let find = |tx: &Transaction<'_>, path: &str| resolve(tx, Place::TOP, path.as_bytes(), true);
    let inside = |name: &str| format!("{dir}/{name}");
    let costs = vec![
        // The first change of such an image costs most: nothing of what it touches was moved by another one.
        cost(image, "cp", |tx| copy_in(tx, file, find(tx, dir)?))?,
        cost(image, "prop set", |tx| Ok(set_compression(tx, find(tx, &inside("f7"))?, &zstd, "f7")?))?,
        cost(image, "mkdir", |tx| {
            let attributes = Attributes::new(0o040_755, tx.now());
            create(tx, find(tx, dir)?, b"new", attributes, Vec::new())?;
            Ok(())
        })?,
        cost(image, "rm", |tx| {
            let (dir, file) = (find(tx, dir)?, find(tx, &inside("f9"))?);
            Ok(unlink_checked(tx, dir, b"f9", file, "f9")?)
        })?,
        cost(image, "chmod", |tx| Ok(chmod(tx, find(tx, &inside("f11"))?, 0o600)?))?,
        cost(image, "write", |tx| {
            let pool = WorkspacePool::new(1);
            let mut codec = Codec::new(tx, &pool, CompressionPolicy::default());
            write_at(tx, find(tx, &inside("f13"))?, 1000, &[7; 9000], &mut codec)?;
            Ok(())
        })?,
        cost(image, "mv", |tx| Ok(rename(tx, find(tx, dir)?, b"f15", find(tx, other)?, b"moved")?))?,
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
    Ok(Cost { what, read, written, by_tree: newest_blocks(volume.store())? })
}

/// The blocks of the newest commit, counted by tree and level.
fn newest_blocks(store: &BlockStore) -> Result<BTreeMap<(u64, u8), u64>> {
    let newest = store.superblock().generation.get();
    let mut counts = BTreeMap::new();
    let trees = objectid::ROOT_TREE..=objectid::BLOCK_GROUP_TREE;
    for tree in trees.filter(|tree| *tree != objectid::ROOT_TREE_DIR) {
        let root = store.root(tree)?.filter(|root| root.generation == newest);
        let mut todo: Vec<_> = root.iter().map(|root| (root.logical, root.expectation())).collect();
        while let Some((at, expect)) = todo.pop() {
            let block = store.block(at, &expect)?;
            *counts.entry((tree, block.level())).or_default() += 1;
            if !block.is_leaf() {
                let children = (0..block.nritems()).map(|slot| child_expectation(&block, slot, tree));
                todo.extend(children.filter(|(_, expect)| expect.generation == Some(newest)));
            }
        }
    }
    Ok(counts)
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
    let report = import::import_entry(tx, file, (dir, b"copy"), true, &options, &mut Links::default())?;
    ensure!(report.failures.is_empty(), "{:?}", report.failures);
    Ok(())
}
