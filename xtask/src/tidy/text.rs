//! Rules about the text of single files.

use super::{
    Findings,
    rules::{BANS, LONG, MACHINE_PATHS, TOO_LONG},
    source::{Source, find_words, line_of},
};

pub(super) fn length(name: &str, text: &str, found: &mut Findings) {
    let lines = text.lines().count();
    if lines > TOO_LONG {
        found.faults.push(format!("{name}: {lines} lines, {TOO_LONG} are the most"));
    } else if lines > LONG {
        found.notes.push(format!("{name}: {lines} lines"));
    }
}

pub(super) fn machine_paths(name: &str, text: &str, faults: &mut Vec<String>) {
    for path in MACHINE_PATHS {
        for (at, _) in text.match_indices(path) {
            // `some/work/dir` is a relative path, `https://host/work/` an address.
            let before = text[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || "._-".contains(c)) {
                faults.push(format!("{name}:{}: {path} is a path of one machine", line_of(text, at)));
            }
        }
    }
}

pub(super) fn bans(source: &Source, faults: &mut Vec<String>) {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|p| source.name.starts_with(p));
    for ban in BANS.iter().filter(|ban| begins(ban.within) && !begins(ban.except)) {
        let code = if ban.tests { &source.code } else { &source.product };
        for word in ban.words {
            for at in find_words(code, word) {
                faults.push(format!("{}:{}: `{word}`: {}", source.name, line_of(code, at), ban.why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_words_are_found_where_they_are_banned() {
        // (file, code, faults)
        let cases = [
            ("crates/btrfsimg-fs/src/txn/mod.rs", "println!()", 1),
            ("crates/btrfsimg-fs/src/txn/mod.rs", "// println!()", 0),
            ("crates/btrfsimg-fs/src/txn/mod.rs", "#[cfg(test)] mod tests { fn f() { println!() } }", 0),
            ("crates/btrfsimg-fs/src/txn/mod.rs", "#[cfg(test)] mod tests { #[ignore] fn f() {} }", 1),
            ("crates/btrfsimg-fs/src/txn/mod.rs", "use std::fs::File;", 1),
            ("crates/btrfsimg-fs/src/import/mod.rs", "use std::fs::File;", 0),
            ("crates/btrfsimg-fs/src/verify.rs", "use rustix::fs;", 1),
            ("crates/btrfsimg-fs/src/txn/commit.rs", "device.sync()?", 0),
            ("crates/btrfsimg-fs/src/txn/alloc.rs", "device.sync()?", 1),
            ("crates/btrfsimg/src/main.rs", "eprintln!(); std::process::exit(1)", 0),
            ("crates/btrfsimg/src/main.rs", "println!()", 1),
            ("crates/btrfsimg/tests/cli.rs", "todo!()", 1),
        ];
        for (name, text, expect) in cases {
            let mut faults = Vec::new();
            bans(&Source::new(name, text), &mut faults);
            assert_eq!(faults.len(), expect, "{name}: {text}: {faults:?}");
        }
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let path = MACHINE_PATHS[0];
        for (text, expect) in [
            (format!("see {path}shared"), 1),
            (format!("see \"{path}x\" and {path}y"), 2),
            (format!("a{path}x"), 0),
        ] {
            let mut faults = Vec::new();
            machine_paths("README.md", &text, &mut faults);
            assert_eq!(faults.len(), expect, "{text}");
        }
    }

    #[test]
    fn long_files_are_listed_and_then_refused() {
        for (lines, notes, faults) in [(LONG, 0, 0), (LONG + 1, 1, 0), (TOO_LONG, 1, 0), (TOO_LONG + 1, 0, 1)]
        {
            let mut found = Findings::default();
            length("a.rs", &"\n".repeat(lines), &mut found);
            assert_eq!((found.notes.len(), found.faults.len()), (notes, faults), "{lines}");
        }
    }
}
