//! What a file system has allocated, and how much of that is used.

use std::collections::BTreeMap;

use btrfsimg_ondisk::{BlockGroupItem, DevItem, Key, KeyType, block_group_flags as bg, compat_ro, objectid};
use zerocopy::FromBytes as _;

use crate::chunk_map::Chunk;
use crate::error::{Error, Result};
use crate::lookup::{Items as _, with_item};
use crate::read::Filesystem;

/// The block groups of one type and profile, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GroupUsage {
    /// What they can hold.
    pub total: u64,
    /// What they hold.
    pub used: u64,
    /// What they take of the devices: copies and parity count.
    pub disk_total: u64,
    /// The part of that for what they hold.
    pub disk_used: u64,
}

/// A file system's space, in bytes.
#[derive(Clone, Debug, Default)]
pub struct SpaceUsage {
    /// The size of all devices.
    pub device_size: u64,
    /// What of it is allocated to block groups.
    pub device_allocated: u64,
    /// By type and profile bits, those of one type together.
    pub groups: BTreeMap<(u64, u64), GroupUsage>,
}

impl SpaceUsage {
    /// What is not allocated.
    pub fn unallocated(&self) -> u64 {
        self.device_size.saturating_sub(self.device_allocated)
    }

    /// What is used of the devices, copies and parity included.
    pub fn used(&self) -> u64 {
        self.groups.values().fold(0, |sum, group| sum.saturating_add(group.disk_used))
    }

    /// What there may still be room for, in bytes of files: what is free in data block groups, and all that is not
    /// allocated in their profile. Metadata and what chunks round away make it less.
    pub fn free_estimated(&self) -> u64 {
        let mut data = GroupUsage::default();
        self.groups
            .iter()
            .filter(|((kind, _), _)| kind & bg::DATA != 0)
            .for_each(|(_, group)| data.add(group));
        let (total, disk) = (u128::from(data.total.max(1)), u128::from(data.disk_total.max(1)));
        let unallocated = u128::from(self.unallocated()) * total / disk;
        let unallocated =
            if data.total == 0 { self.unallocated() } else { u64::try_from(unallocated).unwrap_or(u64::MAX) };
        data.total.saturating_sub(data.used).saturating_add(unallocated)
    }
}

impl GroupUsage {
    fn add(&mut self, other: &GroupUsage) {
        self.total = self.total.saturating_add(other.total);
        self.used = self.used.saturating_add(other.used);
        self.disk_total = self.disk_total.saturating_add(other.disk_total);
        self.disk_used = self.disk_used.saturating_add(other.disk_used);
    }
}

/// Reads the devices, chunks and block groups. A block group's item is looked up for each chunk.
///
/// # Errors
/// BG-07 for a chunk without a block group; `Corrupt`, `Io`.
pub fn space_usage(fs: &Filesystem) -> Result<SpaceUsage> {
    let mut usage = SpaceUsage::default();
    let devices = |devid| Key::new(objectid::DEV_ITEMS, KeyType::DEV_ITEM, devid);
    fs.walk(objectid::CHUNK_TREE, &devices(0), &devices(u64::MAX), &mut |item| {
        if let Ok(device) = DevItem::read_from_bytes(item?.data) {
            usage.device_size = usage.device_size.saturating_add(device.total_bytes.get());
            usage.device_allocated = usage.device_allocated.saturating_add(device.bytes_used.get());
        }
        Ok(true)
    })?;
    let has_tree = fs.superblock().compat_ro_flags.get() & compat_ro::BLOCK_GROUP_TREE != 0;
    let tree = if has_tree { objectid::BLOCK_GROUP_TREE } else { objectid::EXTENT_TREE };
    for chunk in fs.store().chunks().iter() {
        let key = Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
        let used = with_item(fs, tree, &key, |data| Ok(BlockGroupItem::read_from_bytes(data).ok()))?;
        let Some(used) = used.flatten().map(|item| item.used.get()) else {
            return Err(Error::corrupt("BG-07", format!("chunk {} has no block group item", chunk.start)));
        };
        let group = GroupUsage {
            total: chunk.length,
            used,
            disk_total: on_disk(chunk, chunk.length),
            disk_used: on_disk(chunk, used),
        };
        let kind = (chunk.flags & bg::TYPE_MASK, chunk.flags & bg::PROFILE_MASK);
        usage.groups.entry(kind).or_default().add(&group);
    }
    Ok(usage)
}

/// What so many bytes of a chunk take of the devices.
fn on_disk(chunk: &Chunk, bytes: u64) -> u64 {
    let stripes = (chunk.stripes.len() as u64).max(1);
    match chunk.flags & bg::PROFILE_MASK {
        bg::DUP | bg::RAID1 | bg::RAID10 => bytes.saturating_mul(2),
        bg::RAID1C3 => bytes.saturating_mul(3),
        bg::RAID1C4 => bytes.saturating_mul(4),
        bg::RAID5 => bytes.saturating_mul(stripes) / (stripes - 1).max(1),
        bg::RAID6 => bytes.saturating_mul(stripes) / stripes.saturating_sub(2).max(1),
        _ => bytes,
    }
}
