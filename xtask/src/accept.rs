//! The acceptance: images of a real tree with every algorithm, each judged by the kernel and by btrfs-progs.

use crate::{images, measure};
use anyhow::{Context, Result, ensure};
use btrfsimg_testkit::{Judgement, OddTree, Oracle};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use tempfile::TempDir;

/// The algorithms and levels that every release must get right.
const SPECS: &str = "none,lzo,zlib:3,zstd:3,zstd:-5,zstd:15,zlib:9";

/// Options of `cargo xtask accept`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The tree, for example an unpacked Linux source; without it, an odd tree is made and taken
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Where the images are made (and kept, when at fault); by default a temporary directory
    #[arg(long)]
    image_dir: Option<PathBuf>,
    /// What to compress with
    #[arg(long, value_delimiter = ',', default_value = SPECS)]
    compress: Vec<String>,
    /// Compress with the kernel's heuristic (--compress) instead of every chunk (--compress-force)
    #[arg(long)]
    heuristic: bool,
    /// This binary instead of the release build
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// One table row for each algorithm; an error when any image is at fault.
pub(crate) fn run(options: &Options) -> Result<()> {
    let oracle = Oracle::new();
    ensure!(oracle.has_kernel() && oracle.has_progs(), "acceptance without judges is none: run it as root");
    let binary = images::binary(options.binary.as_deref())?;
    let temporary = TempDir::new()?;
    let image_dir = options.image_dir.clone().unwrap_or_else(|| temporary.path().join("images"));
    fs::create_dir_all(&image_dir).with_context(|| format!("cannot make {}", image_dir.display()))?;
    let tree = match &options.tree {
        Some(tree) => tree.clone(),
        None => odd_tree(&temporary.path().join("odd"))?,
    };
    let oracle = oracle.with_scratch(&image_dir);
    println!("| compression | make, s | CPU, s | peak, MiB | image, MiB | judge, s | entries | verdict |");
    println!("|---|---|---|---|---|---|---|---|");
    let option = if options.heuristic { "--compress" } else { "--compress-force" };
    let mut failed = 0;
    for spec in &options.compress {
        let image = image_dir.join(format!("{}.img", spec.replace(':', "")));
        fs::remove_file(&image).ok();
        match one(&oracle, &images::mkfs(&binary, &image, &tree, option, spec), &image, &tree) {
            Ok((row, good)) => {
                println!("| {spec} | {row} |");
                failed += usize::from(!good);
                if good {
                    fs::remove_file(&image).ok();
                }
            }
            Err(e) => {
                println!("| {spec} | | | | | | | {e:#} |");
                failed += 1;
            }
        }
    }
    ensure!(failed == 0, "{failed} of {} images are at fault", options.compress.len());
    Ok(())
}

fn odd_tree(dir: &Path) -> Result<PathBuf> {
    OddTree::full().build(dir)?;
    Ok(dir.to_owned())
}

fn one(oracle: &Oracle, argv: &[std::ffi::OsString], image: &Path, tree: &Path) -> Result<(String, bool)> {
    let cost = measure::run(argv)?;
    let size = measure::allocated(image)?;
    let start = Instant::now();
    let verdict = oracle.judge(image, Some(tree))?;
    let judging = start.elapsed().as_secs_f64();
    let row = format!(
        "{:.2} | {:.2} | {:.0} | {size:.1} | {judging:.1} | {} | {}",
        cost.wall,
        cost.cpu,
        cost.peak,
        verdict.compared.unwrap_or(0),
        short(&verdict)
    );
    Ok((row, verdict.is_ok()))
}

/// The first faults, on one line.
fn short(verdict: &Judgement) -> String {
    const SHOWN: usize = 3;
    if verdict.is_ok() {
        return "ok".to_owned();
    }
    let first = verdict.faults.iter().take(SHOWN).map(|f| f.replace('\n', "; ").replace('|', "/"));
    format!("**{} faults**: {}", verdict.faults.len(), first.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_fit_a_table_cell() {
        let mut verdict = Judgement::default();
        assert_eq!(short(&verdict), "ok");
        verdict.faults = ["a\nb", "c|d", "e", "f"].map(str::to_owned).to_vec();
        assert_eq!(short(&verdict), "**4 faults**: a; b; c/d; e");
    }
}
