//! Compressed data, decoded (FE-25, FE-27): each extent once, on every copy that differs. Each file extent is held against
//! what came out.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use btrfsimg_compress::{Algorithm, Decoder, Finding as Streams, Inspection, MAX_CHUNK, MAX_DECODED};
use btrfsimg_ondisk::{
    COMPRESSION_LZO, COMPRESSION_ZLIB, COMPRESSION_ZSTD, FileExtent, FileExtentKind, FileExtentRange, Item,
    KeyType, Logical,
};
use rustc_hash::FxHashMap;

use super::finding::{Findings, Place};
use super::image::{Block, Image};
use super::usage::{Usage, bit};

thread_local! {
    /// A worker's decoding contexts.
    static DECODER: RefCell<Decoder> = RefCell::new(Decoder::new());
}

/// What was decoded, each extent once.
pub(super) struct Decoded {
    pub(super) extents: AtomicU64,
    /// Bytes that came out.
    pub(super) bytes: AtomicU64,
    /// What each extent of the extent tree was decoded to: a [`Stream`] in a number, 0 before.
    known: Vec<AtomicU32>,
    /// The same of those that the extent tree lacks, by address and length.
    strays: Mutex<FxHashMap<(u64, u64), u32>>,
    /// File extents that were met while another worker decoded what they show.
    pending: Mutex<Vec<Pending>>,
}

/// A file extent of a decoded extent: its index, algorithm, least number of bytes, ram_bytes and place.
type Pending = (usize, Algorithm, u64, u64, Place);

/// What an extent was decoded as. No stream decodes to so many bytes that they take more than 24 bits.
#[derive(Clone, Copy)]
struct Stream {
    algorithm: Algorithm,
    /// `None` where it does not decode, which was said.
    decoded: Option<u32>,
}

impl Stream {
    const BAD: u32 = 0xff_ffff;

    fn number(self) -> u32 {
        let algorithm = match self.algorithm {
            Algorithm::Zlib => 1,
            Algorithm::Lzo => 2,
            Algorithm::Zstd => 3,
        };
        algorithm << 24 | self.decoded.map_or(Stream::BAD, |n| n.min(Stream::BAD - 1))
    }

    fn of(number: u32) -> Option<Stream> {
        let algorithm = match number >> 24 {
            1 => Algorithm::Zlib,
            2 => Algorithm::Lzo,
            3 => Algorithm::Zstd,
            _ => return None,
        };
        let decoded = number & Stream::BAD;
        Some(Stream { algorithm, decoded: (decoded != Stream::BAD).then_some(decoded) })
    }

    /// FE-25: whether a file extent can be read from it.
    fn judge(self, algorithm: Algorithm, least: u64, ram_bytes: u64, place: &Place, findings: &mut Findings) {
        if algorithm != self.algorithm {
            let reason =
                format!("compressed as {algorithm}, and as {} in another file extent", self.algorithm);
            findings.add("FE-25", place.clone(), reason);
        } else if let Some(decoded) = self.decoded {
            judge_length(u64::from(decoded), least, ram_bytes, place, findings);
        }
    }
}

impl Decoded {
    pub(super) fn new(extents: usize) -> Decoded {
        Decoded {
            extents: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            known: (0..extents).map(|_| AtomicU32::new(0)).collect(),
            strays: Mutex::default(),
            pending: Mutex::default(),
        }
    }

    /// Judges what waited for other workers; afterwards nothing is being decoded.
    pub(super) fn judge_pending(&self, findings: &mut Findings) {
        for (index, algorithm, least, ram_bytes, place) in std::mem::take(&mut *lock(&self.pending)) {
            if let Some(stream) = Stream::of(self.known[index].load(Ordering::Relaxed)) {
                stream.judge(algorithm, least, ram_bytes, &place, findings);
            }
        }
    }

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
                shown(image, usage, algorithm, (&item, &extent, range), place, decoded, findings);
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

/// Judges a file extent by the stream that it shows, which is decoded if it was not before.
fn shown(
    image: &Image<'_>,
    usage: &Usage,
    algorithm: Algorithm,
    (item, extent, range): (&Item<'_>, &FileExtent<'_>, &FileExtentRange),
    place: Place,
    decoded: &Decoded,
    findings: &mut Findings,
) {
    let (at, len) = (range.disk_bytenr.get(), range.disk_num_bytes.get());
    let wanted = range.offset.get().saturating_add(range.num_bytes.get());
    // The last sector of a file may be decoded in part: zeros follow.
    let least = wanted.saturating_sub(image.ctx.sectorsize - 1).min(extent.ram_bytes);
    let index = usage.index(at);
    let is_new = index.map_or_else(
        || lock(&decoded.strays).insert((at, len), 0).is_none(),
        |index| !usage.extents[index].set(bit::DECODED),
    );
    if is_new {
        let out = regular(image, algorithm, (item, extent, range), (&place, least), decoded, findings);
        let number = Stream { algorithm, decoded: out }.number();
        match index {
            Some(index) => decoded.known[index].store(number, Ordering::Relaxed),
            None => {
                lock(&decoded.strays).insert((at, len), number);
            }
        }
        return;
    }
    let number = index.map_or_else(
        || lock(&decoded.strays).get(&(at, len)).copied().unwrap_or(0),
        |index| decoded.known[index].load(Ordering::Relaxed),
    );
    match (Stream::of(number), index) {
        (Some(stream), _) => stream.judge(algorithm, least, extent.ram_bytes, &place, findings),
        (None, Some(index)) => {
            lock(&decoded.pending).push((index, algorithm, least, extent.ram_bytes, place));
        }
        (None, None) => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Judges every copy of a compressed extent; copies that are equal once. Gives how many bytes come out.
fn regular(
    image: &Image<'_>,
    algorithm: Algorithm,
    (item, extent, range): (&Item<'_>, &FileExtent<'_>, &FileExtentRange),
    (place, least): (&Place, u64),
    decoded: &Decoded,
    findings: &mut Findings,
) -> Option<u32> {
    let at = range.disk_bytenr.get();
    if algorithm == Algorithm::Lzo && range.disk_num_bytes.get() > MAX_CHUNK as u64 {
        let reason =
            format!("lzo extent {at} takes {} bytes, expect at most {MAX_CHUNK}", range.disk_num_bytes);
        findings.add("FE-25", place.clone(), reason);
        return None;
    }
    // Kernels read no more of others with certainty; that they are longer is FE-18's.
    let size = usize::try_from(range.disk_num_bytes.get()).unwrap_or(MAX_CHUNK).min(MAX_CHUNK);
    let len = size as u64;
    let limit = usize::try_from(extent.ram_bytes).unwrap_or(MAX_DECODED).clamp(MAX_CHUNK, MAX_DECODED);
    // An extent that no chunk maps is FE-24's.
    let copies = image.chunks.map(Logical(at), len).ok()?;
    let mut out = None;
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
        let found =
            DECODER.with_borrow_mut(|d| d.inspect_extent_of(algorithm, &bytes, sectorsize(image), limit));
        match found {
            Ok(found) => {
                if judged.is_empty() {
                    decoded.count(&found);
                }
                out = out.or(u32::try_from(found.decoded_len).ok());
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
    out
}

/// FE-25 for what makes readers fail or see other bytes, FE-27 for what they read over.
fn judge_stream(found: &Inspection, least: u64, ram_bytes: u64, place: &Place, findings: &mut Findings) {
    judge_length(found.decoded_len as u64, least, ram_bytes, place, findings);
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

fn judge_length(decoded: u64, least: u64, ram_bytes: u64, place: &Place, findings: &mut Findings) {
    if decoded < least {
        let reason = format!("compressed data decode to {decoded} bytes, expect {least} to {ram_bytes}");
        findings.add("FE-25", place.clone(), reason);
    }
}

fn sectorsize(image: &Image<'_>) -> u32 {
    image.superblock.sectorsize.get()
}
