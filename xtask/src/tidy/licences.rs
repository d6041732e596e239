//! SPDX licence expressions: `(MIT OR Apache-2.0) AND Unicode-3.0`, and the old `MIT/Apache-2.0`.

/// Whether the licences that `allowed` names are enough to use what is under `expression`.
/// What does not parse is not allowed.
pub(super) fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { tokens: &tokens, allowed };
    parser.or() == Some(true) && parser.tokens.is_empty()
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl Parser<'_> {
    fn take(&mut self, token: &str) -> bool {
        let found = self.tokens.first() == Some(&token);
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    fn or(&mut self) -> Option<bool> {
        let mut value = self.and()?;
        while self.take("OR") {
            value |= self.and()?;
        }
        Some(value)
    }

    fn and(&mut self) -> Option<bool> {
        let mut value = self.licence()?;
        while self.take("AND") {
            value &= self.licence()?;
        }
        Some(value)
    }

    fn licence(&mut self) -> Option<bool> {
        if self.take("(") {
            let value = self.or()?;
            return self.take(")").then_some(value);
        }
        let (name, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        if !self.take("WITH") {
            return Some(self.allowed.contains(name));
        }
        let (exception, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(self.allowed.contains(&format!("{name} WITH {exception}").as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];
        let cases = [
            ("MIT", true),
            ("GPL-2.0-only", false),
            ("MIT OR GPL-2.0-only", true),
            ("MIT AND GPL-2.0-only", false),
            ("GPL-2.0-only/MIT", true),
            ("(GPL-2.0-only OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT OR GPL-2.0-only AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0 WITH Other-exception", false),
            ("(MIT", false),
            ("MIT Apache-2.0", false),
            ("", false),
        ];
        for (expression, expect) in cases {
            assert_eq!(is_allowed(expression, &allowed), expect, "{expression}");
        }
    }
}
