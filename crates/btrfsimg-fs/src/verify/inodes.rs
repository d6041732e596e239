//! The inodes of a subvolume, in one pass over its leaves in key order.
//!
//! A run of leaves is judged by one worker. Its first and its last inode may go on in the neighbouring runs: those
//! two are kept as they are and joined afterwards, all between are judged at once and forgotten. Runs joined are a
//! run again: so what lies below a block that snapshots share is kept as one run (about 2 KiB, and 16 bytes for each
//! directory), and a tree that meets the block later takes that instead of reading it again.

use std::sync::Mutex;

use btrfsimg_ondisk::{BlockContext, KeyType, Logical, ParentExpectation, objectid};
use rustc_hash::{FxHashMap, FxHashSet};

use super::csums::Csums;
use super::finding::{Findings, Place};
use super::image::Block;
use super::inode::{Inode, Spot};
use super::names::Sums;
use super::usage::{Usage, bit};
use super::walk::Part;

/// What judging a subvolume needs.
pub(super) struct Subvolume<'a> {
    pub(super) tree: u64,
    pub(super) ctx: &'a BlockContext,
    pub(super) no_holes: bool,
    pub(super) usage: &'a Usage,
    /// Covered data, when the checksum tree is whole.
    pub(super) csums: Option<&'a Csums>,
    /// Whether names and inodes are judged, or only the users of extents are counted.
    pub(super) names: bool,
    /// Inodes at fault, by what they are made of.
    pub(super) said: &'a Mutex<FxHashSet<u64>>,
}

/// An entry that names a subvolume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SubvolumeEntry {
    pub(super) dir: u64,
    pub(super) name: Vec<u8>,
    pub(super) target: u64,
    /// Of the entry by index; `None` of the one by hash.
    pub(super) index: Option<u64>,
}

/// What a run of leaves gives.
#[derive(Clone, Default)]
pub(super) struct Run {
    head: Option<Inode>,
    tail: Option<Inode>,
    all: Seen,
}

/// What is kept of a subvolume.
#[derive(Clone, Default)]
pub(super) struct Seen {
    pub(super) findings: Findings,
    pub(super) sums: Sums,
    pub(super) entries: Vec<SubvolumeEntry>,
    /// Directories and their parents.
    pub(super) dirs: Vec<(u64, u64)>,
    pub(super) unlinked: Vec<u64>,
    pub(super) orphans: Vec<u64>,
    pub(super) inodes: u64,
    pub(super) has_root_dir: bool,
    /// Preallocated ranges that are covered by checksums: odd unless written through another file.
    pub(super) prealloc_checked: Vec<(u64, Place)>,
}

/// What lies below the blocks that subvolumes share.
#[derive(Default)]
pub(super) struct Shared {
    blocks: FxHashMap<Logical, SharedBlock>,
}

struct SharedBlock {
    /// What the first pointer to it says.
    expect: ParentExpectation,
    run: Run,
    whole: bool,
}

impl Run {
    /// Takes in a leaf.
    pub(super) fn leaf(&mut self, block: &Block, first_visit: bool, subvolume: &Subvolume<'_>) {
        block.for_each_item(subvolume.ctx, |slot, item| {
            let spot = Spot::new(block, slot, item.key);
            if item.key.key_type == KeyType::ORPHAN_ITEM {
                self.all.orphans.push(item.key.offset);
                return;
            }
            if self.open().is_none_or(|inode| inode.ino != item.key.objectid) {
                self.next(Inode::at(spot), subvolume);
            }
            let Run { head, tail, all } = self;
            if let Some(inode) = tail.as_mut().or(head.as_mut()) {
                inode.item(&item, spot, (block, first_visit), all, subvolume);
            }
        });
    }

    /// The inode that may go on.
    fn open(&mut self) -> Option<&mut Inode> {
        self.tail.as_mut().or(self.head.as_mut())
    }

    /// Goes on to the next inode; what came before is judged, unless it is the run's first.
    fn next(&mut self, inode: Inode, subvolume: &Subvolume<'_>) {
        if self.head.is_none() {
            self.head = Some(inode);
        } else if let Some(done) = self.tail.replace(inode) {
            done.judge(subvolume, &mut self.all);
        }
    }

    /// Goes on with the run that follows.
    fn append(&mut self, next: Run, subvolume: &Subvolume<'_>) {
        if let Some(head) = next.head {
            match self.open() {
                Some(inode) if inode.ino == head.ino => inode.append(head),
                _ => self.next(head, subvolume),
            }
        }
        if let Some(tail) = next.tail {
            self.next(tail, subvolume);
        }
        self.all.append(next.all);
    }

    /// Judges the two inodes that were still open.
    fn finish(self, subvolume: &Subvolume<'_>) -> Seen {
        let Run { head, tail, mut all } = self;
        for inode in head.into_iter().chain(tail) {
            inode.judge(subvolume, &mut all);
        }
        all
    }
}

/// Joins the parts of a subvolume; keeps what is shared, and takes what was kept.
pub(super) fn join(parts: Vec<Part<Run>>, shared: &mut Shared, subvolume: &Subvolume<'_>) -> (Seen, bool) {
    // The subvolume, and the shared blocks that are open within each other.
    let mut open = vec![(Run::default(), true)];
    for part in parts {
        let (run, whole) = match part {
            Part::Run(run, whole) => (run, whole),
            Part::Known(at) => match shared.blocks.get(&at) {
                Some(known) => (known.run.clone(), known.whole),
                None => continue,
            },
            Part::Broken => (Run::default(), false),
            Part::Enter => {
                open.push((Run::default(), true));
                continue;
            }
            Part::Leave(pointer) => {
                let Some((run, whole)) = open.pop() else { continue };
                let kept = SharedBlock { expect: pointer.expect, run: run.for_other_trees(), whole };
                shared.blocks.insert(pointer.at, kept);
                (run, whole)
            }
        };
        if let Some((into, all_whole)) = open.last_mut() {
            into.append(run, subvolume);
            *all_whole &= whole;
        }
    }
    let (run, whole) = open.pop().unwrap_or_default();
    (run.finish(subvolume), whole)
}

impl Shared {
    /// What the first pointer to a known block says of it, whatever the tree.
    pub(super) fn expectation(&self, at: Logical) -> Option<ParentExpectation> {
        self.blocks.get(&at).map(|known| known.expect)
    }
}

impl Run {
    /// The same, without what is said once.
    fn for_other_trees(&self) -> Run {
        let mut run = self.clone();
        run.all.findings = Findings::default();
        run.all.prealloc_checked = Vec::new();
        run
    }
}

impl Seen {
    fn append(&mut self, other: Seen) {
        self.findings.append(other.findings);
        self.sums.add(&other.sums);
        self.entries.extend(other.entries);
        self.dirs.extend(other.dirs);
        self.unlinked.extend(other.unlinked);
        self.orphans.extend(other.orphans);
        self.inodes += other.inodes;
        self.has_root_dir |= other.has_root_dir;
        self.prealloc_checked.extend(other.prealloc_checked);
    }

    /// LK-06, LK-07: inodes without names have orphan items, and these have inodes.
    pub(super) fn judge_orphans(&mut self, tree: u64, exists: impl Fn(u64) -> bool, findings: &mut Findings) {
        self.orphans.sort_unstable();
        let named = self.orphans.iter().filter(|ino| self.unlinked.binary_search(ino).is_err());
        for ino in named.filter(|ino| !exists(**ino)) {
            findings.add("LK-07", Place::inode(tree, *ino), "orphan item without its inode");
        }
        for ino in &self.unlinked {
            if self.orphans.binary_search(ino).is_err() {
                findings.add("LK-06", Place::inode(tree, *ino), "inode without names has no orphan item");
            }
        }
    }

    /// LK-08: each directory's way up ends at the root directory.
    pub(super) fn judge_dirs(&mut self, tree: u64, findings: &mut Findings) {
        self.dirs.sort_unstable();
        self.dirs.dedup_by_key(|d| d.0);
        let find = |ino: u64| self.dirs.binary_search_by_key(&ino, |d| d.0).ok();
        // 0 unknown, 1 reaches the root or leaves the list, 2 on the way, 3 does not.
        let mut state = vec![0u8; self.dirs.len()];
        let mut path = Vec::new();
        for start in 0..self.dirs.len() {
            let mut at = Some(start);
            let verdict = loop {
                match at {
                    None => break 1,
                    Some(i) if state[i] == 2 => break 3,
                    Some(i) if state[i] != 0 => break state[i],
                    Some(i) if self.dirs[i].0 == objectid::FIRST_FREE => break 1,
                    Some(i) => {
                        state[i] = 2;
                        path.push(i);
                        at = find(self.dirs[i].1);
                    }
                }
            };
            for i in path.drain(..) {
                state[i] = verdict;
            }
            if verdict == 3 {
                let place = Place::inode(tree, self.dirs[start].0);
                findings.add("LK-08", place, "directory is in a loop, not reached from the root directory");
            }
        }
    }
}

/// CS-08, once every user of every extent is known: preallocated ranges that have checksums were written through
/// another file.
pub(super) fn judge_prealloc(checked: Vec<(u64, Place)>, usage: &Usage, findings: &mut Findings) {
    for (extent, place) in checked {
        if usage.find(extent).is_some_and(|e| !e.has(bit::REGULAR)) {
            findings.add("CS-08", place, "preallocated range that was never written has checksums");
        }
    }
}
