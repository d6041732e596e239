//! The order in which trees are read and judged.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use btrfsimg_ondisk::{BackRef, BackupRoot, KeyType, Logical, compat_ro, objectid};
use rustc_hash::FxHashSet;

use super::chunks::{self, ChunkTree, DeviceExtent};
use super::csums::{self, Csums};
use super::extents::{self, Group};
use super::finding::{Finding, Findings, Place};
use super::image::Image;
use super::inodes::SubvolumeEntry;
use super::quota::QuotaTree;
use super::report::Report;
use super::roots::{Root, RootTree, UuidTree};
use super::usage::{Extent, Hasher, Usage, User, bit};
use super::walk::{LaterUser, Part, Tree, Users, Walk, judge_user};
use super::{Options, free_space, log, users};
use crate::error::Error;

/// What the passes hand on to each other.
pub(super) struct Passes<'r, 's> {
    pub(super) report: &'r mut Report<'s>,
    pub(super) blocks: AtomicU64,
    /// Users of blocks that were met before the extent tree.
    later: Mutex<Vec<LaterUser>>,
    /// Blocks of the trees that hold no inodes, so that none is walked twice.
    entered: Mutex<FxHashSet<Logical>>,
    chunk_tree: ChunkTree,
    quota: QuotaTree,
    pub(super) hasher: Hasher,
}

/// What is known once the extent tree is read.
pub(super) struct Space {
    pub(super) usage: Usage,
    pub(super) groups: Vec<Group>,
    /// Every tree that holds users was whole.
    pub(super) whole: bool,
}

impl<'r, 's> Passes<'r, 's> {
    pub(super) fn new(report: &'r mut Report<'s>) -> Passes<'r, 's> {
        Passes {
            report,
            blocks: AtomicU64::new(0),
            later: Mutex::default(),
            entered: Mutex::default(),
            chunk_tree: ChunkTree::default(),
            quota: QuotaTree::default(),
            hasher: Hasher::new(),
        }
    }

    /// Reads the chunk tree; maps all chunks.
    pub(super) fn chunk_tree(&mut self, image: &mut Image<'_>) {
        let sb = &image.superblock;
        let first = (sb.chunk_root.get(), sb.chunk_root_level, sb.chunk_root_generation.get());
        let backup = |b: &BackupRoot| (b.chunk_root.get(), b.chunk_root_level, b.chunk_root_gen.get());
        let tree = self.root_to_use(image, objectid::CHUNK_TREE, first, backup);
        image.chunk_tree = Some(tree);
        let ctx = image.ctx;
        let walk = Walk::new(image, tree, Users::Later(&self.later), &self.blocks);
        let walked = walk.run(|run: &mut ChunkTree, block, _, _| run.leaf(block, &ctx));
        for run in walked.runs {
            self.chunk_tree.uuid = self.chunk_tree.uuid.or(run.uuid);
            self.chunk_tree.devices.extend(run.devices);
            self.chunk_tree.chunks.extend(run.chunks);
        }
        image.chunk_tree_uuid = self.chunk_tree.uuid;
        // What the array says wrongly comes before what was read by it.
        let mut findings = Findings::default();
        chunks::judge_system_chunks(&image.chunks, &self.chunk_tree, walked.whole, &mut findings);
        findings.append(walked.findings);
        for chunk in &self.chunk_tree.chunks {
            image.chunks.remove(chunk.start);
            if let Err(Error::Corrupt(corrupt)) = image.chunks.insert(chunk.clone()) {
                findings.push(Finding::of(corrupt.violation, &Place::extent(chunk.start.0)));
            }
        }
        self.report.absorb(findings);
        let mut findings = Findings::default();
        chunks::judge_devices(image, &self.chunk_tree, &mut findings);
        self.report.absorb_as(!walked.whole, findings);
        self.report.summary.trees += 1;
    }

    /// Which root of the tree `id` to go by: the superblock's `first`, or where that block is of no use the newest
    /// backup whose block is. What follows from there on may be a consequence of that.
    fn root_to_use(
        &mut self,
        image: &Image<'_>,
        id: u64,
        first: (u64, u8, u64),
        backup: impl Fn(&BackupRoot) -> (u64, u8, u64),
    ) -> Tree {
        let tree =
            |(root, level, generation)| Tree { id, root: Logical(root), level, generation, drop: None };
        let usable = |tree: &Tree, findings: &mut Findings| {
            image.read(id, &tree.pointer(), false, findings).is_some_and(|block| block.last_key().is_some())
        };
        let (first, mut findings) = (tree(first), Findings::default());
        if usable(&first, &mut findings) {
            return first;
        }
        let mut backups: Vec<Tree> = image.superblock.super_roots.iter().map(|b| tree(backup(b))).collect();
        backups.retain(|b| b.root.0 != 0 && b.root != first.root);
        backups.sort_by_key(|b| std::cmp::Reverse(b.generation));
        let Some(found) = backups.into_iter().find(|b| usable(b, &mut Findings::default())) else {
            return first;
        };
        self.report.absorb(findings);
        self.report.go_by_backup(found.generation);
        found
    }

    /// Finds the root tree, after the chunk tree.
    pub(super) fn find_root_tree(&mut self, image: &mut Image<'_>) {
        let sb = &image.superblock;
        let first = (sb.root.get(), sb.root_level, sb.generation.get());
        let backup = |b: &BackupRoot| (b.tree_root.get(), b.tree_root_level, b.tree_root_gen.get());
        image.root_tree = Some(self.root_to_use(image, objectid::ROOT_TREE, first, backup));
    }

    /// Reads and judges all else.
    pub(super) fn trees(&mut self, image: &Image<'_>, options: &Options) {
        let (roots, roots_whole) = self.root_tree(image);
        let mut space = self.extent_tree(image, &roots, options);
        space.whole &= roots_whole;
        self.device_tree(image, &roots, &mut space);
        let csums = self.csum_tree(image, &roots, &mut space);
        let free_space = self.small_trees(image, &roots, &mut space);
        let entries = self.subvolumes(image, &roots, &mut space, csums.as_ref());
        self.judge(image, &roots, &space, csums.as_ref(), free_space, &entries);
        if options.decode {
            self.decode(image, &roots, &space);
        }
        if options.data
            && let Some(root) = roots.find(objectid::CSUM_TREE)
        {
            self.data(image, &roots, root.tree());
        }
        if image.superblock.log_root != 0 {
            let mut findings = Findings::default();
            log::judge(
                image,
                &roots,
                (&space.usage, &space.groups),
                csums.as_ref(),
                &self.blocks,
                &mut findings,
            );
            let reason = format!("log tree at {} to replay", image.superblock.log_root);
            findings.add("LOG-01", Place::tree(objectid::TREE_LOG), reason);
            self.report.absorb(findings);
        }
        self.report.summary.tree_blocks = self.blocks.load(Ordering::Relaxed);
        self.report.summary.extents = space.usage.extents.len() as u64;
    }

    /// Reads the root tree; says too whether all of it and all trees that must be are there.
    fn root_tree(&mut self, image: &Image<'_>) -> (RootTree, bool) {
        let sb = &image.superblock;
        let Some(tree) = image.root_tree else { return (RootTree::default(), false) };
        let walk = Walk::new(image, tree, Users::Later(&self.later), &self.blocks);
        let walked = walk.run(|run: &mut RootTree, block, _, _| run.leaf(block, &image.ctx));
        self.report.absorb(walked.findings);
        self.report.summary.trees += 1;
        let mut roots = RootTree::default();
        walked.runs.into_iter().for_each(|run| roots.append(run));
        roots.sort();
        let mut findings = Findings::default();
        roots.judge(sb, &mut findings);
        let whole = walked.whole && !findings.has_errors();
        self.report.absorb_as(!walked.whole, findings);
        (roots, whole)
    }

    fn extent_tree(&mut self, image: &Image<'_>, roots: &RootTree, options: &Options) -> Space {
        let (mut runs, mut findings, mut whole) = (Vec::new(), Findings::default(), true);
        for id in [objectid::EXTENT_TREE, objectid::BLOCK_GROUP_TREE] {
            let Some(root) = roots.find(id) else {
                whole &= id != objectid::EXTENT_TREE;
                continue;
            };
            let walk = Walk::new(image, root.tree(), Users::Later(&self.later), &self.blocks);
            let hasher = self.hasher;
            let walked = walk.run(|run: &mut extents::Run, block, _, _| run.leaf(block, &image.ctx, hasher));
            findings.append(walked.findings);
            whole &= walked.whole;
            runs.extend(walked.runs);
            self.report.summary.trees += 1;
        }
        self.report.absorb(findings);
        let mut findings = Findings::default();
        let (mut usage, mut groups) = extents::gather(runs, self.hasher, whole, &mut findings);
        usage.relocating = roots.roots.iter().any(|r| r.key.objectid == objectid::TREE_RELOC);
        usage.dead = roots.roots.iter().filter(|r| r.is_dead()).map(|r| r.key.objectid).collect();
        groups.sort_by_key(|g| g.start);
        chunks::judge_block_groups(image, &groups, &mut findings);
        self.report.absorb_as(!whole, findings);
        let data = |e: &&Extent| options.data || !e.has(bit::DATA);
        image.progress.expect(usage.extents.iter().filter(data).fold(0, |sum, e| sum.saturating_add(e.len)));
        let space = Space { usage, groups, whole };
        self.use_earlier(image, roots, &space);
        space
    }

    /// Counts the users that were met before, and the roots of the trees.
    fn use_earlier(&mut self, image: &Image<'_>, roots: &RootTree, space: &Space) {
        let (usage, mut findings) = (&space.usage, Findings::default());
        let later = std::mem::take(self.later.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner));
        for user in later {
            let place = Place::block(user.owner, user.parent, false);
            let back = usage.block_ref(user.parent.0, user.owner);
            let level = user.level.saturating_sub(1);
            if user.owner == objectid::CHUNK_TREE
                && let Some(extent) = usage.find(user.child.0)
            {
                extent.set(bit::CHUNK_TREE);
            }
            judge_user(usage, User { extent: user.child.0, back }, level, &place, &mut findings);
        }
        for tree in [image.root_tree, image.chunk_tree].into_iter().flatten() {
            let user = User { extent: tree.root.0, back: BackRef::TreeBlock { root: tree.id } };
            judge_user(usage, user, tree.level, &Place::tree(tree.id), &mut findings);
        }
        if let Some(extent) = image.chunk_tree.and_then(|tree| usage.find(tree.root.0)) {
            extent.set(bit::CHUNK_TREE);
        }
        for root in roots.roots.iter().filter(|r| READ_EARLIER.contains(&r.key.objectid)) {
            judge_root(usage, root, &mut findings);
        }
        for (user, len, place) in &roots.data {
            let fits = usage.add(*user).is_some_and(|e| e.has(bit::DATA) && e.len == *len);
            if !fits {
                findings.add(
                    "FE-24",
                    place.clone(),
                    format!("no extent item for disk_bytenr {}", user.extent),
                );
            }
        }
        self.report.absorb_as(!space.whole, findings);
    }

    /// Walks a tree whose users are counted at once.
    fn tree<T: Default + Send>(
        &mut self,
        image: &Image<'_>,
        root: &Root,
        space: &mut Space,
        leaf: impl Fn(&mut T, &super::image::Block) + Sync,
    ) -> (Vec<T>, bool) {
        let mut walked = {
            let known = users::once(&self.entered);
            let walk = Walk::new(image, root.tree(), Users::Now(&space.usage), &self.blocks);
            walk.knowing(&known).run_in_parts(|run: &mut T, block, _, _| leaf(run, block))
        };
        if walked.runs.iter().any(|part| matches!(part, Part::Known(_))) {
            walked.findings.add("BLK-13", root.place.clone(), "tree with a block of another tree");
            walked.whole = false;
        }
        let mut at_root = Findings::default();
        judge_root(&space.usage, root, &mut at_root);
        self.absorb_tree(at_root, walked.findings);
        self.report.summary.trees += 1;
        space.whole &= walked.whole;
        let runs = walked.runs.into_iter().filter_map(Part::into_run).collect();
        (runs, walked.whole)
    }

    /// Passes on what was found inside a tree and of the pointer to it. A tree that can be read and whose root is no extent
    /// was freed: that comes first, and that its other blocks are none follows.
    pub(super) fn absorb_tree(&mut self, at_root: Findings, mut inside: Findings) {
        let unreadable = inside.iter().any(|f| f.rule.0.starts_with("BLK-") && f.severity().is_error());
        let is_freed = !unreadable && at_root.iter().any(|f| f.rule.0 == "XR-04" && !f.consequence);
        if !is_freed {
            self.report.absorb(inside);
            return self.report.absorb(at_root);
        }
        inside.follow(|rule| rule.starts_with("XR-"));
        self.report.absorb(at_root);
        self.report.absorb(inside);
    }

    fn device_tree(&mut self, image: &Image<'_>, roots: &RootTree, space: &mut Space) {
        let Some(root) = roots.find(objectid::DEV_TREE) else { return };
        let leaf = |run: &mut Vec<DeviceExtent>, block: &super::image::Block| {
            block.for_each_item(&image.ctx, |slot, item| {
                if item.key.key_type == KeyType::DEV_EXTENT {
                    let place = Place::item(block.tree, block.logical, slot, item.key);
                    run.extend(DeviceExtent::parse(&item, place));
                }
            });
        };
        let (runs, whole) = self.tree(image, root, space, leaf);
        let extents: Vec<DeviceExtent> = runs.into_iter().flatten().collect();
        let mut findings = Findings::default();
        chunks::judge_device_extents(image, &self.chunk_tree, &extents, &mut findings);
        self.report.absorb_as(!whole, findings);
    }

    fn csum_tree(&mut self, image: &Image<'_>, roots: &RootTree, space: &mut Space) -> Option<Csums> {
        let root = roots.find(objectid::CSUM_TREE)?;
        let (runs, whole) =
            self.tree(image, root, space, |run: &mut Csums, block| run.leaf(block, &image.ctx));
        let mut findings = Findings::default();
        let csums = Csums::gather(runs, &mut findings);
        self.report.absorb_as(!whole, findings);
        whole.then_some(csums)
    }

    /// The trees that are neither subvolumes nor read already; gives the free space tree's items.
    fn small_trees(
        &mut self,
        image: &Image<'_>,
        roots: &RootTree,
        space: &mut Space,
    ) -> Option<(Vec<free_space::Run>, bool)> {
        const READ_ALREADY: [u64; 4] =
            [READ_EARLIER[0], READ_EARLIER[1], objectid::DEV_TREE, objectid::CSUM_TREE];
        let mut free = None;
        for root in &roots.roots {
            let id = root.key.objectid;
            // Kernels look for the root items of these trees at offset 0; others are ROOT-09's.
            if READ_ALREADY.contains(&id) || has_inodes(id) || root.key.offset != 0 {
                continue;
            }
            match id {
                objectid::FREE_SPACE_TREE => {
                    let leaf =
                        |run: &mut free_space::Run, block: &super::image::Block| run.leaf(block, &image.ctx);
                    free = Some(self.tree(image, root, space, leaf));
                }
                objectid::UUID_TREE => {
                    let leaf = |run: &mut UuidTree, block: &super::image::Block| run.leaf(block, &image.ctx);
                    let (runs, whole) = self.tree(image, root, space, leaf);
                    let mut uuids = UuidTree::default();
                    runs.into_iter().for_each(|run| uuids.append(run));
                    uuids.sort();
                    let sb = &image.superblock;
                    let complete = sb.uuid_tree_generation == sb.generation && whole;
                    let mut findings = Findings::default();
                    uuids.judge(roots, complete, &mut findings);
                    self.report.absorb(findings);
                }
                objectid::QUOTA_TREE => {
                    let leaf = |run: &mut QuotaTree, block: &super::image::Block| run.leaf(block, &image.ctx);
                    let (runs, _) = self.tree(image, root, space, leaf);
                    runs.into_iter().for_each(|run| self.quota.append(run));
                    self.quota.sort();
                }
                _ => {
                    self.tree(image, root, space, |(): &mut (), _| ());
                }
            }
        }
        free
    }

    /// What needs all trees.
    fn judge(
        &mut self,
        image: &Image<'_>,
        roots: &RootTree,
        space: &Space,
        csums: Option<&Csums>,
        free: Option<(Vec<free_space::Run>, bool)>,
        entries: &BTreeMap<u64, Vec<SubvolumeEntry>>,
    ) {
        let (usage, groups) = (&space.usage, &space.groups);
        let mut findings = Findings::default();
        roots.judge_links(entries, &mut findings);
        self.report.absorb(findings);
        let mut findings = Findings::default();
        extents::judge_users(image, roots, usage, &mut findings);
        self.report.absorb_as(!space.whole, findings);
        let mut findings = Findings::default();
        extents::judge_groups(image, usage, groups, &mut findings);
        let used = groups.iter().fold(0u64, |s, g| s.saturating_add(g.used));
        if image.superblock.bytes_used != used {
            let reason = format!("superblock bytes_used, have {} expect {used}", image.superblock.bytes_used);
            findings.add("SB-21", Place::default(), reason);
        }
        let valid = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
        if let Some((runs, true)) = free
            && image.superblock.has_compat_ro(valid)
        {
            free_space::judge(runs, groups, usage, image.ctx.sectorsize, &mut findings);
        }
        if let Some(csums) = csums.filter(|_| image.superblock.log_root == 0)
            && let Some(root) = roots.find(objectid::CSUM_TREE)
        {
            // The checksums of data that only the log tree knows may be here already.
            csums.judge(image, root.tree(), usage, &mut findings);
        }
        self.report.absorb_as(!usage.whole, findings);
        if space.whole {
            let mut findings = Findings::default();
            let trees: Vec<Tree> = roots.roots.iter().filter(|r| r.is_subvolume()).map(Root::tree).collect();
            let ids = trees.iter().map(|t| t.id);
            let live: Vec<u64> = ids.filter(|id| usage.dead.binary_search(id).is_err()).collect();
            self.quota.judge_groups(&live, &mut findings);
            if self.quota.is_settled() {
                self.quota.judge(image, &trees, usage, &mut findings);
            }
            self.report.absorb(findings);
        }
    }

    /// CS-09. What is found is passed on while more is read. Naming the files takes a walk of all subvolumes: after the
    /// first time, only when as many bytes were read again as that takes.
    fn data(&mut self, image: &Image<'_>, roots: &RootTree, tree: Tree) {
        let blocks = AtomicU64::new(0);
        let walk_bytes = self.blocks.load(Ordering::Relaxed).saturating_mul(image.ctx.nodesize as u64);
        let (mut waiting, mut since, mut read) = (Findings::default(), walk_bytes, 0u64);
        let mut pass_on = |mut findings: Findings| {
            if self.report.room("CS-09") > 0 {
                users::name_files(image, roots, &mut findings);
            }
            self.report.absorb(findings);
        };
        let judge = |block: &super::image::Block| {
            let mut found = Findings::default();
            (csums::judge_data(image, block, &mut found), found)
        };
        Walk::quiet(image, tree, &blocks).stream(judge, |(bytes, found)| {
            read = read.saturating_add(bytes);
            since = since.saturating_add(bytes);
            waiting.append(found);
            if since >= walk_bytes && !waiting.is_empty() {
                pass_on(std::mem::take(&mut waiting));
                since = 0;
            }
        });
        pass_on(waiting);
        self.report.summary.data_bytes = read;
    }
}

/// Trees that are read before users can be counted.
const READ_EARLIER: [u64; 2] = [objectid::EXTENT_TREE, objectid::BLOCK_GROUP_TREE];

/// Counts a root item as a user of its root block. A relocation tree's root may refer to itself.
pub(super) fn judge_root(usage: &Usage, root: &Root, findings: &mut Findings) {
    let (at, id) = (root.item.bytenr.get(), root.key.objectid);
    let to_itself = id == objectid::TREE_RELOC && usage.is_full(at);
    let back = if to_itself { BackRef::SharedBlock { parent: at } } else { BackRef::TreeBlock { root: id } };
    judge_user(usage, User { extent: at, back }, root.item.level, &root.place, findings);
}

/// Whether a tree holds inodes: subvolumes, relocation trees, the data relocation tree.
pub(super) fn has_inodes(tree: u64) -> bool {
    objectid::is_fs_tree(tree) || [objectid::TREE_RELOC, objectid::DATA_RELOC_TREE].contains(&tree)
}
