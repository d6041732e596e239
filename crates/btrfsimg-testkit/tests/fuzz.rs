//! Every fuzz target for a short time, from its corpus, with the same random numbers each time.
//! `BTRFSIMG_FUZZ_SECONDS` says how long each (5). To look for new faults: `cargo xtask fuzz`.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use btrfsimg_testkit::fuzz::{self, Limits};

fn smoke(name: &str) {
    let target = fuzz::target(name).unwrap();
    let seconds = std::env::var("BTRFSIMG_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(5);
    match fuzz::run(target, &fuzz::corpus_of(target), 1, &Limits::seconds(seconds)) {
        Ok(outcome) => println!("{name}: {} inputs, slowest {:.1?}", outcome.inputs, outcome.slowest),
        Err(e) => panic!("{e:#}"),
    }
}

#[test]
fn superblock() {
    smoke("superblock");
}

#[test]
fn block() {
    smoke("block");
}

#[test]
fn image() {
    smoke("image");
}

#[test]
fn frames() {
    smoke("frames");
}

#[test]
fn operations() {
    smoke("operations");
}
