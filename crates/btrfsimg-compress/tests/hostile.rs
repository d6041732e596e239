//! Cut and mutated streams: an error or some bytes, never a panic, a hang or wild memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::LazyLock;

use btrfsimg_compress::{Algorithm, Decoder, Encoded, Workspace, encode_extent, encode_inline};
use common::{executable, method, text};
use proptest::prelude::*;

struct Sample {
    algorithm: Algorithm,
    stored: Vec<u8>,
    ram_bytes: usize,
    inline: bool,
}

static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let mut samples = Vec::new();
    for name in ["zlib:6", "lzo", "zstd:3", "zstd:-5"] {
        let mut workspace = Workspace::new(method(name));
        let algorithm = workspace.method().algorithm();
        for input in [text(20_000, 3), executable(40_960, 4), vec![0; 131_072]] {
            let mut stored = Vec::new();
            let encoded = encode_extent(&mut workspace, &input, 4096, &mut stored);
            assert!(matches!(encoded, Encoded::Kept { .. }));
            samples.push(Sample {
                algorithm,
                stored,
                ram_bytes: input.len().next_multiple_of(4096),
                inline: false,
            });
        }
        let mut stored = Vec::new();
        encode_inline(&mut workspace, &text(1500, 5), 4096, 2048, &mut stored);
        samples.push(Sample { algorithm, stored, ram_bytes: 1500, inline: true });
    }
    samples
});

/// Decodes and judges; what comes back must fit, and a success must have set every byte.
fn survive(decoder: &mut Decoder, sample: &Sample, stored: &[u8], ram_bytes: usize) {
    let mut out = vec![0xaa; ram_bytes];
    let result = if sample.inline {
        let _ = decoder.inspect_inline(sample.algorithm, stored, 4096);
        decoder.decode_inline(sample.algorithm, stored, 4096, &mut out)
    } else {
        let _ = decoder.inspect_extent(sample.algorithm, stored, 4096);
        decoder.decode_extent(sample.algorithm, stored, 4096, &mut out)
    };
    if let Ok(decoded) = result {
        assert!(decoded <= ram_bytes);
        assert!(out[decoded..].iter().all(|&b| b == 0));
    }
}

/// The decoder still works after whatever it was fed.
fn still_decodes(decoder: &mut Decoder) {
    for sample in SAMPLES.iter().filter(|sample| !sample.inline) {
        let mut out = vec![0; sample.ram_bytes];
        decoder.decode_extent(sample.algorithm, &sample.stored, 4096, &mut out).unwrap();
    }
}

#[test]
fn every_cut() {
    let mut decoder = Decoder::new();
    for sample in SAMPLES.iter() {
        let step = (sample.stored.len() / 400).max(1);
        for len in (0..sample.stored.len()).step_by(step) {
            survive(&mut decoder, sample, &sample.stored[..len], sample.ram_bytes);
        }
    }
    still_decodes(&mut decoder);
}

#[test]
fn every_bit_of_the_first_bytes() {
    let mut decoder = Decoder::new();
    for sample in SAMPLES.iter() {
        for bit in 0..sample.stored.len().min(64) * 8 {
            let mut stored = sample.stored.clone();
            stored[bit / 8] ^= 1 << (bit % 8);
            survive(&mut decoder, sample, &stored, sample.ram_bytes);
        }
    }
    still_decodes(&mut decoder);
}

#[test]
fn a_ram_bytes_of_any_size() {
    let mut decoder = Decoder::new();
    for sample in SAMPLES.iter() {
        for ram_bytes in [0, 1, 300, 4095, 4096, 4097, 8192, 131_072, 1 << 20] {
            survive(&mut decoder, sample, &sample.stored, ram_bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_streams(
        which in 0..16usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ram_bytes in prop_oneof![Just(None), (0..140_000usize).prop_map(Some)],
    ) {
        let sample = &SAMPLES[which];
        let mut stored = sample.stored.clone();
        for (index, byte) in edits {
            let at = index.index(stored.len());
            stored[at] = byte;
        }
        survive(&mut Decoder::new(), sample, &stored, ram_bytes.unwrap_or(sample.ram_bytes));
    }

    #[test]
    fn noise(which in 0..16usize, keep in 0..16usize, noise in prop::collection::vec(any::<u8>(), 0..512)) {
        let sample = &SAMPLES[which];
        let stored = [&sample.stored[..keep], &noise].concat();
        survive(&mut Decoder::new(), sample, &stored, 8192);
    }
}
