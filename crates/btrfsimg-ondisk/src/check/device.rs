//! Rules of DEV_ITEM, DEV_EXTENT and BLOCK_GROUP_ITEM: DEV-, DE-, BG- (`format/06 §6.9`).

use zerocopy::FromBytes;

use super::view::{ItemAt, is_aligned};
use super::{BlockContext, Checked, ensure};
use crate::block_group_flags as bg;
use crate::{BlockGroupItem, DevExtent, DevItem, KeyType, incompat, objectid};

/// Bytes of a BLOCK_GROUP_ITEM with the remap tree's fields.
const BLOCK_GROUP_V2_LEN: usize = 36;

pub(super) fn check_dev_item(item: &ItemAt<'_>) -> Checked {
    let key = item.key;
    ensure!(
        key.objectid == objectid::DEV_ITEMS,
        "DEV-01",
        "invalid objectid, have {} expect {}",
        key.objectid,
        objectid::DEV_ITEMS
    );
    let Ok(dev) = DevItem::ref_from_bytes(item.data) else {
        ensure!(
            false,
            "DEV-02",
            "invalid item size, have {} expect {}",
            item.data.len(),
            size_of::<DevItem>()
        );
        return Ok(());
    };
    ensure!(
        dev.devid == key.offset,
        "DEV-03",
        "devid mismatch, key has {} item has {}",
        key.offset,
        dev.devid
    );
    ensure!(
        dev.bytes_used.get() <= dev.total_bytes.get(),
        "DEV-04",
        "invalid bytes used, have {} expect [0, {}]",
        dev.bytes_used,
        dev.total_bytes
    );
    Ok(())
}

pub(super) fn check_dev_extent(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let Ok(extent) = DevExtent::ref_from_bytes(item.data) else {
        ensure!(
            false,
            "DE-05",
            "invalid item size, have {} expect {}",
            item.data.len(),
            size_of::<DevExtent>()
        );
        return Ok(());
    };
    ensure!(
        extent.chunk_tree == objectid::CHUNK_TREE,
        "DE-01",
        "invalid dev extent chunk tree id, have {} expect {}",
        extent.chunk_tree,
        objectid::CHUNK_TREE
    );
    ensure!(
        extent.chunk_objectid == objectid::FIRST_CHUNK_TREE,
        "DE-02",
        "invalid dev extent chunk objectid, have {} expect {}",
        extent.chunk_objectid,
        objectid::FIRST_CHUNK_TREE
    );
    for (name, value) in [
        ("key offset", item.key.offset),
        ("chunk offset", extent.chunk_offset.get()),
        ("length", extent.length.get()),
    ] {
        ensure!(
            is_aligned(value, ctx.sectorsize),
            "DE-03",
            "invalid dev extent {name}, have {value} not aligned to {}",
            ctx.sectorsize
        );
    }
    let Some((before, data)) = item.before else { return Ok(()) };
    if before.objectid != item.key.objectid || before.key_type != KeyType::DEV_EXTENT {
        return Ok(());
    }
    let length = DevExtent::ref_from_bytes(data).map_or(0, |e| e.length.get());
    let end = before.offset.saturating_add(length);
    ensure!(
        end <= item.key.offset,
        "DE-04",
        "dev extent overlap, prev offset {} len {length} current offset {}",
        before.offset,
        item.key.offset
    );
    Ok(())
}

/// DE-11, which only old versions of mkfs break.
pub(super) fn check_dev_extent_strict(item: &ItemAt<'_>) -> Checked {
    let start = item.key.offset;
    ensure!(
        start >= 1 << 20,
        "DE-11",
        "dev extent starts in the reserved area, have {start} expect at least 1048576"
    );
    Ok(())
}

pub(super) fn check_block_group(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let length = item.key.offset;
    ensure!(length > 0, "BG-01", "invalid block group size 0");
    let expect = if ctx.incompat & incompat::REMAP_TREE != 0 {
        BLOCK_GROUP_V2_LEN
    } else {
        size_of::<BlockGroupItem>()
    };
    let have = item.data.len();
    ensure!(have == expect, "BG-02", "invalid item size, have {have} expect {expect}");
    let Ok((group, _)) = BlockGroupItem::ref_from_prefix(item.data) else { return Ok(()) };
    ensure!(
        group.chunk_objectid == objectid::FIRST_CHUNK_TREE || ctx.incompat & incompat::EXTENT_TREE_V2 != 0,
        "BG-03",
        "invalid block group chunk objectid, have {} expect {}",
        group.chunk_objectid,
        objectid::FIRST_CHUNK_TREE
    );
    let used = group.used.get();
    ensure!(used <= length, "BG-04", "invalid block group used, have {used} expect [0, {length}]");
    let flags = group.flags.get();
    let profile = flags & bg::PROFILE_MASK;
    ensure!(
        profile.count_ones() <= 1,
        "BG-05",
        "invalid profile flags, have 0x{profile:x} ({} bits set) expect no more than 1 bit set",
        profile.count_ones()
    );
    let kind = flags & bg::TYPE_MASK;
    ensure!(
        [bg::DATA, bg::METADATA, bg::SYSTEM, bg::DATA | bg::METADATA].contains(&kind),
        "BG-06",
        "invalid type, have 0x{kind:x} expect DATA, METADATA, SYSTEM or DATA|METADATA"
    );
    Ok(())
}
