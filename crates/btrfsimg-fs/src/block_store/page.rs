//! A tree block as far as it can be read: what readers of damaged images go by.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use btrfsimg_ondisk::{
    FramedBlock, InodeItem, Item, Key, KeyPtr, Logical, ParentExpectation, TreeBlock, Violation,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{BlockStore, child_expectation};
use crate::error::{Error, Result};

/// A tree block as far as it can be read.
#[derive(Debug)]
pub enum Page {
    /// Every check passed.
    Sound(Arc<TreeBlock>),
    /// A leaf, some of whose items are good.
    Leaf(DamagedLeaf),
    /// A node that is not sound.
    Node(Arc<DamagedNode>),
}

/// A leaf that is not sound; each of its items is judged by itself.
#[derive(Debug)]
pub struct DamagedLeaf {
    at: Logical,
    block: FramedBlock,
    trust: Trust,
    fault: Error,
}

/// The pointers of a node that is not sound.
#[derive(Debug)]
pub struct DamagedNode {
    /// The level of its children.
    level: u8,
    /// In the order of their keys: those that the children have, where they say.
    pointers: Vec<KeyPtr>,
    trust: Trust,
    fault: Error,
}

impl Page {
    /// Items, or pointers.
    pub fn nritems(&self) -> usize {
        match self {
            Page::Sound(block) => block.nritems(),
            Page::Leaf(leaf) => leaf.block.slots(),
            Page::Node(node) => node.pointers.len(),
        }
    }

    /// The key at `slot`, which exists.
    pub fn key(&self, slot: usize) -> Key {
        match self {
            Page::Sound(block) => block.key(slot),
            Page::Leaf(leaf) => leaf.block.key(slot).unwrap_or(Key::MAX),
            Page::Node(node) => node.pointers[slot].key,
        }
    }

    /// Whether it has items.
    pub fn is_leaf(&self) -> bool {
        match self {
            Page::Sound(block) => block.is_leaf(),
            Page::Leaf(_) => true,
            Page::Node(_) => false,
        }
    }

    /// What is wrong with it.
    pub fn fault(&self) -> Option<&Error> {
        match self {
            Page::Sound(_) => None,
            Page::Leaf(leaf) => Some(&leaf.fault),
            Page::Node(node) => Some(&node.fault),
        }
    }

    /// The same, where it is no more sure than its bytes: it is among the [doubtful](BlockStore::take_doubtful).
    pub fn doubt(&self) -> Option<&Error> {
        match self {
            Page::Leaf(leaf) if leaf.trust == Trust::Frame => None,
            page => page.fault(),
        }
    }

    /// Whether it is of the generation that was asked for.
    pub fn is_of_generation(&self) -> bool {
        let trust = match self {
            Page::Sound(_) => return true,
            Page::Leaf(leaf) => leaf.trust,
            Page::Node(node) => node.trust,
        };
        trust != Trust::AnyGeneration
    }

    /// The last key of a sound leaf.
    pub(super) fn last_key(&self) -> Option<Key> {
        match self {
            Page::Sound(block) if block.is_leaf() => Some(block.key(block.nritems().checked_sub(1)?)),
            _ => None,
        }
    }

    /// The slots that may hold keys in `from..=to`, or lead to them. Keys of a damaged leaf may be in no order, so that
    /// others may be among them.
    pub fn slots(&self, from: &Key, to: &Key) -> Range<usize> {
        match self {
            Page::Sound(block) if block.is_leaf() => {
                let first = block.search(from).unwrap_or_else(|slot| slot);
                first..block.search(to).map_or_else(|slot| slot, |slot| slot + 1)
            }
            Page::Sound(node) => node.child_slot(from)..node.child_slot(to) + 1,
            Page::Leaf(_) => {
                let first = (0..self.nritems()).find(|&s| self.key(s) >= *from).unwrap_or(self.nritems());
                first..(0..self.nritems()).rfind(|&s| self.key(s) <= *to).map_or(0, |s| s + 1)
            }
            Page::Node(node) => {
                let behind = |key: &Key| node.pointers.partition_point(|p| p.key <= *key);
                behind(from).saturating_sub(1)..behind(to).max(1)
            }
        }
    }

    /// Where the child at `slot` of a node of `tree` is, and what its block must be; none of a leaf.
    pub fn child(&self, slot: usize, tree: u64) -> Option<(Logical, ParentExpectation)> {
        match self {
            Page::Sound(block) if !block.is_leaf() => Some(child_expectation(block, slot, tree)),
            Page::Node(node) => {
                let KeyPtr { key, block, generation } = node.pointers[slot];
                let (level, generation) = (Some(node.level), Some(generation));
                Some((block, ParentExpectation { level, generation, first_key: Some(key), tree: Some(tree) }))
            }
            _ => None,
        }
    }

    /// The inode item in `slot` of a leaf, whatever rules it breaks, where its bytes are as they were written.
    pub fn bad_inode(&self, slot: usize) -> Option<InodeItem> {
        match self {
            Page::Leaf(leaf) if leaf.trust == Trust::Frame => leaf.block.inode_item(slot),
            _ => None,
        }
    }

    /// The item in `slot` of a leaf of `tree`, or its fault.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn item(&self, slot: usize, tree: u64, store: &BlockStore) -> Result<Item<'_>> {
        let none = || Violation::new("LEAF-05", "no such slot");
        let (at, found) = match self {
            Page::Sound(block) => return Ok(block.item(slot)),
            Page::Leaf(leaf) => (leaf.at, leaf.block.item(slot, store.ctx()).unwrap_or_else(|| Err(none()))),
            Page::Node(_) => (Logical(0), Err(none())),
        };
        found.map_err(|v| Error::corrupt_block(tree, at, true, v))
    }
}

/// How far a block that breaks rules is to be trusted, from most to least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Trust {
    /// Header and table are right; items may not be.
    Frame,
    /// It is the block that is looked for; bytes of it are not what was written.
    Place,
    /// The same, of another generation: older or newer.
    AnyGeneration,
}

impl Trust {
    /// By the rules that its header and its table break. `None`: it is another block, or none at all.
    fn by(broken: &[Violation]) -> Option<Trust> {
        const FOREIGN: [&str; 5] = ["BLK-02", "BLK-03", "BLK-04", "BLK-06", "BLK-10"];
        let is_broken = |rule| broken.iter().any(|v| v.rule.0 == rule);
        match FOREIGN.into_iter().any(is_broken) {
            true => None,
            false if broken.is_empty() => Some(Trust::Frame),
            false if !is_broken("BLK-07") => Some(Trust::Place),
            false => (!is_broken("BLK-08")).then_some(Trust::AnyGeneration),
        }
    }
}

/// What a salvage knows of the blocks that are not sound.
#[derive(Default)]
pub(super) struct Salvage(Mutex<Known>);

/// Where a block is looked for, and what it is to be: level, generation, first key.
type Asked = (u64, Option<u8>, Option<u64>, Option<Key>);

#[derive(Default)]
struct Known {
    /// Nodes by what was asked for; none where nothing could be made of one.
    nodes: FxHashMap<Asked, Option<Arc<DamagedNode>>>,
    /// Blocks that were read on though they break rules.
    doubtful: FxHashSet<u64>,
    /// What those break that were not asked for yet.
    fresh: Vec<(Logical, Error)>,
}

/// Most nodes that are kept, so that memory has a bound.
const NODES_KEPT: usize = 1024;

impl BlockStore {
    /// The block at `logical` as far as it can be read. Of one that is not sound these are the items of a leaf whose
    /// header and table are right; a salvage also reads on behind checksums, generations and tables that are wrong, where
    /// something in the block is right, and keeps what is wrong for [`take_doubtful`](Self::take_doubtful).
    ///
    /// # Errors
    /// As [`BlockStore::read_block`].
    pub fn page(&self, logical: Logical, expect: &ParentExpectation) -> Result<Page> {
        let fault = match self.read_block(logical, expect) {
            Ok(block) => return Ok(Page::Sound(block)),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(fault) => fault,
        };
        if let Some(salvage) = &self.salvage
            && expect.level != Some(0)
        {
            return self.damaged_node(logical, expect, fault, salvage).map(Page::Node);
        }
        let Some((block, trust)) =
            self.best_copy(logical, expect).filter(|(block, _)| block.header().level == 0)
        else {
            return Err(fault);
        };
        if trust != Trust::Frame {
            let has_items = (0..block.slots()).any(|slot| matches!(block.item(slot, &self.ctx), Some(Ok(_))));
            let Some(salvage) = self.salvage.as_ref().filter(|_| has_items) else { return Err(fault) };
            salvage.note(logical, &fault);
        }
        Ok(Page::Leaf(DamagedLeaf { at: logical, block, trust, fault }))
    }

    /// What is wrong with the blocks that a salvage read since the last call though they break rules, each block once and
    /// in their order: what is in them may not be what was written, or be older or newer than the rest.
    pub fn take_doubtful(&self) -> Vec<Error> {
        let mut fresh =
            self.salvage.as_ref().map(|s| std::mem::take(&mut s.known().fresh)).unwrap_or_default();
        fresh.sort_by_key(|(at, _)| at.0);
        fresh.into_iter().map(|(_, fault)| fault).collect()
    }

    /// Takes a block that is not used after all out of the doubtful.
    pub(super) fn forget_doubt(&self, at: Logical) {
        if let Some(salvage) = &self.salvage {
            let mut known = salvage.known();
            known.doubtful.remove(&at.0);
            known.fresh.retain(|(block, _)| *block != at);
        }
    }

    fn damaged_node(
        &self,
        logical: Logical,
        expect: &ParentExpectation,
        fault: Error,
        salvage: &Salvage,
    ) -> Result<Arc<DamagedNode>> {
        let asked = (logical.0, expect.level, expect.generation, expect.first_key);
        let known = salvage.known().nodes.get(&asked).cloned();
        let node = known.unwrap_or_else(|| {
            let copy = self.best_copy(logical, expect).filter(|(block, _)| block.header().level > 0);
            let node = copy.and_then(|(block, trust)| self.node_of(&block, trust, &fault, expect.tree));
            let node = node.map(Arc::new);
            salvage.keep(asked, node.clone());
            node
        });
        let Some(node) = node else { return Err(fault) };
        salvage.note(logical, &fault);
        Ok(node)
    }

    /// The pointers of a node that is not sound, where any of them leads to a block of the tree.
    fn node_of(
        &self,
        block: &FramedBlock,
        trust: Trust,
        fault: &Error,
        tree: Option<u64>,
    ) -> Option<DamagedNode> {
        let level = block.header().level.checked_sub(1)?;
        let mut pointers: Vec<_> = (0..block.slots()).filter_map(|slot| block.key_ptr(slot)).collect();
        let mut leads = false;
        for pointer in &mut pointers {
            let (level, generation) = (Some(level), Some(pointer.generation));
            let expect = ParentExpectation { level, generation, first_key: None, tree };
            match self.read_block(pointer.block, &expect) {
                Ok(child) if child.nritems() > 0 => {
                    pointer.key = child.key(0);
                    leads = true;
                }
                Ok(_) => {}
                Err(_) => {
                    let child = self.best_copy(pointer.block, &expect);
                    leads |= child.is_some_and(|(_, trust)| trust < Trust::AnyGeneration);
                }
            }
        }
        pointers.sort_by_key(|pointer| pointer.key);
        leads.then(|| DamagedNode { level, pointers, trust, fault: fault.again() })
    }

    /// Of the copies of a block the one that is most to be trusted, of those the one that breaks the fewest rules.
    fn best_copy(&self, logical: Logical, expect: &ParentExpectation) -> Option<(FramedBlock, Trust)> {
        let mut best: Option<(Trust, usize, FramedBlock)> = None;
        for copy in 0.. {
            let mut bytes = vec![0; self.ctx.nodesize].into_boxed_slice();
            match self.read_data(logical, &mut bytes, copy) {
                Ok(true) => {}
                // A copy that cannot be read may be the last one: a next one says so.
                Err(Error::Io { .. }) => continue,
                Ok(false) | Err(_) => break,
            }
            let mut broken = Vec::new();
            let block = FramedBlock::examine(bytes, logical, &self.ctx, expect, &mut |v| broken.push(v));
            let Some(trust) = Trust::by(&broken) else { continue };
            let mut faults = broken.len();
            block.check_items(&self.ctx, &mut |_| faults += 1);
            if best.as_ref().is_none_or(|(t, f, _)| (trust, faults) < (*t, *f)) {
                best = Some((trust, faults, block));
            }
        }
        best.map(|(trust, _, block)| (block, trust))
    }
}

impl Salvage {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, at: Logical, fault: &Error) {
        let mut known = self.known();
        if known.doubtful.insert(at.0) {
            known.fresh.push((at, fault.again()));
        }
    }

    fn keep(&self, asked: Asked, node: Option<Arc<DamagedNode>>) {
        let nodes = &mut self.known().nodes;
        if nodes.len() >= NODES_KEPT {
            nodes.clear();
        }
        nodes.insert(asked, node);
    }
}
