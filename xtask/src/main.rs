//! Tasks of the workspace that are no part of the product: `cargo xtask --help`.

mod accept;
mod aged;
mod bench;
mod cost;
mod crash;
mod deep;
mod differential;
mod docs;
mod false_alarms;
mod fuzz;
mod images;
mod limits;
mod many;
mod measure;
mod mutate;
mod speed;
mod tidy;
mod trees;
mod verify_speed;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the workspace")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check what no compiler checks: layering, dependencies, licences, file lengths (a test does so too)
    Tidy,
    /// Write the pages under docs that are made from code (tidy says when they are out of date)
    Docs,
    /// Make images of a tree with every algorithm, and let the kernel and btrfs-progs judge each
    Accept(accept::Options),
    /// Time image making against mkfs.btrfs, the kernel and others, side by side on a tmpfs
    Speed(speed::Options),
    /// Measure what speed must not fall below, each as a ratio in one run, and fail where it does
    Limits(limits::Options),
    /// Time small changes of an image with a million files against those of a fresh one
    Cost(cost::Options),
    /// Cut the power and fail at every place of commits, and look at what is left
    Crash(crash::Options),
    /// Read a chain of a million directories: time and memory are bounded
    Deep(deep::Options),
    /// Run a fuzz target, or all of them, for longer than the tests do
    Fuzz(fuzz::Options),
    /// Damage small images at random and read them: nothing may panic, hang or take memory without bound
    Mutate(mutate::Options),
    /// Do the same by the kernel and by the library, and compare
    Differential(differential::Options),
    /// Fill images, empty them by half, and fill them again
    Aged(aged::Options),
    /// Let the kernel use many images for a while, and see that verify finds nothing wrong with them
    FalseAlarms(false_alarms::Options),
    /// Time verify against btrfs check, in turn on the same images on a tmpfs
    VerifySpeed(verify_speed::Options),
    /// Repeat the published experiments and write docs/benchmarks.md with its plots
    Bench(bench::Options),
    /// Fill a directory with everything a tree can hold
    OddTree {
        /// The directory, absent or empty
        dir: PathBuf,
        /// Entries of its largest directory
        #[arg(long, default_value_t = 3000)]
        many: usize,
    },
}

fn main() -> Result<()> {
    match Args::parse().task {
        Task::Tidy => tidy::run(),
        Task::Docs => docs::run(),
        Task::Accept(options) => accept::run(&options),
        Task::Speed(options) => speed::run(&options),
        Task::Limits(options) => limits::run(&options),
        Task::Cost(options) => cost::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Crash(options) => crash::run(&options),
        Task::Deep(options) => deep::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Mutate(options) => mutate::run(&options),
        Task::Differential(options) => differential::run(&options),
        Task::Aged(options) => aged::run(&options),
        Task::FalseAlarms(options) => false_alarms::run(&options),
        Task::VerifySpeed(options) => verify_speed::run(&options),
        Task::OddTree { dir, many } => {
            btrfsimg_testkit::OddTree { many, ..Default::default() }.build(&dir).map(drop)
        }
    }
}

/// The top of the workspace.
fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}
