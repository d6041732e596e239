//! The property `ro` of subvolumes.

use btrfsimg_ondisk::{KeyType, root_flags};

use super::uuids;
use crate::error::{Error, Result};
use crate::txn::Transaction;

/// Makes the subvolume `tree` read-only or writable.
///
/// # Errors
/// `ReadOnly` when making a received subvolume writable would break later receives, without `force`; with it, what
/// says that it was received goes, and when that was stands there, as the kernel has it.
pub fn set_readonly(tx: &mut Transaction<'_>, tree: u64, readonly: bool, force: bool) -> Result<()> {
    let (transid, now) = (tx.transid(), tx.now());
    let Some(item) = tx.root_item_mut(tree)? else {
        return Err(Error::NotFound(format!("subvolume {tree}")));
    };
    let flags = item.flags.get();
    if readonly {
        item.flags = (flags | root_flags::RDONLY).into();
        return tx.store_root_item(tree);
    }
    let mut forgotten = None;
    if item.received_uuid != [0; 16] {
        if !force {
            let fix = "making it writable breaks later incremental receives; do it with -f";
            return Err(Error::ReadOnly(format!("subvolume {tree} was received: {fix}")));
        }
        forgotten = Some(item.received_uuid);
        item.received_uuid = [0; 16];
        (item.stransid, item.stime) = (0.into(), btrfsimg_ondisk::Timespec::zeroed());
        (item.rtransid, item.rtime) = (transid.into(), now);
    }
    item.flags = (flags & !root_flags::RDONLY).into();
    tx.store_root_item(tree)?;
    match forgotten {
        Some(received) => uuids::remove(tx, KeyType::UUID_RECEIVED_SUBVOL, received, tree),
        None => Ok(()),
    }
}
