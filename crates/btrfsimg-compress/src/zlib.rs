//! zlib streams: libdeflate with the feature `fast-zlib`, else miniz_oxide.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF as ONE_BUFFER;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use crate::Algorithm;
use crate::error::DecodeError;

#[cfg(feature = "fast-zlib")]
pub(crate) use fast::Encoder;
#[cfg(not(feature = "fast-zlib"))]
pub(crate) use portable::Encoder;

/// The encoder's crate, for `--version -v`.
pub(crate) const VERSION: &str =
    if cfg!(feature = "fast-zlib") { "libdeflater 1.26.1" } else { "miniz_oxide 0.9.1" };

/// Bytes of the zlib header and of the adler32 after the deflate data.
pub(crate) const HEADER: usize = 2;
pub(crate) const TRAILER: usize = 4;

#[cfg(feature = "fast-zlib")]
mod fast {
    use libdeflater::{CompressionLvl, Compressor};

    /// A libdeflate compressor, made for one libdeflate level.
    pub(crate) struct Encoder {
        compressor: Compressor,
        class: i32,
    }

    impl Encoder {
        /// The level class of a btrfs level, a libdeflate level: encoders of one class are the same.
        ///
        /// Chosen so that what is stored (kept chunks rounded up to 4 KiB sectors, others raw) is at most 0.5 %
        /// above miniz_oxide's at the btrfs level. Measured on 128 KiB chunks of a kernel's source tree
        /// (1200 chunks, 49 MB) and of executables and libraries (500 chunks, 63 MB); difference in stored bytes,
        /// and MB/s of libdeflate / miniz_oxide on one thread:
        ///
        /// | btrfs | libdeflate | source           | executables     |
        /// |-------|------------|------------------|-----------------|
        /// | 1     | 1          | -14.1 %, 227/238 | -10.4 %, 178/154 |
        /// | 2     | 2          | -1.5 %, 197/106  | -3.9 %, 105/81  |
        /// | 3     | 5          | -0.3 %, 166/86   | -2.2 %, 97/55   |
        /// | 4     | 6          | -1.4 %, 110/87   | -2.3 %, 71/49   |
        /// | 5     | 6          | -0.3 %, 110/63   | -1.1 %, 71/37   |
        /// | 6     | 7          | -0.0 %, 85/43    | -0.8 %, 52/22   |
        /// | 7     | 7          | +0.0 %, 85/35    | -0.4 %, 52/17   |
        /// | 8     | 8          | -0.4 %, 53/32    | -0.6 %, 35/15   |
        /// | 9     | 9          | -0.5 %, 43/35    | -0.5 %, 25/13   |
        ///
        /// A second sample (700 and 150 other chunks) gave at most +0.0 % at levels 1 to 7. libdeflate's levels 10 to
        /// 12 store 2 to 3 % less than its 9, at a fifth of the speed and below.
        pub(crate) const fn class_of(level: i32) -> i32 {
            match level {
                ..=1 => 1,
                2 => 2,
                3 => 5,
                4 | 5 => 6,
                6 | 7 => 7,
                8 => 8,
                9.. => 9,
            }
        }

        pub(crate) fn new(level: i32) -> Encoder {
            let class = Self::class_of(level);
            let level = CompressionLvl::new(class).expect("classes are libdeflate levels");
            Encoder { compressor: Compressor::new(level), class }
        }

        pub(crate) fn class(&self) -> i32 {
            self.class
        }

        /// What it takes in memory: libdeflate does not say; its allocations were measured (1.26).
        pub(crate) fn bytes(&self) -> usize {
            if self.class == 1 { 204_800 } else { 671_744 }
        }

        /// The whole zlib stream of `input`, in `out` (cleared first).
        pub(crate) fn encode(&mut self, input: &[u8], out: &mut Vec<u8>) {
            let bound = self.compressor.zlib_compress_bound(input.len());
            out.resize(bound, 0);
            let len = self.compressor.zlib_compress(input, out).expect("the output buffer holds the bound");
            out.truncate(len);
        }
    }
}

#[cfg(any(test, not(feature = "fast-zlib")))]
pub(crate) mod portable {
    use miniz_oxide::DataFormat;
    use miniz_oxide::deflate::core::{
        CompressionStrategy, CompressorOxide, TDEFLFlush, TDEFLStatus, compress,
    };

    /// A miniz_oxide compressor.
    pub(crate) struct Encoder {
        compressor: Box<CompressorOxide>,
        class: i32,
    }

    #[cfg_attr(feature = "fast-zlib", allow(dead_code, reason = "the tests' second opinion"))]
    impl Encoder {
        /// The level class of a btrfs level: encoders of one class are the same.
        pub(crate) const fn class_of(level: i32) -> i32 {
            level
        }

        pub(crate) fn new(level: i32) -> Encoder {
            let raw = u8::try_from(level.clamp(1, 9)).unwrap_or(3);
            let strategy = CompressionStrategy::Default;
            let compressor = Box::new(CompressorOxide::with_params(DataFormat::Zlib, raw, strategy, 15));
            Encoder { compressor, class: level }
        }

        pub(crate) fn class(&self) -> i32 {
            self.class
        }

        /// What it takes in memory: its buffers are private; its allocations were measured (0.9).
        pub(crate) fn bytes(&self) -> usize {
            319_424
        }

        /// The whole zlib stream of `input`, in `out` (cleared first).
        pub(crate) fn encode(&mut self, input: &[u8], out: &mut Vec<u8>) {
            self.compressor.reset();
            // Stored blocks add 5 bytes per 31 KiB at most; header, trailer and slack come on top.
            out.resize(input.len() + input.len() / 1024 + 128, 0);
            let (status, _, len) = compress(&mut self.compressor, input, out, TDEFLFlush::Finish);
            assert_eq!(status, TDEFLStatus::Done, "the output buffer holds the worst case");
            out.truncate(len);
        }
    }
}

/// Decodes zlib streams by the kernel's rule: the header must be plausible, the adler32 is not looked at.
pub(crate) struct Inflater {
    #[cfg(feature = "fast-zlib")]
    fast: libdeflater::Decompressor,
    careful: Box<DecompressorOxide>,
}

/// A deflate stream decoded with its end found.
pub(crate) struct Inflated {
    /// Bytes of output.
    pub(crate) decoded: usize,
    /// Bytes of deflate data, or `None` if the output was full before the stream ended.
    pub(crate) consumed: Option<usize>,
}

impl Inflater {
    pub(crate) fn new() -> Inflater {
        Inflater {
            #[cfg(feature = "fast-zlib")]
            fast: libdeflater::Decompressor::new(),
            careful: Box::default(),
        }
    }

    /// Fills `out` from the start with what the stream gives and says how much that is; a stream that gives
    /// more is cut, and what comes after the stream is ignored.
    pub(crate) fn decode(&mut self, stored: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let deflate = deflate_data(stored)?;
        #[cfg(feature = "fast-zlib")]
        if let Ok(decoded) = self.fast.deflate_decompress(deflate, out) {
            return Ok(decoded);
        }
        // Too long for `out`, or damaged: this decoder can tell, and keeps what came before.
        self.inflate(deflate, out).map(|inflated| inflated.decoded)
    }

    /// As [`decode`](Self::decode) on bare deflate data, more slowly, and finds the stream's end.
    pub(crate) fn inflate(&mut self, deflate: &[u8], out: &mut [u8]) -> Result<Inflated, DecodeError> {
        self.careful.init();
        let (status, consumed, decoded) = decompress(&mut self.careful, deflate, out, 0, ONE_BUFFER);
        match status {
            TINFLStatus::Done => Ok(Inflated { decoded, consumed: Some(consumed) }),
            _ if decoded == out.len() => Ok(Inflated { decoded, consumed: None }),
            TINFLStatus::FailedCannotMakeProgress | TINFLStatus::NeedsMoreInput => {
                Err(DecodeError::Truncated { algorithm: Algorithm::Zlib, decoded })
            }
            _ => Err(DecodeError::Deflate { decoded }),
        }
    }
}

/// The deflate data behind a plausible header: method 8, window at most 32 KiB, no preset dictionary, check
/// bits right. The kernel refuses everything else (`format/04 §4.3`).
pub(crate) fn deflate_data(stored: &[u8]) -> Result<&[u8], DecodeError> {
    let &[cmf, flags, ref deflate @ ..] = stored else {
        return Err(DecodeError::Truncated { algorithm: Algorithm::Zlib, decoded: 0 });
    };
    let method = cmf & 0x0f;
    let window_log = (cmf >> 4) + 8;
    let preset_dictionary = flags & 0x20 != 0;
    let check = u16::from_be_bytes([cmf, flags]);
    if method != 8 || window_log > 15 || preset_dictionary || check % 31 != 0 {
        return Err(DecodeError::ZlibHeader(cmf, flags));
    }
    Ok(deflate)
}
