//! Stored bytes to file bytes, as leniently as the kernel.

use crate::error::DecodeError;
use crate::lzo_frame::{Segments, decode_segment, inline_segment};
use crate::{Algorithm, lzo, zlib, zstd};

/// Decoding contexts and buffers, reused from extent to extent; one per thread.
pub struct Decoder {
    pub(crate) zlib: zlib::Inflater,
    pub(crate) zstd: zstd::FrameDecoder,
    /// A segment that may not fit the caller's buffer; what `inspect_` decodes into.
    pub(crate) scratch: Vec<u8>,
    any_window: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Decoder {
    /// Contexts for all algorithms, about 200 KiB.
    pub fn new() -> Decoder {
        let (zlib, zstd) = (zlib::Inflater::new(), zstd::FrameDecoder::new());
        Decoder { zlib, zstd, scratch: Vec::new(), any_window: false }
    }

    /// Whether zstd frames are read whose window is larger than any kernel has room for: for a salvage.
    pub fn read_any_window(&mut self, any: bool) {
        self.any_window = any;
    }

    /// Decodes a regular extent. `stored` is all of it, `disk_num_bytes` long; `out` is `ram_bytes` long, and
    /// all of it is written: what the stream does not give is zero. Returns how many bytes the stream gave;
    /// a stream that gives more than `out` holds is cut. What follows the stream is ignored. `out` may be longer than
    /// [`MAX_CHUNK`](crate::MAX_CHUNK), as kernels go by `ram_bytes`.
    ///
    /// # Errors
    /// [`DecodeError`], where the kernel fails too; `out` then holds no meaningful bytes.
    pub fn decode_extent(
        &mut self,
        algorithm: Algorithm,
        stored: &[u8],
        sectorsize: u32,
        out: &mut [u8],
    ) -> Result<usize, DecodeError> {
        let sector = checked_sectorsize(sectorsize)?;
        let decoded = match algorithm {
            Algorithm::Zlib => self.zlib.decode(stored, out)?,
            Algorithm::Lzo => self.decode_lzo(stored, sector, out)?,
            Algorithm::Zstd => {
                if !self.any_window {
                    zstd::check_window(stored)?;
                }
                self.zstd.decode(stored, out)?.decoded
            }
        };
        out[decoded..].fill(0);
        Ok(decoded)
    }

    /// Decodes an inline extent. `stored` is the item's data after its 21-byte head, `out` is `ram_bytes` long.
    /// As [`decode_extent`](Self::decode_extent) else; LZO's lengths must be exact here (`format/04 §4.4`).
    ///
    /// # Errors
    /// [`DecodeError`], where the kernel fails too; `out` then holds no meaningful bytes.
    pub fn decode_inline(
        &mut self,
        algorithm: Algorithm,
        stored: &[u8],
        sectorsize: u32,
        out: &mut [u8],
    ) -> Result<usize, DecodeError> {
        let sector = checked_sectorsize(sectorsize)?;
        if algorithm != Algorithm::Lzo {
            return self.decode_extent(algorithm, stored, sectorsize, out);
        }
        self.scratch.resize(self.scratch.len().max(sector), 0);
        let given = decode_segment(inline_segment(stored)?, &mut self.scratch[..sector])?;
        let decoded = given.min(out.len());
        out[..decoded].copy_from_slice(&self.scratch[..decoded]);
        out[decoded..].fill(0);
        Ok(decoded)
    }

    /// Segment after segment, until the stream ends or `out` is full, whichever comes first: the kernel looks
    /// no further than the bytes that it needs.
    fn decode_lzo(&mut self, stored: &[u8], sectorsize: usize, out: &mut [u8]) -> Result<usize, DecodeError> {
        let mut segments = Segments::of_extent(stored, sectorsize)?;
        // The kernel lets a segment give up to the worst case of a sector.
        let room = lzo::worst_case(sectorsize);
        self.scratch.resize(self.scratch.len().max(room), 0);
        let mut filled = 0;
        while filled < out.len()
            && let Some(segment) = segments.next()?
        {
            let rest = &mut out[filled..];
            if rest.len() >= room {
                filled += decode_segment(segment, &mut rest[..room])?;
                continue;
            }
            let given = decode_segment(segment, &mut self.scratch[..room])?.min(rest.len());
            rest[..given].copy_from_slice(&self.scratch[..given]);
            filled += given;
        }
        Ok(filled)
    }
}

pub(crate) fn checked_sectorsize(sectorsize: u32) -> Result<usize, DecodeError> {
    if sectorsize < 512 || !sectorsize.is_power_of_two() {
        return Err(DecodeError::BadSectorsize(sectorsize));
    }
    usize::try_from(sectorsize).map_err(|_| DecodeError::BadSectorsize(sectorsize))
}
