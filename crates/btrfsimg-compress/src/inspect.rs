//! The strict judge: what a stream decodes to, and what the kernel tolerates in it but a careful writer would
//! not produce.

use byteorder::{BE, ByteOrder};

use crate::decode::{Decoder, checked_sectorsize};
use crate::error::DecodeError;
use crate::lzo_frame::{LENGTH, Segment, Segments, decode_segment, inline_segment, pad_after};
use crate::zstd::{FrameHeader, MAX_WINDOW_LOG, is_skippable};
use crate::{Algorithm, MAX_CHUNK, lzo, zlib};

/// What was found in a stream that decodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Bytes that the stream gives. A regular extent's should be more than `ram_bytes` less a sector and at
    /// most `ram_bytes`, an inline extent's exactly `ram_bytes`: the caller knows them.
    /// At most the limit + 1 ([`Finding::Overlong`]).
    pub decoded_len: usize,
    /// Bytes of the stream itself, without the padding after it.
    pub stream_len: usize,
    /// What is not as it should be, in order of occurrence.
    pub findings: Vec<Finding>,
}

/// A fault that the kernel does not notice, or that only some kernels read over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// The stream gives more than 128 KiB (or another limit), or more than a sector in an inline extent.
    #[error("the stream gives more than {limit} bytes")]
    Overlong {
        /// The most that it may give.
        limit: usize,
    },
    /// There are bytes other than zero after the stream.
    #[error("bytes other than zero after the end of the stream at {at}")]
    TrailingData {
        /// Where the stream ends.
        at: usize,
    },
    /// There are whole sectors, or in an inline extent bytes, after the stream.
    #[error("{len} bytes stored after the end of the stream at {at}")]
    Unused {
        /// Where the stream ends.
        at: usize,
        /// Bytes that nothing needs.
        len: usize,
    },
    /// The adler32 does not match; the kernel does not look at it.
    #[error("adler32 {stored:#010x} expected {computed:#010x}")]
    ZlibAdler {
        /// As stored.
        stored: u32,
        /// Of the bytes decoded.
        computed: u32,
    },
    /// The adler32 after the deflate data is missing in whole or part.
    #[error("no adler32 after the deflate data")]
    ZlibNoAdler,
    /// A segment other than the last does not give exactly one sector, or the last gives more or nothing.
    #[error("lzo segment {index} gives {decoded} bytes, not a sector")]
    LzoSegmentInexact {
        /// Which, from 0.
        index: usize,
        /// Bytes it gives.
        decoded: usize,
    },
    /// The pad before a sector boundary holds other bytes than zero.
    #[error("bytes other than zero in the pad after lzo segment {index}")]
    LzoPadNotZero {
        /// Which segment, from 0.
        index: usize,
    },
    /// The total is not where the last segment and its pad end.
    #[error("lzo total {total}, but the segments end at {end}")]
    LzoTotalInexact {
        /// The total in the header.
        total: usize,
        /// Where the last segment and its pad end.
        end: usize,
    },
    /// The frame's window is larger than 128 KiB, which not all kernels can read.
    #[error("zstd window of {bytes} bytes, above 131072")]
    ZstdWindow {
        /// The window.
        bytes: u64,
    },
    /// The first frame is a skippable one: it reads as zeros.
    #[error("a skippable zstd frame in place of data")]
    ZstdSkippable,
}

impl Decoder {
    /// Judges a regular extent: `stored` is all of it, `disk_num_bytes` long.
    ///
    /// # Errors
    /// [`DecodeError`] for what does not decode, at whatever length.
    pub fn inspect_extent(
        &mut self,
        algorithm: Algorithm,
        stored: &[u8],
        sectorsize: u32,
    ) -> Result<Inspection, DecodeError> {
        self.inspect_extent_of(algorithm, stored, sectorsize, MAX_CHUNK)
    }

    /// The same of one that may give up to `limit` bytes.
    ///
    /// # Errors
    /// As [`inspect_extent`](Self::inspect_extent).
    pub fn inspect_extent_of(
        &mut self,
        algorithm: Algorithm,
        stored: &[u8],
        sectorsize: u32,
        limit: usize,
    ) -> Result<Inspection, DecodeError> {
        let sector = checked_sectorsize(sectorsize)?;
        let mut found = self.inspect_stream(algorithm, stored, sector, limit)?;
        let end = found.stream_len;
        let padding = &stored[end.min(stored.len())..];
        if padding.iter().any(|&byte| byte != 0) {
            found.findings.push(Finding::TrailingData { at: end });
        } else if padding.len() >= sector {
            found.findings.push(Finding::Unused { at: end, len: padding.len() });
        }
        Ok(found)
    }

    /// Judges an inline extent: `stored` is the item's data after its 21-byte head.
    ///
    /// # Errors
    /// [`DecodeError`] for what does not decode, at whatever length.
    pub fn inspect_inline(
        &mut self,
        algorithm: Algorithm,
        stored: &[u8],
        sectorsize: u32,
    ) -> Result<Inspection, DecodeError> {
        let sector = checked_sectorsize(sectorsize)?;
        let mut found = match algorithm {
            Algorithm::Lzo => {
                let room = self.scratch(sector);
                let decoded_len = decode_segment(inline_segment(stored)?, &mut room[..sector])?;
                Inspection { decoded_len, stream_len: stored.len(), findings: Vec::new() }
            }
            _ => self.inspect_stream(algorithm, stored, sector, sector)?,
        };
        let (at, len) = (found.stream_len, stored.len() - found.stream_len);
        if len > 0 {
            found.findings.push(Finding::Unused { at, len });
        }
        Ok(found)
    }

    fn scratch(&mut self, len: usize) -> &mut [u8] {
        self.scratch.resize(self.scratch.len().max(len), 0);
        &mut self.scratch
    }

    fn inspect_stream(
        &mut self,
        algorithm: Algorithm,
        stored: &[u8],
        sectorsize: usize,
        limit: usize,
    ) -> Result<Inspection, DecodeError> {
        self.scratch(limit.max(MAX_CHUNK) + sectorsize + 1 + lzo::worst_case(sectorsize));
        let mut found = match algorithm {
            Algorithm::Zlib => self.inspect_zlib(stored, limit)?,
            Algorithm::Lzo => self.inspect_lzo(stored, sectorsize)?,
            Algorithm::Zstd => self.inspect_zstd(stored, limit)?,
        };
        if found.decoded_len > limit {
            found.decoded_len = limit + 1;
            found.findings.push(Finding::Overlong { limit });
        }
        Ok(found)
    }

    fn inspect_zlib(&mut self, stored: &[u8], limit: usize) -> Result<Inspection, DecodeError> {
        let deflate = zlib::deflate_data(stored)?;
        let out = &mut self.scratch[..limit + 1];
        let inflated = self.zlib.inflate(deflate, out)?;
        let mut found =
            Inspection { decoded_len: inflated.decoded, stream_len: stored.len(), findings: vec![] };
        let Some(consumed) = inflated.consumed else { return Ok(found) };
        let end = zlib::HEADER + consumed;
        found.stream_len = stored.len().min(end + zlib::TRAILER);
        let computed = miniz_oxide::mz_adler32_oxide(miniz_oxide::MZ_ADLER32_INIT, &out[..inflated.decoded]);
        match stored.get(end..end + zlib::TRAILER).map(BE::read_u32) {
            None => found.findings.push(Finding::ZlibNoAdler),
            Some(adler) if adler != computed => {
                found.findings.push(Finding::ZlibAdler { stored: adler, computed });
            }
            Some(_) => {}
        }
        Ok(found)
    }

    fn inspect_zstd(&mut self, stored: &[u8], limit: usize) -> Result<Inspection, DecodeError> {
        let decoded = self.zstd.decode(stored, &mut self.scratch[..limit + 1])?;
        let mut found = Inspection {
            decoded_len: decoded.decoded,
            stream_len: decoded.consumed.unwrap_or(stored.len()),
            findings: Vec::new(),
        };
        if is_skippable(stored) {
            found.findings.push(Finding::ZstdSkippable);
            return Ok(found);
        }
        let window = FrameHeader::parse(stored)?.window;
        if window > 1 << MAX_WINDOW_LOG {
            found.findings.push(Finding::ZstdWindow { bytes: window });
        }
        Ok(found)
    }

    fn inspect_lzo(&mut self, stored: &[u8], sectorsize: usize) -> Result<Inspection, DecodeError> {
        let mut segments = Segments::of_extent(stored, sectorsize)?;
        let total = segments.total();
        let mut found = Inspection { stream_len: total, ..Inspection::default() };
        let room = &mut self.scratch[..lzo::worst_case(sectorsize)];
        let mut end = LENGTH;
        let mut lengths = Vec::new();
        while let Some(segment) = segments.next()? {
            let decoded = decode_segment(segment, room)?;
            if segment.pad.iter().any(|&byte| byte != 0) {
                found.findings.push(Finding::LzoPadNotZero { index: lengths.len() });
            }
            end = end_of(segment);
            found.decoded_len += decoded;
            lengths.push(decoded);
        }
        let last = lengths.len().saturating_sub(1);
        for (index, decoded) in lengths.into_iter().enumerate() {
            let exact =
                if index == last { (1..=sectorsize).contains(&decoded) } else { decoded == sectorsize };
            if !exact {
                found.findings.push(Finding::LzoSegmentInexact { index, decoded });
            }
        }
        let padded = end + pad_after(end, sectorsize);
        if total != padded {
            found.findings.push(Finding::LzoTotalInexact { total, end: padded });
        }
        Ok(found)
    }
}

fn end_of(segment: Segment<'_>) -> usize {
    segment.at + LENGTH + segment.data.len()
}
