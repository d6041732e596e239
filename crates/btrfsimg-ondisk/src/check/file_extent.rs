//! Rules of EXTENT_DATA: FE- (`format/06 §6.6`).

use zerocopy::FromBytes;

use super::view::{ItemAt, is_aligned};
use super::{BlockContext, Checked, ensure};
use crate::{
    COMPRESSED_EXTENT_MAX, COMPRESSION_NONE, COMPRESSION_ZSTD, FILE_EXTENT_INLINE_HEAD_LEN, FILE_EXTENT_LEN,
    FileExtent, FileExtentHead, FileExtentKind, FileExtentRange, KeyType, max_symlink_len,
};

pub(super) fn check(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let (start, len) = (item.key.offset, item.data.len());
    ensure!(
        is_aligned(start, ctx.sectorsize),
        "FE-01",
        "unaligned file_offset for file extent, have {start} should be aligned to {}",
        ctx.sectorsize
    );
    ensure!(
        item.follows_its_inode(),
        "FE-02",
        "no previous item of the same inode, have {} expect {}",
        item.before.map_or(0, |(k, _)| k.objectid),
        item.key.objectid
    );
    let Ok((head, rest)) = FileExtentHead::ref_from_prefix(item.data) else {
        ensure!(
            false,
            "FE-03",
            "invalid item size, have {len} expect at least {FILE_EXTENT_INLINE_HEAD_LEN}"
        );
        return Ok(());
    };
    ensure!(head.kind <= 2, "FE-04", "invalid type for file extent, have {} expect range [0, 2]", head.kind);
    ensure!(
        head.compression <= COMPRESSION_ZSTD,
        "FE-05",
        "invalid compression for file extent, have {} expect range [0, 3]",
        head.compression
    );
    ensure!(
        head.encryption == 0,
        "FE-06",
        "invalid encryption for file extent, have {} expect 0",
        head.encryption
    );
    if head.kind == 0 {
        return check_inline(item, head);
    }
    let Ok(range) = FileExtentRange::ref_from_bytes(rest) else {
        ensure!(
            false,
            "FE-10",
            "invalid item size for reg/prealloc file extent, have {len} expect {FILE_EXTENT_LEN}"
        );
        return Ok(());
    };
    check_range(item, head, range, ctx)
}

fn check_inline(item: &ItemAt<'_>, head: &FileExtentHead) -> Checked {
    let start = item.key.offset;
    ensure!(start == 0, "FE-07", "invalid file_offset for inline file extent, have {start} expect 0");
    if head.compression != COMPRESSION_NONE {
        return Ok(());
    }
    let (stored, ram) = ((item.data.len() - FILE_EXTENT_INLINE_HEAD_LEN) as u64, head.ram_bytes.get());
    ensure!(
        stored == ram,
        "FE-09",
        "invalid ram_bytes for uncompressed inline extent, have {ram} expect {stored}"
    );
    Ok(())
}

fn check_range(
    item: &ItemAt<'_>,
    head: &FileExtentHead,
    range: &FileExtentRange,
    ctx: &BlockContext,
) -> Checked {
    let fields = [
        ("ram_bytes", head.ram_bytes),
        ("disk_bytenr", range.disk_bytenr),
        ("disk_num_bytes", range.disk_num_bytes),
        ("offset", range.offset),
        ("num_bytes", range.num_bytes),
    ];
    for (name, value) in fields {
        ensure!(
            is_aligned(value.get(), ctx.sectorsize),
            "FE-11",
            "invalid {name} for file extent, have {value} should be aligned to {}",
            ctx.sectorsize
        );
    }
    let (start, num) = (item.key.offset, range.num_bytes.get());
    ensure!(
        start.checked_add(num).is_some(),
        "FE-12",
        "extent end overflow, have file offset {start} extent num bytes {num}"
    );
    let Some((key, data)) = item.before else { return Ok(()) };
    if key.objectid != item.key.objectid || key.key_type != KeyType::EXTENT_DATA {
        return Ok(());
    }
    let end = FileExtent::parse(data).ok().and_then(|e| key.offset.checked_add(e.covers(ctx.sectorsize)));
    ensure!(
        end.is_none_or(|end| end <= start),
        "FE-13",
        "file extent end range ({}) goes beyond start offset ({start}) of the next file extent",
        end.unwrap_or_default()
    );
    Ok(())
}

/// What kernels do not check. Assumes that [`check`] passed.
pub(super) fn check_strict(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let Ok(extent) = FileExtent::parse(item.data) else { return Ok(()) };
    let newest = ctx.generation.saturating_add(1);
    ensure!(
        extent.generation <= newest,
        "FE-28",
        "invalid generation for file extent, have {} expect [0, {newest}]",
        extent.generation
    );
    match &extent.kind {
        FileExtentKind::Inline(stored) => check_inline_strict(&extent, stored.len(), ctx),
        FileExtentKind::Regular(range) => {
            ensure!(range.num_bytes.get() > 0, "FE-14", "invalid num_bytes for file extent, have 0");
            match range.disk_bytenr.get() {
                0 => check_inside(range, extent.ram_bytes),
                _ => check_regular_strict(&extent, range),
            }
        }
        FileExtentKind::Prealloc(range) => {
            ensure!(range.num_bytes.get() > 0, "FE-14", "invalid num_bytes for file extent, have 0");
            let encoded =
                FileExtentHead::ref_from_prefix(item.data).is_ok_and(|(h, _)| h.other_encoding != 0);
            ensure!(
                extent.compression == 0 && !encoded,
                "FE-16",
                "preallocated extent with compression {}, expect 0",
                extent.compression
            );
            check_inside(range, range.disk_num_bytes.get().min(extent.ram_bytes))
        }
    }
}

fn check_inside(range: &FileExtentRange, size: u64) -> Checked {
    let end = range.offset.get().checked_add(range.num_bytes.get());
    ensure!(
        end.is_some_and(|e| e <= size),
        "FE-15",
        "file extent runs beyond its extent, have offset {} num_bytes {} expect at most {size}",
        range.offset,
        range.num_bytes
    );
    Ok(())
}

fn check_regular_strict(extent: &FileExtent<'_>, range: &FileExtentRange) -> Checked {
    let (ram, disk) = (extent.ram_bytes, range.disk_num_bytes.get());
    if extent.compression == COMPRESSION_NONE {
        check_inside(range, disk.min(ram))?;
        ensure!(ram == disk, "FE-17", "ram_bytes of an uncompressed extent, have {ram} expect {disk}");
        return Ok(());
    }
    check_inside(range, ram)?;
    let max = COMPRESSED_EXTENT_MAX as u64;
    ensure!(
        ram <= max && disk < ram,
        "FE-18",
        "compressed extent of unusual size, have ram_bytes {ram} disk_num_bytes {disk} expect at most {max}, smaller on disk"
    );
    Ok(())
}

fn check_inline_strict(extent: &FileExtent<'_>, stored: usize, ctx: &BlockContext) -> Checked {
    let sector = usize::try_from(ctx.sectorsize).unwrap_or(usize::MAX);
    let max = max_symlink_len(sector, ctx.nodesize);
    let ram_max = if extent.compression == COMPRESSION_NONE { max as u64 } else { ctx.sectorsize };
    ensure!(
        extent.ram_bytes > 0 && extent.ram_bytes <= ram_max && stored <= max,
        "FE-19",
        "inline extent of invalid length, have ram_bytes {} stored {stored} expect [1, {ram_max}] and at most {max}",
        extent.ram_bytes
    );
    Ok(())
}
