//! The path of an inode that a finding is about.

use btrfsimg_ondisk::{DirItems, Item, Key, KeyType, ParentExpectation, inode_refs, objectid};

use super::finding::{Finding, Findings};
use super::image::{Image, Pointer};
use super::walk::Tree;

/// Findings of one tree that get a path.
const NAMED: usize = 100;
/// Directories between an inode and its root, at most.
const DEPTH: usize = 512;

/// Gives the findings about inodes of `tree` their paths, as far as the tree tells.
pub(super) fn fill(image: &Image<'_>, tree: Tree, findings: &mut Findings) {
    let about_inodes = findings.iter_mut().filter(|f| f.place.path.is_none() && inode_of(f).is_some());
    let mut last: Option<(u64, Option<Vec<u8>>)> = None;
    for finding in about_inodes.take(NAMED) {
        let Some(ino) = inode_of(finding) else { continue };
        let path = match &last {
            Some((known, path)) if *known == ino => path.clone(),
            _ => path_of(image, tree, ino),
        };
        finding.place.path.clone_from(&path);
        last = Some((ino, path));
    }
}

/// The inode that a finding is about.
fn inode_of(finding: &Finding) -> Option<u64> {
    let key = finding.place.key.filter(|_| finding.place.leaf == Some(true)).map(|k| k.objectid);
    finding.place.inode.or(key).filter(|ino| objectid::is_inode(*ino))
}

pub(super) fn path_of(image: &Image<'_>, tree: Tree, ino: u64) -> Option<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = ino;
    while at != objectid::FIRST_FREE {
        let (parent, name) = name_of(image, tree, at)?;
        if names.len() == DEPTH || parent == at {
            return None;
        }
        names.push(name);
        at = parent;
    }
    names.reverse();
    Some([b"/", &names.join(&b'/')[..]].concat())
}

/// Whether `ino` has an INODE_ITEM, as far as the tree can be read.
pub(super) fn has_inode(image: &Image<'_>, tree: Tree, ino: u64) -> bool {
    let wanted = Key::new(ino, KeyType::INODE_ITEM, 0);
    find(image, tree, wanted, |item| (item.key == wanted).then_some(())).is_some()
}

/// The entry of `dir` at `index`: what it leads to, and its name.
pub(super) fn entry_at(image: &Image<'_>, tree: Tree, dir: u64, index: u64) -> Option<(Key, Vec<u8>)> {
    let wanted = Key::new(dir, KeyType::DIR_INDEX, index);
    find(image, tree, wanted, |item| {
        if item.key != wanted {
            return None;
        }
        let first = DirItems::parse(item.key, item.data, image.ctx.nodesize).ok()?.into_iter().next()?;
        Some((first.location, first.name.to_vec()))
    })
}

/// The directory and the name of the first reference of `ino`.
fn name_of(image: &Image<'_>, tree: Tree, ino: u64) -> Option<(u64, Vec<u8>)> {
    find(image, tree, Key::new(ino, KeyType::INODE_REF, 0), |item| {
        if item.key.objectid != ino || item.key.key_type != KeyType::INODE_REF {
            return None;
        }
        let first = inode_refs(item.key, item.data).ok().and_then(|r| r.first().copied())?;
        Some((first.parent, first.name.to_vec()))
    })
}

/// What `take` takes from the first item that it takes one from, in the leaf of `wanted` and the next.
fn find<T>(image: &Image<'_>, tree: Tree, wanted: Key, take: impl Fn(&Item<'_>) -> Option<T>) -> Option<T> {
    let mut pointer = Pointer {
        at: tree.root,
        expect: ParentExpectation { level: Some(tree.level), ..ParentExpectation::default() },
    };
    // What is wanted may be the first item of the leaf after the one where it is looked for.
    let mut next = None;
    loop {
        let block = image.read(tree.id, &pointer, false, &mut Findings::default())?;
        if block.level > 0 {
            let pointers = block.pointers();
            let slot = pointers.partition_point(|p| p.key <= wanted).saturating_sub(1);
            let child = |slot: usize| {
                let level = block.level.checked_sub(1);
                let expect = ParentExpectation { level, ..ParentExpectation::default() };
                pointers.get(slot).map(|p| Pointer { at: p.block, expect })
            };
            next = child(slot + 1).or(next);
            pointer = child(slot)?;
            continue;
        }
        let mut found = None;
        block.for_each_item(&image.ctx, |_, item| {
            if found.is_none() {
                found = take(&item);
            }
        });
        match (found, next.take()) {
            (Some(found), _) => return Some(found),
            (None, Some(after)) => pointer = after,
            (None, None) => return None,
        }
    }
}
