//! Rules of INODE_ITEM, INODE_REF and INODE_EXTREF: INO-, REF- (`format/06 §6.4, 6.5`).

use zerocopy::FromBytes;

use super::view::ItemAt;
use super::{BlockContext, Checked, ensure};
use crate::{FileType, InodeItem, KeyType, NAME_LEN_MAX, extref_hash, inode_flags, inode_refs, objectid};

/// Inode flags that kernels know: bits 0 to 11, and 31.
const FLAGS_KNOWN: u64 = 0x8000_0fff;

pub(super) fn check(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let key = item.key;
    ensure!(
        objectid::is_inode(key.objectid)
            || [objectid::ROOT_TREE_DIR, objectid::FREE_INO].contains(&key.objectid),
        "INO-01",
        "invalid key objectid, have {} expect {} or [{}, {}] or -12",
        key.objectid,
        objectid::ROOT_TREE_DIR,
        objectid::FIRST_FREE,
        objectid::LAST_FREE
    );
    ensure!(key.offset == 0, "INO-02", "invalid key offset, have {} expect 0", key.offset);
    let Ok(inode) = InodeItem::ref_from_bytes(item.data) else {
        ensure!(false, "INO-03", "invalid item size, have {} expect 160", item.data.len());
        return Ok(());
    };
    check_fields(inode, ctx)
}

fn check_fields(inode: &InodeItem, ctx: &BlockContext) -> Checked {
    let newest = ctx.generation.saturating_add(1);
    let generation = inode.generation.get();
    ensure!(
        generation <= newest,
        "INO-04",
        "invalid inode generation, have {generation} expect [0, {newest}]"
    );
    let transid = inode.transid.get();
    ensure!(transid <= newest, "INO-05", "invalid inode transid, have {transid} expect [0, {newest}]");
    let mode = inode.mode.get();
    ensure!(mode & !0o177_777 == 0, "INO-06", "unknown mode bit detected, have 0{mode:o} expect 0177777");
    let kind = FileType::from_mode(mode);
    ensure!(kind.is_some(), "INO-07", "invalid mode, have 0{mode:o} expect a valid file type");
    let nlink = inode.nlink.get();
    ensure!(
        kind != Some(FileType::DIR) || nlink <= 1,
        "INO-08",
        "invalid nlink, have {nlink} expect no more than 1 for dir"
    );
    let low = inode.flags.get() & 0xffff_ffff;
    ensure!(
        low & !FLAGS_KNOWN == 0,
        "INO-09",
        "unknown inode flags detected, have 0x{low:x} expect 0x{FLAGS_KNOWN:x}"
    );
    Ok(())
}

/// What the kernel does not refuse on every mount.
pub(super) fn check_strict(item: &ItemAt<'_>) -> Checked {
    let Ok(inode) = InodeItem::ref_from_bytes(item.data) else { return Ok(()) };
    let (flags, kind) = (inode.flags.get(), FileType::from_mode(inode.mode.get()));
    let high = flags & !0xffff_ffff;
    ensure!(
        high & !inode_flags::RO_VERITY == 0,
        "INO-10",
        "unknown ro-compat inode flags detected, have 0x{high:x} expect 0x{:x}",
        inode_flags::RO_VERITY
    );
    ensure!(
        kind != Some(FileType::SYMLINK) || flags & (inode_flags::IMMUTABLE | inode_flags::APPEND) == 0,
        "INO-12",
        "invalid inode flags for symlink, have 0x{flags:x}"
    );
    let size = inode.size.get();
    ensure!(i64::try_from(size).is_ok(), "INO-13", "invalid size, have {size} expect at most {}", i64::MAX);
    let cow_off = flags & (inode_flags::NODATACOW | inode_flags::NODATASUM);
    ensure!(
        kind != Some(FileType::REG_FILE) || cow_off != inode_flags::NODATACOW,
        "INO-11",
        "file has NODATACOW without NODATASUM, have flags 0x{flags:x}"
    );
    Ok(())
}

pub(super) fn check_ref(item: &ItemAt<'_>) -> Checked {
    ensure!(
        item.follows_its_inode(),
        "REF-01",
        "no previous item of the same inode, have {} expect {}",
        item.before.map_or(0, |(k, _)| k.objectid),
        item.key.objectid
    );
    inode_refs::walk(item.key, item.data, |_| ())
}

/// REF-07: an extended reference is where its hash says. REF-05's upper half is the kernel's since 6.18.
pub(super) fn check_ref_strict(item: &ItemAt<'_>) -> Checked {
    if item.key.key_type != KeyType::INODE_EXTREF {
        return Ok(());
    }
    let mut wrong = None;
    inode_refs::walk(item.key, item.data, |r| {
        debug_assert!(r.name.len() <= NAME_LEN_MAX);
        let hash = extref_hash(r.parent, r.name);
        if hash != item.key.offset {
            wrong.get_or_insert(hash);
        }
    })?;
    let Some(hash) = wrong else { return Ok(()) };
    ensure!(false, "REF-07", "extref hash mismatch with key, have {} expect {hash}", item.key.offset);
    Ok(())
}
