//! Sound images that have a place for every fault: one of our own, the others made by the kernel.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use btrfsimg_fs::Preserve;
use btrfsimg_fs::import::{self, Links, Sparse, Target, import_tree};
use btrfsimg_fs::mkfs::{Features, ImageOptions, Options, Size, make_image};
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_ondisk::{CsumType, Timespec};
use btrfsimg_testkit::btrfs_progs;
use btrfsimg_testkit::oracle::Oracle;
use tempfile::TempDir;

/// Some images, in a directory of their own.
pub(crate) struct Images {
    _dir: TempDir,
    pub(crate) paths: Vec<PathBuf>,
    /// Whether those of the kernel are among them.
    pub(crate) complete: bool,
}

impl Images {
    pub(crate) fn make() -> Images {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = vec![dir.path().join("own.img")];
        let tree = dir.path().join("tree");
        make_tree(&tree);
        make_own(&tree, &paths[0], 4096, CsumType::XxHash64);
        let oracle = Oracle::new();
        let complete = oracle.has_progs() && oracle.has_kernel();
        if complete {
            type Fill = fn(&Path);
            let made: [(&str, &[&str], &str, Fill); 4] = [
                ("features", &["-m", "dup"], "noatime", fill_features),
                (
                    "small-nodes",
                    &["-n", "4096", "-O", "^no-holes,^skinny-metadata"],
                    "noatime",
                    fill_small_nodes,
                ),
                ("pieces", &["-d", "dup", "-m", "single"], "noatime,max_inline=0", fill_pieces),
                ("quota", &[], "noatime", fill_quota),
            ];
            for (name, args, options, fill) in made {
                let image = dir.path().join(name).with_extension("img");
                btrfs_progs::mkfs(&image, 192 << 20, args).unwrap();
                let mount = oracle.mount(&image, options).unwrap().unwrap();
                fill(mount.path());
                assert_eq!(mount.unmount().unwrap(), [""; 0]);
                paths.push(image);
            }
        }
        Images { _dir: dir, paths, complete }
    }
}

/// Runs a program and insists on success.
fn run(program: &str, args: &[&str], paths: &[&Path]) {
    let status = Command::new(program).args(args).args(paths).stdout(std::process::Stdio::null()).status();
    assert!(status.is_ok_and(|s| s.success()), "{program} {args:?} {paths:?}");
}

/// Text that compresses, but not to nothing.
fn text(bytes: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|i: u32| format!("line {i} {}\n", i.wrapping_mul(2_654_435_761)).into_bytes());
    lines.take(bytes).collect()
}

/// Bytes that do not compress.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// A file whose extents fill several leaves, and so many links that some are extended references.
pub(crate) fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/deep"), b"deep").unwrap();
    fs::write(tree.join("inline"), b"hello").unwrap();
    fs::write(tree.join("noise"), noise(50_000)).unwrap();
    fs::write(tree.join("text"), text(300_000)).unwrap();
    symlink("inline", tree.join("link")).unwrap();
    let holes = File::create(tree.join("holes")).unwrap();
    for i in 0..150 {
        holes.write_all_at(&text(8192), i * 16384).unwrap();
    }
    fs::write(tree.join("linked"), b"x").unwrap();
    for i in 0..40 {
        fs::hard_link(tree.join("linked"), tree.join(format!("{i:0>180}"))).unwrap();
    }
}

/// An image of that tree, compressed with zlib.
pub(crate) fn make_own(tree: &Path, image: &Path, nodesize: u32, csum: CsumType) {
    let options = Options {
        sectorsize: 4096,
        nodesize,
        features: Features::default(),
        csum,
        label: b"own".to_vec(),
        fsid: None,
        reproducible: false,
        now: Timespec::new(1_700_000_000, 0),
        size: Size::Exact(96 << 20),
    };
    let image_options = ImageOptions { force: false, has_content: true, no_sync: true };
    let zlib = Some("zlib".parse().unwrap());
    make_image(image, &options, &image_options, |tx, root, _| {
        let import = import::Options {
            preserve: Preserve::ALL,
            compression: CompressionPolicy { request: None, build_default: zlib, force: true },
            workers: 2,
            sparse: Sparse::Auto,
            clamp: None,
            exclude: Vec::new(),
            existing: Default::default(),
            list: false,
            cancel: None,
            progress: None,
        };
        import_tree(tx, tree, Target::NewRoot(root), &import, &mut Links::default())
    })
    .unwrap();
}

/// The defaults, and what only a mounted file system makes.
fn fill_features(top: &Path) {
    fs::create_dir_all(top.join("a/b/c")).unwrap();
    fs::write(top.join("a/b/c/deep"), b"deep").unwrap();
    fs::write(top.join("inline"), b"hello").unwrap();
    symlink("inline", top.join("link")).unwrap();
    run("mkfifo", &[], &[&top.join("fifo")]);
    run("setfattr", &["-n", "user.note", "-v", "value"], &[&top.join("inline")]);
    fs::write(top.join("noise"), noise(100_000)).unwrap();
    for method in ["zlib", "lzo", "zstd"] {
        for (name, bytes) in [("large", 200_000), ("small", 1500)] {
            let file = top.join(format!("{method}-{name}"));
            File::create(&file).unwrap();
            run("btrfs", &["property", "set", file.to_str().unwrap(), "compression", method], &[]);
            fs::write(&file, text(bytes)).unwrap();
        }
    }
    let prealloc = top.join("prealloc");
    run("fallocate", &["-l", "65536"], &[&prealloc]);
    run("btrfs", &["-q", "subvolume", "create"], &[&top.join("subvolume")]);
    fs::write(top.join("subvolume/file"), noise(20_000)).unwrap();
    run("btrfs", &["-q", "subvolume", "snapshot"], &[&top.join("subvolume"), &top.join("snapshot")]);
    fs::write(top.join("snapshot/new"), noise(5000)).unwrap();
    fs::write(top.join("shared"), noise(60_000)).unwrap();
    run("cp", &["--reflink=always"], &[&top.join("shared"), &top.join("shared-again")]);
    fs::write(top.join("popular"), noise(40_000)).unwrap();
    for i in 0..60 {
        run("cp", &["--reflink=always"], &[&top.join("popular"), &top.join(format!("popular-{i}"))]);
    }
}

/// Nodes of 4096 bytes, hole items, extent items with tree block info.
fn fill_small_nodes(top: &Path) {
    for i in 0..200 {
        fs::write(top.join(format!("many-{i}")), b"x").unwrap();
    }
    let holes = File::create(top.join("holes")).unwrap();
    holes.write_all_at(&noise(4096), 0).unwrap();
    holes.write_all_at(&noise(4096), 1 << 20).unwrap();
    // A leaf that two subvolumes share, changed by the one that owns it, refers by its address.
    run("btrfs", &["-q", "subvolume", "create"], &[&top.join("subvolume")]);
    for i in 0..60 {
        fs::write(top.join(format!("subvolume/data-{i}")), noise(4096)).unwrap();
    }
    run("btrfs", &["-q", "subvolume", "snapshot"], &[&top.join("subvolume"), &top.join("snapshot")]);
    fs::write(top.join("subvolume/data-30"), noise(8192)).unwrap();
    fs::create_dir(top.join("dir")).unwrap();
    fs::write(top.join("dir/file"), noise(30_000)).unwrap();
}

/// Free space in so many pieces that it is kept in bitmaps; data twice.
fn fill_pieces(top: &Path) {
    for i in 0..400 {
        fs::write(top.join(format!("piece-{i}")), noise(8192)).unwrap();
    }
    run("sync", &["-f"], &[top]);
    for i in (0..400).step_by(2) {
        fs::remove_file(top.join(format!("piece-{i}"))).unwrap();
    }
}

fn fill_quota(top: &Path) {
    run("btrfs", &["-q", "subvolume", "create"], &[&top.join("subvolume")]);
    fs::write(top.join("subvolume/file"), noise(50_000)).unwrap();
    run("sync", &["-f"], &[top]);
    run("btrfs", &["quota", "enable"], &[top]);
    run("btrfs", &["quota", "rescan", "-w"], &[top]);
    run("sync", &["-f"], &[top]);
}
