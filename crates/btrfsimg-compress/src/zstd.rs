//! zstd frames: one-shot encoding with the window capped, and decoding of whatever frame is there.

use zstd_safe::{CCtx, CParameter, DCtx, InBuffer, OutBuffer, ResetDirective};

use crate::error::DecodeError;
use crate::{Algorithm, MAX_CHUNK};

/// The largest window that the kernel's decoder is sure to have room for, 128 KiB (`format/04 §4.5`).
pub(crate) const MAX_WINDOW_LOG: u32 = 17;

/// The largest window that any workspace of a kernel has room for: Linux 6.18 reads frames of 2.5 MiB while its largest
/// workspace is idle, and none of 3 MiB.
const READ_WINDOW: u64 = 5 << 19;
/// The largest window in a header that kernels take at all, whatever the content size.
const HEADER_WINDOW: u64 = (1 << 27) + 1;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Skippable frames start with 0x184D2A50 to 0x184D2A5F, little-endian.
const SKIPPABLE_MAGIC: [u8; 3] = [0x2a, 0x4d, 0x18];

static ZEROS: [u8; MAX_CHUNK] = [0; MAX_CHUNK];

/// A compression context whose tables are allocated when it is made, for the largest chunk at its level.
///
/// Over small files zstd trades them for smaller ones, once in 128 frames at most, and gets them back with the next
/// large chunk: what the context takes varies, what it is good for does not.
pub(crate) struct Encoder {
    context: CCtx<'static>,
    level: i32,
    made_for: i32,
}

impl Encoder {
    pub(crate) fn new(level: i32) -> Encoder {
        Encoder::with(level, &[CParameter::WindowLog(MAX_WINDOW_LOG)])
    }

    /// Level 1 tuned to notice small gains: matches of 4 bytes instead of 6, and, by way of a small window,
    /// blocks of 16 KiB instead of 128, of which each may win for itself. Never stored.
    pub(crate) fn for_probing() -> Encoder {
        Encoder::with(1, &[CParameter::WindowLog(14), CParameter::MinMatch(4)])
    }

    fn with(level: i32, tuning: &[CParameter]) -> Encoder {
        let mut context = CCtx::create();
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::ContentSizeFlag(true),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            set(&mut context, parameter);
        }
        for &parameter in tuning {
            set(&mut context, parameter);
        }
        let mut encoder = Encoder { context, level, made_for: level };
        encoder.fill();
        encoder
    }

    /// Lets the context work at `level`; allocates when that needs larger tables than it has.
    pub(crate) fn set_level(&mut self, level: i32) {
        if self.level != level {
            set(&mut self.context, CParameter::CompressionLevel(level));
            self.level = level;
        }
    }

    /// What a context for `level` takes in memory, as zstd 1.5.7 has it for 128 KiB on 64-bit machines. It does
    /// not grow with the level: 4 needs more than 5 to 10. Too small a figure costs a hidden reallocation.
    pub(crate) const fn bytes_for(level: i32) -> usize {
        match level {
            ..=0 => 533_528,
            1 => 549_912,
            2 => 648_216,
            3 => 910_360,
            5..=10 => 1_172_504,
            4 | 11 => 1_565_720,
            12 => 2_090_008,
            13 => 2_239_256,
            14.. => 2_883_734,
        }
    }

    /// How many bytes more than a context for `level` needs it was made with; `None` when it was made with fewer.
    pub(crate) fn surplus_for(&self, level: i32) -> Option<usize> {
        Encoder::bytes_for(self.made_for).checked_sub(Encoder::bytes_for(level))
    }

    /// What the context takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.context.sizeof()
    }

    /// The frame of `input` in `out` (cleared first): single segment, content size known, no checksum.
    pub(crate) fn encode(&mut self, input: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.reserve(zstd_safe::compress_bound(input.len()));
        if let Err(code) = self.context.compress2(out, input) {
            // Possible is only a failed allocation, and that ends a Rust program.
            panic!("zstd compression failed: {}", zstd_safe::get_error_name(code));
        }
    }

    /// Has the context allocate all that it needs.
    fn fill(&mut self) {
        let mut unread = [0; 1024];
        if let Err(code) = self.context.compress2(&mut unread[..], &ZEROS) {
            panic!("zstd compression failed: {}", zstd_safe::get_error_name(code));
        }
    }
}

fn set(context: &mut CCtx<'static>, parameter: CParameter) {
    if let Err(code) = context.set_parameter(parameter) {
        panic!("zstd refuses {parameter:?}: {}", zstd_safe::get_error_name(code));
    }
}

/// The fields of a frame header that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of the header, magic included.
    pub(crate) len: usize,
    /// The window in bytes; of a single-segment frame its content size.
    pub(crate) window: u64,
    /// The content size, where the frame gives one.
    pub(crate) content_size: Option<u64>,
    /// A content checksum follows the last block.
    pub(crate) checksum: bool,
}

impl FrameHeader {
    /// Reads the header of the frame at the start of `stored` (RFC 8878, 3.1.1).
    pub(crate) fn parse(stored: &[u8]) -> Result<FrameHeader, DecodeError> {
        let mut rest = stored.strip_prefix(&MAGIC).ok_or(DecodeError::ZstdMagic)?;
        let descriptor = take(&mut rest, 1)?[0];
        if descriptor & 0x08 != 0 {
            return Err(DecodeError::ZstdHeader("reserved bit set"));
        }
        let single_segment = descriptor & 0x20 != 0;
        let window = if single_segment { None } else { Some(window_size(take(&mut rest, 1)?[0])) };
        let dictionary = take(&mut rest, [0, 1, 2, 4][usize::from(descriptor & 3)])?;
        if dictionary.iter().any(|&byte| byte != 0) {
            return Err(DecodeError::ZstdHeader("a dictionary is needed"));
        }
        let content_size = match descriptor >> 6 {
            0 if !single_segment => None,
            0 => Some(little_endian(take(&mut rest, 1)?)),
            1 => Some(little_endian(take(&mut rest, 2)?) + 256),
            2 => Some(little_endian(take(&mut rest, 4)?)),
            _ => Some(little_endian(take(&mut rest, 8)?)),
        };
        Ok(FrameHeader {
            len: stored.len() - rest.len(),
            window: window.or(content_size).unwrap_or(0),
            content_size,
            checksum: descriptor & 0x04 != 0,
        })
    }
}

fn window_size(byte: u8) -> u64 {
    let base = 1u64 << (10 + (byte >> 3));
    base + base / 8 * u64::from(byte & 7)
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], DecodeError> {
    rest.split_off(..len).ok_or(DecodeError::Truncated { algorithm: Algorithm::Zstd, decoded: 0 })
}

/// A frame decoded with its end found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// Bytes of output.
    pub(crate) decoded: usize,
    /// Bytes of the frame, or `None` if the output was full before the frame ended.
    pub(crate) consumed: Option<usize>,
}

/// A decompression context.
pub(crate) struct FrameDecoder {
    context: DCtx<'static>,
}

impl FrameDecoder {
    pub(crate) fn new() -> FrameDecoder {
        FrameDecoder { context: DCtx::create() }
    }

    /// Fills `out` from the start with what the first frame gives. A frame that gives more is cut; a skippable
    /// frame gives nothing (the kernel reads zeros there too); what follows the frame is ignored.
    pub(crate) fn decode(&mut self, stored: &[u8], out: &mut [u8]) -> Result<Decoded, DecodeError> {
        // One shot needs the frame's exact length, but no window buffer and no copy.
        if let Ok(len) = zstd_safe::find_frame_compressed_size(stored)
            && let Ok(decoded) = self.context.decompress(out, &stored[..len])
        {
            return Ok(Decoded { decoded, consumed: Some(len) });
        }
        if is_skippable(stored) {
            return Err(DecodeError::Truncated { algorithm: Algorithm::Zstd, decoded: 0 });
        }
        self.decode_stepwise(stored, out)
    }

    /// For frames longer than `out` and for damaged ones: block by block, keeping what came before the fault.
    ///
    /// The frame's header is replaced by one whose window is just large enough for `out`, so that a hostile
    /// header cannot ask for memory: no match inside the first n bytes of output reaches back more than n.
    fn decode_stepwise(&mut self, stored: &[u8], out: &mut [u8]) -> Result<Decoded, DecodeError> {
        let header = FrameHeader::parse(stored)?;
        let window_log = out.len().max(MAX_CHUNK).next_power_of_two().ilog2().min(27);
        let window_byte = u8::try_from(window_log - 10).unwrap_or(0) << 3;
        let [m0, m1, m2, m3] = MAGIC;
        let substitute = [m0, m1, m2, m3, if header.checksum { 0x04 } else { 0 }, window_byte];
        let fault = |code, decoded| DecodeError::Zstd { decoded, reason: zstd_safe::get_error_name(code) };

        self.context.reset(ResetDirective::SessionOnly).map_err(|code| fault(code, 0))?;
        let wanted = out.len();
        let mut output = OutBuffer::around(out);
        let mut input = InBuffer::around(&substitute);
        self.context.decompress_stream(&mut output, &mut input).map_err(|code| fault(code, 0))?;
        let mut input = InBuffer::around(&stored[header.len..]);
        loop {
            let before = (input.pos(), output.pos());
            let hint = self.context.decompress_stream(&mut output, &mut input);
            let decoded = output.pos();
            match hint {
                Ok(0) if header.content_size.is_some_and(|size| size != decoded as u64) => {
                    return Err(DecodeError::Zstd { decoded, reason: "not the content size in the header" });
                }
                Ok(0) => return Ok(Decoded { decoded, consumed: Some(header.len + input.pos()) }),
                _ if decoded == wanted => return Ok(Decoded { decoded, consumed: None }),
                Ok(_) if before == (input.pos(), decoded) => {
                    return Err(DecodeError::Truncated { algorithm: Algorithm::Zstd, decoded });
                }
                Ok(_) => {}
                Err(code) => return Err(fault(code, decoded)),
            }
        }
    }
}

/// Whether kernels have room for the window of the frame: of as much as the content has, where that is known.
pub(crate) fn check_window(stored: &[u8]) -> Result<(), DecodeError> {
    // What is no frame is for the decoder to say.
    let Ok(FrameHeader { window, content_size, .. }) = FrameHeader::parse(stored) else { return Ok(()) };
    let is_read =
        window <= HEADER_WINDOW && content_size.map_or(window, |size| window.min(size)) <= READ_WINDOW;
    if is_read { Ok(()) } else { Err(DecodeError::ZstdWindow { bytes: window }) }
}

/// Whether `stored` starts with a skippable frame.
pub(crate) fn is_skippable(stored: &[u8]) -> bool {
    stored.first_chunk::<4>().is_some_and(|m| m[0] & 0xf0 == 0x50 && m[1..] == SKIPPABLE_MAGIC)
}
