//! Chunks, devices, device extents and block groups against each other (`format/06 §6.9`).

use btrfsimg_ondisk::block_group_flags as bg;
use btrfsimg_ondisk::{
    BlockContext, DevExtent, DevItem, Item, KeyType, Logical, Stripe, SysChunk, Uuid, compat_ro, objectid,
    sys_chunks,
};
use zerocopy::FromBytes;

use super::extents::Group;
use super::finding::{Findings, Place};
use super::image::{Block, Image};
use crate::chunk_map::{Chunk, ChunkMap};

/// What the chunk tree holds.
#[derive(Default)]
pub(super) struct ChunkTree {
    pub(super) chunks: Vec<Chunk>,
    pub(super) devices: Vec<DevItem>,
    pub(super) uuid: Option<[u8; 16]>,
}

impl ChunkTree {
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext) {
        self.uuid.get_or_insert(block.judged.header().chunk_tree_uuid);
        block.for_each_item(ctx, |_, item| match item.key.key_type {
            KeyType::CHUNK_ITEM => self.chunks.extend(Chunk::parse_item(&item)),
            KeyType::DEV_ITEM => self.devices.extend(DevItem::read_from_bytes(item.data)),
            _ => {}
        });
    }
}

/// A device extent.
pub(super) struct DeviceExtent {
    devid: u64,
    physical: u64,
    chunk: u64,
    length: u64,
    place: Place,
}

impl DeviceExtent {
    pub(super) fn parse(item: &Item<'_>, place: Place) -> Option<DeviceExtent> {
        let extent = DevExtent::read_from_bytes(item.data).ok()?;
        Some(DeviceExtent {
            devid: item.key.objectid,
            physical: item.key.offset,
            chunk: extent.chunk_offset.get(),
            length: extent.length.get(),
            place,
        })
    }
}

/// SB-15: what the superblock's array says of its chunks, `mapped`, is what the chunk tree says. Kernels go by the array.
pub(super) fn judge_system_chunks(mapped: &ChunkMap, tree: &ChunkTree, whole: bool, findings: &mut Findings) {
    for chunk in mapped.iter() {
        let place = Place::extent(chunk.start.0);
        let Some(item) = tree.chunks.iter().find(|c| c.start == chunk.start) else {
            if whole {
                let reason = format!("system chunk array: chunk {} is not in the chunk tree", chunk.start);
                findings.add("SB-15", place, reason);
            }
            continue;
        };
        let (have, expect) = (shown(chunk), shown(item));
        if have != expect {
            let reason = format!("system chunk array: chunk {}, have {have} expect {expect}", chunk.start);
            findings.add("SB-15", place, reason);
        }
    }
}

/// What of a chunk must be the same in the superblock and in the chunk tree.
fn shown(chunk: &Chunk) -> String {
    let one = |s: &Stripe| format!("{}:{}", s.devid, s.offset);
    let stripes = chunk.stripes.iter().map(one).collect::<Vec<_>>().join(",");
    let (flags, stripe_len) = (bg::describe(chunk.flags), chunk.item.stripe_len);
    format!("length {} {flags} stripe_len {stripe_len} at {stripes}", chunk.length)
}

/// SB-14, SB-20, SB-22, DEV-06, DEV-07: devices against the superblock and the file.
pub(super) fn judge_devices(image: &Image<'_>, tree: &ChunkTree, findings: &mut Findings) {
    let sb = &image.superblock;
    let sector = image.ctx.sectorsize;
    let sum = tree.devices.iter().fold(0u64, |s, d| s.saturating_add(d.total_bytes.get()));
    let place = || Place::tree(objectid::CHUNK_TREE);
    if tree.devices.len() as u64 > sb.num_devices.get() {
        let (have, expect) = (tree.devices.len(), sb.num_devices);
        findings.add("SB-14", place(), format!("device items, have {have} expect {expect}"));
    }
    if sb.total_bytes != sum || !sum.is_multiple_of(sector) {
        let reason = format!(
            "superblock total_bytes, have {} expect {sum} (sum of the devices, sector aligned)",
            sb.total_bytes
        );
        findings.add("SB-20", place(), reason);
    }
    for device in &tree.devices {
        if !device.total_bytes.get().is_multiple_of(sector) {
            let reason = format!(
                "device {} total_bytes, have {} expect sector aligned",
                device.devid, device.total_bytes
            );
            findings.add("SB-20", place(), reason);
        }
    }
    let Some(device) = tree.devices.iter().find(|d| d.devid == sb.dev_item.devid) else {
        let reason = format!("no device item for the superblock's device {}", sb.dev_item.devid);
        return findings.add("DEV-03", place(), reason);
    };
    let copy = &sb.dev_item;
    if copy.uuid != device.uuid {
        let (have, expect) = (Uuid::from_bytes(copy.uuid), Uuid::from_bytes(device.uuid));
        let reason = format!("device uuid in the superblock, have {have} expect {expect}");
        findings.add("DEV-07", place(), reason);
    }
    if device.fsid != image.ctx.fsid {
        // Kernels look for a seed device of that name.
        let (have, expect) = (Uuid::from_bytes(device.fsid), Uuid::from_bytes(image.ctx.fsid));
        findings.add("DEV-07", place(), format!("fsid of the device item, have {have} expect {expect}"));
    }
    if (copy.total_bytes, copy.bytes_used) != (device.total_bytes, device.bytes_used) {
        let reason = format!(
            "device item in the superblock differs, have total {} used {} expect total {} used {}",
            copy.total_bytes, copy.bytes_used, device.total_bytes, device.bytes_used
        );
        findings.add("SB-22", place(), reason);
    }
    if device.total_bytes.get() > image.device_len {
        let reason = format!("device is too small, have {} expect {}", image.device_len, device.total_bytes);
        findings.add("DEV-06", Place { devid: Some(device.devid.get().into()), ..place() }, reason);
    }
    let in_tree = tree.chunks.iter().map(|c| (c.start, &c.stripes));
    let in_superblock: Vec<SysChunk> = sys_chunks(sb).map_while(Result::ok).collect();
    let in_superblock = in_superblock.iter().map(|c| (Logical(c.key.offset), &c.stripes));
    for (start, stripes) in in_tree.chain(in_superblock) {
        for stripe in stripes.iter().filter(|s| (s.devid, s.dev_uuid) != (device.devid, device.uuid)) {
            let reason = format!(
                "stripe at {} of chunk {start} names another device, have {} uuid {} expect {} uuid {}",
                stripe.offset,
                stripe.devid,
                Uuid::from_bytes(stripe.dev_uuid),
                device.devid,
                Uuid::from_bytes(device.uuid)
            );
            findings.add("DEV-07", place(), reason);
        }
    }
}

/// DE-06 to DE-10, DEV-05: device extents against the chunks' stripes. `extents` is in key order.
pub(super) fn judge_device_extents(
    image: &Image<'_>,
    tree: &ChunkTree,
    extents: &[DeviceExtent],
    findings: &mut Findings,
) {
    for extent in extents {
        judge_device_extent(image, tree, extent, findings);
    }
    // Inside a leaf the tree checker named it.
    for pair in extents.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        let end = a.physical.saturating_add(a.length);
        if a.devid == b.devid && end > b.physical && a.place.logical != b.place.logical {
            let reason =
                format!("device extent overlaps the next, have end {end} expect at most {}", b.physical);
            findings.add("DE-04", a.place.clone(), reason);
        }
    }
    for chunk in image.chunks.iter() {
        for (nth, stripe) in chunk.stripes.iter().enumerate() {
            if chunk.stripes[..nth].iter().any(|s| (s.devid, s.offset) == (stripe.devid, stripe.offset)) {
                let reason = format!(
                    "two stripes of chunk {} at {} of device {}",
                    chunk.start, stripe.offset, stripe.devid
                );
                findings.add("DE-09", Place::extent(chunk.start.0), reason);
                continue;
            }
            let key = (stripe.devid.get(), stripe.offset.get());
            let found = extents.binary_search_by_key(&key, |e| (e.devid, e.physical));
            if found.is_err() {
                let reason =
                    format!("chunk {} has no device extent at {} of device {}", chunk.start, key.1, key.0);
                findings.add("DE-09", Place::extent(chunk.start.0), reason);
            }
        }
    }
    for device in &tree.devices {
        let of_device = extents.iter().filter(|e| device.devid == e.devid);
        let sum = of_device.fold(0u64, |s, e| s.saturating_add(e.length));
        if device.bytes_used != sum {
            let reason =
                format!("device {} bytes_used, have {} expect {sum}", device.devid, device.bytes_used);
            findings.add("DEV-05", Place::tree(objectid::CHUNK_TREE), reason);
        }
    }
}

fn judge_device_extent(image: &Image<'_>, tree: &ChunkTree, extent: &DeviceExtent, findings: &mut Findings) {
    let mut fault = |rule, reason: String| findings.add(rule, extent.place.clone(), reason);
    let Some(chunk) = image.chunks.lookup(Logical(extent.chunk)).filter(|c| c.start.0 == extent.chunk) else {
        return fault(
            "DE-06",
            format!("device extent of a chunk that does not exist, have chunk {}", extent.chunk),
        );
    };
    if chunk.is_linear() && chunk.length != extent.length {
        fault("DE-07", format!("device extent length, have {} expect {}", extent.length, chunk.length));
    }
    let is_stripe =
        chunk.stripes.iter().any(|s| (s.devid.get(), s.offset.get()) == (extent.devid, extent.physical));
    if !is_stripe {
        fault("DE-08", format!("device extent is no stripe of chunk {}", extent.chunk));
    }
    let total = tree.devices.iter().find(|d| d.devid == extent.devid).map(|d| d.total_bytes.get());
    let end = extent.physical.saturating_add(extent.length);
    if total.is_some_and(|total| end > total) {
        let total = total.unwrap_or_default();
        fault("DE-10", format!("device extent ends beyond the device, have {end} expect at most {total}"));
    }
}

/// BG-07: block groups against chunks, both in order of their start. Their items are all in one tree.
pub(super) fn judge_block_groups(image: &Image<'_>, groups: &[Group], findings: &mut Findings) {
    let tree = match image.superblock.has_compat_ro(compat_ro::BLOCK_GROUP_TREE) {
        true => objectid::BLOCK_GROUP_TREE,
        false => objectid::EXTENT_TREE,
    };
    for group in groups.iter().filter(|g| g.tree != tree) {
        let reason = format!("block group item in tree {}, expect it in tree {tree}", group.tree);
        findings.add("BG-07", Place::extent(group.start), reason);
    }
    for chunk in image.chunks.iter() {
        if groups.binary_search_by_key(&chunk.start.0, |g| g.start).is_err() {
            let reason = format!("chunk of length {} has no block group", chunk.length);
            findings.add("BG-07", Place::extent(chunk.start.0), reason);
        }
    }
    for group in groups {
        let place = Place::extent(group.start);
        let Some(chunk) = image.chunks.lookup(Logical(group.start)) else {
            findings.add("BG-07", place, format!("block group of length {} has no chunk", group.length));
            continue;
        };
        if (chunk.start.0, chunk.length) != (group.start, group.length) {
            let reason = format!(
                "block group differs from its chunk, have length {} expect chunk {} length {}",
                group.length, chunk.start, chunk.length
            );
            findings.add("BG-07", place, reason);
        } else if chunk.flags != group.flags {
            let (have, expect) = (bg::describe(group.flags), bg::describe(chunk.flags));
            findings.add("BG-07", place, format!("block group flags, have {have} expect {expect}"));
        }
    }
}
