//! Power cuts and failing devices at every place of larger workloads.

use std::time::Instant;

use anyhow::Result;
use btrfsimg_testkit::crash::trial::{Plan, Tried, cut_everywhere, fail_everywhere};
use btrfsimg_testkit::crash::workload;

/// Options of `cargo xtask crash`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many times as large as in the tests the workloads are
    #[arg(long, default_value_t = 3)]
    scale: usize,
    /// Images of each random kind at each cut
    #[arg(long, default_value_t = 3)]
    random: usize,
    /// Images of each workload that the kernel and btrfs-progs judge
    #[arg(long, default_value_t = 40)]
    samples: usize,
    /// Of a workload with more places for a cut than this, so many evenly
    #[arg(long, default_value_t = 2000)]
    cuts: usize,
    /// Only workloads whose name has this in it
    #[arg(long)]
    only: Option<String>,
    /// Where all that is random comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One line for each workload; the first fault ends it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { scale, random, samples, cuts, seed, .. } = *options;
    let plan = Plan { seed, random, random_every: 1, samples, most_cuts: cuts };
    println!("| workload | cuts | of | images | judged by the kernel | failures | s |");
    println!("|---|---|---|---|---|---|---|");
    let is_wanted = |name: &str| options.only.as_deref().is_none_or(|only| name.contains(only));
    for workload in workload::all(scale)?.into_iter().filter(|workload| is_wanted(workload.name)) {
        let start = Instant::now();
        let tried = cut_everywhere(&workload, &plan)?;
        let failures = if workload.punches { 0 } else { fail_everywhere(&workload, 1)? };
        let (name, seconds) = (workload.name, start.elapsed().as_secs());
        let Tried { cuts, places, images, samples, .. } = tried;
        println!("| {name} | {cuts} | {places} | {images} | {samples} | {failures} | {seconds} |");
    }
    Ok(())
}
