//! What of a damaged subvolume a path still leads to.

use std::sync::atomic::AtomicU64;

use btrfsimg_ondisk::{KeyType, objectid};
use rustc_hash::FxHashSet;

use super::image::Image;
use super::names::each_name;
use super::walk::{Tree, Walk};

/// Inodes and names of a subvolume.
#[derive(Default)]
pub(super) struct Reach {
    /// Inodes that were read, and that no path leads to.
    pub(super) unreachable: u64,
    /// Inodes that have a name that a path leads to, and were not read.
    pub(super) lost: u64,
}

/// Follows every name that could be read from the root directory down. Takes 16 bytes for each name and 8 for each
/// inode; done only when something is damaged.
pub(super) fn count(image: &Image<'_>, tree: Tree) -> Reach {
    let blocks = AtomicU64::new(0);
    let walked = Walk::quiet(image, tree, &blocks).run(
        |(inodes, names): &mut (Vec<u64>, Vec<(u64, u64)>), block, _, _| {
            block.for_each_item(&image.ctx, |_, item| {
                if item.key.key_type == KeyType::INODE_ITEM {
                    inodes.push(item.key.objectid);
                }
            });
            each_name(image, block, |dir, _, seen| names.extend(seen.inode().map(|ino| (dir, ino))));
        },
    );
    let (mut inodes, mut names) = (FxHashSet::default(), Vec::new());
    for (some, more) in walked.runs {
        inodes.extend(some);
        names.extend(more);
    }
    names.sort_unstable();
    names.dedup();
    let (mut met, mut todo) = (FxHashSet::default(), vec![objectid::FIRST_FREE]);
    while let Some(dir) = todo.pop() {
        if met.insert(dir) {
            let first = names.partition_point(|n| n.0 < dir);
            todo.extend(names[first..].iter().take_while(|n| n.0 == dir).map(|n| n.1));
        }
    }
    let count = |n: usize| n as u64;
    Reach {
        unreachable: count(
            inodes.iter().filter(|ino| objectid::is_inode(**ino) && !met.contains(*ino)).count(),
        ),
        lost: count(met.iter().filter(|ino| !inodes.contains(*ino)).count()),
    }
}
