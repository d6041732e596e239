//! Compressed data, decoded (FE-25, FE-27): each extent once, on every copy that differs. Each file extent is held against
//! what came out. What is wrong with a stream is said where the first file extent in key order shows it, whichever worker
//! decoded it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use btrfsimg_compress::{Algorithm, Decoder, Finding as Streams, Inspection, MAX_CHUNK, MAX_DECODED};
use btrfsimg_ondisk::{DevId, FileExtent, FileExtentKind, FileExtentRange, KeyType, Logical, Physical};
use rustc_hash::FxHashMap;

use super::finding::{Finding, Findings, Place};
use super::image::{Block, Image};
use super::usage::Usage;

thread_local! {
    /// A worker's decoding contexts.
    static DECODER: RefCell<Decoder> = RefCell::new(Decoder::new());
}

/// What was decoded, each stream once.
pub(super) struct Decoded {
    pub(super) extents: AtomicU64,
    /// Bytes that came out.
    pub(super) bytes: AtomicU64,
    /// What each extent of the extent tree was decoded to, as a file extent claims it that has its length.
    known: Vec<OnceLock<Stream>>,
    /// The same of all else that file extents claim.
    others: Mutex<Others>,
    /// What is wrong with streams, until it is said.
    faults: Mutex<FxHashMap<Claim, Vec<Fault>>>,
}

/// Bytes of the smallest extent.
const SECTOR_MIN: u64 = 4096;

/// Extents that file extents claim and the extent tree has not, each an error by itself: they are decoded as a help.
struct Others {
    known: FxHashMap<Claim, Arc<OnceLock<Stream>>>,
    /// Bytes of them that are still read. Extents do not overlap, so that all there can be are as long as the device; a
    /// crafted image claims any number.
    left: u64,
}

/// An extent as a file extent claims it: its address and length in bytes, and how it is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Claim {
    at: u64,
    len: u64,
    algorithm: Algorithm,
}

/// What an extent was decoded to, in 32 bits: the algorithm's code, whether a fault was found, and how many bytes come
/// out, which is no more than [`MAX_DECODED`] + 1.
#[derive(Clone, Copy)]
struct Stream(u32);

impl Stream {
    const FAULTY: u32 = 1 << 23;
    /// In place of the number where it does not decode.
    const BAD: u32 = Stream::FAULTY - 1;

    fn new(algorithm: Algorithm, decoded: Option<u32>, is_faulty: bool) -> Stream {
        let number = decoded.map_or(Stream::BAD, |n| n.min(Stream::BAD - 1));
        let faulty = if is_faulty { Stream::FAULTY } else { 0 };
        Stream((u32::from(algorithm.code()) << 24) | faulty | number)
    }

    fn is_of(self, algorithm: Algorithm) -> bool {
        self.0 >> 24 == u32::from(algorithm.code())
    }

    fn is_faulty(self) -> bool {
        self.0 & Stream::FAULTY != 0
    }

    fn decoded(self) -> Option<u64> {
        let number = self.0 & Stream::BAD;
        (number != Stream::BAD).then_some(u64::from(number))
    }
}

/// What is wrong with a stream, and on which copy where there are several.
struct Fault {
    rule: &'static str,
    reason: String,
    copy: Option<(usize, DevId, Physical)>,
}

/// What is to be said of a file extent.
pub(super) enum Verdict {
    Own(Finding),
    /// What is wrong with the stream that it shows, unless it was said of one before.
    Stream(Claimed),
}

/// A file extent of a faulty stream.
pub(super) struct Claimed(Claim, Place);

impl Decoded {
    /// Nothing yet, on a device of `device_len` bytes with so many extents in the extent tree.
    pub(super) fn new(extents: usize, device_len: u64) -> Decoded {
        Decoded {
            extents: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            known: (0..extents).map(|_| OnceLock::new()).collect(),
            others: Mutex::new(Others { known: FxHashMap::default(), left: device_len }),
            faults: Mutex::default(),
        }
    }

    /// Says what was found, in key order.
    pub(super) fn say(&self, verdicts: Vec<Verdict>, findings: &mut Findings) {
        for verdict in verdicts {
            match verdict {
                Verdict::Own(finding) => findings.push(finding),
                Verdict::Stream(Claimed(claim, place)) => {
                    for fault in lock(&self.faults).remove(&claim).into_iter().flatten() {
                        let mut place = place.clone();
                        if let Some((mirror, devid, physical)) = fault.copy {
                            (place.mirror, place.devid, place.physical) =
                                (Some(mirror), Some(devid), Some(physical));
                        }
                        findings.add(fault.rule, place, fault.reason);
                    }
                }
            }
        }
    }

    fn count(&self, stream: &Inspection) {
        self.extents.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(stream.decoded_len as u64, Ordering::Relaxed);
    }

    /// Decodes what `claim` says, or waits for who does.
    fn stream(&self, image: &Image<'_>, usage: &Usage, claim: Claim) -> Stream {
        let work = || {
            let mut faults = Vec::new();
            let decoded = self.decode(image, claim, &mut faults);
            let stream = Stream::new(claim.algorithm, decoded, !faults.is_empty());
            if !faults.is_empty() {
                lock(&self.faults).insert(claim, faults);
            }
            stream
        };
        let before = usage.extents.partition_point(|extent| extent.start <= claim.at).checked_sub(1);
        if let Some((index, extent)) = before.map(|index| (index, &usage.extents[index]))
            && extent.end() > claim.at
        {
            // A part of another extent is an error by itself, whatever comes out of it.
            if (extent.start, extent.len) != (claim.at, claim.len) {
                return Stream::new(claim.algorithm, None, false);
            }
            let stream = *self.known[index].get_or_init(work);
            if stream.is_of(claim.algorithm) {
                return stream;
            }
        }
        let other = lock(&self.others).claim(claim);
        match other {
            Some(other) => *other.get_or_init(work),
            None => Stream::new(claim.algorithm, None, false),
        }
    }

    /// Judges every copy of a compressed extent; copies that are equal once. Gives how many bytes come out.
    fn decode(&self, image: &Image<'_>, claim: Claim, faults: &mut Vec<Fault>) -> Option<u32> {
        let Claim { at, len, algorithm } = claim;
        if algorithm == Algorithm::Lzo && len > MAX_CHUNK as u64 {
            let reason = format!("lzo extent {at} takes {len} bytes, expect at most {MAX_CHUNK}");
            faults.push(Fault { rule: "FE-25", reason, copy: None });
            return None;
        }
        // Kernels read no more of others with certainty; that they are longer is FE-18's.
        let size = usize::try_from(len).unwrap_or(MAX_CHUNK).min(MAX_CHUNK);
        // An extent that no chunk maps is FE-24's.
        let copies: Vec<_> = image.chunks.map(Logical(at), size as u64).ok()?.collect();
        let mut out = None;
        let mut judged: Vec<Vec<u8>> = Vec::new();
        for (mirror, stored) in copies.iter().enumerate() {
            let copy = (copies.len() > 1).then_some((mirror, stored.devid, stored.physical));
            let mut fault = |rule, reason| faults.push(Fault { rule, reason, copy });
            let mut bytes = vec![0; size];
            if let Err(error) = image.device.read_at(&mut bytes, stored.physical) {
                fault("FE-25", format!("cannot read compressed extent {at}: {error}"));
                continue;
            }
            if judged.contains(&bytes) {
                continue;
            }
            let found = DECODER
                .with_borrow_mut(|d| d.inspect_extent_of(algorithm, &bytes, sectorsize(image), MAX_DECODED));
            match found {
                Ok(found) => {
                    let decoded = u32::try_from(found.decoded_len).ok();
                    if out.is_none() {
                        self.count(&found);
                    } else if out != decoded {
                        let (have, expect) = (found.decoded_len, out.unwrap_or_default());
                        fault("FE-25", format!("a copy decodes to {have} bytes, another to {expect}"));
                    }
                    out = out.or(decoded);
                    // How long the stream may be is what each file extent is held against.
                    let here = found.findings.iter().filter(|f| !matches!(f, Streams::Overlong { .. }));
                    here.for_each(|f| fault(rule_of(f), format!("compressed data: {f}")));
                }
                Err(error) => fault("FE-25", format!("{algorithm} extent {at} of {size} bytes: {error}")),
            }
            judged.push(bytes);
        }
        out
    }
}

impl Others {
    /// Where what `claim` gives is kept; `None` when it is not to be decoded.
    fn claim(&mut self, claim: Claim) -> Option<Arc<OnceLock<Stream>>> {
        if let Some(known) = self.known.get(&claim) {
            return Some(known.clone());
        }
        self.left = self.left.checked_sub(claim.len.clamp(SECTOR_MIN, MAX_CHUNK as u64))?;
        Some(self.known.entry(claim).or_default().clone())
    }
}

/// Judges what a leaf of a subvolume holds or points to; what was decoded before is not again.
pub(super) fn judge(image: &Image<'_>, usage: &Usage, block: &Block, decoded: &Decoded) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    block.for_each_item(&image.ctx, |slot, item| {
        let extent = (item.key.key_type == KeyType::EXTENT_DATA).then(|| FileExtent::parse(item.data));
        let Some(Ok(extent)) = extent else { return };
        let Some(algorithm) = Algorithm::from_code(extent.compression) else { return };
        let place = Place {
            inode: Some(item.key.objectid),
            ..Place::item(block.tree, block.logical, slot, item.key)
        };
        let mut findings = Findings::default();
        match &extent.kind {
            FileExtentKind::Inline(stored) => {
                inline(image, (algorithm, stored), extent.ram_bytes, &place, decoded, &mut findings);
            }
            FileExtentKind::Regular(range) if range.disk_bytenr.get() != 0 => {
                let claim = Claim { at: range.disk_bytenr.get(), len: range.disk_num_bytes.get(), algorithm };
                let stream = decoded.stream(image, usage, claim);
                if stream.is_faulty() {
                    verdicts.push(Verdict::Stream(Claimed(claim, place.clone())));
                }
                if let Some(len) = stream.decoded() {
                    judge_length(image, len, (&extent, range), &place, &mut findings);
                }
            }
            _ => {}
        }
        verdicts.extend(findings.iter().cloned().map(Verdict::Own));
    });
    verdicts
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
    let found = match DECODER.with_borrow_mut(|d| d.inspect_inline(algorithm, stored, sector)) {
        Ok(found) => found,
        Err(error) => {
            return findings.add("FE-25", place.clone(), format!("inline {algorithm} data: {error}"));
        }
    };
    decoded.count(&found);
    judge_least(found.decoded_len as u64, ram_bytes, ram_bytes, place, findings);
    for stream in &found.findings {
        findings.add(rule_of(stream), place.clone(), format!("compressed data: {stream}"));
    }
}

/// FE-25: whether a file extent can be read from a stream that gives `decoded` bytes.
fn judge_length(
    image: &Image<'_>,
    decoded: u64,
    (extent, range): (&FileExtent<'_>, &FileExtentRange),
    place: &Place,
    findings: &mut Findings,
) {
    let wanted = range.offset.get().saturating_add(range.num_bytes.get());
    // The last sector of a file may be decoded in part: zeros follow.
    let least = wanted.saturating_sub(image.ctx.sectorsize - 1).min(extent.ram_bytes);
    judge_least(decoded, least, extent.ram_bytes, place, findings);
    let limit = extent.ram_bytes.clamp(MAX_CHUNK as u64, MAX_DECODED as u64);
    if decoded > limit {
        let reason = format!("compressed data: the stream gives more than {limit} bytes");
        findings.add("FE-25", place.clone(), reason);
    }
}

fn judge_least(decoded: u64, least: u64, ram_bytes: u64, place: &Place, findings: &mut Findings) {
    if decoded < least {
        let reason = format!("compressed data decode to {decoded} bytes, expect {least} to {ram_bytes}");
        findings.add("FE-25", place.clone(), reason);
    }
}

/// FE-25 for what makes readers fail or see other bytes, FE-27 for what they read over.
fn rule_of(stream: &Streams) -> &'static str {
    match stream {
        Streams::Overlong { .. } | Streams::LzoSegmentInexact { .. } | Streams::ZstdWindow { .. } => "FE-25",
        _ => "FE-27",
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sectorsize(image: &Image<'_>) -> u32 {
    image.superblock.sectorsize.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many distinct claims are decoded as the device can have extents, each once.
    #[test]
    fn claims_are_bounded_by_the_device() {
        let mut others = Others { known: FxHashMap::default(), left: 160 << 10 };
        let claim = |at, len| Claim { at, len, algorithm: Algorithm::Zstd };
        assert!(others.claim(claim(0, u64::MAX)).is_some());
        for at in 0..8 {
            assert!(others.claim(claim(at, at)).is_some());
        }
        assert!(others.claim(claim(8, 0)).is_none());
        assert!(others.claim(claim(7, 7)).is_some());
        assert_eq!(others.known.len(), 9);
    }
}
