//! The log of a file system that was not unmounted (LOG-, CS-06): a tree of log trees, one for each subvolume with
//! changes that an fsync made durable. Its blocks have no extent items; the next mount replays and frees them.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use btrfsimg_ondisk::{
    BlockContext, COMPRESSION_NONE, FileExtent, FileExtentKind, InodeItem, Key, KeyType, Logical, RootItem,
    block_group_flags as bg, inode_flags, objectid,
};
use rustc_hash::FxHashSet;
use zerocopy::FromBytes;

use super::csums::Csums;
use super::extents::Group;
use super::finding::{Findings, Place};
use super::image::{Block, Image};
use super::log_names::{LOOKED_UP, Names};
use super::roots::RootTree;
use super::usage::Usage;
use super::users::once;
use super::walk::{Part, Tree, Users, Walk};

/// What the tree of logs holds: the logs with the subvolumes that they are of, and what is none.
#[derive(Default)]
struct Logs {
    logs: Vec<(u64, RootItem, Place)>,
    strays: Vec<Place>,
}

/// Walks the log trees; every rule of one block holds for them too.
pub(super) fn judge(
    image: &Image<'_>,
    roots: &RootTree,
    (usage, groups): (&Usage, &[Group]),
    csums: Option<&Csums>,
    blocks: &AtomicU64,
    findings: &mut Findings,
) {
    let sb = &image.superblock;
    let (met, entered) = (Mutex::new(Vec::new()), Mutex::new(FxHashSet::default()));
    let known = once(&entered);
    // The log is written by the transaction after the committed one.
    let top = Tree {
        id: objectid::TREE_LOG,
        root: Logical(sb.log_root.get()),
        level: sb.log_root_level,
        generation: sb.generation.get().saturating_add(1),
        drop: None,
    };
    let walk = Walk::new(image, top, Users::Log(&met), blocks).knowing(&known);
    let walked = walk.run(|found: &mut Logs, block, _, _| {
        block.for_each_item(&image.ctx, |slot, item| {
            let place = Place::item(block.tree, block.logical, slot, item.key);
            let is_log = (item.key.objectid, item.key.key_type) == (objectid::TREE_LOG, KeyType::ROOT_ITEM);
            match RootItem::parse(item.data).filter(|_| is_log) {
                Some(root) => found.logs.push((item.key.offset, root, place)),
                None => found.strays.push(place),
            }
        });
    });
    findings.append(walked.findings);
    let (mut logged, mut whole, mut searches) = (Vec::new(), walked.whole, LOOKED_UP);
    let Logs { logs, strays } = walked.runs.into_iter().fold(Logs::default(), |mut all, run| {
        all.logs.extend(run.logs);
        all.strays.extend(run.strays);
        all
    });
    for place in strays {
        findings.add("LOG-03", place, "item in the tree of logs that is no log's root");
    }
    for (subvolume, root, place) in logs {
        if !objectid::is_fs_tree(subvolume) || roots.find(subvolume).is_none() {
            findings.add(
                "LOG-02",
                place.clone(),
                format!("log of a subvolume that does not exist, have {subvolume}"),
            );
        }
        let tree = Tree {
            root: Logical(root.bytenr.get()),
            level: root.level,
            generation: root.generation.get(),
            ..top
        };
        let walk = Walk::new(image, tree, Users::Log(&met), blocks).knowing(&known);
        let hasher = usage.hasher;
        let walked = walk.run_in_parts(|run: &mut Logged, block, _, _| {
            run.leaf(block, &image.ctx);
            run.names.leaf(block, &image.ctx, hasher);
        });
        findings.append(walked.findings);
        whole &= walked.whole;
        if walked.runs.iter().any(|part| matches!(part, Part::Known(_))) {
            findings.add("LOG-02", place, "log tree with a block of another log");
            whole = false;
        }
        let mut all = Logged::default();
        walked.runs.into_iter().filter_map(Part::into_run).for_each(|run| all.append(run));
        std::mem::take(&mut all.names).judge(image, roots.find(subvolume), hasher, &mut searches, findings);
        logged.push(all);
    }
    if let Some(csums) = csums.filter(|_| whole) {
        judge_checksums(&logged, csums, findings);
    }
    if usage.whole {
        judge_space(image, usage, groups, met.into_inner().unwrap_or_default(), findings);
    }
}

/// What one log tree holds of data and their checksums.
#[derive(Default)]
struct Logged {
    csums: Csums,
    /// Inodes whose data have checksums.
    checked: Vec<u64>,
    data: Vec<LoggedData>,
    names: Names,
}

/// Data of an inode.
struct LoggedData {
    start: u64,
    len: u64,
    /// The item that says so.
    leaf: Logical,
    slot: usize,
    key: Key,
}

impl Logged {
    fn leaf(&mut self, block: &Block, ctx: &BlockContext) {
        self.csums.leaf(block, ctx);
        block.for_each_item(ctx, |slot, item| match item.key.key_type {
            KeyType::INODE_ITEM => {
                let inode = InodeItem::read_from_bytes(item.data);
                let checked = inode.is_ok_and(|i| i.flags.get() & inode_flags::NODATASUM == 0);
                self.checked.extend(checked.then_some(item.key.objectid));
            }
            KeyType::EXTENT_DATA => {
                let Ok(extent) = FileExtent::parse(item.data) else { return };
                let FileExtentKind::Regular(range) = &extent.kind else { return };
                let at = range.disk_bytenr.get();
                let (start, len) = match extent.compression {
                    COMPRESSION_NONE => (at.saturating_add(range.offset.get()), range.num_bytes.get()),
                    _ => (at, range.disk_num_bytes.get()),
                };
                if at != 0 {
                    self.data.push(LoggedData { start, len, leaf: block.logical, slot, key: item.key });
                }
            }
            _ => {}
        });
    }

    fn append(&mut self, other: Logged) {
        self.csums.append(other.csums);
        self.checked.extend(other.checked);
        self.data.extend(other.data);
        self.names.append(other.names);
    }
}

/// CS-06: data in a log have their checksums there too, or in the checksum tree.
fn judge_checksums(logged: &[Logged], csums: &Csums, findings: &mut Findings) {
    let csums = Csums::union(logged.iter().map(|l| &l.csums).chain([csums]));
    for log in logged {
        for data in log.data.iter().filter(|d| log.checked.binary_search(&d.key.objectid).is_ok()) {
            if csums.covered(data.start, data.len) < data.len {
                let place = Place::item(objectid::TREE_LOG, data.leaf, data.slot, data.key);
                findings.add("CS-06", place, "logged data are not covered by checksums");
            }
        }
    }
}

/// LOG-02: the log's blocks lie in metadata block groups, where no extent is.
fn judge_space(
    image: &Image<'_>,
    usage: &Usage,
    groups: &[Group],
    blocks: Vec<Logical>,
    findings: &mut Findings,
) {
    for at in blocks {
        let end = at.0.saturating_add(image.ctx.nodesize as u64);
        let first = usage.extents.partition_point(|e| e.end() <= at.0);
        let place = Place::block(objectid::TREE_LOG, at, true);
        if let Some(extent) = usage.extents.get(first).filter(|e| e.start < end) {
            let reason =
                format!("block of a log lies in an extent in use, at {} length {}", extent.start, extent.len);
            findings.add("LOG-02", place, reason);
            continue;
        }
        let group = groups.partition_point(|g| g.start <= at.0).checked_sub(1).and_then(|i| groups.get(i));
        if group.is_none_or(|g| g.end() < end || g.flags & bg::METADATA == 0) {
            findings.add("LOG-02", place, "block of a log lies in no metadata block group");
        }
    }
}
