//! btrfs-progs, as a judge and as another maker of images.

use crate::command;
use anyhow::{Context, Result};
use std::{ffi::OsStr, fs::File, path::Path};

/// Makes (or lengthens) the file `image` to `size` bytes, sparse, and runs `mkfs.btrfs` with `args` on it.
pub fn mkfs(image: &Path, size: u64, args: &[&str]) -> Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(image);
    file.and_then(|f| f.set_len(size)).with_context(|| format!("cannot make {}", image.display()))?;
    let args = ["-q", "-f"].iter().chain(args).map(OsStr::new);
    command::run("mkfs.btrfs", args.chain([image.as_os_str()]))?;
    Ok(())
}

/// The faults that `btrfs check --readonly --check-data-csum` finds; empty means clean.
///
/// Its exit status is not enough: some faults are only printed.
pub fn check(image: &Path) -> Result<Vec<String>> {
    let args = ["check", "--readonly", "--check-data-csum"].map(OsStr::new);
    let said = command::ask("btrfs", args.into_iter().chain([image.as_os_str()]))?;
    let mut faults = check_faults(&said.all());
    if !said.success && faults.is_empty() {
        faults.push(format!("exit status is not 0: {}", said.stderr.trim()));
    }
    Ok(faults)
}

/// The lines of check's output that accuse.
fn check_faults(output: &str) -> Vec<String> {
    let words =
        ["mismatch", "errors found", "error(s) found", "wrong", "missing", "bad ", "corrupt", " errors "];
    let accuses = |line: &&str| {
        let lower = line.to_lowercase();
        let names_file = ["opening filesystem", "checking filesystem on", "uuid:"];
        if names_file.iter().any(|p| lower.starts_with(p)) || lower.contains("no error") {
            return false;
        }
        lower.starts_with("error") || lower.starts_with("warning") || words.iter().any(|w| lower.contains(w))
    };
    output.lines().filter(accuses).map(str::to_owned).collect()
}

/// `btrfs inspect-internal dump-tree ARGS IMAGE`, its text.
pub fn dump_tree(image: &Path, args: &[&str]) -> Result<String> {
    inspect(image, "dump-tree", args)
}

/// `btrfs inspect-internal dump-super ARGS IMAGE`, its text.
pub fn dump_super(image: &Path, args: &[&str]) -> Result<String> {
    inspect(image, "dump-super", args)
}

fn inspect(image: &Path, what: &str, args: &[&str]) -> Result<String> {
    let args = ["inspect-internal", what].into_iter().chain(args.iter().copied()).map(OsStr::new);
    command::run("btrfs", args.chain([image.as_os_str()]))
}

/// Copies what `btrfs restore` can read into the directory `dest`: owners, modes, times, symlinks and xattrs
/// too, but neither hard links nor special files.
pub fn restore(image: &Path, dest: &Path) -> Result<()> {
    let args = ["restore", "-m", "-S", "-x"].map(OsStr::new);
    command::run("btrfs", args.into_iter().chain([image.as_os_str(), dest.as_os_str()]))?;
    Ok(())
}

/// Scrubs a mounted file system; what is wrong, or nothing.
pub fn scrub(mounted: &Path) -> Result<Vec<String>> {
    let args = ["scrub", "start", "-B"].map(OsStr::new);
    let said = command::ask("btrfs", args.into_iter().chain([mounted.as_os_str()]))?;
    let text = said.all();
    if said.success && text.contains("no errors found") {
        return Ok(Vec::new());
    }
    let errors: Vec<_> =
        text.lines().filter(|l| l.to_lowercase().contains("error")).map(str::to_owned).collect();
    Ok(if errors.is_empty() { vec![format!("scrub fails: {}", text.trim())] } else { errors })
}

/// The error counters of a mounted file system's devices that are not 0: `[/dev/loop3].corruption_errs 1`.
pub fn device_errors(mounted: &Path) -> Result<Vec<String>> {
    let args = ["device", "stats"].map(OsStr::new);
    let stats = command::run("btrfs", args.into_iter().chain([mounted.as_os_str()]))?;
    Ok(stats.lines().filter(|l| l.split_whitespace().last() != Some("0")).map(str::to_owned).collect())
}

/// Whether `btrfs` and `mkfs.btrfs` are there; if not, why.
pub fn available() -> Result<()> {
    command::run("btrfs", ["--version"])?;
    command::run("mkfs.btrfs", ["--version"])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_lines_accuse_or_not() {
        let cases = [
            ("[1/7] checking root items", false),
            ("Opening filesystem to check...", false),
            ("Checking filesystem on /tmp/missing.img", false),
            ("UUID: 2fa3d0ea-eb87-42fd-a388-1564d17eb685", false),
            ("found 147456 bytes used, no error found", false),
            ("[7/7] checking quota groups skipped (not enabled on this FS)", false),
            ("ERROR: errors found in fs roots", true),
            ("found 147456 bytes used, error(s) found", true),
            ("WARNING: minor something", true),
            ("root 5 inode 257 errors 100, file extent discount", true),
            ("ref mismatch on [13631488 4096] extent item 1, found 0", true),
            ("there is no free space entry for 1-2, missing", true),
        ];
        for (line, accused) in cases {
            assert_eq!(!check_faults(line).is_empty(), accused, "{line}");
        }
    }
}
