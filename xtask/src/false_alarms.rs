//! Sound images that the kernel used for a while: `verify` must find nothing in them.

use crate::images;
use anyhow::{Context, Result, ensure};
use btrfsimg_testkit::{btrfs_progs, life::Life};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Options of `cargo xtask false-alarms`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many images
    #[arg(long, default_value_t = 200)]
    images: u64,
    /// The first image's seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Rounds of use, of 40 operations each
    #[arg(long, default_value_t = 8)]
    rounds: u32,
    /// Where images at fault are kept; by default they are not
    #[arg(long)]
    keep: Option<PathBuf>,
    /// This binary instead of the release build
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Bytes of an image.
const SIZE: u64 = 1 << 30;

/// A line for each image with findings; an error when there are any.
pub(crate) fn run(options: &Options) -> Result<()> {
    let binary = images::binary(options.binary.as_deref())?;
    let dir = TempDir::new()?;
    let mut accused = 0;
    for seed in options.seed..options.seed + options.images {
        let image = dir.path().join(format!("{seed}.img"));
        let mut plan = Life::plan(seed);
        make(&binary, &image, seed, &mut plan)?;
        plan.live(&image, seed, options.rounds).with_context(|| format!("seed {seed}"))?;
        let findings = findings(&binary, &image, plan.has_log)?;
        if !findings.is_empty() {
            accused += 1;
            println!("seed {seed} {plan:?}:");
            findings.iter().take(5).for_each(|finding| println!("  {finding}"));
            let checked = if plan.has_log { Vec::new() } else { btrfs_progs::check(&image)? };
            println!("  btrfs check finds {} faults {:?}", checked.len(), checked.first());
            if let Some(keep) = &options.keep {
                fs::create_dir_all(keep)?;
                fs::copy(&image, keep.join(format!("{seed}.img")))?;
            }
        }
        fs::remove_file(&image)?;
    }
    println!("{accused} of {} images accused", options.images);
    ensure!(accused == 0, "verify cries wrongly");
    Ok(())
}

/// Every tenth image is of our own mkfs, with the block group tree that this mkfs.btrfs may not offer.
fn make(binary: &Path, image: &Path, seed: u64, plan: &mut Life) -> Result<()> {
    if seed % 10 != 9 {
        return btrfs_progs::mkfs(image, SIZE, &plan.mkfs);
    }
    plan.mkfs = vec!["(btrfsimg mkfs)", "-O", "block-group-tree"];
    let size = SIZE.to_string();
    let made = Command::new(binary)
        .args(["mkfs", "-q", "-O", "block-group-tree", "--size", &size])
        .arg(image)
        .output()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    ensure!(made.status.success(), "btrfsimg mkfs fails: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

/// What verify says, but for what mkfs.btrfs leaves (FS-10) and the log of an image that has one.
fn findings(binary: &Path, image: &Path, has_log: bool) -> Result<Vec<String>> {
    let mut command = Command::new(binary);
    command.args(["verify", "--data", "--decode", "--json"]).arg(image);
    let output = command.output().with_context(|| format!("cannot run {}", binary.display()))?;
    let document: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("verify: {}", String::from_utf8_lossy(&output.stderr)))?;
    let listed = document["findings"].as_array().context("no findings in the document")?;
    let expected = |f: &&Value| f["rule"] == "FS-10" || (has_log && f["rule"] == "LOG-01");
    Ok(listed.iter().filter(|f| !expected(f)).map(Value::to_string).collect())
}
