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
use common::{Lab, command, edit_index, edit_items, run, sh};

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

/// A zstd frame with this header descriptor and what belongs to it, then blocks that each stand for 128 KiB of one byte.
fn frame(header: &[u8], blocks: u32) -> Vec<u8> {
    let mut bytes = [&[0x28, 0xb5, 0x2f, 0xfd], header].concat();
    for nth in 1..=blocks {
        let block = (131_072 << 3) | (1 << 1) | u32::from(nth == blocks);
        bytes.extend_from_slice(&block.to_le_bytes()[..3]);
        bytes.push(b'x');
    }
    bytes
}

#[test]
fn frames_that_claim_more_than_there_is_room_for() {
    let Some(lab) = Lab::kernel_made(&[], "rw,compress-force=zstd", |top| {
        sh(
            top,
            "for i in $(seq 300); do echo $i $((i * 7919 % 1000)); done | head -c 1500 > packed; echo good > good",
        );
    }) else {
        return;
    };
    let sound = fs::read(&lab.image).unwrap();
    let text = run(&["cat", &lab.at("/packed")]).expect(0).stdout;
    assert_eq!(text.len(), 1500);
    // In one segment of 2^62 bytes; in a window of 128 KiB, sixty times as much as the file may have.
    let claims = [&[0xe0][..], &(1u64 << 62).to_le_bytes()].concat();
    for (frame, what) in [(frame(&claims, 1), "claims"), (frame(&[0x00, 0x38], 60), "gives")] {
        fs::write(&lab.image, &sound).unwrap();
        let edited = edit_items(&lab.image, |key_type, item| {
            let is_inline = key_type == 108 && item[16] == 3 && item[20] == 0;
            if is_inline {
                assert!(frame.len() <= item.len() - 21, "{} of {}", frame.len(), item.len());
                item[21..].fill(0);
                item[21..21 + frame.len()].copy_from_slice(&frame);
            }
            is_inline
        });
        assert!(edited > 0);
        let script = "ulimit -v 524288; exec timeout -s KILL 10 \"$@\"";
        let out = lab.host(what);
        let args = ["cp", "-r", &lab.at("/"), out.to_str().unwrap()];
        let mut bounded = Command::new("bash");
        let copied =
            bounded.args(["-c", script, "bash", env!("CARGO_BIN_EXE_btrfsimg")]).args(args).output().unwrap();
        // What a frame gives first may be taken, but no more than the file has.
        let said = String::from_utf8_lossy(&copied.stderr);
        assert!([Some(0), Some(4)].contains(&copied.status.code()), "{what}: {} {said}", copied.status);
        assert_eq!(copied.status.code() == Some(4), said.contains("/packed: "), "{what}: {said}");
        assert!(fs::metadata(out.join("packed")).map_or(0, |m| m.len()) <= 1500, "{what}");
        assert_eq!(fs::read_to_string(out.join("good")).unwrap(), "good\n");
        let verified = run(&["verify", "--decode", lab.image.to_str().unwrap()]).expect(4);
        assert!(verified.text().lines().any(|l| l.starts_with("FE-25: ")), "{what}: {}", verified.text());
    }
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
