//! Rules of the free space tree's items: FS-01 to FS-03 (`format/06 §6.11`).

use zerocopy::FromBytes;

use super::view::{ItemAt, is_aligned};
use super::{BlockContext, Checked, ensure};
use crate::{FreeSpaceInfo, KeyType};

/// Bytes of a bitmap item.
const BITMAP_LEN_MAX: u64 = 256;

pub(super) fn check(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    match item.key.key_type {
        KeyType::FREE_SPACE_INFO => check_info(item, ctx),
        KeyType::FREE_SPACE_EXTENT => check_extent(item, ctx),
        _ => check_bitmap(item, ctx),
    }
}

fn range_is_aligned(item: &ItemAt<'_>, ctx: &BlockContext) -> bool {
    let (start, length) = (item.key.objectid, item.key.offset);
    is_aligned(start, ctx.sectorsize)
        && is_aligned(length, ctx.sectorsize)
        && length > 0
        && start.checked_add(length).is_some()
}

fn check_info(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    ensure!(range_is_aligned(item, ctx), "FS-01", "invalid range of free space info {}", item.key);
    let Ok(info) = FreeSpaceInfo::ref_from_bytes(item.data) else {
        ensure!(false, "FS-01", "invalid item size, have {} expect 8", item.data.len());
        return Ok(());
    };
    let flags = info.flags.get();
    ensure!(flags & !1 == 0, "FS-01", "unknown flags for free space info, have 0x{flags:x} expect mask 0x1");
    let max = item.key.offset / ctx.sectorsize;
    ensure!(
        u64::from(info.extent_count.get()) <= max,
        "FS-01",
        "invalid extent count for free space info, have {} expect [0, {max}]",
        info.extent_count
    );
    Ok(())
}

fn check_extent(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    ensure!(range_is_aligned(item, ctx), "FS-02", "invalid range of free space extent {}", item.key);
    ensure!(item.data.is_empty(), "FS-02", "invalid item size, have {} expect 0", item.data.len());
    Ok(())
}

fn check_bitmap(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    ensure!(range_is_aligned(item, ctx), "FS-03", "invalid range of free space bitmap {}", item.key);
    let expect = (item.key.offset / ctx.sectorsize).div_ceil(8);
    let have = item.data.len();
    ensure!(
        have as u64 == expect && expect <= BITMAP_LEN_MAX,
        "FS-03",
        "invalid item size, have {have} expect {expect}, at most {BITMAP_LEN_MAX}"
    );
    Ok(())
}
