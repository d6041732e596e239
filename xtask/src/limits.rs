//! What speed must not fall below: each a ratio of two things measured in one run, or a size.

mod levels;
mod work;

use crate::{images, trees, trees::Tmpfs};
use anyhow::{Result, ensure};
use std::path::PathBuf;

/// Options of `cargo xtask limits`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The tree, for example an unpacked Linux source; it is copied to a tmpfs first
    #[arg(long)]
    tree: PathBuf,
    /// What each level's size is measured on [default: the tree]
    #[arg(long)]
    sample: Option<PathBuf>,
    /// Only these
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Work>,
    /// Rounds of what is done in turn with somebody else; medians count
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Files of the larger tree of small files; the smaller has a tenth
    #[arg(long, default_value_t = 1_000_000)]
    files: usize,
    /// This binary instead of the release build
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// A kind of work that has limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Work {
    /// An image of the tree, against the kernel and mksquashfs
    Tree,
    /// One file of as many bytes, against the codec alone
    Tar,
    /// 100,000 files with a property, against the kernel
    Property,
    /// Ten times as many small files
    Many,
    /// Ten xattrs for each file
    Xattrs,
    /// Bytes used at each level, against the kernel
    Levels,
    /// The tree copied out, against tar on a mount
    Out,
    /// Memory at levels that need much
    Memory,
}

impl Work {
    const ALL: [Work; 8] = [
        Work::Tree,
        Work::Tar,
        Work::Property,
        Work::Many,
        Work::Xattrs,
        Work::Levels,
        Work::Out,
        Work::Memory,
    ];
}

/// What the measurements share, and what they found.
struct Limits<'o> {
    options: &'o Options,
    binary: PathBuf,
    tmpfs: Tmpfs,
    /// The tree on the tmpfs, and its bytes.
    source: PathBuf,
    bytes: u64,
    exceeded: Vec<String>,
}

/// Prints a row for each limit.
///
/// # Errors
/// When one is exceeded, after all were measured.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.runs > 0, "no runs, no median");
    let binary = images::binary(options.binary.as_deref())?;
    let tmpfs = Tmpfs::mount(64 << 30)?;
    let (source, bytes) = (tmpfs.path().join("source"), trees::size(&options.tree)?);
    trees::copy(&options.tree, &source)?;
    let mut limits = Limits { options, binary, tmpfs, source, bytes, exceeded: Vec::new() };
    println!("| work | ours | against | ratio | at most |\n|---|---|---|---|---|");
    for work in Work::ALL {
        if options.only.is_empty() || options.only.contains(&work) {
            limits.measure(work)?;
        }
    }
    ensure!(limits.exceeded.is_empty(), "above the limit: {}", limits.exceeded.join("; "));
    Ok(())
}

impl Limits<'_> {
    fn measure(&mut self, work: Work) -> Result<()> {
        match work {
            Work::Tree => self.tree(),
            Work::Tar => self.tar(),
            Work::Property => self.property(),
            Work::Many => self.many(),
            Work::Xattrs => self.xattrs(),
            Work::Levels => self.levels(),
            Work::Out => self.out(),
            Work::Memory => self.memory(),
        }
    }

    /// A row of two things in the same unit.
    fn row(&mut self, work: &str, ours: f64, against: f64, most: f64) {
        let ratio = ours / against.max(1e-9);
        println!("| {work} | {ours:.2} | {against:.2} | {ratio:.3} | {most} |");
        if ratio > most {
            self.exceeded.push(format!("{work} ({ratio:.3} of {most})"));
        }
    }

    /// A row of one thing that has a bound of its own.
    fn bound(&mut self, work: &str, ours: f64, most: f64) {
        println!("| {work} | {ours:.0} | | | {most} |");
        if ours > most {
            self.exceeded.push(format!("{work} ({ours:.0} of {most})"));
        }
    }
}
