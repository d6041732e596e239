//! Loading a block group, and keeping the free space tree exact (`format/08 §8.6`).

use std::ops::Range;

use btrfsimg_ondisk::{BlockGroupItem, FreeSpaceInfo, Item, Key, KeyType, Logical, compat_ro, objectid};
use zerocopy::{FromBytes, IntoBytes};

use super::runs::Runs;
use super::space::{FreeSpace, Group, Recorded};
use super::{ItemBatch, Transaction};
use crate::block_store::BlockStore;
use crate::chunk_map::Chunk;
use crate::error::{Error, Result};
use crate::tree::{Cursor, block_group_tree, lookup, walk_items};

/// Bits of [`FreeSpaceInfo::flags`].
const USING_BITMAPS: u32 = 1;
/// Bytes of a full bitmap item.
#[doc(alias = "BTRFS_FREE_SPACE_BITMAP_SIZE")]
const BITMAP_BYTES: u64 = 256;

/// From how many free runs of a block group on they are kept as bitmaps, and below how many as extents again.
#[doc(alias = "set_free_space_tree_thresholds")]
fn bitmap_thresholds(length: u64, sectorsize: u64) -> (u64, u64) {
    let bitmaps = length.div_ceil(BITMAP_BYTES * 8 * sectorsize);
    let header = btrfsimg_ondisk::ITEM_HEADER_LEN as u64;
    let high = bitmaps * (header + BITMAP_BYTES) / header;
    (high, high.saturating_sub(100))
}

/// Whether the free space tree is there and exact.
pub(super) fn has_free_space_tree(compat_ro_flags: u64) -> bool {
    let both = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
    compat_ro_flags & both == both
}

/// The committed state of the block group that starts at `start`.
pub(super) fn load_group(store: &BlockStore, start: Logical) -> Result<Group> {
    let chunk = store
        .chunks()
        .lookup(start)
        .ok_or_else(|| Error::corrupt("BLK-01", format!("no chunk at {start}")))?;
    let compat_ro_flags = store.superblock().compat_ro_flags.get();
    let key = Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
    let data = lookup(store, block_group_tree(compat_ro_flags), &key)?
        .ok_or_else(|| Error::corrupt("BG-07", format!("chunk {start} has no block group item")))?;
    let item = BlockGroupItem::read_from_bytes(&data)
        .map_err(|_| Error::corrupt("BG-02", format!("block group {start} has an invalid item size")))?;
    let (recorded, written) = if has_free_space_tree(compat_ro_flags) {
        let (recorded, runs) = load_free_space_tree(store, chunk)?;
        (recorded, Some(runs))
    } else {
        (Recorded::No, None)
    };
    let after = match &written {
        Some(runs) => runs.clone(),
        None => free_by_extent_tree(store, chunk)?,
    };
    if after.total().checked_add(item.used.get()) != Some(chunk.length) {
        return Err(Error::corrupt(
            "FS-08",
            format!(
                "block group {start}: free {} and used {} do not add up to {}",
                after.total(),
                item.used,
                chunk.length
            ),
        ));
    }
    let free = FreeSpace::new(recorded, written, after, chunk);
    Ok(Group::with_free(chunk, item.used.get(), Some(item.used.get()), free))
}

fn load_free_space_tree(store: &BlockStore, chunk: &Chunk) -> Result<(Recorded, Runs)> {
    let info_key = info_key(chunk.start.0, chunk.length);
    let last = Key::new(chunk.end() - 1, KeyType(u8::MAX), u64::MAX);
    let (mut recorded, mut runs) = (None, Runs::default());
    walk_items(store, objectid::FREE_SPACE_TREE, &info_key, &last, |item| {
        match item.key.key_type {
            KeyType::FREE_SPACE_INFO if item.key == info_key => {
                let info = FreeSpaceInfo::read_from_bytes(item.data)
                    .map_err(|_| Error::corrupt("FS-01", format!("{} has an invalid size", item.key)))?;
                let bitmaps = info.flags.get() & USING_BITMAPS != 0;
                recorded = Some(if bitmaps { Recorded::Bitmaps } else { Recorded::Extents });
            }
            KeyType::FREE_SPACE_EXTENT => runs.insert(inside(chunk, item.key)?),
            KeyType::FREE_SPACE_BITMAP => read_bitmap(store, chunk, &item, &mut runs)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let recorded = recorded.ok_or_else(|| {
        Error::corrupt("FS-04", format!("block group {} has no free space info", chunk.start))
    })?;
    Ok((recorded, runs))
}

/// The range that a free space item's key names, if it lies inside its block group.
fn inside(chunk: &Chunk, key: Key) -> Result<Range<u64>> {
    let end = key
        .objectid
        .checked_add(key.offset)
        .filter(|end| *end <= chunk.end() && key.objectid >= chunk.start.0);
    let end =
        end.ok_or_else(|| Error::corrupt("FS-05", format!("{key} leaves block group {}", chunk.start)))?;
    Ok(key.objectid..end)
}

fn read_bitmap(store: &BlockStore, chunk: &Chunk, item: &Item<'_>, runs: &mut Runs) -> Result<()> {
    let range = inside(chunk, item.key)?;
    let sectorsize = store.ctx().sectorsize;
    let sectors = (range.end - range.start) / sectorsize;
    if (item.data.len() as u64) < sectors.div_ceil(8) {
        return Err(Error::corrupt("FS-03", format!("{} has an invalid size", item.key)));
    }
    let is_free = |i: u64| item.data[(i / 8) as usize] & (1 << (i % 8)) != 0;
    let mut i = 0;
    while i < sectors {
        let end = (i..sectors).find(|&j| is_free(j) != is_free(i)).unwrap_or(sectors);
        if is_free(i) {
            runs.insert(range.start + i * sectorsize..range.start + end * sectorsize);
        }
        i = end;
    }
    Ok(())
}

/// Bytes of the longest free run in the block group of `chunk`, where the free space tree says so. A full group costs
/// a look at its neighbours' leaf: its item in the extent tree stays unread.
pub(super) fn longest_run(store: &BlockStore, chunk: &Chunk) -> Result<Option<u64>> {
    if !has_free_space_tree(store.superblock().compat_ro_flags.get()) {
        return Ok(None);
    }
    load_free_space_tree(store, chunk).map(|(_, runs)| Some(runs.longest()))
}

/// Without a free space tree: what no extent item covers.
fn free_by_extent_tree(store: &BlockStore, chunk: &Chunk) -> Result<Runs> {
    let mut free = Runs::one(chunk.start.0..chunk.end());
    let first = Key::new(chunk.start.0, KeyType::UNTYPED, 0);
    let last = Key::new(chunk.end() - 1, KeyType(u8::MAX), u64::MAX);
    let nodesize = store.ctx().nodesize as u64;
    walk_items(store, objectid::EXTENT_TREE, &first, &last, |item| {
        let Key { objectid, key_type, offset } = item.key;
        match key_type {
            KeyType::EXTENT_ITEM => free.remove(objectid..objectid.saturating_add(offset)),
            KeyType::METADATA_ITEM => free.remove(objectid..objectid.saturating_add(nodesize)),
            _ => {}
        }
        Ok(true)
    })?;
    Ok(free)
}

/// Asks the extent tree whether no extent is in `run`, which the free space tree calls free and which is in the block
/// group at `group`: the last extent that begins before the run's end must end before the run.
///
/// # Errors
/// FS-08 when there is one.
pub(super) fn check_free(store: &BlockStore, group: u64, run: &Range<u64>) -> Result<()> {
    let before = |objectid, key_type| {
        let last = Key::new(objectid, key_type, u64::MAX);
        Ok::<_, Error>(Cursor::at_or_before(store, objectid::EXTENT_TREE, &last)?.map(|c| c.key()))
    };
    let mut last = before(run.end - 1, KeyType(u8::MAX))?;
    if let Some(key) = last.filter(|key| key.key_type == KeyType::BLOCK_GROUP_ITEM) {
        last = before(key.objectid, KeyType(KeyType::BLOCK_GROUP_ITEM.0 - 1))?;
    }
    let Some(mut key) = last.filter(|key| key.objectid >= group) else { return Ok(()) };
    if !matches!(key.key_type, KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM) {
        // Its references come behind its item.
        key = before(key.objectid, KeyType::METADATA_ITEM)?
            .filter(|k| k.objectid == key.objectid)
            .unwrap_or(key);
    }
    let end = match key.key_type {
        KeyType::EXTENT_ITEM => key.objectid.saturating_add(key.offset),
        KeyType::METADATA_ITEM => key.objectid.saturating_add(store.ctx().nodesize as u64),
        _ => u64::MAX,
    };
    if end > run.start {
        let reason = format!("{} to {} is free, but there is the extent item {key}", run.start, run.end);
        return Err(Error::corrupt("FS-08", reason));
    }
    Ok(())
}

fn info_key(start: u64, length: u64) -> Key {
    Key::new(start, KeyType::FREE_SPACE_INFO, length)
}

fn extent_key(range: &Range<u64>) -> Key {
    Key::new(range.start, KeyType::FREE_SPACE_EXTENT, range.end - range.start)
}

impl Transaction<'_> {
    /// Brings the free space tree up to date for every block group whose free space has changed since it was last
    /// written there. Says whether it changed anything: changing the tree may itself take space.
    pub(super) fn write_free_space(&mut self) -> Result<bool> {
        let stale: Vec<u64> = self
            .space
            .groups()
            .filter(|g| g.free.recorded != Recorded::No && g.free.written.as_ref() != Some(&g.free.after))
            .map(|g| g.start)
            .collect();
        for &start in &stale {
            let sectorsize = u64::from(self.sectorsize());
            let group = self.space.group_mut(start).expect("listed just now");
            let (was, length, after) = (group.free.recorded, group.length, group.free.after.clone());
            let before = group.free.written.replace(after.clone());
            let (count, (high, low)) = (after.len() as u64, bitmap_thresholds(length, sectorsize));
            let recorded = match was {
                Recorded::Extents if count > high => Recorded::Bitmaps,
                Recorded::Bitmaps if count < low => Recorded::Extents,
                same => same,
            };
            group.free.recorded = recorded;
            self.write_info(start, length, recorded, &after, before.is_some())?;
            let (range, before) = (start..start + length, before.unwrap_or_default());
            match (was, recorded) {
                (Recorded::Bitmaps, Recorded::Bitmaps) => self.write_bitmaps(range, Some(&before), &after)?,
                (_, Recorded::Bitmaps) => {
                    self.remove_free_space_items(&range)?;
                    self.write_bitmaps(range, None, &after)?;
                }
                (Recorded::Bitmaps, _) => {
                    self.remove_free_space_items(&range)?;
                    self.write_extents(&Runs::default(), &after)?;
                }
                _ => self.write_extents(&before, &after)?,
            }
        }
        Ok(!stale.is_empty())
    }

    fn write_info(
        &mut self,
        start: u64,
        length: u64,
        recorded: Recorded,
        runs: &Runs,
        exists: bool,
    ) -> Result<()> {
        let count =
            u32::try_from(runs.len()).map_err(|_| Error::Invalid("too many free extents".to_owned()))?;
        let flags = if recorded == Recorded::Bitmaps { USING_BITMAPS } else { 0 };
        let info = FreeSpaceInfo { extent_count: count.into(), flags: flags.into() };
        let key = info_key(start, length);
        if exists {
            self.replace(objectid::FREE_SPACE_TREE, key, info.as_bytes())
        } else {
            self.insert(objectid::FREE_SPACE_TREE, key, info.as_bytes())
        }
    }

    fn write_extents(&mut self, before: &Runs, after: &Runs) -> Result<()> {
        for run in difference(before, after) {
            self.remove(objectid::FREE_SPACE_TREE, extent_key(&run))?;
        }
        let mut batch = ItemBatch::new();
        difference(after, before).for_each(|run| batch.push(extent_key(&run), &[]));
        self.insert_batch(objectid::FREE_SPACE_TREE, &batch)
    }

    /// Removes the extents or bitmaps of a block group; its info stays.
    fn remove_free_space_items(&mut self, group: &Range<u64>) -> Result<()> {
        let first = Key::new(group.start, KeyType::FREE_SPACE_EXTENT, 0);
        let last = Key::new(group.end - 1, KeyType(u8::MAX), u64::MAX);
        self.remove_range(objectid::FREE_SPACE_TREE, first, last).map(|_| ())
    }

    /// Rewrites the bitmaps whose bits have changed; all of them where there were none before.
    fn write_bitmaps(&mut self, group: Range<u64>, before: Option<&Runs>, after: &Runs) -> Result<()> {
        let sectorsize = u64::from(self.sectorsize());
        let span = BITMAP_BYTES * 8 * sectorsize;
        let mut at = group.start;
        while at < group.end {
            let window = at..(at + span).min(group.end);
            let key = Key::new(at, KeyType::FREE_SPACE_BITMAP, window.end - at);
            let new = bitmap(after, &window, sectorsize);
            match before.map(|runs| bitmap(runs, &window, sectorsize)) {
                None => self.insert(objectid::FREE_SPACE_TREE, key, &new)?,
                Some(old) if old != new => self.replace(objectid::FREE_SPACE_TREE, key, &new)?,
                Some(_) => {}
            }
            at = window.end;
        }
        Ok(())
    }
}

/// The runs of `a` that `b` does not have exactly so.
fn difference<'r>(a: &'r Runs, b: &'r Runs) -> impl Iterator<Item = Range<u64>> + 'r {
    let mut b = b.iter().peekable();
    a.iter().filter(move |run| {
        while b.next_if(|other| other.start < run.start).is_some() {}
        b.peek() != Some(run)
    })
}

/// One bit a sector, set where it is free, least significant first.
#[expect(clippy::cast_possible_truncation, reason = "indexes inside a bitmap of 256 bytes")]
fn bitmap(runs: &Runs, window: &Range<u64>, sectorsize: u64) -> Vec<u8> {
    let sectors = (window.end - window.start) / sectorsize;
    let mut bits = vec![0u8; sectors.div_ceil(8) as usize];
    for run in runs.meeting(window) {
        let (start, end) = (run.start.max(window.start), run.end.min(window.end));
        for i in (start..end).step_by(sectorsize as usize).map(|at| (at - window.start) / sectorsize) {
            bits[(i / 8) as usize] |= 1 << (i % 8);
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As computed by hand from the kernel's rule (`format/08 §8.6`): a bitmap of 256 bytes for 2048 sectors.
    #[test]
    fn thresholds_are_the_kernels() {
        for (length, sectorsize, thresholds) in [
            (8 << 20, 4096, (11, 0)),
            (1 << 30, 4096, (1438, 1338)),
            ((1 << 30) + 65536, 4096, (1449, 1349)),
            (64 << 20, 4096, (89, 0)),
            (1 << 30, 65536, (89, 0)),
            (10 << 30, 16384, (3596, 3496)),
        ] {
            assert_eq!(bitmap_thresholds(length, sectorsize), thresholds, "{length} {sectorsize}");
        }
    }
}
