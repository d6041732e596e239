//! `cp --salvage`: out of broken images comes what can be read; the rest is named.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use btrfsimg_testkit::rng::Rng;
use common::{Lab, find_sectors, overwrite, run, sh};

const NODESIZE: usize = 16384;

/// Blocks of the image file that belong to this file system, with the tree that their header names, written now or
/// once: offset and bytes.
fn blocks(image: &Path, tree: u64) -> Vec<(u64, Vec<u8>)> {
    let bytes = fs::read(image).unwrap();
    let fsid = &bytes[65536 + 32..65536 + 48];
    (0..bytes.len() - NODESIZE)
        .step_by(4096)
        .filter(|at| bytes[at + 32..at + 48] == *fsid && bytes[at + 88..at + 96] == tree.to_le_bytes())
        .map(|at| (at as u64, bytes[at..at + NODESIZE].to_vec()))
        .collect()
}

/// The key types in a leaf.
fn key_types(block: &[u8]) -> Vec<u8> {
    let count = u32::from_le_bytes(block[96..100].try_into().unwrap()) as usize;
    (0..count.min(600)).map(|slot| block[101 + slot * 25 + 8]).collect()
}

fn salvage(lab: &Lab) -> (common::Ran, PathBuf) {
    let out = lab.host("out");
    fs::create_dir(&out).unwrap();
    let ran = run(&["cp", "-r", "--salvage", &lab.at("/"), out.to_str().unwrap()]);
    (ran, out)
}

/// All regular files below `dir`: path and contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            t if t.is_dir() => found.extend(files(&entry.path())),
            t if t.is_file() => _ = found.insert(entry.path(), fs::read(entry.path()).unwrap()),
            _ => {}
        }
    }
    found
}

#[test]
fn a_sound_image_comes_out_whole_and_without_complaint() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir d; echo a > d/a; ln d/a d/b; truncate -s 1M d/hole; btrfs subvolume create s >/dev/null; echo x > s/x",
        );
    }) else {
        return;
    };
    let (ran, out) = salvage(&lab);
    let ran = ran.expect(0);
    assert!(!out.join("lost+found").exists());
    assert!(ran.stderr.contains("0 failures"), "{}", ran.stderr);
    assert_eq!(fs::read(out.join("s/x")).unwrap(), b"x\n");
}

#[test]
fn damaged_bytes_are_named_and_the_others_are_right() {
    let content = Rng::new(5).bytes(3 << 20);
    // Not so random that it is stored raw where compression is asked for.
    let text: Vec<u8> = content.iter().map(|b| b'a' + b % 8).collect();
    for (options, expect) in
        [("rw", "bytes 8192 to 12288 copied as found"), ("rw,compress-force=zlib", "left as zeros")]
    {
        let Some(lab) = Lab::kernel_made(&[], options, |top| {
            fs::write(top.join("f"), &text).unwrap();
            fs::write(top.join("good"), b"good").unwrap();
        }) else {
            return;
        };
        let extent = match options {
            "rw" => find_sectors(&lab.image, &text[8192..12288])[0],
            // The second extent of a file of 128 KiB extents starts with a zlib header.
            _ => second_extent(&lab),
        };
        overwrite(&lab.image, extent + 100, &[0x5a; 200]);
        let (ran, out) = salvage(&lab);
        let ran = ran.expect(1);
        assert!(ran.stderr.contains("/f: ") && ran.stderr.contains(expect), "{}", ran.stderr);
        assert_eq!(fs::read(out.join("good")).unwrap(), b"good");
        let copy = fs::read(out.join("f")).unwrap();
        assert_eq!(copy.len(), text.len());
        let wrong = if options == "rw" { 8192..12288 } else { 131_072..262_144 };
        assert!(copy[..wrong.start] == text[..wrong.start] && copy[wrong.end..] == text[wrong.end..]);
        match options {
            "rw" => assert!(copy[8192 + 100..8192 + 300].iter().all(|b| *b == 0x5a)),
            _ => assert!(copy[wrong].iter().all(|b| *b == 0)),
        }
    }
}

/// Where in the image file the extent at 131072 of `/f` lies.
fn second_extent(lab: &Lab) -> u64 {
    let image = lab.image.to_str().unwrap();
    let tree = run(&["inspect", "tree", "-t", "fs", image]).expect(0);
    let line = tree.text().lines().find(|l| l.contains("EXTENT_DATA 131072")).unwrap().to_owned();
    let number = |text: &str, before: &str| -> u64 {
        text.split(before).nth(1).unwrap().split([' ', ')', ';']).next().unwrap().parse().unwrap()
    };
    let logical = number(&line, "disk_bytenr ");
    let chunks = run(&["inspect", "tree", "-t", "chunk", image]).expect(0);
    for chunk in chunks.text().lines().filter(|l| l.contains("CHUNK_ITEM")) {
        let (start, length) = (number(chunk, "CHUNK_ITEM "), number(chunk, "length "));
        if (start..start + length).contains(&logical) {
            return logical - start + number(chunk, "devid 1 offset ");
        }
    }
    panic!("no chunk holds {logical}");
}

#[test]
fn files_whose_directory_is_lost_are_found() {
    let name = |i: usize| format!("file-{i:04}-{}", "n".repeat(100));
    let Some(lab) = Lab::kernel_made(&[], "rw,nodiscard", |top| {
        fs::create_dir_all(top.join("d/e")).unwrap();
        for i in 0..600 {
            let dir = if i % 2 == 0 { "d" } else { "d/e" };
            fs::write(top.join(dir).join(name(i)), i.to_string()).unwrap();
        }
    }) else {
        return;
    };
    let names_only = |block: &[u8]| key_types(block).iter().all(|t| [84, 96].contains(t));
    let mut killed = 0;
    for (at, block) in blocks(&lab.image, 5) {
        if block[100] == 0 && names_only(&block) {
            overwrite(&lab.image, at, &[0; NODESIZE]);
            killed += 1;
        }
    }
    assert!(killed > 4, "{killed} leaves of names alone");
    let (ran, out) = salvage(&lab);
    let ran = ran.expect(1);
    let found = files(&out);
    for i in 0..600 {
        let hits: Vec<_> =
            found.iter().filter(|(path, _)| path.to_str().unwrap().ends_with(&name(i))).collect();
        assert_eq!(hits.len(), 1, "{} is in {hits:?}", name(i));
        assert_eq!(*hits[0].1, i.to_string().as_bytes());
    }
    let below = |dir: &str| found.keys().filter(|p| p.starts_with(out.join(dir))).count();
    assert!(below("lost+found") > 100, "{}", ran.stderr);
    assert!(ran.stderr.contains("has no name any more; copied to here"), "{}", ran.stderr);
}

#[test]
fn an_older_root_serves_where_the_newest_is_gone() {
    let Some(lab) = Lab::kernel_made(&[], "rw,nodiscard", |top| {
        sh(top, "echo old > old; sync; sleep 1; echo new > new");
    }) else {
        return;
    };
    let superblock = fs::read(&lab.image).unwrap()[65536..65536 + 4096].to_vec();
    let root = &superblock[80..88];
    let mut killed = 0;
    for (at, block) in blocks(&lab.image, 1) {
        if block[48..56] == *root {
            overwrite(&lab.image, at, &[0; NODESIZE]);
            killed += 1;
        }
    }
    assert_eq!(killed, 2, "both copies of the root tree's root");
    run(&["ls", &lab.at("/")]).expect(4);
    let (ran, out) = salvage(&lab);
    let ran = ran.expect(1);
    assert!(ran.stderr.contains("k.img: corrupt"), "{}", ran.stderr);
    assert_eq!(fs::read(out.join("old")).unwrap(), b"old\n");
}

#[test]
fn salvage_is_for_copies_out() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |_| {}) else { return };
    let file = lab.host("f");
    fs::write(&file, "x").unwrap();
    let ran = run(&["cp", "--salvage", file.to_str().unwrap(), &lab.at("/")]).expect(2);
    assert!(ran.stderr.contains("--salvage"), "{}", ran.stderr);
}
