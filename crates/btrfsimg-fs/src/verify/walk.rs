//! Walking a tree: nodes one after the other, leaves in parallel runs, each block judged.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use btrfsimg_ondisk::{Key, Logical, MAX_LEVEL, ParentExpectation, header_flags, objectid};
use rustc_hash::FxHashSet;

use super::finding::{Finding, Findings, Place};
use super::image::{Block, Image, Pointer};
use super::parallel::in_order;
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

impl Tree {
    /// The pointer to its root.
    pub(super) fn pointer(&self) -> Pointer {
        let expect = ParentExpectation {
            level: Some(self.level),
            generation: Some(self.generation),
            first_key: None,
            tree: Some(self.id),
        };
        Pointer { at: self.root, expect }
    }
}

/// Where users of blocks are counted.
pub(super) enum Users<'a> {
    /// The extent tree is not read yet: they are kept.
    Later(&'a Mutex<Vec<LaterUser>>),
    /// At once.
    Now(&'a Usage),
    /// None are: blocks of a log have no extents. The blocks are listed.
    Log(&'a Mutex<Vec<Logical>>),
    /// Those of some extents are listed, in a walk of what was judged before.
    Listed {
        usage: &'a Usage,
        /// The extents, sorted.
        wanted: &'a [u64],
        users: &'a Mutex<Vec<User>>,
    },
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

/// What of a tree is to be read, in key order.
enum Step {
    Leaf(Leaf),
    Known(Logical),
    Enter,
    Leave(Pointer),
    Broken,
}

/// What of a tree was read, in key order.
pub(super) enum Part<T> {
    /// A run of leaves, and whether all were sound.
    Run(T, bool),
    /// A block that is known from another tree, with all below it.
    Known(Logical),
    /// What follows, up to the `Leave` that belongs to it, is below a block that other trees may share.
    Enter,
    /// The end of that block.
    Leave(Pointer),
    /// Something that could not be read.
    Broken,
}

impl<T> Part<T> {
    /// What a run of leaves gave.
    pub(super) fn into_run(self) -> Option<T> {
        match self {
            Part::Run(value, _) => Some(value),
            _ => None,
        }
    }
}

/// Says whether a block is known from another tree, and then what that tree's pointer to it says.
pub(super) type Known<'a> = &'a (dyn Fn(Logical) -> Option<ParentExpectation> + Sync);

/// Leaves that one worker takes at a time.
const RUN: usize = 32;

/// A walk of one tree.
pub(super) struct Walk<'a> {
    image: &'a Image<'a>,
    tree: Tree,
    users: Users<'a>,
    blocks: &'a AtomicU64,
    met: FxHashSet<u64>,
    known: Option<Known<'a>>,
    plan: Vec<Step>,
    findings: Findings,
    /// Every block was sound.
    whole: bool,
}

/// What a walk gives.
pub(super) struct Walked<R> {
    /// What each run of leaves gave, in key order.
    pub(super) runs: Vec<R>,
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
            known: None,
            plan: Vec::new(),
            findings: Findings::default(),
            whole: true,
        }
    }

    /// A second walk of a tree, for its contents alone.
    pub(super) fn quiet(image: &'a Image<'a>, tree: Tree, blocks: &'a AtomicU64) -> Walk<'a> {
        Walk::new(image, tree, Users::Known, blocks)
    }

    /// The same, without entering blocks that are known.
    pub(super) fn knowing(self, known: Known<'a>) -> Walk<'a> {
        Walk { known: Some(known), ..self }
    }

    /// Walks the tree and gives each leaf to `visit`, with whether it is met for the first time in the image, and
    /// with the value of its run.
    pub(super) fn run<T: Default + Send>(
        self,
        visit: impl Fn(&mut T, &Block, bool, &mut Findings) + Sync,
    ) -> Walked<T> {
        let Walked { runs, findings, whole } = self.run_in_parts(visit);
        Walked { runs: runs.into_iter().filter_map(Part::into_run).collect(), findings, whole }
    }

    /// The same, with what is shared marked.
    pub(super) fn run_in_parts<T: Default + Send>(
        mut self,
        visit: impl Fn(&mut T, &Block, bool, &mut Findings) + Sync,
    ) -> Walked<Part<T>> {
        self.descend(self.tree.pointer(), None, self.tree.drop);
        let runs = self.visit_leaves(&visit);
        Walked { runs, findings: self.findings, whole: self.whole }
    }

    /// Walks the tree and gives `take` what `work` makes of each leaf, in key order and as soon as it is there. Not kept:
    /// what is wrong with the blocks, which another walk said.
    pub(super) fn stream<T: Send>(mut self, work: impl Fn(&Block) -> T + Sync, take: impl FnMut(T)) {
        self.descend(self.tree.pointer(), None, self.tree.drop);
        let leaves: Vec<Leaf> = std::mem::take(&mut self.plan)
            .into_iter()
            .filter_map(|step| if let Step::Leaf(leaf) = step { Some(leaf) } else { None })
            .collect();
        let (this, mut take) = (&self, take);
        let visit = |at: usize| {
            let (mut value, mut faults) = (None, Findings::default());
            let keep = |value: &mut Option<T>, block: &Block, _, _: &mut Findings| *value = Some(work(block));
            this.visit_leaf(leaves.get(at)?, &keep, &mut value, &mut faults);
            value
        };
        in_order(this.image.threads, leaves.len(), visit, |value| value.into_iter().for_each(&mut take));
    }

    /// Reads the nodes under `pointer` and lists the leaves. Levels fall with each step, so this ends.
    fn descend(&mut self, pointer: Pointer, bound: Option<Key>, drop: Option<(Key, u8)>) {
        let is_leaf = pointer.expect.level == Some(0);
        if !self.met.insert(pointer.at.0) {
            if !matches!(self.users, Users::Known) {
                let place = Place::block(self.tree.id, pointer.at, is_leaf);
                self.findings.add("BLK-13", place, "block reached twice in one tree");
            }
            return self.broken();
        }
        let Some(known) = self.known.filter(|_| drop.is_none()) else {
            return self.enter(pointer, bound, drop);
        };
        if let Some(first) = known(pointer.at) {
            self.compare(&pointer, &first);
            return self.plan.push(Step::Known(pointer.at));
        }
        let shared = matches!(&self.users, Users::Now(usage) if usage.may_be_shared(pointer.at.0));
        if !shared {
            return self.enter(pointer, bound, drop);
        }
        self.plan.push(Step::Enter);
        self.enter(pointer, bound, drop);
        self.plan.push(Step::Leave(pointer));
    }

    fn broken(&mut self) {
        self.whole = false;
        self.plan.push(Step::Broken);
    }

    /// BLK-06 to BLK-08: all pointers to a block say the same of it; the first was held against the block itself.
    fn compare(&mut self, pointer: &Pointer, first: &ParentExpectation) {
        let (now, tree) = (&pointer.expect, self.tree.id);
        let place = || Place::block(tree, pointer.at, now.level == Some(0));
        let pairs = [
            ("BLK-06", "level", now.level.map(u64::from), first.level.map(u64::from)),
            ("BLK-07", "generation", now.generation, first.generation),
        ];
        for (rule, what, have, expect) in pairs {
            if let (Some(have), Some(expect)) = (have, expect)
                && have != expect
            {
                let reason = format!("pointer to a shared block: {what}, have {have} expect {expect}");
                self.findings.add(rule, place(), reason);
            }
        }
        if let (Some(have), Some(expect)) = (now.first_key, first.first_key)
            && have != expect
        {
            let reason = format!("pointer to a shared block: first key, have {have} expect {expect}");
            self.findings.add("BLK-08", place(), reason);
        }
    }

    /// Goes on to the block, which is not known.
    fn enter(&mut self, pointer: Pointer, bound: Option<Key>, drop: Option<(Key, u8)>) {
        if pointer.expect.level == Some(0) {
            return self.plan.push(Step::Leaf(Leaf { pointer, bound }));
        }
        let mut findings = Findings::default();
        let node = self.image.read(self.tree.id, &pointer, true, &mut findings);
        let first_visit = self.visited(pointer.at);
        if first_visit {
            self.findings.append(findings);
        }
        let Some(node) = node.filter(|n| n.level > 0 && n.level < MAX_LEVEL) else {
            return self.broken();
        };
        self.whole &= node.judged.is_sound();
        if first_visit {
            check_bound(&node, bound, &mut self.findings);
            let mut findings = Findings::default();
            self.check_kind(&node, &mut findings);
            self.findings.append(findings);
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
            Users::Log(list) => {
                list.lock().unwrap_or_else(PoisonError::into_inner).push(at);
                true
            }
            Users::Now(usage) => usage.visit(at.0),
            Users::Listed { .. } => return true,
            Users::Known => false,
        };
        if first {
            self.blocks.fetch_add(1, Ordering::Relaxed);
            self.image.progress.advance(self.image.ctx.nodesize as u64);
        }
        first
    }

    fn user(&mut self, node: &Block, child: Logical) {
        match &self.users {
            Users::Later(list) => {
                let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
                list.push(LaterUser { parent: node.logical, owner: node.owner, level: node.level, child });
            }
            Users::Now(usage) => {
                let user = User { extent: child.0, back: usage.block_ref(node.logical.0, node.owner) };
                let place = node.place();
                judge_user(usage, user, node.level.saturating_sub(1), &place, &mut self.findings);
            }
            Users::Listed { usage, wanted, users } => {
                if wanted.binary_search(&child.0).is_ok() {
                    let user = User { extent: child.0, back: usage.block_ref(node.logical.0, node.owner) };
                    users.lock().unwrap_or_else(PoisonError::into_inner).push(user);
                }
            }
            Users::Log(_) | Users::Known => {}
        }
    }

    /// XR-03: a block refers to what it points to by its own address if and only if a balance moved it, or the tree that
    /// made it does not reach it any more. Subvolumes are walked in the order in which they were made, so the first tree
    /// in which a block is met is the one that made it, if that still reaches it. (A balance under way is exempt.)
    fn check_kind(&self, block: &Block, findings: &mut Findings) {
        let Users::Now(usage) = &self.users else { return };
        if !usage.whole || usage.relocating {
            return;
        }
        let moved = block.judged.header().flags.get() & header_flags::RELOC != 0;
        let (full, own) = (usage.is_full(block.logical.0), block.owner == self.tree.id);
        let in_subvolume = objectid::is_fs_tree(self.tree.id);
        let reason = match (moved, full, own) {
            (false, true, true) => "full back references in a block that its own tree reaches".to_owned(),
            (true, false, _) if in_subvolume && block.logical != self.tree.root => {
                "no full back references in a block that a balance moved".to_owned()
            }
            (false, false, false) if in_subvolume && !usage.dead.contains(&block.owner) => {
                format!("no full back references in a block that its owner {} does not reach", block.owner)
            }
            _ => return,
        };
        findings.add("XR-03", block.place(), reason);
    }

    fn visit_leaves<T: Default + Send>(
        &mut self,
        visit: &(impl Fn(&mut T, &Block, bool, &mut Findings) + Sync),
    ) -> Vec<Part<T>> {
        let plan = std::mem::take(&mut self.plan);
        let runs = runs_of_leaves(&plan, RUN);
        let (this, mut findings, mut whole, mut values) = (&*self, Findings::default(), true, Vec::new());
        let work = |nth: usize| {
            let (mut value, mut found, mut sound) = (T::default(), Findings::default(), true);
            for step in runs.get(nth).into_iter().flat_map(|run| &plan[run.clone()]) {
                if let Step::Leaf(leaf) = step {
                    sound &= this.visit_leaf(leaf, visit, &mut value, &mut found);
                }
            }
            (value, found, sound)
        };
        // Only what a run gives is kept: findings past the limit of a rule are counted as they come.
        in_order(this.image.threads, runs.len(), work, |(value, found, sound)| {
            findings.append(found);
            whole &= sound;
            values.push((value, sound));
        });
        self.findings.append(findings);
        self.whole &= whole;
        let mut values = runs.iter().map(|run| run.start).zip(values).peekable();
        let mut parts = Vec::new();
        for (at, step) in plan.iter().enumerate() {
            parts.push(match step {
                Step::Leaf(_) => match values.next_if(|(start, _)| *start == at) {
                    Some((_, (value, sound))) => Part::Run(value, sound),
                    None => continue,
                },
                Step::Known(at) => Part::Known(*at),
                Step::Enter => Part::Enter,
                Step::Leave(pointer) => Part::Leave(*pointer),
                Step::Broken => Part::Broken,
            });
        }
        parts
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
            self.check_kind(&block, findings);
        }
        visit(value, &block, first_visit, findings);
        block.judged.is_sound()
    }
}

/// The leaves of a plan that follow each other, at most `len` together, as ranges of steps.
fn runs_of_leaves(plan: &[Step], len: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in plan.iter().enumerate().filter(|(_, step)| matches!(step, Step::Leaf(_))) {
        match runs.last_mut() {
            Some(run) if run.end == at && run.len() < len => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
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
        Some(extent) if extent.has(bit::DATA) => {
            findings.push(fault(
                "XR-04",
                format!("the extent item of the tree block {} is one of data", user.extent),
            ));
        }
        Some(extent) if extent.level != level => {
            let reason =
                format!("metadata level mismatch on {}, have {} expect {level}", user.extent, extent.level);
            findings.push(fault("XR-02", reason));
        }
        Some(_) => {}
    }
}
