//! File bytes to stored bytes, and the rules for when that is worth it (`format/04 §4.1, §4.2`).

use crate::lzo_frame::{self, Framing};
use crate::workspace::{Codec, Workspace};
use crate::{Algorithm, MAX_CHUNK};

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoded {
    /// Compressed: the output holds the stream, padded with zeros to whole sectors.
    Kept {
        /// The algorithm to record in `file_extent.compression`.
        algorithm: Algorithm,
        /// The output's length in bytes, a multiple of the sectorsize: `disk_num_bytes`.
        stored_len: usize,
    },
    /// To be stored raw; the output is empty.
    Raw,
}

/// What became of a whole small file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodedInline {
    /// Inline and compressed: the output holds the exact stream.
    Compressed {
        /// The algorithm to record in `file_extent.compression`.
        algorithm: Algorithm,
        /// The output's length in bytes.
        stored_len: usize,
    },
    /// Inline as it is; the output is empty.
    Raw,
    /// Not inline: too long either way. The output is empty.
    NotInline,
}

/// Compresses a chunk of at most [`MAX_CHUNK`] bytes for a regular extent.
///
/// `input` ends at the end of the file where that comes first; it is not padded to the sector. Kept is what
/// saves at least one sector: with both lengths rounded up to sectors, stored + sectorsize ≤ input.
/// `sectorsize` is that of the file system, in bytes. `out` is cleared; its memory is reused.
///
/// # Panics
/// If `input` is longer than [`MAX_CHUNK`] or `sectorsize` is not a power of two of at least 512.
pub fn encode_extent(workspace: &mut Workspace, input: &[u8], sectorsize: u32, out: &mut Vec<u8>) -> Encoded {
    assert!(input.len() <= MAX_CHUNK, "a chunk has at most {MAX_CHUNK} bytes");
    let sector = checked_sectorsize(sectorsize);
    out.clear();
    // The most that may be stored, a multiple of the sector: below it, rounding up stays below it.
    let limit = input.len().next_multiple_of(sector).saturating_sub(sector);
    if limit == 0 || workspace.is_hopeless(input) {
        return Encoded::Raw;
    }
    if !compress(workspace, Framing::Extent, input, sector, limit, out) {
        out.clear();
        return Encoded::Raw;
    }
    out.resize(out.len().next_multiple_of(sector), 0);
    Encoded::Kept { algorithm: workspace.method().algorithm(), stored_len: out.len() }
}

/// Compresses a whole file for an inline extent, and keeps the smaller of raw and compressed.
///
/// `max_inline` is the most bytes that may be stored, the smaller of the option (default
/// [`DEFAULT_MAX_INLINE`](crate::DEFAULT_MAX_INLINE)) and what a leaf of the image takes (nodesize − 147).
/// A file of more than a sector is never inline, and one of exactly a sector only when compressed.
/// `out` is cleared; its memory is reused. An empty file is [`EncodedInline::NotInline`]: it has no extent.
///
/// # Panics
/// If `sectorsize` is not a power of two of at least 512.
pub fn encode_inline(
    workspace: &mut Workspace,
    input: &[u8],
    sectorsize: u32,
    max_inline: usize,
    out: &mut Vec<u8>,
) -> EncodedInline {
    let sector = checked_sectorsize(sectorsize);
    out.clear();
    if input.is_empty() || input.len() > sector {
        return EncodedInline::NotInline;
    }
    let limit = max_inline.min(input.len() - 1);
    if compress(workspace, Framing::Inline, input, sector, limit, out) {
        return EncodedInline::Compressed {
            algorithm: workspace.method().algorithm(),
            stored_len: out.len(),
        };
    }
    out.clear();
    if input.len() < sector && input.len() <= max_inline {
        return EncodedInline::Raw;
    }
    EncodedInline::NotInline
}

/// The exact stream in `out`; `false` if it is longer than `limit`.
fn compress(
    workspace: &mut Workspace,
    framing: Framing,
    input: &[u8],
    sectorsize: usize,
    limit: usize,
    out: &mut Vec<u8>,
) -> bool {
    match &mut workspace.codec {
        Codec::Zlib(encoder) => encoder.encode(input, out),
        Codec::Zstd(encoder) => encoder.encode(input, out),
        Codec::Lzo(encoder) => return lzo_frame::encode(encoder, framing, input, sectorsize, limit, out),
    }
    out.len() <= limit
}

fn checked_sectorsize(sectorsize: u32) -> usize {
    assert!(sectorsize >= 512 && sectorsize.is_power_of_two(), "sectorsize {sectorsize}");
    sectorsize as usize
}
