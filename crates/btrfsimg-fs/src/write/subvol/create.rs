//! New subvolumes and snapshots.

use btrfsimg_ondisk::{FileType, Key, KeyType, RootItem, Timespec, inode_flags, objectid, root_flags};

use super::{links, uuids};
use crate::error::{Error, Result};
use crate::lookup::{self, Place, check_name, highest_inode};
use crate::txn::{ItemBatch, Transaction};
use crate::write::inode::{
    Attributes, COMPRESSION_XATTR, Inherited, Xattr, borrowed, push_inode, push_xattrs,
};
use crate::write::names::{add_entry, refuse_existing};
use crate::write::xattr::{feature_of, inherited_from};

/// Ids from here on are those of higher qgroups.
const TREE_ID_END: u64 = 1 << 48;

/// Makes the subvolume `name` in `dir`; says its id. Its root directory has `attributes` (a directory's), `xattrs`, and
/// the compression property of the root directory of the subvolume that it is made in, level included; of `dir`
/// itself it inherits nothing (`format/05 §5.4`) but what the default ACL there makes of its mode.
///
/// # Errors
/// `Exists`; `Invalid` names, as any change of a tree.
pub fn create(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    mut attributes: Attributes,
    mut xattrs: Vec<Xattr>,
) -> Result<u64> {
    let tree = new_tree_id(tx, dir, name)?;
    let (transid, now, uuid) = (tx.transid(), tx.now(), tx.new_uuid("subvolume", tree));
    let top = inherited_from(tx, Place::root(dir.tree))?;
    let inherited = Inherited { property: top.property, ..Inherited::default() };
    // The kernel lets the default ACL of the directory decide the mode, but gives a subvolume no ACL.
    let default_acl = inherited_from(tx, dir)?.default_acl;
    attributes.inherit_access(&Inherited { default_acl, ..Inherited::default() });
    if let Some(property) = attributes.inherit(&inherited) {
        tx.set_incompat(property.algorithm().map_or(0, feature_of));
        xattrs.push((COMPRESSION_XATTR.to_vec(), property.as_bytes().to_vec()));
    }
    let mut item = root_item(transid, now);
    item.inode.nbytes = u64::from(tx.nodesize()).into();
    item.uuid = uuid.into_bytes();
    let key = Key::new(tree, KeyType::ROOT_ITEM, 0);
    tx.create_tree(tree, Some((key, item)))?;
    let mut items = ItemBatch::new();
    let ino = objectid::FIRST_FREE;
    push_inode(&mut items, ino, &attributes.inode_item(transid, 0, 0), ino, 0, b"..");
    push_xattrs(&mut items, ino, transid, borrowed(&xattrs));
    tx.insert_batch(tree, &items)?;
    uuids::add(tx, KeyType::UUID_SUBVOL, item.uuid, tree)?;
    enter(tx, dir, name, key)?;
    Ok(tree)
}

/// Makes `name` in `dir` a snapshot of the subvolume `source`; says its id. All it holds is shared until one of the two
/// changes it. Subvolumes inside `source` are empty directories in it, as the kernel has it.
///
/// # Errors
/// `NotFound` when there is no such subvolume; `Exists`; `Invalid` names; as any change of a tree.
pub fn snapshot(
    tx: &mut Transaction<'_>,
    source: u64,
    dir: Place,
    name: &[u8],
    readonly: bool,
) -> Result<u64> {
    if lookup::subvolume(tx, source)?.is_none() {
        return Err(Error::NotFound(format!("subvolume {source}")));
    }
    let tree = new_tree_id(tx, dir, name)?;
    let (transid, now, uuid) = (tx.transid(), tx.now(), tx.new_uuid("subvolume", tree));
    // The offset says which blocks are none of the snapshot's own: those of its generation and before. The kernel, which
    // takes snapshots when nothing changes any more, gives it this transaction; here more changes may follow.
    let key = Key::new(tree, KeyType::ROOT_ITEM, transid - 1);
    let mut received = [0; 16];
    // Before the entry: a snapshot of the subvolume that it is put into does not hold itself.
    tx.create_snapshot(source, key, |item| {
        change_root_item(item, transid, now, readonly);
        item.parent_uuid = item.uuid;
        item.uuid = uuid.into_bytes();
        received = item.received_uuid;
    })?;
    uuids::add(tx, KeyType::UUID_SUBVOL, uuid.into_bytes(), tree)?;
    uuids::add(tx, KeyType::UUID_RECEIVED_SUBVOL, received, tree)?;
    enter(tx, dir, name, Key { offset: u64::MAX, ..key })?;
    Ok(tree)
}

/// Makes a source's ROOT_ITEM that of its snapshot, but for the UUIDs.
fn change_root_item(item: &mut RootItem, transid: u64, now: Timespec, readonly: bool) {
    item.generation_v2 = transid.into();
    (item.otransid, item.otime) = (transid.into(), now);
    let flags = item.flags.get();
    if readonly {
        item.flags = (flags | root_flags::RDONLY).into();
        return;
    }
    // What is received stays as it came; a writable copy of it is something new.
    item.flags = (flags & !root_flags::RDONLY).into();
    item.received_uuid = [0; 16];
    (item.stransid, item.rtransid) = (0.into(), 0.into());
    (item.stime, item.rtime) = (Timespec::zeroed(), Timespec::zeroed());
}

/// The id of a subvolume that is to be `name` in `dir`.
fn new_tree_id(tx: &Transaction<'_>, dir: Place, name: &[u8]) -> Result<u64> {
    check_name(name)?;
    refuse_existing(tx, dir, name, &String::from_utf8_lossy(name))?;
    let id = highest_inode(tx, objectid::ROOT_TREE)? + 1;
    if id >= TREE_ID_END {
        return Err(Error::Invalid("there are no more ids for subvolumes".to_owned()));
    }
    Ok(id)
}

/// Adds the entry of a subvolume, and its quota group.
fn enter(tx: &mut Transaction<'_>, dir: Place, name: &[u8], location: Key) -> Result<()> {
    let index = add_entry(tx, dir, name, location, FileType::DIR)?;
    links::add(tx, location.objectid, dir, index, name)?;
    tx.create_quota_group(location.objectid)
}

fn root_item(transid: u64, now: Timespec) -> RootItem {
    let mut item = RootItem::zeroed();
    item.inode.generation = 1.into();
    item.inode.size = 3.into();
    item.inode.nlink = 1.into();
    item.inode.mode = 0o40755.into();
    item.inode.flags = inode_flags::ROOT_ITEM_INIT.into();
    item.refs = 1.into();
    item.root_dirid = objectid::FIRST_FREE.into();
    (item.ctransid, item.otransid) = (transid.into(), transid.into());
    (item.ctime, item.otime) = (now, now);
    item
}
