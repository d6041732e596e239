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
mod chunk;
mod csum;
mod device;
mod dir;
mod extent;
mod file_extent;
mod free_space;
mod inode;
mod misc;
mod root;
mod rules;
mod strict;
mod superblock;
#[cfg(test)]
mod tests;
mod view;

pub use rules::{RULE_FAMILIES, RuleInfo, Severity};
pub use strict::check_strict;
pub use superblock::{check_superblock, check_superblock_strict, check_sys_chunk_array};
pub(crate) use view::View;

use crate::KeyType;
use view::ItemAt;

/// Fails with a rule when its condition does not hold; the reason is formatted only then.
macro_rules! ensure {
    ($holds:expr, $rule:literal, $($reason:tt)+) => {
        if !($holds) {
            return Err($crate::check::Violation::new($rule, format!($($reason)+)));
        }
    };
}
use ensure;

/// What a check of one item gives: the first rule that does not hold.
pub(crate) type Checked = Result<(), Violation>;

/// Judges every item of a leaf by the kernel's rules, in slot order. The pointers of a node are part of its frame.
pub(crate) fn check_items(block: View<'_>, ctx: &BlockContext, sink: &mut dyn FnMut(Violation)) {
    for item in block.items() {
        if let Err(violation) = check_leaf_item(&item, ctx) {
            sink(violation.at(item.slot, item.key));
        }
    }
}

/// Judges the item at `slot` of a leaf by the kernel's rules.
pub(crate) fn check_item(block: View<'_>, slot: usize, ctx: &BlockContext) -> Checked {
    match block.item(slot) {
        Some(item) => check_leaf_item(&item, ctx).map_err(|v| v.at(slot, item.key)),
        None => Ok(()),
    }
}

fn check_leaf_item(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    match item.key.key_type {
        KeyType::EXTENT_DATA => file_extent::check(item, ctx),
        KeyType::EXTENT_CSUM => csum::check(item, ctx),
        KeyType::DIR_ITEM | KeyType::DIR_INDEX | KeyType::XATTR_ITEM => dir::check(item, ctx),
        KeyType::INODE_REF | KeyType::INODE_EXTREF => inode::check_ref(item),
        KeyType::INODE_ITEM => inode::check(item, ctx),
        KeyType::BLOCK_GROUP_ITEM => device::check_block_group(item, ctx),
        KeyType::CHUNK_ITEM => chunk::check_item(item, ctx),
        KeyType::DEV_ITEM => device::check_dev_item(item),
        KeyType::DEV_EXTENT => device::check_dev_extent(item, ctx),
        KeyType::ROOT_ITEM => root::check(item, ctx),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => extent::check(item, ctx),
        KeyType::TREE_BLOCK_REF
        | KeyType::SHARED_BLOCK_REF
        | KeyType::EXTENT_DATA_REF
        | KeyType::SHARED_DATA_REF => extent::check_keyed(item, ctx),
        KeyType::FREE_SPACE_INFO | KeyType::FREE_SPACE_EXTENT | KeyType::FREE_SPACE_BITMAP => {
            free_space::check(item, ctx)
        }
        KeyType::RAID_STRIPE => misc::check_raid_stripe(item, ctx),
        _ => Ok(()),
    }
}
