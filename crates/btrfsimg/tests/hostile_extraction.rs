//! Images made to harm whoever copies out of them: nothing gets outside the target, nothing hangs, each is reported.
//! (Names with `..`, `/` and NUL, planted symlinks and files of exbibytes: `damaged_images.rs`.)
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_ondisk::Timespec;
use common::{Lab, command, edit_index, run, sh};

#[test]
fn directories_that_hold_themselves() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, "mkdir -p a/b/c; echo good > a/good");
    }) else {
        return;
    };
    let stat = run(&["stat", "--json", &lab.at("/a")]).expect(0);
    let text = stat.text().to_owned();
    let inode: u64 =
        text.split("\"inode\": ").nth(1).unwrap().split([',', '\n']).next().unwrap().parse().unwrap();
    edit_index(&lab.image, "c", |item| item[..8].copy_from_slice(&inode.to_le_bytes()));
    let out = lab.host("out");
    for args in [vec!["cp", "-a"], vec!["cp", "-r", "--salvage"]] {
        let from = lab.at("/a");
        let args = [args, vec![from.as_str(), out.to_str().unwrap()]].concat();
        let ran = run(&args);
        assert_ne!(ran.code, 0);
        assert!(ran.stderr.contains("/a/b/c: ") && ran.stderr.contains("second name"), "{}", ran.stderr);
        assert_eq!(fs::read_to_string(out.join("good")).unwrap(), "good\n");
        fs::remove_dir_all(&out).unwrap();
    }
    let ran = run(&["ls", "-R", &lab.at("/a")]);
    assert_ne!(ran.code, 0, "{}", ran.text());
    let ran = run(&["verify", lab.image.to_str().unwrap()]).expect(4);
    assert!(ran.text().contains("LK-") || ran.stderr.contains("LK-"), "{}{}", ran.text(), ran.stderr);
}

#[test]
fn a_name_of_no_bytes() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, "mkdir d; echo evil > d/evil; echo good > d/good");
    }) else {
        return;
    };
    // The name becomes data, so that the item stays as long as it says.
    edit_index(&lab.image, "evil", |item| {
        item[25..27].copy_from_slice(&4_u16.to_le_bytes());
        item[27..29].copy_from_slice(&0_u16.to_le_bytes());
    });
    let out = lab.host("out");
    let ran = run(&["cp", "-r", &lab.at("/d"), out.to_str().unwrap()]).expect(4);
    assert!(ran.stderr.contains("DIR-"), "{}", ran.stderr);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(out.join("good")).unwrap(), "good\n");
}

/// Deeper than recursion, open files, and what a path can say.
const LEVELS: usize = 10_000;

#[test]
fn a_chain_of_very_many_directories() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("deep.img");
    run(&["mkfs", "-b", "512M", image.to_str().unwrap()]).expect(0);
    let now = Timespec::new(1_700_000_000, 0);
    let device = Arc::new(FileDevice::open(&image, Access::Write, 0).unwrap());
    let options = VolumeOptions { no_sync: true, ..VolumeOptions::default() };
    let mut volume = Volume::open(device, options).unwrap();
    let mut tx = volume.begin(now).unwrap();
    let mut at = Place::TOP;
    for _ in 0..LEVELS {
        at = create(&mut tx, at, b"d", Attributes::new(0o040_755, now), Vec::new()).unwrap();
    }
    create(&mut tx, at, b"bottom", Attributes::new(0o100_644, now), Vec::new()).unwrap();
    tx.commit().unwrap();
    drop(volume);
    let out = dir.path().join("out");
    let started = Instant::now();
    let copied =
        command(&["cp", "-r", &format!("{}:/d", image.display()), out.to_str().unwrap()]).output().unwrap();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    // find(1) does not recurse either.
    let found = Command::new("find").arg(&out).args(["-name", "bottom", "-printf", "%d"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), (LEVELS).to_string());
    let verified = run(&["verify", image.to_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}", verified.text());
    assert!(started.elapsed() < Duration::from_secs(300), "it hangs");
    // Rust's own removal opens a file for each level.
    sh(dir.path(), "rm -rf out");
}
