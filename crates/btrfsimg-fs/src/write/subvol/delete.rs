//! Deleting subvolumes (`format/08 §8.9`).
//!
//! The entry and all that is said of the subvolume goes at once, as in the kernel. What it holds is dropped with it
//! where that is little; else the rest stays, marked as the kernel marks it, and goes in further transactions: ours,
//! or those of the next kernel that mounts the image.

use std::collections::HashSet;

use btrfsimg_ondisk::{Key, KeyType, RootRefHead, Timespec, objectid, root_flags};
use zerocopy::FromBytes as _;

use super::{links, uuids};
use crate::error::{Error, Result};
use crate::lookup::{self, Place, default_subvolume, find_entry, subvolume_path, target};
use crate::tree::{Cursor, walk_items};
use crate::txn::{Transaction, TreeDrop, Volume};
use crate::write::names::{check_changeable, check_immutable, remove_entry};

/// Extents whose references change in one transaction of a drop, about: a bound of its memory and of what it needs of
/// the free space.
pub const DROP_STEP: usize = 32 << 10;
/// The same for each subvolume in the transaction that deletes, which may hold other changes.
const DROP_AT_ONCE: usize = 2 << 10;

/// A subvolume whose name is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deleted {
    /// Its id.
    pub tree: u64,
    /// Whether all that it held is gone too.
    pub finished: bool,
}

/// How subvolumes are deleted.
pub struct DeleteOptions<'o> {
    /// What the subvolume is called in errors.
    pub shown: &'o str,
    /// Those inside it go first, the innermost before the others; else they are a reason to refuse.
    pub recursive: bool,
    /// How many of them are dropped in this transaction, where each holds little; the others only lose their names.
    pub drop_at_once: usize,
    /// Told of each that is deleted.
    pub deleted: &'o mut dyn FnMut(&str),
}

/// Deletes the subvolume `name` of `dir`, and drops what it holds where that is little. Where `finished` is not set, the
/// rest is for [`drop_deleted`], once this is committed.
///
/// # Errors
/// As [`begin_delete`].
pub fn delete(tx: &mut Transaction<'_>, dir: Place, name: &[u8]) -> Result<Deleted> {
    delete_one(tx, dir, name, &String::from_utf8_lossy(name))
}

/// The same by options. What is not dropped at once is for [`drop_deleted`].
///
/// # Errors
/// As [`begin_delete`], for each: the kernel deletes one after the other, and judges each by itself. The caller drops the
/// transaction then, so that nothing is deleted.
pub fn delete_with(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    options: &mut DeleteOptions<'_>,
) -> Result<()> {
    let mut stack = vec![(dir, name.to_vec(), options.shown.to_owned())];
    // Subvolumes that hold each other never end: the second time one is met, it is not empty.
    let mut opened = HashSet::new();
    let mut dropped = 0;
    while let Some((dir, name, shown)) = stack.last().cloned() {
        if options.recursive {
            let tree = subvolume_named(tx, dir, &name, &shown)?;
            if opened.insert(tree) {
                stack.extend(subvolumes_in(tx, tree, &shown)?);
                continue;
            }
        }
        if dropped < options.drop_at_once {
            delete_one(tx, dir, &name, &shown)?;
            dropped += 1;
        } else {
            begin(tx, dir, &name, &shown)?;
        }
        (options.deleted)(&shown);
        stack.pop();
    }
    Ok(())
}

fn delete_one(tx: &mut Transaction<'_>, dir: Place, name: &[u8], shown: &str) -> Result<Deleted> {
    let tree = begin(tx, dir, name, shown)?;
    let finished = finish(tx, &mut TreeDrop::new(tree), DROP_AT_ONCE)?;
    Ok(Deleted { tree, finished })
}

/// Deletes the subvolume `name` of `dir`, but drops nothing of what it holds. Says its id.
///
/// # Errors
/// `Invalid` when it is no subvolume; `ReadOnly` where names may not be taken out of `dir`, for the default subvolume and
/// one whose root directory is immutable or append-only; `NotEmpty` when there are subvolumes in it; as any change of a
/// tree.
pub fn begin_delete(tx: &mut Transaction<'_>, dir: Place, name: &[u8]) -> Result<u64> {
    begin(tx, dir, name, &String::from_utf8_lossy(name))
}

fn begin(tx: &mut Transaction<'_>, dir: Place, name: &[u8], shown: &str) -> Result<u64> {
    check_changeable(tx, dir, shown, true)?;
    let tree = subvolume_named(tx, dir, name, shown)?;
    check_deletable(tx, tree, shown)?;
    tx.with_reserve(|tx| {
        let index = links::remove(tx, tree, dir.tree)?;
        remove_entry(tx, dir, name, index)?;
        mark_dead(tx, tree)
    })?;
    Ok(tree)
}

/// The id of the subvolume `name` of `dir`.
fn subvolume_named(tx: &Transaction<'_>, dir: Place, name: &[u8], shown: &str) -> Result<u64> {
    let entry = find_entry(tx, dir, name)?.ok_or_else(|| Error::NotFound(shown.to_owned()))?;
    let place = target(tx, dir, name, entry.location)?;
    if !entry.is_subvolume() || place.is_empty_dir() {
        return Err(Error::Invalid(format!("{shown}: not a subvolume")));
    }
    Ok(place.tree)
}

/// Directory, name and path below `shown` of each subvolume that is right in `tree`.
fn subvolumes_in(tx: &Transaction<'_>, tree: u64, shown: &str) -> Result<Vec<(Place, Vec<u8>, String)>> {
    let mut found = Vec::new();
    let (from, to) = Place { tree: objectid::ROOT_TREE, ino: tree }.keys(KeyType::ROOT_REF);
    walk_items(tx, objectid::ROOT_TREE, &from, &to, |item| {
        let (head, rest) = RootRefHead::read_from_prefix(item.data)
            .map_err(|_| Error::corrupt("ROOT-10", format!("root ref {} is too short", item.key)))?;
        let name = rest.get(..usize::from(head.name_len.get())).unwrap_or(rest);
        found.push((item.key.offset, Place { tree, ino: head.dirid.get() }, name.to_vec()));
        Ok(true)
    })?;
    let above = subvolume_path(tx, tree)?.len();
    let named = found.into_iter().map(|(id, dir, name)| {
        let path = subvolume_path(tx, id)?;
        let below = String::from_utf8_lossy(path.get(above..).unwrap_or(&path));
        let (above, below) = (shown.trim_end_matches('/'), below.trim_start_matches('/'));
        Ok((dir, name, format!("{above}/{below}")))
    });
    named.collect()
}

/// Drops a part of a subvolume that is deleted, and says whether it was the rest. See [`TreeDrop::step`].
///
/// # Errors
/// As [`TreeDrop::step`].
pub fn finish(tx: &mut Transaction<'_>, drop: &mut TreeDrop, limit: usize) -> Result<bool> {
    tx.with_reserve(|tx| {
        let finished = drop.step(tx, limit)?;
        if finished {
            let orphan = Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, drop.tree());
            tx.remove(objectid::ROOT_TREE, orphan)?;
        }
        Ok(finished)
    })
}

/// Drops all that is left of deleted subvolumes, those that others deleted too, in as many transactions as it takes.
/// Says how many there were.
///
/// # Errors
/// `Interrupted` when `stop` says so between two transactions; what is left then is for the next call, or the next
/// kernel. As any change of a tree.
pub fn drop_deleted(volume: &mut Volume, now: Timespec, stop: &mut dyn FnMut() -> bool) -> Result<usize> {
    let deleted = lookup::deleted_subvolumes(volume.store())?;
    for &tree in &deleted {
        let (mut drop, mut limit) = (TreeDrop::new(tree), DROP_STEP);
        loop {
            if stop() {
                return Err(Error::Interrupted);
            }
            let mut tx = volume.begin(now)?;
            let step = finish(&mut tx, &mut drop, limit);
            match step.and_then(|finished| tx.commit().map(|()| finished)) {
                Ok(true) => break,
                Ok(false) => {}
                // What a step frees is there after it: smaller ones need less before.
                Err(Error::NoSpace { .. }) if limit > 1 => {
                    (drop, limit) = (TreeDrop::new(tree), limit / 8);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(deleted.len())
}

fn check_deletable(tx: &Transaction<'_>, tree: u64, shown: &str) -> Result<()> {
    if default_subvolume(tx)? == tree {
        let fix = "set another one with 'btrfsimg subvol set-default'";
        return Err(Error::ReadOnly(format!(
            "{shown}: operation not permitted: it is the default subvolume; {fix}"
        )));
    }
    let first = Key::new(tree, KeyType::ROOT_REF, 0);
    let inside = Cursor::at_or_after(tx, objectid::ROOT_TREE, &first)?.map(|cursor| cursor.key());
    if inside.is_some_and(|key| (key.objectid, key.key_type) == (tree, KeyType::ROOT_REF)) {
        return Err(Error::NotEmpty(format!("{shown}: there are subvolumes in it")));
    }
    let root = lookup::inode(tx, Place::root(tree))?;
    check_immutable(&root, shown, true)
}

fn mark_dead(tx: &mut Transaction<'_>, tree: u64) -> Result<()> {
    let Some(item) = tx.root_item_mut(tree)? else {
        return Err(Error::NotFound(format!("subvolume {tree}")));
    };
    item.refs = 0.into();
    item.flags = (item.flags.get() | root_flags::DEAD).into();
    (item.drop_progress, item.drop_level) = (Key::MIN.into(), 0);
    let (uuid, received) = (item.uuid, item.received_uuid);
    // Who looks it up later in this transaction sees that it is gone.
    tx.store_root_item(tree)?;
    uuids::remove(tx, KeyType::UUID_SUBVOL, uuid, tree)?;
    uuids::remove(tx, KeyType::UUID_RECEIVED_SUBVOL, received, tree)?;
    tx.insert(objectid::ROOT_TREE, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, tree), &[])
}

/// Removes the entry `name` of `dir` that stands for a subvolume which is not there: in a snapshot, where another
/// subvolume was inside.
///
/// # Errors
/// `Invalid` when it is none; as any change of a tree.
pub fn remove_stand_in(tx: &mut Transaction<'_>, dir: Place, name: &[u8]) -> Result<()> {
    let shown = String::from_utf8_lossy(name).into_owned();
    let entry = find_entry(tx, dir, name)?.ok_or_else(|| Error::NotFound(shown.clone()))?;
    if !entry.is_subvolume() || !target(tx, dir, name, entry.location)?.is_empty_dir() {
        return Err(Error::Invalid(format!("{shown}: no stand-in for a subvolume")));
    }
    let mut index = None;
    lookup::entries(tx, dir, |found| {
        let (at, found) = found?;
        if found.name == name {
            index = Some(at);
        }
        Ok(index.is_none())
    })?;
    let index = index.ok_or_else(|| Error::corrupt("LK-03", format!("{shown}: its entry has no index")))?;
    tx.with_reserve(|tx| remove_entry(tx, dir, name, index))
}
