//! Inodes on their way out, many at a time: in key order, so that whole leaves go.

use std::collections::BTreeMap;

use btrfsimg_ondisk::{
    BackRef, FileExtent, FileType, InodeItem, Key, KeyType, Logical, extref_hash, inode_extrefs, inode_refs,
};

use super::names::{in_item, remove_inode_ref, update_inode};
use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::tree::{lookup, walk_items};
use crate::txn::Transaction;

/// Extents whose references are dropped in one go.
const BATCH: usize = 4096;

/// Inodes of one subvolume whose names go with the directories that hold them.
#[derive(Default)]
pub(super) struct Doomed {
    whole: Vec<u64>,
    /// Inodes with more links than one: the names that go, by directory.
    linked: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
}

/// A data extent and the reference to it that goes.
type Dropped = (Logical, u64, BackRef);

impl Doomed {
    /// Adds an inode whose `name` in the directory `dir` goes.
    ///
    /// # Errors
    /// LK-02 when the inode does not know that name: it may be another one's.
    pub(super) fn add(
        &mut self,
        tx: &Transaction<'_>,
        place: Place,
        inode: &InodeItem,
        dir: u64,
        name: &[u8],
    ) -> Result<()> {
        if !has_name(tx, place, dir, name)? {
            let reason = format!("inode {} has no reference to its name in directory {dir}", place.ino);
            return Err(Error::corrupt("LK-02", reason));
        }
        let is_dir = FileType::from_mode(inode.mode.get()) == Some(FileType::DIR);
        if is_dir || inode.nlink.get() <= 1 {
            self.whole.push(place.ino);
        } else {
            self.linked.entry(place.ino).or_default().push((dir, name.to_vec()));
        }
        Ok(())
    }

    /// Removes every item of the inodes all of whose names go, and takes the names off the others.
    ///
    /// # Errors
    /// `Corrupt`; as any change of a tree.
    pub(super) fn remove(mut self, tx: &mut Transaction<'_>, tree: u64) -> Result<()> {
        for (ino, names) in std::mem::take(&mut self.linked) {
            let place = Place { tree, ino };
            let links = lookup::inode(tx, place)?.nlink.get();
            let kept = u32::try_from(names.len()).ok().and_then(|gone| links.checked_sub(gone));
            let Some(kept) = kept.filter(|kept| *kept > 0) else {
                self.whole.push(ino);
                continue;
            };
            for (dir, name) in names {
                remove_inode_ref(tx, place, dir, &name)?;
            }
            let now = tx.now();
            update_inode(tx, place, |inode| {
                inode.nlink = kept.into();
                inode.ctime = now;
            })?;
        }
        self.whole.sort_unstable();
        self.whole.dedup();
        remove_inodes(tx, tree, &self.whole)?;
        tx.touch_subvolume(tree)
    }
}

fn has_name(tx: &Transaction<'_>, place: Place, dir: u64, name: &[u8]) -> Result<bool> {
    let key = place.key(KeyType::INODE_REF, dir);
    if let Some(data) = lookup(tx, place.tree, &key)?
        && inode_refs(key, &data).map_err(|v| in_item(key, &v))?.iter().any(|r| r.name == name)
    {
        return Ok(true);
    }
    let key = place.key(KeyType::INODE_EXTREF, extref_hash(dir, name));
    let Some(data) = lookup(tx, place.tree, &key)? else { return Ok(false) };
    let refs = inode_extrefs(&data).map_err(|v| in_item(key, &v))?;
    Ok(refs.iter().any(|r| r.parent == dir && r.name == name))
}

/// Removes every item of the inodes, which are in order, and their references to extents.
fn remove_inodes(tx: &mut Transaction<'_>, tree: u64, inos: &[u64]) -> Result<()> {
    let mut next = 0;
    while let Some(&first) = inos.get(next) {
        let from = Key::new(first, KeyType(0), 0);
        let (mut dropped, mut last): (Vec<Dropped>, _) = (Vec::new(), None);
        let mut at = next;
        walk_items(&*tx, tree, &from, &Key::MAX, |item| {
            let ino = item.key.objectid;
            at += inos[at..].partition_point(|i| *i < ino);
            if inos.get(at) != Some(&ino) {
                return Ok(false);
            }
            last = Some(item.key);
            if item.key.key_type == KeyType::EXTENT_DATA {
                let extent = FileExtent::parse(item.data).map_err(|v| in_item(item.key, &v))?;
                if let (Some((at, len)), Some(range)) = (extent.disk_extent(), extent.range()) {
                    let offset = item.key.offset.wrapping_sub(range.offset.get());
                    dropped.push((at, len, BackRef::Data { root: tree, objectid: ino, offset }));
                }
            }
            Ok(dropped.len() < BATCH)
        })?;
        // The leaves first: where one was shared, its extents get the references that are dropped then.
        if let Some(last) = last {
            tx.remove_range(tree, from, last)?;
        }
        for (at, len, back) in dropped {
            tx.change_data_ref(at, len, back, -1)?;
        }
        next = match last {
            // No items from `first` on.
            None if at == next => inos.len(),
            _ => at,
        };
    }
    Ok(())
}
