//! Every rule by its stable name: how grave a breach is, what the rule says, and why it matters.
//!
//! The names are those of `format/06`; `btrfsimg verify --explain` and `docs/verify.md` are made from this table.

mod blocks;
mod files;
mod space;
mod superblock;

use super::Rule;

/// How grave a breach of a rule is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Odd or out of date, but nothing is lost and nothing refuses it.
    Warning,
    /// `btrfs check` calls it an error; kernels may read on.
    Inconsistent,
    /// Kernels refuse to mount or to read it: Linux 6.18, but for a device extent of a wrong length (DE-05: newer ones) and
    /// the items of the free space tree (FS-01 to FS-03), which it does not read where nothing is written.
    Refused,
}

impl Severity {
    /// Whether a breach means corruption.
    pub fn is_error(self) -> bool {
        self != Severity::Warning
    }

    /// `error` or `warning`.
    pub fn name(self) -> &'static str {
        if self.is_error() { "error" } else { "warning" }
    }
}

/// What there is to know of a rule.
#[derive(Clone, Copy, Debug)]
pub struct RuleInfo {
    /// The stable name.
    pub id: &'static str,
    /// How grave a breach is.
    pub severity: Severity,
    /// The condition that must hold, in one line.
    pub says: &'static str,
    /// What goes wrong when it does not hold.
    pub why: &'static str,
}

/// What the rules of a family are about, by the letters that their names begin with, in the order of `format/06`.
pub const RULE_FAMILIES: &[(&str, &str)] = &[
    ("SB", "Superblock"),
    ("BLK", "Every tree block"),
    ("NODE", "Nodes"),
    ("LEAF", "Leaves"),
    ("ROOT", "Trees and their roots"),
    ("LOG", "Log trees"),
    ("QG", "Quota groups"),
    ("DIR", "Directory entries and xattrs"),
    ("INO", "Inodes"),
    ("REF", "Names of inodes"),
    ("FE", "File extents"),
    ("CS", "Checksums of data"),
    ("LK", "Links between inodes, names and extents"),
    ("CH", "Chunks"),
    ("DEV", "Devices"),
    ("DE", "Device extents"),
    ("BG", "Block groups"),
    ("EX", "Extent items"),
    ("KR", "Keyed back references"),
    ("XR", "Extents and what refers to them"),
    ("FS", "Free space tree"),
    ("RS", "RAID stripe tree"),
    ("DUP", "Copies of a block"),
];

const UNKNOWN: RuleInfo =
    RuleInfo { id: "?", severity: Severity::Refused, says: "a rule without an entry", why: "" };

impl Rule {
    /// What there is to know of this rule.
    pub fn info(self) -> &'static RuleInfo {
        Rule::all().find(|r| r.id == self.0).unwrap_or(&UNKNOWN)
    }

    /// The rule with this name, in any case.
    pub fn find(name: &str) -> Option<&'static RuleInfo> {
        Rule::all().find(|r| r.id.eq_ignore_ascii_case(name))
    }

    /// Every rule, in the order of `format/06`.
    pub fn all() -> impl Iterator<Item = &'static RuleInfo> {
        [superblock::RULES, blocks::RULES, files::RULES, space::RULES].into_iter().flatten()
    }

    /// How grave a breach is.
    pub fn severity(self) -> Severity {
        self.info().severity
    }
}

/// A table of rules: name, severity (E, C or W as in `format/06`), condition, reason.
macro_rules! rules {
    ($($id:literal $severity:ident $says:literal $why:literal)*) => {
        pub(super) const RULES: &[super::RuleInfo] = &[
            $(super::RuleInfo {
                id: $id, severity: super::rules!(@$severity), says: $says, why: $why,
            },)*
        ];
    };
    (@E) => { super::Severity::Refused };
    (@C) => { super::Severity::Inconsistent };
    (@W) => { super::Severity::Warning };
}
use rules;

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in string literals of the form of a rule's.
    fn names_in(source: &str) -> impl Iterator<Item = &str> {
        source.split('"').skip(1).step_by(1).filter(|s| {
            s.split_once('-').is_some_and(|(a, b)| {
                (2..=4).contains(&a.len())
                    && b.len() == 2
                    && a.bytes().all(|c| c.is_ascii_uppercase())
                    && b.bytes().all(|c| c.is_ascii_digit())
            })
        })
    }

    fn sources(dir: &std::path::Path, out: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else {
                out.push(path);
            }
        }
    }

    #[test]
    fn every_name_in_the_code_is_in_the_table() {
        let mut files = Vec::new();
        sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            for name in names_in(&text) {
                assert!(Rule::find(name).is_some(), "{name} in {} has no entry", file.display());
            }
        }
    }

    /// The rules of `format/06` by family: the number of the last, and those that are no rules of their own (LEAF-07
    /// says that items are judged one by one, FE-08 what is not judged), with those that were added to the page since.
    const FAMILIES: [(&str, usize, &[usize]); 23] = [
        ("SB", 27, &[]),
        ("BLK", 15, &[]),
        ("NODE", 4, &[]),
        ("LEAF", 10, &[7]),
        ("ROOT", 17, &[]),
        ("LOG", 4, &[]),
        ("QG", 5, &[]),
        ("DIR", 16, &[]),
        ("INO", 13, &[]),
        ("REF", 7, &[]),
        ("FE", 29, &[8]),
        ("CS", 9, &[]),
        ("LK", 12, &[]),
        ("CH", 17, &[]),
        ("DEV", 7, &[]),
        ("DE", 11, &[]),
        ("BG", 8, &[]),
        ("EX", 17, &[]),
        ("KR", 6, &[]),
        ("XR", 8, &[]),
        ("FS", 10, &[]),
        ("RS", 1, &[]),
        ("DUP", 1, &[]),
    ];

    /// The rules that `format/06` marks W, or says to report only; all others are E or C.
    const WARNINGS: [&str; 29] = [
        "SB-19", "SB-22", "SB-23", "SB-24", "SB-25", "SB-26", "BLK-12", "BLK-15", "LEAF-09", "ROOT-17",
        "ROOT-14", "ROOT-15", "ROOT-16", "LOG-01", "QG-02", "QG-04", "QG-05", "DIR-14", "INO-11", "FE-17",
        "FE-18", "FE-27", "FE-29", "LK-07", "LK-10", "LK-12", "DE-11", "XR-08", "FS-10",
    ];

    #[test]
    fn the_table_is_that_of_the_format_page() {
        let expect: std::collections::BTreeSet<String> = FAMILIES
            .into_iter()
            .flat_map(|(family, last, gaps)| {
                (1..=last).filter(|n| !gaps.contains(n)).map(move |n| (family, n))
            })
            .map(|(family, n)| format!("{family}-{n:02}"))
            .collect();
        let have: std::collections::BTreeSet<String> = Rule::all().map(|r| r.id.to_owned()).collect();
        assert_eq!(have, expect);
        assert!(FAMILIES.iter().map(|f| f.0).eq(RULE_FAMILIES.iter().map(|f| f.0)));
        for rule in Rule::all() {
            assert_eq!(!rule.severity.is_error(), WARNINGS.contains(&rule.id), "{}", rule.id);
        }
    }

    #[test]
    fn names_are_unique_and_explained() {
        let mut seen = std::collections::HashSet::new();
        for rule in Rule::all() {
            assert!(seen.insert(rule.id), "{} twice", rule.id);
            assert!(!rule.says.is_empty() && rule.why.len() > 16, "{} is not explained", rule.id);
        }
    }
}
