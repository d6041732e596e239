//! FS-: the free space tree.

use btrfsimg_ondisk::{FreeSpaceInfo, Key, KeyType, objectid};

use super::{in_tree, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Seen, Spot, Target};

const INFO: (u64, KeyType) = (objectid::FREE_SPACE_TREE, KeyType::FREE_SPACE_INFO);
const EXTENT: (u64, KeyType) = (objectid::FREE_SPACE_TREE, KeyType::FREE_SPACE_EXTENT);
const BITMAP: (u64, KeyType) = (objectid::FREE_SPACE_TREE, KeyType::FREE_SPACE_BITMAP);

super::table! {
    "free-space-info-size": "FS-01", kernel reads, check misses,
    "cuts the last byte of a free space info", needs "a free space tree",
    |image, target| {
        let spot = some!(in_tree(image, target, INFO, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(7))
    };
    "free-space-info-flags": "FS-01", kernel reads, check misses,
    "sets a flag of a free space info that nothing knows", needs "a free space tree",
    |image, target| {
        let spot = some!(in_tree(image, target, INFO, |_| true)?);
        image.edit::<FreeSpaceInfo>(&spot, |i| i.flags |= 2)
    };
    "free-space-info-count-large": "FS-01", kernel reads, check names,
    "makes a free space info count more extents than its range has sectors", needs "a block group with a free space info",
    |image, target| {
        let spot = some!(info(image, target, |_| true)?);
        image.edit::<FreeSpaceInfo>(&spot, |i| i.extent_count = u32::MAX.into())
    };
    "free-space-extent-size": "FS-02", kernel reads, check misses,
    "gives a free space extent a byte of data", needs "a free space extent",
    |image, target| {
        let spot = some!(extent(image, target, |i| i.has_room(1))?);
        image.edit_bytes(&spot, |data| data.push(0))
    };
    "free-space-extent-unaligned": "FS-02", kernel reads, check names,
    "makes a free space extent an eighth of a sector shorter", needs "a free space extent",
    |image, target| {
        let spot = some!(extent(image, target, |_| true)?);
        image.rekey(&spot, Key { offset: spot.key.offset - 512, ..spot.key })
    };
    "free-space-extent-empty": "FS-02", kernel reads, check names,
    "makes a free space extent empty", needs "a free space extent",
    |image, target| {
        let spot = some!(extent(image, target, |_| true)?);
        image.rekey(&spot, Key { offset: 0, ..spot.key })
    };
    "free-space-bitmap-size": "FS-03", kernel reads, check names,
    "cuts the last byte of a free space bitmap", needs "a free space bitmap",
    |image, target| {
        let spot = some!(in_tree(image, target, BITMAP, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(data.len() - 1))
    };
    "free-space-info-missing": "FS-04", kernel reads, check names,
    "removes the free space info of a block group", needs "a block group with a free space info",
    |image, target| {
        let spot = some!(info(image, target, |_| true)?);
        image.remove(&spot)
    };
    "free-space-info-form": "FS-05", kernel reads, check names,
    "says that a block group's free space is in bitmaps, when it is in extents", needs "a block group with free space extents",
    |image, target| {
        let spot = some!(info(image, target, |i| {
            i.next().is_some_and(|n| n.key_type == KeyType::FREE_SPACE_EXTENT)
        })?);
        image.edit::<FreeSpaceInfo>(&spot, |i| i.flags |= 1)
    };
    "free-space-info-count": "FS-06", kernel reads, check names,
    "makes a free space info count one extent more", needs "a block group with a free space info",
    |image, target| {
        let spot = some!(info(image, target, |_| true)?);
        image.edit::<FreeSpaceInfo>(&spot, |i| i.extent_count += 1)
    };
    "free-space-extents-touch": "FS-07", kernel reads, check names,
    "splits a free space extent into two that touch", needs "a free space extent of two sectors, and room",
    |image, target| {
        let sector = image.sector();
        let spot = some!(extent(image, target, |i| i.key.offset > sector && i.has_room(0))?);
        some!(image.rekey(&spot, Key { offset: sector, ..spot.key })?);
        let rest = Key { objectid: spot.key.objectid + sector, offset: spot.key.offset - sector, ..spot.key };
        some!(image.insert(objectid::FREE_SPACE_TREE, rest, &[])?);
        let start = spot.key.objectid;
        let info = some!(info(image, &Target::Any, |i| {
            (i.key.objectid..i.key.objectid + i.key.offset).contains(&start)
        })?);
        image.edit::<FreeSpaceInfo>(&info, |i| i.extent_count += 1)
    };
    "free-space-extent-short": "FS-08", kernel reads, check names,
    "makes a free space extent a sector shorter", needs "a free space extent of two sectors",
    |image, target| {
        let sector = image.sector();
        let spot = some!(extent(image, target, |i| i.key.offset > sector)?);
        image.rekey(&spot, Key { offset: spot.key.offset - sector, ..spot.key })
    };
    "free-space-bitmap-bit": "FS-08", kernel reads, check names,
    "flips the first bit of a free space bitmap", needs "a free space bitmap",
    |image, target| {
        let spot = some!(in_tree(image, target, BITMAP, |_| true)?);
        image.edit_bytes(&spot, |data| data[0] ^= 1)
    };
    "free-space-bitmap-missing": "FS-09", kernel reads, check names,
    "removes the last free space bitmap of a block group", needs "a free space bitmap",
    |image, target| {
        let spot = some!(in_tree(image, target, BITMAP, |i| {
            i.slot > 0 && i.next().is_none_or(|n| n.key_type != KeyType::FREE_SPACE_BITMAP)
        })?);
        image.remove(&spot)
    };
    "free-space-info-stale": "FS-10", kernel reads, check names,
    "adds the free space info of a block group that does not exist", needs "a free space tree with room",
    |image, _| {
        let key = Key::new(1 << 50, KeyType::FREE_SPACE_INFO, 1 << 30);
        image.append(objectid::FREE_SPACE_TREE, |_| key, &[0; 8]).map(|s| s.map(drop))
    };
}

/// The info of a block group that exists.
fn info(image: &Image, target: &Target, wanted: impl Fn(&Seen<'_>) -> bool) -> Found<Spot> {
    let starts: Vec<u64> = image.store().chunks().iter().map(|c| c.start.0).collect();
    in_tree(image, target, INFO, |i| i.slot > 0 && starts.contains(&i.key.objectid) && wanted(i))
}

/// A free space extent in a block group that exists.
fn extent(image: &Image, target: &Target, wanted: impl Fn(&Seen<'_>) -> bool) -> Found<Spot> {
    in_tree(image, target, EXTENT, |i| {
        image.store().chunks().lookup(btrfsimg_ondisk::Logical(i.key.objectid)).is_some() && wanted(i)
    })
}
