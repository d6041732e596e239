//! The same operations by the kernel and by the library; what is drawn from 500 seeds is `cargo xtask differential`.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use btrfsimg_testkit::Oracle;
use btrfsimg_testkit::differential::{
    Actor, Case, Maker, Op, OpPath, Pattern, Phase, draw, draw_in_turn, run,
};

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

/// What stands for a subvolume in a snapshot has no inode on disk, and still each is one of its own (seed 104).
#[test]
fn renames_of_stand_ins() {
    let path = |path: &str| OpPath(path.as_bytes().to_vec());
    let rename = |from, to| Op::Rename { from: path(from), to: path(to) };
    let ops = vec![
        Op::CreateSubvolume { path: path("s") },
        Op::CreateSubvolume { path: path("s/one") },
        Op::CreateSubvolume { path: path("s/two") },
        Op::Mkdir { path: path("s/dir"), mode: 0o755 },
        Op::Create { path: path("s/file"), mode: 0o644 },
        Op::Snapshot { from: path("s"), to: path("snap"), readonly: false },
        rename("snap/one", "snap/one"),
        rename("snap/one", "snap/two"),
        rename("snap/one", "snap/three"),
        rename("snap/file", "snap/one"),
        rename("snap/one", "snap/dir/one"),
        rename("snap/one/x", "snap/y"),
        rename("snap/file", "snap/one/y"),
        rename("snap/dir", "snap/two/dir"),
        // Into itself, which comes before what a stand-in forbids (seed 232).
        rename("snap", "snap/two/snap"),
        rename("snap/two", "snap/two/two"),
        rename("snap/one", "snap/two/one"),
        rename("snap/no", "snap/two/no"),
        rename("s/one", "snap/one"),
        rename("s/file", "s/dir"),
        rename("s/dir", "snap/dir"),
        rename("snap/dir", "snap/one"),
        rename("s/file", "s"),
        rename("s", "s/dir/s"),
    ];
    let phases = vec![Phase { by: Actor::Kernel, ops: Vec::new() }, Phase { by: Actor::Library, ops }];
    let case = Case { seed: 0, maker: Maker::Ours(16_384, ""), compress: "none", force: false, phases };
    if has_judges() {
        run(&case, TRIES).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// A hole that the kernel cut, cut again: its item says nothing of what is before it.
#[test]
fn holes_that_the_kernel_cut() {
    let f = || OpPath(b"f".to_vec());
    let write = |at, len| Op::Write { path: f(), at, len, pattern: Pattern::Text, seed: 1 };
    let by_kernel = vec![Op::Create { path: f(), mode: 0o644 }, write(192_512, 1645), write(0, 12_288)];
    let by_library = vec![write(40_960, 8192), Op::Punch { path: f(), at: 0, len: 57_344 }];
    let phases = [(Actor::Kernel, by_kernel), (Actor::Library, by_library)];
    let phases = phases.map(|(by, ops)| Phase { by, ops }).into();
    let case =
        Case { seed: 0, maker: Maker::Ours(16_384, "^no-holes"), compress: "none", force: false, phases };
    if has_judges() {
        run(&case, TRIES).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

#[test]
fn the_kernel_and_the_library_in_turn() {
    if has_judges() {
        run(&draw_in_turn(0, 3, 60), TRIES).unwrap_or_else(|error| panic!("{error:#}"));
    }
}
