//! Subvolumes as a whole.

use btrfsimg_ondisk::{Key, KeyType, Uuid, objectid, root_flags};

use crate::error::{Error, Result};
use crate::tree::{Blocks as _, lookup};
use crate::txn::Transaction;

/// Makes the subvolume `tree` read-only or writable.
///
/// # Errors
/// `ReadOnly` when making a received subvolume writable would break later receives, without `force`; with it, what
/// says that it was received goes.
pub fn set_readonly(tx: &mut Transaction<'_>, tree: u64, readonly: bool, force: bool) -> Result<()> {
    let Some(item) = tx.root_item_mut(tree)? else {
        return Err(Error::NotFound(format!("subvolume {tree}")));
    };
    let flags = item.flags.get();
    if readonly {
        item.flags = (flags | root_flags::RDONLY).into();
        return Ok(());
    }
    let mut forgotten = None;
    if item.received_uuid != [0; 16] {
        if !force {
            let fix = "making it writable breaks later incremental receives; do it with -f";
            return Err(Error::ReadOnly(format!("subvolume {tree} was received: {fix}")));
        }
        forgotten = Some(item.received_uuid);
        item.received_uuid = [0; 16];
        item.stransid = 0.into();
        item.rtransid = 0.into();
        (item.stime, item.rtime) = (btrfsimg_ondisk::Timespec::zeroed(), btrfsimg_ondisk::Timespec::zeroed());
    }
    item.flags = (flags & !root_flags::RDONLY).into();
    match forgotten {
        Some(received) => forget_received(tx, tree, received),
        None => Ok(()),
    }
}

/// Takes `tree` out of the UUID tree's list of subvolumes that were received as `uuid`.
fn forget_received(tx: &mut Transaction<'_>, tree: u64, uuid: [u8; 16]) -> Result<()> {
    let (low, high) = Uuid::from_bytes(uuid).as_u64_pair();
    let key = Key::new(low.swap_bytes(), KeyType::UUID_RECEIVED_SUBVOL, high.swap_bytes());
    if tx.root(objectid::UUID_TREE)?.is_none() {
        return Ok(());
    }
    let Some(ids) = lookup(tx, objectid::UUID_TREE, &key)? else { return Ok(()) };
    let kept: Vec<u8> =
        ids.chunks_exact(8).filter(|id| *id != tree.to_le_bytes()).flatten().copied().collect();
    match kept.len() {
        n if n == ids.len() => Ok(()),
        0 => tx.remove(objectid::UUID_TREE, key),
        _ => tx.replace(objectid::UUID_TREE, key, &kept),
    }
}
