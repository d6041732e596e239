//! Which compression: an algorithm, an algorithm at a level, or none; and how a user writes them.

use std::fmt;
use std::str::FromStr;

use crate::error::SpecError;

/// A compression algorithm of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// RFC 1950 zlib streams.
    #[doc(alias = "BTRFS_COMPRESS_ZLIB")]
    Zlib,
    /// LZO1X segments in btrfs's own framing.
    #[doc(alias = "BTRFS_COMPRESS_LZO")]
    Lzo,
    /// One zstd frame.
    #[doc(alias = "BTRFS_COMPRESS_ZSTD")]
    Zstd,
}

impl Algorithm {
    /// All algorithms, by code.
    pub const ALL: [Algorithm; 3] = [Algorithm::Zlib, Algorithm::Lzo, Algorithm::Zstd];

    /// The value of `file_extent.compression` (1, 2, 3; 0 there means not compressed).
    pub const fn code(self) -> u8 {
        match self {
            Algorithm::Zlib => 1,
            Algorithm::Lzo => 2,
            Algorithm::Zstd => 3,
        }
    }

    /// The algorithm of a `file_extent.compression` value; `None` for 0 and for unknown codes.
    pub const fn from_code(code: u8) -> Option<Algorithm> {
        match code {
            1 => Some(Algorithm::Zlib),
            2 => Some(Algorithm::Lzo),
            3 => Some(Algorithm::Zstd),
            _ => None,
        }
    }

    /// The name in options and properties: `zlib`, `lzo`, `zstd`.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Zlib => "zlib",
            Algorithm::Lzo => "lzo",
            Algorithm::Zstd => "zstd",
        }
    }

    /// Lowest and highest level, or `None` for LZO, which has no levels (`format/04 §4.6`).
    pub const fn level_range(self) -> Option<(i8, i8)> {
        match self {
            Algorithm::Zlib => Some((1, 9)),
            Algorithm::Lzo => None,
            Algorithm::Zstd => Some((-15, 15)),
        }
    }

    /// The range in words, for messages.
    pub(crate) fn level_range_text(self) -> &'static str {
        match self {
            Algorithm::Zlib => "1 to 9 (0 is the default, 3)",
            Algorithm::Lzo => "none",
            Algorithm::Zstd => "-15 to 15 (0 is the default, 3)",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The level that 0 and an absent level mean, for zlib and zstd (`format/04 §4.6`).
pub(crate) const DEFAULT_LEVEL: i8 = 3;

/// An algorithm and, for zlib and zstd, a level in its range. The level is never recorded on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method {
    algorithm: Algorithm,
    /// 0 for LZO, else in the algorithm's range and not 0.
    level: i8,
}

impl Method {
    /// LZO, which has no level.
    pub const LZO: Method = Method { algorithm: Algorithm::Lzo, level: 0 };
    /// zlib at its default level, what an inode with only the COMPRESS flag gets.
    pub const ZLIB_DEFAULT: Method = Method { algorithm: Algorithm::Zlib, level: DEFAULT_LEVEL };
    /// zstd at its default level.
    pub const ZSTD_DEFAULT: Method = Method { algorithm: Algorithm::Zstd, level: DEFAULT_LEVEL };

    /// `algorithm` at its default level.
    pub const fn with_default_level(algorithm: Algorithm) -> Method {
        match algorithm {
            Algorithm::Zlib => Method::ZLIB_DEFAULT,
            Algorithm::Lzo => Method::LZO,
            Algorithm::Zstd => Method::ZSTD_DEFAULT,
        }
    }

    /// `algorithm` at `level`, where 0 is the default level.
    ///
    /// # Errors
    /// [`SpecError::LevelOutOfRange`], and [`SpecError::NoLevels`] for LZO at any level.
    pub fn with_level(algorithm: Algorithm, level: i64) -> Result<Method, SpecError> {
        let (min, max) = algorithm.level_range().ok_or(SpecError::NoLevels(algorithm))?;
        match i8::try_from(level) {
            Ok(0) => Ok(Method::with_default_level(algorithm)),
            Ok(level) if (min..=max).contains(&level) => Ok(Method { algorithm, level }),
            _ => Err(SpecError::LevelOutOfRange { algorithm, level: level.to_string() }),
        }
    }

    /// `algorithm` at `level` as the kernel bends levels: 0 is the default, what is out of range goes to the
    /// nearest level, and LZO ignores it (`format/04 §4.6`).
    pub fn with_level_clamped(algorithm: Algorithm, level: i64) -> Method {
        let Some((min, max)) = algorithm.level_range() else { return Method::LZO };
        if level == 0 {
            return Method::with_default_level(algorithm);
        }
        let clamped = level.clamp(i64::from(min), i64::from(max));
        Method { algorithm, level: i8::try_from(clamped).unwrap_or(DEFAULT_LEVEL) }
    }

    /// The algorithm.
    pub const fn algorithm(self) -> Algorithm {
        self.algorithm
    }

    /// The level; `None` for LZO.
    pub const fn level(self) -> Option<i32> {
        match self.algorithm {
            Algorithm::Lzo => None,
            _ => Some(self.level as i32),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level() {
            Some(level) => write!(f, "{}:{level}", self.algorithm),
            None => write!(f, "{}", self.algorithm),
        }
    }
}

impl From<Method> for CompressionSpec {
    fn from(method: Method) -> Self {
        CompressionSpec::Method(method)
    }
}

/// What someone asks for: a method, or explicitly none.
///
/// Parsing is strict: an exact lower-case name, then for zlib and zstd a colon and a decimal level in range
/// may follow. (The kernel's mount option bends more, `format/04 §4.6`; a property read from an image is
/// understood by [`Property::from_stored`](crate::Property::from_stored) instead.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompressionSpec {
    /// Store raw.
    None,
    /// Compress with this method.
    Method(Method),
}

impl CompressionSpec {
    /// The method, or `None` for no compression.
    pub const fn method(self) -> Option<Method> {
        match self {
            CompressionSpec::None => None,
            CompressionSpec::Method(method) => Some(method),
        }
    }
}

impl fmt::Display for CompressionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompressionSpec::None => f.write_str("none"),
            CompressionSpec::Method(method) => method.fmt(f),
        }
    }
}

impl FromStr for CompressionSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "" => return Err(SpecError::Empty),
            "none" => return Ok(CompressionSpec::None),
            _ => {}
        }
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let algorithm = Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| SpecError::UnknownName(text.to_owned()))?;
        let Some(level) = level else { return Ok(Method::with_default_level(algorithm).into()) };
        if algorithm.level_range().is_none() {
            return Err(SpecError::NoLevels(algorithm));
        }
        let number = parse_decimal(level)
            .ok_or_else(|| SpecError::NotANumber { algorithm, level: level.to_owned() })?;
        let method = Method::with_level(algorithm, number);
        let method = method.map_err(|_| SpecError::LevelOutOfRange { algorithm, level: level.to_owned() })?;
        Ok(method.into())
    }
}

/// `-` and decimal digits, and nothing else; saturates, so that a long number is out of range rather than not
/// a number.
pub(crate) fn parse_decimal(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let magnitude =
        digits.bytes().fold(0i64, |n, b| n.saturating_mul(10).saturating_add(i64::from(b - b'0')));
    Some(if negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> CompressionSpec {
        text.parse().unwrap()
    }

    #[test]
    fn codes_are_those_of_the_format() {
        for (code, name) in [(1, "zlib"), (2, "lzo"), (3, "zstd")] {
            let algorithm = Algorithm::from_code(code).unwrap();
            assert_eq!((algorithm.code(), algorithm.name()), (code, name));
        }
        assert_eq!(Algorithm::from_code(0), None);
        assert_eq!(Algorithm::from_code(4), None);
    }

    #[test]
    fn accepted_values_and_their_canonical_form() {
        for (text, canonical) in [
            ("none", "none"),
            ("lzo", "lzo"),
            ("zlib", "zlib:3"),
            ("zlib:0", "zlib:3"),
            ("zlib:1", "zlib:1"),
            ("zlib:9", "zlib:9"),
            ("zstd", "zstd:3"),
            ("zstd:0", "zstd:3"),
            ("zstd:-5", "zstd:-5"),
            ("zstd:-15", "zstd:-15"),
            ("zstd:15", "zstd:15"),
        ] {
            assert_eq!(spec(text).to_string(), canonical, "{text}");
            assert_eq!(spec(canonical), spec(text), "{canonical} reads back");
        }
    }

    #[test]
    fn every_level_round_trips() {
        for text in (1..=9).map(|l| format!("zlib:{l}")).chain((-15..=15).map(|l| format!("zstd:{l}"))) {
            let shown = spec(&text).to_string();
            assert_eq!(spec(&shown).to_string(), shown);
        }
    }

    #[test]
    fn refused_values_say_what_is_valid() {
        for text in [
            "",
            "z",
            "zs",
            "zstdfoo",
            "ZSTD",
            "Zlib",
            "no",
            "off",
            "zstd:",
            "zstd:16",
            "zstd:-16",
            "zstd: 3",
            "zstd:3x",
            "zstd:+5",
            "zstd:--5",
            "zstd:-",
            "zstd:3:3",
            "zstd ",
            " zstd",
            "zstd\n",
            "zlib:10",
            "zlib:-1",
            "zlib:",
            "lzo:1",
            "lzo:",
            "none:1",
            "zstd:99999999999999999999999",
            "zstd:٣",
        ] {
            let error = text.parse::<CompressionSpec>().unwrap_err().to_string();
            let way_out =
                ["valid are none, lzo, zlib[:1-9], zstd[:-15..15]", "1 to 9", "-15 to 15", "no level"];
            assert!(way_out.iter().any(|words| error.contains(words)), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_level_out_of_range_is_shown_as_typed() {
        for level in ["99999999999999999999", "-99999999999999999999", "16"] {
            let error = format!("zstd:{level}").parse::<CompressionSpec>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("level {level} out of range for zstd")), "{error}");
        }
    }

    #[test]
    fn clamping_is_the_kernels() {
        // format/04 §4.6, the [V] rows.
        for (algorithm, level, expect) in [
            (Algorithm::Zlib, 10, "zlib:9"),
            (Algorithm::Zlib, 99, "zlib:9"),
            (Algorithm::Zlib, -1, "zlib:1"),
            (Algorithm::Zlib, 0, "zlib:3"),
            (Algorithm::Zstd, 16, "zstd:15"),
            (Algorithm::Zstd, 99, "zstd:15"),
            (Algorithm::Zstd, -16, "zstd:-15"),
            (Algorithm::Zstd, -20, "zstd:-15"),
            (Algorithm::Zstd, 0, "zstd:3"),
            (Algorithm::Lzo, 7, "lzo"),
        ] {
            assert_eq!(Method::with_level_clamped(algorithm, level).to_string(), expect);
        }
    }
}
