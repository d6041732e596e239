//! Images that are filled, half emptied and filled again; ten rounds are `cargo xtask aged`.

use btrfsimg_testkit::aged::{Files, Plan, Who, run};

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
