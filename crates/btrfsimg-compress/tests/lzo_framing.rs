//! The LZO framing against a reader written from `format/04 §4.4` alone, at the residues where pads appear.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeSet;

use btrfsimg_compress::{Algorithm, DecodeError, Decoder, Encoded, Finding, Workspace, encode_extent};
use common::{Rng, method};

const SECTOR: usize = 4096;

fn length_at(stored: &[u8], at: usize) -> usize {
    usize::try_from(u32::from_le_bytes(stored[at..at + 4].try_into().unwrap())).unwrap()
}

/// Ends of all segments, and the bytes; panics where a rule of the format does not hold.
fn read_by_the_book(stored: &[u8], input_len: usize) -> (Vec<usize>, Vec<u8>) {
    let total = length_at(stored, 0);
    assert!(total <= stored.len() && stored.len() - total < SECTOR);
    assert!(stored[total..].iter().all(|&b| b == 0), "padding to the sector is zero");
    let (mut at, mut ends, mut bytes) = (4, Vec::new(), Vec::new());
    while at < total {
        assert_eq!(at / SECTOR, (at + 3) / SECTOR, "a length crosses a sector at {at}");
        let len = length_at(stored, at);
        let mut sector = [0; SECTOR];
        let given = lzokay::decompress::decompress(&stored[at + 4..at + 4 + len], &mut sector).unwrap();
        assert_eq!(given, SECTOR.min(input_len - bytes.len()));
        bytes.extend_from_slice(&sector[..given]);
        at += 4 + len;
        ends.push(at);
        while at % SECTOR > SECTOR - 4 {
            assert_eq!(stored[at], 0, "pad");
            at += 1;
        }
    }
    assert_eq!(at, total, "the total counts the last pad");
    assert_eq!(bytes.len(), input_len);
    (ends, bytes)
}

/// A sector of short bursts of noise between gaps of zeros of up to `gap` bytes: its segment may have any length
/// from hardly any to more than a sector.
fn sector(rng: &mut Rng, gap: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < SECTOR {
        let burst = rng.below(400);
        out.extend_from_slice(&rng.bytes(burst));
        out.resize(out.len() + rng.below(gap), 0);
    }
    out.truncate(SECTOR);
    out
}

/// Two sectors that together take about one: their end is near a boundary.
fn ends_near_a_boundary(rng: &mut Rng) -> Vec<u8> {
    [sector(rng, 400), sector(rng, 400)].concat()
}

fn encode(workspace: &mut Workspace, input: &[u8]) -> Option<Vec<u8>> {
    let mut stored = Vec::new();
    let encoded = encode_extent(workspace, input, 4096, &mut stored);
    matches!(encoded, Encoded::Kept { .. }).then_some(stored)
}

#[test]
fn every_residue_between_segments_and_at_the_end() {
    let mut workspace = Workspace::new(method("lzo"));
    let mut decoder = Decoder::new();
    let (mut middle, mut last) = (BTreeSet::new(), BTreeSet::new());
    let mut rng = Rng(4096);
    for turn in 0..12_000 {
        let input = match turn % 2 {
            0 => [sector(&mut rng, 40), vec![0; 2 * SECTOR]].concat(),
            _ => ends_near_a_boundary(&mut rng),
        };
        let Some(stored) = encode(&mut workspace, &input) else { continue };
        let (ends, bytes) = read_by_the_book(&stored, input.len());
        assert!(bytes == input);
        middle.extend(ends[..ends.len() - 1].iter().map(|end| end % SECTOR));
        last.extend(ends.last().map(|end| end % SECTOR));
        let mut out = vec![0xaa; input.len()];
        assert_eq!(decoder.decode_extent(Algorithm::Lzo, &stored, 4096, &mut out), Ok(input.len()));
        assert!(out == input);
        let found = decoder.inspect_extent(Algorithm::Lzo, &stored, 4096).unwrap();
        assert_eq!(found.findings, vec![]);
    }
    for residue in [4091, 4092, 4093, 4094, 4095, 0, 1] {
        assert!(middle.contains(&residue), "{residue} between segments");
        assert!(residue == 1 || last.contains(&residue), "{residue} at the end");
    }
}

#[test]
fn a_total_without_the_last_pad_is_accepted_and_reported() {
    // format/04 §4.4: kernels read a total of 65534 too.
    let mut workspace = Workspace::new(method("lzo"));
    let mut seen = BTreeSet::new();
    let mut rng = Rng(65_534);
    for _ in 0..6000 {
        let input = ends_near_a_boundary(&mut rng);
        let Some(mut stored) = encode(&mut workspace, &input) else { continue };
        let end = *read_by_the_book(&stored, input.len()).0.last().unwrap();
        let pad = length_at(&stored, 0) - end;
        if pad == 0 {
            continue;
        }
        seen.insert(pad);
        stored[..4].copy_from_slice(&u32::try_from(end).unwrap().to_le_bytes());
        let mut out = vec![0; input.len()];
        let mut decoder = Decoder::new();
        assert_eq!(decoder.decode_extent(Algorithm::Lzo, &stored, 4096, &mut out), Ok(input.len()));
        assert!(out == input);
        let found = decoder.inspect_extent(Algorithm::Lzo, &stored, 4096).unwrap();
        assert_eq!(found.findings, vec![Finding::LzoTotalInexact { total: end, end: end + pad }]);
        stored[end] = 1;
        let found = decoder.inspect_extent(Algorithm::Lzo, &stored, 4096).unwrap();
        assert_eq!(found.findings[0], Finding::LzoPadNotZero { index: 1 });
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

#[test]
fn totals_that_kernels_refuse() {
    let mut workspace = Workspace::new(method("lzo"));
    let input = [common::random(5000, 1), vec![0; 2 * SECTOR]].concat();
    let stored = encode(&mut workspace, &input).unwrap();
    assert_eq!(stored.len(), 8192);
    for total in [0, 4, 4096, 8193, 131_073, u32::MAX] {
        let mut bad = stored.clone();
        bad[..4].copy_from_slice(&total.to_le_bytes());
        let result = Decoder::new().decode_extent(Algorithm::Lzo, &bad, 4096, &mut [0; 16384]);
        assert_eq!(result, Err(DecodeError::LzoTotal { total, stored: 8192 }));
    }
    for (at, len) in [(4, 4422), (4, u32::MAX)] {
        let mut bad = stored.clone();
        bad[at..at + 4].copy_from_slice(&len.to_le_bytes());
        let result = Decoder::new().decode_extent(Algorithm::Lzo, &bad, 4096, &mut [0; 16384]);
        assert_eq!(result, Err(DecodeError::LzoSegmentLength { at, len }));
    }
}

#[test]
fn a_short_segment_is_read_on_and_reported() {
    // Two segments of 3 bytes each, "abc" as in the inline vector: the kernel puts one behind the other.
    let abc = [7, 0, 0, 0, 0x14, b'a', b'b', b'c', 0x11, 0, 0];
    let mut stored = [&[26, 0, 0, 0][..], &abc, &abc].concat();
    stored.resize(4096, 0);
    let mut out = [0xaa; 8];
    let mut decoder = Decoder::new();
    assert_eq!(decoder.decode_extent(Algorithm::Lzo, &stored, 4096, &mut out), Ok(6));
    assert_eq!(&out, b"abcabc\0\0");
    let found = decoder.inspect_extent(Algorithm::Lzo, &stored, 4096).unwrap();
    assert_eq!(found.findings, vec![Finding::LzoSegmentInexact { index: 0, decoded: 3 }]);
    assert_eq!((found.decoded_len, found.stream_len), (6, 26));
}

#[test]
fn lzokays_own_encoder_is_a_second_opinion() {
    let input = common::text(3 * SECTOR + 5, 9);
    let mut stored = vec![0; 4];
    for sector in input.chunks(SECTOR) {
        let segment = lzokay::compress::compress(sector).unwrap();
        stored.extend_from_slice(&u32::try_from(segment.len()).unwrap().to_le_bytes());
        stored.extend_from_slice(&segment);
        while stored.len() % SECTOR > SECTOR - 4 {
            stored.push(0);
        }
    }
    let total = u32::try_from(stored.len()).unwrap();
    stored[..4].copy_from_slice(&total.to_le_bytes());
    stored.resize(stored.len().next_multiple_of(SECTOR), 0);
    let mut out = vec![0; input.len()];
    assert_eq!(Decoder::new().decode_extent(Algorithm::Lzo, &stored, 4096, &mut out), Ok(input.len()));
    assert!(out == input);
}
