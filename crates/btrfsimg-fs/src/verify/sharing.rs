//! Which subvolumes reach which bytes, for quota groups.
//!
//! Each extent gets the set of subvolumes that reach it. Sets are few and kept once each, by number; they go down
//! from the roots, level by level, so every node and leaf is read once however many snapshots share it.

use std::collections::BTreeMap;

use btrfsimg_ondisk::{FileExtent, Key, KeyType, Logical, ParentExpectation};
use rustc_hash::FxHashMap;

use super::finding::Findings;
use super::image::{Block, Image, Pointer};
use super::parallel::in_runs;
use super::usage::Usage;
use super::walk::Tree;

/// Leaves that one worker takes at a time.
const RUN: usize = 32;
/// Subvolume numbers in all sets together: beyond, nothing is counted, and nothing said.
pub(super) const SETS_MAX: usize = 16 << 20;

/// Sets of subvolumes, each kept once; 0 is the empty one.
pub(super) struct Sets {
    pub(super) lists: Vec<Vec<u64>>,
    numbers: FxHashMap<Vec<u64>, u32>,
    unions: FxHashMap<(u32, u32), u32>,
    words: usize,
}

impl Sets {
    pub(super) fn new() -> Sets {
        Sets {
            lists: vec![Vec::new()],
            numbers: std::iter::once((Vec::new(), 0)).collect(),
            unions: FxHashMap::default(),
            words: 0,
        }
    }

    /// The number of a sorted set; `None` when there are too many.
    pub(super) fn number(&mut self, list: Vec<u64>) -> Option<u32> {
        if let Some(&number) = self.numbers.get(&list) {
            return Some(number);
        }
        self.words += list.len() + 8;
        let number = u32::try_from(self.lists.len()).ok().filter(|_| self.words <= SETS_MAX)?;
        self.lists.push(list.clone());
        self.numbers.insert(list, number);
        Some(number)
    }

    fn union(&mut self, a: u32, b: u32) -> Option<u32> {
        if a == b || b == 0 {
            return Some(a);
        }
        if a == 0 {
            return Some(b);
        }
        if let Some(&known) = self.unions.get(&(a.min(b), a.max(b))) {
            return Some(known);
        }
        let mut list = [&self.lists[a as usize][..], &self.lists[b as usize][..]].concat();
        list.sort_unstable();
        list.dedup();
        let number = self.number(list)?;
        if self.unions.len() < SETS_MAX / 4 {
            self.unions.insert((a.min(b), a.max(b)), number);
        }
        Some(number)
    }
}

/// Bytes of extents by the set of subvolumes that reach them; `None` when it cannot be told.
pub(super) fn count(
    image: &Image<'_>,
    subvolumes: &[Tree],
    usage: &Usage,
) -> Option<BTreeMap<Vec<u64>, u64>> {
    let mut reached = Reached::new(usage);
    for tree in subvolumes {
        let set = reached.sets.number(vec![tree.id])?;
        match tree.drop {
            None => reached.block(tree.root.0, set, tree.level)?,
            Some(drop) => reached.rest(image, tree, drop, set)?,
        }
    }
    for level in (1..8u8).rev() {
        for at in std::mem::take(&mut reached.levels[usize::from(level)]) {
            let set = reached.of_extent[usage.index(at)?];
            let node = read(image, at, level)?;
            for pointer in node.pointers() {
                reached.block(pointer.block.0, set, level - 1)?;
            }
        }
    }
    let leaves = std::mem::take(&mut reached.levels[0]);
    let known = &reached.of_extent;
    let users = in_runs(image.threads, leaves.len(), RUN, |run| {
        let mut users: Vec<(usize, u32)> = Vec::new();
        for &at in &leaves[run] {
            let set = known[usage.index(at)?];
            read(image, at, 0)?.for_each_item(&image.ctx, |_, item| {
                let extent =
                    (item.key.key_type == KeyType::EXTENT_DATA).then(|| FileExtent::parse(item.data));
                let data = extent.and_then(Result::ok).and_then(|e| e.disk_extent());
                users.extend(data.and_then(|(at, _)| usage.index(at.0)).map(|index| (index, set)));
            });
        }
        users.sort_unstable();
        users.dedup();
        Some(users)
    });
    for users in users {
        for (index, set) in users? {
            reached.add(index, set)?;
        }
    }
    for (index, set) in std::mem::take(&mut reached.alone) {
        reached.add(index, set)?;
    }
    let Reached { sets, of_extent, .. } = reached;
    let mut totals = BTreeMap::new();
    for (extent, set) in usage.extents.iter().zip(of_extent).filter(|(_, set)| *set != 0) {
        let total: &mut u64 = totals.entry(sets.lists[set as usize].clone()).or_default();
        *total = total.saturating_add(extent.len);
    }
    Some(totals)
}

/// What subvolumes reach, as far as it was followed.
struct Reached<'a> {
    usage: &'a Usage,
    sets: Sets,
    /// The set of each extent: of a block, of those that reach all below it too. One that has none is not listed yet.
    of_extent: Vec<u32>,
    /// Blocks to be read, by level, each once.
    levels: [Vec<u64>; 8],
    /// Nodes that a half dropped subvolume reaches, with its set, which is not that of all below them.
    alone: Vec<(usize, u32)>,
}

impl Reached<'_> {
    fn new(usage: &Usage) -> Reached<'_> {
        Reached {
            usage,
            sets: Sets::new(),
            of_extent: vec![0; usage.extents.len()],
            levels: Default::default(),
            alone: Vec::new(),
        }
    }

    fn add(&mut self, index: usize, set: u32) -> Option<()> {
        self.of_extent[index] = self.sets.union(self.of_extent[index], set)?;
        Some(())
    }

    /// Notes that the block at `at`, and all below it, is reached by the subvolumes of `set`.
    fn block(&mut self, at: u64, set: u32, level: u8) -> Option<()> {
        let index = self.usage.index(at)?;
        if self.of_extent[index] == 0 {
            self.levels.get_mut(usize::from(level))?.push(at);
        }
        self.add(index, set)
    }

    /// The same for a tree whose deletion has come to `key` of `drop_level`: what was dropped may be another's by now.
    fn rest(&mut self, image: &Image<'_>, tree: &Tree, (key, drop_level): (Key, u8), set: u32) -> Option<()> {
        let (mut at, mut level) = (tree.root.0, tree.level);
        while level > 0 && level >= drop_level {
            self.alone.push((self.usage.index(at)?, set));
            let pointers = read(image, at, level)?.pointers();
            let first = pointers.iter().rposition(|p| p.key <= key).unwrap_or(0);
            let is_last = level == drop_level;
            for pointer in &pointers[first + usize::from(!is_last)..] {
                self.block(pointer.block.0, set, level - 1)?;
            }
            if is_last {
                return Some(());
            }
            (at, level) = (pointers.get(first)?.block.0, level - 1);
        }
        self.block(at, set, level)
    }
}

fn read(image: &Image<'_>, at: u64, level: u8) -> Option<Block> {
    let expect = ParentExpectation { level: Some(level), ..ParentExpectation::default() };
    image.read(0, &Pointer { at: Logical(at), expect }, false, &mut Findings::default())
}
