//! Bytes that the format documents give, and frames built by hand from RFC 1950 and RFC 8878.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use btrfsimg_compress::{
    Algorithm, DecodeError, Decoder, Encoded, EncodedInline, Finding, Workspace, encode_extent, encode_inline,
};
use common::{method, text};

fn decode(algorithm: Algorithm, stored: &[u8], ram_bytes: usize) -> Result<(usize, Vec<u8>), DecodeError> {
    let mut out = vec![0xaa; ram_bytes];
    let decoded = Decoder::new().decode_extent(algorithm, stored, 4096, &mut out)?;
    Ok((decoded, out))
}

/// A frame of blocks of one repeated byte: magic, `header`, then (byte, count) per block.
fn zstd_rle(header: &[u8], blocks: &[(u8, u32)]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd];
    frame.extend_from_slice(header);
    for (i, &(byte, count)) in blocks.iter().enumerate() {
        let last = u32::from(i + 1 == blocks.len());
        frame.extend_from_slice(&(last | 1 << 1 | count << 3).to_le_bytes()[..3]);
        frame.push(byte);
    }
    frame
}

/// A zlib stream of one stored block.
fn zlib_stored(header: [u8; 2], data: &[u8], adler: [u8; 4]) -> Vec<u8> {
    let len = u16::try_from(data.len()).unwrap();
    [&header[..], &[1], &len.to_le_bytes(), &(!len).to_le_bytes(), data, &adler].concat()
}

#[test]
fn lzo_inline_abc() {
    // format/04 §4.4, as a kernel wrote it.
    let stored = [0x0f, 0, 0, 0, 7, 0, 0, 0, 0x14, b'a', b'b', b'c', 0x11, 0, 0];
    let mut out = [0xaa; 3];
    let mut decoder = Decoder::new();
    assert_eq!(decoder.decode_inline(Algorithm::Lzo, &stored, 4096, &mut out), Ok(3));
    assert_eq!(&out, b"abc");
    assert_eq!(decoder.inspect_inline(Algorithm::Lzo, &stored, 4096).unwrap().findings, vec![]);
    // Ours stores the smaller of both: raw.
    let mut workspace = Workspace::new(method("lzo"));
    let encoded = encode_inline(&mut workspace, b"abc", 4096, 2048, &mut Vec::new());
    assert_eq!(encoded, EncodedInline::Raw);
}

#[test]
fn lzo_inline_lengths_are_exact() {
    let good = [0x0f, 0, 0, 0, 7, 0, 0, 0, 0x14, b'a', b'b', b'c', 0x11, 0, 0];
    for (at, value) in [(0, 0x0e), (0, 0x10), (4, 6), (4, 8), (3, 0x80)] {
        let mut bad = good;
        bad[at] = value;
        assert!(Decoder::new().decode_inline(Algorithm::Lzo, &bad, 4096, &mut [0; 3]).is_err());
    }
    let padded = [&good[..], &[0]].concat();
    assert!(Decoder::new().decode_inline(Algorithm::Lzo, &padded, 4096, &mut [0; 3]).is_err());
    assert!(Decoder::new().decode_inline(Algorithm::Lzo, &good[..8], 4096, &mut [0; 3]).is_err());
}

#[test]
fn zstd_headers_as_kernels_write_them() {
    // format/04 §4.5: single segment, content size in 1, 2 and 4 bytes.
    let mut workspace = Workspace::new(method("zstd:3"));
    let mut out = Vec::new();
    for (len, header) in [(200, &[0x20, 0xc8][..]), (3000, &[0x60, 0xb8, 0x0a])] {
        encode_inline(&mut workspace, &vec![b'x'; len], 4096, 2048, &mut out);
        assert_eq!(out[..4], [0x28, 0xb5, 0x2f, 0xfd]);
        assert_eq!(out[4..4 + header.len()], *header);
    }
    let kept = encode_extent(&mut workspace, &vec![0; 131_072], 4096, &mut out);
    assert_eq!(kept, Encoded::Kept { algorithm: Algorithm::Zstd, stored_len: 4096 });
    assert_eq!(out[4..9], [0xa0, 0x00, 0x00, 0x02, 0x00]);
}

#[test]
fn zlib_headers_are_plausible_at_every_level() {
    let mut out = Vec::new();
    for level in 1..=9 {
        let mut workspace = Workspace::new(method(&format!("zlib:{level}")));
        encode_extent(&mut workspace, &text(131_072, 1), 4096, &mut out);
        assert_eq!(out[0], 0x78, "deflate with a 32 KiB window");
        assert_eq!(out[1] & 0x20, 0, "no preset dictionary");
        assert_eq!((u16::from(out[0]) * 256 + u16::from(out[1])) % 31, 0);
    }
}

#[test]
fn one_sector_of_zeros_may_be_inline_only_compressed() {
    for name in ["zlib:3", "lzo", "zstd:3"] {
        let mut workspace = Workspace::new(method(name));
        let mut out = Vec::new();
        let zeros = encode_inline(&mut workspace, &[0; 4096], 4096, 2048, &mut out);
        assert!(matches!(zeros, EncodedInline::Compressed { stored_len: ..100, .. }), "{name}");
        let noise = common::random(4096, 5);
        for max_inline in [2048, 4096, 16237] {
            let encoded = encode_inline(&mut workspace, &noise, 4096, max_inline, &mut out);
            assert_eq!(encoded, EncodedInline::NotInline, "{name}: a raw full sector is never inline");
        }
        let noise = &noise[..2048];
        assert_eq!(encode_inline(&mut workspace, noise, 4096, 2048, &mut out), EncodedInline::Raw);
        assert_eq!(encode_inline(&mut workspace, noise, 4096, 2047, &mut out), EncodedInline::NotInline);
        assert_eq!(encode_inline(&mut workspace, b"", 4096, 2048, &mut out), EncodedInline::NotInline);
        assert_eq!(encode_inline(&mut workspace, &[0; 4097], 4096, 2048, &mut out), EncodedInline::NotInline);
    }
}

#[test]
fn zlib_checksum_is_reported_not_required() {
    let mut decoder = Decoder::new();
    let good = zlib_stored([0x78, 0x5e], b"abc", 0x024d_0127u32.to_be_bytes());
    let bad = zlib_stored([0x78, 0x5e], b"abc", [1, 2, 3, 4]);
    let none = &good[..good.len() - 4];
    for stored in [&good[..], &bad, none] {
        assert_eq!(decode(Algorithm::Zlib, stored, 5).unwrap(), (3, b"abc\0\0".to_vec()));
    }
    let mut findings =
        |stored: &[u8]| decoder.inspect_inline(Algorithm::Zlib, stored, 4096).unwrap().findings;
    assert_eq!(findings(&good), vec![]);
    assert_eq!(findings(&bad), vec![Finding::ZlibAdler { stored: 0x0102_0304, computed: 0x024d_0127 }]);
    assert_eq!(findings(none), vec![Finding::ZlibNoAdler]);
    assert_eq!(findings(&[&good[..], &[0]].concat()), vec![Finding::Unused { at: 14, len: 1 }]);
}

#[test]
fn zlib_headers_that_kernels_refuse() {
    // Method 7; a 64 KiB window; a preset dictionary; check bits wrong. Then the smallest window, which is fine.
    for (header, fine) in [
        ([0x77, 0x09], false),
        ([0x88, 0x1c], false),
        ([0x78, 0x20], false),
        ([0x78, 0x5f], false),
        ([0x08, 0x1d], true),
        ([0x78, 0xda], true),
    ] {
        let check = (u16::from(header[0]) * 256 + u16::from(header[1])) % 31;
        assert_eq!(check == 0, header != [0x78, 0x5f], "one thing is wrong at a time");
        let stored = zlib_stored(header, b"abc", [0; 4]);
        assert_eq!(decode(Algorithm::Zlib, &stored, 3).is_ok(), fine, "{header:02x?}");
    }
}

#[test]
fn what_follows_a_stream_is_ignored_and_reported() {
    let zlib = zlib_stored([0x78, 0x5e], b"abc", 0x024d_0127u32.to_be_bytes());
    let zstd = zstd_rle(&[0x20, 3], &[(b'x', 3)]);
    let second = zstd_rle(&[0x20, 2], &[(b'y', 2)]);
    for (algorithm, stream, tail) in [
        (Algorithm::Zlib, &zlib, vec![0xff; 50]),
        (Algorithm::Zstd, &zstd, vec![0xff; 50]),
        (Algorithm::Zstd, &zstd, second),
    ] {
        for mut stored in [stream.clone(), [&stream[..], &tail].concat()] {
            let dirty = stored.len() > stream.len();
            stored.resize(4096, 0);
            let (decoded, out) = decode(algorithm, &stored, 4096).unwrap();
            assert_eq!((decoded, &out[3..]), (3, &[0; 4093][..]), "{algorithm}");
            let found = Decoder::new().inspect_extent(algorithm, &stored, 4096).unwrap();
            assert_eq!((found.decoded_len, found.stream_len), (3, stream.len()));
            let trailing = Finding::TrailingData { at: stream.len() };
            assert_eq!(found.findings, if dirty { vec![trailing] } else { vec![] });
            stored.resize(8192, 0);
            assert_eq!(decode(algorithm, &stored, 4096).unwrap().0, 3, "a whole sector more");
        }
    }
}

#[test]
fn a_skippable_frame_reads_as_zeros() {
    let mut stored = vec![0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9];
    stored.extend_from_slice(&zstd_rle(&[0x20, 3], &[(b'x', 3)]));
    assert_eq!(decode(Algorithm::Zstd, &stored, 4).unwrap(), (0, vec![0; 4]));
    let found = Decoder::new().inspect_extent(Algorithm::Zstd, &stored, 4096).unwrap();
    assert!(found.findings.contains(&Finding::ZstdSkippable));
}

#[test]
fn zstd_windows_above_128_kib_are_read_and_reported() {
    // Window descriptors for 128 KiB, 144 KiB, 256 KiB, 2 MiB, 2.5 MiB, 3 MiB and the largest of all, 3.75 TiB. Linux
    // 6.18 reads what asks for 2.5 MiB, and refuses 3 MiB.
    for (descriptor, window) in [
        (0x38, 131_072u64),
        (0x39, 147_456),
        (0x40, 262_144),
        (0x58, 2 << 20),
        (0x5a, 5 << 19),
        (0x5c, 3 << 20),
        (0xff, (1 << 41) + 7 * (1 << 38)),
    ] {
        let stored = zstd_rle(&[0x00, descriptor], &[(b'x', 4096), (b'y', 100)]);
        let mut out = vec![0; 8192];
        let mut decoder = Decoder::new();
        if window > 5 << 19 {
            let refused = decoder.decode_extent(Algorithm::Zstd, &stored, 4096, &mut out);
            assert_eq!(refused, Err(DecodeError::ZstdWindow { bytes: window }));
            decoder.read_any_window(true);
        }
        let decoded = decoder.decode_extent(Algorithm::Zstd, &stored, 4096, &mut out).unwrap();
        assert_eq!((decoded, out[4095], out[4096], out[4196]), (4196, b'x', b'y', 0), "{window}");
        let found = Decoder::new().inspect_extent(Algorithm::Zstd, &stored, 4096).unwrap();
        assert_eq!(found.decoded_len, 4196);
        let wide = Finding::ZstdWindow { bytes: window };
        assert_eq!(found.findings, if window > 131_072 { vec![wide] } else { vec![] });
    }
}

#[test]
fn zstd_frames_longer_or_shorter_than_ram_bytes() {
    let full = [(b'x', 131_072)];
    let long = zstd_rle(&[0x00, 0x38], &[full, full, full].concat());
    for ram_bytes in [1, 300, 4096, 131_072, 131_073, 300_000, 393_216, 393_217] {
        let (decoded, out) = decode(Algorithm::Zstd, &long, ram_bytes).unwrap();
        assert_eq!(decoded, ram_bytes.min(393_216));
        assert!(out[..decoded].iter().all(|&b| b == b'x') && out[decoded..].iter().all(|&b| b == 0));
    }
    let found = Decoder::new().inspect_extent(Algorithm::Zstd, &long, 4096).unwrap();
    assert_eq!(found.findings, vec![Finding::Overlong { limit: 131_072 }]);
    // An inline extent stored as a full sector by some writers: 4096 bytes where ram_bytes is 300.
    let sector = zstd_rle(&[0x60, 0x00, 0x0f], &[(b'x', 4096)]);
    let mut out = [0; 300];
    assert_eq!(Decoder::new().decode_inline(Algorithm::Zstd, &sector, 4096, &mut out), Ok(300));
    assert_eq!(out, [b'x'; 300]);
}

#[test]
fn zstd_frames_that_are_refused() {
    let good = zstd_rle(&[0x20, 3], &[(b'x', 3)]);
    assert!(decode(Algorithm::Zstd, &good, 3).is_ok());
    let wrong_size = zstd_rle(&[0x20, 4], &[(b'x', 3)]);
    assert!(matches!(decode(Algorithm::Zstd, &wrong_size, 4096), Err(DecodeError::Zstd { .. })));
    let reserved = zstd_rle(&[0x28, 3], &[(b'x', 3)]);
    assert!(matches!(decode(Algorithm::Zstd, &reserved, 3), Err(DecodeError::ZstdHeader(_))));
    let dictionary = zstd_rle(&[0x21, 7, 3], &[(b'x', 3)]);
    assert!(matches!(decode(Algorithm::Zstd, &dictionary, 3), Err(DecodeError::ZstdHeader(_))));
    assert_eq!(decode(Algorithm::Zstd, &[0; 4096], 3), Err(DecodeError::ZstdMagic));
    assert_eq!(decode(Algorithm::Zstd, &[], 3), Err(DecodeError::ZstdMagic));
    for len in 4..good.len() {
        assert!(decode(Algorithm::Zstd, &good[..len], 3).is_err(), "{len} bytes of the frame");
    }
}

#[test]
fn sectorsizes_that_are_none_are_refused() {
    for sectorsize in [0, 1, 256, 4095, u32::MAX] {
        let error = Decoder::new().decode_extent(Algorithm::Lzo, &[0; 64], sectorsize, &mut [0; 64]);
        assert_eq!(error, Err(DecodeError::BadSectorsize(sectorsize)));
    }
}

#[test]
fn codec_versions_are_those_of_the_lock_file() {
    let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
    let lock = std::fs::read_to_string(lock).unwrap();
    let versions = btrfsimg_compress::codec_versions();
    for (_, version) in versions.iter().filter(|(_, version)| version.contains(' ')) {
        let (name, version) = version.split_once(' ').unwrap();
        assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"")), "{name} {version}");
    }
    assert!(versions.iter().any(|(name, version)| *name == "zstd" && version.starts_with("1.")));
}
