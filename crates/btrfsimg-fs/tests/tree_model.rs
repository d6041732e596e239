//! One B-tree against a `BTreeMap`: batches, replacements and removals of ranges, so that leaves split and merge
//! and the tree becomes higher and lower; and a transaction that is given up.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/writing.rs"]
mod writing;

use std::collections::BTreeMap;
use std::ops::Bound;

use btrfsimg_fs::tree::{Blocks, walk_items};
use btrfsimg_fs::txn::{ItemBatch, Transaction};
use btrfsimg_ondisk::{Key, KeyType, objectid};
use btrfsimg_testkit::rng::Rng;
use writing::{findings, new_file_system, now, open};

/// The tree of checksums takes items of any length that is a multiple of 4, one checksum for each sector. They are
/// so far apart that they never overlap.
const TREE: u64 = objectid::CSUM_TREE;
const SPACING: u64 = 16 << 20;
/// Checksums without data are what verify has to say of such an image.
const ALLOWED: &[&str] = &["CS-", "XR-"];

type Model = BTreeMap<u64, Vec<u8>>;

fn key(n: u64) -> Key {
    Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, n * SPACING)
}

fn data(rng: &mut Rng) -> Vec<u8> {
    // Mostly small, now and then nearly a leaf of 4 KiB.
    let max = [40, 200, 3900][rng.index(10).saturating_sub(7)];
    let len = 4 + rng.index(max / 4) * 4;
    rng.bytes(len)
}

fn contents(blocks: &impl Blocks) -> Model {
    let mut found = Model::new();
    walk_items(blocks, TREE, &Key::MIN, &Key::MAX, |item| {
        assert_eq!(item.key, key(item.key.offset / SPACING));
        assert!(found.insert(item.key.offset / SPACING, item.data.to_vec()).is_none());
        Ok(true)
    })
    .unwrap();
    found
}

/// Changes tree and model alike. With a small `grow` there is less insertion than removal.
fn change(tx: &mut Transaction<'_>, model: &mut Model, rng: &mut Rng, keys: u64, grow: usize) {
    match rng.index(100) {
        n if n < grow => {
            let (first, count) = (rng.below(keys), 1 + rng.index(120));
            let mut batch = ItemBatch::new();
            let step = 1 + rng.below(3);
            for n in (0..count as u64).map(|i| first + i * step) {
                if let std::collections::btree_map::Entry::Vacant(place) = model.entry(n) {
                    batch.push(key(n), place.insert(data(rng)));
                }
            }
            tx.insert_batch(TREE, &batch).unwrap();
        }
        n if n < 80 => {
            let from = rng.below(keys);
            let Some((&n, old)) = model.range_mut(from..).next() else { return };
            *old = data(rng);
            tx.replace(TREE, key(n), old).unwrap();
        }
        n if n < 85 => {
            let from = rng.below(keys);
            let Some((&n, _)) = model.range(from..).next() else { return };
            model.remove(&n);
            tx.remove(TREE, key(n)).unwrap();
        }
        _ => {
            let from = rng.below(keys);
            let to = from + rng.below(80);
            let doomed: Vec<u64> =
                model.range((Bound::Included(from), Bound::Included(to))).map(|(n, _)| *n).collect();
            assert_eq!(tx.remove_range(TREE, key(from), key(to)).unwrap(), !doomed.is_empty());
            doomed.iter().for_each(|n| drop(model.remove(n)));
        }
    }
}

#[test]
fn a_tree_is_what_its_model_is() {
    let mut heights = Vec::new();
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let device = new_file_system(4096);
        let mut volume = open(&device);
        let mut model = Model::new();
        let keys = [300, 3000, 30_000][usize::try_from(seed % 3).unwrap()];
        for round in 0..12 {
            let mut tx = volume.begin(now()).unwrap();
            // Grows for six rounds, then shrinks.
            let grow = if round < 6 { 50 } else { 4 };
            for _ in 0..60 {
                change(&mut tx, &mut model, &mut rng, keys, grow);
            }
            if round == 11 {
                let any = tx.remove_range(TREE, Key::MIN, Key::MAX).unwrap();
                assert_eq!(any, !model.is_empty());
                model.clear();
            }
            assert!(contents(&tx) == model, "seed {seed} round {round}, before the commit");
            tx.commit().unwrap();
            heights.push(volume.store().root(TREE).unwrap().unwrap_or_else(|| height(&device)).level);
            if round % 3 == 2 {
                volume = open(&device);
            }
            assert!(contents(volume.store()) == model, "seed {seed} round {round}");
            assert_eq!(findings(&device, ALLOWED), [""; 0], "seed {seed} round {round}");
        }
    }
    // Else the test has not tested what it says.
    assert!(heights.iter().max() >= Some(&2), "{heights:?}");
    assert_eq!(heights.iter().min(), Some(&0), "{heights:?}");
}

fn height(device: &std::sync::Arc<btrfsimg_fs::device::MemDevice>) -> btrfsimg_fs::tree::TreeRoot {
    btrfsimg_fs::tree::required_root(open(device).store(), TREE).unwrap()
}

/// Without a commit the image is as it was: the same superblocks, and all that they reach.
#[test]
fn a_transaction_that_is_dropped_has_changed_nothing() {
    let mut rng = Rng::new(11);
    let device = new_file_system(4096);
    let mut model = Model::new();
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    for _ in 0..100 {
        change(&mut tx, &mut model, &mut rng, 5000, 60);
    }
    tx.commit().unwrap();
    let superblocks = |bytes: &[u8]| [64 << 10, 64 << 20].map(|at| bytes[at..at + 4096].to_vec());
    let before = superblocks(&device.contents());
    for given_up in 0..5 {
        let mut tx = volume.begin(now()).unwrap();
        let mut other = model.clone();
        for _ in 0..200 {
            change(&mut tx, &mut other, &mut rng, 5000, 60);
        }
        assert!(other != model);
        drop(tx);
        assert!(superblocks(&device.contents()) == before, "a superblock was written");
        for volume in [&volume, &open(&device)] {
            assert!(contents(volume.store()) == model, "{given_up}");
        }
        assert_eq!(findings(&device, ALLOWED), [""; 0]);
    }
    // And it still takes changes.
    let mut tx = volume.begin(now()).unwrap();
    change(&mut tx, &mut model, &mut rng, 5000, 100);
    tx.commit().unwrap();
    assert!(contents(open(&device).store()) == model);
}

/// One item left in each node: the nodes join, and the tree becomes lower.
#[test]
fn a_tree_of_which_little_is_left_is_low() {
    const COUNT: u64 = 60_000;
    const LEFT: u64 = 3000;
    let device = new_file_system(4096);
    let mut volume = open(&device);
    let mut tx = volume.begin(now()).unwrap();
    let (mut batch, mut model) = (ItemBatch::new(), Model::new());
    (0..COUNT).for_each(|n| batch.push(key(n), &[7; 4]));
    tx.insert_batch(TREE, &batch).unwrap();
    tx.commit().unwrap();
    assert_eq!(height(&device).level, 2);
    let mut tx = volume.begin(now()).unwrap();
    for n in (0..COUNT).step_by(usize::try_from(LEFT).unwrap()) {
        assert!(tx.remove_range(TREE, key(n + 1), key(n + LEFT - 1)).unwrap());
        model.insert(n, vec![7; 4]);
    }
    tx.commit().unwrap();
    assert!(contents(open(&device).store()) == model);
    assert_eq!(findings(&device, ALLOWED), [""; 0]);
    assert!(height(&device).level < 2, "{:?}", height(&device));
}
