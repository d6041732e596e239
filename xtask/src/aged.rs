//! Images that are filled, half emptied and filled again, many times.

use std::time::Instant;

use anyhow::{Result, bail};
use btrfsimg_testkit::aged::{Files, Plan, Who, run as age};

/// Options of `cargo xtask aged`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How often
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// MiB of the image
    #[arg(long, default_value_t = 512)]
    size: u64,
    /// Where all that is random comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only with tree blocks of so many bytes
    #[arg(long)]
    nodesize: Option<u32>,
    /// Only with these files
    #[arg(long, value_parser = ["mixed", "inline", "large"])]
    files: Option<String>,
    /// Only so: by btrfsimg alone, or the kernel every second round
    #[arg(long, value_parser = ["ours", "in-turn"])]
    who: Option<String>,
    /// Also what the kernel alone makes of images by mkfs.btrfs, to compare; what it does not manage is no failure
    #[arg(long)]
    kernel: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut failed = 0;
    for nodesize in
        [16_384, 4096, 65_536].into_iter().filter(|n| options.nodesize.is_none_or(|only| only == *n))
    {
        for (files, compress) in
            [(Files::Mixed, false), (Files::Mixed, true), (Files::Inline, false), (Files::Large, false)]
        {
            if options.files.as_ref().is_some_and(|only| *only != format!("{files:?}").to_lowercase()) {
                continue;
            }
            for who in [Who::Ours, Who::InTurn, Who::Kernel] {
                let is_wanted = match who {
                    Who::Ours => options.who.as_deref() != Some("in-turn"),
                    Who::InTurn => options.who.as_deref() != Some("ours"),
                    Who::Kernel => options.kernel,
                };
                if !is_wanted {
                    continue;
                }
                let start = Instant::now();
                let (seed, size, rounds) = (options.seed, options.size << 20, options.rounds);
                let result = age(&Plan { seed, size, nodesize, rounds, who, files, compress });
                let took = start.elapsed().as_secs();
                let what = format!("{nodesize} {files:?} compressed {compress} {who:?}, {took} s");
                match result {
                    Ok(aged) => println!("{what}: {aged:?}"),
                    Err(error) => {
                        println!("{what}: {error:#}");
                        failed += usize::from(who != Who::Kernel);
                    }
                }
            }
        }
    }
    if failed > 0 { bail!("{failed} of them failed") } else { Ok(()) }
}
