//! What `cp --salvage` makes of an image whose blocks are damaged.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Lab, Ran, run};

pub const NODESIZE: usize = 16384;

/// Blocks of the image file that belong to this file system, with the tree that their header names, written now or
/// once: offset and bytes.
pub fn blocks(image: &Path, tree: u64) -> Vec<(u64, Vec<u8>)> {
    let bytes = fs::read(image).unwrap();
    let fsid = &bytes[65536 + 32..65536 + 48];
    (0..bytes.len() - NODESIZE)
        .step_by(4096)
        .filter(|at| bytes[at + 32..at + 48] == *fsid && bytes[at + 88..at + 96] == tree.to_le_bytes())
        .map(|at| (at as u64, bytes[at..at + NODESIZE].to_vec()))
        .collect()
}

pub fn salvage(lab: &Lab) -> (Ran, PathBuf) {
    let out = lab.host("out");
    fs::create_dir(&out).unwrap();
    let ran = run(&["cp", "-r", "--salvage", &lab.at("/"), out.to_str().unwrap()]);
    (ran, out)
}

/// All regular files below `dir`: path and contents.
pub fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
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
