//! The subvolumes, one after the other, what they share once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;

use btrfsimg_ondisk::{incompat, objectid};
use rustc_hash::{FxHashMap, FxHashSet};

use super::csums::Csums;
use super::finding::{Findings, Place};
use super::image::Image;
use super::inodes::{self, Seen, Shared, Subvolume, SubvolumeEntry};
use super::names::Sums;
use super::passes::{Passes, Space, has_inodes, judge_root};
use super::roots::{Root, RootTree};
use super::users::once;
use super::walk::{Users, Walk};
use super::{decode, names, paths, reach};

/// What one subvolume leaves for those after it.
#[derive(Default)]
struct Before {
    shared: Shared,
    /// What did not agree in names, and whether an error explains it: snapshots have it too.
    explained: FxHashMap<Sums, bool>,
    prealloc_checked: Vec<(u64, Place)>,
    said: Mutex<FxHashSet<u64>>,
}

impl Passes<'_, '_> {
    /// Subvolumes and what is like them; gives the entries of subvolumes in each. Those that are being deleted come
    /// last, so that what they share is judged in a live one.
    pub(super) fn subvolumes(
        &mut self,
        image: &Image<'_>,
        roots: &RootTree,
        space: &mut Space,
        csums: Option<&Csums>,
    ) -> BTreeMap<u64, Vec<SubvolumeEntry>> {
        let (mut entries, mut before) = (BTreeMap::new(), Before::default());
        let mut walked_roots = HashSet::new();
        for root in in_order(roots) {
            if !walked_roots.insert(root.item.bytenr.get()) {
                let mut findings = Findings::default();
                findings.add("BLK-13", root.place.clone(), "root block of two trees");
                judge_root(&space.usage, root, &mut findings);
                self.report.absorb(findings);
                continue;
            }
            if let Some(list) = self.subvolume(image, root, space, csums, &mut before) {
                entries.insert(root.key.objectid, list);
            }
        }
        let mut findings = Findings::default();
        inodes::judge_prealloc(before.prealloc_checked, &space.usage, &mut findings);
        self.report.absorb_as(!space.whole, findings);
        entries
    }

    fn subvolume(
        &mut self,
        image: &Image<'_>,
        root: &Root,
        space: &mut Space,
        csums: Option<&Csums>,
        before: &mut Before,
    ) -> Option<Vec<SubvolumeEntry>> {
        let subvolume = Subvolume {
            tree: root.key.objectid,
            ctx: &image.ctx,
            no_holes: image.superblock.has_incompat(incompat::NO_HOLES),
            usage: &space.usage,
            csums: csums.filter(|_| root.is_subvolume()),
            names: root.key.objectid != objectid::TREE_RELOC && !root.is_dead(),
            said: &before.said,
        };
        let known = |at| before.shared.expectation(at);
        let walk = Walk::new(image, root.tree(), Users::Now(&space.usage), &self.blocks).knowing(&known);
        let walked =
            walk.run_in_parts(|run: &mut inodes::Run, block, first, _| run.leaf(block, first, &subvolume));
        let (mut at_root, mut faults) = (Findings::default(), walked.findings);
        judge_root(&space.usage, root, &mut at_root);
        if root.is_subvolume() {
            paths::fill(image, root.tree(), &mut faults);
        }
        self.absorb_tree(at_root, faults);
        self.report.summary.trees += 1;
        let (mut seen, whole) = inodes::join(walked.runs, &mut before.shared, &subvolume);
        let whole = whole && walked.whole;
        self.report.summary.inodes += seen.inodes;
        if !whole && subvolume.names {
            let found = reach::count(image, root.tree());
            self.report.summary.unreachable += found.unreachable;
            self.report.summary.lost += found.lost;
        }
        let findings = self.names(image, root, &mut seen, &subvolume, &mut before.explained);
        let is_explained = before.explained.get(&seen.sums).is_some_and(|found| *found);
        let follows = findings.has_errors() || (!seen.sums.agree() && is_explained);
        let mut later = std::mem::take(&mut seen.findings);
        // Link counts and directory sizes follow from missing names; lost extents from a damaged extent tree.
        later.follow(|rule| match rule {
            "LK-01" | "LK-04" => follows,
            "FE-24" => !space.usage.whole,
            _ => false,
        });
        paths::fill(image, root.tree(), &mut later);
        self.report.absorb_as(!whole, findings);
        self.report.absorb_as(!whole, later);
        before.prealloc_checked.append(&mut seen.prealloc_checked);
        space.whole &= whole;
        seen.entries.sort();
        (subvolume.names && whole).then_some(seen.entries)
    }

    /// Names, the root directory, orphans, loops of directories.
    fn names(
        &self,
        image: &Image<'_>,
        root: &Root,
        seen: &mut Seen,
        subvolume: &Subvolume<'_>,
        explained: &mut FxHashMap<Sums, bool>,
    ) -> Findings {
        let mut findings = Findings::default();
        if !subvolume.names {
            return findings;
        }
        seen.unlinked.sort_unstable();
        if !seen.sums.agree() && !explained.contains_key(&seen.sums) {
            names::explain(image, root.tree(), self.hasher, &seen.unlinked, &mut findings);
            explained.insert(seen.sums, findings.has_errors());
        }
        if !seen.has_root_dir {
            findings.add("ROOT-12", root.place.clone(), "subvolume without its root directory 256");
        }
        let exists = |ino| paths::has_inode(image, root.tree(), ino);
        seen.judge_orphans(root.key.objectid, exists, &mut findings);
        seen.judge_dirs(root.key.objectid, &mut findings);
        paths::fill(image, root.tree(), &mut findings);
        findings
    }

    /// FE-25, FE-27: decodes all that is compressed, each extent once.
    pub(super) fn decode(&mut self, image: &Image<'_>, roots: &RootTree, space: &Space) {
        let met = Mutex::new(FxHashSet::default());
        let known = once(&met);
        let decoded = decode::Decoded::new(space.usage.extents.len(), image.device_len);
        for root in in_order(roots).filter(|root| root.is_subvolume()) {
            let blocks = std::sync::atomic::AtomicU64::new(0);
            Walk::quiet(image, root.tree(), &blocks).knowing(&known).stream(
                |block| decode::judge(image, &space.usage, block, &decoded),
                |verdicts| {
                    let mut found = Findings::default();
                    decoded.say(verdicts, &mut found);
                    paths::fill(image, root.tree(), &mut found);
                    self.report.absorb(found);
                },
            );
        }
        self.report.summary.decoded_extents = decoded.extents.into_inner();
        self.report.summary.decoded_bytes = decoded.bytes.into_inner();
    }
}

/// The trees that hold inodes, in the order in which to walk them.
fn in_order(roots: &RootTree) -> impl Iterator<Item = &Root> {
    let mut found: Vec<&Root> = roots.roots.iter().filter(|r| has_inodes(r.key.objectid)).collect();
    found.sort_by_key(|r| (r.is_dead(), !r.is_subvolume()));
    found.into_iter()
}
