//! Pages made from the code, so that pages, command and code say the same: `docs/verify.md` and `docs/fixture.md` from
//! the tables of rules and of faults, `docs/compression.md` from the workspaces.

mod compression;
mod fixture;

use crate::workspace;
use anyhow::{Context, Result, ensure};
use btrfsimg_ondisk::{RULE_FAMILIES, Rule, RuleInfo, Severity};
use std::{fmt::Write, fs, path::Path};

const PAGE: &str = "docs/verify.md";

const HEAD: &str = "\
# The rules that `btrfsimg verify` judges by

<!-- Made by `cargo xtask docs`; edit the rules in crates/btrfsimg-ondisk/src/check/rules. -->

A finding begins with the name of its rule. `btrfsimg verify --explain DIR-08` prints the entry that is here, and
`btrfsimg verify --rules` lists all.
Names stay: a rule that is dropped leaves its name unused.

| grade | meaning | severity in `--json`, exit code |
|---|---|---|
| refused | kernels refuse to mount the image or to read the block: Linux 6.18, but for a device extent of a wrong length (DE-05: newer ones) and the items of the free space tree (FS-01 to FS-03), which it does not read where nothing is written | `error`, 4 |
| inconsistent | `btrfs check` calls it an error; kernels may read on | `error`, 4 |
| warning | odd or out of date; nothing is lost and nothing refuses it | `warning`, 0 (4 with `--fail-on warning`) |

Memory grows with extents, not with files, names or bytes: 48 bytes for each extent, so 48 MB for a million; 16 bytes for
each directory, each run of free space and each run of data with checksums; about 2 KiB for each tree block that
snapshots share. Measured: 8 MiB for an empty image, 48 MiB for one of 1,010,302 extents.
";

/// Writes the pages.
pub(crate) fn run() -> Result<()> {
    let stray = strays();
    ensure!(stray.is_empty(), "rules of no family in {}: {}", file!(), stray.join(", "));
    for (name, page) in pages() {
        fs::write(workspace().join(name), page).with_context(|| format!("cannot write {name}"))?;
        println!("docs: wrote {name}");
    }
    Ok(())
}

/// A fault for each page that is not what the code says.
pub(crate) fn check(top: &Path, faults: &mut Vec<String>) {
    for (name, page) in pages() {
        if fs::read_to_string(top.join(name)).ok().as_deref() != Some(&page) {
            faults.push(format!("{name}: out of date; run `cargo xtask docs`"));
        }
    }
    faults.extend(strays().iter().map(|id| format!("{}: rule {id} is of no family", file!())));
}

fn pages() -> [(&'static str, String); 3] {
    [(PAGE, page()), (fixture::PAGE, fixture::page()), (compression::PAGE, compression::page())]
}

fn family(rule: &RuleInfo) -> &'static str {
    rule.id.split('-').next().unwrap_or_default()
}

fn strays() -> Vec<&'static str> {
    let is_known = |rule: &&RuleInfo| RULE_FAMILIES.iter().any(|(name, _)| *name == family(rule));
    Rule::all().filter(|rule| !is_known(rule)).map(|rule| rule.id).collect()
}

fn page() -> String {
    let mut out = HEAD.to_owned();
    for (name, title) in RULE_FAMILIES {
        // Writing to a string does not fail.
        let _ = write!(
            out,
            "\n## {name}: {title}\n\n| rule | grade | what must hold | why |\n|---|---|---|---|\n"
        );
        for rule in Rule::all().filter(|rule| family(rule) == *name) {
            let (grade, says, why) = (grade(rule.severity), cell(rule.says), cell(rule.why));
            let _ = writeln!(out, "| {} | {grade} | {says} | {why} |", rule.id);
        }
    }
    out
}

fn grade(severity: Severity) -> &'static str {
    match severity {
        Severity::Refused => "refused",
        Severity::Inconsistent => "inconsistent",
        Severity::Warning => "warning",
    }
}

/// Text that ends no cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_on_the_page_once() {
        let page = page();
        for rule in Rule::all() {
            assert_eq!(page.matches(&format!("\n| {} |", rule.id)).count(), 1, "{}", rule.id);
        }
        assert_eq!(strays(), [""; 0]);
    }

    #[test]
    fn an_old_page_is_a_fault() {
        let top = tempfile::tempdir().unwrap();
        let mut faults = Vec::new();
        check(top.path(), &mut faults);
        assert_eq!(faults.len(), 3, "{faults:?}");
    }
}
