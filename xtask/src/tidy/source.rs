//! A Rust file reduced to its code: same length and lines, but without comments, strings and characters.

/// A file of the workspace.
pub(super) struct Source {
    /// Relative to the top, with `/`.
    pub(super) name: String,
    /// Comments and the insides of literals are blanks.
    pub(super) code: String,
    /// As `code`, but items under `#[cfg(test)]` are blanks too; all of a file of tests.
    pub(super) product: String,
}

impl Source {
    pub(super) fn new(name: &str, text: &str) -> Source {
        let code = blank_literals(text);
        let is_tests = name.split('/').any(|part| ["tests", "tests.rs", "benches"].contains(&part));
        let product = if is_tests { blank_all(&code) } else { blank_tests(&code) };
        Source { name: name.to_owned(), code, product }
    }
}

/// The 1-based line of a byte offset.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1
}

/// Where `word` occurs as a whole word (its own first and last characters decide what that means).
pub(super) fn find_words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_name = |b: Option<&u8>| b.is_some_and(|&b| b == b'_' || b.is_ascii_alphanumeric());
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let end = at + word.len();
        let joined_before = at > 0 && is_name(word.as_bytes().first()) && is_name(bytes.get(at - 1));
        let joined_after = is_name(word.as_bytes().last()) && is_name(bytes.get(end));
        !joined_before && !joined_after
    })
}

fn blank_all(code: &str) -> String {
    code.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect()
}

/// Blanks `range`, newlines excepted. Only whole literals and comments are blanked, so UTF-8 stays whole.
fn blank(out: &mut [u8], range: std::ops::Range<usize>) {
    for byte in &mut out[range] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

fn blank_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        match end {
            Some(end) => {
                blank(&mut out, at..end);
                at = end;
            }
            None => at += 1,
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The end of the comment, string or character that begins at `at`.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let to = |len: Option<usize>| Some(len.map_or(bytes.len(), |len| at + len));
    if rest.starts_with(b"//") {
        return to(rest.iter().position(|&b| b == b'\n'));
    }
    if rest.starts_with(b"/*") {
        return to(block_comment_len(rest));
    }
    match rest[0] {
        b'"' => to(quoted_len(rest, b'"')),
        b'\'' => char_len(rest).map(|len| at + len),
        b'r' if at == 0 || !is_name(bytes[at - 1]) || is_byte_prefix(bytes, at - 1) => {
            raw_string_len(rest).and_then(to)
        }
        _ => None,
    }
}

fn is_name(b: u8) -> bool {
    b == b'_' || b.is_ascii_alphanumeric()
}

/// The `b` or `c` of `br"…"`, which is no end of a longer name.
fn is_byte_prefix(bytes: &[u8], at: usize) -> bool {
    matches!(bytes[at], b'b' | b'c') && (at == 0 || !is_name(bytes[at - 1]))
}

fn block_comment_len(rest: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn quoted_len(rest: &[u8], quote: u8) -> Option<usize> {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b if b == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

/// `'x'`, `'\n'`, `'é'`; a lifetime has no second quote right behind one character.
fn char_len(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        return quoted_len(rest, b'\'');
    }
    let first = *rest.get(1)?;
    let width = match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    };
    (first != b'\'' && rest.get(1 + width) == Some(&b'\'')).then_some(width + 2)
}

/// `r"…"`, `r##"…"##`: `Some(None)` where it has no end, `None` where it is no raw string.
fn raw_string_len(rest: &[u8]) -> Option<Option<usize>> {
    let hashes = rest[1..].iter().take_while(|&&b| b == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let body = 2 + hashes;
    let found = rest[body..].windows(end.len()).position(|w| w == end);
    Some(found.map(|at| body + at + end.len()))
}

fn blank_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    for (at, attribute) in code.match_indices("#[cfg(test)]") {
        let end = at + attribute.len() + item_len(&code.as_bytes()[at + attribute.len()..]);
        blank(&mut out, at..end);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Up to a `;` or the brace that closes the first one.
fn item_len(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    for (at, b) in rest.iter().enumerate() {
        match b {
            b';' if depth == 0 => return at + 1,
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank() {
        let cases = [
            ("a // b", "a     "),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x\"y", z)"#, "f(      , z)"),
            (r##"r#"a"b"# + c"##, "         + c"),
            (r#"br"x" + attr"#, "b     + attr"),
            (r#"for"x""#, "for   "),
            ("'\"' + 'b' + 'a", "    +     + 'a"),
            (r"'\'' x", "     x"),
            ("fn f<'a>(x: &'a u8)", "fn f<'a>(x: &'a u8)"),
            ("'é' x", "     x"),
        ];
        for (text, expect) in cases {
            assert_eq!(blank_literals(text), expect, "{text}");
        }
    }

    #[test]
    fn tests_are_no_product() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { c(); }\n}\nfn d() {}\n";
        let source = Source::new("crates/x/src/lib.rs", text);
        assert_eq!(
            source.product.split_whitespace().collect::<Vec<_>>(),
            ["fn", "a()", "{}", "fn", "d()", "{}"]
        );
        assert_eq!(line_of(&source.product, source.product.find("fn d").unwrap()), 6);
        let source = Source::new("crates/x/src/lib.rs", "#[cfg(test)]\nmod tests;\nfn d() {}");
        assert_eq!(source.product.trim(), "fn d() {}");
        assert_eq!(Source::new("crates/x/tests/a.rs", "fn a() {}").product.trim(), "");
    }

    #[test]
    fn words_are_whole() {
        let code = "println!(x); eprintln!(y); std::fs::read; my_std::fs; std::fsx; a.sync(); a.sync_all()";
        let count = |word| find_words(code, word).count();
        assert_eq!(count("println!"), 1);
        assert_eq!(count("std::fs"), 1);
        assert_eq!(count(".sync("), 1);
    }
}
