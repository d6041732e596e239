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

    // The image by -i.
    fs::write(&image, &sound).unwrap();
    let name = image.to_str().unwrap();
    run(&["fixture", "apply", "-i", name, "inode-nlink", "/first"]).expect(0);
    let ran = run(&["verify", "-i", name]).expect(4);
    assert!(ran.text().starts_with("LK-01: ") && ran.text().contains("path=/first"), "{}", ran.text());
    assert!(ran.text().contains("--explain RULE"), "{}", ran.text());

    fs::write(&image, &sound).unwrap();
    apply(&image, &["csum-data-flip", "/sub/second"]).expect(0);
    assert_eq!(verified(&image, 4)[0]["rule"], "CS-09");
    run(&["cat", &format!("{}:/first", image.display())]).expect(0);
    run(&["cat", &format!("{}:/sub/second", image.display())]).expect(4);
}

#[test]
fn what_was_judged_is_said() {
    let (dir, image) = image();
    let name = image.to_str().unwrap();
    let metadata = run(&["verify", name]).expect(0);
    assert!(metadata.text().contains("sound (metadata): 0 errors"), "{}", metadata.text());
    assert!(metadata.text().contains("data not compared") && !metadata.text().contains("decoded"));
    // Text of 300,000 bytes is three extents, one of less than 2048 is inline.
    let tree = dir.path().join("text");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("long"), "all work and no play ".repeat(300_000 / 21)).unwrap();
    fs::write(tree.join("short"), "all work and no play ".repeat(60)).unwrap();
    let packed = dir.path().join("packed.img");
    let packed = packed.to_str().unwrap();
    run(&["mkfs", "-r", tree.to_str().unwrap(), "--compress", "zstd", packed]).expect(0);
    let whole = run(&["verify", "--data", "--decode", packed]).expect(0);
    assert!(whole.text().contains(": sound: 0 errors"), "{}", whole.text());
    assert!(whole.text().contains("4 compressed extents decoded"), "{}", whole.text());
    let json = run(&["verify", "--decode", "--json", packed]).expect(0);
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    // The bytes of both; the last sector of the long one may be decoded whole.
    let bytes = document["decoded_bytes"].as_u64().unwrap();
    let least = 300_000 / 21 * 21 + 60 * 21;
    assert!((least..least + 4096).contains(&bytes), "{bytes}");
}

/// Whatever becomes of it, who asks for JSON gets a document.
#[test]
fn what_cannot_be_judged_is_said_in_json_too() {
    let (_dir, image) = image();
    let name = image.to_str().unwrap();
    apply(&image, &["super-incompat-unknown"]).expect(0);
    for (flag, lines) in [("--json", 0), ("--jsonl", 1)] {
        let ran = run(&["verify", flag, name]).expect(3);
        let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert!(document["error"].as_str().unwrap().contains("SB-16"), "{document}");
        assert_eq!((&document["sound"], &document["image"]), (&Value::Null, &name.into()));
        assert!(lines == 0 || ran.text().lines().count() == lines);
    }
    fs::write(&image, [0; 100_000]).unwrap();
    let ran = run(&["verify", "--json", name]).expect(1);
    let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(document["error"].as_str().unwrap().contains("no superblock"), "{document}");
}

/// What `apply` says that verify will name first is what it names first: of every fault that the image has a place for.
#[test]
fn what_apply_announces_is_what_verify_names() {
    let (_dir, image) = image();
    let sound = fs::read(&image).unwrap();
    let list: Value = serde_json::from_slice(&run(&["fixture", "list", "--json"]).expect(0).stdout).unwrap();
    // Those that several rules name, and of the others one of each letter of the alphabet: the table as a whole is
    // judged where it is.
    let mut met = std::collections::HashSet::new();
    let chosen = list["faults"].as_array().unwrap().iter().filter(|f| {
        !f["twins"].as_array().unwrap().is_empty() || met.insert(f["rule"].as_str().unwrap()[..2].to_owned())
    });
    let mut judged = 0;
    for fault in chosen {
        fs::write(&image, &sound).unwrap();
        let ran = apply(&image, &[fault["name"].as_str().unwrap()]);
        if ran.code == 1 {
            continue;
        }
        let said = ran.text();
        let announced =
            said.split("verify will name ").nth(1).and_then(|s| s.split(" first: ").next()).unwrap();
        let ran = run(&["verify", "--data", "--decode", "--json", image.to_str().unwrap()]);
        let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let first = document["findings"][0]["rule"].as_str().unwrap_or_default();
        let error = document["error"].as_str().unwrap_or_default();
        let is_named = |rule: &str| rule == first || error.contains(rule);
        assert!(
            announced.split(" or ").any(is_named),
            "{fault}: {announced}, but verify names {first} {error}"
        );
        judged += 1;
    }
    assert!(judged > 25, "only {judged}");
}

#[test]
fn all_rules_are_listed() {
    let list = run(&["verify", "--rules"]).expect(0);
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verify.md")).unwrap();
    let is_rule = |name: &&str| name.contains('-') && name.starts_with(|c: char| c.is_ascii_uppercase());
    let rows = page.lines().filter_map(|l| l.strip_prefix("| ")?.split(' ').next().filter(is_rule)).count();
    assert!(
        list.text().contains("DIR-08  error    only xattrs have data behind the name\n"),
        "{}",
        list.text()
    );
    for line in list.text().lines() {
        let rule = line.split_whitespace().next().unwrap();
        assert!(page.contains(&format!("\n| {rule} |")), "{rule} is not in docs/verify.md");
    }
    assert_eq!(list.text().lines().count(), rows);
    let json: Value =
        serde_json::from_slice(&run(&["verify", "--rules", "--json"]).expect(0).stdout).unwrap();
    let rules = json["rules"].as_array().unwrap();
    assert_eq!(rules.len(), rows);
    let one: Value =
        serde_json::from_slice(&run(&["verify", "--explain", "dir-08", "--json"]).expect(0).stdout).unwrap();
    let dir_08 = rules.iter().find(|r| r["rule"] == "DIR-08").unwrap();
    assert_eq!((&one["says"], &one["grade"]), (&dir_08["says"], &"refused".into()));
    let said = run(&["verify", "--explain", "XX-01"]).expect(1);
    assert!(said.stderr.contains("verify --rules"), "{}", said.stderr);
}

#[test]
fn what_has_no_place_leaves_the_image_as_it_is() {
    let (_dir, image) = image();
    let sound = fs::read(&image).unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&[], 2, "no fault given"),
        (&["inode-nlink", "/first", "/second"], 2, "/second"),
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

/// Linux mounts an image with checksums over free space, and overwrites them when it writes there.
#[test]
fn what_is_written_over_leftover_checksums_has_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let host = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(host("tree")).unwrap();
    fs::write(host("tree/big"), vec![b'x'; 12 << 20]).unwrap();
    let oracle = btrfsimg_testkit::Oracle::new();
    for (mixed, len, nodatasum) in
        [(true, 20 << 20, false), (true, 100_000, true), (false, 100_000, false), (false, 20 << 20, true)]
    {
        let image = PathBuf::from(host("a.img"));
        let name = image.to_str().unwrap().to_owned();
        let _ = fs::remove_file(&image);
        let mut mkfs = vec!["mkfs", "-q", &name, "-r", "TREE", "-b", "64M"];
        let tree = host("tree");
        mkfs[4] = &tree;
        mkfs.extend(mixed.then_some("-M"));
        run(&mkfs).expect(0);
        apply(&image, &["csum-over-free-space"]).expect(0);
        let before = verified(&image, 4);
        // Bytes of nothing are not what those sums say, either.
        assert!(before.iter().all(|f| f["rule"] == "CS-05" || f["rule"] == "CS-09"), "{before:?}");
        let bytes = btrfsimg_testkit::rng::Rng::new(7).bytes(len);
        fs::write(host("n"), &bytes).unwrap();
        let n = format!("{name}:/n");
        if nodatasum {
            run(&["touch", &n]).expect(0);
            run(&["chattr", "+C", &n]).expect(0);
        }
        run(&["cp", &host("n"), &n]).expect(0);
        // What is still wrong was so before, where nothing was written since.
        let ran = run(&["verify", "--data", "--json", &name]);
        let after: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let place = |f: &Value| (f["rule"].clone(), f["logical"].clone());
        let old: Vec<_> = before.iter().map(place).collect();
        let left: Vec<_> = after["findings"].as_array().unwrap().iter().map(place).collect();
        assert!(left.iter().all(|f| old.contains(f)), "{left:?}");
        assert!(left.len() < old.len(), "it was written elsewhere: {left:?}");
        assert!(run(&["cat", &n]).expect(0).stdout == bytes);
        if oracle.has_progs() {
            let mut said = btrfsimg_testkit::btrfs_progs::check(&image).unwrap();
            // It compares free space with what is left over there, too.
            if !left.is_empty() {
                said.retain(|line| {
                    !line.contains("errors found in csum tree") && !line.contains("bytes used")
                });
            }
            assert_eq!(said, [""; 0]);
        }
        if oracle.has_kernel()
            && let Some(mount) = oracle.mount(&image, "rw").unwrap()
        {
            assert!(fs::read(mount.path().join("n")).unwrap() == bytes);
            assert!(fs::read(mount.path().join("big")).unwrap() == vec![b'x'; 12 << 20]);
            assert_eq!(mount.unmount().unwrap(), [""; 0]);
        }
    }
}

/// Compressed extents of more than 128 KiB, which no writer makes and kernels read.
#[test]
fn long_compressed_extents_are_read_as_kernels_do() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("a.img"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("text"), "some text that compresses\n".repeat(8000)).unwrap();
    fs::write(tree.join("what follows"), "x").unwrap();
    let (name, oracle) = (image.to_str().unwrap(), btrfsimg_testkit::Oracle::new());
    for (fault, end) in [("file-extent-compressed-large", b'\n'), ("file-extent-compressed-long", b'g')] {
        run(&["mkfs", "-q", "-f", "-r", tree.to_str().unwrap(), "--compress", "zstd", name]).expect(0);
        apply(&image, &[fault, "/text"]).expect(0);
        let ours = run(&["cat", &format!("{name}:/text")]).expect(0).stdout;
        assert_eq!(ours.last(), Some(&end), "{fault}");
        if oracle.has_kernel()
            && let Some(mount) = oracle.mount(&image, "ro").unwrap()
        {
            assert!(fs::read(mount.path().join("text")).unwrap() == ours, "{fault}");
        }
        // A warning, no more: what is behind the stream is one, too.
        let found = run(&["verify", "--data", "--decode", "--json", name]).expect(0);
        let document: Value = serde_json::from_slice(&found.stdout).unwrap();
        assert_eq!(document["findings"][0]["rule"], "FE-18", "{document}");
    }
}

/// Extents that overlap from leaf to leaf are one file's fault, however it is copied.
#[test]
fn a_file_whose_extents_overlap_is_not_copied_and_the_others_are() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("a.img"));
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("d/lies"), "some text that compresses\n".repeat(400_000)).unwrap();
    fs::write(tree.join("d/sound"), "sound").unwrap();
    fs::write(tree.join("d/sound, too"), vec![b'a'; 300_000]).unwrap();
    let name = image.to_str().unwrap();
    let tree = tree.to_str().unwrap();
    run(&["mkfs", "-q", "-r", tree, "--compress", "zstd", "--nodesize", "4k", "-b", "64M", name]).expect(0);
    apply(&image, &["file-extent-overlap-leaves", "/d/lies"]).expect(0);
    for (reflink, copy) in [("auto", "shared"), ("never", "stored")] {
        let (from, to) = (format!("{name}:/d"), format!("{name}:/{copy}"));
        let said = run(&["cp", "-r", &format!("--reflink={reflink}"), &from, &to]).expect(4);
        assert!(said.stderr.contains("/d/lies: ") && said.stderr.contains("[FE-22]"), "{}", said.stderr);
        assert_eq!(run(&["ls", &to]).expect(0).text(), "sound\nsound, too\n");
        assert_eq!(run(&["cat", &format!("{to}/sound")]).expect(0).text(), "sound");
        assert_eq!(run(&["cat", &format!("{to}/sound, too")]).expect(0).stdout, vec![b'a'; 300_000]);
    }
    let rules: Vec<_> = verified(&image, 4).iter().map(|f| f["path"].clone()).collect();
    assert!(rules.iter().all(|path| path == "/d/lies" || path.is_null()), "{rules:?}");
}

/// Short names and values, and items of the parent in the same leaf before those of the file.
#[test]
fn faults_of_small_things() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("tree")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(path(&format!("tree/{name}")), name).unwrap();
    }
    let (image, file) = (path("i.img"), format!("{}:/b", path("i.img")));
    for (fault, value, rule) in [
        ("xattr-name-hash", "", "DIR-10"),
        ("xattr-name-hash", "value", "DIR-10"),
        ("inode-orphan-missing", "value", "LK-06"),
    ] {
        run(&["mkfs", "-q", "-f", "-r", &path("tree"), &image]).expect(0);
        run(&["xattr", "set", &file, "user.a", value]).expect(0);
        run(&["fixture", "apply", &image, fault, "/b"]).expect(0);
        let found = String::from_utf8(run(&["verify", &image]).expect(4).stdout).unwrap();
        assert!(found.starts_with(rule), "{fault} {value:?}: {found}");
    }
}
