//! Salvage: what no name leads to any more.

use std::collections::{BTreeSet, HashMap};

use btrfsimg_ondisk::{InodeItem, Key, KeyType, NAME_LEN_MAX, inode_extrefs, inode_refs, objectid};

use super::dirs::Dir;
use super::paths::PathNode;
use super::walk::Walker;
use super::{Report, Shared};
use crate::error::Result;
use crate::lookup::{Items as _, Place, check_name, root_item};
use crate::read::Info;

/// Where it goes, below the target.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// An inode without a name that leads to it.
struct Lost {
    info: Info,
    /// What its own list of names says: the directory's inode, and its name there.
    own: Option<(u64, Vec<u8>)>,
}

impl Lost {
    /// Its name in `lost+found`: subvolume, inode, and its own name where that can be a part of one.
    fn name(&self) -> Vec<u8> {
        let Place { tree, ino } = self.info.place;
        let mut name = format!("{tree}-{ino}").into_bytes();
        if let Some((_, own)) = &self.own
            && check_name(own).is_ok()
            && name.len() + 1 + own.len() <= NAME_LEN_MAX
        {
            name.push(b'-');
            name.extend_from_slice(own);
        }
        name
    }
}

impl Walker<'_> {
    /// Copies every inode of the subvolumes that were walked, and every subvolume, that was not met on the way, to
    /// `lost+found`; what is below a lost directory goes along with it.
    pub(super) fn salvage_lost(&mut self, top: Place) -> Result<()> {
        let mut trees: BTreeSet<u64> =
            self.visited.iter().filter(|p| **p == Place::root(p.tree)).map(|p| p.tree).collect();
        trees.insert(top.tree);
        if top == Place::TOP {
            trees.extend(subvolumes(self.shared));
        }
        let mut into = None;
        for tree in trees {
            let mut lost = self.lost_inodes(tree);
            let parents: HashMap<u64, u64> = lost
                .iter()
                .filter(|l| l.info.is_dir())
                .map(|l| (l.info.place.ino, l.own.as_ref().map_or(0, |(parent, _)| *parent)))
                .collect();
            // Directories before files, and those first whose own directory is not lost.
            lost.sort_by_key(|l| {
                let is_top = !parents.contains_key(&l.own.as_ref().map_or(0, |(parent, _)| *parent));
                (!l.info.is_dir(), !is_top, l.info.place.ino)
            });
            for found in lost {
                if !self.has_met(found.info.place) {
                    self.copy_lost(&mut into, &found)?;
                }
            }
        }
        if let Some(dir) = into {
            dir.release(self.shared);
        }
        Ok(())
    }

    fn copy_lost(&mut self, into: &mut Option<Dir>, lost: &Lost) -> Result<()> {
        let dir = match into {
            Some(dir) => dir.share(),
            None => {
                let item = InodeItem { mode: 0o040_700.into(), nlink: 1.into(), ..InodeItem::zeroed() };
                let info = Info { place: Place::empty_dir(lost.info.place.tree), item };
                let node = PathNode::below(&self.top, LOST_AND_FOUND);
                into.insert(Dir::make(self.target_fd(), LOST_AND_FOUND, info, node)?).share()
            }
        };
        let name = lost.name();
        let path = dir.state.node.path_of(&name);
        (self.shared.report)(Report::Nameless { path: &path, place: lost.info.place });
        self.shared.count_damaged();
        let copied = self.put(&dir, &name, lost.info);
        dir.release(self.shared);
        if let Err(e) = copied {
            self.shared.fail(&path, e);
        }
        self.run_stack();
        Ok(())
    }

    /// The inodes of `tree` with names left that were not met.
    fn lost_inodes(&self, tree: u64) -> Vec<Lost> {
        let mut lost = Vec::new();
        // A tree whose root cannot be read was reported when the walk came to it.
        let _ = self.shared.fs.inodes(tree, |info| {
            if info.item.nlink.get() > 0 && !self.has_met(info.place) {
                lost.push(Lost { info, own: own_name(self.shared, info.place) });
            }
            Ok(true)
        });
        lost
    }
}

/// The first name in an inode's own list that can be read, and the inode of the directory that it is in.
fn own_name(shared: &Shared<'_>, place: Place) -> Option<(u64, Vec<u8>)> {
    let mut found = None;
    let (from, to) = (place.key(KeyType::INODE_REF, 0), place.key(KeyType::INODE_EXTREF, u64::MAX));
    let walked = shared.fs.walk(place.tree, &from, &to, &mut |item| {
        let Ok(item) = item else { return Ok(true) };
        let refs = match item.key.key_type {
            KeyType::INODE_REF => inode_refs(item.key, item.data),
            KeyType::INODE_EXTREF => inode_extrefs(item.data),
            _ => return Ok(true),
        };
        found = refs.ok().and_then(|refs| refs.first().map(|r| (r.parent, r.name.to_vec())));
        Ok(found.is_none())
    });
    walked.ok().and(found)
}

/// The subvolumes that are not being deleted.
fn subvolumes(shared: &Shared<'_>) -> Vec<u64> {
    let mut ids = Vec::new();
    let from = Key::new(objectid::FIRST_FREE, KeyType::ROOT_ITEM, 0);
    let to = Key::new(objectid::LAST_FREE, KeyType::ROOT_ITEM, u64::MAX);
    // Of a root tree that is broken, those that can be read.
    let _ = shared.fs.walk(objectid::ROOT_TREE, &from, &to, &mut |item| {
        ids.extend(item.ok().filter(|i| i.key.key_type == KeyType::ROOT_ITEM).map(|i| i.key.objectid));
        Ok(true)
    });
    ids.retain(|&id| matches!(root_item(shared.fs, id), Ok(Some((_, item))) if item.refs.get() > 0));
    ids
}
