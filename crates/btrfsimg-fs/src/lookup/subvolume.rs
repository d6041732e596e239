//! Subvolumes: which there are, and where.

use std::collections::HashSet;

use btrfsimg_ondisk::{Key, KeyType, RootItem, RootRefHead, inode_refs, objectid, root_flags};
use zerocopy::FromBytes;

use super::{Items, Place, find_entry, root_item};
use crate::error::{Error, Result};

/// The ROOT_ITEM of the subvolume `tree` and its key. `None` where there is none, or one that is being deleted.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn subvolume(items: &impl Items, tree: u64) -> Result<Option<(Key, RootItem)>> {
    if !objectid::is_fs_tree(tree) {
        return Ok(None);
    }
    Ok(root_item(items, tree)?.filter(|(_, item)| item.refs.get() != 0))
}

/// Whether the subvolume `tree` is read-only (the property `ro`).
///
/// # Errors
/// `NotFound` when there is no such subvolume; `Corrupt`, `Io`.
pub fn subvolume_is_readonly(items: &impl Items, tree: u64) -> Result<bool> {
    let (_, item) = root_item(items, tree)?.ok_or_else(|| Error::NotFound(format!("subvolume {tree}")))?;
    Ok(item.flags.get() & root_flags::RDONLY != 0)
}

/// The subvolume that is mounted when none is named: 5 when none was set.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn default_subvolume(items: &impl Items) -> Result<u64> {
    let dir = Place { tree: objectid::ROOT_TREE, ino: objectid::ROOT_TREE_DIR };
    let entry = find_entry(items, dir, b"default")?;
    Ok(entry.map_or(objectid::FS_TREE, |e| e.location.objectid))
}

/// A subvolume, and where it is.
#[derive(Clone, Debug)]
pub struct Subvolume {
    /// The tree's id.
    pub id: u64,
    /// Its ROOT_ITEM's key; the offset of a snapshot's is not 0.
    pub key: Key,
    /// Its ROOT_ITEM.
    pub item: RootItem,
    /// The directory that holds its entry, and the name there. The top-level subvolume has none.
    pub link: Option<(Place, Vec<u8>)>,
}

impl Subvolume {
    /// Whether it was made as a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.key.offset != 0
    }

    /// Whether it has the property `ro`.
    pub fn is_readonly(&self) -> bool {
        self.item.flags.get() & root_flags::RDONLY != 0
    }
}

/// All subvolumes by id, the top-level one (5) first; those that are being deleted too (`refs` is 0).
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn subvolumes(items: &impl Items) -> Result<Vec<Subvolume>> {
    let mut found: Vec<Subvolume> = Vec::new();
    let from = Key::new(objectid::FS_TREE, KeyType::ROOT_ITEM, 0);
    let to = Key::new(objectid::LAST_FREE, KeyType(u8::MAX), u64::MAX);
    items.walk(objectid::ROOT_TREE, &from, &to, &mut |item| {
        let item = item?;
        let id = item.key.objectid;
        match item.key.key_type {
            KeyType::ROOT_ITEM if objectid::is_fs_tree(id) => {
                let parsed = RootItem::parse(item.data).ok_or_else(|| {
                    Error::corrupt("ROOT-02", format!("root item {} has an invalid size", item.key))
                })?;
                // As in a lookup, the last one counts.
                found.pop_if(|last| last.id == id);
                found.push(Subvolume { id, key: item.key, item: parsed, link: None });
            }
            KeyType::ROOT_BACKREF => {
                if let Some(last) = found.last_mut().filter(|last| last.id == id) {
                    last.link = link(item.key.offset, item.data);
                }
            }
            _ => {}
        }
        Ok(true)
    })?;
    Ok(found)
}

/// Where the subvolume `tree` is: the directory that holds its entry, and the name there.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn subvolume_link(items: &impl Items, tree: u64) -> Result<Option<(Place, Vec<u8>)>> {
    let root = Place { tree: objectid::ROOT_TREE, ino: tree };
    let (from, to) = root.keys(KeyType::ROOT_BACKREF);
    let last = items.last(objectid::ROOT_TREE, &from, &to)?;
    Ok(last.and_then(|(key, data)| link(key.offset, &data)))
}

fn link(parent: u64, data: &[u8]) -> Option<(Place, Vec<u8>)> {
    let (head, rest) = RootRefHead::read_from_prefix(data).ok()?;
    let name = rest.get(..usize::from(head.name_len.get()))?;
    Some((Place { tree: parent, ino: head.dirid.get() }, name.to_vec()))
}

/// The path from the top-level subvolume to the root directory of `tree`, without a slash in front.
///
/// # Errors
/// `NotFound` for a subvolume that has no place in it; LK-08 for directories that hold each other; `Corrupt`, `Io`.
pub fn subvolume_path(items: &impl Items, tree: u64) -> Result<Vec<u8>> {
    let mut seen = HashSet::new();
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = Place::root(tree);
    while at != Place::TOP {
        if !seen.insert(at) {
            let reason = format!("root={} inode {}: a directory loop", at.tree, at.ino);
            return Err(Error::corrupt("LK-08", reason));
        }
        let above = match at == Place::root(at.tree) {
            true => subvolume_link(items, at.tree)?,
            false => directory_link(items, at)?,
        };
        let (dir, name) = above.ok_or_else(|| Error::NotFound(format!("subvolume {tree}")))?;
        names.push(name);
        at = dir;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

/// The directory that holds the directory `place`, and its name there.
fn directory_link(items: &impl Items, place: Place) -> Result<Option<(Place, Vec<u8>)>> {
    let (from, to) = place.keys(KeyType::INODE_REF);
    let Some((key, data)) = items.last(place.tree, &from, &to)? else { return Ok(None) };
    let refs = inode_refs(key, &data).map_err(|v| super::dir::in_tree(place, &v))?;
    Ok(refs.first().map(|r| (Place { tree: place.tree, ino: r.parent }, r.name.to_vec())))
}

/// Ids of the subvolumes that are deleted, but of whose contents some are still there.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn deleted_subvolumes(items: &impl Items) -> Result<Vec<u64>> {
    let orphans = Place { tree: objectid::ROOT_TREE, ino: objectid::ORPHAN };
    let (from, to) = orphans.keys(KeyType::ORPHAN_ITEM);
    let mut ids = Vec::new();
    items.walk(objectid::ROOT_TREE, &from, &to, &mut |item| {
        ids.push(item?.key.offset);
        Ok(true)
    })?;
    let mut deleted = Vec::new();
    for id in ids.into_iter().filter(|id| objectid::is_fs_tree(*id)) {
        if root_item(items, id)?.is_some_and(|(_, item)| item.refs.get() == 0) {
            deleted.push(id);
        }
    }
    Ok(deleted)
}
