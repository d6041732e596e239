//! The log of a file system that was not unmounted (LOG-01, LOG-02): a tree of log trees, one for each subvolume with
//! changes that an fsync made durable. Its blocks have no extent items; the next mount replays and frees them.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use btrfsimg_ondisk::{KeyType, Logical, RootItem, block_group_flags as bg, objectid};

use super::extents::Group;
use super::finding::{Findings, Place};
use super::image::Image;
use super::roots::RootTree;
use super::usage::Usage;
use super::walk::{Tree, Users, Walk};

/// Walks the log trees; every rule of one block holds for them too.
pub(super) fn judge(
    image: &Image<'_>,
    roots: &RootTree,
    (usage, groups): (&Usage, &[Group]),
    blocks: &AtomicU64,
    findings: &mut Findings,
) {
    let sb = &image.superblock;
    let met = Mutex::new(Vec::new());
    // The log is written by the transaction after the committed one.
    let top = Tree {
        id: objectid::TREE_LOG,
        root: Logical(sb.log_root.get()),
        level: sb.log_root_level,
        generation: sb.generation.get().saturating_add(1),
        drop: None,
    };
    let walk = Walk::new(image, top, Users::Log(&met), blocks);
    let walked = walk.run(|logs: &mut Vec<(u64, RootItem, Place)>, block, _, _| {
        block.for_each_item(&image.ctx, |slot, item| {
            if item.key.key_type == KeyType::ROOT_ITEM
                && let Some(root) = RootItem::parse(item.data)
            {
                logs.push((item.key.offset, root, Place::item(block.tree, block.logical, slot, item.key)));
            }
        });
    });
    findings.append(walked.findings);
    for (subvolume, root, place) in walked.runs.into_iter().flatten() {
        if !objectid::is_fs_tree(subvolume) || roots.find(subvolume).is_none() {
            findings.add(
                "LOG-02",
                place,
                format!("log of a subvolume that does not exist, have {subvolume}"),
            );
        }
        let tree = Tree {
            root: Logical(root.bytenr.get()),
            level: root.level,
            generation: root.generation.get(),
            ..top
        };
        let walk = Walk::new(image, tree, Users::Log(&met), blocks);
        findings.append(walk.run(|(): &mut (), _, _, _| ()).findings);
    }
    if usage.whole {
        judge_space(image, usage, groups, met.into_inner().unwrap_or_default(), findings);
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
