//! The extent tree: reading it, and judging it once all users are known (EX-17, XR-, BG-08).

use btrfsimg_ondisk::block_group_flags as bg;
use btrfsimg_ondisk::{
    BackRef, BlockContext, BlockGroupItem, ExtentItemView, InlineRef, Item, KeyType, STRIPE_LEN, extent_flags,
};
use zerocopy::FromBytes;

use super::finding::{Findings, Place};
use super::image::{Block, Image};
use super::roots::RootTree;
use super::usage::{Extent, Hasher, Usage, bit};
use super::users;

/// A block group, as its item says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) used: u64,
    pub(super) flags: u64,
    /// The tree that its item is in.
    pub(super) tree: u64,
}

impl Group {
    fn parse(tree: u64, item: &Item<'_>) -> Option<Group> {
        let (group, _) = BlockGroupItem::read_from_prefix(item.data).ok()?;
        Some(Group {
            start: item.key.objectid,
            length: item.key.offset,
            used: group.used.get(),
            flags: group.flags.get(),
            tree,
        })
    }

    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }
}

/// A keyed reference whose extent is not in the same run of leaves.
struct Keyed {
    extent: u64,
    hash: u64,
    count: u32,
}

/// What a run of the extent tree's leaves gives.
#[derive(Default)]
pub(super) struct Run {
    extents: Vec<Extent>,
    keyed: Vec<Keyed>,
    groups: Vec<Group>,
}

impl Run {
    /// Takes in a leaf.
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext, hasher: Hasher) {
        block.for_each_item(ctx, |_, item| match item.key.key_type {
            KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => self.extent(&item, ctx, hasher),
            KeyType::BLOCK_GROUP_ITEM => self.groups.extend(Group::parse(block.tree, &item)),
            KeyType::TREE_BLOCK_REF
            | KeyType::SHARED_BLOCK_REF
            | KeyType::SHARED_DATA_REF
            | KeyType::EXTENT_DATA_REF => self.keyed(&item, hasher),
            _ => {}
        });
    }

    fn extent(&mut self, item: &Item<'_>, ctx: &BlockContext, hasher: Hasher) {
        let Ok(view) = ExtentItemView::parse(item.key, item.data) else { return };
        let flags = view.head.flags.get();
        let mut bits = 0;
        for (flag, bit) in [(extent_flags::DATA, bit::DATA), (extent_flags::FULL_BACKREF, bit::FULL_BACKREF)]
        {
            bits |= if flags & flag != 0 { bit } else { 0 };
        }
        bits |= if view.head.refs.get() > 1 { bit::SHARED } else { 0 };
        let (len, level) = match (item.key.key_type, &view.tree_block_info) {
            (KeyType::METADATA_ITEM, _) => (ctx.nodesize as u64, item.key.offset.to_le_bytes()[0]),
            (_, Some(info)) => (item.key.offset, info.level),
            (_, None) => (item.key.offset, 0),
        };
        let mut extent = Extent::new(item.key.objectid, len, bits, level);
        extent.unlisted = view.head.refs.get();
        for inline in &view.inline {
            if let InlineRef::Ref(back, count) = inline {
                extent.list(hasher.of(back), *count);
            }
        }
        self.extents.push(extent);
    }

    fn keyed(&mut self, item: &Item<'_>, hasher: Hasher) {
        let each = if item.key.key_type == KeyType::EXTENT_DATA_REF { 28 } else { item.data.len().max(1) };
        let one = [item.data];
        let parts: Vec<&[u8]> =
            if item.data.is_empty() { one.to_vec() } else { item.data.chunks(each).collect() };
        for data in parts {
            let Some((back, count)) = BackRef::parse_keyed(item.key, data) else { continue };
            let hash = hasher.of(&back);
            match self.extents.last_mut().filter(|e| e.start == item.key.objectid) {
                Some(extent) => extent.list(hash, count),
                None => self.keyed.push(Keyed { extent: item.key.objectid, hash, count }),
            }
        }
    }
}

/// All extents and block groups, from the runs of the extent tree in key order. Judges what needs no users: EX-17
/// across leaves, KR-06, XR-01.
pub(super) fn gather(
    runs: Vec<Run>,
    hasher: Hasher,
    whole: bool,
    findings: &mut Findings,
) -> (Usage, Vec<Group>) {
    let (mut extents, mut keyed, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    for run in runs {
        extents.extend(run.extents);
        keyed.extend(run.keyed);
        groups.extend(run.groups);
    }
    extents.shrink_to_fit();
    let mut usage = Usage::new(extents, hasher, whole);
    for k in keyed {
        match usage.find_mut(k.extent) {
            Some(extent) => extent.list(k.hash, k.count),
            None => findings.add("KR-06", Place::extent(k.extent), "keyed ref without an extent item"),
        }
    }
    for pair in usage.extents.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        if a.end() > b.start {
            let reason = format!("extent overlaps the next, have end {} expect at most {}", a.end(), b.start);
            findings.add("EX-17", Place::extent(a.start), reason);
        }
    }
    for extent in usage.extents.iter().filter(|e| e.unlisted != 0) {
        let reason = format!("extent counts {} more refs than it lists", extent.unlisted.cast_signed());
        findings.add("XR-01", Place::extent(extent.start), reason);
    }
    (usage, groups)
}

/// Extents whose references that are named; what is beyond is only counted.
const NAMED: usize = 1000;

/// XR-02, XR-04: what the extent tree lists and what the trees use is the same.
pub(super) fn judge_users(image: &Image<'_>, roots: &RootTree, usage: &Usage, findings: &mut Findings) {
    let is_odd = |e: &&Extent| !e.is_balanced() || !e.has(bit::USED);
    let odd: Vec<&Extent> = usage.extents.iter().filter(is_odd).collect();
    if odd.is_empty() {
        return;
    }
    let mut wanted: Vec<u64> = odd.iter().take(NAMED).map(|e| e.start).collect();
    wanted.dedup();
    let differences = users::differences(image, roots, usage, &wanted);
    for extent in odd {
        let kind = if extent.has(bit::DATA) { "data extent" } else { "tree block" };
        let (place, len) = (Place::extent(extent.start), extent.len);
        let refs = differences.get(&extent.start).filter(|refs| !refs.is_empty());
        let refs = refs.map_or("no reference is listed".to_owned(), users::describe);
        if extent.has(bit::USED) {
            findings.add("XR-02", place, format!("{kind} of length {len}: reference {refs}"));
        } else {
            findings.add("XR-04", place, format!("{kind} of length {len} has no user: {refs}"));
        }
    }
}

/// XR-05 to XR-08 and BG-08: extents against block groups, which are sorted.
pub(super) fn judge_groups(image: &Image<'_>, usage: &Usage, groups: &[Group], findings: &mut Findings) {
    let mut used = vec![0u64; groups.len()];
    let mut at = 0;
    for extent in &usage.extents {
        while groups.get(at).is_some_and(|g| g.end() <= extent.start) {
            at += 1;
        }
        let Some(group) = groups.get(at).filter(|g| g.start <= extent.start) else {
            findings.add("XR-05", Place::extent(extent.start), "extent in no block group");
            continue;
        };
        used[at] = used[at].saturating_add(extent.len);
        judge_place(image, extent, group, findings);
    }
    for (group, used) in groups.iter().zip(used) {
        if group.used != used {
            let reason = format!("block group used mismatch, have {} expect {used}", group.used);
            findings.add("BG-08", Place::extent(group.start), reason);
        }
    }
    judge_superblock_windows(image, usage, findings);
}

fn judge_place(image: &Image<'_>, extent: &Extent, group: &Group, findings: &mut Findings) {
    let place = || Place::extent(extent.start);
    if extent.end() > group.end() {
        let reason = format!(
            "extent crosses the block group's end, have {} expect at most {}",
            extent.end(),
            group.end()
        );
        findings.add("XR-06", place(), reason);
    }
    let (fits, kind) = match (extent.has(bit::DATA), extent.has(bit::CHUNK_TREE)) {
        (true, _) => (bg::DATA, "data"),
        (false, true) => (bg::SYSTEM, "block of the chunk tree"),
        // What nothing uses may have been a block of any tree.
        (false, false) if !extent.has(bit::USED) => (bg::METADATA | bg::SYSTEM, "tree block"),
        (false, false) => (bg::METADATA, "tree block"),
    };
    if group.flags & fits == 0 {
        findings.add("XR-05", place(), format!("{kind} in a {} block group", bg::describe(group.flags)));
    }
    let offset = extent.start.wrapping_sub(group.start) % STRIPE_LEN;
    if !extent.has(bit::DATA) && offset + image.ctx.nodesize as u64 > STRIPE_LEN {
        findings.add("XR-08", place(), "tree block crosses a 64 KiB stripe");
    }
}

/// XR-07.
fn judge_superblock_windows(image: &Image<'_>, usage: &Usage, findings: &mut Findings) {
    for window in image.chunks.iter().flat_map(|c| c.superblock_windows()) {
        let first = usage.extents.partition_point(|e| e.end() <= window.start);
        for extent in usage.extents[first..].iter().take_while(|e| e.start < window.end) {
            let reason =
                format!("extent lies over a superblock copy, logical {} to {}", window.start, window.end);
            findings.add("XR-07", Place::extent(extent.start), reason);
        }
    }
}
