//! The same operations by the kernel and by the library; what is drawn from 500 seeds is `cargo xtask differential`.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use btrfsimg_testkit::Oracle;
use btrfsimg_testkit::differential::{draw, draw_in_turn, run};

/// Operations of the library in one sequence.
const OPERATIONS: usize = 200;
/// Tries to make a failing sequence shorter.
const TRIES: usize = 60;

fn has_judges() -> bool {
    Oracle::new().has_kernel() && Oracle::new().has_progs()
}

fn seeds(seeds: std::ops::Range<u64>) {
    if has_judges() {
        for seed in seeds {
            run(&draw(seed, OPERATIONS), TRIES).unwrap_or_else(|error| panic!("{error:#}"));
        }
    }
}

#[test]
fn the_kernel_and_the_library_do_the_same() {
    seeds(0..5);
}

#[test]
fn the_kernel_and_the_library_do_the_same_with_more_seeds() {
    seeds(5..10);
}

#[test]
fn the_kernel_and_the_library_in_turn() {
    if has_judges() {
        run(&draw_in_turn(0, 3, 60), TRIES).unwrap_or_else(|error| panic!("{error:#}"));
    }
}
