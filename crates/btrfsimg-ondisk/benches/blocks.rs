//! Checksums, and items into a leaf.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;

use btrfsimg_ondisk::{CsumType, Key, KeyType, Logical, TreeBlock};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const NODESIZE: usize = 16384;

fn checksums(c: &mut Criterion) {
    let data: Vec<u8> = (0..1_u32 << 20).map(|n| n.wrapping_mul(n).to_le_bytes()[1]).collect();
    let mut group = c.benchmark_group("checksum, 4 KiB sectors");
    group.throughput(Throughput::Bytes(data.len() as u64));
    let mut out = Vec::new();
    for csum in [CsumType::Crc32c, CsumType::XxHash64, CsumType::Sha256, CsumType::Blake2b] {
        group.bench_function(csum.name(), |b| {
            b.iter(|| {
                out.clear();
                csum.append_sectors(black_box(&data), 4096, &mut out);
            });
        });
    }
}

fn empty_leaf() -> TreeBlock {
    let header = TreeBlock::new_header(Logical(1 << 20), 0, 5, 7, [1; 16], [2; 16]);
    TreeBlock::empty(NODESIZE, &header)
}

/// A leaf filled one by one at its end, one by one at its front, and in a run.
fn leaves(c: &mut Criterion) {
    const COUNT: u64 = 100;
    let data = [7_u8; 100];
    let key = |n: u64| Key::new(n, KeyType::INODE_ITEM, 0);
    let mut group = c.benchmark_group("leaf insert");
    group.throughput(Throughput::Elements(COUNT));
    group.bench_function("at the end", |b| {
        b.iter_batched_ref(
            empty_leaf,
            |leaf| {
                (0..COUNT)
                    .for_each(|n| leaf.insert_items(leaf.nritems(), std::iter::once((key(n), &data[..]))))
            },
            BatchSize::SmallInput,
        );
    });
    group.bench_function("at the front", |b| {
        b.iter_batched_ref(
            empty_leaf,
            |leaf| (0..COUNT).rev().for_each(|n| leaf.insert_items(0, std::iter::once((key(n), &data[..])))),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("in a run", |b| {
        b.iter_batched_ref(
            empty_leaf,
            |leaf| leaf.insert_items(0, (0..COUNT).map(|n| (key(n), &data[..]))),
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, checksums, leaves);
criterion_main!(benches);
