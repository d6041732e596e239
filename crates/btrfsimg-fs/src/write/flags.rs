//! Inode flags as chattr(1) changes them: what FS_IOC_GETFLAGS and FS_IOC_SETFLAGS do.

use btrfsimg_ondisk::{FileType, inode_flags as f};

use super::inode::COMPRESSION_XATTR;
use super::names::{check_subvolume, update_inode};
use super::xattr::{remove_xattr, set_xattr};
use crate::error::{Error, Result};
use crate::lookup::Place;
use crate::txn::Transaction;

/// Flags that are set and cleared as they are.
const PLAIN: u64 = f::SYNC | f::IMMUTABLE | f::APPEND | f::NODUMP | f::NOATIME | f::DIRSYNC;
const COMPRESSION: u64 = f::COMPRESS | f::NOCOMPRESS;
/// The property that the flag stands for where the file system is mounted without a compression of its own.
const DEFAULT_PROPERTY: &[u8] = b"zlib";

/// Every flag that can be changed.
pub const CHANGEABLE: u64 = PLAIN | COMPRESSION | f::NODATACOW;

/// The flags of an inode that the kernel shows to users.
pub fn visible(flags: u64) -> u64 {
    let compression = if flags & f::NOCOMPRESS != 0 { f::COMPRESS } else { 0 };
    flags & (CHANGEABLE | f::RO_VERITY) & !compression
}

/// Makes `wanted` the visible flags of a file or directory. Says whether it could: a file that is not empty stays
/// copy-on-write, or nodatacow, and the kernel makes no error of that.
///
/// COMPRESS brings the property `compression` with it, and its absence takes that away, as in the kernel; but a
/// property stays as it is where neither COMPRESS nor NOCOMPRESS changes.
///
/// # Errors
/// `ReadOnly` in a read-only subvolume; `Invalid` for other inodes, and where compression and nodatacow would meet;
/// as any change of a tree. The checks come first.
pub fn set_flags(tx: &mut Transaction<'_>, place: Place, wanted: u64, shown: &str) -> Result<bool> {
    let inode = check_subvolume(tx, place, shown)?;
    let (have, empty) = (inode.flags.get(), inode.size.get() == 0);
    let is_dir = match FileType::from_mode(inode.mode.get()) {
        Some(FileType::DIR) => true,
        Some(FileType::REG_FILE) => false,
        _ => {
            let why = "operation not supported: only files and directories have such flags";
            return Err(Error::Invalid(format!("{shown}: {why}")));
        }
    };
    let wanted = wanted & CHANGEABLE & if is_dir { u64::MAX } else { !f::DIRSYNC };
    check(visible(have), wanted, shown)?;
    let mut flags = have & !PLAIN | wanted & PLAIN;
    let nodatacow = if is_dir { f::NODATACOW } else { f::NODATACOW | f::NODATASUM };
    let may_change_cow = is_dir || empty;
    if may_change_cow {
        flags = if wanted & f::NODATACOW != 0 { flags | nodatacow } else { flags & !nodatacow };
    }
    if (wanted ^ visible(have)) & COMPRESSION != 0 {
        flags = flags & !COMPRESSION | wanted & COMPRESSION;
        if wanted & f::COMPRESS != 0 {
            set_xattr(tx, place, COMPRESSION_XATTR, DEFAULT_PROPERTY)?;
        } else {
            remove_xattr(tx, place, COMPRESSION_XATTR)?;
        }
    }
    let now = tx.now();
    update_inode(tx, place, |inode| {
        inode.flags = flags.into();
        inode.ctime = now;
    })?;
    Ok(may_change_cow || (wanted ^ have) & f::NODATACOW == 0)
}

/// The kernel's rules of which flags can be together, now and before.
fn check(have: u64, wanted: u64, shown: &str) -> Result<()> {
    let invalid = |why: &str| Err(Error::Invalid(format!("{shown}: invalid argument: {why}")));
    if wanted & COMPRESSION == COMPRESSION {
        return invalid("COMPRESS (c) and NOCOMPRESS (m) exclude each other");
    }
    let meets = |a: u64, b: u64| a & f::NODATACOW != 0 && b & COMPRESSION != 0;
    if wanted & f::COMPRESS != 0 && wanted & f::NODATACOW != 0 || meets(have, wanted) || meets(wanted, have) {
        return invalid("compression (c, m) and nodatacow (C) exclude each other; clear the one first");
    }
    Ok(())
}
