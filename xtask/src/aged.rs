//! Images that are filled, half emptied and filled again, many times.

use std::time::Instant;

use anyhow::Result;
use btrfsimg_testkit::aged::{Plan, run as age};

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
}

pub(crate) fn run(options: &Options) -> Result<()> {
    for nodesize in [16_384, 4096, 65_536] {
        for in_turn in [false, true] {
            let start = Instant::now();
            let size = options.size << 20;
            let plan = Plan { seed: options.seed, size, nodesize, rounds: options.rounds, in_turn };
            let aged = age(&plan)?;
            println!("{plan:?}: {aged:?}, {} s", start.elapsed().as_secs());
        }
    }
    Ok(())
}
