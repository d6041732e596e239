//! `btrfsimg fixture`: from the table to a broken image that `verify` names.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::run;
use serde_json::Value;
use tempfile::TempDir;

/// A small image of our own.
fn image() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("a.img"));
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("first"), vec![b'a'; 20_000]).unwrap();
    fs::write(tree.join("sub/second"), vec![b'b'; 20_000]).unwrap();
    run(&["mkfs", "-r", tree.to_str().unwrap(), image.to_str().unwrap()]).expect(0);
    (dir, image)
}

fn verified(image: &Path, code: i32) -> Vec<Value> {
    let ran = run(&["verify", "--data", "--json", image.to_str().unwrap()]).expect(code);
    let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
    document["findings"].as_array().unwrap().clone()
}

fn apply(image: &Path, more: &[&str]) -> common::Ran {
    run(&[&["fixture", "apply", image.to_str().unwrap()], more].concat())
}

#[test]
fn the_list_names_what_explain_explains() {
    let document: Value =
        serde_json::from_slice(&run(&["fixture", "list", "--json"]).expect(0).stdout).unwrap();
    let faults = document["faults"].as_array().unwrap();
    let lines = run(&["fixture", "list"]).expect(0);
    assert_eq!(lines.text().lines().count(), faults.len());
    for name in ["dir-item-name-hash", "dir-item-name-len-overflow", "xattr-data-len", "csum-data-flip"] {
        let fault = faults.iter().find(|f| f["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        let said = run(&["fixture", "explain", name]).expect(0);
        assert!(said.text().contains(fault["rule"].as_str().unwrap()), "{}", said.text());
    }
    assert_eq!(
        run(&["fixture", "explain", "csum-data"]).expect(1).stderr.matches("csum-data-flip").count(),
        2
    );
}

#[test]
fn a_path_a_key_or_nothing_chooses_what_is_broken() {
    let (_dir, image) = image();
    assert_eq!(verified(&image, 0), Vec::<Value>::new());
    let sound = fs::read(&image).unwrap();
    let said = apply(&image, &["inode-nlink", "/sub/second"]).expect(0);
    assert!(said.text().contains("root=5") && said.text().contains("offset=40"), "{}", said.text());
    let found = verified(&image, 4);
    assert_eq!((&found[0]["rule"], &found[0]["path"]), (&"LK-01".into(), &"/sub/second".into()));
    let ino = found[0]["inode"].as_u64().unwrap();

    fs::write(&image, &sound).unwrap();
    let key = format!("({ino} INODE_ITEM 0)");
    let said = apply(&image, &["--json", "inode-nbytes", &key]).expect(0);
    let document: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(document["changes"][0]["key"], serde_json::json!([ino, 1, 0]));
    let found = verified(&image, 4);
    assert_eq!((&found[0]["rule"], &found[0]["inode"]), (&"LK-05".into(), &ino.into()));

    fs::write(&image, &sound).unwrap();
    apply(&image, &["csum-data-flip", "/sub/second"]).expect(0);
    assert_eq!(verified(&image, 4)[0]["rule"], "CS-09");
    run(&["cat", &format!("{}:/first", image.display())]).expect(0);
    run(&["cat", &format!("{}:/sub/second", image.display())]).expect(4);
}

#[test]
fn what_has_no_place_leaves_the_image_as_it_is() {
    let (_dir, image) = image();
    let sound = fs::read(&image).unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["qgroup-rfer"], 1, "it needs quotas"),
        (&["xattr-data-len", "/first"], 1, "it needs an xattr"),
        (&["inode-nlink", "/absent"], 1, "no such file"),
        (&["inode-nlink", "(999 INODE_ITEM 0)"], 1, "it needs"),
        (&["no-such-fault"], 1, "no such fault"),
        (&["inode-nlink", "first"], 2, "neither a path"),
        (&["inode-nlink", "(257 NO_ITEM 0)"], 2, "neither a path"),
    ];
    for (args, code, text) in cases {
        let said = apply(&image, args).expect(code).stderr;
        assert!(said.contains(text), "{args:?}: {said}");
        assert!(fs::read(&image).unwrap() == sound, "{args:?} changed the image");
    }
}
