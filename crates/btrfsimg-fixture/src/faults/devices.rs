//! DEV-, DE-, BG-: devices, their extents, block groups.

use std::ops::ControlFlow;

use btrfsimg_ondisk::{
    BlockGroupItem, ChunkItem, DevExtent, DevItem, Key, KeyType, Physical, Stripe, block_group_flags as bg,
    compat_ro, objectid,
};

use zerocopy::{FromBytes, IntoBytes};

use super::{chunks, in_tree, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Spot, Target, Trees};

const DEVICE: (u64, KeyType) = (objectid::CHUNK_TREE, KeyType::DEV_ITEM);
const DEV_EXTENT: (u64, KeyType) = (objectid::DEV_TREE, KeyType::DEV_EXTENT);

super::table! {
    "dev-item-objectid": "DEV-01", kernel refuses, check names,
    "gives a device item another objectid", needs "a device item",
    |image, target| {
        let spot = some!(in_tree(image, target, DEVICE, |_| true)?);
        image.rekey(&spot, Key { objectid: 2, ..spot.key })
    };
    "dev-item-size": "DEV-02", kernel refuses, check names,
    "cuts the last byte of a device item", needs "a device item",
    |image, target| {
        let spot = some!(in_tree(image, target, DEVICE, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(97))
    };
    "dev-item-devid": "DEV-03", kernel refuses, check names,
    "gives a device item another device's number", needs "a device item",
    |image, target| device(image, target, |d| d.devid += 1);
    "dev-item-second": "SB-14", kernel refuses, check names,
    "adds the item of a second device", needs "a device item, and room in its leaf",
    |image, target| {
        let spot = some!(in_tree(image, target, DEVICE, |_| true)?);
        let mut second: DevItem = some!(image.get(&spot, 0)?);
        second.devid += 1;
        second.uuid[0] ^= 1;
        (second.total_bytes, second.bytes_used) = (0.into(), 0.into());
        let key = Key { offset: spot.key.offset + 1, ..spot.key };
        image.insert(spot.tree, key, second.as_bytes()).map(|s| s.map(drop))
    };
    "dev-item-bytes-used-large": "DEV-04", kernel refuses, check names,
    "makes more of a device be in use than it has", needs "a device item",
    |image, target| device(image, target, |d| d.bytes_used = d.total_bytes + 4096);
    "dev-item-bytes-used": "DEV-05", kernel reads, check names,
    "makes a device's bytes in use a stripe more than its extents", needs "a device item",
    |image, target| {
        some!(device(image, target, |d| d.bytes_used += 65536)?);
        image.edit_supers(|sb| sb.dev_item.bytes_used += 65536).map(Some)
    };
    "dev-item-total-bytes": "DEV-06", kernel refuses, check names,
    "makes a device a gigabyte larger than the image", needs "a device item",
    |image, target| {
        some!(device(image, target, |d| d.total_bytes += 1 << 30)?);
        image.edit_supers(|sb| {
            sb.total_bytes += 1 << 30;
            sb.dev_item.total_bytes += 1 << 30;
        }).map(Some)
    };
    "chunk-stripe-uuid": "DEV-07", kernel refuses, check names,
    "makes a stripe name another device's UUID", needs "a data chunk",
    |image, target| {
        let spot = some!(chunks::chunk(image, target)?);
        image.edit_at::<Stripe>(&spot, 48, |s| s.dev_uuid[0] ^= 1)
    };
    "super-dev-uuid": "DEV-07", kernel refuses, check names,
    "gives the superblock's device item another UUID than the device has", needs "a superblock",
    |image, _| image.edit_supers(|sb| sb.dev_item.uuid[0] ^= 1).map(Some);
    "super-sys-chunk-stripe-uuid": "DEV-07", kernel refuses, check names,
    "makes a stripe in the system chunk array name another device's UUID", needs "a superblock",
    // Behind the key and the chunk's fixed part; a stripe's UUID is at 16.
    |image, _| image.edit_supers(|sb| sb.sys_chunk_array[17 + 48 + 16] ^= 1).map(Some);
    "dev-extent-chunk-tree": "DE-01", kernel refuses, check misses,
    "makes a device extent belong to another chunk tree", needs "a device extent",
    |image, target| dev_extent(image, target, |e| e.chunk_tree += 1);
    "dev-extent-chunk-objectid": "DE-02", kernel refuses, check misses,
    "gives a device extent another chunk objectid", needs "a device extent",
    |image, target| dev_extent(image, target, |e| e.chunk_objectid += 1);
    "dev-extent-unaligned": "DE-03", kernel refuses, check misses,
    "points a device extent into the middle of a sector", needs "a device extent",
    |image, target| dev_extent(image, target, |e| e.chunk_offset += 512);
    "dev-extent-length-unaligned": "DE-03", kernel refuses, check names,
    "makes a device extent an eighth of a sector shorter", needs "a device extent",
    |image, target| dev_extent(image, target, |e| e.length -= 512);
    "dev-extent-start-unaligned": "DE-03", kernel refuses, check misses,
    "moves a device extent into the middle of a sector", needs "a last device extent",
    |image, _| {
        let spot = some!(image.last(objectid::DEV_TREE)?);
        if spot.key.key_type != KeyType::DEV_EXTENT {
            return Ok(None);
        }
        image.rekey(&spot, Key { offset: spot.key.offset + 512, ..spot.key })
    };
    "dev-extents-overlap": "DE-04", kernel refuses, check names,
    "moves a device extent into the one before", needs "two device extents that touch",
    |image, target| {
        let spot = some!(in_tree(image, target, DEV_EXTENT, |i| {
            let Some(before) = i.slot.checked_sub(1).map(|s| i.leaf.item(s)) else { return false };
            before.key.key_type == KeyType::DEV_EXTENT && i.key.offset - before.key.offset > 65536
        })?);
        let before = Spot { slot: spot.slot - 1, ..spot.clone() };
        let length = some!(image.get::<DevExtent>(&before, 0)?).length;
        let start = image.block(spot.block, &Default::default())?.key(before.slot).offset;
        image.rekey(&spot, Key { offset: start + length.get() - 65536, ..spot.key })
    };
    "dev-extent-size": "DE-05", kernel reads, check misses,
    "cuts the last byte of a device extent", needs "a device extent",
    |image, target| {
        let spot = some!(in_tree(image, target, DEV_EXTENT, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(47))
    };
    "dev-extent-no-chunk": "DE-06", kernel refuses, check misses,
    "makes a device extent belong to a chunk that does not exist", needs "a device extent",
    |image, target| dev_extent(image, target, |e| e.chunk_offset += 1 << 40);
    "dev-extent-length": "DE-07", kernel refuses, check names,
    "makes a device extent shorter than its chunk's stripe", needs "a device extent",
    |image, target| dev_extent(image, target, |e| e.length -= 65536);
    "dev-extent-place": "DE-08", kernel refuses, check misses,
    "moves a device extent away from its stripe", needs "a last device extent",
    |image, _| {
        let spot = some!(image.last(objectid::DEV_TREE)?);
        if spot.key.key_type != KeyType::DEV_EXTENT {
            return Ok(None);
        }
        image.rekey(&spot, Key { offset: spot.key.offset + 65536, ..spot.key })
    };
    "dev-extent-missing": "DE-09", kernel refuses, check names,
    "removes a device extent", needs "a device extent",
    |image, target| {
        let spot = some!(in_tree(image, target, DEV_EXTENT, |_| true)?);
        image.remove(&spot)
    };
    "chunk-stripes-same-place": "DE-09", kernel refuses, check misses,
    "puts both stripes of a chunk at one place, without the second's device extent", needs "a metadata chunk of two stripes",
    |image, target| {
        let spot = some!(in_tree(image, target, (objectid::CHUNK_TREE, KeyType::CHUNK_ITEM), |i| {
            i.data[24] == (bg::METADATA | bg::DUP).to_le_bytes()[0]
        })?);
        let (first, second) = (size_of::<ChunkItem>(), size_of::<ChunkItem>() + size_of::<Stripe>());
        let (keep, lose): (Stripe, Stripe) = (some!(image.get(&spot, first)?), some!(image.get(&spot, second)?));
        let key = Key::new(lose.devid.get(), KeyType::DEV_EXTENT, lose.offset.get());
        let extent = some!(image.find_key(objectid::DEV_TREE, key)?);
        let length = some!(image.get::<DevExtent>(&extent, 0)?).length;
        some!(image.remove(&extent)?);
        some!(image.edit_at::<Stripe>(&spot, second, |s| s.offset = keep.offset)?);
        some!(device(image, &Target::Any, |d| d.bytes_used -= length)?);
        image.edit_supers(|sb| sb.dev_item.bytes_used -= length).map(Some)
    };
    "dev-extent-beyond-device": "DE-10", kernel refuses, check names,
    "makes the device end inside its last extent", needs "a last device extent",
    |image, _| {
        let spot = some!(image.last(objectid::DEV_TREE)?);
        let extent: DevExtent = some!(image.get(&spot, 0)?);
        let end = spot.key.offset + extent.length.get() - 65536;
        some!(device(image, &Target::Any, |d| d.total_bytes = end.into())?);
        image.edit_supers(|sb| {
            sb.total_bytes = end.into();
            sb.dev_item.total_bytes = end.into();
        }).map(Some)
    };
    "dev-extent-in-reserved": "DE-11", kernel reads, check misses,
    "moves a data chunk, with all that it holds, to where it begins below 1 MiB", needs "a data chunk of one stripe, and free space behind the first MiB",
    |image, _| move_down(image);
    "block-group-length": "BG-01", kernel refuses, check names,
    "takes the length from a block group", needs "a block group",
    |image, target| {
        let spot = some!(group(image, target)?);
        image.rekey(&spot, Key { offset: 0, ..spot.key })
    };
    "block-group-size": "BG-02", kernel refuses, check misses,
    "cuts the last byte of a block group item", needs "a block group",
    |image, target| {
        let spot = some!(group(image, target)?);
        image.edit_bytes(&spot, |data| data.truncate(23))
    };
    "block-group-chunk-objectid": "BG-03", kernel refuses, check misses,
    "gives a block group another chunk objectid", needs "a block group",
    |image, target| edit_group(image, target, |g| g.chunk_objectid += 1);
    "block-group-used-large": "BG-04", kernel refuses, check names,
    "makes more of a block group be in use than it has", needs "a block group",
    |image, target| edit_group(image, target, |g| g.used = (1 << 50).into());
    "block-group-two-profiles": "BG-05", kernel refuses, check misses,
    "gives a block group two profiles", needs "a block group",
    |image, target| edit_group(image, target, |g| g.flags |= bg::RAID1 | bg::RAID0);
    "block-group-no-type": "BG-06", kernel refuses, check names,
    "takes the type from a block group", needs "a block group",
    |image, target| edit_group(image, target, |g| g.flags &= !bg::TYPE_MASK);
    "block-group-no-chunk": "BG-07", kernel refuses, check names,
    "makes a block group longer than its chunk", needs "a block group",
    |image, target| {
        let spot = some!(group(image, target)?);
        image.rekey(&spot, Key { offset: spot.key.offset + 65536, ..spot.key })
    };
    "block-group-type": "BG-07", kernel refuses, check names,
    "makes a data block group a system block group", needs "a data block group",
    |image, target| {
        let spot = some!(data_group(image, target)?);
        image.edit::<BlockGroupItem>(&spot, |g| g.flags ^= bg::DATA | bg::SYSTEM)
    };
    "block-group-missing": "BG-07", kernel reads, check names,
    "removes a block group item", needs "a data block group",
    |image, target| {
        let spot = some!(data_group(image, target)?);
        image.remove(&spot)
    };
    "block-group-used": "BG-08", kernel reads, check names,
    "makes a sector less of a block group be in use than its extents", needs "a data block group in use",
    |image, target| {
        let sector = image.sector();
        let tree = groups(image);
        let spot = some!(in_tree(image, target, (tree, KeyType::BLOCK_GROUP_ITEM), |i| i.data[1..8] != [0; 7])?);
        some!(image.edit::<BlockGroupItem>(&spot, |g| g.used -= sector)?);
        image.edit_supers(|sb| sb.bytes_used -= sector).map(Some)
    };
}

/// The tree of the block group items.
fn groups(image: &Image) -> u64 {
    match image.superblock().has_compat_ro(compat_ro::BLOCK_GROUP_TREE) {
        true => objectid::BLOCK_GROUP_TREE,
        false => objectid::EXTENT_TREE,
    }
}

fn group(image: &Image, target: &Target) -> Found<Spot> {
    in_tree(image, target, (groups(image), KeyType::BLOCK_GROUP_ITEM), |_| true)
}

/// The block group that starts at `start`.
pub(super) fn group_at(image: &Image, start: u64) -> Found<Spot> {
    let tree = (groups(image), KeyType::BLOCK_GROUP_ITEM);
    in_tree(image, &Target::Any, tree, |i| i.key.objectid == start)
}

pub(super) fn data_group(image: &Image, target: &Target) -> Found<Spot> {
    in_tree(image, target, (groups(image), KeyType::BLOCK_GROUP_ITEM), |i| i.data[16] & 1 != 0)
}

fn edit_group(image: &mut Image, target: &Target, edit: impl FnOnce(&mut BlockGroupItem)) -> Found<()> {
    let spot = some!(group(image, target)?);
    image.edit(&spot, edit)
}

fn device(image: &mut Image, target: &Target, edit: impl FnOnce(&mut DevItem)) -> Found<()> {
    let spot = some!(in_tree(image, target, DEVICE, |_| true)?);
    image.edit(&spot, edit)
}

fn dev_extent(image: &mut Image, target: &Target, edit: impl FnOnce(&mut DevExtent)) -> Found<()> {
    let spot = some!(in_tree(image, target, DEV_EXTENT, |_| true)?);
    image.edit(&spot, edit)
}

/// Moves the stripe of a data chunk of one stripe, and its bytes, to where it begins below 1 MiB.
fn move_down(image: &mut Image) -> Found<()> {
    const TO: u64 = (1 << 20) - 65536;
    let mut extents = Vec::new();
    image.walk(objectid::DEV_TREE, &mut |_, _, block| {
        if block.is_leaf() {
            for item in block.items().filter(|i| i.key.key_type == KeyType::DEV_EXTENT) {
                let length = DevExtent::read_from_bytes(item.data).map_or(0, |e| e.length.get());
                extents.push(item.key.offset..item.key.offset + length);
            }
        }
        ControlFlow::Continue(())
    })?;
    // The second superblock lies far behind.
    let is_free = |from: u64, length: u64| {
        let to = TO..TO + length;
        to.end <= 64 << 20
            && extents.iter().all(|e| e.start == from || e.end <= to.start || e.start >= to.end)
    };
    let item = some!(image.find(&Target::Any, Trees::One(objectid::CHUNK_TREE), |i| {
        let chunk = btrfsimg_fs::chunk_map::Chunk::parse(i.key, i.data).filter(|_| i.is(KeyType::CHUNK_ITEM));
        chunk.is_some_and(|c| c.flags == bg::DATA && is_free(c.stripes[0].offset.get(), c.length))
    })?);
    let stripe: Stripe = some!(image.get(&item, size_of::<ChunkItem>())?);
    let chunk: ChunkItem = some!(image.get(&item, 0)?);
    let from = stripe.offset.get();
    let extent = some!(in_tree(image, &Target::Any, DEV_EXTENT, |i| i.key.offset == from)?);
    let mut bytes = vec![0; usize::try_from(chunk.length.get()).unwrap_or(0)];
    image.device().read_at(&mut bytes, Physical(from)).map_err(btrfsimg_fs::Error::io("data chunk"))?;
    image.write_physical(Physical(TO), bytes);
    some!(image.edit_at::<Stripe>(&item, size_of::<ChunkItem>(), |s| s.offset = TO.into())?);
    let data = image.item(&extent)?;
    image.replace(&extent, Key { offset: TO, ..extent.key }, &data)
}
