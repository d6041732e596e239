//! Compressed data, decoded (FE-25, FE-27): each extent once, on every copy that differs.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use btrfsimg_compress::{Algorithm, Decoder, Finding as Streams, Inspection, MAX_CHUNK};
use btrfsimg_ondisk::{
    COMPRESSION_LZO, COMPRESSION_ZLIB, COMPRESSION_ZSTD, FileExtent, FileExtentKind, FileExtentRange, Item,
    KeyType, Logical,
};

use super::finding::{Findings, Place};
use super::image::{Block, Image};
use super::usage::{Usage, bit};

thread_local! {
    /// A worker's decoding contexts.
    static DECODER: RefCell<Decoder> = RefCell::new(Decoder::new());
}

/// What was decoded, each extent once.
#[derive(Default)]
pub(super) struct Decoded {
    pub(super) extents: AtomicU64,
    /// Bytes that came out.
    pub(super) bytes: AtomicU64,
}

impl Decoded {
    fn count(&self, stream: &Inspection) {
        self.extents.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(stream.decoded_len as u64, Ordering::Relaxed);
    }
}

/// Decodes what a leaf of a subvolume holds or points to, unless it was decoded before.
pub(super) fn judge(
    image: &Image<'_>,
    usage: &Usage,
    block: &Block,
    decoded: &Decoded,
    findings: &mut Findings,
) {
    block.for_each_item(&image.ctx, |slot, item| {
        let extent = (item.key.key_type == KeyType::EXTENT_DATA).then(|| FileExtent::parse(item.data));
        let Some(Ok(extent)) = extent else { return };
        let Some(algorithm) = algorithm(extent.compression) else { return };
        let place = Place {
            inode: Some(item.key.objectid),
            ..Place::item(block.tree, block.logical, slot, item.key)
        };
        match &extent.kind {
            FileExtentKind::Inline(stored) => {
                inline(image, (algorithm, stored), extent.ram_bytes, &place, decoded, findings);
            }
            FileExtentKind::Regular(range) if range.disk_bytenr.get() != 0 => {
                let known = usage.find(range.disk_bytenr.get()).is_some_and(|e| e.set(bit::DECODED));
                if !known {
                    regular(image, algorithm, (&item, &extent, range), &place, decoded, findings);
                }
            }
            _ => {}
        }
    });
}

fn algorithm(compression: u8) -> Option<Algorithm> {
    Some(match compression {
        COMPRESSION_ZLIB => Algorithm::Zlib,
        COMPRESSION_LZO => Algorithm::Lzo,
        COMPRESSION_ZSTD => Algorithm::Zstd,
        _ => return None,
    })
}

fn inline(
    image: &Image<'_>,
    (algorithm, stored): (Algorithm, &[u8]),
    ram_bytes: u64,
    place: &Place,
    decoded: &Decoded,
    findings: &mut Findings,
) {
    let sector = sectorsize(image);
    let found = DECODER.with_borrow_mut(|d| d.inspect_inline(algorithm, stored, sector));
    match found {
        Ok(found) => {
            decoded.count(&found);
            judge_stream(&found, ram_bytes, ram_bytes, place, findings);
        }
        Err(error) => findings.add("FE-25", place.clone(), format!("inline {algorithm} data: {error}")),
    }
}

/// Judges every copy of a compressed extent; copies that are equal once.
fn regular(
    image: &Image<'_>,
    algorithm: Algorithm,
    (item, extent, range): (&Item<'_>, &FileExtent<'_>, &FileExtentRange),
    place: &Place,
    decoded: &Decoded,
    findings: &mut Findings,
) {
    let (at, len) = (range.disk_bytenr.get(), range.disk_num_bytes.get());
    let size = usize::try_from(len).ok().filter(|len| *len <= 2 * MAX_CHUNK);
    let Some(size) = size else {
        let reason = format!("compressed extent {at} takes {len} bytes, expect at most {MAX_CHUNK}");
        return findings.add("FE-25", place.clone(), reason);
    };
    // An extent that no chunk maps is FE-24's.
    let Ok(copies) = image.chunks.map(Logical(at), len) else { return };
    let copies: Vec<_> = copies.collect();
    let mut judged: Vec<Vec<u8>> = Vec::new();
    for (mirror, stored) in copies.iter().enumerate() {
        let mut bytes = vec![0; size];
        let mut place = place.clone();
        if copies.len() > 1 {
            (place.mirror, place.devid, place.physical) =
                (Some(mirror), Some(stored.devid), Some(stored.physical));
        }
        if let Err(error) = image.device.read_at(&mut bytes, stored.physical) {
            findings.add("FE-25", place, format!("cannot read compressed extent {at}: {error}"));
            continue;
        }
        if judged.contains(&bytes) {
            continue;
        }
        let found = DECODER.with_borrow_mut(|d| d.inspect_extent(algorithm, &bytes, sectorsize(image)));
        let wanted = range.offset.get().saturating_add(range.num_bytes.get());
        match found {
            Ok(found) => {
                if judged.is_empty() {
                    decoded.count(&found);
                }
                // The last sector of a file may be decoded in part: zeros follow.
                let least = wanted.saturating_sub(image.ctx.sectorsize - 1).min(extent.ram_bytes);
                judge_stream(&found, least, extent.ram_bytes, &place, findings);
            }
            Err(error) => {
                let reason = format!(
                    "{algorithm} extent {at} of {len} bytes, needed from {}: {error}",
                    item.key.offset
                );
                findings.add("FE-25", place, reason);
            }
        }
        judged.push(bytes);
    }
}

/// FE-25 for what makes readers fail or see other bytes, FE-27 for what they read over.
fn judge_stream(found: &Inspection, least: u64, ram_bytes: u64, place: &Place, findings: &mut Findings) {
    let decoded = found.decoded_len as u64;
    if decoded < least {
        let reason = format!("compressed data decode to {decoded} bytes, expect {least} to {ram_bytes}");
        findings.add("FE-25", place.clone(), reason);
    }
    for stream in &found.findings {
        let rule = match stream {
            Streams::Overlong { .. } | Streams::LzoSegmentInexact { .. } | Streams::ZstdWindow { .. } => {
                "FE-25"
            }
            _ => "FE-27",
        };
        findings.add(rule, place.clone(), format!("compressed data: {stream}"));
    }
}

fn sectorsize(image: &Image<'_>) -> u32 {
    image.superblock.sectorsize.get()
}
