//! Fuzzing on the stable toolchain: targets that take bytes, and a driver that mutates a corpus.
//!
//! The same targets stand in `fuzz/` for cargo-fuzz, which finds its way by coverage; the driver here does not, and
//! needs nothing. A target panics when the code under test does what it must not; whatever else it finds is fine.

mod base;
mod driver;
mod mutate;
mod seeds;

mod block;
mod frames;
mod image;
mod operations;
mod superblock;

pub use block::run as block;
pub use frames::run as frames;
pub use image::run as image;
pub use operations::run as operations;
pub use superblock::run as superblock;

use std::path::PathBuf;

pub use driver::{Failure, Limits, Outcome, replay, run};
pub use seeds::seeds;

/// Code that must stand any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As in `fuzz/fuzz_targets` and `testdata/fuzz`.
    pub name: &'static str,
    /// What it does with the bytes, in a sentence.
    pub about: &'static str,
    /// Does it.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "superblock",
        about: "a superblock with a right checksum, opened, verified and salvaged",
        run: superblock,
    },
    Target {
        name: "block",
        about: "one tree block with a right checksum, judged and read item by item",
        run: block,
    },
    Target {
        name: "image",
        about: "changes of a small image, checksums made right: verified, read whole, salvaged, changed",
        run: image,
    },
    Target { name: "frames", about: "compressed extents of every algorithm, decoded", run: frames },
    Target {
        name: "operations",
        about: "operations on a file system whose device fails: the old state or the new one, sound",
        run: operations,
    },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}

/// Where a target's corpus is.
pub fn corpus_of(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/fuzz").join(target.name)
}
