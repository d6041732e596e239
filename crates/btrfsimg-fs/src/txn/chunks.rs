//! New chunks: where they go, how large they are, and their items (`format/07 §7.3`).

use std::ops::Range;

use btrfsimg_ondisk::{
    BlockGroupItem, ChunkItem, DevExtent, DiskKey, Key, KeyType, Logical, Physical, STRIPE_LEN, Stripe,
    block_group_flags as bg, objectid,
};
use zerocopy::IntoBytes;

use super::free_space::has_free_space_tree;
use super::runs::Runs;
use super::space::{Group, Recorded, SpaceKind};
use super::{NewChunk, Transaction};
use crate::chunk_map::Chunk;
use crate::error::{Error, Result};
use crate::tree::block_group_tree;

const MIB: u64 = 1 << 20;
/// The first bytes of a device are never part of a chunk.
pub(super) const DEVICE_START: u64 = MIB;

/// How new chunks are sized and how far the device reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkPolicy {
    /// A device of a given size: chunks as the kernel sizes them.
    Existing {
        /// Bytes of the device.
        total_bytes: u64,
        /// Whether it may become larger.
        grow: bool,
    },
    /// A new file system whose size is decided at the end: chunks grow with it, and the last are trimmed.
    Growing {
        /// Bytes that no chunk is smaller than.
        least: u64,
    },
}

impl Transaction<'_> {
    /// Adds a chunk of `kind` that holds at least `need` bytes. Its items follow at commit.
    pub(super) fn alloc_chunk(&mut self, kind: SpaceKind, need: u64) -> Result<()> {
        let flags = self.profile_of(kind);
        let copies = self.copies_of(kind);
        let need = need.next_multiple_of(STRIPE_LEN);
        let mut length = self.chunk_length(kind).max(need);
        loop {
            if let Some(places) = self.find_device_holes(length, copies)
                && self.chunk_leaves_reserve(kind, length)?
            {
                return self.add_chunk(kind, flags, length, &places);
            }
            if length == need {
                if self.remove_empty_group(kind)? {
                    length = self.chunk_length(kind).max(need);
                    continue;
                }
                return Err(Error::no_space(format!("{need} bytes of {}", bg::describe(flags))));
            }
            // Three quarters each time: what is left of the device is used, down to what is needed.
            length = (length / 4 * 3).next_multiple_of(STRIPE_LEN).min(length - STRIPE_LEN).max(need);
        }
    }

    /// Gives the device space of an empty block group of another kind back. Its items go at commit. Says whether there
    /// was one.
    ///
    /// The committed state has nothing in it, so that what is written there now harms neither state.
    pub(super) fn remove_empty_group(&mut self, kind: SpaceKind) -> Result<bool> {
        let Some(group) = self.space.take_empty_group(&self.volume.store, kind)? else { return Ok(false) };
        self.removed_chunks.extend(self.volume.store.chunks_mut().remove(Logical(group.start)));
        Ok(true)
    }

    /// Adds a chunk with one stripe at each of `places`.
    pub(crate) fn add_chunk(
        &mut self,
        kind: SpaceKind,
        flags: u64,
        length: u64,
        places: &[u64],
    ) -> Result<()> {
        let start = Logical(self.volume.store.chunks().logical_end().unwrap_or(DEVICE_START));
        let sb = &self.superblock;
        let item = ChunkItem {
            length: length.into(),
            owner: objectid::EXTENT_TREE.into(),
            stripe_len: STRIPE_LEN.into(),
            flags: flags.into(),
            io_align: 65536.into(),
            io_width: 65536.into(),
            sector_size: sb.sectorsize,
            num_stripes: if places.len() == 2 { 2 } else { 1 }.into(),
            sub_stripes: 1.into(),
        };
        let dev = sb.dev_item;
        let stripe = |&at: &u64| Stripe { devid: dev.devid, offset: at.into(), dev_uuid: dev.uuid };
        let chunk = Chunk::new(start, item, places.iter().map(stripe).collect());
        let tree = has_free_space_tree(self.superblock.compat_ro_flags.get());
        let recorded = if tree { Recorded::Extents } else { Recorded::No };
        self.volume.store.chunks_mut().insert(chunk.clone())?;
        self.space.add_new(kind, Group::new(&chunk, recorded));
        self.new_chunks.push(NewChunk { start, kind });
        Ok(())
    }

    /// Type and profile of the newest chunk of `kind`; data that have none yet are SINGLE, metadata DUP.
    fn profile_of(&self, kind: SpaceKind) -> u64 {
        let newest = self.volume.store.chunks().iter().rev().find(|c| kind.is_served_by(c.flags));
        let copies = if matches!(kind, SpaceKind::Data | SpaceKind::Mixed) { 0 } else { bg::DUP };
        newest.map_or(kind.flag() | copies, |c| c.flags)
    }

    /// How many copies a new chunk of `kind` has.
    pub(super) fn copies_of(&self, kind: SpaceKind) -> u64 {
        if self.profile_of(kind) & bg::DUP != 0 { 2 } else { 1 }
    }

    fn chunk_length(&self, kind: SpaceKind) -> u64 {
        let align = |n: u64| n / STRIPE_LEN * STRIPE_LEN;
        match (self.volume.policy, kind) {
            (_, SpaceKind::System) => 4 * MIB,
            (ChunkPolicy::Existing { total_bytes, grow: false }, kind) => {
                let cap = if kind == SpaceKind::Metadata { 256 * MIB } else { 1024 * MIB };
                align((total_bytes / 10).min(cap)).max(MIB)
            }
            (policy, kind) => {
                let least = if let ChunkPolicy::Growing { least } = policy { least } else { 0 };
                let chunks = self.volume.store.chunks();
                let total: u64 = chunks.iter().filter(|c| kind.is_served_by(c.flags)).map(|c| c.length).sum();
                align((total / 8).max(least).clamp(16 * MIB, 1024 * MIB))
            }
        }
    }

    /// Device offsets for `copies` stripes of `length` bytes in space that no chunk has.
    fn find_device_holes(&self, length: u64, copies: u64) -> Option<Vec<u64>> {
        let end = match self.volume.policy {
            ChunkPolicy::Existing { total_bytes, grow: false } => total_bytes,
            ChunkPolicy::Existing { grow: true, .. } | ChunkPolicy::Growing { .. } => u64::MAX / 2,
        };
        let mut free = Runs::default();
        free.insert(DEVICE_START..end);
        self.device_extents().for_each(|r| free.remove(r));
        let mut places = Vec::new();
        for _ in 0..copies {
            let at = free.find(length, STRIPE_LEN, 0)?;
            free.remove(at..at + length);
            places.push(at);
        }
        Some(places)
    }

    fn device_extents(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let chunks = self.volume.store.chunks().iter();
        chunks.flat_map(|c| c.stripes.iter().map(|s| s.offset.get()..s.offset.get().saturating_add(c.length)))
    }

    /// The end of the last device extent.
    pub(crate) fn device_extents_end(&self) -> u64 {
        self.device_extents().map(|r| r.end).max().unwrap_or(DEVICE_START)
    }

    /// Bytes of the device that chunks take.
    pub(crate) fn device_bytes_used(&self) -> u64 {
        self.device_extents().map(|r| r.end - r.start).sum()
    }

    /// Writes gathered references and checksums, so that what is left to write at commit is small and known.
    pub(crate) fn flush_refs(&mut self) -> Result<()> {
        self.flush_csums()?;
        self.run_refs()?;
        self.space.release_nodes();
        Ok(())
    }

    /// A size of the device that will do for all that this transaction holds, in bytes. The transaction is spent.
    ///
    /// # Errors
    /// As a commit.
    pub fn needed_size(mut self) -> Result<u64> {
        self.flush_refs()?;
        // Of the larger device more is kept.
        let end = self.device_extents_end();
        let metadata = self.reserve_bytes(end.saturating_add(end / 10))?.max(MIB);
        self.reserve.open = true;
        self.settle_spares(0, metadata)?;
        self.settle()?;
        Ok(self.device_extents_end().max(self.superblock.dev_item.total_bytes.get()))
    }

    /// Of a new file system: no chunk is smaller than this, in bytes.
    pub(crate) fn set_least_chunk(&mut self, least: u64) {
        self.volume.policy = ChunkPolicy::Growing { least };
    }

    /// Makes the device this long, in bytes.
    pub(crate) fn set_device_size(&mut self, total_bytes: u64) {
        self.superblock.dev_item.total_bytes = total_bytes.into();
        self.superblock.total_bytes = total_bytes.into();
        self.volume.policy = ChunkPolicy::Existing { total_bytes, grow: false };
    }

    /// Moves stripes of new chunks down into holes that trimming has left, bytes and all, so that the device can
    /// end earlier. Stripes on either side of a superblock copy stay.
    pub(crate) fn close_device_holes(&mut self) -> Result<()> {
        let mut stripes: Vec<(u64, u64, Logical)> = Vec::new();
        for chunk in self.volume.store.chunks().iter() {
            stripes.extend(chunk.stripes.iter().map(|s| (s.offset.get(), chunk.length, chunk.start)));
        }
        stripes.sort_unstable();
        let mut end = DEVICE_START;
        for (from, length, start) in stripes {
            let movable = from > end && !touches_superblock(end..from + length);
            if movable {
                self.move_stripe(start, from, end, length)?;
                end += length;
            } else {
                end = from + length;
            }
        }
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most a MiB at a time")]
    fn move_stripe(&mut self, chunk: Logical, from: u64, to: u64, length: u64) -> Result<()> {
        let device = self.volume.store.device();
        let have = device.len().map_err(Error::io("length of the image"))?;
        let mut buf = vec![0; MIB as usize];
        let mut done = 0;
        while done < length && from + done < have {
            let n = (length - done).min(MIB).min(have - from - done) as usize;
            device.read_at(&mut buf[..n], Physical(from + done)).map_err(Error::io("move a chunk"))?;
            let mut there = vec![0; n];
            device.read_at(&mut there, Physical(to + done)).map_err(Error::io("move a chunk"))?;
            if there == buf[..n] {
                // Zeros over a hole, mostly: it stays one.
                done += n as u64;
                continue;
            }
            device.write_at(&buf[..n], Physical(to + done)).map_err(Error::io("move a chunk"))?;
            done += n as u64;
        }
        let mut moved = self.volume.store.chunks_mut().remove(chunk).expect("listed just now");
        for stripe in moved.stripes.iter_mut().filter(|s| s.offset.get() == from) {
            stripe.offset = to.into();
        }
        self.volume.store.chunks_mut().insert(moved)
    }

    /// Removes the items of chunks that are gone, and writes those of chunks that are new. Says whether there were any.
    pub(super) fn write_chunks(&mut self) -> Result<bool> {
        let removed = std::mem::take(&mut self.removed_chunks);
        removed.iter().try_for_each(|chunk| self.remove_chunk_items(chunk))?;
        let new = std::mem::take(&mut self.new_chunks);
        new.iter().try_for_each(|chunk| self.write_chunk_items(chunk.start))?;
        if new.is_empty() && removed.is_empty() {
            return Ok(false);
        }
        if new.iter().any(|c| c.kind == SpaceKind::System) {
            self.rebuild_sys_chunk_array()?;
        }
        self.update_device_item()?;
        Ok(true)
    }

    fn remove_chunk_items(&mut self, chunk: &Chunk) -> Result<()> {
        self.remove(objectid::CHUNK_TREE, chunk.key())?;
        for stripe in &chunk.stripes {
            let key = Key::new(stripe.devid.get(), KeyType::DEV_EXTENT, stripe.offset.get());
            self.remove(objectid::DEV_TREE, key)?;
        }
        let tree = block_group_tree(self.superblock.compat_ro_flags.get());
        self.remove(tree, Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length))?;
        if has_free_space_tree(self.superblock.compat_ro_flags.get()) {
            let first = Key::new(chunk.start.0, KeyType::FREE_SPACE_INFO, 0);
            let last = Key::new(chunk.end() - 1, KeyType(u8::MAX), u64::MAX);
            self.remove_range(objectid::FREE_SPACE_TREE, first, last)?;
        }
        Ok(())
    }

    fn write_chunk_items(&mut self, start: Logical) -> Result<()> {
        let chunk = self.volume.store.chunks().lookup(start).expect("a new chunk is in the map").clone();
        self.insert(objectid::CHUNK_TREE, chunk.key(), &chunk.item_data())?;
        for stripe in &chunk.stripes {
            let extent = DevExtent {
                chunk_tree: objectid::CHUNK_TREE.into(),
                chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
                chunk_offset: start.0.into(),
                length: chunk.length.into(),
                chunk_tree_uuid: self.volume.chunk_tree_uuid,
            };
            let key = Key::new(stripe.devid.get(), KeyType::DEV_EXTENT, stripe.offset.get());
            self.insert(objectid::DEV_TREE, key, extent.as_bytes())?;
        }
        let item = block_group_item(0, chunk.flags);
        let key = Key::new(start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
        let tree = block_group_tree(self.superblock.compat_ro_flags.get());
        self.insert(tree, key, item.as_bytes())?;
        if let Some(group) = self.space.group_mut(start.0) {
            group.used_written = Some(0);
        }
        Ok(())
    }

    fn update_device_item(&mut self) -> Result<()> {
        let used = self.device_bytes_used();
        let end = self.device_extents_end();
        let dev = &mut self.superblock.dev_item;
        dev.bytes_used = used.into();
        if dev.total_bytes.get() < end {
            dev.total_bytes = end.into();
            self.superblock.total_bytes = end.into();
        }
        let item = self.superblock.dev_item;
        self.replace(objectid::CHUNK_TREE, device_key(item.devid.get()), item.as_bytes())
    }

    /// The superblock's copy of the SYSTEM chunks.
    pub(super) fn rebuild_sys_chunk_array(&mut self) -> Result<()> {
        let mut array = Vec::new();
        for chunk in self.volume.store.chunks().iter().filter(|c| c.flags & bg::SYSTEM != 0) {
            array.extend_from_slice(DiskKey::from(chunk.key()).as_bytes());
            array.extend_from_slice(&chunk.item_data());
        }
        let sb = &mut self.superblock;
        let size = array.len();
        if size > sb.sys_chunk_array.len() {
            return Err(Error::no_space("the superblock's list of system chunks"));
        }
        sb.sys_chunk_array.fill(0);
        sb.sys_chunk_array[..size].copy_from_slice(&array);
        sb.sys_chunk_array_size = u32::try_from(size).expect("at most 2048").into();
        Ok(())
    }

    /// Writes the `used` of block groups whose item has another. Says whether any had.
    pub(super) fn write_block_groups(&mut self) -> Result<bool> {
        let stale: Vec<_> = self
            .space
            .groups()
            .filter(|g| !g.is_new() && g.used_written != Some(g.used))
            .map(|g| (g.start, g.length, g.flags, g.used))
            .collect();
        let tree = block_group_tree(self.superblock.compat_ro_flags.get());
        for &(start, length, flags, used) in &stale {
            self.space.group_mut(start).expect("listed just now").used_written = Some(used);
            let key = Key::new(start, KeyType::BLOCK_GROUP_ITEM, length);
            self.replace(tree, key, block_group_item(used, flags).as_bytes())?;
        }
        Ok(!stale.is_empty())
    }

    /// Makes the free space for data and for metadata about so many bytes.
    pub(crate) fn settle_spares(&mut self, data: u64, metadata: u64) -> Result<()> {
        if self.is_mixed() {
            return self.settle_spare(SpaceKind::Mixed, data + metadata);
        }
        self.settle_spare(SpaceKind::Data, data)?;
        self.settle_spare(SpaceKind::Metadata, metadata)
    }

    /// Makes the free space of `kind` about `spare` bytes: adds a chunk where there is less, and shortens the last new
    /// chunk where there is more.
    fn settle_spare(&mut self, kind: SpaceKind, spare: u64) -> Result<()> {
        let have = self.space.available_now(kind);
        if have < spare {
            self.alloc_chunk(kind, spare - have)?;
        }
        let Some(i) = self.new_chunks.iter().rposition(|c| c.kind == kind) else { return Ok(()) };
        let surplus = self.space.available_now(kind).saturating_sub(spare);
        let start = self.new_chunks[i].start.0;
        let group = self.space.group_mut(start).expect("a new chunk has a group");
        let end = start + group.length;
        let tail = group.free.after.last().filter(|r| r.end == end).map_or(0, |r| r.end - r.start);
        let length = (group.length - surplus.min(tail)).next_multiple_of(STRIPE_LEN).min(group.length);
        self.resize_new_chunk(i, length)
    }

    fn resize_new_chunk(&mut self, i: usize, length: u64) -> Result<()> {
        let start = self.new_chunks[i].start;
        let mut chunk = self.volume.store.chunks_mut().remove(start).expect("a new chunk is in the map");
        if length == 0 {
            self.new_chunks.remove(i);
            self.space.remove_group(start.0);
            return Ok(());
        }
        let cut = start.0 + length..chunk.end();
        chunk.length = length;
        chunk.item.length = length.into();
        let group = self.space.group_mut(start.0).expect("a new chunk has a group");
        group.length = length;
        group.free.after.remove(cut.clone());
        group.free.available.remove(cut);
        self.volume.store.chunks_mut().insert(chunk)
    }
}

fn touches_superblock(range: Range<u64>) -> bool {
    btrfsimg_ondisk::SUPERBLOCK_OFFSETS
        .iter()
        .any(|&copy| range.start < copy + STRIPE_LEN && copy < range.end)
}

/// The key of a DEV_ITEM.
pub(crate) fn device_key(devid: u64) -> Key {
    Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, devid)
}

fn block_group_item(used: u64, flags: u64) -> BlockGroupItem {
    BlockGroupItem {
        used: used.into(),
        chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
        flags: flags.into(),
    }
}
