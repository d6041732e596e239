//! Items of a fixed layout that kernels do not check when they read a leaf: LEAF-08 to LEAF-10, RS-01.

use super::view::{ItemAt, is_aligned};
use super::{BlockContext, Checked, ensure};
use crate::{
    BalanceArgs, DevReplace, DevStats, KeyType, NAME_LEN_MAX, QgroupInfo, QgroupLimit, RaidStride,
    RootRefHead, incompat, objectid,
};

pub(super) fn check_raid_stripe(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    ensure!(
        is_aligned(item.key.objectid, ctx.sectorsize),
        "RS-01",
        "invalid key objectid for raid stripe extent, have {} expect aligned to {}",
        item.key.objectid,
        ctx.sectorsize
    );
    ensure!(
        ctx.incompat & incompat::RAID_STRIPE_TREE != 0,
        "RS-01",
        "RAID_STRIPE_EXTENT present but RAID_STRIPE_TREE incompat bit unset"
    );
    Ok(())
}

/// LEAF-10: the lengths of items that only their reader looks at.
pub(super) fn check_length(item: &ItemAt<'_>) -> Checked {
    /// Of a balance item: flags, three arguments, four reserved words.
    const BALANCE_LEN: usize = 8 + 3 * size_of::<BalanceArgs>() + 32;
    let have = item.data.len();
    let (fits, expect) = match item.key.key_type {
        KeyType::ORPHAN_ITEM | KeyType::QGROUP_RELATION => (have == 0, 0),
        KeyType::ROOT_REF | KeyType::ROOT_BACKREF => root_ref_len(item.data),
        KeyType::QGROUP_STATUS => (have == 32 || have == 40, 40),
        KeyType::QGROUP_INFO => (have == size_of::<QgroupInfo>(), size_of::<QgroupInfo>()),
        KeyType::QGROUP_LIMIT => (have == size_of::<QgroupLimit>(), size_of::<QgroupLimit>()),
        KeyType::UUID_SUBVOL | KeyType::UUID_RECEIVED_SUBVOL => (have > 0 && have.is_multiple_of(8), 8),
        KeyType::PERSISTENT_ITEM if item.key.objectid == 0 => {
            (have >= 8 && have.is_multiple_of(8), size_of::<DevStats>())
        }
        KeyType::RAID_STRIPE => (have.is_multiple_of(size_of::<RaidStride>()), size_of::<RaidStride>()),
        KeyType::DEV_REPLACE => (have == size_of::<DevReplace>(), size_of::<DevReplace>()),
        KeyType::TEMPORARY_ITEM if item.key.objectid == objectid::BALANCE => {
            (have == BALANCE_LEN, BALANCE_LEN)
        }
        _ => (true, have),
    };
    ensure!(fits, "LEAF-10", "invalid item size for a {}, have {have} expect {expect}", item.key.key_type);
    Ok(())
}

/// Whether a ROOT_REF is as long as its name says, and how long that is.
fn root_ref_len(data: &[u8]) -> (bool, usize) {
    let head = size_of::<RootRefHead>();
    let name = data.get(16..head).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes);
    let expect = head + usize::from(name);
    ((1..=NAME_LEN_MAX).contains(&usize::from(name)) && data.len() == expect, expect)
}

/// LEAF-08 and LEAF-09: what a leaf of a subvolume may hold.
pub(super) fn check_place(item: &ItemAt<'_>) -> Checked {
    if !objectid::is_fs_tree(item.owner) {
        return Ok(());
    }
    let key = item.key;
    let cache_header = key.objectid == objectid::FREE_SPACE && key.key_type == KeyType::UNTYPED;
    ensure!(
        key.objectid != objectid::FREE_INO && !cache_header,
        "LEAF-09",
        "left-over item of the retired inode cache"
    );
    let fits = matches!(
        key.key_type,
        KeyType::INODE_ITEM
            | KeyType::INODE_REF
            | KeyType::INODE_EXTREF
            | KeyType::XATTR_ITEM
            | KeyType::VERITY_DESC_ITEM
            | KeyType::VERITY_MERKLE_ITEM
            | KeyType::ORPHAN_ITEM
            | KeyType::DIR_ITEM
            | KeyType::DIR_INDEX
            | KeyType::EXTENT_DATA
    );
    ensure!(fits, "LEAF-08", "unknown item type in a subvolume, have {}", key.key_type.0);
    Ok(())
}
