//! Items of the trees that keep space: extents, chunks, devices, checksums, free space, quotas.

use btrfsimg_ondisk::{
    BackRef, BlockContext, BlockGroupItem, DevExtent, DevItem, DevReplace, DevStats, ExtentItemView,
    FreeSpaceHeader, FreeSpaceInfo, InlineRef, Item, QgroupInfo, QgroupLimit, QgroupStatus, RaidStride, Uuid,
    block_group_flags, extent_flags,
};
use zerocopy::FromBytes;

use super::item::{bytes, flags};
use crate::chunk_map::Chunk;

fn back_ref(back: &BackRef, count: u32) -> String {
    match back {
        BackRef::TreeBlock { root } => format!("tree block root {root}"),
        BackRef::SharedBlock { parent } => format!("shared block parent {parent}"),
        BackRef::Data { root, objectid, offset } => {
            format!("data root {root} objectid {objectid} offset {offset} count {count}")
        }
        BackRef::SharedData { parent } => format!("shared data parent {parent} count {count}"),
    }
}

pub(super) fn extent_item(item: &Item<'_>) -> Option<String> {
    let view = ExtentItemView::parse(item.key, item.data).ok()?;
    let bits = view.head.flags.get();
    let names = [
        (extent_flags::DATA, "DATA"),
        (extent_flags::TREE_BLOCK, "TREE_BLOCK"),
        (extent_flags::FULL_BACKREF, "FULL_BACKREF"),
    ];
    let names: Vec<&str> = names.iter().filter(|(bit, _)| bits & bit != 0).map(|&(_, n)| n).collect();
    let mut out =
        format!("refs {} generation {} flags {}", view.head.refs, view.head.generation, flags(bits, &names));
    if let Some(info) = view.tree_block_info {
        out.push_str(&format!(" first key {} level {}", info.key.get(), info.level));
    }
    for inline in &view.inline {
        out.push_str("; ");
        match inline {
            InlineRef::Ref(back, count) => out.push_str(&back_ref(back, *count)),
            InlineRef::Owner(root) => out.push_str(&format!("owner root {root}")),
        }
    }
    Some(out)
}

pub(super) fn keyed_ref(item: &Item<'_>) -> Option<String> {
    BackRef::parse_keyed(item.key, item.data).map(|(back, count)| back_ref(&back, count))
}

pub(super) fn csums(item: &Item<'_>, ctx: &BlockContext) -> String {
    let count = (item.data.len() / ctx.csum.width()) as u64;
    let start = item.key.offset;
    let end = start.saturating_add(count.saturating_mul(ctx.sectorsize));
    format!("{} of {count} sectors, {start} to {end}", ctx.csum)
}

pub(super) fn block_group(data: &[u8]) -> Option<String> {
    let b = BlockGroupItem::read_from_bytes(data).ok()?;
    let kind = block_group_flags::describe(b.flags.get());
    Some(format!("used {} chunk_objectid {} flags {kind}", b.used, b.chunk_objectid))
}

pub(super) fn chunk(item: &Item<'_>) -> Option<String> {
    let chunk = Chunk::parse_item(item)?;
    let c = &chunk.item;
    let mut out = format!(
        "length {} owner {} stripe_len {} type {} io_align {} io_width {} sector_size {} num_stripes {} \
         sub_stripes {}",
        c.length,
        c.owner,
        c.stripe_len,
        block_group_flags::describe(c.flags.get()),
        c.io_align,
        c.io_width,
        c.sector_size,
        c.num_stripes,
        c.sub_stripes,
    );
    for s in &chunk.stripes {
        out.push_str(&format!(
            "; devid {} offset {} dev_uuid {}",
            s.devid,
            s.offset,
            Uuid::from_bytes(s.dev_uuid)
        ));
    }
    Some(out)
}

pub(super) fn dev_item(data: &[u8]) -> Option<String> {
    let d = DevItem::read_from_bytes(data).ok()?;
    Some(format!(
        "devid {} total_bytes {} bytes_used {} sector_size {} type {} generation {} uuid {} fsid {}",
        d.devid,
        d.total_bytes,
        d.bytes_used,
        d.sector_size,
        d.dev_type,
        d.generation,
        Uuid::from_bytes(d.uuid),
        Uuid::from_bytes(d.fsid),
    ))
}

pub(super) fn dev_extent(data: &[u8]) -> Option<String> {
    let d = DevExtent::read_from_bytes(data).ok()?;
    Some(format!(
        "chunk_tree {} chunk_objectid {} chunk_offset {} length {} chunk_tree_uuid {}",
        d.chunk_tree,
        d.chunk_objectid,
        d.chunk_offset,
        d.length,
        Uuid::from_bytes(d.chunk_tree_uuid),
    ))
}

pub(super) fn free_space_info(data: &[u8]) -> Option<String> {
    let f = FreeSpaceInfo::read_from_bytes(data).ok()?;
    Some(format!("extent_count {} flags {}", f.extent_count, f.flags))
}

pub(super) fn free_space_bitmap(item: &Item<'_>, ctx: &BlockContext) -> String {
    let free: u64 = item.data.iter().map(|b| u64::from(b.count_ones())).sum();
    format!("free {} of {}", free.saturating_mul(ctx.sectorsize), item.key.offset)
}

pub(super) fn free_space_header(data: &[u8]) -> Option<String> {
    let h = FreeSpaceHeader::read_from_bytes(data).ok()?;
    let location = h.location.get();
    Some(format!(
        "cache inode {location} generation {} entries {} bitmaps {}",
        h.generation, h.num_entries, h.num_bitmaps
    ))
}

pub(super) fn raid_stripe(data: &[u8]) -> Option<String> {
    let strides = <[RaidStride]>::ref_from_bytes(data).ok()?;
    let one = |s: &RaidStride| format!("devid {} physical {}", s.devid, s.physical);
    Some(strides.iter().map(one).collect::<Vec<_>>().join("; "))
}

pub(super) fn qgroup_status(data: &[u8]) -> Option<String> {
    let (q, rest) = QgroupStatus::read_from_prefix(data).ok()?;
    let bits = q.flags.get();
    let names = [(1, "ON"), (2, "RESCAN"), (4, "INCONSISTENT"), (8, "SIMPLE_MODE")];
    let names: Vec<&str> = names.iter().filter(|(bit, _)| bits & bit != 0).map(|&(_, n)| n).collect();
    let tail = if rest.is_empty() { String::new() } else { format!(" and {}", bytes(rest)) };
    Some(format!(
        "version {} generation {} flags {} rescan {}{tail}",
        q.version,
        q.generation,
        flags(bits, &names),
        q.rescan
    ))
}

pub(super) fn qgroup_info(data: &[u8]) -> Option<String> {
    let q = QgroupInfo::read_from_bytes(data).ok()?;
    Some(format!(
        "generation {} rfer {} rfer_cmpr {} excl {} excl_cmpr {}",
        q.generation, q.rfer, q.rfer_cmpr, q.excl, q.excl_cmpr
    ))
}

pub(super) fn qgroup_limit(data: &[u8]) -> Option<String> {
    let q = QgroupLimit::read_from_bytes(data).ok()?;
    Some(format!(
        "flags 0x{:x} max_rfer {} max_excl {} rsv_rfer {} rsv_excl {}",
        q.flags.get(),
        q.max_rfer,
        q.max_excl,
        q.rsv_rfer,
        q.rsv_excl
    ))
}

pub(super) fn dev_stats(data: &[u8]) -> Option<String> {
    let (s, _) = DevStats::read_from_prefix(data).ok()?;
    let [write, read, flush, corruption, generation] = s.values;
    Some(format!(
        "write {write} read {read} flush {flush} corruption {corruption} generation {generation} errors"
    ))
}

pub(super) fn dev_replace(data: &[u8]) -> Option<String> {
    let r = DevReplace::read_from_bytes(data).ok()?;
    Some(format!(
        "src_devid {} cursor {} to {} state {} write_errors {} read_errors {}",
        r.src_devid,
        r.cursor_left,
        r.cursor_right,
        r.replace_state,
        r.num_write_errors,
        r.num_uncorrectable_read_errors
    ))
}
