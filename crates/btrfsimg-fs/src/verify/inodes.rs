//! The inodes of a subvolume, in one pass over its leaves in key order (LK-, FE-20 to FE-26, CS-06 to CS-08, DIR-15).
//!
//! A run of leaves is judged by one worker. Its first and its last inode may go on in the neighbouring runs: those
//! two are kept as they are and joined afterwards, all between are judged at once and forgotten.

use btrfsimg_ondisk::{
    BlockContext, COMPRESSION_NONE, DirItemKind, DirItems, FileExtent, FileExtentKind, FileType, InodeItem,
    Item, Key, KeyType, Logical, inode_extrefs, inode_flags, inode_refs, objectid,
};
use zerocopy::FromBytes;

use super::csums::Csums;
use super::finding::{Findings, Place};
use super::image::Block;
use super::names::Sums;
use super::usage::{Usage, User, bit};

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
}

/// Where an item is.
#[derive(Clone, Copy, Debug)]
struct Spot {
    leaf: Logical,
    slot: usize,
    key: Key,
}

impl Spot {
    fn place(self, tree: u64) -> Place {
        Place { inode: Some(self.key.objectid), ..Place::item(tree, self.leaf, self.slot, self.key) }
    }
}

/// An inode, as far as its items were seen.
#[derive(Debug, Default)]
struct Inode {
    ino: u64,
    item: Option<InodeItem>,
    first: Option<Spot>,
    /// Its names.
    names: u64,
    /// The directory of its last name.
    parent: u64,
    /// Bytes of the names in it, each counted by hash and by index.
    name_bytes: u64,
    entry: Option<Spot>,
    extent: Option<Spot>,
    extents: u64,
    inline: Option<u64>,
    first_start: Option<u64>,
    end: u64,
    gap: Option<u64>,
    overlap: Option<Spot>,
    nbytes: u64,
    beyond: Option<Spot>,
    compressed: Option<Spot>,
    unchecked: Option<Spot>,
    checked: Option<Spot>,
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
#[derive(Default)]
pub(super) struct Run {
    head: Option<Inode>,
    tail: Option<Inode>,
    pub(super) all: Seen,
}

/// What is kept of a subvolume.
#[derive(Default)]
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
    prealloc_checked: Vec<(u64, Place)>,
}

impl Run {
    /// Takes in a leaf.
    pub(super) fn leaf(&mut self, block: &Block, first_visit: bool, subvolume: &Subvolume<'_>) {
        block.for_each_item(subvolume.ctx, |slot, item| {
            let spot = Spot { leaf: block.logical, slot, key: item.key };
            if item.key.key_type == KeyType::ORPHAN_ITEM {
                self.all.orphans.push(item.key.offset);
                return;
            }
            self.at_inode(&spot, subvolume);
            let seen = &mut self.all;
            let Some(inode) = self.tail.as_mut().or(self.head.as_mut()) else { return };
            match item.key.key_type {
                KeyType::INODE_ITEM => inode.item = InodeItem::read_from_bytes(item.data).ok(),
                KeyType::INODE_REF | KeyType::INODE_EXTREF => inode.refs(&item, seen, subvolume),
                KeyType::DIR_ITEM | KeyType::DIR_INDEX => inode.entries(&item, &spot, seen, subvolume),
                KeyType::EXTENT_DATA => inode.extent_data(&item, spot, block, first_visit, seen, subvolume),
                _ => {}
            }
        });
    }

    /// Goes on to the inode of `spot`; what came before is judged, unless it is the run's first.
    fn at_inode(&mut self, spot: &Spot, subvolume: &Subvolume<'_>) {
        let ino = spot.key.objectid;
        if self.tail.as_ref().or(self.head.as_ref()).is_some_and(|i| i.ino == ino) {
            return;
        }
        let next = Inode { ino, first: Some(*spot), ..Inode::default() };
        if self.head.is_none() {
            self.head = Some(next);
        } else if let Some(done) = self.tail.replace(next) {
            done.judge(subvolume, &mut self.all);
        }
    }
}

/// Joins the runs of a subvolume, in key order, and judges the inodes that lie across two.
pub(super) fn join(runs: Vec<Run>, subvolume: &Subvolume<'_>) -> Seen {
    let mut all = Seen::default();
    let mut open: Option<Inode> = None;
    for run in runs {
        if let Some(head) = run.head {
            match &mut open {
                Some(inode) if inode.ino == head.ino => inode.append(head),
                _ => {
                    if let Some(done) = open.replace(head) {
                        done.judge(subvolume, &mut all);
                    }
                }
            }
        }
        if let Some(tail) = run.tail
            && let Some(done) = open.replace(tail)
        {
            done.judge(subvolume, &mut all);
        }
        all.append(run.all);
    }
    if let Some(done) = open {
        done.judge(subvolume, &mut all);
    }
    all
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

    /// CS-08, once every user of every extent is known.
    pub(super) fn judge_prealloc(&mut self, usage: &Usage, findings: &mut Findings) {
        for (extent, place) in self.prealloc_checked.drain(..) {
            if usage.find(extent).is_some_and(|e| !e.has(bit::REGULAR)) {
                findings.add("CS-08", place, "preallocated range that was never written has checksums");
            }
        }
    }

    /// LK-06, LK-07: inodes without names and orphan items are the same.
    pub(super) fn judge_orphans(&mut self, tree: u64, findings: &mut Findings) {
        self.orphans.sort_unstable();
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

impl Inode {
    /// Goes on with a later part of the same inode.
    fn append(&mut self, next: Inode) {
        self.item = self.item.or(next.item);
        self.names += next.names;
        self.parent = if next.names > 0 { next.parent } else { self.parent };
        self.name_bytes += next.name_bytes;
        self.entry = self.entry.or(next.entry);
        self.extent = self.extent.or(next.extent);
        self.inline = self.inline.or(next.inline);
        self.extents += next.extents;
        if let Some(start) = next.first_start {
            self.reach(start, next.end, next.extent);
        }
        self.gap = self.gap.or(next.gap);
        self.overlap = self.overlap.or(next.overlap);
        self.nbytes = self.nbytes.wrapping_add(next.nbytes);
        self.beyond = next.beyond.or(self.beyond);
        self.compressed = self.compressed.or(next.compressed);
        self.unchecked = self.unchecked.or(next.unchecked);
        self.checked = self.checked.or(next.checked);
    }

    /// Notes that extents cover `start` to `end`.
    fn reach(&mut self, start: u64, end: u64, spot: Option<Spot>) {
        if self.first_start.is_some() {
            if start > self.end {
                self.gap.get_or_insert(self.end);
            } else if start < self.end {
                self.overlap = self.overlap.or(spot);
            }
        } else {
            self.first_start = Some(start);
        }
        self.end = self.end.max(end);
    }

    fn refs(&mut self, item: &Item<'_>, seen: &mut Seen, subvolume: &Subvolume<'_>) {
        let refs = match item.key.key_type {
            KeyType::INODE_REF => inode_refs(item.key, item.data),
            _ => inode_extrefs(item.data),
        };
        for r in refs.into_iter().flatten() {
            self.names += 1;
            self.parent = r.parent;
            if self.ino == r.parent {
                if r.name != b".." || r.index != 0 {
                    let place = Place::inode(subvolume.tree, self.ino);
                    seen.findings.add(
                        "ROOT-12",
                        place,
                        "the root directory's own reference is not '..' at index 0",
                    );
                }
                continue;
            }
            seen.sums.inode_ref(subvolume.usage.hasher, self.ino, &r);
        }
    }

    fn entries(&mut self, item: &Item<'_>, spot: &Spot, seen: &mut Seen, subvolume: &Subvolume<'_>) {
        self.entry = self.entry.or(Some(*spot));
        let Ok(entries) = DirItems::parse(item.key, item.data, subvolume.ctx.nodesize) else { return };
        let index =
            (DirItemKind::of(item.key.key_type) == Some(DirItemKind::Index)).then_some(item.key.offset);
        for entry in entries {
            self.name_bytes += entry.name.len() as u64;
            seen.sums.entry(subvolume.usage.hasher, self.ino, index, &entry);
            if entry.is_subvolume() {
                seen.entries.push(SubvolumeEntry {
                    dir: self.ino,
                    name: entry.name.to_vec(),
                    target: entry.location.objectid,
                    index,
                });
            }
        }
    }

    fn extent_data(
        &mut self,
        item: &Item<'_>,
        spot: Spot,
        block: &Block,
        first_visit: bool,
        seen: &mut Seen,
        subvolume: &Subvolume<'_>,
    ) {
        let Ok(extent) = FileExtent::parse(item.data) else { return };
        self.extent = self.extent.or(Some(spot));
        self.extents += 1;
        let covers = extent.covers(subvolume.ctx.sectorsize);
        self.reach(item.key.offset, item.key.offset.saturating_add(covers), Some(spot));
        self.nbytes = self.nbytes.wrapping_add(extent.nbytes());
        if let FileExtentKind::Inline(_) = extent.kind {
            self.inline = Some(extent.ram_bytes);
        }
        let Some((at, len)) = extent.disk_extent() else { return };
        let regular = matches!(extent.kind, FileExtentKind::Regular(_));
        if regular {
            self.beyond = Some(spot);
            if extent.compression != COMPRESSION_NONE {
                self.compressed = self.compressed.or(Some(spot));
            }
        }
        if first_visit {
            let found = use_extent(item, &extent, (at, len), block, subvolume);
            if let Err((rule, reason)) = found {
                seen.findings.add(rule, spot.place(subvolume.tree), reason);
            }
        }
        self.coverage(&extent, at.0, regular, spot, seen, subvolume);
    }

    /// Notes whether the extent's data have checksums.
    fn coverage(
        &mut self,
        extent: &FileExtent<'_>,
        at: u64,
        regular: bool,
        spot: Spot,
        seen: &mut Seen,
        subvolume: &Subvolume<'_>,
    ) {
        let (Some(csums), Some(range)) = (subvolume.csums, extent.range()) else { return };
        let (start, len) = match extent.compression {
            COMPRESSION_NONE => (at.saturating_add(range.offset.get()), range.num_bytes.get()),
            _ => (at, range.disk_num_bytes.get()),
        };
        let covered = csums.covered(start, len);
        if regular {
            self.unchecked = self.unchecked.or((covered < len).then_some(spot));
            self.checked = self.checked.or((covered > 0).then_some(spot));
        } else if covered > 0 {
            seen.prealloc_checked.push((at, spot.place(subvolume.tree)));
        }
    }

    /// Judges the inode when all of it was seen.
    fn judge(self, subvolume: &Subvolume<'_>, seen: &mut Seen) {
        // The retired inode cache is LEAF-09's.
        let cache = [objectid::FREE_INO, objectid::FREE_SPACE].contains(&self.ino);
        if !subvolume.names || cache {
            return;
        }
        seen.inodes += 1;
        let place = || Place { inode: Some(self.ino), ..Place::tree(subvolume.tree) };
        let Some(item) = self.item else {
            let reason = "items of an inode without its INODE_ITEM";
            return seen.findings.add(
                "LK-09",
                self.first.map_or_else(place, |s| s.place(subvolume.tree)),
                reason,
            );
        };
        let (mode, nlink) = (item.mode.get(), item.nlink.get());
        let kind = FileType::from_mode(mode);
        if let Some(kind) = kind {
            seen.sums.inode(subvolume.usage.hasher, self.ino, kind, self.linked_names());
        }
        if nlink == 0 && self.names == 0 {
            return seen.unlinked.push(self.ino);
        }
        if u64::from(nlink) != self.names {
            let reason = format!("link count wrong, have {nlink} expect {}", self.names);
            seen.findings.add("LK-01", place(), reason);
        }
        if kind == Some(FileType::DIR) {
            seen.dirs.push((self.ino, self.parent));
            seen.has_root_dir |= self.ino == objectid::FIRST_FREE && self.parent == self.ino;
            self.judge_dir(&item, subvolume, &mut seen.findings);
        } else {
            self.judge_file(&item, kind, subvolume, &mut seen.findings);
        }
    }

    /// Names that have entries: all but the root directory's "..".
    fn linked_names(&self) -> u64 {
        if self.ino == self.parent { self.names.saturating_sub(1) } else { self.names }
    }

    fn judge_dir(&self, item: &InodeItem, subvolume: &Subvolume<'_>, findings: &mut Findings) {
        let place = || Place::inode(subvolume.tree, self.ino);
        if item.size != self.name_bytes {
            let reason = format!("directory size wrong, have {} expect {}", item.size, self.name_bytes);
            findings.add("LK-04", place(), reason);
        }
        if let Some(spot) = self.extent {
            findings.add("FE-26", spot.place(subvolume.tree), "file extent in a directory");
        }
    }

    fn judge_file(
        &self,
        item: &InodeItem,
        kind: Option<FileType>,
        subvolume: &Subvolume<'_>,
        findings: &mut Findings,
    ) {
        let tree = subvolume.tree;
        if let Some(spot) = self.entry {
            findings.add("DIR-15", spot.place(tree), "directory entry under an inode that is no directory");
        }
        let has_data = matches!(kind, Some(FileType::REG_FILE | FileType::SYMLINK));
        if let Some(spot) = self.extent.filter(|_| !has_data) {
            findings.add("FE-26", spot.place(tree), "file extent in an inode that has no data");
        }
        if let Some(spot) = self.overlap {
            findings.add("FE-22", spot.place(tree), "file extents of the inode overlap");
        }
        if !has_data {
            return;
        }
        if kind == Some(FileType::SYMLINK) && (self.extents != 1 || self.inline != Some(item.size.get())) {
            let reason =
                format!("symlink of size {} with {} extents, expect one inline", item.size, self.extents);
            findings.add("FE-20", Place::inode(tree, self.ino), reason);
        }
        self.judge_cover(item, subvolume, findings);
        if item.nbytes != self.nbytes {
            let reason = format!("nbytes wrong, have {} expect {}", item.nbytes, self.nbytes);
            findings.add("LK-05", Place::inode(tree, self.ino), reason);
        }
        self.judge_checksums(item, tree, findings);
    }

    /// FE-23, LK-10.
    fn judge_cover(&self, item: &InodeItem, subvolume: &Subvolume<'_>, findings: &mut Findings) {
        let (tree, size) = (subvolume.tree, item.size.get());
        let gap = match self.first_start {
            None | Some(0) => self.gap.unwrap_or(self.end),
            Some(_) => 0,
        };
        if !subvolume.no_holes && gap < size {
            let reason = format!("file extent discount, no extent from {gap}, size {size}");
            findings.add("FE-23", Place::inode(tree, self.ino), reason);
        }
        if let Some(spot) = self.beyond.filter(|s| s.key.offset >= size && size > 0) {
            findings.add("LK-10", spot.place(tree), format!("data beyond the file's end {size}"));
        }
    }

    /// FE-21, CS-06, CS-07.
    fn judge_checksums(&self, item: &InodeItem, tree: u64, findings: &mut Findings) {
        let without = item.flags.get() & inode_flags::NODATASUM != 0;
        if let Some(spot) = self.compressed.filter(|_| without) {
            findings.add("FE-21", spot.place(tree), "compressed extent in a file without checksums");
        }
        if let Some(spot) = self.unchecked.filter(|_| !without) {
            findings.add("CS-06", spot.place(tree), "data are not covered by checksums");
        }
        if let Some(spot) = self.checked.filter(|_| without) {
            findings.add("CS-07", spot.place(tree), "data of a file without checksums have some");
        }
    }
}

/// Counts a file extent as a user of its extent; FE-24 when the extent tree has no such extent.
pub(super) fn use_extent(
    item: &Item<'_>,
    extent: &FileExtent<'_>,
    (at, len): (Logical, u64),
    block: &Block,
    subvolume: &Subvolume<'_>,
) -> Result<(), (&'static str, String)> {
    let offset = extent.range().map_or(0, |r| r.offset.get());
    let back = if subvolume.usage.is_full(block.logical.0) {
        btrfsimg_ondisk::BackRef::SharedData { parent: block.logical.0 }
    } else {
        btrfsimg_ondisk::BackRef::Data {
            root: block.owner,
            objectid: item.key.objectid,
            offset: item.key.offset.wrapping_sub(offset),
        }
    };
    let Some(used) = subvolume.usage.add(User { extent: at.0, back }) else {
        return Err(("FE-24", format!("no extent item for disk_bytenr {at} disk_num_bytes {len}")));
    };
    if matches!(extent.kind, FileExtentKind::Regular(_)) {
        used.set(bit::REGULAR);
    }
    if !used.has(bit::DATA) || used.len != len {
        return Err(("FE-24", format!("extent {at} differs, have disk_num_bytes {len} expect {}", used.len)));
    }
    Ok(())
}
