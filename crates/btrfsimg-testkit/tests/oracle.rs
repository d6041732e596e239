//! The judges, judged: they must accept what mkfs.btrfs and the kernel made, and see what was broken since.
#![expect(clippy::unwrap_used, reason = "in tests an unwrap is the assertion itself, in their helpers too")]

use btrfsimg_testkit::{
    JudgeOptions, Judgement, Mount, Oracle, btrfs_progs, rng::Rng, sparse, treediff, treediff::DiffOptions,
};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// An image made by mkfs.btrfs and filled by the kernel, and the tree that it holds.
struct Sample {
    dir: TempDir,
}

impl Sample {
    /// `None` where the machine has no judges.
    fn make(oracle: &Oracle) -> Option<Sample> {
        if !oracle.has_progs() || !oracle.has_kernel() {
            return None;
        }
        let sample = Sample { dir: TempDir::new().unwrap() };
        fs::create_dir_all(sample.tree().join("sub")).unwrap();
        fs::write(sample.tree().join("random"), Rng::new(3).bytes(1 << 20)).unwrap();
        fs::write(sample.tree().join("sub/text"), "text\n".repeat(50_000)).unwrap();
        btrfs_progs::mkfs(&sample.image(), 128 << 20, &["-L", "sample"]).unwrap();
        let mount = Mount::open(&sample.image(), "rw,compress=zstd").unwrap();
        let mut from = sample.tree().into_os_string();
        from.push("/.");
        assert!(Command::new("cp").arg("-a").arg(from).arg(mount.path()).status().unwrap().success());
        assert_eq!(mount.unmount().unwrap(), [""; 0]);
        Some(sample)
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("sample.img")
    }

    fn judge(&self, oracle: &Oracle) -> Judgement {
        oracle.judge(&self.image(), Some(&self.tree())).unwrap()
    }

    /// Inverts a byte in the middle of the data of `random`, which lies in the image as it is.
    fn damage_data(&self) {
        let needle = &fs::read(self.tree().join("random")).unwrap()[500_000..500_032];
        let image = fs::read(self.image()).unwrap();
        let at = image.windows(needle.len()).position(|w| w == needle).unwrap();
        patch(&self.image(), at as u64, &[!needle[0]]);
    }
}

fn patch(image: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(image).unwrap().write_all_at(bytes, at).unwrap();
}

#[track_caller]
fn assert_accuses(verdict: &Judgement, judge: &str) {
    assert!(verdict.faults.iter().any(|f| f.starts_with(judge)), "no {judge:?} in {verdict}");
}

#[test]
fn a_good_image_is_good_and_stays_as_it_was() {
    let oracle = Oracle::new();
    let Some(sample) = Sample::make(&oracle) else { return };
    let before = fs::read(sample.image()).unwrap();
    let verdict = sample.judge(&oracle);
    verdict.assert_ok();
    assert_eq!(verdict.compared, Some(4));
    assert!(before == fs::read(sample.image()).unwrap(), "judging wrote to the image");
    // Without a source every byte is read instead.
    oracle.judge(&sample.image(), None).unwrap().assert_ok();
}

#[test]
fn a_damaged_byte_of_data_is_seen_by_every_judge() {
    let oracle = Oracle::new();
    let Some(sample) = Sample::make(&oracle) else { return };
    sample.damage_data();
    let verdict = sample.judge(&oracle);
    for judge in ["btrfs check", "source tree", "kernel (read-only)", "scrub", "kernel (read-write)"] {
        assert_accuses(&verdict, judge);
    }
    assert_accuses(&oracle.judge(&sample.image(), None).unwrap(), "reading");
}

#[test]
fn another_tree_is_a_fault() {
    let oracle = Oracle::new();
    let Some(sample) = Sample::make(&oracle) else { return };
    fs::write(sample.tree().join("sub/more"), "").unwrap();
    let options = JudgeOptions {
        source: Some(&sample.tree()),
        diff: DiffOptions { times: false, ..DiffOptions::default() },
        ..JudgeOptions::default()
    };
    let verdict = oracle.judge_with(&sample.image(), &options).unwrap();
    assert_eq!(verdict.faults, ["source tree: Missing \"sub/more\" "]);
}

#[test]
fn what_does_not_mount_is_a_fault_and_no_error() {
    let oracle = Oracle::new();
    let Some(sample) = Sample::make(&oracle) else { return };
    // The checksum of the primary superblock.
    patch(&sample.image(), 64 << 10, &[0xff; 4]);
    let verdict = sample.judge(&oracle);
    for judge in ["btrfs check", "read-only mount", "read-write mount"] {
        assert_accuses(&verdict, judge);
    }
}

/// Faults of one image must not be laid at the door of another that is mounted at the same time.
#[test]
fn faults_are_attributed_to_their_own_image() {
    let oracle = Oracle::new();
    let Some(good) = Sample::make(&oracle) else { return };
    let Some(bad) = Sample::make(&oracle) else { return };
    bad.damage_data();
    let mut good_mount = Mount::open(&good.image(), "ro").unwrap();
    let bad_mount = Mount::open(&bad.image(), "ro").unwrap();
    fs::read(bad_mount.path().join("random")).unwrap_err();
    fs::read(good_mount.path().join("random")).unwrap();
    assert_eq!(good_mount.log_faults().unwrap(), [""; 0]);
    // The log's rate limit may keep the line out; the device's counter is always there.
    let counter = format!("[{}].corruption_errs", bad_mount.device().node().display());
    let faults = bad_mount.unmount().unwrap();
    assert!(faults.iter().any(|f| f.starts_with(&counter)), "{faults:?}");
    assert_eq!(good_mount.unmount().unwrap(), [""; 0]);
}

#[test]
fn mounts_and_loop_devices_are_gone_after_a_panic() {
    let oracle = Oracle::new();
    let Some(sample) = Sample::make(&oracle) else { return };
    let image = sample.image();
    let place = std::sync::Mutex::new(PathBuf::new());
    let caught = std::panic::catch_unwind(|| {
        let mount = Mount::open(&image, "rw").unwrap();
        mount.path().clone_into(&mut place.lock().unwrap());
        panic!("a test fails");
    });
    assert!(caught.is_err());
    let place = place.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    assert!(!place.exists(), "{}", place.display());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(place.to_str().unwrap()));
    let loops = Command::new("losetup").arg("-j").arg(&image).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&loops.stdout), "");
}

#[test]
fn restore_gives_the_tree_back() {
    let oracle = Oracle::new();
    let Some(sample) = Sample::make(&oracle) else { return };
    let target = sample.dir.path().join("restored");
    fs::create_dir(&target).unwrap();
    btrfs_progs::restore(&sample.image(), &target).unwrap();
    // restore does not touch the top directory.
    for name in ["random", "sub/text"] {
        assert!(
            fs::read(sample.tree().join(name)).unwrap() == fs::read(target.join(name)).unwrap(),
            "{name}"
        );
    }
    treediff::diff(&sample.tree().join("sub"), &target.join("sub"), &DiffOptions::default())
        .unwrap()
        .assert_equal();
}

#[test]
fn dumps_show_the_image() {
    let oracle = Oracle::new();
    let Some(sample) = Sample::make(&oracle) else { return };
    assert!(btrfs_progs::dump_super(&sample.image(), &[]).unwrap().contains("label\t\t\tsample"));
    let tree = btrfs_progs::dump_tree(&sample.image(), &["-t", "5"]).unwrap();
    assert!(tree.contains("name: random") && tree.contains("compression 3 (zstd)"), "{tree}");
    let copy = sample.dir.path().join("copy.img");
    sparse::copy(&sample.image(), &copy).unwrap();
    assert!(fs::read(&copy).unwrap() == fs::read(sample.image()).unwrap());
}
