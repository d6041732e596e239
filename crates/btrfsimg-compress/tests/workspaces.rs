//! Workspaces: what they were used for before never shows, and in the steady state none is allocated.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use btrfsimg_compress::{Encoded, Method, PoolStats, UNUSED_FOR, Workspace, WorkspacePool, encode_extent};
use common::{Rng, all_methods, method, random, text, textures};

fn encode(workspace: &mut Workspace, input: &[u8]) -> (Encoded, Vec<u8>) {
    let mut stored = Vec::new();
    let encoded = encode_extent(workspace, input, 4096, &mut stored);
    (encoded, stored)
}

#[test]
fn a_used_workspace_gives_the_bytes_of_a_fresh_one() {
    let inputs: Vec<_> = [131_072, 20_000, 60_000].into_iter().flat_map(textures).collect();
    for method in all_methods() {
        let mut used = Workspace::new(method);
        for (what, input) in inputs.iter().chain(inputs.iter().rev()) {
            let fresh = encode(&mut Workspace::new(method), input);
            assert!(encode(&mut used, input) == fresh, "{method} {what} {}", input.len());
        }
    }
}

#[test]
fn a_larger_workspace_gives_the_bytes_of_one_that_fits() {
    let pool = WorkspacePool::new(1);
    drop(pool.get(method("zstd:15")));
    for (what, input) in textures(131_072) {
        for method in ["zstd:15", "zstd:1", "zstd:-15", "zstd:4", "zstd:5", "zstd:11"].map(method) {
            let lent = encode(&mut pool.get(method), &input);
            assert!(lent == encode(&mut Workspace::new(method), &input), "{method} {what}");
        }
    }
    assert_eq!(pool.stats().allocated, 1);
}

#[test]
fn ten_thousand_chunks_on_four_threads() {
    let inputs: Vec<_> = textures(9000).into_iter().map(|(_, input)| input).collect();
    for method in ["zlib:3", "zstd:3", "lzo"].map(method) {
        let pool = WorkspacePool::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut stored = Vec::new();
                    for i in 0..2500 {
                        encode_extent(&mut pool.get(method), &inputs[i % inputs.len()], 4096, &mut stored);
                    }
                });
            }
        });
        let stats = pool.stats();
        assert!((1..=4).contains(&stats.allocated), "{method}: {stats:?}");
        assert_eq!(stats.allocated + stats.reused, 10_000, "{method}");
        assert_eq!(u64::try_from(stats.idle).unwrap(), stats.allocated, "{method}");
        assert!(stats.bytes <= 4 * 2 * 1024 * 1024, "{method}: {stats:?}");
    }
}

#[test]
fn the_smallest_that_is_large_enough() {
    let pool = WorkspacePool::new(4);
    let held = ["zstd:15", "zstd:5", "zstd:-1"].map(|name| pool.get(method(name)));
    let [large, medium, small] = held.each_ref().map(|workspace| workspace.bytes());
    assert!(small < medium && medium < large);
    drop(held);
    for (name, expect) in [
        ("zstd:-15", small),
        ("zstd:-1", small),
        ("zstd:1", medium),
        ("zstd:5", medium),
        ("zstd:10", medium),
        ("zstd:4", large),
        ("zstd:11", large),
    ] {
        assert_eq!(pool.get(method(name)).bytes(), expect, "{name}");
    }
    assert_eq!(pool.stats().allocated, 3);
    let first = pool.get(method("zstd:3"));
    let second = pool.get(method("zstd:3"));
    assert_eq!((first.bytes(), second.bytes()), (medium, large));
    assert_eq!(pool.stats().allocated, 3);
    let _third = pool.get(method("zstd:3"));
    assert_eq!(pool.stats().allocated, 4);
}

#[test]
fn idle_ones_are_bounded_and_the_longest_unused_goes() {
    let pool = WorkspacePool::new(1);
    let one = pool.get(method("lzo"));
    let two = pool.get(method("zlib:1"));
    let three = pool.get(method("zlib:9"));
    assert_eq!(pool.stats().bytes, one.bytes() + two.bytes() + three.bytes());
    let kept = two.bytes() + three.bytes();
    drop(one);
    drop(two);
    drop(three);
    let stats = pool.stats();
    assert_eq!((stats.idle, stats.bytes, stats.allocated), (2, kept, 3));
    assert!(stats.peak_bytes > kept);
    drop(pool.get(method("zlib:1")));
    drop(pool.get(method("zlib:9")));
    assert_eq!(pool.stats().allocated, 3);
    drop(pool.get(method("lzo")));
    assert_eq!((pool.stats().allocated, pool.stats().idle), (4, 2));
}

#[test]
fn what_nothing_asks_for_any_more_is_given_up() {
    let pool = WorkspacePool::new(4);
    drop(pool.get(method("zstd:15")));
    let [one, two] = ["lzo", "lzo"].map(|name| pool.get(method(name)));
    let bytes = one.bytes() + two.bytes();
    drop((one, two));
    let mut largest_gone = 0;
    for n in 0..3 * UNUSED_FOR {
        drop(pool.get(method("lzo")));
        if pool.stats().idle == 2 && largest_gone == 0 {
            largest_gone = n;
        }
    }
    // The large one after that many hand-outs; of the two that take turns none.
    assert!((UNUSED_FOR - 4..=UNUSED_FOR).contains(&largest_gone), "{largest_gone}");
    let PoolStats { allocated, idle, bytes: held, .. } = pool.stats();
    assert_eq!((allocated, idle, held), (3, 2, bytes));
    drop(pool.get(method("zstd:15")));
    assert_eq!(pool.stats().allocated, 4);
}

#[test]
fn small_files_and_lower_levels_cost_no_workspace() {
    // zstd gives up tables that are three times too large, once in 128 frames, and takes them again for a chunk.
    for (made_for, used_for) in [("zstd:15", "zstd:1"), ("zstd:3", "zstd:3"), ("zstd:15", "zstd:15")] {
        let pool = WorkspacePool::without_probe(1);
        drop(pool.get(method(made_for)));
        let [small, large] = [200, 131_072].map(|len| text(len, 1));
        for turn in 0..1000 {
            let mut workspace = pool.get(method(used_for));
            encode(&mut workspace, if turn % 300 == 299 { &large } else { &small });
        }
        let stats = pool.stats();
        assert_eq!(stats.allocated, 1, "{made_for} for {used_for}");
        assert_eq!(stats.bytes, pool.get(method(made_for)).bytes(), "the books are right");
    }
}

/// Words of 4 random bytes out of a table: halves under zlib, no match of 6 bytes, no skew in its bytes.
fn word_table(words: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    let table = rng.bytes(4 * words);
    let mut out = Vec::new();
    while out.len() < 131_072 {
        let word = rng.below(words);
        out.extend_from_slice(&table[4 * word..4 * word + 4]);
    }
    out
}

#[test]
fn the_probe_changes_nothing_that_compresses() {
    let mut inputs: Vec<Vec<u8>> = textures(131_072).into_iter().map(|(_, input)| input).collect();
    inputs.extend([64, 300, 2000, 8000].map(|words| word_table(words, 3)));
    // Noise with a little text in it, from nearly nothing up.
    for k in [1, 2, 4, 8, 12, 16, 24] {
        let mut mixed = random(131_072, k);
        let len = 1024 * usize::try_from(k).unwrap();
        mixed[40_000..40_000 + len].copy_from_slice(&text(len, k));
        inputs.push(mixed);
    }
    for method in ["zlib:1", "zlib:3", "zlib:9", "zstd:11", "zstd:15"].map(method) {
        let (mut plain, mut probing) = (Workspace::new(method), Workspace::with_probe(method));
        let mut kept = 0;
        for (i, input) in inputs.iter().enumerate() {
            let expect = encode(&mut plain, input);
            kept += usize::from(expect.0 != Encoded::Raw);
            assert!(encode(&mut probing, input) == expect, "{method}: input {i}");
        }
        assert!(kept > 8, "{method}: {kept} of {}", inputs.len());
        assert!(probing.bytes() > plain.bytes());
    }
}

#[test]
fn levels_differ_where_they_should() {
    let input = text(131_072, 8);
    let len = |method: Method| {
        // Room for a difference below a sector: the exact stream's length.
        let mut decoder = btrfsimg_compress::Decoder::new();
        let (_, stored) = encode(&mut Workspace::new(method), &input);
        decoder.inspect_extent(method.algorithm(), &stored, 4096).unwrap().stream_len
    };
    for (low, high) in
        [("zlib:1", "zlib:9"), ("zstd:-15", "zstd:-1"), ("zstd:-1", "zstd:3"), ("zstd:3", "zstd:15")]
    {
        assert!(len(method(low)) > len(method(high)), "{low} {high}");
    }
}
