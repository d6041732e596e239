//! What can go wrong: a compression that a user asked for and that does not exist, and stored bytes that do
//! not decode.

use crate::Algorithm;

/// What a user may write, for messages.
pub(crate) const VALID: &str = "none, lzo, zlib[:1-9], zstd[:-15..15]";

/// A compression or property value that is not one of the valid ones. Messages give the valid values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The value is empty.
    #[error("empty compression value, valid are {VALID}")]
    Empty,
    /// No algorithm of that name; names are exact and lower case.
    #[error("unknown compression '{0}', valid are {VALID}")]
    UnknownName(String),
    /// The part after the colon is not a decimal number.
    #[error("invalid level '{level}' for {algorithm}, valid levels are {}", .algorithm.level_range_text())]
    NotANumber {
        /// The algorithm that was named.
        algorithm: Algorithm,
        /// The text after the colon.
        level: String,
    },
    /// The level is a number outside the algorithm's range.
    #[error("level {level} out of range for {algorithm}, valid levels are {}", .algorithm.level_range_text())]
    LevelOutOfRange {
        /// The algorithm that was named.
        algorithm: Algorithm,
        /// The number after the colon, as typed.
        level: String,
    },
    /// A level was given for an algorithm that has none.
    #[error("{0} takes no level")]
    NoLevels(Algorithm),
}

/// Stored bytes that do not decode, where the kernel would give an I/O error too (one exception is noted at
/// [`DecodeError::Truncated`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The caller's sectorsize is not a power of two of at least 512 bytes.
    #[error("sectorsize {0} is not a power of two of at least 512")]
    BadSectorsize(u32),
    /// The zlib header names a method other than deflate, a window above 32 KiB or a preset dictionary, or
    /// its check bits are wrong (`format/04 §4.3`).
    #[error("invalid zlib header {0:02x} {1:02x}")]
    ZlibHeader(u8, u8),
    /// The deflate data is malformed at about this output offset.
    #[error("corrupt deflate data after {decoded} bytes of output")]
    Deflate {
        /// Bytes decoded before the fault.
        decoded: usize,
    },
    /// The stored bytes end before the stream does. For zstd the kernel gives zeros instead of an error.
    #[error("{algorithm} stream ends early, after {decoded} bytes of output")]
    Truncated {
        /// The algorithm of the stream.
        algorithm: Algorithm,
        /// Bytes decoded before the end of the input.
        decoded: usize,
    },
    /// The LZO total is too small, above 128 KiB, above the stored length, or leaves whole sectors unused.
    #[error("invalid lzo total length {total} for {stored} stored bytes")]
    LzoTotal {
        /// The total in the header.
        total: u32,
        /// Bytes stored.
        stored: usize,
    },
    /// An LZO segment is longer than the worst case of a sector or than what is stored.
    #[error("invalid lzo segment length {len} at byte {at}")]
    LzoSegmentLength {
        /// Offset of the segment's header in the stored bytes.
        at: usize,
        /// The length it claims.
        len: u32,
    },
    /// An LZO segment does not decode.
    #[error("corrupt lzo segment at byte {at}: {reason}")]
    LzoSegment {
        /// Offset of the segment's header in the stored bytes.
        at: usize,
        /// The decoder's reason.
        reason: &'static str,
    },
    /// The bytes do not start with a zstd frame.
    #[error("no zstd frame magic")]
    ZstdMagic,
    /// The zstd frame header uses a reserved bit or a dictionary.
    #[error("unsupported zstd frame header: {0}")]
    ZstdHeader(&'static str),
    /// The zstd frame asks for a window that no kernel has room for.
    #[error("zstd window of {bytes} bytes, more than any kernel has room for")]
    ZstdWindow {
        /// The window.
        bytes: u64,
    },
    /// The zstd frame is malformed.
    #[error("corrupt zstd frame after {decoded} bytes of output: {reason}")]
    Zstd {
        /// Bytes decoded before the fault.
        decoded: usize,
        /// The decoder's reason.
        reason: &'static str,
    },
}
