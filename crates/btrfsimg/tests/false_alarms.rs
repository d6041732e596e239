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

/// `btrfs-convert` does much in its own way: chunks of parts of stripes, a zero byte behind the targets of symlinks, the
/// fsid as metadata_uuid. Kernels and `btrfs check` take all of it.
#[test]
fn converted_images_are_not_accused() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    std::fs::create_dir_all(tree.join("d")).unwrap();
    std::fs::write(tree.join("d/f"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("d/f", tree.join("l")).unwrap();
    std::fs::File::create(&image).unwrap().set_len(150_003 << 10).unwrap();
    let ran = |program: &str, args: &[&std::ffi::OsStr]| {
        std::process::Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
    };
    let ext4 = ["-q", "-F", "-b", "4096", "-d"].map(std::ffi::OsStr::new);
    let made = ran("mkfs.ext4", &[&ext4[..], &[tree.as_os_str(), image.as_os_str()]].concat());
    if !made || !ran("btrfs-convert", &["--no-progress".as_ref(), image.as_os_str()]) {
        println!("skipped: no mkfs.ext4 -d, or no btrfs-convert");
        return;
    }
    assert_eq!(btrfs_progs::check(&image).unwrap(), Vec::<String>::new());
    let name = image.to_str().unwrap();
    let said = run(&["verify", "--data", "--fail-on", "warning", name]).expect(0);
    assert!(said.text().contains("sound: 0 errors, 0 warnings"), "{}", said.text());
    assert_eq!(run(&["cat", &format!("{name}:/l")]).expect(0).stdout, vec![7; 300_000]);
}
