//! Items into a tree, one by one and in batches, and the walk over them.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/common/writing.rs"]
mod writing;

use btrfsimg_fs::tree::walk_items;
use btrfsimg_fs::txn::{ItemBatch, Volume};
use btrfsimg_ondisk::{Key, KeyType, objectid};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use writing::{new_file_system, now, open};

const COUNT: u64 = 10_000;

/// Checksums of a sector each, far apart.
fn key(n: u64) -> Key {
    Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, n << 24)
}

fn volume() -> Volume {
    open(&new_file_system(16384))
}

fn fill(volume: &mut Volume, run: u64) {
    let mut tx = volume.begin(now()).unwrap();
    for start in (0..COUNT).step_by(usize::try_from(run).unwrap()) {
        let mut batch = ItemBatch::new();
        (start..start + run).for_each(|n| batch.push(key(n), &[7; 60]));
        tx.insert_batch(objectid::CSUM_TREE, &batch).unwrap();
    }
    tx.commit().unwrap();
}

fn inserts(c: &mut Criterion) {
    let mut group = c.benchmark_group("tree, with the commit");
    group.throughput(Throughput::Elements(COUNT));
    for (name, run) in [("insert one by one", 1), ("insert in batches of 1,000", 1000)] {
        group.bench_function(name, |b| {
            b.iter_batched_ref(volume, |volume| fill(volume, run), BatchSize::LargeInput);
        });
    }
}

fn walk(c: &mut Criterion) {
    let mut volume = volume();
    fill(&mut volume, 1000);
    let mut group = c.benchmark_group("tree");
    group.throughput(Throughput::Elements(COUNT));
    group.bench_function("walk", |b| {
        b.iter(|| {
            let mut bytes = 0;
            walk_items(volume.store(), objectid::CSUM_TREE, &Key::MIN, &Key::MAX, |item| {
                bytes += item.data.len();
                Ok(true)
            })
            .unwrap();
            bytes
        });
    });
}

criterion_group!(benches, inserts, walk);
criterion_main!(benches);
