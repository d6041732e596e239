//! A file as a run of segments: what to read, and from where, for each byte up to its size.

use std::collections::VecDeque;
use std::ops::Range;

use btrfsimg_compress::{Algorithm, MAX_CHUNK, MAX_DECODED};
use btrfsimg_ondisk::{
    COMPRESSION_LZO, COMPRESSION_NONE, COMPRESSION_ZLIB, COMPRESSION_ZSTD, FileExtent, FileExtentKind,
    FileExtentRange, Logical,
};

use super::losses::{Loss, Losses};
use super::{Items, Place, file_extents};
use crate::error::{Error, Result};

/// A part of a file that is read in one way.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// Bytes of the file, at least 1.
    pub len: u64,
    /// Where its bytes are.
    pub kind: SegmentKind,
}

/// Where the bytes of a [`Segment`] are.
#[derive(Clone, Debug)]
pub enum SegmentKind {
    /// Nowhere: a hole, or preallocated. Zeros.
    Hole,
    /// On disk as they are, `len` bytes at `disk`.
    Raw {
        /// The first byte.
        disk: Logical,
    },
    /// In a compressed extent.
    Compressed {
        /// The extent.
        disk: Logical,
        /// Its bytes on disk that are read, at most 128 KiB.
        disk_len: usize,
        /// Its bytes when decoded, at most 1 MiB.
        ram_bytes: usize,
        /// Where in the decoded bytes the segment starts.
        skip: usize,
        /// How it is compressed.
        algorithm: Algorithm,
    },
    /// In the tree.
    Inline {
        /// As stored.
        stored: Vec<u8>,
        /// Its bytes when decoded; the segment may go on with zeros.
        ram_bytes: usize,
        /// Where in the decoded bytes the segment starts.
        skip: usize,
        /// How it is compressed, if it is.
        algorithm: Option<Algorithm>,
    },
}

/// Extents looked up at a time.
const BATCH: usize = 256;

/// The segments of a file from first to last byte, looked up as they are asked for.
#[derive(Debug)]
pub struct Segments {
    pub(super) place: Place,
    pub(super) size: u64,
    /// Segments looked up and not yet given.
    ready: VecDeque<Segment>,
    /// Where the next lookup starts.
    pub(super) next: u64,
    /// Of a broken file: goes on behind what cannot be read.
    losses: Option<Losses>,
}

impl Segments {
    /// The segments of the bytes `range` of the regular file at `place`, whatever its size.
    pub fn of(place: Place, range: Range<u64>) -> Segments {
        Segments { place, size: range.end, ready: VecDeque::new(), next: range.start, losses: None }
    }

    /// The same of a broken file: what cannot be read of it is a hole, and a loss.
    pub fn with_losses(self, losses: Losses) -> Segments {
        Segments { losses: Some(losses), ..self }
    }

    /// The losses met since the last call.
    pub fn take_losses(&mut self) -> Vec<Loss> {
        self.losses.as_mut().map(Losses::take).unwrap_or_default()
    }

    /// The next segment.
    ///
    /// # Errors
    /// `Corrupt` where an extent breaks a rule that reading relies on; `Io`.
    pub fn next(&mut self, items: &impl Items) -> Result<Option<Segment>> {
        if self.ready.is_empty() && self.next < self.size {
            match self.losses.take() {
                None => self.fill(items)?,
                Some(mut losses) => {
                    self.fill_from_broken(items, &mut losses);
                    self.losses = Some(losses);
                }
            }
        }
        Ok(self.ready.pop_front())
    }

    fn fill(&mut self, items: &impl Items) -> Result<()> {
        let (place, size, from) = (self.place, self.size, self.next);
        let (ready, next) = (&mut self.ready, &mut self.next);
        let sectorsize = items.context().sectorsize;
        file_extents(items, place, from, |start, extent| {
            let is_first = *next == from && ready.is_empty();
            if start < *next && !is_first {
                return Err(fault(place, start, "FE-22", "file extent overlaps the one before".to_owned()));
            }
            if start >= size {
                return Ok(false);
            }
            if start > *next {
                ready.push_back(Segment { offset: *next, len: start - *next, kind: SegmentKind::Hole });
            }
            let from = start.max(*next);
            let end = start.saturating_add(extent.covers(sectorsize)).min(size);
            if end > from {
                ready.push_back(segment(place, start, from..end, &extent)?);
                *next = end;
            }
            Ok(*next < size && ready.len() < BATCH)
        })?;
        if ready.len() < BATCH && *next < size {
            ready.push_back(Segment { offset: *next, len: size - *next, kind: SegmentKind::Hole });
            *next = size;
        }
        Ok(())
    }
}

impl Segments {
    pub(super) fn push(&mut self, kind: SegmentKind, end: u64) {
        self.ready.push_back(Segment { offset: self.next, len: end - self.next, kind });
        self.next = end;
    }
}

/// The bytes `range` of the file, which lie in `extent` at `start`.
pub(super) fn segment(
    place: Place,
    start: u64,
    range: Range<u64>,
    extent: &FileExtent<'_>,
) -> Result<Segment> {
    let algorithm = algorithm(place, start, extent.compression)?;
    let skipped = range.start - start;
    let kind = match &extent.kind {
        // Kernels decode a compressed extent, preallocated or not (FE-16 forbids it).
        FileExtentKind::Prealloc(_) if algorithm.is_none() => SegmentKind::Hole,
        FileExtentKind::Regular(r) | FileExtentKind::Prealloc(r) if r.disk_bytenr.get() == 0 => {
            SegmentKind::Hole
        }
        FileExtentKind::Inline(stored) => SegmentKind::Inline {
            stored: stored.to_vec(),
            ram_bytes: bounded(place, start, "ram_bytes", extent.ram_bytes)?,
            skip: bounded(place, start, "offset", skipped)?,
            algorithm,
        },
        FileExtentKind::Regular(r) | FileExtentKind::Prealloc(r) => match algorithm {
            None => raw(place, start, skipped, r)?,
            Some(algorithm) => compressed(place, start, skipped, r, extent.ram_bytes, algorithm)?,
        },
    };
    Ok(Segment { offset: range.start, len: range.end - range.start, kind })
}

fn raw(place: Place, start: u64, skipped: u64, r: &FileExtentRange) -> Result<SegmentKind> {
    let end = r.offset.get().checked_add(r.num_bytes.get());
    if end.is_none_or(|end| end > r.disk_num_bytes.get()) {
        let reason = format!(
            "file extent beyond its extent on disk, have {}+{} expect at most {}",
            r.offset, r.num_bytes, r.disk_num_bytes
        );
        return Err(fault(place, start, "FE-15", reason));
    }
    let disk = r.offset.get().checked_add(skipped).and_then(|o| r.disk_bytenr.get().checked_add(o));
    disk.map(|disk| SegmentKind::Raw { disk: Logical(disk) })
        .ok_or_else(|| fault(place, start, "FE-15", "disk_bytenr wraps around".to_owned()))
}

fn compressed(
    place: Place,
    start: u64,
    skipped: u64,
    r: &FileExtentRange,
    ram_bytes: u64,
    algorithm: Algorithm,
) -> Result<SegmentKind> {
    let end = r.offset.get().checked_add(r.num_bytes.get());
    if end.is_none_or(|end| end > ram_bytes) {
        let reason = format!(
            "file extent beyond its decoded bytes, have {}+{} expect at most {ram_bytes}",
            r.offset, r.num_bytes
        );
        return Err(fault(place, start, "FE-15", reason));
    }
    // Kernels read 128 KiB of a longer one for certain; LZO must use all that is there.
    let disk_len = match r.disk_num_bytes.get() {
        len if algorithm == Algorithm::Lzo && len > MAX_CHUNK as u64 => {
            let reason = format!("invalid disk_num_bytes, have {len} expect at most {MAX_CHUNK}");
            return Err(fault(place, start, "FE-18", reason));
        }
        len => usize::try_from(len).unwrap_or(MAX_CHUNK).min(MAX_CHUNK),
    };
    Ok(SegmentKind::Compressed {
        disk: Logical(r.disk_bytenr.get()),
        disk_len,
        ram_bytes: bounded(place, start, "ram_bytes", ram_bytes)?,
        skip: bounded(place, start, "offset", r.offset.get().saturating_add(skipped))?,
        algorithm,
    })
}

fn algorithm(place: Place, start: u64, code: u8) -> Result<Option<Algorithm>> {
    Ok(match code {
        COMPRESSION_NONE => None,
        COMPRESSION_ZLIB => Some(Algorithm::Zlib),
        COMPRESSION_LZO => Some(Algorithm::Lzo),
        COMPRESSION_ZSTD => Some(Algorithm::Zstd),
        _ => {
            let reason = format!("invalid compression, have {code} expect [0, 3]");
            return Err(fault(place, start, "FE-05", reason));
        }
    })
}

/// A length in the decoded bytes of an extent.
fn bounded(place: Place, start: u64, field: &str, value: u64) -> Result<usize> {
    usize::try_from(value).ok().filter(|v| *v <= MAX_DECODED).ok_or_else(|| {
        fault(place, start, "FE-18", format!("invalid {field}, have {value} expect at most {MAX_DECODED}"))
    })
}

/// A fault at the byte `offset` of a file.
pub(super) fn fault(place: Place, offset: u64, rule: &'static str, reason: String) -> Error {
    Error::corrupt(rule, format!("root={} inode {} offset {offset}: {reason}", place.tree, place.ino))
}
