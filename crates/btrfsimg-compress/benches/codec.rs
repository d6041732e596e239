//! The stages of compression: codecs both ways, the heuristic, and the pool.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;

use btrfsimg_compress::{
    CompressionSpec, Decoder, MAX_CHUNK, Workspace, WorkspacePool, encode_extent, heuristic,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// A chunk like source text: words, numbers, indentation.
fn chunk() -> Vec<u8> {
    let line = |n: u32| {
        format!("\tif (extent->len > {}) {{\n\t\treturn -EUCLEAN; /* {n} */\n", n.wrapping_mul(n) % 9973)
    };
    (0..).flat_map(|n| line(n).into_bytes()).take(MAX_CHUNK).collect()
}

fn noise() -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..MAX_CHUNK).map(|_| next()).collect()
}

fn codecs(c: &mut Criterion) {
    let input = chunk();
    for name in ["lzo", "zlib:1", "zlib:3", "zlib:9", "zstd:-5", "zstd:1", "zstd:3", "zstd:9", "zstd:15"] {
        let method = name.parse::<CompressionSpec>().unwrap().method().unwrap();
        let mut group = c.benchmark_group("codec");
        group.throughput(Throughput::Bytes(input.len() as u64));
        let (mut workspace, mut stored) = (Workspace::new(method), Vec::new());
        group.bench_function(format!("encode {name}"), |b| {
            b.iter(|| encode_extent(&mut workspace, black_box(&input), 4096, &mut stored));
        });
        let (mut decoder, mut out) = (Decoder::new(), vec![0; input.len()]);
        group.bench_function(format!("decode {name}"), |b| {
            b.iter(|| decoder.decode_extent(method.algorithm(), black_box(&stored), 4096, &mut out).unwrap());
        });
    }
}

fn heuristics(c: &mut Criterion) {
    let mut group = c.benchmark_group("heuristic");
    group.throughput(Throughput::Bytes(MAX_CHUNK as u64));
    for (name, input) in [("text", chunk()), ("noise", noise())] {
        group.bench_function(name, |b| b.iter(|| heuristic::is_compressible(black_box(&input))));
    }
}

fn pool(c: &mut Criterion) {
    let pool = WorkspacePool::new(4);
    let method = "zstd:3".parse::<CompressionSpec>().unwrap().method().unwrap();
    c.bench_function("pool/take and give back", |b| b.iter(|| drop(black_box(pool.get(method)))));
}

criterion_group!(benches, codecs, heuristics, pool);
criterion_main!(benches);
