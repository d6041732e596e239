//! Small sound images to damage.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use btrfsimg_fs::Preserve;
use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::import::{self, Links, Sparse, Target, import_tree};
use btrfsimg_fs::inspect::{tree_roots, walk_tree};
use btrfsimg_fs::mkfs::{Features, ImageOptions, Options, Size, make_image};
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_ondisk::{BlockContext, CsumType, Logical, Physical, Timespec, Uuid};
use btrfsimg_testkit::{Oracle, btrfs_progs, rng::Rng};

/// A sound image in memory, and where its tree blocks are.
pub(super) struct Specimen {
    pub(super) name: &'static str,
    pub(super) device: Arc<MemDevice>,
    pub(super) ctx: BlockContext,
    pub(super) blocks: Vec<(Logical, Vec<Physical>)>,
    /// Physical ranges that hold something, for damage without checksums.
    pub(super) used: Vec<Range<u64>>,
}

/// One of our own, and where the kernel is at hand one with what only a mounted file system makes.
pub(super) fn all() -> Result<Vec<Specimen>> {
    let dir = tempfile::tempdir()?;
    let own = dir.path().join("own.img");
    make_own(dir.path(), &own)?;
    let mut all = vec![Specimen::open("own", &own)?];
    let oracle = Oracle::new();
    if oracle.has_kernel() && oracle.has_progs() {
        let kernel = dir.path().join("kernel.img");
        btrfs_progs::mkfs(&kernel, 128 << 20, &["-n", "4096"])?;
        if let Some(mount) = oracle.mount(&kernel, "noatime,compress-force=zstd")? {
            fill_mounted(mount.path())?;
            mount.unmount()?;
            all.push(Specimen::open("kernel", &kernel)?);
        }
    }
    Ok(all)
}

impl Specimen {
    fn open(name: &'static str, image: &Path) -> Result<Specimen> {
        let device = Arc::new(MemDevice::new(fs::read(image)?));
        let fs = Filesystem::open(device.clone())?;
        let mut at = BTreeSet::new();
        for root in tree_roots(&fs)? {
            walk_tree(&fs, &root?, &mut |view| {
                at.insert(view?.logical.0);
                Ok(())
            })?;
        }
        let ctx = *fs.store().ctx();
        let mut blocks = Vec::new();
        let mut used = Vec::from_iter(std::iter::once(65536..65536 + 4096));
        for logical in at {
            let copies = fs.store().chunks().map(Logical(logical), ctx.nodesize as u64)?;
            let copies: Vec<Physical> = copies.map(|p| p.physical).collect();
            used.extend(copies.iter().map(|p| p.0..p.0 + ctx.nodesize as u64));
            blocks.push((Logical(logical), copies));
        }
        Ok(Specimen { name, device, ctx, blocks, used })
    }
}

/// Everything small: inline, compressed, sparse and plain files, links, directories, small nodes.
fn make_own(dir: &Path, image: &Path) -> Result<()> {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("a/b"))?;
    fs::write(tree.join("a/b/inline"), "hello")?;
    fs::write(tree.join("noise"), Rng::new(1).bytes(9000))?;
    fs::write(tree.join("text"), "all work and no play ".repeat(2000))?;
    symlink("noise", tree.join("link"))?;
    let holes = fs::File::create(tree.join("holes"))?;
    (0..4).try_for_each(|i| holes.write_all_at(&[7; 8192], i * 65536))?;
    fs::hard_link(tree.join("noise"), tree.join("a/noise"))?;
    (0..12).try_for_each(|i| fs::write(tree.join(format!("a/many-{i}")), [b'x'; 100]))?;
    let options = Options {
        sectorsize: 4096,
        nodesize: 4096,
        features: Features::default(),
        csum: CsumType::Crc32c,
        label: b"specimen".to_vec(),
        fsid: Some(Uuid::from_bytes([7; 16])),
        reproducible: true,
        now: Timespec::new(1_700_000_000, 0),
        size: Size::Exact(64 << 20),
    };
    let image_options = ImageOptions { force: false, has_content: true, no_sync: true };
    let lzo = "lzo".parse().ok().context("lzo is an algorithm")?;
    make_image(image, &options, &image_options, |tx, root, _| {
        let import = import::Options {
            preserve: Preserve::NONE,
            compression: CompressionPolicy { request: None, build_default: Some(lzo), force: true },
            workers: 1,
            sparse: Sparse::Auto,
            clamp: None,
            exclude: Vec::new(),
            existing: Default::default(),
            list: false,
            cancel: None,
            progress: None,
        };
        import_tree(tx, &tree, Target::NewRoot(root), &import, &mut Links::default())
    })?;
    Ok(())
}

fn fill_mounted(top: &Path) -> Result<()> {
    let run = |args: &[&str], paths: &[&Path]| -> Result<()> {
        let status = std::process::Command::new(args[0]).args(&args[1..]).args(paths).status()?;
        anyhow::ensure!(status.success(), "{args:?}");
        Ok(())
    };
    run(&["btrfs", "-q", "subvolume", "create"], &[&top.join("subvolume")])?;
    fs::write(top.join("subvolume/file"), "text ".repeat(5000))?;
    run(&["btrfs", "-q", "subvolume", "snapshot"], &[&top.join("subvolume"), &top.join("snapshot")])?;
    fs::write(top.join("snapshot/more"), Rng::new(2).bytes(20_000))?;
    run(&["cp", "--reflink=always"], &[&top.join("snapshot/more"), &top.join("again")])?;
    run(&["fallocate", "-l", "65536"], &[&top.join("prealloc")])?;
    run(&["setfattr", "-n", "user.note", "-v", "value"], &[&top.join("again")])
}
