//! Who uses an extent: asked for by address where something is wrong with it, in one more walk of the trees.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use btrfsimg_ondisk::{
    BackRef, COMPRESSION_NONE, ExtentItemView, FileExtent, FileExtentKind, InlineRef, Item, KeyType, Logical,
    ParentExpectation,
};
use rustc_hash::FxHashSet;

use super::finding::Findings;
use super::image::{Block, Image};
use super::paths;
use super::roots::{Root, RootTree};
use super::usage::{Usage, User};
use super::walk::{Tree, Users, Walk};

/// Files that are named for one sector.
const NAMED: usize = 8;

/// What the extent tree lists of an extent less what the trees show: 0 where both agree.
pub(super) type Differences = BTreeMap<u64, BTreeMap<BackRef, i64>>;

/// Finds the references of the extents at `wanted` (sorted), and their users.
pub(super) fn differences(image: &Image<'_>, roots: &RootTree, usage: &Usage, wanted: &[u64]) -> Differences {
    let blocks = AtomicU64::new(0);
    let mut found = Differences::new();
    let mut note = |extent: u64, back: BackRef, count: i64| {
        *found.entry(extent).or_default().entry(back).or_default() += count;
    };
    for tree in roots.roots.iter().filter(|r| r.key.objectid == btrfsimg_ondisk::objectid::EXTENT_TREE) {
        let walked = Walk::quiet(image, tree.tree(), &blocks).run(
            |listed: &mut Vec<(u64, BackRef, u32)>, block, _, _| {
                block.for_each_item(&image.ctx, |_, item| {
                    if wanted.binary_search(&item.key.objectid).is_ok() {
                        references(&item, |back, count| listed.push((item.key.objectid, back, count)));
                    }
                });
            },
        );
        for (extent, back, count) in walked.runs.into_iter().flatten() {
            note(extent, back, i64::from(count));
        }
    }
    let users = Mutex::new(Vec::new());
    let met = Mutex::new(FxHashSet::default());
    let known = once(&met);
    let mut trees: Vec<Tree> = roots.roots.iter().map(Root::tree).collect();
    trees.extend([image.root_tree, image.chunk_tree].into_iter().flatten());
    for tree in trees {
        if wanted.binary_search(&tree.root.0).is_ok() {
            note(tree.root.0, BackRef::TreeBlock { root: tree.id }, -1);
        }
        let list = Users::Listed { usage, wanted, users: &users };
        let walk = Walk::new(image, tree, list, &blocks).knowing(&known);
        let walked = walk.run(|found: &mut Vec<User>, block, _, _| {
            each_data(image, block, |item, extent| {
                let Some((at, _)) =
                    extent.disk_extent().filter(|(at, _)| wanted.binary_search(&at.0).is_ok())
                else {
                    return;
                };
                found.push(User { extent: at.0, back: usage.data_ref(block, item, extent) });
            });
        });
        walked.runs.into_iter().flatten().for_each(|user| note(user.extent, user.back, -1));
    }
    for user in users.into_inner().unwrap_or_else(PoisonError::into_inner) {
        note(user.extent, user.back, -1);
    }
    found.values_mut().for_each(|refs| refs.retain(|_, count| *count != 0));
    found
}

/// The references in an item of the extent tree.
fn references(item: &Item<'_>, mut each: impl FnMut(BackRef, u32)) {
    if let KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM = item.key.key_type {
        let view = ExtentItemView::parse(item.key, item.data);
        for inline in view.into_iter().flat_map(|view| view.inline) {
            if let InlineRef::Ref(back, count) = inline {
                each(back, count);
            }
        }
    } else if let Some((back, count)) = BackRef::parse_keyed(item.key, item.data) {
        each(back, count);
    }
}

/// The differences of one extent in words.
pub(super) fn describe(refs: &BTreeMap<BackRef, i64>) -> String {
    /// References that are spelled out.
    const SHOWN: usize = 4;
    let one = |(back, count): (&BackRef, &i64)| {
        let times = count.unsigned_abs();
        let what = match back {
            BackRef::TreeBlock { root } => format!("by tree {}", btrfsimg_ondisk::objectid::Printed(*root)),
            BackRef::SharedBlock { parent } => format!("by node {parent}"),
            BackRef::SharedData { parent } => format!("by leaf {parent}"),
            BackRef::Data { root, objectid, offset } => format!(
                "by tree {} inode {objectid} offset {}",
                btrfsimg_ondisk::objectid::Printed(*root),
                offset.cast_signed()
            ),
        };
        let verb = if *count > 0 { "listed and not used" } else { "used and not listed" };
        format!("{verb} {times}× {what}")
    };
    let mut words: Vec<String> = refs.iter().take(SHOWN).map(one).collect();
    if refs.len() > SHOWN {
        words.push(format!("{} more", refs.len() - SHOWN));
    }
    words.join(", ")
}

/// Gives findings about sectors of data (by `place.logical`) the files that hold them: tree, inode and path of the
/// first, the paths of others in the reason.
pub(super) fn name_files(image: &Image<'_>, roots: &RootTree, findings: &mut Findings) {
    let mut sectors: Vec<u64> = findings.iter().filter_map(|f| f.place.logical).map(|at| at.0).collect();
    sectors.sort_unstable();
    sectors.dedup();
    if sectors.is_empty() {
        return;
    }
    let met = Mutex::new(FxHashSet::default());
    let known = once(&met);
    let blocks = AtomicU64::new(0);
    let mut files: BTreeMap<u64, Vec<(Tree, u64)>> = BTreeMap::new();
    for root in roots.roots.iter().filter(|root| root.is_subvolume()) {
        let tree = root.tree();
        let walked = Walk::quiet(image, tree, &blocks).knowing(&known).run(
            |found: &mut Vec<(u64, u64)>, block, _, _| {
                each_data(image, block, |item, extent| {
                    let (start, end) = stored(extent);
                    let first = sectors.partition_point(|s| *s < start);
                    let hits = sectors[first..].iter().take_while(|s| **s < end);
                    found.extend(hits.map(|s| (*s, item.key.objectid)));
                });
            },
        );
        for (sector, ino) in walked.runs.into_iter().flatten() {
            let list = files.entry(sector).or_default();
            if list.len() < NAMED && !list.iter().any(|(t, i)| (t.id, *i) == (tree.id, ino)) {
                list.push((tree, ino));
            }
        }
    }
    let mut names: BTreeMap<(u64, u64), Option<Vec<u8>>> = BTreeMap::new();
    for finding in findings.iter_mut() {
        let users = finding.place.logical.and_then(|at| files.get(&at.0));
        for (nth, (tree, ino)) in users.into_iter().flatten().enumerate() {
            let path = names.entry((tree.id, *ino)).or_insert_with(|| paths::path_of(image, *tree, *ino));
            if nth == 0 {
                (finding.place.tree, finding.place.inode) = (Some(tree.id), Some(*ino));
                finding.place.path.clone_from(path);
            } else {
                let name = path.as_ref().map_or(String::new(), |p| format!(" {}", p.escape_ascii()));
                finding.reason += &format!(", also in root={} ino={ino}{name}", tree.id);
            }
        }
    }
}

/// The bytes on disk that a file extent shows; of a compressed one, all.
fn stored(extent: &FileExtent<'_>) -> (u64, u64) {
    let FileExtentKind::Regular(range) = &extent.kind else { return (0, 0) };
    let at = range.disk_bytenr.get();
    if at == 0 {
        return (0, 0);
    }
    let (start, len) = match extent.compression {
        COMPRESSION_NONE => (at.saturating_add(range.offset.get()), range.num_bytes.get()),
        _ => (at, range.disk_num_bytes.get()),
    };
    (start, start.saturating_add(len))
}

fn each_data(image: &Image<'_>, block: &Block, mut each: impl FnMut(&Item<'_>, &FileExtent<'_>)) {
    block.for_each_item(&image.ctx, |_, item| {
        if item.key.key_type == KeyType::EXTENT_DATA
            && let Ok(extent) = FileExtent::parse(item.data)
        {
            each(&item, &extent);
        }
    });
}

/// Makes walks that share `met` enter each block once.
pub(super) fn once(
    met: &Mutex<FxHashSet<Logical>>,
) -> impl Fn(Logical) -> Option<ParentExpectation> + Sync + '_ {
    |at| {
        let new = met.lock().unwrap_or_else(PoisonError::into_inner).insert(at);
        (!new).then(ParentExpectation::default)
    }
}
