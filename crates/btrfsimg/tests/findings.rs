//! What `verify` prints of images with very many faults: none hides another, all are counted, and they come while it reads.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{edit_items, find_sectors, overwrite, run};
use serde_json::Value;
use tempfile::TempDir;

/// More than verify lists of one rule.
const MANY: usize = 1400;
const LISTED: usize = 1000;
const INODE_ITEM: u8 = 1;
/// The size that marks the last file, in an inode item at 16.
const LAST: u64 = 77;

/// An image of `MANY` empty files, and a last one of `LAST` bytes.
fn many_files() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("many.img"));
    fs::create_dir(&tree).unwrap();
    (0..MANY).for_each(|n| fs::write(tree.join(format!("f{n:04}")), "").unwrap());
    fs::write(tree.join("last"), [b'x'; 77]).unwrap();
    run(&["mkfs", "-r", tree.to_str().unwrap(), image.to_str().unwrap()]).expect(0);
    run(&["verify", image.to_str().unwrap()]).expect(0);
    (dir, image)
}

/// Calls `empty` with the inode items of the empty files, `last` with that of the last one.
fn edit_inodes(image: &Path, empty: impl Fn(&mut [u8]), last: impl Fn(&mut [u8])) {
    edit_items(image, |key_type, item| {
        let is_file = key_type == INODE_ITEM && item[52..56] == 0o100_644u32.to_le_bytes();
        match u64::from_le_bytes(item.get(16..24).map_or([1; 8], |b| b.try_into().unwrap())) {
            0 if is_file => empty(item),
            LAST if is_file => last(item),
            _ => return false,
        }
        true
    });
}

fn document(image: &Path, more: &[&str], code: i32) -> Value {
    let ran = run(&[&["verify", "--json", image.to_str().unwrap()], more].concat()).expect(code);
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// How many findings of a rule are in the document, consequences aside.
fn listed(document: &Value, rule: &str) -> usize {
    let findings = document["findings"].as_array().unwrap();
    findings.iter().filter(|f| f["rule"] == rule && f["consequence"].is_null()).count()
}

/// What the document counts of a rule: found and listed.
fn counted(document: &Value, rule: &str) -> (u64, u64) {
    let rules = document["rules"].as_array().unwrap();
    let count = rules.iter().find(|r| r["rule"] == rule && r["consequence"] == false).unwrap();
    (count["found"].as_u64().unwrap(), count["listed"].as_u64().unwrap())
}

/// The numbers in the table's line of a group of rules.
fn in_table(text: &str, family: &str) -> Vec<u64> {
    let line = text.lines().find(|l| l.starts_with(&format!("  {family} "))).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    words[words.len() - 3..].iter().map(|n| n.parse().unwrap()).collect()
}

fn set_flags(item: &mut [u8], flags: u64) {
    item[64..72].copy_from_slice(&flags.to_le_bytes());
}

fn add(item: &mut [u8], at: usize, n: u8) {
    item[at] += n;
}

#[test]
fn many_warnings_hide_no_error() {
    let (_dir, image) = many_files();
    // NODATACOW without NODATASUM: INO-11, a warning. A flag that nothing knows: INO-09, an error.
    edit_inodes(&image, |item| set_flags(item, 2), |item| set_flags(item, 1 << 30));
    let found = document(&image, &[], 4);
    assert_eq!((listed(&found, "INO-11"), counted(&found, "INO-11")), (LISTED, (1400, 1000)));
    assert_eq!((listed(&found, "INO-09"), counted(&found, "INO-09")), (1, (1, 1)));
    assert_eq!((&found["errors"], &found["warnings"]), (&1.into(), &1400.into()));
    let ran = run(&["verify", image.to_str().unwrap()]).expect(4);
    let text = ran.text();
    assert_eq!(text.lines().filter(|l| l.starts_with("INO-09: corrupt leaf:")).count(), 1);
    assert!(text.contains("\nINO-11: 400 more of INO-11 not listed\n"), "{text}");
    assert_eq!(in_table(text, "INO")[..2], [1, 1400]);
}

#[test]
fn many_errors_of_one_rule_hide_none_of_another() {
    let (_dir, image) = many_files();
    edit_inodes(&image, |item| add(item, 26, 1), |item| add(item, 40, 1));
    let found = document(&image, &[], 4);
    assert_eq!((listed(&found, "LK-05"), counted(&found, "LK-05")), (LISTED, (1400, 1000)));
    assert_eq!((listed(&found, "LK-01"), counted(&found, "LK-01")), (1, (1, 1)));
    assert_eq!(found["errors"], 1401);
    let ran = run(&["verify", image.to_str().unwrap()]).expect(4);
    assert!(ran.text().contains("\nLK-05: 400 more of LK-05 not listed\n"), "{}", ran.text());
    assert_eq!(in_table(ran.text(), "LK"), [1401, 0, 0]);
}

/// An image of two files, `MANY` sectors of one of which are bad, and a sector of the other.
fn bad_sectors() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("bad.img"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("bad"), vec![b'b'; MANY * 4096]).unwrap();
    fs::write(tree.join("good"), vec![b'g'; 40960]).unwrap();
    run(&["mkfs", "-r", tree.to_str().unwrap(), image.to_str().unwrap()]).expect(0);
    let sectors = find_sectors(&image, &[b'b'; 4096]);
    assert_eq!(sectors.len(), MANY);
    sectors.iter().for_each(|at| overwrite(&image, at + 100, b"!"));
    overwrite(&image, find_sectors(&image, &[b'g'; 4096])[3], b"!");
    (dir, image)
}

#[test]
fn all_bad_sectors_are_counted() {
    let (_dir, image) = bad_sectors();
    let found = document(&image, &["--data"], 4);
    assert_eq!((listed(&found, "CS-09"), counted(&found, "CS-09")), (LISTED, (1401, 1000)));
    let ran = run(&["verify", "--data", image.to_str().unwrap()]).expect(4);
    assert_eq!(ran.text().lines().filter(|l| l.starts_with("CS-09: corrupt")).count(), LISTED);
    assert!(ran.text().contains("\nCS-09: 401 more of CS-09 not listed\n"), "{}", ran.text());
    assert_eq!(in_table(ran.text(), "CS"), [1401, 0, 0]);
}

#[test]
fn each_line_of_jsonl_is_a_document_and_the_last_is_the_summary() {
    let (_dir, image) = bad_sectors();
    let ran = run(&["verify", "--data", "--jsonl", image.to_str().unwrap()]).expect(4);
    let lines: Vec<Value> = ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut types = BTreeMap::new();
    for line in &lines {
        assert_eq!(line["version"], 1, "{line}");
        *types.entry(line["type"].as_str().unwrap()).or_insert(0) += 1;
    }
    assert_eq!(types, BTreeMap::from([("finding", LISTED), ("summary", 1)]));
    let summary = lines.last().unwrap();
    assert_eq!((&summary["type"], &summary["errors"]), (&"summary".into(), &1401.into()));
    let places: Vec<u64> = lines.iter().filter_map(|line| line["logical"].as_u64()).collect();
    assert!(places.is_sorted() && places.len() == LISTED);
    assert!(lines[..LISTED].iter().all(|line| line["path"] == "/bad"), "{}", lines[0]);
}

#[test]
fn warnings_fail_where_they_are_asked_to() {
    let (_dir, image) = many_files();
    edit_inodes(&image, |_| {}, |item| set_flags(item, 2));
    let image = image.to_str().unwrap();
    for (more, code) in [(&[][..], 0), (&["--fail-on", "error"], 0), (&["--fail-on", "warning"], 4)] {
        let ran = run(&[&["verify", image], more].concat()).expect(code);
        assert!(ran.text().contains(": sound (metadata): 0 errors, 1 warnings"), "{}", ran.text());
    }
}
