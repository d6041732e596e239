//! Random changes of a file system in memory against a model of what a file system is.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "model/changes.rs"]
mod changes;
#[path = "model/op.rs"]
mod op;
#[path = "model/state.rs"]
mod state;
#[path = "common/writing.rs"]
mod writing;

use std::sync::Arc;

use btrfsimg_compress::WorkspacePool;
use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::write::contents::Codec;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_testkit::{Oracle, btrfs_progs};
use op::{Op, What, any_op};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use state::Model;
use writing::{findings, new_file_system, now, open};

/// Sequences, and most operations of each: 10,000 in all.
const CASES: u32 = 72;
const OPS: usize = 220;
/// Sequences that are judged by btrfs-progs and the kernel as well.
const JUDGED: usize = 3;
/// Does all operations, and looks at the image after each commit.
fn try_case(nodesize: u32, compress: &str, ops: &[Op]) -> Arc<MemDevice> {
    let device = new_file_system(nodesize);
    let (mut volume, mut model) = (open(&device), Model::new());
    let pool = WorkspacePool::new(1);
    let policy = CompressionPolicy { build_default: compress.parse().ok(), ..CompressionPolicy::default() };
    let is_last = |op: &Op| matches!(op.what, What::Commit | What::Reopen);
    for (round, ops) in ops.split_inclusive(is_last).enumerate() {
        let mut tx = volume.begin(now()).unwrap();
        let mut codec = Codec::new(&tx, &pool, policy);
        ops.iter().for_each(|op| model.change(&mut tx, &mut codec, *op));
        tx.commit().unwrap();
        model.compare(&device);
        if round % 4 == 3 {
            assert_eq!(findings(&device, &[]), [""; 0]);
        }
        if matches!(ops.last().map(|op| op.what), Some(What::Reopen)) {
            volume = open(&device);
        }
    }
    assert_eq!(findings(&device, &[]), [""; 0]);
    device
}

#[test]
fn a_file_system_is_what_its_model_is() {
    let config =
        Config { cases: CASES, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let case = (0..3_usize, 0..4_usize, vec(any_op(), OPS / 2..OPS));
    let done = std::cell::Cell::new((0, 0));
    let tried = runner.run(&case, |(nodesize, compress, ops)| {
        let device =
            try_case([4096, 16_384, 65_536][nodesize], ["none", "zlib", "lzo", "zstd"][compress], &ops);
        let (cases, operations) = done.get();
        if cases < JUDGED {
            judge(&device, &format!("{ops:?}"));
        }
        done.set((cases + 1, operations + ops.len()));
        Ok(())
    });
    tried.unwrap_or_else(|failed| panic!("{failed}"));
    assert!(done.get().1 >= 10_000, "only {} operations", done.get().1);
}

fn judge(device: &MemDevice, what: &str) {
    let oracle = Oracle::new();
    let image = tempfile::Builder::new().suffix(".img").tempfile().unwrap();
    std::fs::write(image.path(), device.contents()).unwrap();
    if oracle.has_progs() {
        assert_eq!(btrfs_progs::check(image.path()).unwrap(), [""; 0], "{what}");
    }
    if let Some(mount) = oracle.mount(image.path(), "ro").unwrap() {
        // Every name and xattr, as the kernel finds them.
        let mut getfattr = std::process::Command::new("getfattr");
        let listed =
            getfattr.args(["-R", "-h", "-d", "-m", "-", "--absolute-names"]).arg(mount.path()).output();
        assert!(listed.is_ok_and(|l| l.status.success()), "{what}");
        assert_eq!(mount.unmount().unwrap(), [""; 0], "{what}");
    }
}
