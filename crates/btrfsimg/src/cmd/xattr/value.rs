//! How values are written: as text, `0x…` or `0s…`, as setfattr(1) has it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The bytes that `text` stands for.
pub(super) fn parse(text: &[u8]) -> Result<Vec<u8>, String> {
    match text {
        [b'0', b'x' | b'X', hex @ ..] => {
            let digits: Option<Vec<u32>> = hex.iter().map(|b| char::from(*b).to_digit(16)).collect();
            let (pairs, rest) = digits.as_deref().unwrap_or(&[0]).as_chunks::<2>();
            if !rest.is_empty() {
                return Err("a value that begins with 0x has two hexadecimal digits for each byte; \
                            text that begins so goes in double quotes"
                    .to_owned());
            }
            Ok(pairs.iter().map(|[high, low]| u8::try_from(high << 4 | low).unwrap_or(0)).collect())
        }
        [b'0', b's' | b'S', coded @ ..] => STANDARD.decode(coded).map_err(|e| {
            format!("a value that begins with 0s is base64 ({e}); text that begins so goes in double quotes")
        }),
        [b'"', inner @ .., b'"'] => Ok(inner.to_vec()),
        text => Ok(text.to_vec()),
    }
}

/// The value as [`parse`] takes it: as text where it is some, else in base64.
pub(super) fn shown(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.chars().any(char::is_control) => {
            let quoted = parse(value).as_deref() != Ok(value);
            if quoted { format!("\"{text}\"") } else { text.to_owned() }
        }
        _ => format!("0s{}", STANDARD.encode(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_what_is_set() {
        let cases: [(&[u8], &str); 8] = [
            (b"plain text", "plain text"),
            (b"", ""),
            (b"\x00\x01\xff", "0sAAH/"),
            (b"a\n", "0sYQo="),
            (b"0x12", "\"0x12\""),
            (b"0sabc", "\"0sabc\""),
            (b"\"q\"", "\"\"q\"\""),
            ("\u{e4}".as_bytes(), "\u{e4}"),
        ];
        for (bytes, text) in cases {
            assert_eq!(shown(bytes), text);
            assert_eq!(parse(text.as_bytes()).as_deref(), Ok(bytes), "{text}");
        }
        assert_eq!(parse(b"0xDEadbeef").as_deref(), Ok(&[0xde, 0xad, 0xbe, 0xef][..]));
        assert_eq!(parse(b"0x").as_deref(), Ok(&[][..]));
        for wrong in [&b"0x1"[..], b"0xgg", b"0s!", b"0sYQ"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
