//! Rules of EXTENT_CSUM: CS-01 to CS-04 (`format/06 §6.7`).

use super::view::{ItemAt, is_aligned};
use super::{BlockContext, Checked, ensure};
use crate::{KeyType, objectid};

pub(super) fn check(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let (key, width) = (item.key, ctx.csum.width());
    ensure!(
        key.objectid == objectid::EXTENT_CSUM,
        "CS-01",
        "invalid key objectid for csum item, have {} expect -10",
        objectid::Printed(key.objectid)
    );
    ensure!(
        is_aligned(key.offset, ctx.sectorsize),
        "CS-02",
        "unaligned key offset for csum item, have {} should be aligned to {}",
        key.offset,
        ctx.sectorsize
    );
    let len = item.data.len();
    ensure!(
        len.is_multiple_of(width),
        "CS-03",
        "unaligned item size for csum item, have {len} should be aligned to {width}"
    );
    let Some((before, data)) = item.before.filter(|(k, _)| k.key_type == KeyType::EXTENT_CSUM) else {
        return Ok(());
    };
    let covered = (data.len() / width) as u64 * ctx.sectorsize;
    ensure!(
        before.offset.checked_add(covered).is_some_and(|end| end <= key.offset),
        "CS-04",
        "csum end range ({}) goes beyond the start range ({}) of the next csum item",
        before.offset.saturating_add(covered),
        key.offset
    );
    Ok(())
}

pub(super) fn check_strict(item: &ItemAt<'_>) -> Checked {
    ensure!(!item.data.is_empty(), "CS-03", "csum item without a checksum");
    Ok(())
}
