//! The cost of a change follows the change, not the image: counted in tree blocks.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use btrfsimg_testkit::{Oracle, btrfs_progs, cost, synthetic};

#[test]
fn a_small_change_costs_the_same_on_any_image() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    for files in [1_000, 100_000] {
        let image = dir.path().join(format!("{files}.img"));
        synthetic::make_image(&image, 100 << 30, files).unwrap();
        let middle = format!("/d{}", files / 2000);
        let last = format!("/d{}", files / 1000 - 1);
        // Says itself what costs too much.
        let costs = cost::small_changes(&image, &middle, &last, &file).unwrap();
        assert!(costs.iter().all(|c| c.read > 0 && c.written > 0), "{costs:?}");
        if Oracle::new().has_progs() {
            assert_eq!(btrfs_progs::check(&image).unwrap(), [""; 0]);
        }
    }
}
