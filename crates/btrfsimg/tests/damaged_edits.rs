//! Edits of images with every named fault: what is changed takes no new harm, or nothing is changed.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Lab, run, sh};
use serde_json::Value;

/// Files of all kinds, for faults to have a place in.
const ZOO: &str = r#"
text() { yes "line $1 of a file that compresses" | head -c "$2"; }
mkdir -p d/e; text 1 300000 > d/text; text 2 1000 > d/inline; head -c 50000 /dev/urandom > d/e/noise
for i in $(seq 300); do text $i $((i * 37)) > d/$i; done
for i in 0 3 6; do head -c 8192 /dev/urandom | dd of=holes bs=4096 seek=$i conv=notrunc status=none; sync; done
truncate -s 60000 holes; fallocate -l 100000 prealloc; ln d/text linked; ln -s d/inline symlink; mkfifo fifo
setfattr -n user.a -v b d/inline; cp --reflink=always d/text shared; btrfs subvolume create sub > /dev/null
cp -r d sub; btrfs subvolume snapshot sub snap > /dev/null; rm snap/d/1*; sync
"#;

/// One for each tree that an edit changes by itself.
const EDITS: [&[&str]; 5] = [
    &["rm", "-r", "I:/d"],
    &["cp", "-r", "I:/sub/d", "I:/new"],
    &["defrag", "-r", "-c", "zstd:9", "I:/"],
    &["subvol", "snapshot", "I:/sub", "I:/again"],
    &["subvol", "delete", "I:/snap"],
];

/// What follows from a fault where the edit comes upon it, and what only somebody sees who counts all references, or reads
/// what the edit does not: an extent with too many references stays when its last file goes, a file in the place of a
/// directory keeps a name of what was in it, and behind an extent's true end checksums are another's.
const FOLLOWS: [(&str, &str); 4] = [
    ("extent-item-refs", "XR-04"),
    ("extent-ref-count", "XR-04"),
    ("dir-item-in-file", "LK-02"),
    ("file-extent-disk-num-bytes", "CS-06"),
];

/// The rules that `verify` finds broken; none of an image that it cannot read.
fn broken_rules(image: &str) -> BTreeSet<String> {
    let ran = run(&["verify", "--json", image]);
    let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let errors = document["findings"].as_array().unwrap().iter().filter(|f| f["severity"] == "error");
    errors.map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect()
}

/// Does every edit on a copy of the image with the fault; what becomes worse goes to `worse`. Says whether the image has a
/// place for the fault.
fn edit_with(fault: &str, dir: &Path, worse: &Mutex<Vec<String>>) -> bool {
    let at = |name: &str| dir.join(name).display().to_string();
    let (broken, copy) = (at(&format!("{fault}.broken")), at(&format!("{fault}.copy")));
    sh(dir, &format!("cp k.img '{broken}'"));
    let has_place = run(&["fixture", "apply", &broken, fault]).code == 0;
    let before = if has_place { broken_rules(&broken) } else { BTreeSet::new() };
    for edit in EDITS.iter().filter(|_| has_place) {
        sh(dir, &format!("cp '{broken}' '{copy}'"));
        let words: Vec<_> = edit.iter().map(|word| word.replacen("I:", &format!("{copy}:"), 1)).collect();
        let ran = run(&words);
        assert!([0, 1, 3, 4].contains(&ran.code), "{fault}: {edit:?}: {} {}", ran.code, ran.stderr);
        let follows = |rule: &&String| FOLLOWS.contains(&(fault, rule.as_str()));
        let new: Vec<_> =
            broken_rules(&copy).difference(&before).filter(|rule| !follows(rule)).cloned().collect();
        if !new.is_empty() {
            worse
                .lock()
                .unwrap()
                .push(format!("{fault}: {edit:?} ({}): {before:?}, then {new:?} too", ran.code));
        }
    }
    sh(dir, &format!("rm -f '{broken}' '{copy}'"));
    has_place
}

#[test]
fn no_edit_makes_another_fault_of_one() {
    let Some(lab) = Lab::kernel_made(&[], "rw,compress=zlib", |top| {
        sh(top, ZOO);
    }) else {
        return;
    };
    let list = run(&["fixture", "list", "--json"]).expect(0);
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let faults: Vec<_> =
        list["faults"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    let (next, applied, worse) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let has_place = edit_with(fault, lab.dir.path(), &worse);
                    applied.fetch_add(usize::from(has_place), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(worse.into_inner().unwrap(), [""; 0]);
    assert!(applied.into_inner() > 200);
}
