//! REF-: the names of an inode, from its side.

use btrfsimg_ondisk::{Key, KeyType};
use zerocopy::little_endian::U16;

use super::{blocks, in_subvolumes, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Spot, Target};

/// Where a reference says how long its name is.
const NAME_LEN: usize = 8;

super::table! {
    "inode-ref-no-inode": "REF-01", kernel refuses, check names,
    "adds a reference of an inode that has no other item", needs "room in the last leaf of a subvolume",
    |image, _| {
        let mut data = Vec::new();
        btrfsimg_ondisk::write_inode_ref(&mut data, 2, b"stray");
        blocks::stray(image, KeyType::INODE_REF, &data)
    };
    "inode-ref-empty": "REF-02", kernel refuses, check names,
    "cuts the name from a reference item", needs "an inode",
    |image, target| {
        let spot = some!(reference(image, target, 0)?);
        image.edit_bytes(&spot, |data| data.truncate(10))
    };
    "inode-ref-head-cut": "REF-03", kernel refuses, check misses,
    "leaves a part of a reference's head behind a reference", needs "an inode, and room in its leaf",
    |image, target| {
        let spot = some!(reference(image, target, 5)?);
        image.edit_bytes(&spot, |data| data.extend_from_slice(&[0; 5]))
    };
    "inode-ref-tail": "REF-06" or "REF-03", kernel refuses, check misses,
    "leaves a byte behind the last reference of an item", needs "an inode, and room in its leaf",
    |image, target| {
        let spot = some!(reference(image, target, 1)?);
        image.edit_bytes(&spot, |data| data.push(b'x'))
    };
    "inode-ref-name-len-overflow": "REF-04", kernel refuses, check names,
    "makes a name longer than its reference item", needs "an inode with few names",
    |image, target| {
        // 255 bytes are a length that can be: more is another fault.
        let spot = some!(in_subvolumes(image, target, KeyType::INODE_REF, |i| {
            i.slot > 0 && i.key.objectid != i.key.offset && i.data.len() < 10 + 255
        })?);
        image.edit_at::<U16>(&spot, NAME_LEN, |n| *n = 255.into())
    };
    "inode-ref-name-empty": "REF-05", kernel refuses, check names,
    "makes a name in a reference empty", needs "an inode",
    |image, target| {
        let spot = some!(reference(image, target, 0)?);
        image.edit_at::<U16>(&spot, NAME_LEN, |n| *n = 0.into())
    };
    "inode-extref-hash": "REF-07", kernel reads, check misses,
    "moves an extended reference to a key that is not its hash", needs "an inode with extended references",
    |image, target| {
        let spot = some!(in_subvolumes(image, target, KeyType::INODE_EXTREF, |i| {
            i.next().is_none_or(|next| next > Key { offset: i.key.offset + 1, ..i.key })
        })?);
        image.rekey(&spot, Key { offset: spot.key.offset + 1, ..spot.key })
    };
}

/// A reference item that is not a root directory's, in a leaf with room.
fn reference(image: &Image, target: &Target, room: usize) -> Found<Spot> {
    in_subvolumes(image, target, KeyType::INODE_REF, |i| {
        i.slot > 0 && i.key.objectid != i.key.offset && i.leaf.leaf_free() >= room
    })
}
