//! Names in a log (LOG-04): replay puts each into its directory, at the index that it has in the log.

use btrfsimg_ondisk::{BlockContext, DirItems, Key, KeyType, Logical, inode_extrefs, inode_refs, objectid};

use super::finding::{Findings, Place};
use super::image::{Block, Image};
use super::paths;
use super::roots::Root;
use super::usage::Hasher;

/// Names of all logs that are looked up in their subvolumes, each at the cost of a search.
pub(super) const LOOKED_UP: usize = 10_000;

/// The names that a log tree holds.
#[derive(Default)]
pub(super) struct Names {
    list: Vec<Name>,
    /// Inodes of the log.
    inodes: Vec<u64>,
    /// Directories of which the log says what was removed.
    directories: Vec<u64>,
}

/// A name, by what replay goes by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    dir: u64,
    index: u64,
    ino: u64,
    hash: u64,
    /// The item that holds it.
    leaf: Logical,
    slot: usize,
}

impl Names {
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext, hasher: Hasher) {
        block.for_each_item(ctx, |slot, item| {
            let key = item.key;
            let refs = match key.key_type {
                KeyType::INODE_REF => inode_refs(key, item.data),
                KeyType::INODE_EXTREF => inode_extrefs(item.data),
                KeyType::INODE_ITEM => return self.inodes.push(key.objectid),
                KeyType::DIR_LOG_INDEX => return self.directories.push(key.objectid),
                KeyType::DIR_INDEX => {
                    let entries = DirItems::parse(key, item.data, ctx.nodesize);
                    let list = entries.into_iter().flatten().filter(|entry| !entry.is_subvolume());
                    self.list.extend(list.map(|entry| Name {
                        dir: key.objectid,
                        index: key.offset,
                        ino: entry.location.objectid,
                        hash: hasher.name(0, entry.name),
                        leaf: block.logical,
                        slot,
                    }));
                    return;
                }
                _ => return,
            };
            // The root directory's own name is no entry.
            let named = refs.into_iter().flatten().filter(|r| r.parent != key.objectid);
            self.list.extend(named.map(|r| Name {
                dir: r.parent,
                index: r.index,
                ino: key.objectid,
                hash: hasher.name(0, r.name),
                leaf: block.logical,
                slot,
            }));
        });
    }

    pub(super) fn append(&mut self, other: Names) {
        self.list.extend(other.list);
        self.inodes.extend(other.inodes);
        self.directories.extend(other.directories);
    }

    /// LOG-04. `subvolume` is the one that the log is of; at most `searches` names are looked up in it.
    pub(super) fn judge(
        mut self,
        image: &Image<'_>,
        subvolume: Option<&Root>,
        hasher: Hasher,
        searches: &mut usize,
        findings: &mut Findings,
    ) {
        self.list.sort_unstable();
        self.inodes.sort_unstable();
        self.directories.sort_unstable();
        let what = |name: &Name| (name.ino, name.hash);
        let mut fault = |name: &Name, reason: String| {
            let place =
                Place { inode: Some(name.ino), slot: Some(name.slot), ..Place::tree(objectid::TREE_LOG) };
            findings.add("LOG-04", Place { logical: Some(name.leaf), leaf: Some(true), ..place }, reason);
        };
        for name in self.list.iter().filter(|name| name.index < 2) {
            let reason = format!(
                "index of a logged name in directory {}, have {} expect from 2",
                name.dir, name.index
            );
            fault(name, reason);
        }
        for pair in self.list.windows(2) {
            if (pair[0].dir, pair[0].index) == (pair[1].dir, pair[1].index)
                && what(&pair[0]) != what(&pair[1])
            {
                let Name { dir, index, .. } = pair[1];
                fault(&pair[1], format!("two logged names at index {index} of directory {dir}"));
            }
        }
        let Some(tree) = subvolume.map(Root::tree) else { return };
        // What the log says to be removed, or moves, leaves its index before. A subvolume is in no log: its number is none of
        // an inode.
        let is_inode = |to: Key| to.key_type == KeyType::INODE_ITEM;
        let stays = |to: Key| !is_inode(to) || self.inodes.binary_search(&to.objectid).is_err();
        let names = self.list.iter().filter(|name| self.directories.binary_search(&name.dir).is_err());
        for name in names {
            let Some(left) = searches.checked_sub(1) else { return };
            *searches = left;
            let found = paths::entry_at(image, tree, name.dir, name.index);
            if let Some((to, there)) = found.filter(|(to, _)| stays(*to))
                && (!is_inode(to) || (to.objectid, hasher.name(0, &there)) != what(name))
            {
                let reason = format!(
                    "index {} of directory {} is that of '{}' already",
                    name.index,
                    name.dir,
                    there.escape_ascii()
                );
                fault(name, reason);
            }
        }
    }
}
