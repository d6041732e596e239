//! Walking a tree: nodes one after the other, leaves in parallel runs, each block judged.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use btrfsimg_ondisk::{Key, Logical, MAX_LEVEL, ParentExpectation};
use rustc_hash::FxHashSet;

use super::finding::{Finding, Findings, Place};
use super::image::{Block, Image, Pointer};
use super::usage::{Usage, User, bit};

/// A tree to walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    /// Its id, as in the key of its root item.
    pub(super) id: u64,
    pub(super) root: Logical,
    pub(super) level: u8,
    pub(super) generation: u64,
    /// How far its deletion has come: the last key that is gone, and the level of that.
    pub(super) drop: Option<(Key, u8)>,
}

/// Where users of blocks are counted.
pub(super) enum Users<'a> {
    /// The extent tree is not read yet: they are kept.
    Later(&'a Mutex<Vec<LaterUser>>),
    /// At once.
    Now(&'a Usage),
    /// Not: the tree was walked before, and its faults are known.
    Known,
}

/// A pointer met before the extent tree is known.
#[derive(Clone, Copy)]
pub(super) struct LaterUser {
    /// The block that points.
    pub(super) parent: Logical,
    /// Its owner.
    pub(super) owner: u64,
    /// Its level.
    pub(super) level: u8,
    /// What it points to.
    pub(super) child: Logical,
}

/// A leaf to read, and the key that its own must stay below.
#[derive(Clone, Copy)]
struct Leaf {
    pointer: Pointer,
    bound: Option<Key>,
}

/// Leaves that one worker takes at a time.
const RUN: usize = 32;

/// A walk of one tree.
pub(super) struct Walk<'a> {
    image: &'a Image<'a>,
    tree: Tree,
    users: Users<'a>,
    blocks: &'a AtomicU64,
    met: FxHashSet<u64>,
    leaves: Vec<Leaf>,
    findings: Findings,
    /// Every block was sound.
    whole: bool,
    run_len: usize,
}

/// What a walk gives.
pub(super) struct Walked<T> {
    /// What each run of leaves gave, in key order.
    pub(super) runs: Vec<T>,
    /// The blocks' faults.
    pub(super) findings: Findings,
    /// Whether every block was sound.
    pub(super) whole: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(image: &'a Image<'a>, tree: Tree, users: Users<'a>, blocks: &'a AtomicU64) -> Walk<'a> {
        Walk {
            image,
            tree,
            users,
            blocks,
            met: FxHashSet::default(),
            leaves: Vec::new(),
            findings: Findings::default(),
            whole: true,
            run_len: RUN,
        }
    }

    /// A second walk of a tree, for its contents alone.
    pub(super) fn quiet(image: &'a Image<'a>, tree: Tree, blocks: &'a AtomicU64) -> Walk<'a> {
        Walk::new(image, tree, Users::Known, blocks)
    }

    /// The same, with so many leaves for a worker at a time.
    pub(super) fn in_runs_of(self, run: usize) -> Walk<'a> {
        Walk { run_len: run.max(1), ..self }
    }

    /// Walks the tree and gives each leaf to `visit`, with whether it is met for the first time in the image, and
    /// with the value of its run.
    pub(super) fn run<T: Default + Send>(
        mut self,
        visit: impl Fn(&mut T, &Block, bool, &mut Findings) + Sync,
    ) -> Walked<T> {
        let root = Pointer {
            at: self.tree.root,
            expect: ParentExpectation {
                level: Some(self.tree.level),
                generation: Some(self.tree.generation),
                first_key: None,
                tree: Some(self.tree.id),
            },
        };
        self.descend(root, None, self.tree.drop);
        let mut runs = self.visit_leaves(&visit);
        runs.sort_unstable_by_key(|r| r.0);
        let mut walked =
            Walked { runs: Vec::with_capacity(runs.len()), findings: self.findings, whole: self.whole };
        for (_, value, findings) in runs {
            walked.runs.push(value);
            walked.findings.append(findings);
        }
        walked
    }

    /// Reads the nodes under `pointer` and lists the leaves. Levels fall with each step, so this ends.
    fn descend(&mut self, pointer: Pointer, bound: Option<Key>, drop: Option<(Key, u8)>) {
        let is_leaf = pointer.expect.level == Some(0);
        if !self.met.insert(pointer.at.0) {
            if !matches!(self.users, Users::Known) {
                let place = Place::block(self.tree.id, pointer.at, is_leaf);
                self.findings.add("BLK-13", place, "block reached twice in one tree");
            }
            self.whole = false;
            return;
        }
        if is_leaf {
            self.leaves.push(Leaf { pointer, bound });
            return;
        }
        let mut findings = Findings::default();
        let node = self.image.read(self.tree.id, &pointer, true, &mut findings);
        let first_visit = self.visited(pointer.at);
        if first_visit {
            self.findings.append(findings);
        }
        let Some(node) = node.filter(|n| n.level > 0 && n.level < MAX_LEVEL) else {
            self.whole = false;
            return;
        };
        self.whole &= node.judged.is_sound();
        if first_visit {
            check_bound(&node, bound, &mut self.findings);
        }
        self.descend_into(&node, bound, drop, first_visit);
    }

    fn descend_into(&mut self, node: &Block, bound: Option<Key>, drop: Option<(Key, u8)>, first_visit: bool) {
        let pointers = node.pointers();
        let drop = drop.filter(|(_, level)| node.level >= *level);
        let from = drop.map_or(0, |(key, _)| pointers.iter().rposition(|p| p.key <= key).unwrap_or(0));
        for (slot, pointer) in pointers.iter().enumerate().skip(from) {
            if first_visit {
                self.user(node, pointer.block);
            }
            let child = Pointer {
                at: pointer.block,
                expect: ParentExpectation {
                    level: node.level.checked_sub(1),
                    generation: Some(pointer.generation),
                    first_key: Some(pointer.key),
                    tree: Some(self.tree.id),
                },
            };
            let child_drop = drop.filter(|(_, level)| slot == from && node.level > *level);
            self.descend(child, pointers.get(slot + 1).map(|p| p.key).or(bound), child_drop);
        }
    }

    /// Notes that the block is read; says whether for the first time.
    fn visited(&self, at: Logical) -> bool {
        let first = match &self.users {
            Users::Later(_) => true,
            Users::Now(usage) => usage.visit(at.0),
            Users::Known => false,
        };
        if first {
            self.blocks.fetch_add(1, Ordering::Relaxed);
        }
        first
    }

    fn user(&mut self, node: &Block, child: Logical) {
        match &self.users {
            Users::Later(list) => {
                let mut list = list.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                list.push(LaterUser { parent: node.logical, owner: node.owner, level: node.level, child });
            }
            Users::Now(usage) => {
                let user = User { extent: child.0, back: usage.block_ref(node.logical.0, node.owner) };
                let place = node.place();
                judge_user(usage, user, node.level.saturating_sub(1), &place, &mut self.findings);
            }
            Users::Known => {}
        }
    }

    fn visit_leaves<T: Default + Send>(
        &mut self,
        visit: &(impl Fn(&mut T, &Block, bool, &mut Findings) + Sync),
    ) -> Vec<(usize, T, Findings)> {
        let leaves = std::mem::take(&mut self.leaves);
        let run_len = self.run_len;
        let (next, whole) = (AtomicUsize::new(0), AtomicBool::new(true));
        let done = Mutex::new(Vec::new());
        let this = &*self;
        let work = || {
            loop {
                let at = next.fetch_add(run_len, Ordering::Relaxed);
                let Some(run) = leaves.get(at..leaves.len().min(at + run_len)).filter(|r| !r.is_empty())
                else {
                    return;
                };
                let (mut value, mut findings) = (T::default(), Findings::default());
                for leaf in run {
                    if !this.visit_leaf(leaf, visit, &mut value, &mut findings) {
                        whole.store(false, Ordering::Relaxed);
                    }
                }
                let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                done.push((at, value, findings));
            }
        };
        let helpers = (leaves.len() / run_len).min(self.image.threads.saturating_sub(1));
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(work);
            }
            work();
        });
        self.whole &= whole.into_inner();
        done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Reads and visits one leaf; says whether it is sound.
    fn visit_leaf<T>(
        &self,
        leaf: &Leaf,
        visit: &impl Fn(&mut T, &Block, bool, &mut Findings),
        value: &mut T,
        findings: &mut Findings,
    ) -> bool {
        let mut faults = Findings::default();
        let block = self.image.read(self.tree.id, &leaf.pointer, true, &mut faults);
        let first_visit = self.visited(leaf.pointer.at);
        if first_visit {
            findings.append(faults);
        }
        let Some(block) = block.filter(|b| b.level == 0) else { return false };
        if first_visit {
            check_bound(&block, leaf.bound, findings);
        }
        visit(value, &block, first_visit, findings);
        block.judged.is_sound()
    }
}

/// BLK-09: all keys of `block` are below the parent's next key.
fn check_bound(block: &Block, bound: Option<Key>, findings: &mut Findings) {
    if let (Some(bound), Some(last)) = (bound, block.last_key())
        && last >= bound
    {
        findings.add(
            "BLK-09",
            block.place(),
            format!("key beyond the parent's next, have {last} expect below {bound}"),
        );
    }
}

/// Notes a user of a tree block, said by `place`: XR-04 when there is no such extent, XR-02 when its level differs.
pub(super) fn judge_user(usage: &Usage, user: User, level: u8, place: &Place, findings: &mut Findings) {
    let fault = |rule, reason: String| Finding {
        consequence: !usage.whole,
        ..Finding::new(rule, place.clone(), reason)
    };
    match usage.add(user) {
        None => findings.push(fault("XR-04", format!("no extent item for the tree block {}", user.extent))),
        Some(extent) if extent.level != level && !extent.has(bit::DATA) => {
            let reason =
                format!("metadata level mismatch on {}, have {} expect {level}", user.extent, extent.level);
            findings.push(fault("XR-02", reason));
        }
        Some(_) => {}
    }
}
