//! Sizes on the command line: `64M`, `10%`.

/// Bytes: a number with one of the suffixes k, M, G, T, P, E (1024 each), in any case; below 2^63, as file systems have it.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        "e" | "eib" => 60,
        other => return Err(format!("unknown suffix '{other}'; valid are k, M, G, T, P, E (1024 each)")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("'{text}' is no size; write 512M, 2G or bytes"))?;
    number.checked_mul(1 << shift).filter(|n| *n < 1 << 63).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1024),
            ("3M", 3 << 20),
            ("2g", 2 << 30),
            ("1TiB", 1 << 40),
            ("1p", 1 << 50),
            ("7E", 7 << 60),
            ("9223372036854775807", u64::MAX >> 1),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "1.5G", "-1", "12X", "99999999999T", "8E", "9223372036854775808", "1 M"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
