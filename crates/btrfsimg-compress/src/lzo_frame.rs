//! btrfs's framing of LZO segments (`format/04 §4.4`): a total, then per sector of input a length and a
//! segment, no length crossing a sector boundary of the stream.

use byteorder::{ByteOrder, LE};

use crate::error::DecodeError;
use crate::lzo::{Encoder, worst_case};
use crate::{Algorithm, MAX_CHUNK};

/// Bytes of the total and of each segment's length.
pub(crate) const LENGTH: usize = 4;

/// Whether pads are written where a length would cross a sector boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A regular extent.
    Extent,
    /// An inline extent: one segment, no pads, lengths exact.
    Inline,
}

/// Zero bytes after a segment that ends at `at`: none, or the 1 to 3 that are left of the sector.
pub(crate) fn pad_after(at: usize, sectorsize: usize) -> usize {
    match at.next_multiple_of(sectorsize) - at {
        left @ 1..LENGTH => left,
        _ => 0,
    }
}

/// Frames `input` into `out` (cleared first). `false` as soon as the stream is longer than `limit`.
pub(crate) fn encode(
    encoder: &mut Encoder,
    framing: Framing,
    input: &[u8],
    sectorsize: usize,
    limit: usize,
    out: &mut Vec<u8>,
) -> bool {
    out.clear();
    out.extend_from_slice(&[0; LENGTH]);
    for sector in input.chunks(sectorsize) {
        let segment = encoder.segment(sector);
        out.extend_from_slice(&length_field(segment.len()));
        out.extend_from_slice(&segment);
        if framing == Framing::Extent {
            out.resize(out.len() + pad_after(out.len(), sectorsize), 0);
        }
        if out.len() > limit {
            return false;
        }
    }
    let total = length_field(out.len());
    out[..LENGTH].copy_from_slice(&total);
    true
}

fn length_field(len: usize) -> [u8; LENGTH] {
    u32::try_from(len).expect("a stream of one chunk is far below 4 GiB").to_le_bytes()
}

/// One segment of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    /// Offset of its length field in the stored bytes.
    pub(crate) at: usize,
    /// Its LZO1X data.
    pub(crate) data: &'a [u8],
    /// The pad after it, as far as it is stored.
    pub(crate) pad: &'a [u8],
}

/// Walks the segments of a regular extent as the kernel does.
#[derive(Debug)]
pub(crate) struct Segments<'a> {
    stored: &'a [u8],
    sectorsize: usize,
    total: usize,
    position: usize,
}

impl<'a> Segments<'a> {
    /// Checks the total: at most 128 KiB, within what is stored, and reaching into the last sector.
    pub(crate) fn of_extent(stored: &'a [u8], sectorsize: usize) -> Result<Segments<'a>, DecodeError> {
        let total = read_length(stored, 0)?;
        let error = DecodeError::LzoTotal { total, stored: stored.len() };
        let total = total as usize;
        let fits = total <= stored.len().min(MAX_CHUNK);
        if !fits || total.next_multiple_of(sectorsize) < stored.len() {
            return Err(error);
        }
        Ok(Segments { stored, sectorsize, total, position: LENGTH })
    }

    /// The total in the header.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The next segment, or `None` at the total.
    pub(crate) fn next(&mut self) -> Result<Option<Segment<'a>>, DecodeError> {
        if self.position >= self.total {
            return Ok(None);
        }
        let at = self.position;
        let len = read_length(self.stored, at)?;
        let start = at + LENGTH;
        let data = usize::try_from(len)
            .ok()
            .filter(|&len| len <= worst_case(self.sectorsize))
            .and_then(|len| self.stored.get(start..start + len))
            .ok_or(DecodeError::LzoSegmentLength { at, len })?;
        let end = start + data.len();
        let next = end + pad_after(end, self.sectorsize);
        let pad = &self.stored[end..next.min(self.stored.len())];
        self.position = next;
        Ok(Some(Segment { at, data, pad }))
    }
}

/// The one segment of an inline extent: the total is the stored length, the segment takes all the rest.
pub(crate) fn inline_segment(stored: &[u8]) -> Result<Segment<'_>, DecodeError> {
    let total = read_length(stored, 0)?;
    if total as usize != stored.len() || stored.len() <= 2 * LENGTH {
        return Err(DecodeError::LzoTotal { total, stored: stored.len() });
    }
    let len = read_length(stored, LENGTH)?;
    if len as usize != stored.len() - 2 * LENGTH {
        return Err(DecodeError::LzoSegmentLength { at: LENGTH, len });
    }
    Ok(Segment { at: LENGTH, data: &stored[2 * LENGTH..], pad: &[] })
}

fn read_length(stored: &[u8], at: usize) -> Result<u32, DecodeError> {
    let field = stored.get(at..at + LENGTH);
    field.map(LE::read_u32).ok_or(DecodeError::Truncated { algorithm: Algorithm::Lzo, decoded: 0 })
}

/// Decodes one segment into `out`, which it need not fill.
pub(crate) fn decode_segment(segment: Segment<'_>, out: &mut [u8]) -> Result<usize, DecodeError> {
    lzokay::decompress::decompress(segment.data, out).map_err(|error| DecodeError::LzoSegment {
        at: segment.at,
        reason: match error {
            lzokay::Error::LookbehindOverrun => "a match before the start of the output",
            lzokay::Error::OutputOverrun => "more output than a sector",
            lzokay::Error::InputOverrun => "the segment ends early",
            lzokay::Error::InputNotConsumed => "bytes after the end marker",
            lzokay::Error::Error => "no valid end marker",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_only_where_a_length_would_cross() {
        // format/04 §4.4: pads seen at 28669 (3 bytes) and 32767 (1 byte); none at a boundary or with 4 left.
        for (at, pad) in [(28669, 3), (32767, 1), (4094, 2), (4092, 0), (4096, 0), (4097, 0), (8192, 0)] {
            assert_eq!(pad_after(at, 4096), pad, "{at}");
        }
        assert_eq!(pad_after(28669, 65536), 0);
    }

    #[test]
    fn worst_cases_of_the_format() {
        assert_eq!(worst_case(4096), 4421);
    }
}
