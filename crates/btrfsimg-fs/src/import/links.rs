//! Files of the source with several names, and what those became in the image.

use std::collections::HashMap;

use btrfsimg_ondisk::{FileType, LINK_MAX};

use super::host::Stat;
use crate::lookup::Place;

/// What tells inodes of the host apart: device (major, minor) and inode.
type HostInode = ((u32, u32), u64);

/// The copies of inodes with several names, so that the names that come later become names of them: for one command,
/// whatever it copies to.
#[derive(Debug, Default)]
pub struct Links {
    /// By subvolume and source: inode, and how many names it has in the image.
    copies: HashMap<(u64, HostInode), (u64, u32)>,
}

impl Links {
    /// Notes that an entry of the host is `copy`, which has `nlink` names.
    pub(super) fn note(&mut self, stat: &Stat, copy: Place, nlink: u32) {
        if has_links(stat) {
            self.copies.insert((copy.tree, (stat.device, stat.ino)), (copy.ino, nlink));
        }
    }

    /// The inode of `tree` that an entry is another name of, which it gets.
    pub(super) fn take(&mut self, stat: &Stat, tree: u64) -> Option<Result<u64, String>> {
        if !has_links(stat) {
            return None;
        }
        let (ino, names) = self.copies.get_mut(&(tree, (stat.device, stat.ino)))?;
        if *names >= LINK_MAX {
            return Some(Err(format!("too many hard links, at most {LINK_MAX}")));
        }
        *names += 1;
        Some(Ok(*ino))
    }

    /// Forgets inodes that are no more.
    pub(super) fn forget(&mut self, is_gone: impl Fn(Place) -> bool) {
        self.copies.retain(|(tree, _), (ino, _)| !is_gone(Place { tree: *tree, ino: *ino }));
    }
}

/// Whether other names of an entry may be met.
fn has_links(stat: &Stat) -> bool {
    stat.nlink > 1 && stat.attributes.file_type() != FileType::DIR
}
