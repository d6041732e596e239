//! Images that the kernel used for a while are sound: verify finds nothing in them. (200 of them, longer used:
//! `cargo xtask false-alarms`.)
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use btrfsimg_testkit::life::Life;
use btrfsimg_testkit::{Oracle, btrfs_progs};
use common::run;

const IMAGES: u64 = 12;
const ROUNDS: u32 = 2;

#[test]
fn sound_images_are_not_accused() {
    let oracle = Oracle::new();
    if !oracle.has_progs() || !oracle.has_kernel() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..IMAGES {
        let plan = Life::plan(seed);
        let image = dir.path().join("image");
        let name = image.to_str().unwrap();
        if seed % 6 == 5 {
            run(&["mkfs", "-q", "-O", "block-group-tree", "--size", "512M", name]).expect(0);
        } else {
            btrfs_progs::mkfs(&image, 512 << 20, &plan.mkfs).unwrap();
        }
        plan.live(&image, seed, ROUNDS).unwrap();
        let said = run(&["verify", "--data", "--decode", "--json", name]).expect(0);
        let document: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        let findings = document["findings"].as_array().unwrap();
        // mkfs.btrfs 6.2 leaves free space items of its temporary groups.
        let expected = |rule: &str| rule == "FS-10" || (plan.has_log && rule == "LOG-01");
        let found: Vec<_> = findings.iter().filter(|f| !expected(f["rule"].as_str().unwrap())).collect();
        assert!(found.is_empty(), "seed {seed} {plan:?}: {found:?}");
        std::fs::remove_file(&image).unwrap();
    }
}
