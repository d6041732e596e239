//! Hard links.

use btrfsimg_ondisk::{FileType, Key, KeyType, LINK_MAX, name_hash};

use super::names::{
    add_entry, add_inode_ref, add_links, check_bucket, check_changeable, check_immutable, entry_len,
    refuse_existing,
};
use crate::error::{Error, Result};
use crate::lookup::{self, Place, check_name};
use crate::txn::Transaction;

/// Gives the inode `target` one more name: `name` in `dir`, a directory of the same subvolume.
///
/// # Errors
/// `Exists`; `ReadOnly` for an inode that may not be changed; `Invalid` for a directory, for one of another subvolume,
/// for more than 65,535 links, and names that cannot be; as any change of a tree. The checks come first.
pub fn link(tx: &mut Transaction<'_>, target: Place, dir: Place, name: &[u8]) -> Result<()> {
    let shown = String::from_utf8_lossy(name).into_owned();
    check_name(name)?;
    refuse_existing(tx, dir, name, &shown)?;
    check_changeable(tx, dir, &shown, false)?;
    let inode = lookup::inode(tx, target)?;
    check_immutable(&inode, &format!("inode {}", target.ino), true)?;
    let file_type = FileType::from_mode(inode.mode.get()).unwrap_or(FileType::REG_FILE);
    if file_type == FileType::DIR {
        return Err(Error::Invalid(format!("{shown}: operation not permitted: a hard link to a directory")));
    }
    if target.tree != dir.tree {
        let why = "a hard link leads to the same subvolume only; copy it with 'cp --reflink'";
        return Err(Error::Invalid(format!("{shown}: invalid cross-device link: {why}")));
    }
    if inode.nlink.get() >= LINK_MAX {
        return Err(Error::Invalid(format!("{shown}: too many links: a file has at most {LINK_MAX}")));
    }
    check_bucket(tx, dir, dir.key(KeyType::DIR_ITEM, name_hash(name)), name, entry_len(name))?;
    let location = Key::new(target.ino, KeyType::INODE_ITEM, 0);
    let index = add_entry(tx, dir, name, location, file_type)?;
    add_inode_ref(tx, target, dir.ino, index, name)?;
    add_links(tx, target, 1)
}
