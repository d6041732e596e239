//! What is encoded decodes to the same bytes: every algorithm, level, texture and size that matters.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use btrfsimg_compress::{
    Decoder, Encoded, EncodedInline, Inspection, Method, Workspace, encode_extent, encode_inline,
};
use common::{all_methods, some_methods, textures};

/// Sizes around every limit: empty, a sector, two, the LZO segment, the chunk.
const SIZES: [usize; 19] = [
    0, 1, 2, 15, 200, 255, 256, 3000, 4095, 4096, 4097, 8191, 8192, 8193, 12289, 65535, 131_071, 131_072,
    37856,
];

struct Bench {
    workspace: Workspace,
    decoder: Decoder,
    stored: Vec<u8>,
}

impl Bench {
    fn new(method: Method) -> Bench {
        Bench { workspace: Workspace::new(method), decoder: Decoder::new(), stored: Vec::new() }
    }

    /// Encodes, checks the rules that hold for any kept extent, decodes and compares.
    fn extent(&mut self, what: &str, input: &[u8], sectorsize: u32) -> Encoded {
        let method = self.workspace.method();
        let sector = usize::try_from(sectorsize).unwrap();
        let encoded = encode_extent(&mut self.workspace, input, sectorsize, &mut self.stored);
        let Encoded::Kept { algorithm, stored_len } = encoded else {
            assert!(self.stored.is_empty());
            return encoded;
        };
        let what = format!("{method} {what} {}", input.len());
        assert_eq!((algorithm, stored_len), (method.algorithm(), self.stored.len()), "{what}");
        assert_eq!(stored_len % sector, 0, "{what}");
        let ram_bytes = input.len().next_multiple_of(sector);
        assert!(stored_len + sector <= ram_bytes, "{what} saves a sector");

        let mut out = vec![0xaa; ram_bytes];
        let decoded = self.decoder.decode_extent(algorithm, &self.stored, sectorsize, &mut out);
        assert_eq!(decoded, Ok(input.len()), "{what}");
        assert!(out[..input.len()] == *input, "{what} reads back");
        assert!(out[input.len()..].iter().all(|&b| b == 0), "{what} rest is zero");

        let Inspection { decoded_len, stream_len, findings } =
            self.decoder.inspect_extent(algorithm, &self.stored, sectorsize).unwrap();
        assert_eq!((decoded_len, findings), (input.len(), vec![]), "{what}");
        assert!(stored_len - stream_len < sector, "{what}");
        encoded
    }

    fn inline(&mut self, what: &str, input: &[u8], max_inline: usize) -> EncodedInline {
        let method = self.workspace.method();
        let encoded = encode_inline(&mut self.workspace, input, 4096, max_inline, &mut self.stored);
        let what = format!("{method} {what} {}", input.len());
        match encoded {
            EncodedInline::Compressed { algorithm, stored_len } => {
                assert_eq!(stored_len, self.stored.len(), "{what}");
                assert!(stored_len <= max_inline && stored_len < input.len(), "{what}");
                let mut out = vec![0xaa; input.len()];
                let decoded = self.decoder.decode_inline(algorithm, &self.stored, 4096, &mut out);
                assert_eq!(decoded, Ok(input.len()), "{what}");
                assert!(out == *input, "{what} reads back");
                let found = self.decoder.inspect_inline(algorithm, &self.stored, 4096).unwrap();
                assert_eq!((found.decoded_len, found.findings), (input.len(), vec![]), "{what}");
            }
            EncodedInline::Raw => assert!(input.len() < 4096 && input.len() <= max_inline, "{what}"),
            EncodedInline::NotInline => {}
        }
        encoded
    }
}

#[test]
fn every_level_over_full_chunks() {
    let inputs: Vec<_> = [131_072, 37_856].into_iter().flat_map(textures).collect();
    for method in all_methods() {
        let mut bench = Bench::new(method);
        for (what, input) in &inputs {
            let encoded = bench.extent(what, input, 4096);
            assert_eq!(encoded == Encoded::Raw, *what == "random", "{method} {what}");
        }
    }
}

#[test]
fn every_size_around_a_limit() {
    for method in some_methods() {
        let mut bench = Bench::new(method);
        for (what, input) in SIZES.into_iter().flat_map(textures) {
            let encoded = bench.extent(what, &input, 4096);
            if input.len() <= 4096 {
                assert_eq!(encoded, Encoded::Raw, "{method} {what}: one sector cannot save a sector");
            }
            for max_inline in [2048, 4096] {
                bench.inline(what, &input, max_inline);
            }
        }
    }
}

#[test]
fn every_small_size() {
    for method in some_methods() {
        let mut bench = Bench::new(method);
        let inputs = textures(4097);
        for len in 0..=4097 {
            let (what, input) = &inputs[len % inputs.len()];
            bench.inline(what, &input[..len], 2048);
            bench.extent(what, &input[..len], 512);
        }
    }
}

#[test]
fn other_sectorsizes() {
    for method in some_methods() {
        let mut bench = Bench::new(method);
        for (what, input) in [65_537, 131_072].into_iter().flat_map(textures) {
            for sectorsize in [512, 8192, 16384, 65536] {
                bench.extent(what, &input, sectorsize);
            }
        }
    }
}
