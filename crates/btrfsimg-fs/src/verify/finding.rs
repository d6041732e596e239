//! What verify finds, and where.

use std::fmt;

use btrfsimg_ondisk::{DevId, Key, Logical, Physical, Rule, Severity, Violation, objectid};

/// Where a finding is, as far as it is about one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The copy of the block, from 0, when the finding is about one of several.
    pub mirror: Option<usize>,
    /// The device of that copy.
    pub devid: Option<DevId>,
    /// Where on it.
    pub physical: Option<Physical>,
    /// The block or extent.
    pub logical: Option<Logical>,
    /// Whether `logical` is a tree block, and then whether it is a leaf.
    pub leaf: Option<bool>,
    /// The tree.
    pub tree: Option<u64>,
    /// The slot in the block.
    pub slot: Option<usize>,
    /// The key in that slot.
    pub key: Option<Key>,
    /// The inode in `tree`.
    pub inode: Option<u64>,
    /// The path from the subvolume's root, when known.
    pub path: Option<Vec<u8>>,
}

impl Place {
    /// The tree block at `logical`, reached from `tree`.
    pub(super) fn block(tree: u64, logical: Logical, leaf: bool) -> Place {
        Place { tree: Some(tree), logical: Some(logical), leaf: Some(leaf), ..Place::default() }
    }

    /// The item in `slot` of a leaf.
    pub(super) fn item(tree: u64, logical: Logical, slot: usize, key: Key) -> Place {
        Place { slot: Some(slot), key: Some(key), ..Place::block(tree, logical, true) }
    }

    /// The inode `ino` of `tree`.
    pub(super) fn inode(tree: u64, ino: u64) -> Place {
        Place { tree: Some(tree), inode: Some(ino), ..Place::default() }
    }

    /// The extent at `logical`.
    pub(super) fn extent(logical: u64) -> Place {
        Place { logical: Some(Logical(logical)), ..Place::default() }
    }

    /// The tree as a whole.
    pub(super) fn tree(tree: u64) -> Place {
        Place { tree: Some(tree), ..Place::default() }
    }
}

/// A rule that an image breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Where.
    pub place: Place,
    /// What is wrong: `<reason>, have X expect Y`.
    pub reason: String,
    /// Whether it may only follow from an earlier finding, such as the users of an extent in an unreadable leaf.
    pub consequence: bool,
}

impl Finding {
    pub(super) fn new(rule: &'static str, place: Place, reason: impl Into<String>) -> Finding {
        Finding { rule: Rule(rule), place, reason: reason.into(), consequence: false }
    }

    /// A violation in the block at `place`.
    pub(super) fn of(violation: Violation, place: &Place) -> Finding {
        let place = Place { slot: violation.slot, key: violation.key, ..place.clone() };
        Finding { rule: violation.rule, place, reason: violation.reason, consequence: false }
    }

    /// How grave it is.
    pub fn severity(&self) -> Severity {
        self.rule.severity()
    }
}

impl fmt::Display for Finding {
    /// The kernel's grammar: `corrupt leaf: root=5 block=30408704 slot=3 key=(257 EXTENT_DATA 0), <reason>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.place;
        let what = match (p.leaf, p.inode, p.logical, p.tree, p.physical) {
            (Some(true), ..) => "leaf",
            (Some(false), ..) => "node",
            (None, Some(_), ..) => "inode",
            (None, None, Some(_), ..) => "extent",
            (None, None, None, Some(_), _) => "tree",
            (None, None, None, None, Some(_)) => "superblock",
            _ => "file system",
        };
        let adjective = if self.severity().is_error() { "corrupt" } else { "odd" };
        write!(f, "{adjective} {what}:")?;
        self.place.fmt(f)?;
        write!(f, ", {}", self.reason)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tree) = self.tree {
            write!(f, " root={}", objectid::Printed(tree))?;
        }
        if let Some(logical) = self.logical {
            write!(f, " {}={logical}", if self.leaf.is_some() { "block" } else { "bytenr" })?;
        }
        if let Some(mirror) = self.mirror {
            write!(f, " mirror={mirror}")?;
        }
        if let (Some(devid), Some(physical)) = (self.devid, self.physical) {
            write!(f, " devid={devid} physical={physical}")?;
        }
        if let Some(ino) = self.inode {
            write!(f, " ino={}", objectid::Printed(ino))?;
        }
        if let Some(slot) = self.slot {
            write!(f, " slot={slot}")?;
        }
        if let Some(key) = self.key {
            write!(f, " key={key}")?;
        }
        if let Some(path) = &self.path {
            write!(f, " path={}", path.escape_ascii())?;
        }
        Ok(())
    }
}

/// Findings of one piece of work, in order; past a limit they are only counted.
#[derive(Clone, Default, Debug)]
pub(super) struct Findings {
    pub(super) list: Vec<Finding>,
    pub(super) more_errors: u64,
    pub(super) more_warnings: u64,
    /// Those about a copy of a block that has a sound one before it: no reader meets them, so they come last.
    pub(super) spare: Spare,
}

/// What is wrong with copies that no reader needs; past the limit only counted.
#[derive(Clone, Default, Debug)]
pub(super) struct Spare {
    pub(super) list: Vec<Finding>,
    pub(super) more: u64,
}

impl Spare {
    pub(super) fn push(&mut self, finding: Finding) {
        if self.list.len() < Findings::KEPT {
            self.list.push(finding);
        } else {
            self.more += 1;
        }
    }

    pub(super) fn append(&mut self, other: Spare) {
        self.more += other.more;
        other.list.into_iter().for_each(|f| self.push(f));
    }
}

impl Findings {
    /// Findings that one piece of work keeps.
    const KEPT: usize = 1000;

    pub(super) fn push(&mut self, finding: Finding) {
        if self.list.len() < Findings::KEPT {
            self.list.push(finding);
        } else if finding.severity().is_error() {
            self.more_errors += 1;
        } else {
            self.more_warnings += 1;
        }
    }

    pub(super) fn add(&mut self, rule: &'static str, place: Place, reason: impl Into<String>) {
        self.push(Finding::new(rule, place, reason));
    }

    pub(super) fn append(&mut self, other: Findings) {
        self.more_errors += other.more_errors;
        self.more_warnings += other.more_warnings;
        self.spare.append(other.spare);
        other.list.into_iter().for_each(|f| self.push(f));
    }

    /// How much was found, to go back to.
    pub(super) fn mark(&self) -> (usize, u64, u64) {
        (self.list.len(), self.more_errors, self.more_warnings)
    }

    /// Forgets what was found since.
    pub(super) fn rewind(&mut self, (len, errors, warnings): (usize, u64, u64)) {
        self.list.truncate(len);
        (self.more_errors, self.more_warnings) = (errors, warnings);
    }

    pub(super) fn has_errors(&self) -> bool {
        self.more_errors > 0 || self.list.iter().any(|f| f.severity().is_error())
    }
}
