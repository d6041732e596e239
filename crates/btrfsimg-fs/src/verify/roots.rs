//! The root tree: which trees there are, and how subvolumes hang together (ROOT-08 to ROOT-17).

use std::collections::{BTreeMap, BTreeSet};

use btrfsimg_ondisk::{
    BackRef, BlockContext, DirItems, FileExtent, Item, Key, KeyType, Logical, RootItem, RootRefHead,
    Superblock, compat_ro, objectid, root_flags,
};
use zerocopy::FromBytes;

use super::finding::{Findings, Place};
use super::image::Block;
use super::inodes::SubvolumeEntry;
use super::usage::User;
use super::walk::Tree;

/// Subvolumes of a ring that are named.
const RING_NAMED: usize = 16;

/// What the root tree holds.
#[derive(Default)]
pub(super) struct RootTree {
    pub(super) roots: Vec<Root>,
    /// ROOT_REF, by (parent, child).
    refs: Vec<Link>,
    /// ROOT_BACKREF, by (child, parent).
    backrefs: Vec<Link>,
    orphans: Vec<u64>,
    default: Option<(u64, Place)>,
    /// Inodes in the root tree: those of v1 space caches, and the ones that the caches' headers name.
    cache_inodes: Vec<(u64, Place)>,
    cache_headers: Vec<u64>,
    /// Their data extents.
    pub(super) data: Vec<(User, u64, Place)>,
}

/// A root item.
pub(super) struct Root {
    pub(super) key: Key,
    pub(super) item: RootItem,
    pub(super) place: Place,
}

/// One of the two references of a subvolume.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Link {
    child: u64,
    parent: u64,
    dir: u64,
    index: u64,
    name: Vec<u8>,
}

impl Root {
    /// The tree to walk.
    pub(super) fn tree(&self) -> Tree {
        let progress = self.item.drop_progress.get();
        let dropping = progress.objectid != 0 && self.item.refs == 0;
        Tree {
            id: self.key.objectid,
            root: Logical(self.item.bytenr.get()),
            level: self.item.level,
            generation: self.item.generation.get(),
            drop: dropping.then_some((progress, self.item.drop_level)),
        }
    }

    pub(super) fn is_subvolume(&self) -> bool {
        objectid::is_fs_tree(self.key.objectid)
    }

    /// Whether its deletion is under way.
    pub(super) fn is_dead(&self) -> bool {
        self.is_subvolume() && self.item.refs == 0
    }
}

impl RootTree {
    /// Takes in a leaf.
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext) {
        block.for_each_item(ctx, |slot, item| {
            let place = || Place::item(block.tree, block.logical, slot, item.key);
            match item.key.key_type {
                KeyType::ROOT_ITEM => {
                    if let Some(root) = RootItem::parse(item.data) {
                        self.roots.push(Root { key: item.key, item: root, place: place() });
                    }
                }
                KeyType::ROOT_REF => self.refs.extend(link(&item, item.key.objectid, item.key.offset)),
                KeyType::ROOT_BACKREF => {
                    self.backrefs.extend(link(&item, item.key.offset, item.key.objectid));
                }
                KeyType::ORPHAN_ITEM => self.orphans.push(item.key.offset),
                KeyType::DIR_ITEM => self.default_entry(&item, ctx, &place()),
                KeyType::EXTENT_DATA => self.extent_data(block, &item, place()),
                KeyType::INODE_ITEM if item.key.objectid >= objectid::FIRST_FREE => {
                    self.cache_inodes.push((item.key.objectid, place()));
                }
                KeyType::UNTYPED if item.key.objectid == objectid::FREE_SPACE => {
                    // The header begins with the key of its inode.
                    self.cache_headers.extend(item.data.first_chunk().map(|ino| u64::from_le_bytes(*ino)));
                }
                _ => {}
            }
        });
    }

    fn default_entry(&mut self, item: &Item<'_>, ctx: &BlockContext, place: &Place) {
        let entries = DirItems::parse(item.key, item.data, ctx.nodesize);
        for entry in entries.into_iter().flatten().filter(|e| e.name == b"default") {
            self.default = Some((entry.location.objectid, place.clone()));
        }
    }

    fn extent_data(&mut self, block: &Block, item: &Item<'_>, place: Place) {
        let Ok(extent) = FileExtent::parse(item.data) else { return };
        let (Some((at, len)), Some(range)) = (extent.disk_extent(), extent.range()) else { return };
        let back = BackRef::Data {
            root: block.owner,
            objectid: item.key.objectid,
            offset: item.key.offset.wrapping_sub(range.offset.get()),
        };
        self.data.push((User { extent: at.0, back }, len, place));
    }

    pub(super) fn append(&mut self, other: RootTree) {
        self.roots.extend(other.roots);
        self.refs.extend(other.refs);
        self.backrefs.extend(other.backrefs);
        self.orphans.extend(other.orphans);
        self.default = self.default.take().or(other.default);
        self.cache_inodes.extend(other.cache_inodes);
        self.cache_headers.extend(other.cache_headers);
        self.data.extend(other.data);
    }

    /// Puts all in order, for what follows.
    pub(super) fn sort(&mut self) {
        self.roots.sort_by_key(|r| r.key);
        self.refs.sort();
        self.backrefs.sort();
        self.orphans.sort_unstable();
        self.cache_inodes.sort_by_key(|(ino, _)| *ino);
        self.cache_headers.sort_unstable();
    }

    /// The root item of a tree. Kernels look for those of the trees below 5 and of 7 to 12 at offset 0.
    pub(super) fn find(&self, tree: u64) -> Option<&Root> {
        let at = self.roots.partition_point(|r| r.key.objectid < tree);
        let root = self.roots.get(at).filter(|r| r.key.objectid == tree)?;
        let may_have_offset = tree >= objectid::FIRST_FREE;
        (root.key.offset == 0 || may_have_offset).then_some(root)
    }

    /// ROOT-09, ROOT-11 to ROOT-13, ROOT-15, LK-07, LEAF-09: what needs no other tree.
    pub(super) fn judge(&self, sb: &Superblock, findings: &mut Findings) {
        let optional = [
            (objectid::FREE_SPACE_TREE, compat_ro::FREE_SPACE_TREE),
            (objectid::BLOCK_GROUP_TREE, compat_ro::BLOCK_GROUP_TREE),
        ];
        let always = [
            objectid::EXTENT_TREE,
            objectid::DEV_TREE,
            objectid::FS_TREE,
            objectid::CSUM_TREE,
            objectid::DATA_RELOC_TREE,
        ];
        let flagged = optional.iter().filter(|(_, bit)| sb.has_compat_ro(*bit)).map(|(tree, _)| *tree);
        for tree in always.into_iter().chain(flagged) {
            if self.find(tree).is_none() {
                findings.add(
                    "ROOT-09",
                    Place::tree(objectid::ROOT_TREE),
                    format!("no root item of tree {}", objectid::Printed(tree)),
                );
            }
        }
        for pair in self.roots.windows(2) {
            let (first, second) = (pair[0].key, pair[1].key);
            if first.objectid == second.objectid && first.objectid != objectid::TREE_RELOC {
                let tree = objectid::Printed(first.objectid);
                let reason =
                    format!("second root item of tree {tree}, the first is at offset {}", first.offset);
                findings.add("ROOT-09", pair[1].place.clone(), reason);
            }
        }
        let has_dir = |r: &&Root| r.is_subvolume() || r.key.objectid == objectid::DATA_RELOC_TREE;
        for root in self.roots.iter().filter(has_dir).filter(|r| !r.is_dead()) {
            let dir = root.item.root_dirid.get();
            if dir != objectid::FIRST_FREE {
                let reason =
                    format!("root directory of the tree, have inode {dir} expect {}", objectid::FIRST_FREE);
                findings.add("ROOT-12", root.place.clone(), reason);
            }
        }
        for root in self.roots.iter().filter(|r| r.is_subvolume()) {
            if root.is_dead() && self.orphans.binary_search(&root.key.objectid).is_err() {
                findings.add("ROOT-11", root.place.clone(), "deleted subvolume without an orphan item");
            }
            let writable = root.item.flags.get() & root_flags::RDONLY == 0;
            if writable && root.item.received_uuid != [0; 16] && !root.is_dead() {
                findings.add("ROOT-15", root.place.clone(), "writable subvolume with a received uuid");
            }
        }
        let is_cache = |id: &u64| self.cache_inodes.binary_search_by_key(id, |(ino, _)| *ino).is_ok();
        for id in self.orphans.iter().filter(|id| self.find(**id).is_none() && !is_cache(id)) {
            let place = Place::tree(objectid::ROOT_TREE);
            findings.add("LK-07", place, format!("orphan item of subvolume {id}, which does not exist"));
        }
        // A cache that is being deleted loses its header first, and has an orphan item then.
        let is_named =
            |ino: &u64| [&self.cache_headers, &self.orphans].iter().any(|l| l.binary_search(ino).is_ok());
        for (ino, place) in self.cache_inodes.iter().filter(|(ino, _)| !is_named(ino)) {
            findings.add(
                "LEAF-09",
                place.clone(),
                format!("inode {ino} of a v1 space cache that no header names"),
            );
        }
        if let Some((id, place)) = &self.default
            && self.find(*id).is_none_or(Root::is_dead)
        {
            findings.add("ROOT-13", place.clone(), format!("default subvolume {id} does not exist"));
        }
    }

    /// ROOT-16: entries of subvolumes that are gone. A snapshot has those of what its source contained.
    fn judge_entries(&self, entries: &BTreeMap<u64, Vec<SubvolumeEntry>>, findings: &mut Findings) {
        let is_snapshot = |tree| self.find(tree).is_some_and(|r| r.item.parent_uuid != [0; 16]);
        for (tree, list) in entries.iter().filter(|(tree, _)| !is_snapshot(**tree)) {
            for entry in list.iter().filter(|e| e.index.is_some() && self.find(e.target).is_none()) {
                let at = self.refs.partition_point(|l| (l.child, l.parent) < (entry.target, *tree));
                if self.refs.get(at).is_none_or(|l| (l.child, l.parent) != (entry.target, *tree)) {
                    let (name, target) = (entry.name.escape_ascii(), entry.target);
                    let reason = format!("entry '{name}' of subvolume {target}, which does not exist");
                    findings.add("ROOT-16", Place::inode(*tree, entry.dir), reason);
                }
            }
        }
    }

    /// ROOT-17: subvolumes that contain each other, each ring named once. What hangs below a ring is not named.
    fn judge_rings(&self, findings: &mut Findings) {
        let parent_of = |child: u64| {
            let at = self.backrefs.partition_point(|l| l.child < child);
            self.backrefs.get(at).filter(|l| l.child == child).map(|l| l.parent)
        };
        let mut met = BTreeSet::new();
        for start in self.backrefs.iter().map(|l| l.child) {
            let (mut way, mut at) = (Vec::new(), Some(start));
            while let Some(id) = at.filter(|id| met.insert(*id)) {
                way.push(id);
                at = parent_of(id);
            }
            let Some(first) = at.and_then(|id| way.iter().position(|w| *w == id)) else { continue };
            let ring = &way[first..];
            let mut named: Vec<String> = ring.iter().take(RING_NAMED).map(u64::to_string).collect();
            named.extend((ring.len() > RING_NAMED).then(|| "...".to_owned()));
            named.push(ring[0].to_string());
            let place = self.find(ring[0]).map_or(Place::tree(ring[0]), |r| r.place.clone());
            findings.add(
                "ROOT-17",
                place,
                format!("no path leads to subvolume {}", named.join(", which is in ")),
            );
        }
    }

    /// ROOT-10, ROOT-17: references, back references and directory entries of subvolumes. `entries` are those of each tree.
    pub(super) fn judge_links(&self, entries: &BTreeMap<u64, Vec<SubvolumeEntry>>, findings: &mut Findings) {
        self.judge_rings(findings);
        self.judge_entries(entries, findings);
        let mut fault = |child: u64, reason: String| {
            let place = self.find(child).map_or(Place::tree(child), |r| r.place.clone());
            findings.add("ROOT-10", place, reason);
        };
        for root in self.roots.iter().filter(|r| r.is_subvolume() && r.key.objectid != objectid::FS_TREE) {
            let id = root.key.objectid;
            let first = self.backrefs.partition_point(|l| l.child < id);
            let count = self.backrefs[first..].partition_point(|l| l.child == id);
            let expect = usize::from(!root.is_dead());
            if count != expect {
                fault(id, format!("subvolume {id} has {count} ROOT_BACKREFs, expect {expect}"));
            }
        }
        for link in &self.backrefs {
            if self.refs.binary_search(link).is_err() {
                fault(
                    link.child,
                    format!("no ROOT_REF for the ROOT_BACKREF of {} in {}", link.child, link.parent),
                );
            }
        }
        for link in &self.refs {
            if self.backrefs.binary_search(link).is_err() {
                fault(
                    link.child,
                    format!("no ROOT_BACKREF for the ROOT_REF of {} in {}", link.child, link.parent),
                );
            }
            let Some(entries) = entries.get(&link.parent) else { continue };
            for index in [None, Some(link.index)] {
                let wanted =
                    SubvolumeEntry { dir: link.dir, name: link.name.clone(), target: link.child, index };
                if entries.binary_search(&wanted).is_err() {
                    let what = if index.is_some() { "DIR_INDEX" } else { "DIR_ITEM" };
                    let name = link.name.escape_ascii();
                    fault(
                        link.child,
                        format!("no {what} '{name}' in directory {} of tree {}", link.dir, link.parent),
                    );
                }
            }
        }
    }
}

fn link(item: &Item<'_>, parent: u64, child: u64) -> Option<Link> {
    let (head, rest) = RootRefHead::read_from_prefix(item.data).ok()?;
    let name = rest.get(..usize::from(head.name_len.get()))?.to_vec();
    Some(Link { parent, child, dir: head.dirid.get(), index: head.sequence.get(), name })
}

/// The UUID tree: `(is it a received one, uuid, subvolumes)`.
#[derive(Default)]
pub(super) struct UuidTree {
    items: Vec<(bool, [u8; 16], Vec<u64>)>,
}

impl UuidTree {
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext) {
        block.for_each_item(ctx, |_, item| {
            let received = match item.key.key_type {
                KeyType::UUID_SUBVOL => false,
                KeyType::UUID_RECEIVED_SUBVOL => true,
                _ => return,
            };
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&item.key.objectid.to_le_bytes());
            uuid[8..].copy_from_slice(&item.key.offset.to_le_bytes());
            let ids = item.data.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
            self.items.push((received, uuid, ids));
        });
    }

    pub(super) fn append(&mut self, other: UuidTree) {
        self.items.extend(other.items);
    }

    pub(super) fn sort(&mut self) {
        self.items.sort();
    }

    fn lists(&self, received: bool, uuid: [u8; 16], id: u64) -> bool {
        let at = self.items.partition_point(|i| (i.0, i.1) < (received, uuid));
        self.items.get(at).is_some_and(|i| (i.0, i.1) == (received, uuid) && i.2.contains(&id))
    }

    /// ROOT-14.
    pub(super) fn judge(&self, roots: &RootTree, complete: bool, findings: &mut Findings) {
        let place = || Place::tree(objectid::UUID_TREE);
        for (received, uuid, ids) in &self.items {
            for id in ids {
                let matches = roots
                    .find(*id)
                    .is_some_and(|r| *uuid == if *received { r.item.received_uuid } else { r.item.uuid });
                if !matches {
                    findings.add(
                        "ROOT-14",
                        place(),
                        format!("uuid item names subvolume {id}, which has another"),
                    );
                }
            }
        }
        let live = roots.roots.iter().filter(|r| r.is_subvolume() && !r.is_dead());
        for root in live.filter(|_| complete) {
            let id = root.key.objectid;
            for (received, uuid) in [(false, root.item.uuid), (true, root.item.received_uuid)] {
                if uuid != [0; 16] && !self.lists(received, uuid, id) {
                    findings.add("ROOT-14", place(), format!("no uuid item for subvolume {id}"));
                }
            }
        }
    }
}
