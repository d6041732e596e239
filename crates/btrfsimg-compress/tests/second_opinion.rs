//! Our streams read by other decoders, and other encoders' streams read by ours.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use btrfsimg_compress::{Algorithm, Decoder, Encoded, Workspace, encode_extent};
use common::{all_methods, method, textures};
use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_slice_iter_to_slice;

#[test]
fn zlib_streams_are_read_by_miniz_oxide_with_their_checksum() {
    for level in 1..=9 {
        let mut workspace = Workspace::new(method(&format!("zlib:{level}")));
        for (what, input) in [9000, 131_072].into_iter().flat_map(textures) {
            let mut stored = Vec::new();
            if encode_extent(&mut workspace, &input, 4096, &mut stored) == Encoded::Raw {
                continue;
            }
            let mut out = vec![0; input.len()];
            let stream = std::iter::once(&stored[..]);
            assert_eq!(decompress_slice_iter_to_slice(&mut out, stream, true, false), Ok(input.len()));
            assert!(out == input, "{level} {what}");
        }
    }
}

#[test]
fn miniz_oxides_streams_are_read() {
    let mut decoder = Decoder::new();
    for level in 0..=10 {
        for (what, input) in [0, 1, 300, 9000, 65_536].into_iter().flat_map(textures) {
            let mut stored = compress_to_vec_zlib(&input, level);
            let len = stored.len();
            stored.resize(len.next_multiple_of(4096), 0);
            let mut out = vec![0xaa; input.len() + 10];
            let decoded = decoder.decode_extent(Algorithm::Zlib, &stored, 4096, &mut out);
            assert_eq!(decoded, Ok(input.len()), "{level} {what}");
            assert!(out[..input.len()] == input, "{level} {what}");
            let found = decoder.inspect_extent(Algorithm::Zlib, &stored, 4096).unwrap();
            assert_eq!((found.stream_len, found.findings), (len, vec![]), "{level} {what}");
            // A stream that gives more than is wanted is cut, whichever decoder gets there first.
            let mut start = vec![0; input.len() / 3];
            assert_eq!(decoder.decode_extent(Algorithm::Zlib, &stored, 4096, &mut start), Ok(start.len()));
            assert!(input.starts_with(&start), "{level} {what}");
        }
    }
}

#[test]
fn foreign_zstd_frames_are_read() {
    // With a checksum, without a content size, and with a window larger than the kernel's.
    for (checksum, size, window_log) in [(true, true, 17), (false, false, 17), (true, false, 21)] {
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::ChecksumFlag(checksum)).unwrap();
        context.set_parameter(zstd_safe::CParameter::ContentSizeFlag(size)).unwrap();
        context.set_parameter(zstd_safe::CParameter::WindowLog(window_log)).unwrap();
        for (what, input) in [1, 9000, 131_072].into_iter().flat_map(textures) {
            let mut stored = Vec::with_capacity(zstd_safe::compress_bound(input.len()));
            context.compress2(&mut stored, &input).unwrap();
            stored.extend_from_slice(&[0; 100]);
            for len in [input.len(), input.len() / 3, input.len() + 9] {
                let mut out = vec![0xaa; len];
                let decoded = Decoder::new().decode_extent(Algorithm::Zstd, &stored, 4096, &mut out);
                assert_eq!(decoded, Ok(len.min(input.len())), "{what}");
                let same = len.min(input.len());
                assert!(out[..same] == input[..same] && out[same..].iter().all(|&b| b == 0), "{what}");
            }
        }
    }
}

/// Frame parameters that every kernel reads, at every level: RFC 8878's descriptor byte.
#[test]
fn zstd_frames_are_single_segment_with_a_size_and_without_a_checksum() {
    for method in all_methods().into_iter().filter(|m| m.algorithm() == Algorithm::Zstd) {
        let mut workspace = Workspace::new(method);
        for (_, input) in [8193, 37_856, 131_072].into_iter().flat_map(textures) {
            let mut stored = Vec::new();
            if encode_extent(&mut workspace, &input, 4096, &mut stored) == Encoded::Raw {
                continue;
            }
            assert_eq!(stored[4] & 0x3f, 0x20, "{method}: single segment, no checksum, no dictionary");
            let size = zstd_safe::get_frame_content_size(&stored).unwrap();
            assert_eq!(size, Some(u64::try_from(input.len()).unwrap()));
        }
    }
}
