//! The path of an inode that a finding is about.

use btrfsimg_ondisk::{Key, KeyType, ParentExpectation, inode_refs, objectid};

use super::finding::{Finding, Findings};
use super::image::{Image, Pointer};
use super::walk::Tree;

/// Findings of one tree that get a path.
const NAMED: usize = 100;
/// Directories between an inode and its root, at most.
const DEPTH: usize = 512;

/// Gives the findings about inodes of `tree` their paths, as far as the tree tells.
pub(super) fn fill(image: &Image<'_>, tree: Tree, findings: &mut Findings) {
    let about_inodes = findings.list.iter_mut().filter(|f| f.place.path.is_none() && inode_of(f).is_some());
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

fn path_of(image: &Image<'_>, tree: Tree, ino: u64) -> Option<Vec<u8>> {
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

/// The directory and the name of the first reference of `ino`.
fn name_of(image: &Image<'_>, tree: Tree, ino: u64) -> Option<(u64, Vec<u8>)> {
    let wanted = Key::new(ino, KeyType::INODE_REF, 0);
    let mut pointer = Pointer {
        at: tree.root,
        expect: ParentExpectation { level: Some(tree.level), ..ParentExpectation::default() },
    };
    // The reference may be the first item of the leaf after the one where it is looked for.
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
            if found.is_none() && item.key.objectid == ino && item.key.key_type == KeyType::INODE_REF {
                let first = inode_refs(item.key, item.data).ok().and_then(|r| r.first().copied());
                found = first.map(|r| (r.parent, r.name.to_vec()));
            }
        });
        match (found, next.take()) {
            (Some(found), _) => return Some(found),
            (None, Some(after)) => pointer = after,
            (None, None) => return None,
        }
    }
}
