//! Images that are filled, half emptied and filled again; ten rounds are `cargo xtask aged`.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use btrfsimg_testkit::aged::{Files, Plan, Who, capacities, run};
use btrfsimg_testkit::crash::{trial, workload};
use btrfsimg_testkit::{Oracle, btrfs_progs};

fn age(plan: &Plan) {
    let aged = run(plan).unwrap_or_else(|error| panic!("{plan:?}: {error:#}"));
    // Data alone may take all but the first MiB and the metadata, which mkfs gives a tenth at most.
    assert!(aged.capacity > plan.size / 100 * 70, "{aged:?}");
}

#[test]
fn an_aged_image_has_all_its_space() {
    age(&Plan {
        seed: 1,
        size: 160 << 20,
        nodesize: 16_384,
        rounds: 2,
        who: Who::Ours,
        files: Files::Mixed,
        compress: false,
    });
}

/// So large that btrfsimg has given all unallocated space to data when it is full, and the kernel, which finds half of it
/// deleted, needs metadata.
#[test]
fn an_image_aged_with_the_kernel_has_all_its_space() {
    age(&Plan {
        seed: 2,
        size: 512 << 20,
        nodesize: 16_384,
        rounds: 2,
        who: Who::InTurn,
        files: Files::Mixed,
        compress: false,
    });
}

/// What is kept from data, for metadata and for removing, is no more than the kernel keeps: also of small images, of which
/// it is a larger part.
#[test]
fn an_image_takes_as_much_as_by_the_kernel() {
    if !Oracle::new().has_kernel() || !Oracle::new().has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (mib, mixed) in [(16, true), (64, false), (256, false)] {
        let (start, size) = (dir.path().join("start.img"), mib << 20);
        match mixed {
            true => btrfs_progs::mkfs(&start, size, &["-M"]).unwrap(),
            false => trial::save(&*workload::new_image(16_384, size, 1).unwrap(), &start).unwrap(),
        }
        let plan = Plan {
            seed: 1,
            size,
            nodesize: 16_384,
            rounds: 0,
            who: Who::Ours,
            files: Files::Equal,
            compress: false,
        };
        let [kernel, ours] = capacities(&plan, &start).unwrap();
        let shown = format!("{mib} MiB, mixed {mixed}: the kernel {kernel}, btrfsimg {ours}");
        println!("{shown}");
        assert!(ours * 100 >= kernel * 97, "{shown}");
    }
}
