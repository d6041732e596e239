//! The tree checker: every rule of `format/06` that concerns one block or one superblock.

use std::fmt;

use crate::{CsumType, Key};

/// The stable name of a rule, such as `DIR-08` (`format/06`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule(pub &'static str);

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A rule that does not hold, and where inside the block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The slot of the item, when it is about one.
    pub slot: Option<usize>,
    /// The key of the item, when it is about one.
    pub key: Option<Key>,
    /// What is wrong, in the kernel's grammar: `<reason>, have X expect Y`.
    pub reason: String,
}

impl Violation {
    /// A violation that is not about one item.
    pub fn new(rule: &'static str, reason: impl Into<String>) -> Violation {
        Violation { rule: Rule(rule), slot: None, key: None, reason: reason.into() }
    }

    /// The same, about the item at `slot` with `key`.
    pub fn at(mut self, slot: usize, key: Key) -> Violation {
        self.slot = Some(slot);
        self.key = Some(key);
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slot) = self.slot {
            write!(f, "slot={slot} ")?;
        }
        if let Some(key) = self.key {
            write!(f, "key={key} ")?;
        }
        write!(f, "{} [{}]", self.reason, self.rule)
    }
}

/// What of the superblock the checks of a block need.
#[derive(Clone, Copy, Debug)]
pub struct BlockContext {
    /// Bytes of a tree block.
    pub nodesize: usize,
    /// Bytes of a sector.
    pub sectorsize: u64,
    /// The checksum algorithm.
    pub csum: CsumType,
    /// The fsid that tree blocks carry.
    pub fsid: [u8; 16],
    /// The superblock's generation.
    pub generation: u64,
    /// The superblock's incompat bits.
    pub incompat: u64,
}

pub(crate) mod block;

use crate::FramedBlock;

/// Judges every item of a leaf, or every pointer of a node.
pub(crate) fn check_items(block: &FramedBlock, ctx: &BlockContext, sink: &mut dyn FnMut(Violation)) {
    for slot in 0..block.slots() {
        check_item(block, slot, ctx, sink);
    }
}

/// Judges the item or pointer at `slot`.
pub(crate) fn check_item(
    block: &FramedBlock,
    slot: usize,
    ctx: &BlockContext,
    sink: &mut dyn FnMut(Violation),
) {
    let _ = (block, slot, ctx, sink);
}
