//! Salvage: what no name leads to any more.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::AsFd as _;

use btrfsimg_ondisk::{FileType, InodeItem, Key, KeyType, NAME_LEN_MAX, inode_extrefs, inode_refs, objectid};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::dirs::Dir;
use super::links::open_node;
use super::paths::PathNode;
use super::walk::Walker;
use super::{Report, Shared};
use crate::error::Result;
use crate::lookup::{self, Items as _, Place, check_name, root_item};
use crate::read::Info;

/// Where goes what has no place of its own, below the target.
const LOST_AND_FOUND: &str = "lost+found";
/// Levels below the target down to which a lost inode goes back to its directory. Each step down is opened again for
/// each of them, so a hostile tree must not be as deep as it likes.
const LEVELS_MAX: usize = 256;

/// An inode without a name that leads to it.
struct Lost {
    info: Info,
    /// What its own list of names says: the directory's inode, and its name there.
    own: Vec<(u64, Vec<u8>)>,
}

impl Lost {
    /// Its name in `lost+found`: subvolume, inode, and its own name where that can be a part of one.
    fn name(&self) -> Vec<u8> {
        let Place { tree, ino } = self.info.place;
        let mut name = format!("{tree}-{ino}").into_bytes();
        if let Some((_, own)) = self.own.first()
            && check_name(own).is_ok()
            && name.len() + 1 + own.len() <= NAME_LEN_MAX
        {
            name.push(b'-');
            name.extend_from_slice(own);
        }
        name
    }

    fn parent(&self) -> Option<u64> {
        self.own.first().map(|(parent, _)| *parent)
    }
}

/// Where lost inodes go.
#[derive(Default)]
struct Homes {
    lost_and_found: Option<Dir>,
    /// The names in those directories to which something goes back.
    names: HashMap<Place, HashSet<Vec<u8>>>,
}

impl Walker<'_> {
    /// Copies every inode of the subvolumes that were walked, and every subvolume, that was not met on the way: into
    /// the directory and to the name that the inode itself says it has, where that directory was copied and the name
    /// is free in it; else to `lost+found`. What is below a lost directory goes along with it.
    pub(super) fn salvage_lost(&mut self, top: Place) -> Result<()> {
        let mut trees: BTreeSet<u64> =
            self.visited.iter().filter(|p| **p == Place::root(p.tree)).map(|p| p.tree).collect();
        trees.insert(top.tree);
        if top == Place::TOP {
            trees.extend(subvolumes(self.shared));
        }
        let mut homes = Homes::default();
        for tree in trees {
            let lost = self.lost_inodes(tree);
            let dirs: HashMap<u64, &Lost> =
                lost.iter().filter(|l| l.info.is_dir()).map(|l| (l.info.place.ino, l)).collect();
            let (first, last): (Vec<_>, Vec<_>) = lost.iter().partition(|l| l.info.is_dir());
            for found in first.into_iter().chain(last) {
                for next in self.with_those_above(found, &dirs) {
                    if !self.has_met(next.info.place) {
                        self.copy_lost(&mut homes, next)?;
                    }
                }
            }
        }
        if let Some(dir) = homes.lost_and_found {
            dir.release(self.shared);
        }
        Ok(())
    }

    /// A lost inode after the lost directories that it is in, the uppermost first.
    fn with_those_above<'l>(&self, lost: &'l Lost, dirs: &HashMap<u64, &'l Lost>) -> Vec<&'l Lost> {
        let (mut chain, mut seen) = (vec![lost], HashSet::from([lost.info.place.ino]));
        let mut at = lost;
        while let Some(above) = at.parent().and_then(|parent| dirs.get(&parent)).copied() {
            if self.has_met(above.info.place) || !seen.insert(above.info.place.ino) {
                break;
            }
            chain.push(above);
            at = above;
        }
        chain.reverse();
        chain
    }

    fn copy_lost(&mut self, homes: &mut Homes, lost: &Lost) -> Result<()> {
        let mut is_home = false;
        for (parent, name) in &lost.own {
            // A directory has one place.
            if is_home && lost.info.is_dir() {
                break;
            }
            let parent = Place { ino: *parent, ..lost.info.place };
            if let Some(dir) = self.home(homes, parent, name) {
                self.put_lost(&dir, name, lost, true);
                dir.release(self.shared);
                is_home = true;
            }
        }
        if !is_home {
            let dir = self.lost_and_found(homes, lost.info.place.tree)?;
            self.put_lost(&dir, &lost.name(), lost, false);
            dir.release(self.shared);
        }
        Ok(())
    }

    /// Puts a lost inode to `name` in `dir`, with what is below it.
    fn put_lost(&mut self, dir: &Dir, name: &[u8], lost: &Lost, is_home: bool) {
        let path = dir.state.node.path_of(name);
        (self.shared.report)(Report::Nameless { path: &path, place: lost.info.place, is_home });
        self.shared.count_damaged();
        if let Err(e) = self.put(dir, name, lost.info) {
            self.shared.fail(&path, e);
        }
        self.run_stack();
    }

    /// The copy of the directory `parent`, if there is one in which `name` is free; the name is then taken.
    fn home(&self, homes: &mut Homes, parent: Place, name: &[u8]) -> Option<Dir> {
        check_name(name).ok()?;
        let node = self.nodes.get(&parent).filter(|node| !node.is_below(LEVELS_MAX))?;
        let names = homes.names.entry(parent).or_insert_with(|| names_in(self.shared, parent));
        if names.contains(name) {
            return None;
        }
        let fd = open_node(self.top_fd(), node).ok()?;
        let there = rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW);
        if !matches!(there, Err(Errno::NOENT)) {
            return None;
        }
        let info = self.shared.fs.salvage_info(parent, FileType::DIR).info;
        let dir = Dir::again(fd, info, node.clone()).ok()?;
        names.insert(name.to_vec());
        Some(dir)
    }

    /// The directory for what has no home, made when it is first needed, under a name that nothing has.
    fn lost_and_found(&self, homes: &mut Homes, tree: u64) -> Result<Dir> {
        if let Some(dir) = &homes.lost_and_found {
            return Ok(dir.share());
        }
        let taken = self.top_place.map(|top| names_in(self.shared, top)).unwrap_or_default();
        let mut name = LOST_AND_FOUND.to_owned();
        let mut number = 1_u64;
        while taken.contains(name.as_bytes()) {
            number += 1;
            name = format!("{LOST_AND_FOUND}-{number}");
        }
        let item = InodeItem { mode: 0o040_700.into(), nlink: 1.into(), ..InodeItem::zeroed() };
        let info = Info { place: Place::empty_dir(tree), item };
        let node = PathNode::below(&self.node, name.as_bytes());
        let dir =
            Dir::make(&self.shared.options.preserve, self.top_fd().as_fd(), name.as_bytes(), info, node)?;
        Ok(homes.lost_and_found.insert(dir).share())
    }

    /// The inodes of `tree` with names left that were not met.
    fn lost_inodes(&self, tree: u64) -> Vec<Lost> {
        let mut lost = Vec::new();
        // A tree whose root cannot be read was reported when the walk came to it.
        let _ = self.shared.fs.inodes(tree, |info| {
            if info.item.nlink.get() > 0 && !self.has_met(info.place) {
                lost.push(Lost { info, own: own_names(self.shared, info.place) });
            }
            Ok(true)
        });
        lost
    }
}

/// Every name in `dir` that can be read, in either place; faults in it were reported when it was walked.
fn names_in(shared: &Shared<'_>, dir: Place) -> HashSet<Vec<u8>> {
    let mut names = HashSet::new();
    let _ = lookup::entries(shared.fs, dir, |entry| {
        names.extend(entry.map(|(_, e)| e.name.to_vec()));
        Ok(true)
    });
    let _ = lookup::entries_by_hash(shared.fs, dir, |entry| {
        names.extend(entry.map(|e| e.name.to_vec()));
        Ok(true)
    });
    names
}

/// The names in an inode's own list that can be read, each with the inode of the directory that it is in.
fn own_names(shared: &Shared<'_>, place: Place) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    let (from, to) = (place.key(KeyType::INODE_REF, 0), place.key(KeyType::INODE_EXTREF, u64::MAX));
    // What cannot be read is left out.
    let _ = shared.fs.walk(place.tree, &from, &to, &mut |item| {
        let Ok(item) = item else { return Ok(true) };
        let refs = match item.key.key_type {
            KeyType::INODE_REF => inode_refs(item.key, item.data),
            KeyType::INODE_EXTREF => inode_extrefs(item.data),
            _ => return Ok(true),
        };
        found.extend(refs.into_iter().flatten().map(|r| (r.parent, r.name.to_vec())));
        Ok(true)
    });
    found
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
