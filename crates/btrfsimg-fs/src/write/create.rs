//! New inodes with a name in an existing directory.

use btrfsimg_ondisk::{FileExtent, FileExtentKind, Key, KeyType, max_symlink_len};

use super::inode::{Attributes, COMPRESSION_XATTR, Inherited, Xattr, borrowed, push_inode, push_xattrs};
use super::names::add_entry;
use super::xattr::inherited_from;
use crate::error::{Error, Result};
use crate::lookup::{Place, highest_inode};
use crate::txn::{ItemBatch, Transaction};

/// A new inode without contents: a directory, an empty file, a fifo, a socket, a device.
///
/// Flags, property, ACLs and the group of a setgid directory are inherited from `dir`; `xattrs` are added.
///
/// # Errors
/// `Exists`, `Invalid` names, as any change of a tree.
pub fn create(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    attributes: Attributes,
    xattrs: Vec<Xattr>,
) -> Result<Place> {
    let inherited = inherited_from(tx, dir)?;
    create_with(tx, dir, name, attributes, xattrs, &inherited, None)
}

/// A new symlink.
///
/// # Errors
/// `Invalid` for a target that is empty or too long; else as [`create`].
pub fn symlink(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    attributes: Attributes,
    target: &[u8],
) -> Result<Place> {
    let max = max_symlink_len(tx.sectorsize() as usize, tx.nodesize() as usize);
    if target.is_empty() || target.len() > max {
        let shown = String::from_utf8_lossy(name);
        return Err(Error::Invalid(format!(
            "{shown}: symlink target of {} bytes, must be 1 to {max}",
            target.len()
        )));
    }
    let inherited = inherited_from(tx, dir)?;
    create_with(tx, dir, name, attributes, Vec::new(), &inherited, Some(target))
}

fn create_with(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    mut attributes: Attributes,
    mut xattrs: Vec<Xattr>,
    inherited: &Inherited,
    target: Option<&[u8]>,
) -> Result<Place> {
    let place = Place { tree: dir.tree, ino: highest_inode(tx, dir.tree)? + 1 };
    xattrs.extend(attributes.inherit_access(inherited));
    if let Some(property) = attributes.inherit(inherited) {
        xattrs.push((COMPRESSION_XATTR.to_vec(), property.as_bytes().to_vec()));
    }
    let location = Key::new(place.ino, KeyType::INODE_ITEM, 0);
    let index = add_entry(tx, dir, name, location, attributes.file_type())?;
    let len = target.map_or(0, <[u8]>::len) as u64;
    let mut items = ItemBatch::new();
    push_inode(&mut items, place.ino, &attributes.inode_item(tx.transid(), len, len), dir.ino, index, name);
    push_xattrs(&mut items, place.ino, tx.transid(), borrowed(&xattrs));
    if let Some(target) = target {
        push_symlink(&mut items, place.ino, tx.transid(), target);
    }
    tx.insert_batch(dir.tree, &items)?;
    Ok(place)
}

/// Adds the inline extent that holds a symlink's target.
pub fn push_symlink(items: &mut ItemBatch, ino: u64, transid: u64, target: &[u8]) {
    let extent = FileExtent {
        generation: transid,
        ram_bytes: target.len() as u64,
        compression: 0,
        kind: FileExtentKind::Inline(target),
    };
    items.push_with(Key::new(ino, KeyType::EXTENT_DATA, 0), |out| extent.write(out));
}
