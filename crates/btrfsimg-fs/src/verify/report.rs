//! Passing findings on, in order, and counting them.

use btrfsimg_ondisk::Severity;

use super::finding::{Finding, Findings, Spare};

/// What verify found, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Findings that mean corruption, without consequences.
    pub errors: u64,
    /// Findings that do not.
    pub warnings: u64,
    /// Findings that may only follow from an earlier one.
    pub consequences: u64,
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
    spare: Spare,
}

impl<'a> Report<'a> {
    pub(super) fn new(sink: &'a mut dyn FnMut(&Finding)) -> Report<'a> {
        Report { sink, summary: Summary::default(), spare: Spare::default() }
    }

    /// Passes on what was left for the end; gives the sums.
    pub(super) fn finish(mut self) -> Summary {
        let Spare { list, more } = std::mem::take(&mut self.spare);
        list.iter().for_each(|f| self.emit(f));
        self.summary.errors += more;
        self.summary
    }

    /// From here on, what is found may follow from going by an old root.
    pub(super) fn go_by_backup(&mut self, generation: u64) {
        self.summary.backup_generation.get_or_insert(generation);
    }

    pub(super) fn emit(&mut self, finding: &Finding) {
        match finding.severity() {
            Severity::Warning => self.summary.warnings += 1,
            _ if finding.consequence => self.summary.consequences += 1,
            _ => self.summary.errors += 1,
        }
        (self.sink)(finding);
    }

    pub(super) fn absorb(&mut self, findings: Findings) {
        self.absorb_as(false, findings);
    }

    fn pass_on(&mut self, findings: &Findings) {
        self.summary.errors += findings.more_errors;
        self.summary.warnings += findings.more_warnings;
        findings.list.iter().for_each(|f| self.emit(f));
    }

    /// Passes findings on as consequences, if something came before that they may follow from.
    pub(super) fn absorb_as(&mut self, consequence: bool, mut findings: Findings) {
        self.spare.append(std::mem::take(&mut findings.spare));
        if consequence || self.summary.backup_generation.is_some() {
            self.summary.consequences += findings.more_errors;
            findings.more_errors = 0;
            findings.list.iter_mut().for_each(|f| f.consequence = true);
        }
        self.pass_on(&findings);
    }
}
