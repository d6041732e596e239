//! A directory of 200,000 entries, a file beyond 4 GiB, and sources that change while they are read.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::treediff::{DiffOptions, diff};
use btrfsimg_testkit::{JudgeOptions, Oracle};
use common::{run, sh};
use writing::assert_checks_clean;

fn mkfs(image: &Path, source: &Path, more: &[&str]) -> common::Ran {
    let fixed = ["mkfs", "-q", "-f", "--no-sync", image.to_str().unwrap(), "-r", source.to_str().unwrap()];
    run(&[&fixed, more].concat())
}

#[test]
fn a_directory_of_200_000_entries() {
    let dir = tempfile::tempdir_in(writing::shm().unwrap_or(std::env::temp_dir())).unwrap();
    let (source, image) = (dir.path().join("src"), dir.path().join("i.img"));
    fs::create_dir_all(source.join("many")).unwrap();
    for i in 0..200_000 {
        File::create(source.join(format!("many/entry-{i}"))).unwrap();
    }
    mkfs(&image, &source, &[]).expect(0);
    let judge = JudgeOptions { source: Some(&source), read_write: false, ..JudgeOptions::default() };
    Oracle::new().judge_with(&image, &judge).unwrap().assert_ok();
    // Names of it go, and come, one by one.
    let at = |name: &str| format!("{}:/many/{name}", image.display());
    run(&["rm", &at("entry-0"), &at("entry-199999"), &at("entry-77777")]).expect(0);
    assert_checks_clean(&image, "rm in a large directory");
    run(&["mkdir", &at("entry-77777"), &at("new")]).expect(0);
    let gone = run(&["stat", &at("entry-0")]).expect(1);
    assert!(gone.stderr.contains("no such file"), "{}", gone.stderr);
    let count = run(&["ls", &format!("{}:/many", image.display())]).expect(0);
    assert_eq!(count.text().lines().count(), 200_000 - 3 + 2);
    run(&["rm", "-r", &format!("{}:/many", image.display())]).expect(0);
    Oracle::new().judge_with(&image, &JudgeOptions { source: None, ..judge }).unwrap().assert_ok();
}

#[test]
fn a_file_beyond_4_gib() {
    let oracle = Oracle::new();
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("src"), dir.path().join("i.img"));
    fs::create_dir(&source).unwrap();
    let file = File::create(source.join("large")).unwrap();
    file.set_len((9 << 30) + 1234).unwrap();
    let mut rng = Rng::new(1);
    let text = "text beyond 32 bits ".repeat(20_000);
    for at in [0, (4 << 30) - 70_000, (4 << 30) + 4096, (8 << 30) + 17, (9 << 30) + 1000] {
        file.write_all_at(text.as_bytes(), at).unwrap();
        file.write_all_at(&rng.bytes(50_000), at + 200_000).unwrap();
    }
    for kind in [&[][..], &["--compress-force", "zstd:3"], &["--compress", "lzo", "--sparse", "always"]] {
        let more = [kind, &["--slack", "100M"]].concat();
        if kind.contains(&"always") {
            // Every zero is read: the other offsets are enough.
            file.set_len((4 << 30) + 600_000).unwrap();
        }
        mkfs(&image, &source, &more).expect(0);
        assert!(fs::metadata(&image).unwrap().len() < 200 << 20, "holes were stored");
        oracle.judge(&image, Some(&source)).unwrap().assert_ok();
    }
    // Into an image, and out of it.
    run(&["cp", source.join("large").to_str().unwrap(), &format!("{}:/copy", image.display())]).expect(0);
    assert_checks_clean(&image, "cp of a large file");
    run(&["cp", &format!("{}:/copy", image.display()), dir.path().join("out").to_str().unwrap()]).expect(0);
    writing::assert_same_bytes(&source.join("large"), &dir.path().join("out"), "out again");
}

/// What says of itself that it has 4096 bytes and has fewer: the size is what was read, and it is said.
#[test]
fn files_that_are_shorter_than_they_say() {
    let source = Path::new("/sys/kernel/mm/hugepages");
    let found = fs::read_dir(source).ok().and_then(|mut d| d.next()?.ok());
    let Some(found) = found else { return println!("skipped: no {}", source.display()) };
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("i.img");
    let ran = mkfs(&image, &found.path(), &[]).expect(1);
    for entry in fs::read_dir(found.path()).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let Ok(contents) = fs::read(&path) else { continue };
        let said = ran.stderr.lines().find(|l| l.contains(path.to_str().unwrap()));
        let short = format!("{} of {}", contents.len(), entry.metadata().unwrap().len());
        assert!(said.is_some_and(|l| l.contains(&short)), "{name}: {}", ran.stderr);
        let cat = run(&["cat", &format!("{}:/{name}", image.display())]).expect(0);
        assert_eq!(cat.stdout, contents, "{name}");
    }
    assert_checks_clean(&image, "mkfs of files that are shorter than they say");
    // The empty ones of /proc, which have contents and say that they have none, are what they say.
    run(&["cp", "/proc/version", &format!("{}:/version", image.display())]);
    assert_checks_clean(&image, "cp of a file of /proc");
}

/// Entries vanish, shrink, grow and change their kind while they are read: what was there is in the image, what was
/// not is said, and the image is sound.
#[test]
fn sources_that_change_while_they_are_read() {
    let dir = tempfile::tempdir_in(writing::shm().unwrap_or(std::env::temp_dir())).unwrap();
    let (source, image) = (dir.path().join("src"), dir.path().join("i.img"));
    fs::create_dir(&source).unwrap();
    sh(&source, "mkdir stays; for i in $(seq 50); do echo $i > stays/$i; done");
    let stop = AtomicBool::new(false);
    let mut failed_somewhere = false;
    std::thread::scope(|scope| {
        let (source, stop) = (&source, &stop);
        scope.spawn(move || change_all_the_time(source, stop));
        for round in 0..12 {
            let threads = ["1", "4"][round % 2];
            let ran = mkfs(&image, source, &["--threads", threads, "--compress", "zstd:1"]);
            // Which entries are met is chance; that something is missed is not said by another code.
            assert!([0, 1].contains(&ran.code), "{}", ran.stderr);
            assert_eq!(ran.code == 1, !ran.stderr.is_empty());
            failed_somewhere |= ran.code == 1;
            assert_checks_clean(&image, "mkfs of a changing tree");
            let out = dir.path().join(format!("out{round}"));
            run(&["cp", "-a", &format!("{}:/stays", image.display()), out.to_str().unwrap()]).expect(0);
            diff(&source.join("stays"), &out, &DiffOptions::default()).unwrap().assert_equal();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(failed_somewhere, "nothing ever changed at the wrong moment");
    let judge = JudgeOptions { read_write: false, ..JudgeOptions::default() };
    Oracle::new().judge_with(&image, &judge).unwrap().assert_ok();
}

fn change_all_the_time(top: &Path, stop: &AtomicBool) {
    let mut rng = Rng::new(3);
    let contents = rng.bytes(3 << 20);
    while !stop.load(Ordering::Relaxed) {
        let path = top.join(format!("e{}", rng.index(40)));
        let len = [100, 5000, 300_000, 3 << 20][rng.index(4)];
        // Any of these may fail where the entry is of another kind: then nothing changes.
        let _ = match rng.index(8) {
            0 | 1 => fs::write(&path, &contents[..len]),
            2 | 3 => File::options().write(true).open(&path).and_then(|f| f.set_len(len as u64 / 3)),
            4 => fs::remove_file(&path),
            5 => fs::remove_dir_all(&path),
            6 => fs::create_dir(&path).and_then(|()| fs::write(path.join("inside"), b"inside")),
            _ => std::os::unix::fs::symlink("nowhere", &path),
        };
    }
}
