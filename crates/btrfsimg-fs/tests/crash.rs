//! Power cuts and failing devices: the image is what it was or what it was to become, whole.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use btrfsimg_fs::trim::Method;
use btrfsimg_testkit::crash::device_space::{
    files_defragmented, group_given_away, group_taken_back, image_grown, space_trimmed,
};
use btrfsimg_testkit::crash::trial::{Plan, cut_everywhere, fail_everywhere, stop_everywhere};
use btrfsimg_testkit::crash::workload::{
    Workload, files_changed, full_image, snapshot_deleted, tree_copied_in, tree_removed,
};

/// Every place of `workload`, and what must have happened for the test to be one.
fn cut(workload: &Workload) {
    let plan = Plan { seed: 1, random: 1, random_every: 4, samples: 3, most_cuts: usize::MAX };
    let tried = cut_everywhere(workload, &plan).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(tried.after > 0 && tried.after < tried.images, "{tried:?}");
}

fn fail(workload: &Workload) {
    let changes = fail_everywhere(workload, 8).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(changes > 8, "{changes}");
}

#[test]
fn power_cuts_while_a_tree_is_copied_in() {
    cut(&tree_copied_in(1).unwrap());
}

#[test]
fn power_cuts_while_a_tree_is_removed() {
    cut(&tree_removed(1).unwrap());
}

#[test]
fn power_cuts_while_files_grow_and_shrink() {
    cut(&files_changed(1).unwrap());
}

#[test]
fn power_cuts_while_a_snapshot_is_made_and_deleted() {
    cut(&snapshot_deleted(1).unwrap());
}

#[test]
fn power_cuts_while_an_image_is_full() {
    cut(&full_image().unwrap());
}

#[test]
fn power_cuts_while_an_image_grows() {
    cut(&image_grown().unwrap());
}

#[test]
fn power_cuts_while_a_block_group_is_given_away() {
    cut(&group_given_away().unwrap());
    cut(&group_taken_back().unwrap());
}

#[test]
fn power_cuts_between_steps() {
    cut(&files_defragmented(1).unwrap());
    cut(&space_trimmed(Method::Zeros).unwrap());
    cut(&space_trimmed(Method::Holes).unwrap());
}

#[test]
fn failing_writes_where_device_space_moves() {
    fail(&image_grown().unwrap());
    fail(&group_given_away().unwrap());
    fail(&files_defragmented(1).unwrap());
    fail(&space_trimmed(Method::Zeros).unwrap());
}

#[test]
fn failing_writes_and_syncs() {
    fail(&tree_copied_in(1).unwrap());
    fail(&tree_removed(1).unwrap());
    fail(&files_changed(1).unwrap());
    fail(&snapshot_deleted(1).unwrap());
    fail(&full_image().unwrap());
}

/// Whatever is being done when somebody asks to stop ends there, also where no data are written.
#[test]
fn asked_to_stop() {
    for workload in [tree_copied_in(1), tree_removed(1), snapshot_deleted(1), files_defragmented(1)] {
        let workload = workload.unwrap();
        let stopped = stop_everywhere(&workload, 8).unwrap_or_else(|e| panic!("{e:#}"));
        assert!(stopped > 4, "{}: {stopped}", workload.name);
    }
}
