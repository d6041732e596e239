//! Quota groups: how they hang together (QG-02 to QG-05), and their numbers, counted again (QG-01).

use std::collections::BTreeMap;

use btrfsimg_ondisk::{BlockContext, KeyType, QgroupInfo, QgroupStatus, objectid};
use rustc_hash::FxHashMap;
use zerocopy::FromBytes;

use super::finding::{Findings, Place};
use super::image::{Block, Image};
use super::sharing::{SETS_MAX, Sets, count};
use super::usage::Usage;
use super::walk::Tree;

/// Bits of the status item's flags.
const ON: u64 = 1;
const UNSETTLED: u64 = 2 | 4;
const SIMPLE: u64 = 8;
/// The version of the status item; kernels turn quotas off for others.
const VERSION: u64 = 1;

/// Steps in which the bytes of all groups together are counted.
const SHARES_MAX: usize = 128 << 20;

/// What the quota tree holds.
#[derive(Default)]
pub(super) struct QuotaTree {
    status: Option<(QgroupStatus, Place)>,
    infos: Vec<(u64, QgroupInfo, Place)>,
    /// (group, member) by the member's items, as kernels and `btrfs check` read them.
    members: Vec<(u64, u64)>,
    /// The same by the groups' items, which only say it again.
    mirrors: Vec<(u64, u64)>,
}

impl QuotaTree {
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext) {
        block.for_each_item(ctx, |slot, item| match item.key.key_type {
            KeyType::QGROUP_STATUS => {
                let place = Place::item(block.tree, block.logical, slot, item.key);
                self.status = QgroupStatus::read_from_prefix(item.data).ok().map(|(s, _)| (s, place));
            }
            KeyType::QGROUP_INFO => {
                if let Ok(info) = QgroupInfo::read_from_bytes(item.data) {
                    let place = Place::item(block.tree, block.logical, slot, item.key);
                    self.infos.push((item.key.offset, info, place));
                }
            }
            // The member has the lower number: as a rule its level is lower.
            KeyType::QGROUP_RELATION if item.key.objectid <= item.key.offset => {
                self.members.push((item.key.offset, item.key.objectid));
            }
            KeyType::QGROUP_RELATION => self.mirrors.push((item.key.objectid, item.key.offset)),
            _ => {}
        });
    }

    pub(super) fn append(&mut self, other: QuotaTree) {
        self.status = self.status.take().or(other.status);
        self.infos.extend(other.infos);
        self.members.extend(other.members);
        self.mirrors.extend(other.mirrors);
    }

    /// Puts all in order, for what follows.
    pub(super) fn sort(&mut self) {
        self.infos.sort_by_key(|(group, ..)| *group);
        // Members have lower numbers, so their sets are known when they are asked for.
        self.members.sort_unstable();
        self.mirrors.sort_unstable();
    }

    /// Whether kernels count: quotas are on.
    fn is_on(&self) -> bool {
        self.status.as_ref().is_some_and(|(s, _)| s.version == VERSION && s.flags & ON != 0)
    }

    /// Whether the numbers are meant to be right: quotas are on, and no rescan is under way or due.
    pub(super) fn is_settled(&self) -> bool {
        self.is_on() && self.status.as_ref().is_some_and(|(s, _)| s.flags & (UNSETTLED | SIMPLE) == 0)
    }

    fn has(&self, group: u64) -> bool {
        self.infos.binary_search_by_key(&group, |(group, ..)| *group).is_ok()
    }

    /// QG-02 to QG-05. `live` are the subvolumes that are not being deleted.
    pub(super) fn judge_groups(&self, live: &[u64], findings: &mut Findings) {
        let place = || Place::tree(objectid::QUOTA_TREE);
        if let Some((status, place)) = self.status.as_ref().filter(|(s, _)| s.version != VERSION) {
            let reason =
                format!("quota status of an unknown version, have {} expect {VERSION}", status.version);
            findings.add("QG-05", place.clone(), reason);
        }
        for (of, again) in [(&self.members, &self.mirrors), (&self.mirrors, &self.members)] {
            for (group, member) in of.iter().filter(|pair| again.binary_search(pair).is_err()) {
                let reason = format!("relation of {} in {} from one side alone", name(*member), name(*group));
                findings.add("QG-02", place(), reason);
            }
        }
        for &(group, member) in &self.members {
            let fault = match (self.has(group) && self.has(member), level(member) < level(group)) {
                (true, true) => continue,
                (true, false) => "is not of a lower level",
                (false, _) => "or its group does not exist",
            };
            findings.add("QG-03", place(), format!("member {} of {} {fault}", name(member), name(group)));
        }
        if !self.is_settled() {
            return;
        }
        for id in live.iter().filter(|id| !self.has(**id)) {
            findings.add("QG-04", place(), format!("subvolume {id} has no quota group"));
        }
    }

    /// QG-01. `subvolumes` are all there are; their trees were found whole. The group of one that is gone has no bytes.
    /// What a subvolume whose deletion is under way reaches is not settled: groups that reach it as well are left out.
    pub(super) fn judge(
        &self,
        image: &Image<'_>,
        subvolumes: &[Tree],
        usage: &Usage,
        findings: &mut Findings,
    ) {
        let Some(totals) = count(image, subvolumes, usage) else { return };
        let Some(members) = self.members() else { return };
        let mut shares = Shares::new(&totals, &usage.dead);
        for (group, info, place) in &self.infos {
            let roots = members.set_of(*group);
            let Some(share) = shares.of(roots, &members.sets) else { return };
            let Share::Settled(referenced, exclusive) = share else { continue };
            for (what, have, expect) in
                [("referenced", info.rfer.get(), referenced), ("exclusive", info.excl.get(), exclusive)]
            {
                if have != expect {
                    let reason = format!("qgroup {} {what} bytes, have {have} expect {expect}", name(*group));
                    findings.add("QG-01", place.clone(), reason);
                }
            }
        }
    }

    /// The subvolumes in each group; `None` when they are too many to count. A relation with a group that does not exist
    /// counts for nothing; one of two groups of a level counts as any other does (Linux 6.1, `btrfs_read_qgroup_config`).
    fn members(&self) -> Option<Members> {
        let mut members = Members { sets: Sets::new(), of_group: FxHashMap::default() };
        let mut work = 0usize;
        for group in self.infos.iter().map(|(group, ..)| *group).filter(|group| level(*group) == 0) {
            let set = members.sets.number(vec![group])?;
            members.of_group.insert(group, set);
        }
        let exist = |(group, member): &&(u64, u64)| self.has(*group) && self.has(*member);
        let relations: Vec<(u64, u64)> = self.members.iter().filter(exist).copied().collect();
        for relations in relations.chunk_by(|a, b| a.0 == b.0) {
            let group = relations[0].0;
            let mut list = members.sets.lists[members.set_of(group) as usize].clone();
            for &(_, member) in relations {
                list.extend_from_slice(&members.sets.lists[members.set_of(member) as usize]);
                work += 1;
                if work + list.len() > SETS_MAX {
                    return None;
                }
            }
            work += list.len();
            list.sort_unstable();
            list.dedup();
            let set = members.sets.number(list)?;
            members.of_group.insert(group, set);
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

/// What a set of subvolumes has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Share {
    /// Bytes that it reaches, and those that no other reaches.
    Settled(u64, u64),
    /// A subvolume whose deletion is under way reaches some of them.
    Unsettled,
}

/// Bytes of the sets of subvolumes in groups.
struct Shares {
    /// How many subvolumes reach some bytes, how many bytes, and whether all of these subvolumes stay.
    totals: Vec<(usize, u64, bool)>,
    /// Which of them a subvolume reaches.
    of_root: FxHashMap<u64, Vec<usize>>,
    known: FxHashMap<u32, Share>,
    work: usize,
}

impl Shares {
    fn new(totals: &BTreeMap<Vec<u64>, u64>, dead: &[u64]) -> Shares {
        let mut of_root: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        for (nth, root) in totals.keys().enumerate().flat_map(|(nth, set)| set.iter().map(move |r| (nth, *r)))
        {
            of_root.entry(root).or_default().push(nth);
        }
        let stays = |set: &[u64]| set.iter().all(|root| dead.binary_search(root).is_err());
        let totals = totals.iter().map(|(set, bytes)| (set.len(), *bytes, stays(set))).collect();
        Shares { totals, of_root, known: FxHashMap::default(), work: 0 }
    }

    /// What a set of subvolumes has; `None` when it takes too long to tell.
    fn of(&mut self, set: u32, sets: &Sets) -> Option<Share> {
        if let Some(&known) = self.known.get(&set) {
            return Some(known);
        }
        let mut inside: FxHashMap<usize, usize> = FxHashMap::default();
        for nth in sets.lists[set as usize].iter().filter_map(|root| self.of_root.get(root)).flatten() {
            *inside.entry(*nth).or_default() += 1;
            self.work += 1;
        }
        let (mut referenced, mut exclusive, mut all_stay) = (0u64, 0u64, true);
        for (nth, count) in inside {
            let (all, bytes, stays) = self.totals[nth];
            referenced = referenced.saturating_add(bytes);
            exclusive = exclusive.saturating_add(if count == all { bytes } else { 0 });
            all_stay &= stays;
        }
        let share = if all_stay { Share::Settled(referenced, exclusive) } else { Share::Unsettled };
        self.known.insert(set, share);
        (self.work <= SHARES_MAX).then_some(share)
    }
}

/// The level of a quota group; 0 is that of one subvolume.
fn level(group: u64) -> u64 {
    group >> 48
}

/// A quota group as `btrfs qgroup show` prints it.
fn name(group: u64) -> String {
    format!("{}/{}", level(group), group & ((1 << 48) - 1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use zerocopy::FromZeros as _;

    use super::*;

    const LEVEL: u64 = 1 << 48;

    fn tree_of(members: Vec<(u64, u64)>) -> QuotaTree {
        let groups: BTreeSet<u64> = members.iter().flat_map(|(group, member)| [*group, *member]).collect();
        let info = |group| (group, QgroupInfo::new_zeroed(), Place::default());
        let mut tree =
            QuotaTree { members, infos: groups.into_iter().map(info).collect(), ..QuotaTree::default() };
        tree.sort();
        tree
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
            (LEVEL + 2, LEVEL),
            (300, 256),
        ]);
        let totals = [(vec![256], 1), (vec![256, 257], 10), (vec![257, 258], 100), (vec![256, 300], 1000)];
        let totals = totals.into_iter().collect();
        let members = tree.members().unwrap();
        let mut shares = Shares::new(&totals, &[]);
        let mut of = |group| shares.of(members.set_of(group), &members.sets).unwrap();
        assert_eq!(of(LEVEL), Share::Settled(1111, 11));
        assert_eq!(of(LEVEL + 1), Share::Settled(110, 100));
        assert_eq!(of(2 * LEVEL), Share::Settled(1111, 111));
        assert_eq!(of(3 * LEVEL), Share::Settled(0, 0));
        // Relations within a level, which kernels do not make and do count.
        assert_eq!(of(LEVEL + 2), Share::Settled(1111, 11));
        assert_eq!(of(300), Share::Settled(1011, 1001));
        // While 300 is being deleted, what it reaches is not settled.
        let mut shares = Shares::new(&totals, &[300]);
        let mut of = |group| shares.of(members.set_of(group), &members.sets).unwrap();
        assert_eq!(of(LEVEL), Share::Unsettled);
        assert_eq!(of(LEVEL + 1), Share::Settled(110, 100));
        assert_eq!(of(2 * LEVEL), Share::Unsettled);
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
