//! What one small change of a large image costs, against the same change of a fresh one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use btrfsimg_testkit::{btrfs_progs, cost, synthetic};

/// A change of the large image may take so many times what it takes on a fresh one, and so many seconds more.
const FACTOR: f64 = 2.0;
const SLACK: f64 = 0.01;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The command that is measured
    #[arg(long, default_value = "target/release/btrfsimg")]
    command: PathBuf,
    /// Files of the large image, in 100 GiB
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Runs of each, of which the fastest counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (fresh, large) = (dir.path().join("fresh.img"), dir.path().join("large.img"));
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 100_000])?;
    synthetic::make_image(&fresh, 1 << 30, 10)?;
    let start = Instant::now();
    synthetic::make_image(&large, 100 << 30, options.files)?;
    println!("{} files in 100 GiB: made in {:.1} s", options.files, start.elapsed().as_secs_f64());
    for c in cost::small_changes(&large, "/d1", "/d3", &file)? {
        let by_tree: Vec<String> =
            c.by_tree.iter().map(|((tree, level), n)| format!("{tree}/{level}: {n}")).collect();
        println!("{:10} {} tree blocks read, {} written ({})", c.what, c.read, c.written, by_tree.join(", "));
    }
    let mut missed = Vec::new();
    for (what, words) in [
        ("prop set", &["prop", "set", "IMG:/d0/f7", "compression", "zstd:5"][..]),
        ("mkdir", &["mkdir", "IMG:/d0/new"]),
        ("cp", &["cp", "FILE", "IMG:/d0/copy"]),
        ("rm", &["rm", "IMG:/d0/f3"]),
    ] {
        let fresh = fastest(options, words, &fresh, &file)?;
        let large = fastest(options, words, &large, &file)?;
        println!("{what:10} fresh {:6.1} ms, large {:6.1} ms", fresh * 1e3, large * 1e3);
        if large > fresh * FACTOR + SLACK {
            missed.push(what);
        }
    }
    let faults = btrfs_progs::check(&large)?;
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    ensure!(missed.is_empty(), "slower than {FACTOR} times as on a fresh image: {}", missed.join(", "));
    Ok(())
}

/// Seconds of the fastest run; each on a name of its own.
fn fastest(options: &Options, words: &[&str], image: &Path, file: &Path) -> Result<f64> {
    let mut best = f64::MAX;
    for run in 0..options.runs {
        let word = |w: &&str| {
            let w =
                w.replace("IMG", &image.display().to_string()).replace("FILE", &file.display().to_string());
            let w = if w.ends_with("new") || w.ends_with("copy") { format!("{w}{run}") } else { w };
            if w.ends_with("f3") { w.replace("f3", &format!("f{run}")) } else { w }
        };
        let args: Vec<String> = words.iter().map(word).collect();
        let start = Instant::now();
        let status = Command::new(&options.command).args(&args).stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("cannot run {}", options.command.display()))?;
        best = best.min(start.elapsed().as_secs_f64());
        ensure!(status.success(), "{args:?} fails");
    }
    Ok(best)
}
