//! Quota groups, counted again (QG-01).
//!
//! Each extent gets the set of subvolumes that reach it. Sets are few and kept once each, by number; they go down
//! from the roots, level by level, so every node and leaf is read once however many snapshots share it.

use std::collections::BTreeMap;

use btrfsimg_ondisk::{
    BlockContext, FileExtent, KeyType, Logical, ParentExpectation, QgroupInfo, QgroupStatus,
};
use rustc_hash::{FxHashMap, FxHashSet};
use zerocopy::FromBytes;

use super::finding::{Findings, Place};
use super::image::{Block, Image, Pointer};
use super::parallel::in_runs;
use super::usage::Usage;
use super::walk::Tree;

/// Bits of the status item's flags.
const ON: u64 = 1;
const UNSETTLED: u64 = 2 | 4;
const SIMPLE: u64 = 8;

/// Leaves that one worker takes at a time.
const RUN: usize = 32;
/// Subvolume numbers in all sets together: beyond, nothing is counted, and nothing said.
const SETS_MAX: usize = 16 << 20;
/// Steps in which the bytes of all groups together are counted.
const SHARES_MAX: usize = 128 << 20;

/// What the quota tree holds.
#[derive(Default)]
pub(super) struct QuotaTree {
    flags: Option<u64>,
    infos: Vec<(u64, QgroupInfo, Place)>,
    /// (group, member), each once.
    members: Vec<(u64, u64)>,
}

impl QuotaTree {
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext) {
        block.for_each_item(ctx, |slot, item| match item.key.key_type {
            KeyType::QGROUP_STATUS => {
                self.flags = QgroupStatus::read_from_prefix(item.data).ok().map(|(s, _)| s.flags.get());
            }
            KeyType::QGROUP_INFO => {
                if let Ok(info) = QgroupInfo::read_from_bytes(item.data) {
                    let place = Place::item(block.tree, block.logical, slot, item.key);
                    self.infos.push((item.key.offset, info, place));
                }
            }
            KeyType::QGROUP_RELATION if level(item.key.objectid) > level(item.key.offset) => {
                self.members.push((item.key.objectid, item.key.offset));
            }
            _ => {}
        });
    }

    pub(super) fn append(&mut self, other: QuotaTree) {
        self.flags = self.flags.or(other.flags);
        self.infos.extend(other.infos);
        self.members.extend(other.members);
    }

    /// Whether the numbers are meant to be right: quotas are on, and no rescan is under way or due.
    pub(super) fn is_settled(&self) -> bool {
        self.flags.is_some_and(|f| f & ON != 0 && f & (UNSETTLED | SIMPLE) == 0)
    }

    /// QG-01. `subvolumes` are all there are; their trees were found whole.
    pub(super) fn judge(
        &self,
        image: &Image<'_>,
        subvolumes: &[Tree],
        usage: &Usage,
        findings: &mut Findings,
    ) {
        let Some(totals) = count(image, subvolumes, usage) else { return };
        let exists: FxHashSet<u64> = subvolumes.iter().map(|t| t.id).collect();
        let Some(members) = self.members() else { return };
        let mut shares = Shares::new(&totals);
        for (group, info, place) in &self.infos {
            if level(*group) == 0 && !exists.contains(group) {
                // Left over from a subvolume that is gone.
                continue;
            }
            let roots = members.set_of(*group);
            let Some((referenced, exclusive)) = shares.of(roots, &members.sets) else { return };
            for (what, have, expect) in
                [("referenced", info.rfer.get(), referenced), ("exclusive", info.excl.get(), exclusive)]
            {
                if have != expect {
                    let (level, id) = (level(*group), group & ((1 << 48) - 1));
                    let reason = format!("qgroup {level}/{id} {what} bytes, have {have} expect {expect}");
                    findings.add("QG-01", place.clone(), reason);
                }
            }
        }
    }

    /// The subvolumes in each group; `None` when they are too many to count.
    fn members(&self) -> Option<Members> {
        let mut relations = self.members.clone();
        // Members are of a lower level, so their sets are known when they are asked for.
        relations.sort_unstable();
        let mut members = Members { sets: Sets::new(), of_group: FxHashMap::default() };
        let mut work = 0usize;
        for group in relations.chunk_by(|a, b| a.0 == b.0) {
            let mut list = Vec::new();
            for &(_, member) in group {
                match level(member) {
                    0 => list.push(member),
                    _ => list.extend_from_slice(&members.sets.lists[members.set_of(member) as usize]),
                }
                work += 1;
                if work + list.len() > SETS_MAX {
                    return None;
                }
            }
            work += list.len();
            list.sort_unstable();
            list.dedup();
            let set = members.sets.number(list)?;
            members.of_group.insert(group[0].0, set);
        }
        for (group, ..) in self.infos.iter().filter(|(group, ..)| level(*group) == 0) {
            let set = members.sets.number(vec![*group])?;
            members.of_group.insert(*group, set);
        }
        Some(members)
    }
}

/// The sets of subvolumes in quota groups.
struct Members {
    sets: Sets,
    of_group: FxHashMap<u64, u32>,
}

impl Members {
    /// The set of a group; one without members has the empty set.
    fn set_of(&self, group: u64) -> u32 {
        self.of_group.get(&group).copied().unwrap_or(0)
    }
}

/// Bytes of the sets of subvolumes in groups.
struct Shares {
    /// How many subvolumes reach some bytes, and how many bytes.
    totals: Vec<(usize, u64)>,
    /// Which of them a subvolume reaches.
    of_root: FxHashMap<u64, Vec<usize>>,
    known: FxHashMap<u32, (u64, u64)>,
    work: usize,
}

impl Shares {
    fn new(totals: &BTreeMap<Vec<u64>, u64>) -> Shares {
        let mut of_root: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        for (nth, root) in totals.keys().enumerate().flat_map(|(nth, set)| set.iter().map(move |r| (nth, *r)))
        {
            of_root.entry(root).or_default().push(nth);
        }
        let totals = totals.iter().map(|(set, bytes)| (set.len(), *bytes)).collect();
        Shares { totals, of_root, known: FxHashMap::default(), work: 0 }
    }

    /// Bytes that a set of subvolumes reaches, and those that no other reaches; `None` when it takes too long to tell.
    fn of(&mut self, set: u32, sets: &Sets) -> Option<(u64, u64)> {
        if let Some(&known) = self.known.get(&set) {
            return Some(known);
        }
        let mut inside: FxHashMap<usize, usize> = FxHashMap::default();
        for nth in sets.lists[set as usize].iter().filter_map(|root| self.of_root.get(root)).flatten() {
            *inside.entry(*nth).or_default() += 1;
            self.work += 1;
        }
        let (mut referenced, mut exclusive) = (0u64, 0u64);
        for (nth, count) in inside {
            let (all, bytes) = self.totals[nth];
            referenced = referenced.saturating_add(bytes);
            exclusive = exclusive.saturating_add(if count == all { bytes } else { 0 });
        }
        self.known.insert(set, (referenced, exclusive));
        (self.work <= SHARES_MAX).then_some((referenced, exclusive))
    }
}

/// The level of a quota group; 0 is that of one subvolume.
fn level(group: u64) -> u64 {
    group >> 48
}

/// Sets of subvolumes, each kept once; 0 is the empty one.
struct Sets {
    lists: Vec<Vec<u64>>,
    numbers: FxHashMap<Vec<u64>, u32>,
    unions: FxHashMap<(u32, u32), u32>,
    words: usize,
}

impl Sets {
    fn new() -> Sets {
        Sets {
            lists: vec![Vec::new()],
            numbers: std::iter::once((Vec::new(), 0)).collect(),
            unions: FxHashMap::default(),
            words: 0,
        }
    }

    /// The number of a sorted set; `None` when there are too many.
    fn number(&mut self, list: Vec<u64>) -> Option<u32> {
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
fn count(image: &Image<'_>, subvolumes: &[Tree], usage: &Usage) -> Option<BTreeMap<Vec<u64>, u64>> {
    let mut sets = Sets::new();
    let mut of_extent = vec![0u32; usage.extents.len()];
    let mut levels: [Vec<u64>; 8] = Default::default();
    for tree in subvolumes {
        let set = sets.number(vec![tree.id])?;
        reach(tree.root.0, set, tree.level, usage, &mut sets, &mut of_extent, &mut levels)?;
    }
    for level in (1..8u8).rev() {
        for at in std::mem::take(&mut levels[usize::from(level)]) {
            let set = of_extent[usage.index(at)?];
            let node = read(image, at, level)?;
            for pointer in node.pointers() {
                reach(pointer.block.0, set, level - 1, usage, &mut sets, &mut of_extent, &mut levels)?;
            }
        }
    }
    let leaves = std::mem::take(&mut levels[0]);
    let known = &of_extent;
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
            of_extent[index] = sets.union(of_extent[index], set)?;
        }
    }
    let mut totals = BTreeMap::new();
    for (extent, set) in usage.extents.iter().zip(of_extent).filter(|(_, set)| *set != 0) {
        let total: &mut u64 = totals.entry(sets.lists[set as usize].clone()).or_default();
        *total = total.saturating_add(extent.len);
    }
    Some(totals)
}

/// Notes that the block at `at` is reached by the subvolumes of `set`, and is to be read.
fn reach(
    at: u64,
    set: u32,
    level: u8,
    usage: &Usage,
    sets: &mut Sets,
    of_extent: &mut [u32],
    levels: &mut [Vec<u64>; 8],
) -> Option<()> {
    let index = usage.index(at)?;
    if of_extent[index] == 0 {
        levels.get_mut(usize::from(level))?.push(at);
    }
    of_extent[index] = sets.union(of_extent[index], set)?;
    Some(())
}

fn read(image: &Image<'_>, at: u64, level: u8) -> Option<Block> {
    let expect = ParentExpectation { level: Some(level), ..ParentExpectation::default() };
    image.read(0, &Pointer { at: Logical(at), expect }, false, &mut Findings::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: u64 = 1 << 48;

    fn tree_of(members: Vec<(u64, u64)>) -> QuotaTree {
        QuotaTree { members, ..QuotaTree::default() }
    }

    /// Bytes by set of subvolumes, and what three groups of two levels have of them.
    #[test]
    fn groups_have_what_their_subvolumes_reach() {
        let tree = tree_of(vec![
            (2 * LEVEL, LEVEL),
            (2 * LEVEL, LEVEL + 1),
            (LEVEL, 256),
            (LEVEL, 257),
            (LEVEL + 1, 257),
            (LEVEL + 1, 258),
        ]);
        let totals = [(vec![256], 1), (vec![256, 257], 10), (vec![257, 258], 100), (vec![256, 300], 1000)];
        let mut shares = Shares::new(&totals.into_iter().collect());
        let members = tree.members().unwrap();
        let mut of = |group| shares.of(members.set_of(group), &members.sets).unwrap();
        assert_eq!(of(LEVEL), (1111, 11));
        assert_eq!(of(LEVEL + 1), (110, 100));
        assert_eq!(of(2 * LEVEL), (1111, 111));
        assert_eq!(of(3 * LEVEL), (0, 0));
    }

    /// Half a million relations, in three shapes: one group of all, a chain of all levels, groups that hold each other's.
    #[test]
    fn many_relations_take_bounded_time() {
        const MANY: u64 = 500_000;
        let wide = tree_of((0..MANY).map(|n| (LEVEL, 256 + n)).collect());
        let members = wide.members().unwrap();
        assert_eq!(members.sets.lists[members.set_of(LEVEL) as usize].len() as u64, MANY);
        let chain =
            tree_of((1..65_536).map(|n| (n * LEVEL, (n - 1) * LEVEL + 256 * u64::from(n == 1))).collect());
        let members = chain.members().unwrap();
        assert_eq!(members.sets.lists[members.set_of(65_535 * LEVEL) as usize], [256]);
        let low = (0..1000).map(|n| (LEVEL + n % 10, 256 + n));
        let high = (0..MANY).map(|n| (2 * LEVEL + n / 10, LEVEL + n % 10));
        assert!(tree_of(low.chain(high).collect()).members().is_none(), "too many to count");
    }
}
