//! Random operations by the kernel and by the library, seed after seed.

use std::time::Instant;

use anyhow::{Result, ensure};
use btrfsimg_testkit::Oracle;
use btrfsimg_testkit::differential::{draw, draw_in_turn, run as try_case};

/// Options of `cargo xtask differential`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many sequences
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Operations of the library in one sequence
    #[arg(long, default_value_t = 200)]
    operations: usize,
    /// The kernel and the library change the image in turn, this many rounds
    #[arg(long, value_name = "ROUNDS", num_args = 0..=1, default_missing_value = "20")]
    in_turn: Option<usize>,
    /// Tries to make a failing sequence shorter
    #[arg(long, default_value_t = 200)]
    tries: usize,
    /// Go on behind a sequence that fails
    #[arg(long)]
    keep_going: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let oracle = Oracle::new();
    ensure!(oracle.has_kernel() && oracle.has_progs(), "there is nothing to differ from: run it as root");
    let (start, mut failed) = (Instant::now(), Vec::new());
    for seed in options.from..options.from.saturating_add(options.seeds) {
        let case = match options.in_turn {
            None => draw(seed, options.operations),
            Some(rounds) => draw_in_turn(seed, rounds, options.operations.div_ceil(4)),
        };
        match try_case(&case, options.tries) {
            Ok(()) => {}
            Err(error) if options.keep_going => {
                println!("{error:#}");
                failed.push(seed);
            }
            Err(error) => return Err(error),
        }
        if seed % 10 == 9 {
            println!("up to seed {seed}: {} s, {} failed", start.elapsed().as_secs(), failed.len());
        }
    }
    ensure!(failed.is_empty(), "seeds that failed: {failed:?}");
    println!("{} sequences, all equal, {} s", options.seeds, start.elapsed().as_secs());
    Ok(())
}
