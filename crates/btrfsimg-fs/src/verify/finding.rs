//! What verify finds, and where.

use std::collections::BTreeMap;
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

/// How often a rule was broken: as what is wrong in itself, or as what may only follow from an earlier finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The rule.
    pub rule: Rule,
    /// Whether these are consequences.
    pub consequence: bool,
    /// How many there are.
    pub found: u64,
    /// How many of them were passed on, the first ones. There is a limit for each rule.
    pub listed: u64,
}

/// How often rules were broken, by whether as a consequence.
#[derive(Clone, Default, Debug)]
pub(super) struct Counts(BTreeMap<(&'static str, bool), Count>);

impl Counts {
    /// Findings of one rule that are kept, consequences aside: so none is left out for those of another.
    const KEPT: u64 = 1000;

    fn of(&mut self, rule: Rule, consequence: bool) -> &mut Count {
        let none = Count { rule, consequence, found: 0, listed: 0 };
        self.0.entry((rule.0, consequence)).or_insert(none)
    }

    /// Counts a finding; says whether there is room in the list for it.
    pub(super) fn admit(&mut self, finding: &Finding) -> bool {
        let count = self.of(finding.rule, finding.consequence);
        count.found += 1;
        let has_room = count.listed < Counts::KEPT;
        count.listed += u64::from(has_room);
        has_room
    }

    /// Adds `more` that are in no list.
    pub(super) fn leave_out(&mut self, rule: Rule, consequence: bool, more: u64) {
        self.of(rule, consequence).found += more;
    }

    /// How many findings of a rule may still be listed.
    pub(super) fn room(&self, rule: &'static str, consequence: bool) -> u64 {
        Counts::KEPT - self.0.get(&(rule, consequence)).map_or(0, |count| count.listed.min(Counts::KEPT))
    }

    /// Each, by the rule's name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Count> {
        self.0.values()
    }
}

/// Findings in order; past a limit for each rule they are only counted.
#[derive(Clone, Default, Debug)]
pub(super) struct List {
    pub(super) list: Vec<Finding>,
    counts: Counts,
}

impl List {
    pub(super) fn push(&mut self, finding: Finding) {
        if self.counts.admit(&finding) {
            self.list.push(finding);
        }
    }

    pub(super) fn append(&mut self, other: List) {
        for count in other.left_out() {
            self.counts.leave_out(count.rule, count.consequence, count.found - count.listed);
        }
        other.list.into_iter().for_each(|f| self.push(f));
    }

    /// What was counted and is not in the list.
    pub(super) fn left_out(&self) -> impl Iterator<Item = &Count> {
        self.counts.iter().filter(|count| count.found > count.listed)
    }

    /// Makes consequences of those whose rule `follows`.
    fn follow(&mut self, follows: impl Fn(&str) -> bool) {
        let mut marked = List::default();
        for count in self.left_out() {
            let consequence = count.consequence || follows(count.rule.0);
            marked.counts.leave_out(count.rule, consequence, count.found - count.listed);
        }
        for mut finding in std::mem::take(&mut self.list) {
            finding.consequence |= follows(finding.rule.0);
            marked.push(finding);
        }
        *self = marked;
    }
}

/// What one piece of work finds.
#[derive(Clone, Default, Debug)]
pub(super) struct Findings {
    pub(super) found: List,
    /// Those about a copy of a block that has a sound one before it: no reader meets them, so they come last.
    pub(super) spare: List,
}

impl Findings {
    pub(super) fn push(&mut self, finding: Finding) {
        self.found.push(finding);
    }

    pub(super) fn add(&mut self, rule: &'static str, place: Place, reason: impl Into<String>) {
        self.push(Finding::new(rule, place, reason));
    }

    pub(super) fn append(&mut self, other: Findings) {
        self.found.append(other.found);
        self.spare.append(other.spare);
    }

    /// Makes consequences of those whose rule `follows`; not of those about spare copies.
    pub(super) fn follow(&mut self, follows: impl Fn(&str) -> bool) {
        self.found.follow(follows);
    }

    /// Those that are listed.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.found.list.iter()
    }

    /// The same, to be added to.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.found.list.iter_mut()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.list.is_empty()
    }

    /// Whether there is an error. (Of each rule that was broken a finding is listed.)
    pub(super) fn has_errors(&self) -> bool {
        self.iter().any(|f| f.severity().is_error())
    }
}
