//! Passing findings on, in order, and counting them.

use btrfsimg_ondisk::Severity;

use super::finding::{Count, Counts, Finding, Findings, List};

/// What verify found, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Findings that mean corruption, without consequences.
    pub errors: u64,
    /// Findings that do not.
    pub warnings: u64,
    /// Findings that may only follow from an earlier one.
    pub consequences: u64,
    /// How often each rule was broken, by the rule's name. All of these make the three above.
    pub rules: Vec<Count>,
    /// Tree blocks read, each once.
    pub tree_blocks: u64,
    /// Trees walked.
    pub trees: u64,
    /// Inodes seen, in each subvolume that holds them.
    pub inodes: u64,
    /// Inodes of damaged subvolumes that were read, and that no path leads to.
    pub unreachable: u64,
    /// Inodes of damaged subvolumes that have a name, and could not be read.
    pub lost: u64,
    /// The generation of the backup root that was used, the superblock's own roots being of no use.
    pub backup_generation: Option<u64>,
    /// Extents in the extent tree.
    pub extents: u64,
    /// Bytes of data compared with their checksums, all copies counted.
    pub data_bytes: u64,
    /// Compressed extents that were decoded, inline ones too, each once.
    pub decoded_extents: u64,
    /// Bytes that these hold, decoded.
    pub decoded_bytes: u64,
}

impl Summary {
    /// Whether nothing means corruption.
    pub fn is_sound(&self) -> bool {
        self.errors == 0
    }
}

/// Where findings go.
pub(super) struct Report<'a> {
    sink: &'a mut dyn FnMut(&Finding),
    pub(super) summary: Summary,
    counts: Counts,
    spare: List,
}

impl<'a> Report<'a> {
    pub(super) fn new(sink: &'a mut dyn FnMut(&Finding)) -> Report<'a> {
        Report { sink, summary: Summary::default(), counts: Counts::default(), spare: List::default() }
    }

    /// Passes on what was left for the end; gives the sums.
    pub(super) fn finish(mut self) -> Summary {
        let spare = std::mem::take(&mut self.spare);
        self.pass_on(&spare);
        self.summary.rules = self.counts.iter().copied().collect();
        self.summary
    }

    /// From here on, what is found may follow from going by an old root.
    pub(super) fn go_by_backup(&mut self, generation: u64) {
        self.summary.backup_generation.get_or_insert(generation);
    }

    pub(super) fn emit(&mut self, finding: &Finding) {
        self.sum(finding.severity(), finding.consequence, 1);
        if self.counts.admit(finding) {
            (self.sink)(finding);
        }
    }

    fn sum(&mut self, severity: Severity, consequence: bool, n: u64) {
        match severity {
            Severity::Warning => self.summary.warnings += n,
            _ if consequence => self.summary.consequences += n,
            _ => self.summary.errors += n,
        }
    }

    /// How many findings of `rule` would still be passed on; others are only counted.
    pub(super) fn room(&self, rule: &'static str) -> u64 {
        self.counts.room(rule, self.summary.backup_generation.is_some())
    }

    pub(super) fn absorb(&mut self, findings: Findings) {
        self.absorb_as(false, findings);
    }

    fn pass_on(&mut self, findings: &List) {
        findings.list.iter().for_each(|f| self.emit(f));
        for count in findings.left_out() {
            let more = count.found - count.listed;
            self.sum(count.rule.severity(), count.consequence, more);
            self.counts.leave_out(count.rule, count.consequence, more);
        }
    }

    /// Passes findings on as consequences, if something came before that they may follow from.
    pub(super) fn absorb_as(&mut self, consequence: bool, mut findings: Findings) {
        self.spare.append(std::mem::take(&mut findings.spare));
        if consequence || self.summary.backup_generation.is_some() {
            findings.follow(|_| true);
        }
        self.pass_on(&findings.found);
    }
}
