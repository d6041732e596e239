//! The value of the property `compression`, stored as the xattr `btrfs.compression`.

use std::fmt;

use crate::error::SpecError;
use crate::method::{Algorithm, CompressionSpec, Method, parse_decimal};

/// A valid value of the xattr `btrfs.compression`: its bytes as they are stored, and what they mean.
///
/// Bytes are kept verbatim, so that `zstd:9` stays `zstd:9` in the image; kernels read it as `zstd`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Property {
    stored: Vec<u8>,
    spec: CompressionSpec,
}

impl Property {
    /// What a user sets: `none`, `no`, or what [`CompressionSpec`] accepts. It is stored as given.
    /// The empty value, which resets, is read by [`PropertyChange::parse_strict`].
    ///
    /// # Errors
    /// [`SpecError`], whose message gives the valid values.
    pub fn parse_strict(text: &str) -> Result<Property, SpecError> {
        let spec = if text == "no" { CompressionSpec::None } else { text.parse()? };
        Ok(Property { stored: text.as_bytes().to_vec(), spec })
    }

    /// What an image holds, by the kernel's rule: exactly `no` or `none`, or anything that starts with `zlib`,
    /// `lzo` or `zstd` (`format/05 §5.2`). `None` for anything else, which the kernel ignores with a warning.
    ///
    /// The kernel stops at the name; ours goes on and reads a level suffix, since levels are inherited with the
    /// value: a number out of range goes to the nearest level, what is no number means the default level.
    pub fn from_stored(stored: &[u8]) -> Option<Property> {
        let spec = match stored {
            b"no" | b"none" => CompressionSpec::None,
            _ => {
                let algorithm =
                    Algorithm::ALL.into_iter().find(|a| stored.starts_with(a.name().as_bytes()))?;
                let level = level_suffix(&stored[algorithm.name().len()..]).unwrap_or(0);
                Method::with_level_clamped(algorithm, level).into()
            }
        };
        Some(Property { stored: stored.to_vec(), spec })
    }

    /// The bytes of the xattr.
    pub fn as_bytes(&self) -> &[u8] {
        &self.stored
    }

    /// What the value asks for.
    pub const fn spec(&self) -> CompressionSpec {
        self.spec
    }

    /// The algorithm, or `None` for `no` and `none`. An algorithm goes with the inode flag COMPRESS, none with
    /// NOCOMPRESS (`format/05 §5.3`); lzo and zstd need their incompat bit in the superblock.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.spec.method().map(Method::algorithm)
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.stored).fmt(f)
    }
}

/// `:level` as the kernel's number parser would read it: an optional sign, digits, one newline at most.
fn level_suffix(suffix: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(suffix.strip_prefix(b":")?).ok()?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    match text.strip_prefix('+') {
        Some(unsigned) if unsigned.starts_with('-') => None,
        Some(unsigned) => parse_decimal(unsigned),
        None => parse_decimal(text),
    }
}

/// What setting the property does: an empty value removes the xattr and clears both inode flags.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PropertyChange {
    /// Remove the property.
    Reset,
    /// Set it.
    Set(Property),
}

impl PropertyChange {
    /// What a user sets, the empty value included.
    ///
    /// # Errors
    /// [`SpecError`], as [`Property::parse_strict`].
    pub fn parse_strict(text: &str) -> Result<PropertyChange, SpecError> {
        if text.is_empty() {
            return Ok(PropertyChange::Reset);
        }
        Property::parse_strict(text).map(PropertyChange::Set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_values_are_strict_and_verbatim() {
        for text in ["none", "no", "lzo", "zlib", "zlib:0", "zlib:9", "zstd", "zstd:-5"] {
            assert_eq!(Property::parse_strict(text).unwrap().as_bytes(), text.as_bytes());
        }
        for text in ["", "zstdfoo", "lzo:1", "zstd:99", "ZSTD", "none\0", "zstd\n", "nope", "n"] {
            assert!(Property::parse_strict(text).is_err(), "{text:?}");
        }
        assert_eq!(PropertyChange::parse_strict("").unwrap(), PropertyChange::Reset);
        assert!(PropertyChange::parse_strict("deflate").is_err());
    }

    #[test]
    fn stored_values_follow_the_kernels_prefix_rule() {
        // format/05 §5.2, the [V] rows.
        for (stored, algorithm) in [
            (&b"zlib"[..], Some(Algorithm::Zlib)),
            (b"lzo", Some(Algorithm::Lzo)),
            (b"zstd", Some(Algorithm::Zstd)),
            (b"zstd:5", Some(Algorithm::Zstd)),
            (b"zlib:9", Some(Algorithm::Zlib)),
            (b"zstd:99", Some(Algorithm::Zstd)),
            (b"zlibfoo", Some(Algorithm::Zlib)),
            (b"lzox", Some(Algorithm::Lzo)),
            (b"zlib zstd", Some(Algorithm::Zlib)),
            (b"zstd\0", Some(Algorithm::Zstd)),
            (b"zstd\n", Some(Algorithm::Zstd)),
            (b"none", None),
            (b"no", None),
        ] {
            let property = Property::from_stored(stored).unwrap();
            assert_eq!(property.algorithm(), algorithm);
            assert_eq!(property.as_bytes(), stored);
        }
        for refused in
            [&b""[..], b"lz", b"zst", b"n", b"nope", b"nonex", b"none\0", b"ZSTD", b"deflate", b"BBBB"]
        {
            assert_eq!(Property::from_stored(refused), None, "{refused:?}");
        }
    }

    #[test]
    fn stored_levels() {
        for (stored, expect) in [
            (&b"zstd"[..], "zstd:3"),
            (b"zstd:5", "zstd:5"),
            (b"zstd:-5", "zstd:-5"),
            (b"zstd:+5", "zstd:5"),
            (b"zstd:5\n", "zstd:5"),
            (b"zstd:0", "zstd:3"),
            (b"zstd:99", "zstd:15"),
            (b"zstd:-99", "zstd:-15"),
            (b"zstd:99999999999999999999", "zstd:15"),
            (b"zstd:", "zstd:3"),
            (b"zstd:x", "zstd:3"),
            (b"zstd:+-5", "zstd:3"),
            (b"zstd:5\0", "zstd:3"),
            (b"zstd:\xff", "zstd:3"),
            (b"zstdfoo", "zstd:3"),
            (b"zlib:-1", "zlib:1"),
            (b"zlib:12", "zlib:9"),
            (b"lzo:7", "lzo"),
        ] {
            assert_eq!(Property::from_stored(stored).unwrap().spec().to_string(), expect, "{stored:?}");
        }
    }
}
