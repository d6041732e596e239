//! Whether and how the bytes of an inode are compressed: one pure function, one row of the table after the
//! other.

use crate::method::{CompressionSpec, Method};

/// All that the decision depends on, but for the bytes themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Situation {
    /// The inode is NODATACOW or NODATASUM, or its data will be.
    pub nodatacow_or_nodatasum: bool,
    /// What this one command asks for, without storing it in the image (`cp --compress`, `defrag -c`).
    pub request: Option<CompressionSpec>,
    /// What the inode's property says ([`Property::spec`](crate::Property::spec)).
    pub property: Option<CompressionSpec>,
    /// The inode flag NOCOMPRESS.
    pub nocompress: bool,
    /// The inode flag COMPRESS.
    pub compress: bool,
    /// The build's compression, twin of the mount option `compress`.
    pub build_default: Option<CompressionSpec>,
    /// The build's compression was given as `--compress-force`, twin of the mount option.
    pub force: bool,
}

/// What is done with each chunk of the inode's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Stored raw.
    Raw,
    /// Compressed where that saves a sector.
    Try {
        /// How.
        method: Method,
        /// Ask [`heuristic::is_compressible`](crate::heuristic::is_compressible) about each chunk first.
        heuristic: bool,
    },
}

/// Decides by the first row that fits; the order is the kernel's (`format/04 §4.8`) with this command's request
/// in the place of defrag's.
pub fn decide(situation: &Situation) -> Decision {
    let s = situation;
    let build = s.build_default.and_then(CompressionSpec::method);
    let heuristic = !s.force;
    if s.nodatacow_or_nodatasum {
        return Decision::Raw;
    }
    if let Some(request) = s.request {
        return attempt(request.method(), false);
    }
    if let Some(CompressionSpec::Method(method)) = s.property {
        return attempt(Some(method), heuristic);
    }
    if s.property == Some(CompressionSpec::None) || s.nocompress {
        return attempt(build.filter(|_| s.force), false);
    }
    if s.compress {
        return attempt(Some(build.unwrap_or(Method::ZLIB_DEFAULT)), heuristic);
    }
    attempt(build, heuristic)
}

fn attempt(method: Option<Method>, heuristic: bool) -> Decision {
    method.map_or(Decision::Raw, |method| Decision::Try { method, heuristic })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Option<CompressionSpec> {
        Some(text.parse().unwrap())
    }

    fn check(situation: Situation, expect: &str) {
        let shown = match decide(&situation) {
            Decision::Raw => "raw".to_owned(),
            Decision::Try { method, heuristic: true } => format!("{method} if compressible"),
            Decision::Try { method, heuristic: false } => method.to_string(),
        };
        assert_eq!(shown, expect, "{situation:?}");
    }

    /// Every input set, so that a row is seen to win over all rows below it.
    fn everything() -> Situation {
        Situation {
            nodatacow_or_nodatasum: true,
            request: spec("zstd:9"),
            property: spec("zlib:7"),
            nocompress: true,
            compress: true,
            build_default: spec("lzo"),
            force: false,
        }
    }

    #[test]
    fn row_1_nodatacow_is_raw_even_when_forced() {
        check(everything(), "raw");
        check(Situation { force: true, ..everything() }, "raw");
    }

    #[test]
    fn row_2_a_request_wins_over_property_and_flags_and_tries_every_chunk() {
        let s = Situation { nodatacow_or_nodatasum: false, ..everything() };
        check(s, "zstd:9");
        check(Situation { force: true, ..s }, "zstd:9");
        check(Situation { property: spec("none"), ..s }, "zstd:9");
        check(Situation { request: spec("none"), ..s }, "raw");
        check(Situation { request: spec("none"), force: true, ..s }, "raw");
    }

    #[test]
    fn row_3_a_property_keeps_its_level_and_wins_over_a_forced_algorithm() {
        let s = Situation { nodatacow_or_nodatasum: false, request: None, ..everything() };
        check(s, "zlib:7 if compressible");
        check(Situation { force: true, ..s }, "zlib:7");
        check(Situation { build_default: None, ..s }, "zlib:7 if compressible");
    }

    #[test]
    fn row_4_none_and_nocompress_are_raw_unless_forced() {
        let none = Situation { property: spec("none"), build_default: spec("lzo"), ..Situation::default() };
        let flag = Situation { nocompress: true, build_default: spec("lzo"), ..Situation::default() };
        for s in [none, flag] {
            check(s, "raw");
            check(Situation { compress: true, ..s }, "raw");
            check(Situation { force: true, ..s }, "lzo");
            check(Situation { force: true, build_default: None, ..s }, "raw");
            check(Situation { force: true, build_default: spec("none"), ..s }, "raw");
        }
    }

    #[test]
    fn row_5_the_compress_flag_uses_the_builds_algorithm_or_zlib() {
        let s = Situation { compress: true, ..Situation::default() };
        check(s, "zlib:3 if compressible");
        check(Situation { build_default: spec("none"), ..s }, "zlib:3 if compressible");
        check(Situation { build_default: spec("zstd:-5"), ..s }, "zstd:-5 if compressible");
        check(Situation { build_default: spec("zstd:-5"), force: true, ..s }, "zstd:-5");
    }

    #[test]
    fn rows_6_and_7_the_builds_default_or_raw() {
        check(Situation { build_default: spec("zstd:5"), ..Situation::default() }, "zstd:5 if compressible");
        check(Situation { build_default: spec("zstd:5"), force: true, ..Situation::default() }, "zstd:5");
        check(Situation { build_default: spec("none"), ..Situation::default() }, "raw");
        check(Situation::default(), "raw");
    }
}
