//! xattrs and the compression property of existing inodes (`format/05`).

use std::sync::Arc;

use btrfsimg_compress::{Algorithm, Property, PropertyChange};
use btrfsimg_ondisk::{FileType, InodeItem, Key, KeyType, incompat, inode_flags, name_hash, write_dir_entry};

use super::inode::{COMPRESSION_XATTR, Inherited, group_for_entries, xattr_fits};
use super::names::{add_to_bucket, check_bucket, entry_len, remove_from_bucket, update_inode};
use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::posix_acl::{Acl, DEFAULT_XATTR};
use crate::txn::Transaction;

/// Sets an xattr, or replaces its value.
///
/// # Errors
/// `Invalid` when name or value are too long for an item, beside others with its hash: the old value stays then; as any
/// change of a tree.
pub fn set_xattr(tx: &mut Transaction<'_>, place: Place, name: &[u8], value: &[u8]) -> Result<()> {
    let nodesize = tx.nodesize() as usize;
    let shown = String::from_utf8_lossy(name).into_owned();
    if name.is_empty() || !xattr_fits(name, value, nodesize) {
        let max = btrfsimg_ondisk::max_xattr_size(nodesize);
        return Err(Error::Invalid(format!("xattr {shown}: name and value take more than {max} bytes")));
    }
    let (key, now, transid) = (xattr_key(place, name), tx.now(), tx.transid());
    let old = lookup::xattr(tx, place, name)?.map_or(0, |old| entry_len(name) + old.len());
    check_bucket(tx, place, key, name, (entry_len(name) + value.len()).saturating_sub(old))?;
    remove_from_bucket(tx, place, key, name)?;
    let mut entry = Vec::new();
    write_dir_entry(&mut entry, Key::MIN, transid, FileType::XATTR, name, value);
    add_to_bucket(tx, place, key, name, &entry)?;
    update_inode(tx, place, |inode| inode.ctime = now)
}

/// Removes an xattr. Says whether it was there.
///
/// # Errors
/// As any change of a tree.
pub fn remove_xattr(tx: &mut Transaction<'_>, place: Place, name: &[u8]) -> Result<bool> {
    let now = tx.now();
    let found = remove_from_bucket(tx, place, xattr_key(place, name), name)?;
    if found {
        update_inode(tx, place, |inode| inode.ctime = now)?;
    }
    Ok(found)
}

fn xattr_key(place: Place, name: &[u8]) -> Key {
    place.key(KeyType::XATTR_ITEM, name_hash(name))
}

/// Sets or resets the compression property, with the inode flag and the feature bit that belong to it
/// (`format/05 §5.3`). Data stay as they are.
///
/// # Errors
/// `Invalid` for inodes that are neither file nor directory, and for nodatacow or nodatasum ones.
pub fn set_compression(
    tx: &mut Transaction<'_>,
    place: Place,
    change: &PropertyChange,
    shown: &str,
) -> Result<()> {
    let inode = lookup::inode(tx, place)?;
    let kind = FileType::from_mode(inode.mode.get());
    if !matches!(kind, Some(FileType::REG_FILE | FileType::DIR)) {
        return Err(Error::Invalid(format!(
            "{shown}: compression is a property of files and directories only"
        )));
    }
    match change {
        PropertyChange::Set(_) if is_never_compressed(&inode) => {
            let why =
                "the inode is nodatacow or nodatasum, whose data are never compressed ('chattr +C' files)";
            Err(Error::Invalid(format!("{shown}: invalid argument: {why}")))
        }
        PropertyChange::Set(property) => store_property(tx, place, property.as_bytes(), property.algorithm()),
        PropertyChange::Reset => {
            remove_xattr(tx, place, COMPRESSION_XATTR)?;
            update_inode(tx, place, |i| i.flags = (i.flags.get() & !COMPRESSION_FLAGS).into())
        }
    }
}

/// Whether the data of an inode are never compressed, so that kernels refuse it a property too (`format/05 §5.3`).
pub fn is_never_compressed(inode: &InodeItem) -> bool {
    inode.flags.get() & (inode_flags::NODATACOW | inode_flags::NODATASUM) != 0
}

/// Gives an inode a compression property as another one has it stored, with the inode flag that belongs to it, where
/// kernels see a property in it; not to one whose data are never compressed.
///
/// # Errors
/// As [`set_xattr`].
pub fn set_property_as_stored(tx: &mut Transaction<'_>, place: Place, value: &[u8]) -> Result<()> {
    let Some(property) = Property::from_stored(value) else { return Ok(()) };
    if is_never_compressed(&lookup::inode(tx, place)?) {
        return Ok(());
    }
    store_property(tx, place, value, property.algorithm())
}

/// The flags of an inode that stand for a property.
const COMPRESSION_FLAGS: u64 = inode_flags::COMPRESS | inode_flags::NOCOMPRESS;

/// Sets the xattr of a property that means `algorithm`, or none, with what belongs to it.
fn store_property(
    tx: &mut Transaction<'_>,
    place: Place,
    value: &[u8],
    algorithm: Option<Algorithm>,
) -> Result<()> {
    set_xattr(tx, place, COMPRESSION_XATTR, value)?;
    let flag = match algorithm {
        Some(algorithm) => {
            tx.set_incompat(feature_of(algorithm));
            inode_flags::COMPRESS
        }
        None => inode_flags::NOCOMPRESS,
    };
    update_inode(tx, place, |inode| inode.flags = (inode.flags.get() & !COMPRESSION_FLAGS | flag).into())
}

/// The incompat bit of an algorithm; zlib has none.
pub fn feature_of(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::Zlib => 0,
        Algorithm::Lzo => incompat::COMPRESS_LZO,
        Algorithm::Zstd => incompat::COMPRESS_ZSTD,
    }
}

/// The default ACL of `dir`. One that kernels do not understand is an error, as they make no files there either.
fn default_acl(tx: &Transaction<'_>, dir: Place) -> Result<Option<Acl>> {
    let Some(value) = lookup::xattr(tx, dir, DEFAULT_XATTR)? else { return Ok(None) };
    Acl::parse(&value).map_err(|_| {
        Error::Invalid(
            "the default ACL of the directory is damaged; remove it with 'btrfsimg xattr rm'".to_owned(),
        )
    })
}

/// What new entries of `dir` inherit.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn inherited_from(tx: &Transaction<'_>, dir: Place) -> Result<Inherited> {
    let inode = lookup::inode(tx, dir)?;
    let stored = lookup::xattr(tx, dir, COMPRESSION_XATTR)?;
    Ok(Inherited {
        flags: inode.flags.get(),
        property: stored.and_then(|v| Property::from_stored(&v)),
        group: group_for_entries(inode.mode.get(), inode.gid.get()),
        default_acl: default_acl(tx, dir)?.map(Arc::new),
    })
}
