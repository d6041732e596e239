//! One inode of a subvolume, from its items (LK-, FE-20 to FE-26, CS-06 to CS-08, DIR-15).

use std::sync::PoisonError;

use btrfsimg_ondisk::{
    COMPRESSION_NONE, DirItemKind, DirItems, FileExtent, FileExtentKind, FileType, InodeItem, Item, Key,
    KeyType, Logical, inode_extrefs, inode_flags, inode_refs, objectid,
};
use zerocopy::FromBytes;

use super::finding::{Findings, Place};
use super::image::Block;
use super::inodes::{Seen, Subvolume, SubvolumeEntry};
use super::usage::{User, bit};

/// Where an item is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    leaf: Logical,
    slot: usize,
    key: Key,
}

impl Spot {
    pub(super) fn new(block: &Block, slot: usize, key: Key) -> Spot {
        Spot { leaf: block.logical, slot, key }
    }

    fn place(self, tree: u64) -> Place {
        Place { inode: Some(self.key.objectid), ..Place::item(tree, self.leaf, self.slot, self.key) }
    }
}

/// Mixes the bits of a hash.
const PARTS: u64 = 0x9e37_79b9_7f4a_7c15;

/// An inode, as far as its items were seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) ino: u64,
    /// Which items it is made of, as a hash of where its parts begin.
    parts: u64,
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

impl Inode {
    /// The inode whose first item is at `spot`.
    pub(super) fn at(spot: Spot) -> Inode {
        let parts = spot.leaf.0.wrapping_add(spot.slot as u64).wrapping_mul(PARTS);
        Inode { ino: spot.key.objectid, parts, first: Some(spot), ..Inode::default() }
    }

    /// Takes in one of its items.
    pub(super) fn item(
        &mut self,
        item: &Item<'_>,
        spot: Spot,
        (block, first_visit): (&Block, bool),
        seen: &mut Seen,
        subvolume: &Subvolume<'_>,
    ) {
        match item.key.key_type {
            KeyType::INODE_ITEM => self.item = InodeItem::read_from_bytes(item.data).ok(),
            KeyType::INODE_REF | KeyType::INODE_EXTREF => self.refs(item, seen, subvolume),
            KeyType::DIR_ITEM | KeyType::DIR_INDEX => self.entries(item, &spot, seen, subvolume),
            KeyType::EXTENT_DATA => self.extent_data(item, spot, block, first_visit, seen, subvolume),
            _ => {}
        }
    }

    /// Goes on with a later part of the same inode.
    pub(super) fn append(&mut self, next: Inode) {
        self.parts = self.parts.rotate_left(7).wrapping_mul(PARTS) ^ next.parts;
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
            // Of another inode it is a name like any other, in a directory that has no such entry.
            if self.ino == r.parent && self.ino == objectid::FIRST_FREE {
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
                if entry.file_type != FileType::DIR {
                    let (name, have) = (entry.name.escape_ascii(), entry.file_type.0);
                    let reason =
                        format!("type of the subvolume '{name}', have {have} expect {}", FileType::DIR.0);
                    seen.findings.add("LK-03", spot.place(subvolume.tree), reason);
                }
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
        if let FileExtentKind::Inline(stored) = extent.kind {
            self.inline = Some(extent.ram_bytes);
            self.judge_target(&extent, stored, spot, seen, subvolume);
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

    /// FE-29, of an inline extent. (The first kernels stored and counted the zero byte behind the target, and
    /// btrfs-convert stores it.)
    fn judge_target(
        &self,
        extent: &FileExtent<'_>,
        stored: &[u8],
        spot: Spot,
        seen: &mut Seen,
        subvolume: &Subvolume<'_>,
    ) {
        let link = self.item.filter(|i| FileType::from_mode(i.mode.get()) == Some(FileType::SYMLINK));
        let Some(size) = link.and_then(|i| usize::try_from(i.size.get()).ok()) else { return };
        if extent.compression == COMPRESSION_NONE
            && let Some(at) = stored.iter().take(size.saturating_sub(1)).position(|&byte| byte == 0)
        {
            let reason = format!("target of a symlink holds NUL at byte {at} of {size}");
            seen.findings.add("FE-29", spot.place(subvolume.tree), reason);
        }
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

    /// Judges the inode when all of it was seen. What was said of the same items in another tree is not said again.
    pub(super) fn judge(self, subvolume: &Subvolume<'_>, seen: &mut Seen) {
        let (before, parts) = (std::mem::take(&mut seen.findings), self.parts);
        self.judge_whole(subvolume, seen);
        let found = std::mem::replace(&mut seen.findings, before);
        let is_new = || subvolume.said.lock().unwrap_or_else(PoisonError::into_inner).insert(parts);
        if !found.is_empty() && is_new() {
            seen.findings.append(found);
        }
    }

    fn judge_whole(self, subvolume: &Subvolume<'_>, seen: &mut Seen) {
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
        let is_root = self.ino == self.parent && self.ino == objectid::FIRST_FREE;
        if is_root { self.names.saturating_sub(1) } else { self.names }
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
        // mkfs gives root directories a node.
        let node = subvolume.ctx.nodesize as u64;
        if !item.nbytes.get().is_multiple_of(node) {
            let reason = format!("nbytes of a directory, have {} expect a multiple of {node}", item.nbytes);
            findings.add("LK-12", place(), reason);
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
            if item.nbytes != 0 {
                let reason = format!("nbytes of an inode without data, have {} expect 0", item.nbytes);
                findings.add("LK-12", Place::inode(tree, self.ino), reason);
            }
            return;
        }
        // btrfs-convert stores the zero byte behind the target, too.
        let (size, inline) = (item.size.get(), self.inline);
        let fits =
            self.extents == 1 && inline.is_some_and(|len| len == size || len.checked_sub(1) == Some(size));
        if kind == Some(FileType::SYMLINK) && !fits {
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
        if let Some(spot) = self.beyond.filter(|s| s.key.offset >= size) {
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
fn use_extent(
    item: &Item<'_>,
    extent: &FileExtent<'_>,
    (at, len): (Logical, u64),
    block: &Block,
    subvolume: &Subvolume<'_>,
) -> Result<(), (&'static str, String)> {
    let back = subvolume.usage.data_ref(block, item, extent);
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
