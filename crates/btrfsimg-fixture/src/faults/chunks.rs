//! CH-: chunks. A data chunk where nothing is named: without it the trees can still be read.

use btrfsimg_ondisk::{ChunkItem, Key, KeyType, block_group_flags as bg, incompat, objectid};

use super::{in_tree, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Spot, Target};

super::table! {
    "chunk-size": "CH-01", kernel refuses, check names,
    "adds a byte to a chunk item", needs "a data chunk",
    |image, target| {
        let spot = some!(chunk(image, target)?);
        image.edit_bytes(&spot, |data| data.push(0))
    };
    "chunk-num-stripes-zero": "CH-02", kernel refuses, check names,
    "makes a chunk have no stripes", needs "a data chunk",
    |image, target| edit(image, target, |c| c.num_stripes = 0.into());
    "chunk-few-copies": "CH-03", kernel refuses, check misses,
    "makes a chunk of one stripe one of two copies", needs "a data chunk of one stripe",
    |image, target| single(image, target, |c| c.flags |= bg::DUP);
    "chunk-only-parity": "CH-04", kernel refuses, check names,
    "makes a chunk of one stripe RAID5, so that all of it is parity", needs "a data chunk of one stripe",
    |image, target| single(image, target, |c| c.flags |= bg::RAID5);
    "chunk-start-unaligned": "CH-05", kernel refuses, check names,
    "moves a chunk's start to the middle of a sector", needs "a data chunk",
    |image, target| {
        let spot = some!(chunk(image, target)?);
        image.rekey(&spot, Key { offset: spot.key.offset + 512, ..spot.key })
    };
    "chunk-sector-size": "CH-06", kernel refuses, check names,
    "gives a chunk another sector size", needs "a data chunk",
    |image, target| edit(image, target, |c| c.sector_size *= 2);
    "chunk-length-zero": "CH-07", kernel refuses, check names,
    "takes the length from a chunk", needs "a data chunk",
    |image, target| edit(image, target, |c| c.length = 0.into());
    "chunk-length-unaligned": "CH-07", kernel refuses, check names,
    "makes a chunk half a sector longer", needs "a data chunk",
    |image, target| edit(image, target, |c| c.length += 512);
    "chunk-wraps": "CH-08", kernel refuses, check names,
    "makes a chunk so long that its end wraps around", needs "a data chunk",
    |image, target| edit(image, target, |c| c.length = 0u64.wrapping_sub(65536).into());
    "chunk-stripe-len": "CH-09", kernel refuses, check names,
    "gives a chunk stripes of a sector", needs "a data chunk",
    |image, target| edit(image, target, |c| c.stripe_len = 4096.into());
    "chunk-stripe-len-zero": "CH-09", kernel refuses, check names,
    "gives a chunk stripes of no length", needs "a data chunk",
    |image, target| edit(image, target, |c| c.stripe_len = 0.into());
    "chunk-length-large": "CH-10", kernel refuses, check misses,
    "makes a chunk have more stripes than 32 bits count", needs "a data chunk",
    |image, target| edit(image, target, |c| c.length = (u64::from(u32::MAX) << 16).into());
    "chunk-type-unknown": "CH-11", kernel refuses, check names,
    "sets a type bit that nothing knows", needs "a data chunk",
    |image, target| edit(image, target, |c| c.flags |= 1 << 20);
    "chunk-two-profiles": "CH-12", kernel refuses, check names,
    "gives a chunk two profiles", needs "a data chunk",
    |image, target| edit(image, target, |c| {
        (c.flags, c.num_stripes) = ((bg::DATA | bg::RAID0 | bg::RAID5).into(), c.num_stripes);
    });
    "chunk-no-type": "CH-13", kernel refuses, check names,
    "takes the type from a chunk", needs "a data chunk",
    |image, target| edit(image, target, |c| c.flags &= !bg::TYPE_MASK);
    "chunk-system-and-data": "CH-14", kernel refuses, check misses,
    "makes a data chunk a system chunk too", needs "a data chunk",
    |image, target| edit(image, target, |c| c.flags |= bg::SYSTEM);
    "chunk-mixed": "CH-15", kernel refuses, check misses,
    "makes a data chunk a metadata chunk too", needs "a data chunk in an image without MIXED_GROUPS",
    |image, target| {
        if image.superblock().has_incompat(incompat::MIXED_GROUPS) {
            return Ok(None);
        }
        edit(image, target, |c| c.flags |= bg::METADATA)
    };
    "chunk-stripes-of-single": "CH-16", kernel refuses, check names,
    "gives a chunk of one copy a second stripe", needs "a data chunk of one stripe",
    |image, target| {
        some!(single(image, target, |c| c.num_stripes = 2.into())?);
        let spot = some!(chunk(image, target)?);
        image.edit_bytes(&spot, |data| data.extend_from_within(48..80))
    };
    "chunks-overlap": "CH-17", kernel refuses, check names,
    "moves a chunk's start into the chunk before", needs "two chunks that touch",
    |image, _| {
        let mut starts: Vec<(u64, u64)> = image.store().chunks().iter().map(|c| (c.start.0, c.end())).collect();
        starts.sort_unstable();
        let touching = starts.windows(2).rev().find(|w| w[0].1 == w[1].0);
        let start = some!(touching.map(|w| w[1].0));
        let key = Key::new(objectid::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, start);
        let spot = some!(image.find_key(objectid::CHUNK_TREE, key)?);
        image.rekey(&spot, Key { offset: start - 65536, ..key })
    };
}

/// The item of a data chunk.
pub(super) fn chunk(image: &Image, target: &Target) -> Found<Spot> {
    let named = matches!(target, Target::Key(_));
    in_tree(image, target, (objectid::CHUNK_TREE, KeyType::CHUNK_ITEM), |i| named || i.data[24] & 1 != 0)
}

fn edit(image: &mut Image, target: &Target, edit: impl FnOnce(&mut ChunkItem)) -> Found<()> {
    let spot = some!(chunk(image, target)?);
    image.edit(&spot, edit)
}

/// Changes a chunk that has one stripe and no profile.
fn single(image: &mut Image, target: &Target, edit: impl FnOnce(&mut ChunkItem)) -> Found<()> {
    let spot = some!(chunk(image, target)?);
    let item: ChunkItem = some!(image.get(&spot, 0)?);
    if item.num_stripes != 1 || item.flags & bg::PROFILE_MASK != 0 {
        return Ok(None);
    }
    image.edit(&spot, edit)
}
