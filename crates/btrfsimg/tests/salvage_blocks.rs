//! `cp --salvage` of images whose tree blocks are damaged: all that is in them still comes out, and what does not is named.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/salvaged.rs"]
mod salvaged;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use btrfsimg_testkit::rng::Rng;
use common::{Lab, item_types, overwrite, run, sh};
use salvaged::{NODESIZE, blocks, files, salvage};

/// A tree of two levels, of files inline and not, one of them in a subvolume.
fn wide() -> Option<Lab> {
    Lab::kernel_made(&[], "rw,nodiscard", |top| {
        sh(top, "btrfs subvolume create s > /dev/null");
        for i in 0..300_usize {
            let dir = top.join(["d", "d/e", "s"][i % 3]);
            fs::create_dir_all(&dir).unwrap();
            let text = format!("{i} ").repeat(if i.is_multiple_of(10) { 2000 } else { i });
            fs::write(dir.join(format!("file-{i:03}-{}", "n".repeat(60))), text).unwrap();
        }
    })
}

/// The blocks that a tree has now, each with where its copies are.
fn tree_blocks(lab: &Lab, tree: u64) -> BTreeMap<u64, (Vec<u64>, Vec<u8>)> {
    let image = lab.image.to_str().unwrap();
    let shown = run(&["inspect", "tree", "--json", "-t", &tree.to_string(), image]).expect(0);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let now: Vec<u64> =
        shown["blocks"].as_array().unwrap().iter().map(|b| b["logical"].as_u64().unwrap()).collect();
    let mut found: BTreeMap<u64, (Vec<u64>, Vec<u8>)> = BTreeMap::new();
    for (at, block) in blocks(&lab.image, tree) {
        let logical = u64::from_le_bytes(block[48..56].try_into().unwrap());
        if now.contains(&logical) {
            found.entry(logical).or_insert_with(|| (Vec::new(), block)).0.push(at);
        }
    }
    assert_eq!(found.len(), now.len());
    found
}

/// Salvages the image as it is after `damage`, and makes it whole again.
fn salvage_damaged(
    lab: &Lab,
    copies: &[u64],
    damage: (usize, &[u8]),
) -> (common::Ran, BTreeMap<PathBuf, Vec<u8>>) {
    let sound = fs::File::open(&lab.image).unwrap();
    let mut block = vec![0; NODESIZE];
    sound.read_exact_at(&mut block, copies[0]).unwrap();
    for at in copies {
        overwrite(&lab.image, at + damage.0 as u64, damage.1);
    }
    let (ran, out) = salvage(lab);
    let found = files(&out);
    fs::remove_dir_all(&out).unwrap();
    copies.iter().for_each(|at| overwrite(&lab.image, *at, &block));
    (ran, found)
}

/// Each file came out whole, or it is named.
fn assert_named(
    whole: &BTreeMap<PathBuf, Vec<u8>>,
    found: &BTreeMap<PathBuf, Vec<u8>>,
    stderr: &str,
    what: &str,
) {
    // With its directory it may have come to another place, which is named.
    let whole: BTreeMap<_, _> = whole.iter().map(|(path, content)| (path.file_name(), content)).collect();
    for (path, content) in
        found.iter().filter(|(path, content)| whole.get(&path.file_name()) != Some(content))
    {
        // A name that is damaged is shown in another way.
        let Some(name) = path.file_name().unwrap().to_str().filter(|name| name.is_ascii()) else { continue };
        assert!(stderr.contains(name), "{what}: {name} has {} bytes: {stderr}", content.len());
        let is_said =
            || stderr.lines().any(|l| l.contains(name) && l.contains("nothing is found of what was in it"));
        assert!(!content.is_empty() || is_said(), "{what}: {name} is empty: {stderr}");
    }
}

/// Of a block whose checksum is wrong on every copy all is read that is in it, as a verifier reads it.
#[test]
fn a_wrong_checksum_costs_no_file() {
    let Some(lab) = wide() else { return };
    let (ran, out) = salvage(&lab);
    ran.expect(0);
    let whole = files(&out);
    assert_eq!(whole.len(), 300);
    fs::remove_dir_all(&out).unwrap();
    let (mut nodes, mut leaves) = (0, 0);
    for tree in [1, 3, 5, 7, 256] {
        for (logical, (copies, block)) in tree_blocks(&lab, tree) {
            let (ran, found) = salvage_damaged(&lab, &copies, (0, &[0x55; 4]));
            let ran = ran.expect(1);
            assert!(found == whole, "block {logical} of tree {tree}: {} files: {}", found.len(), ran.stderr);
            assert!(ran.stderr.contains("checksum mismatch"), "{}", ran.stderr);
            nodes += usize::from(block[100] > 0);
            leaves += usize::from(block[100] == 0);
            // What is in such a leaf may be anything: its files are named.
            if block[100] == 0 && tree == 5 && item_types(&block).contains(&108) {
                assert!(ran.stderr.contains("copied as far as it is known"), "{}", ran.stderr);
            }
        }
    }
    assert!(nodes >= 1 && leaves >= 8, "{nodes} nodes, {leaves} leaves");
}

/// One pointer costs what it leads to, a key nothing.
#[test]
fn a_damaged_node_leads_to_all_but_what_is_lost() {
    let Some(lab) = wide() else { return };
    let (_, out) = salvage(&lab);
    let whole = files(&out);
    fs::remove_dir_all(&out).unwrap();
    let trees = tree_blocks(&lab, 5);
    let (_, (copies, node)) = trees.iter().find(|(_, (_, block))| block[100] == 1).unwrap();
    let nritems = u32::from_le_bytes(node[96..100].try_into().unwrap()) as usize;
    assert!(nritems > 4);
    for slot in 0..nritems {
        let at = 101 + 33 * slot;
        let (ran, found) = salvage_damaged(&lab, copies, (at, &[0xee; 17]));
        let ran = ran.expect(1);
        assert!(found == whole, "key {slot}: {} files: {}", found.len(), ran.stderr);
        let (ran, found) = salvage_damaged(&lab, copies, (at + 17, &[0xee; 8]));
        let ran = ran.expect(1);
        // The other leaves have at least so many files as this.
        assert!(found.len() > 100, "pointer {slot}: {} files: {}", found.len(), ran.stderr);
        assert_named(&whole, &found, &ran.stderr, &format!("pointer {slot}"));
    }
}

/// Bytes of anything over a part of a block: what is there is whole, or it is named.
#[test]
fn damage_anywhere_in_a_block_is_named() {
    let Some(lab) = wide() else { return };
    let (_, out) = salvage(&lab);
    let whole = files(&out);
    fs::remove_dir_all(&out).unwrap();
    let mut rng = Rng::new(8);
    for (logical, (copies, _)) in tree_blocks(&lab, 5).into_iter().chain(tree_blocks(&lab, 256)) {
        for (from, len) in [(0, NODESIZE), (101 + 25 * 20, 25), (8000, 4096)] {
            let (ran, found) = salvage_damaged(&lab, &copies, (from, &rng.bytes(len)));
            let ran = ran.expect(1);
            assert_named(&whole, &found, &ran.stderr, &format!("block {logical} from {from}"));
        }
    }
}
