//! The UUID tree: which subvolumes have a UUID (`format/02 §2.8`).

use btrfsimg_ondisk::{Key, KeyType, Uuid, max_item_size, objectid};

use crate::error::Result;
use crate::tree::{Blocks as _, lookup};
use crate::txn::Transaction;

fn key(kind: KeyType, uuid: [u8; 16]) -> Key {
    let (low, high) = Uuid::from_bytes(uuid).as_u64_pair();
    Key::new(low.swap_bytes(), kind, high.swap_bytes())
}

/// The key, and the ids that stand there. `None` where there is no UUID tree (the kernel makes it when it mounts) and
/// for a subvolume without a UUID.
fn listed(tx: &Transaction<'_>, kind: KeyType, uuid: [u8; 16]) -> Result<Option<(Key, Option<Vec<u8>>)>> {
    if uuid == [0; 16] || tx.root(objectid::UUID_TREE)?.is_none() {
        return Ok(None);
    }
    let key = key(kind, uuid);
    Ok(Some((key, lookup(tx, objectid::UUID_TREE, &key)?)))
}

/// Lists `tree` among the subvolumes with `uuid`. More than an item holds are left out, as by the kernel: readers
/// take the first one.
pub(super) fn add(tx: &mut Transaction<'_>, kind: KeyType, uuid: [u8; 16], tree: u64) -> Result<()> {
    match listed(tx, kind, uuid)? {
        None => Ok(()),
        Some((key, None)) => tx.insert(objectid::UUID_TREE, key, &tree.to_le_bytes()),
        Some((key, Some(mut ids))) => {
            let known = ids.chunks_exact(8).any(|id| id == tree.to_le_bytes());
            if known || ids.len() + 8 > max_item_size(tx.nodesize() as usize) {
                return Ok(());
            }
            ids.extend_from_slice(&tree.to_le_bytes());
            tx.replace(objectid::UUID_TREE, key, &ids)
        }
    }
}

/// Takes `tree` off that list, if it is there.
pub(super) fn remove(tx: &mut Transaction<'_>, kind: KeyType, uuid: [u8; 16], tree: u64) -> Result<()> {
    let Some((key, Some(ids))) = listed(tx, kind, uuid)? else { return Ok(()) };
    let kept: Vec<u8> =
        ids.chunks_exact(8).filter(|id| *id != tree.to_le_bytes()).flatten().copied().collect();
    match kept.len() {
        n if n == ids.len() => Ok(()),
        0 => tx.remove(objectid::UUID_TREE, key),
        _ => tx.replace(objectid::UUID_TREE, key, &kept),
    }
}
