//! Modes and types as ls(1) and stat(1) print them.

/// `drwxr-xr-x`.
pub(crate) fn mode_string(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        0o100_000 => '-',
        _ => '?',
    };
    let mut out = String::from(kind);
    for (shift, special, set, both) in [(6, 0o4000, 'S', 's'), (3, 0o2000, 'S', 's'), (0, 0o1000, 'T', 't')] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, false) => set,
            (true, true) => both,
        });
    }
    out
}

/// The type in words, as stat(1) has it.
pub(crate) fn type_name(mode: u32, size: u64) -> &'static str {
    match mode & 0o170_000 {
        0o040_000 => "directory",
        0o120_000 => "symbolic link",
        0o020_000 => "character special file",
        0o060_000 => "block special file",
        0o010_000 => "fifo",
        0o140_000 => "socket",
        0o100_000 if size == 0 => "regular empty file",
        0o100_000 => "regular file",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_prints_them() {
        let cases = [
            (0o100_644, "-rw-r--r--"),
            (0o041_777, "drwxrwxrwt"),
            (0o104_755, "-rwsr-xr-x"),
            (0o102_640, "-rw-r-S---"),
            (0o120_777, "lrwxrwxrwx"),
            (0o140_000, "s---------"),
            (0, "?---------"),
        ];
        for (mode, text) in cases {
            assert_eq!(mode_string(mode), text);
        }
    }
}
