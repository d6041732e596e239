//! What the tests of the writing side share: running the command with an environment, and what other programs
//! say of an image.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use btrfsimg_testkit::btrfs_progs;
use btrfsimg_testkit::oracle::Oracle;

use crate::common::Ran;

/// Runs the command with variables set (a value) or unset (none), in `dir`.
pub(crate) fn run_in<S: AsRef<OsStr>>(dir: &Path, env: &[(&str, Option<&str>)], args: &[S]) -> Ran {
    let mut command = crate::common::command(args);
    for (name, value) in env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    finish(command.current_dir(dir))
}

/// Runs a prepared command to its end.
pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("died of {}", output.status));
    Ran { code, stdout: output.stdout, stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
}

/// `btrfs check --check-data-csum` finds nothing.
#[track_caller]
pub(crate) fn assert_checks_clean(image: &Path, after: &str) {
    if Oracle::new().has_progs() {
        assert_eq!(btrfs_progs::check(image).unwrap(), [""; 0], "after {after}");
    }
}

/// The digest of a file by sha256sum, read as far as it has data.
pub(crate) fn sha256(file: &Path) -> String {
    let output = Command::new("sha256sum").arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .next()
        .unwrap()
        .trim_start_matches('\\')
        .to_owned()
}

/// Whether two files are equal, by cmp.
#[track_caller]
pub(crate) fn assert_same_bytes(a: &Path, b: &Path, why: &str) {
    let output = Command::new("cmp").args([a, b]).output().unwrap();
    assert!(output.status.success(), "{why}: {}", String::from_utf8_lossy(&output.stdout));
}

/// A line's value in a dump by btrfs-progs: the word behind the first `name` that starts a line.
pub(crate) fn field(dump: &str, name: &str) -> String {
    let mut lines = dump.lines().map(|l| l.split_whitespace());
    let found =
        lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next().map(str::to_owned)));
    found.flatten().unwrap_or_else(|| panic!("no {name} in {dump}"))
}

/// The same as a number.
pub(crate) fn number(dump: &str, name: &str) -> u64 {
    field(dump, name).parse().unwrap()
}

/// The names in a directory, sorted.
pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A directory for temporary files in memory, where there is one.
pub(crate) fn shm() -> Option<PathBuf> {
    let dir = PathBuf::from("/dev/shm");
    dir.is_dir().then_some(dir)
}

/// The bytes that the message of a full image says will do.
#[track_caller]
pub(crate) fn size_that_will_do(ran: &Ran) -> u64 {
    let (_, behind) =
        ran.stderr.split_once("a size of ").unwrap_or_else(|| panic!("no size in {}", ran.stderr));
    behind.split_whitespace().next().unwrap().parse().unwrap()
}
