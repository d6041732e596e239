//! The three places of a name: by hash and by index in its directory, and from its inode (LK-02, LK-03).
//!
//! Each entry and each reference adds to, or takes from, sums of hashes that are zero when the three places agree. So
//! a sound subvolume needs no memory for its names. Where a sum is not zero, two more passes find the names: one
//! splits the sums into buckets, one keeps the names of the buckets that are not zero.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use btrfsimg_ondisk::{
    DirEntry, DirItemKind, DirItems, FileType, InodeItem, InodeRef, KeyType, inode_extrefs, inode_refs,
    objectid,
};
use zerocopy::FromBytes;

use super::finding::{Findings, Place};
use super::image::{Block, Image};
use super::usage::Hasher;
use super::walk::{Tree, Walk};

/// Sums over a subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sums {
    /// Entries by hash less references.
    by_hash: u64,
    /// Entries by index less references.
    by_index: u64,
    /// Subvolumes' entries by hash less those by index.
    subvolumes: u64,
    /// Types in entries less types of inodes.
    types: u64,
}

/// Hashes of a name: in its directory for a target, and there at an index.
fn hashes(hasher: Hasher, dir: u64, name: &[u8], target: u64, index: u64) -> (u64, u64) {
    let hash = hasher.name(dir, name);
    (hasher.words(&[hash, target]), hasher.words(&[hash, target, index, 1]))
}

impl Sums {
    pub(super) fn add(&mut self, other: &Sums) {
        self.by_hash = self.by_hash.wrapping_add(other.by_hash);
        self.by_index = self.by_index.wrapping_add(other.by_index);
        self.subvolumes = self.subvolumes.wrapping_add(other.subvolumes);
        self.types = self.types.wrapping_add(other.types);
    }

    /// An entry of directory `dir`.
    pub(super) fn entry(&mut self, hasher: Hasher, dir: u64, index: Option<u64>, entry: &DirEntry<'_>) {
        let target = entry.location.objectid;
        let (by_hash, by_index) = hashes(hasher, dir, entry.name, target, index.unwrap_or(0));
        if entry.is_subvolume() {
            let sign = if index.is_some() { by_hash.wrapping_neg() } else { by_hash };
            self.subvolumes = self.subvolumes.wrapping_add(sign);
            return;
        }
        match index {
            None => self.by_hash = self.by_hash.wrapping_add(by_hash),
            Some(_) => self.by_index = self.by_index.wrapping_add(by_index),
        }
        let kind = hasher.words(&[target, u64::from(entry.file_type.0), 3]);
        self.types = self.types.wrapping_add(kind);
    }

    /// A reference of inode `ino`.
    pub(super) fn inode_ref(&mut self, hasher: Hasher, ino: u64, r: &InodeRef<'_>) {
        let (by_hash, by_index) = hashes(hasher, r.parent, r.name, ino, r.index);
        self.by_hash = self.by_hash.wrapping_sub(by_hash);
        self.by_index = self.by_index.wrapping_sub(by_index);
    }

    /// An inode with so many names: each has two entries with its type.
    pub(super) fn inode(&mut self, hasher: Hasher, ino: u64, kind: FileType, names: u64) {
        let hash = hasher.words(&[ino, u64::from(kind.0), 3]);
        self.types = self.types.wrapping_sub(hash.wrapping_mul(names.wrapping_mul(2)));
    }

    /// Whether all places of all names agree.
    pub(super) fn agree(&self) -> bool {
        (self.by_hash | self.by_index | self.subvolumes | self.types) == 0
    }
}

/// One place of a name.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    ByHash { target: u64, kind: u8 },
    ByIndex { target: u64, kind: u8, index: u64 },
    Ref { ino: u64, index: u64 },
}

impl Seen {
    /// The inode that it names, unless it is a subvolume.
    pub(super) fn inode(&self) -> Option<u64> {
        match *self {
            Seen::ByHash { kind: 0, .. } | Seen::ByIndex { kind: 0, .. } => None,
            Seen::ByHash { target, .. } | Seen::ByIndex { target, .. } => Some(target),
            Seen::Ref { ino, .. } => Some(ino),
        }
    }
}

/// The names of a subvolume that do not agree, and the places of each.
type Names = BTreeMap<(u64, Vec<u8>), Vec<Seen>>;

const BUCKETS: usize = 1 << 16;

#[expect(clippy::cast_possible_truncation, reason = "the low bits choose")]
fn bucket(hasher: Hasher, dir: u64, name: &[u8]) -> usize {
    hasher.name(dir, name) as usize % BUCKETS
}

/// Names what does not agree in `tree`, whose sums say that something does not. Directories that have no name
/// themselves (`unlinked`) are being deleted, their names one place at a time.
pub(super) fn explain(
    image: &Image<'_>,
    tree: Tree,
    hasher: Hasher,
    unlinked: &[u64],
    findings: &mut Findings,
) {
    let buckets: Vec<[AtomicU64; 3]> = (0..BUCKETS).map(|_| Default::default()).collect();
    let blocks = AtomicU64::new(0);
    Walk::quiet(image, tree, &blocks).run(|(): &mut (), block, _, _| {
        each_name(image, block, |dir, name, seen| {
            let at = &buckets[bucket(hasher, dir, name)];
            let subvolume = matches!(seen, Seen::ByHash { kind: 0, .. } | Seen::ByIndex { kind: 0, .. });
            let (sum, hash, add) = match *seen {
                Seen::ByHash { target, .. } if subvolume => (2, hashes(hasher, dir, name, target, 0).0, true),
                Seen::ByIndex { target, .. } if subvolume => {
                    (2, hashes(hasher, dir, name, target, 0).0, false)
                }
                Seen::ByHash { target, .. } => (0, hashes(hasher, dir, name, target, 0).0, true),
                Seen::ByIndex { target, index, .. } => (1, hashes(hasher, dir, name, target, index).1, true),
                Seen::Ref { ino, index } => {
                    let (by_hash, by_index) = hashes(hasher, dir, name, ino, index);
                    at[0].fetch_sub(by_hash, Ordering::Relaxed);
                    (1, by_index, false)
                }
            };
            if add {
                at[sum].fetch_add(hash, Ordering::Relaxed);
            } else {
                at[sum].fetch_sub(hash, Ordering::Relaxed);
            }
        });
    });
    let odd: Vec<bool> = buckets.iter().map(|b| b.iter().any(|s| s.load(Ordering::Relaxed) != 0)).collect();
    name_the_odd(image, tree, hasher, (&odd, unlinked), findings);
}

/// Keeps the names of the odd buckets and judges each. Types are judged for all.
fn name_the_odd(
    image: &Image<'_>,
    tree: Tree,
    hasher: Hasher,
    (odd, unlinked): (&[bool], &[u64]),
    findings: &mut Findings,
) {
    let blocks = AtomicU64::new(0);
    let walked =
        Walk::quiet(image, tree, &blocks).run(|(names, types): &mut (Names, Vec<(u64, u8)>), block, _, _| {
            each_name(image, block, |dir, name, seen| {
                if odd[bucket(hasher, dir, name)] && unlinked.binary_search(&dir).is_err() {
                    names.entry((dir, name.to_vec())).or_default().push(seen.clone());
                }
            });
            block.for_each_item(&image.ctx, |_, item| {
                if item.key.key_type == KeyType::INODE_ITEM
                    && let Ok(inode) = InodeItem::ref_from_bytes(item.data)
                {
                    types.push((item.key.objectid, FileType::from_mode(inode.mode.get()).map_or(0, |k| k.0)));
                }
            });
        });
    let (mut names, mut types) = (Names::new(), Vec::new());
    for (run, kinds) in walked.runs {
        for (name, seen) in run {
            names.entry(name).or_default().extend(seen);
        }
        types.extend(kinds);
    }
    for ((dir, name), places) in &names {
        judge_name(tree.id, *dir, name, places, findings);
    }
    judge_types(image, tree, &types, findings);
}

/// Gives each place of each name in a leaf. The type of a subvolume's entry is given as 0.
pub(super) fn each_name(image: &Image<'_>, block: &Block, mut each: impl FnMut(u64, &[u8], &Seen)) {
    block.for_each_item(&image.ctx, |_, item| {
        let key = item.key;
        match key.key_type {
            KeyType::DIR_ITEM | KeyType::DIR_INDEX => {
                for entry in DirItems::parse(key, item.data, image.ctx.nodesize).into_iter().flatten() {
                    let target = entry.location.objectid;
                    let kind = if entry.is_subvolume() { 0 } else { entry.file_type.0 };
                    let seen = match DirItemKind::of(key.key_type) {
                        Some(DirItemKind::Index) => Seen::ByIndex { target, kind, index: key.offset },
                        _ => Seen::ByHash { target, kind },
                    };
                    each(key.objectid, entry.name, &seen);
                }
            }
            KeyType::INODE_REF | KeyType::INODE_EXTREF => {
                let refs = match key.key_type {
                    KeyType::INODE_REF => inode_refs(key, item.data),
                    _ => inode_extrefs(item.data),
                };
                let is_own = |parent: u64| parent == key.objectid && parent == objectid::FIRST_FREE;
                for r in refs.into_iter().flatten().filter(|r| !is_own(r.parent)) {
                    each(r.parent, r.name, &Seen::Ref { ino: key.objectid, index: r.index });
                }
            }
            _ => {}
        }
    });
}

/// LK-02: whether the places of one name in one directory agree.
fn judge_name(tree: u64, dir: u64, name: &[u8], places: &[Seen], findings: &mut Findings) {
    let (mut by_hash, mut by_index, mut refs) = (Vec::new(), Vec::new(), Vec::new());
    let mut subvolume = false;
    for seen in places {
        match *seen {
            Seen::ByHash { target, kind } => {
                subvolume |= kind == 0;
                by_hash.push(target);
            }
            Seen::ByIndex { target, kind, index } => {
                subvolume |= kind == 0;
                by_index.push((target, index));
            }
            Seen::Ref { ino, index } => refs.push((ino, index)),
        }
    }
    [&mut by_index, &mut refs].into_iter().for_each(|v| v.sort_unstable());
    by_hash.sort_unstable();
    let targets = |list: &[(u64, u64)]| list.iter().map(|t| t.0).collect::<Vec<_>>();
    let agrees = by_hash == targets(&by_index) && (subvolume || by_index == refs);
    if agrees {
        return;
    }
    let text = |count: usize, what: &str| format!("{count} {what}");
    let reason = format!(
        "name '{}' in directory {dir}: {}, {}, {}; they do not agree",
        name.escape_ascii(),
        text(by_hash.len(), "DIR_ITEM"),
        text(by_index.len(), "DIR_INDEX"),
        text(refs.len(), "INODE_REF")
    );
    let target = by_hash.first().copied().or(by_index.first().map(|t| t.0)).or(refs.first().map(|t| t.0));
    findings.add("LK-02", Place::inode(tree, target.unwrap_or(dir)), reason);
}

/// LK-03: the types in entries against those of the inodes, which are in key order.
fn judge_types(image: &Image<'_>, tree: Tree, types: &[(u64, u8)], findings: &mut Findings) {
    let blocks = AtomicU64::new(0);
    let walked = Walk::quiet(image, tree, &blocks).run(|found: &mut Findings, block, _, _| {
        each_name(image, block, |dir, name, seen| {
            let (Seen::ByHash { target, kind } | Seen::ByIndex { target, kind, .. }) = *seen else { return };
            let Ok(at) = types.binary_search_by_key(&target, |t| t.0) else { return };
            if kind != 0 && types[at].1 != kind {
                let reason = format!(
                    "type of '{}' in directory {dir}, have {kind} expect {}",
                    name.escape_ascii(),
                    types[at].1
                );
                found.add("LK-03", Place::inode(tree.id, target), reason);
            }
        });
    });
    walked.runs.into_iter().for_each(|f| findings.append(f));
}
