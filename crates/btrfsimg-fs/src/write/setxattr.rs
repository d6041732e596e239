//! What setxattr(2) and removexattr(2) do: the kernel's rules of what may be set on what, and what else changes then.

use btrfsimg_compress::PropertyChange;
use btrfsimg_ondisk::{FileType, InodeItem, KeyType, NAME_LEN_MAX, max_xattr_size, name_hash};

use super::inode::COMPRESSION_XATTR;
use super::names::{check_attributes, check_bucket, entry_len, update_inode};
use super::xattr::{remove_xattr, set_compression, set_xattr};
use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::posix_acl::{ACCESS_XATTR, Acl, AclFault, DEFAULT_XATTR};
use crate::txn::Transaction;

/// The xattr with the capabilities of a program.
pub const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// Namespaces in which a name is anything.
const FREE: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Bytes of a value, at most, whatever the file system.
const VALUE_MAX: usize = 65536;

/// Sets the xattr `name` (with its namespace), or replaces its value, as the kernel does for root: an access ACL sets
/// the mode as well, and goes where a mode says all of it; `btrfs.compression` is the property with its flags.
///
/// # Errors
/// `ReadOnly` for an inode that may not be changed; `Invalid`, in the kernel's words, for names and values that it
/// refuses, and for what does not fit a leaf; as any change of a tree. The checks come first.
pub fn setxattr(tx: &mut Transaction<'_>, place: Place, name: &[u8], value: &[u8]) -> Result<()> {
    let shown = shown(name);
    check_name_len(name)?;
    if value.len() > VALUE_MAX {
        return invalid(&shown, "argument list too long", &format!("a value has at most {VALUE_MAX} bytes"));
    }
    if name == CAPABILITY_XATTR && !value.is_empty() && !is_capability(value) {
        return invalid(&shown, "invalid argument", "not a capability set of version 2 or 3");
    }
    let inode = check_attributes(tx, place, &shown)?;
    check_namespace(name)?;
    match name {
        ACCESS_XATTR | DEFAULT_XATTR => return set_acl(tx, place, &inode, name, value),
        COMPRESSION_XATTR => {
            let change = std::str::from_utf8(value).ok().map(PropertyChange::parse_strict);
            return match change {
                Some(Ok(change)) => set_compression(tx, place, &change, &shown),
                Some(Err(fault)) => invalid(&shown, "invalid argument", &fault.to_string()),
                None => invalid(&shown, "invalid argument", "not UTF-8"),
            };
        }
        _ => check_kind(&inode, name, &shown)?,
    }
    check_fits(tx, place, name, value)?;
    set_xattr(tx, place, name, value)
}

/// Removes the xattr `name`.
///
/// # Errors
/// `NotFound` when it is not there; else as [`setxattr`].
pub fn removexattr(tx: &mut Transaction<'_>, place: Place, name: &[u8]) -> Result<()> {
    let shown = shown(name);
    check_name_len(name)?;
    let inode = check_attributes(tx, place, &shown)?;
    check_namespace(name)?;
    check_kind(&inode, name, &shown)?;
    let found = lookup::xattr(tx, place, name)?.is_some();
    if !found {
        return Err(Error::Invalid(format!("{shown}: no data available: it has no such xattr")));
    }
    if name == COMPRESSION_XATTR {
        return set_compression(tx, place, &PropertyChange::Reset, &shown);
    }
    remove_xattr(tx, place, name).map(drop)
}

fn shown(name: &[u8]) -> String {
    format!("xattr {}", String::from_utf8_lossy(name))
}

fn invalid<T>(shown: &str, kernel: &str, why: &str) -> Result<T> {
    Err(Error::Invalid(format!("{shown}: {kernel}: {why}")))
}

fn check_name_len(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_LEN_MAX || name.contains(&0) {
        let why = format!("a name has 1 to {NAME_LEN_MAX} bytes, none of them NUL");
        return invalid(&shown(name), "numerical result out of range", &why);
    }
    Ok(())
}

/// Whether the kernel knows the name on btrfs.
fn check_namespace(name: &[u8]) -> Result<()> {
    let shown = shown(name);
    if name == ACCESS_XATTR || name == DEFAULT_XATTR || name == COMPRESSION_XATTR {
        return Ok(());
    }
    if let Some(free) = FREE.into_iter().find(|prefix| name.starts_with(prefix)) {
        return match name.len() > free.len() {
            true => Ok(()),
            false => invalid(&shown, "invalid argument", "a namespace without a name"),
        };
    }
    if name.starts_with(b"btrfs.") {
        return invalid(&shown, "invalid argument", "kernels know btrfs.compression only");
    }
    let known = "user., trusted., security., system.posix_acl_access, system.posix_acl_default, btrfs.";
    invalid(&shown, "operation not supported", &format!("the namespaces of btrfs are {known}"))
}

/// user.* is for files and directories only.
fn check_kind(inode: &InodeItem, name: &[u8], shown: &str) -> Result<()> {
    let kind = FileType::from_mode(inode.mode.get());
    if name.starts_with(b"user.") && !matches!(kind, Some(FileType::REG_FILE | FileType::DIR)) {
        return invalid(shown, "operation not permitted", "user xattrs are for files and directories only");
    }
    Ok(())
}

/// Whether an item holds it, beside others with its hash.
fn check_fits(tx: &Transaction<'_>, place: Place, name: &[u8], value: &[u8]) -> Result<()> {
    let max = max_xattr_size(tx.nodesize() as usize);
    if name.len() + value.len() > max {
        let why = format!("name and value take {} bytes, at most {max} fit", name.len() + value.len());
        return invalid(&shown(name), "no space left on device", &why);
    }
    let old = lookup::xattr(tx, place, name)?.map_or(0, |old| entry_len(name) + old.len());
    let more = (entry_len(name) + value.len()).saturating_sub(old);
    check_bucket(tx, place, place.key(KeyType::XATTR_ITEM, name_hash(name)), name, more)
}

fn set_acl(
    tx: &mut Transaction<'_>,
    place: Place,
    inode: &InodeItem,
    name: &[u8],
    value: &[u8],
) -> Result<()> {
    let shown = shown(name);
    let kind = FileType::from_mode(inode.mode.get());
    if kind == Some(FileType::SYMLINK) {
        return invalid(&shown, "operation not supported", "a symlink has no ACL");
    }
    let acl = match Acl::parse(value) {
        Ok(acl) => acl,
        Err(AclFault::Version(version)) => {
            return invalid(&shown, "operation not supported", &format!("version {version} of ACLs"));
        }
        Err(AclFault::Invalid) => return invalid(&shown, "invalid argument", "not a valid ACL"),
    };
    if name == DEFAULT_XATTR && kind != Some(FileType::DIR) {
        return match acl {
            Some(_) => invalid(&shown, "permission denied", "default ACLs are for directories"),
            None => Ok(()),
        };
    }
    let (mut mode, now) = (inode.mode.get(), tx.now());
    let stored = match acl {
        Some(acl) if name == ACCESS_XATTR => {
            mode = mode & !0o777 | acl.mode();
            (!acl.is_only_a_mode()).then_some(acl)
        }
        other => other,
    };
    match stored {
        Some(acl) => {
            let value = acl.to_bytes();
            check_fits(tx, place, name, &value)?;
            set_xattr(tx, place, name, &value)?;
        }
        None => _ = remove_xattr(tx, place, name)?,
    }
    update_inode(tx, place, |inode| {
        inode.mode = mode.into();
        inode.ctime = now;
    })
}

/// Whether the value has the form of version 2 or 3 (`linux/capability.h`).
fn is_capability(value: &[u8]) -> bool {
    let revision = value.first_chunk::<4>().map(|magic| u32::from_le_bytes(*magic) & 0xff00_0000);
    matches!((revision, value.len()), (Some(0x0200_0000), 20) | (Some(0x0300_0000), 24))
}
