//! The odd tree, put into an image by the kernel itself: what comes back must be equal, or the judge is wrong.
#![expect(clippy::unwrap_used, reason = "in tests an unwrap is the assertion itself, in their helpers too")]

use btrfsimg_testkit::{Mount, OddTree, Oracle, btrfs_progs};
use std::{path::Path, process::Command};
use tempfile::TempDir;

fn copy_all(from: &Path, to: &Path) {
    let mut from = from.as_os_str().to_owned();
    from.push("/.");
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn the_kernel_gives_the_odd_tree_back() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() || !oracle.has_progs() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("odd.img"));
    OddTree { many: 300, residues: 5, ..OddTree::default() }.build(&tree).unwrap();
    btrfs_progs::mkfs(&image, 512 << 20, &[]).unwrap();
    let mount = Mount::open(&image, "rw,compress-force=lzo").unwrap();
    copy_all(&tree, mount.path());
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    let verdict = oracle.judge(&image, Some(&tree)).unwrap();
    verdict.assert_ok();
    assert!(verdict.compared.unwrap() > 700, "{verdict:?}");
}
