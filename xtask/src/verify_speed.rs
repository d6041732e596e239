//! `verify` and `btrfs check` on the same images, in turn.

use crate::{
    images,
    measure::{self, Cost},
    trees::{self, Tmpfs},
};
use anyhow::{Context, Result, ensure};
use btrfsimg_testkit::{Mount, btrfs_progs};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// Options of `cargo xtask verify-speed`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A tree, for example an unpacked Linux source: its image at zstd:3 is judged
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Files of the image of small files; 0 leaves it out
    #[arg(long, default_value_t = 1_000_000)]
    files: u32,
    /// Snapshots that are taken of it then, for the last rows; 0 leaves them out
    #[arg(long, default_value_t = 200)]
    snapshots: u32,
    /// Rounds: in each, every program runs once
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// This binary instead of the release build
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Prints a Markdown table of medians, and of each pair the ratio of times.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.runs > 0, "no runs, no median");
    let binary = images::binary(options.binary.as_deref())?;
    let bytes = options.tree.as_deref().map_or(Ok(0), trees::size)?;
    let room = u64::from(options.files) * 4096;
    let tmpfs = Tmpfs::mount(bytes.saturating_mul(2).saturating_add(room).saturating_add(2 << 30))?;
    println!("| image | judged | btrfsimg, s | btrfs check, s | ratio | peak, MiB | btrfs check, MiB |");
    println!("|---|---|---|---|---|---|---|");
    if let Some(tree) = &options.tree {
        let image = tmpfs.path().join("tree");
        measure::run(&images::mkfs(&binary, &image, tree, "--compress", "zstd:3"))?;
        compare(&binary, &image, "the tree at zstd:3", options.runs)?;
        fs::remove_file(&image)?;
    }
    if options.files > 0 {
        let image = tmpfs.path().join("files");
        small_files(&image, options.files)?;
        compare(&binary, &image, &format!("{} files", options.files), options.runs)?;
        if options.snapshots > 0 {
            snapshots(&image, options.snapshots)?;
            compare(&binary, &image, &format!("and {} snapshots", options.snapshots), options.runs)?;
        }
    }
    println!("\nMedian of {} alternating runs; images on a tmpfs.", options.runs);
    Ok(())
}

fn compare(binary: &Path, image: &Path, name: &str, runs: usize) -> Result<()> {
    let words = |list: &[&str]| -> Vec<OsString> {
        list.iter().map(OsString::from).chain([image.as_os_str().to_owned()]).collect()
    };
    let ours = binary.to_str().context("a path that is no text")?;
    for (what, ours, theirs) in [
        ("metadata", words(&[ours, "verify"]), words(&["btrfs", "check"])),
        ("and data", words(&[ours, "verify", "--data"]), words(&["btrfs", "check", "--check-data-csum"])),
    ] {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            a.push(measure::run(&ours)?);
            b.push(measure::run(&theirs)?);
        }
        let (a, b): (Cost, Cost) = (measure::summary(&a), measure::summary(&b));
        let ratio = a.wall / b.wall;
        println!(
            "| {name} | {what} | {:.2} | {:.2} | {ratio:.2} | {:.0} | {:.0} |",
            a.wall, b.wall, a.peak, b.peak
        );
    }
    Ok(())
}

/// Files below 200 bytes, a thousand in each directory, and every tenth of up to 8,000, made by the kernel.
fn small_files(image: &Path, files: u32) -> Result<()> {
    btrfs_progs::mkfs(image, u64::from(files) * 8192 + (1 << 30), &[])?;
    let mount = Mount::open(image, "rw")?;
    let content: Vec<u8> = (0..8192u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for file in 0..files {
        let dir = mount.path().join(format!("d{}", file / 1000));
        if file % 1000 == 0 {
            fs::create_dir(&dir)?;
        }
        let len = if file % 10 == 0 { file % 8000 } else { file % 200 };
        fs::write(dir.join(format!("file{file}")), &content[..usize::try_from(len)?])?;
    }
    mount.unmount()?;
    Ok(())
}

/// Each snapshot with a change before it, so that no two are the same.
fn snapshots(image: &Path, count: u32) -> Result<()> {
    let mount = Mount::open(image, "rw")?;
    for i in 0..count {
        fs::write(mount.path().join(format!("d{}/changed{i}", i % 7)), b"changed")?;
        let target = mount.path().join(format!("snapshot{i}"));
        let words = ["-q", "subvolume", "snapshot"].map(std::ffi::OsStr::new);
        trees::run("btrfs", words.into_iter().chain([mount.path().as_os_str(), target.as_os_str()]))?;
    }
    mount.unmount()?;
    Ok(())
}
