//! Names in directories: the three places where each stands, kept equal (`format/08 §8.7`).

use btrfsimg_ondisk::{
    DIR_ITEM_HEAD_LEN, DirItems, FileType, InodeItem, InodeRef, Key, KeyType, LINK_MAX, extref_hash,
    incompat, inode_extrefs, inode_flags, inode_refs, max_item_size, name_hash, write_dir_entry,
    write_inode_extref, write_inode_ref,
};
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::lookup::{self, Place, check_name, find_entry, next_dir_index};
use crate::tree::lookup as lookup_item;
use crate::txn::Transaction;

/// Changes an inode's item, and marks it as changed in this transaction.
///
/// # Errors
/// LK-09 when there is none; as any change of a tree.
pub fn update_inode(
    tx: &mut Transaction<'_>,
    place: Place,
    change: impl FnOnce(&mut InodeItem),
) -> Result<()> {
    let mut inode = lookup::inode(tx, place)?;
    change(&mut inode);
    inode.transid = tx.transid().into();
    inode.sequence = inode.sequence.get().wrapping_add(1).into();
    tx.replace(place.tree, place.key(KeyType::INODE_ITEM, 0), inode.as_bytes())?;
    tx.touch_subvolume(place.tree)
}

/// Refuses to change what may not be changed: in a read-only subvolume, or an immutable inode; with `removing`, an
/// append-only one as well.
///
/// # Errors
/// `ReadOnly` with the way out.
pub fn check_changeable(
    tx: &Transaction<'_>,
    place: Place,
    shown: &str,
    removing: bool,
) -> Result<InodeItem> {
    let inode = check_subvolume(tx, place, shown)?;
    check_immutable(&inode, shown, removing)?;
    if inode.flags.get() & inode_flags::RO_VERITY != 0 {
        return Err(Error::ReadOnly(format!("{shown}: operation not permitted: the inode has fs-verity")));
    }
    Ok(inode)
}

/// As [`check_changeable`], where names or attributes change and contents do not: fs-verity does not protect those,
/// append-only does.
///
/// # Errors
/// `ReadOnly` with the way out.
pub fn check_attributes(tx: &Transaction<'_>, place: Place, shown: &str) -> Result<InodeItem> {
    let inode = check_subvolume(tx, place, shown)?;
    check_immutable(&inode, shown, true)?;
    Ok(inode)
}

/// As [`check_attributes`], where only times become now: append-only does not forbid that.
pub(super) fn check_times(tx: &Transaction<'_>, place: Place, shown: &str) -> Result<()> {
    let inode = check_subvolume(tx, place, shown)?;
    check_immutable(&inode, shown, false)
}

/// The part of [`check_changeable`] that is about where the inode is.
pub(super) fn check_subvolume(tx: &Transaction<'_>, place: Place, shown: &str) -> Result<InodeItem> {
    if place.is_empty_dir() {
        return Err(Error::ReadOnly(format!(
            "{shown}: operation not permitted: an empty stand-in for a subvolume that is not in this snapshot"
        )));
    }
    if lookup::subvolume_is_readonly(tx, place.tree)? {
        let fix = "(clear it with 'btrfsimg prop set … ro false')";
        return Err(Error::ReadOnly(format!(
            "{shown}: read-only file system: its subvolume has the property ro {fix}"
        )));
    }
    lookup::inode(tx, place)
}

/// The part of [`check_changeable`] that is about the inode alone.
pub(super) fn check_immutable(inode: &InodeItem, shown: &str, removing: bool) -> Result<()> {
    let flags = inode.flags.get();
    if flags & inode_flags::IMMUTABLE != 0 {
        return Err(Error::ReadOnly(format!("{shown}: operation not permitted: the inode is immutable")));
    }
    if removing && flags & inode_flags::APPEND != 0 {
        return Err(Error::ReadOnly(format!("{shown}: operation not permitted: the inode is append-only")));
    }
    Ok(())
}

/// Bytes of the entry `name` in a DIR_ITEM.
pub(super) fn entry_len(name: &[u8]) -> usize {
    DIR_ITEM_HEAD_LEN + name.len()
}

/// Adds `name` to `dir` for what `location` names. Returns its index. The inode's own reference is not added.
///
/// # Errors
/// `Invalid` for a name that cannot be, or whose hash bucket is full; `Exists`; as any change of a tree.
pub fn add_entry(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    location: Key,
    file_type: FileType,
) -> Result<u64> {
    let index = next_dir_index(tx, dir)?;
    add_entry_at(tx, dir, name, location, file_type, index)?;
    Ok(index)
}

/// The same, with an index that the directory has not given away.
pub(super) fn add_entry_at(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    location: Key,
    file_type: FileType,
    index: u64,
) -> Result<()> {
    check_name(name)?;
    let (transid, now) = (tx.transid(), tx.now());
    let key = dir.key(KeyType::DIR_ITEM, name_hash(name));
    let mut entry = Vec::new();
    write_dir_entry(&mut entry, location, transid, file_type, name, &[]);
    add_to_bucket(tx, dir, key, name, &entry)?;
    tx.insert(dir.tree, dir.key(KeyType::DIR_INDEX, index), &entry)?;
    update_inode(tx, dir, |inode| {
        inode.size = inode.size.get().wrapping_add(2 * name.len() as u64).into();
        (inode.mtime, inode.ctime) = (now, now);
    })
}

/// Whether the item for names with the hash of `name` takes one more.
///
/// # Errors
/// `Invalid` when it does not.
pub(super) fn check_bucket(
    tx: &Transaction<'_>,
    place: Place,
    key: Key,
    name: &[u8],
    entry_len: usize,
) -> Result<()> {
    let used = lookup_item(tx, place.tree, &key)?.map_or(0, |bucket| bucket.len());
    if used + entry_len > max_item_size(tx.nodesize() as usize) {
        let shown = String::from_utf8_lossy(name);
        return Err(Error::Invalid(format!(
            "{shown}: too many names with its hash in one directory or inode"
        )));
    }
    Ok(())
}

/// Adds an entry's bytes to the DIR_ITEM or XATTR_ITEM at `key`, which names with one hash share.
pub(super) fn add_to_bucket(
    tx: &mut Transaction<'_>,
    place: Place,
    key: Key,
    name: &[u8],
    entry: &[u8],
) -> Result<()> {
    let Some(mut bucket) = lookup_item(tx, place.tree, &key)? else {
        return tx.insert(place.tree, key, entry);
    };
    let nodesize = tx.nodesize() as usize;
    if DirItems::parse(key, &bucket, nodesize).map_err(|v| in_item(key, &v))?.find(name).is_some() {
        return Err(Error::Exists(String::from_utf8_lossy(name).into_owned()));
    }
    check_bucket(tx, place, key, name, entry.len())?;
    bucket.extend_from_slice(entry);
    tx.replace(place.tree, key, &bucket)
}

/// Takes the entry `name` out of the DIR_ITEM or XATTR_ITEM at `key`. Says whether it was there.
pub(super) fn remove_from_bucket(
    tx: &mut Transaction<'_>,
    place: Place,
    key: Key,
    name: &[u8],
) -> Result<bool> {
    let Some(bucket) = lookup_item(tx, place.tree, &key)? else { return Ok(false) };
    let nodesize = tx.nodesize() as usize;
    let (mut kept, mut found) = (Vec::with_capacity(bucket.len()), false);
    for e in DirItems::parse(key, &bucket, nodesize).map_err(|v| in_item(key, &v))? {
        if e.name == name {
            found = true;
        } else {
            write_dir_entry(&mut kept, e.location, e.transid, e.file_type, e.name, e.data);
        }
    }
    match (found, kept.is_empty()) {
        (false, _) => Ok(false),
        (true, true) => tx.remove(place.tree, key).map(|()| true),
        (true, false) => tx.replace(place.tree, key, &kept).map(|()| true),
    }
}

/// Takes the entry `name`, whose index is `index`, out of `dir`.
///
/// # Errors
/// `Corrupt` when one of its places is missing; as any change of a tree.
pub fn remove_entry(tx: &mut Transaction<'_>, dir: Place, name: &[u8], index: u64) -> Result<()> {
    let now = tx.now();
    let key = dir.key(KeyType::DIR_ITEM, name_hash(name));
    if !remove_from_bucket(tx, dir, key, name)? {
        return Err(Error::corrupt("LK-02", format!("directory entry {key} is missing")));
    }
    tx.remove(dir.tree, dir.key(KeyType::DIR_INDEX, index))?;
    update_inode(tx, dir, |inode| {
        inode.size = inode.size.get().saturating_sub(2 * name.len() as u64).into();
        (inode.mtime, inode.ctime) = (now, now);
    })
}

/// Adds a name to the inode's own list: to its INODE_REF for that directory, or as INODE_EXTREF when that is full.
///
/// # Errors
/// `Invalid` when neither takes it; as any change of a tree.
pub fn add_inode_ref(
    tx: &mut Transaction<'_>,
    place: Place,
    parent: u64,
    index: u64,
    name: &[u8],
) -> Result<()> {
    let key = place.key(KeyType::INODE_REF, parent);
    let max = max_item_size(tx.nodesize() as usize);
    let mut refs = lookup_item(tx, place.tree, &key)?;
    let exists = refs.is_some();
    let mut data = refs.take().unwrap_or_default();
    write_inode_ref(&mut data, index, name);
    if data.len() <= max {
        return put(tx, place.tree, key, &data, exists);
    }
    if !tx.superblock().has_incompat(incompat::EXTENDED_IREF) {
        return Err(Error::Invalid(
            "too many links from one directory for an image without extended_iref".to_owned(),
        ));
    }
    let key = place.key(KeyType::INODE_EXTREF, extref_hash(parent, name));
    let refs = lookup_item(tx, place.tree, &key)?;
    let exists = refs.is_some();
    let mut data = refs.unwrap_or_default();
    write_inode_extref(&mut data, parent, index, name);
    if data.len() > max {
        return Err(Error::Invalid("too many names with one hash".to_owned()));
    }
    put(tx, place.tree, key, &data, exists)
}

fn put(tx: &mut Transaction<'_>, tree: u64, key: Key, data: &[u8], exists: bool) -> Result<()> {
    if exists { tx.replace(tree, key, data) } else { tx.insert(tree, key, data) }
}

/// Takes a name off the inode's own list. Returns its index in the directory.
///
/// # Errors
/// LK-02 when the inode does not have it; as any change of a tree.
pub fn remove_inode_ref(tx: &mut Transaction<'_>, place: Place, parent: u64, name: &[u8]) -> Result<u64> {
    let is_it = |r: &InodeRef<'_>| r.parent == parent && r.name == name;
    for (key, extended) in [
        (place.key(KeyType::INODE_REF, parent), false),
        (place.key(KeyType::INODE_EXTREF, extref_hash(parent, name)), true),
    ] {
        let Some(data) = lookup_item(tx, place.tree, &key)? else { continue };
        let parsed = if extended { inode_extrefs(&data) } else { inode_refs(key, &data) };
        let refs = parsed.map_err(|v| in_item(key, &v))?;
        let Some(found) = refs.iter().find(|r| is_it(r)) else { continue };
        let index = found.index;
        let mut kept = Vec::with_capacity(data.len());
        for r in refs.iter().filter(|r| !is_it(r)) {
            match extended {
                true => write_inode_extref(&mut kept, r.parent, r.index, r.name),
                false => write_inode_ref(&mut kept, r.index, r.name),
            }
        }
        if kept.is_empty() {
            tx.remove(place.tree, key)?
        } else {
            tx.replace(place.tree, key, &kept)?
        }
        return Ok(index);
    }
    Err(Error::corrupt(
        "LK-02",
        format!("inode {} has no reference to its name in directory {parent}", place.ino),
    ))
}

/// Adds links to an inode: `count` names more, which were added to it.
///
/// # Errors
/// `Invalid` beyond 65,535 links.
pub fn add_links(tx: &mut Transaction<'_>, place: Place, count: u32) -> Result<()> {
    let now = tx.now();
    let nlink = lookup::inode(tx, place)?.nlink.get();
    let Some(new) = nlink.checked_add(count).filter(|n| *n <= LINK_MAX) else {
        return Err(Error::Invalid(format!("inode {}: too many links, at most {LINK_MAX}", place.ino)));
    };
    update_inode(tx, place, |inode| {
        inode.nlink = new.into();
        inode.ctime = now;
    })
}

/// Removes a name that is no directory's and no subvolume's, and with its last name the inode.
///
/// # Errors
/// `Corrupt`; as any change of a tree.
pub fn unlink(tx: &mut Transaction<'_>, dir: Place, name: &[u8], target: Place) -> Result<()> {
    let now = tx.now();
    let index = remove_inode_ref(tx, target, dir.ino, name)?;
    remove_entry(tx, dir, name, index)?;
    let inode = lookup::inode(tx, target)?;
    let is_dir = FileType::from_mode(inode.mode.get()) == Some(FileType::DIR);
    if is_dir || inode.nlink.get() <= 1 {
        return drop_inode(tx, target);
    }
    update_inode(tx, target, |inode| {
        inode.nlink = (inode.nlink.get() - 1).into();
        inode.ctime = now;
    })
}

/// Removes every item of an inode, and its references to extents.
///
/// # Errors
/// As any change of a tree.
pub fn drop_inode(tx: &mut Transaction<'_>, place: Place) -> Result<()> {
    super::contents::drop_range(tx, place, 0..u64::MAX)?;
    tx.remove_range(place.tree, place.key(KeyType(0), 0), place.key(KeyType(u8::MAX), u64::MAX))?;
    tx.touch_subvolume(place.tree)
}

/// The entry `name` of `dir`, which must not be there.
///
/// # Errors
/// `Exists`.
pub fn refuse_existing(tx: &Transaction<'_>, dir: Place, name: &[u8], shown: &str) -> Result<()> {
    if find_entry(tx, dir, name)?.is_some() { Err(Error::Exists(shown.to_owned())) } else { Ok(()) }
}

/// A rule that an item breaks.
pub(crate) fn in_item(key: Key, violation: &btrfsimg_ondisk::Violation) -> Error {
    Error::corrupt(violation.rule.0, format!("{key}: {}", violation.reason))
}
