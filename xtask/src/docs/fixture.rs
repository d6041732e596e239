//! `docs/fixture.md`, made from the table of faults.

use super::{cell, grade};
use btrfsimg_fixture::{Kernel, faults};
use std::fmt::Write;

pub(super) const PAGE: &str = "docs/fixture.md";

const HEAD: &str = "\
# Named faults

<!-- Made by `cargo xtask docs`; edit the faults in crates/btrfsimg-fixture/src/faults. -->

`btrfsimg fixture apply IMAGE FAULT [PATH|KEY]` breaks an image in one way, in place, and makes its checksums right
again on every copy: what finds the fault is then the check that is meant, not the checksum before it. The first
finding of `btrfsimg verify` (with `--data`; with `--decode` for compressed data) names the rule in the table.
`PATH` or `KEY` choose what is broken; without them it is the first that fits. An image that has no place for the
fault is left as it is, and the exit code is 1.

The grade is the rule's (docs/verify.md). *Kernel*: what Linux 6.18 does with the image, mounted read-only and read
whole (`loops`: it does not come to the end of a directory); a file system that is written to may fail later. *Check*:
whether `btrfs check --check-data-csum` of btrfs-progs 6.2 calls it an error. Both columns are tested.

| fault | rule | grade | kernel | check | what it does | what it needs |
|---|---|---|---|---|---|---|
";

pub(super) fn page() -> String {
    let mut out = HEAD.to_owned();
    for fault in faults() {
        let rule = match fault.twins {
            [] => fault.rule.to_owned(),
            twins => format!("{} (or {})", fault.rule, twins.join(", ")),
        };
        let kernel = match fault.kernel {
            Kernel::Refuses => "refuses",
            Kernel::Reads => "reads",
            Kernel::Loops => "loops",
        };
        let check = if fault.check { "error" } else { "silent" };
        let (grade, does, needs) = (grade(fault.severity()), cell(fault.does), cell(fault.needs));
        // Writing to a string does not fail.
        let _ =
            writeln!(out, "| `{}` | {rule} | {grade} | {kernel} | {check} | {does} | {needs} |", fault.name);
    }
    out
}
