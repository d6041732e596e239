//! BLK-, NODE-, LEAF-, DUP-, RS-: headers, item tables, pointers.

use btrfsimg_ondisk::{
    HEADER_LEN, Header, ITEM_HEADER_LEN, Key, KeyPtr, KeyType, Logical, ParentExpectation, header_flags,
    objectid,
};

use super::{in_subvolumes, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Spot, Target, Trees};

super::table! {
    "tree-root-unmapped": "BLK-01", kernel refuses, check names,
    "points a subvolume's root item to an address outside every chunk", needs "a subvolume",
    |image, target| {
        let subvolumes = image.subvolumes()?;
        let root = some!(image.find(target, Trees::One(objectid::ROOT_TREE), |i| {
            i.is(KeyType::ROOT_ITEM) && subvolumes.contains(&i.key.objectid)
        })?);
        image.edit::<btrfsimg_ondisk::RootItem>(&root, |r| r.bytenr = (1 << 50).into())
    };
    "block-bytenr": "BLK-02", kernel refuses, check names,
    "makes a leaf say that it is at another address", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.bytenr += 4096);
    "block-fsid": "BLK-03", kernel refuses, check names,
    "gives a leaf another file system's UUID", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.fsid[0] ^= 1);
    "block-level-high": "BLK-04", kernel refuses, check names,
    "gives a leaf level 8", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.level = 8);
    "block-checksum": "BLK-05", kernel refuses, check names,
    "changes the checksum of a leaf, on every copy", needs "a leaf of a subvolume",
    |image, target| {
        let spot = some!(leaf(image, target)?);
        image.spoil_checksum(spot.block, None)?;
        image.edit_header(&spot, |_| ())
    };
    "block-checksum-mirror": "BLK-05", kernel reads, check misses,
    "changes the checksum of a leaf, on its second copy", needs "metadata in two copies",
    |image, target| {
        let spot = some!(second_copy(image, target)?);
        image.spoil_checksum(spot.block, Some(1))?;
        image.edit_header(&spot, |_| ())
    };
    "block-level": "BLK-06" or "ROOT-08", kernel refuses, check names,
    "gives a leaf a level above the one that its parent says", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.level = 1);
    "leaf-level": "LEAF-01" or "BLK-06", kernel refuses, check names,
    "makes a block that must be a leaf a node of level 7", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.level = 7);
    "block-generation": "BLK-07" or "ROOT-08", kernel refuses, check names,
    "makes a leaf a generation older than the pointer to it", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.generation -= 1);
    "root-item-generation-old": "ROOT-08" or "BLK-07", kernel refuses, check names,
    "makes a root item a generation older than its block", needs "a checksum tree of a later generation than 1",
    |image, _| {
        let key = Key::new(objectid::CSUM_TREE, KeyType::ROOT_ITEM, 0);
        let root = some!(image.find_key(objectid::ROOT_TREE, key)?);
        // Kernels take 0 for "any".
        let item: btrfsimg_ondisk::RootItem = some!(image.get(&root, 0)?);
        if item.generation <= 1 {
            return Ok(None);
        }
        image.edit::<btrfsimg_ondisk::RootItem>(&root, |r| {
            r.generation -= 1;
            r.generation_v2 = r.generation;
        })
    };
    "node-first-key": "BLK-08", kernel refuses, check names,
    "lowers the key by which a node points to its first child", needs "a subvolume with a node",
    |image, _| {
        let node = some!(image.find_node(Trees::Subvolumes, 1)?);
        pointer(image, &node, 0, |p| p.key = Key { objectid: p.key.objectid - 1, ..p.key })
    };
    "node-child-overlap": "BLK-09", kernel reads, check names,
    "puts an item into a leaf whose key belongs behind the first key of the next leaf",
    needs "a subvolume with a node, and room in one of its leaves",
    |image, _| {
        let spot = some!(image.find(&Target::Any, Trees::Subvolumes, |i| i.next().is_none() && i.has_room(1))?);
        let Some((node, slot)) = spot.above.last().copied() else { return Ok(None) };
        let parent = image.block(node, &ParentExpectation::default())?;
        if slot + 1 >= parent.nritems() {
            return Ok(None);
        }
        let bound = parent.key(slot + 1);
        let key = Key::new(bound.objectid + 1, KeyType::VERITY_MERKLE_ITEM, 0);
        let leaf = image.block_mut(spot.block)?;
        leaf.insert_items(spot.slot + 1, std::iter::once((key, &[0][..])));
        image.edit_header(&spot, |_| ())
    };
    "block-owner": "BLK-10", kernel refuses, check names,
    "makes the device tree's leaf belong to the checksum tree", needs "a device tree",
    |image, _| {
        let spot = some!(image.last(objectid::DEV_TREE)?);
        image.edit_header(&spot, |h| h.owner = objectid::CSUM_TREE.into())
    };
    "block-not-written": "BLK-11", kernel refuses, check misses,
    "takes the WRITTEN flag from a leaf", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.flags &= !header_flags::WRITTEN);
    "block-chunk-tree-uuid": "BLK-12", kernel reads, check misses,
    "gives a leaf another chunk tree UUID", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.chunk_tree_uuid[0] ^= 1);
    "node-child-twice": "BLK-13", kernel refuses, check names,
    "points a node's second pointer to its first child", needs "a subvolume with a node of two children",
    |image, _| {
        let node = some!(image.find_node(Trees::Subvolumes, 2)?);
        let first = image.block(node.block, &ParentExpectation::default())?.key_ptr(0);
        pointer(image, &node, 1, |p| (p.block, p.generation) = (first.block, first.generation))
    };
    "block-backref-revision": "BLK-14", kernel reads, check misses,
    "makes a leaf one of the format of before 2009", needs "a leaf of a subvolume with data",
    |image, target| {
        let spot = some!(super::file_extents::regular(image, target, |_| true)?);
        image.edit_header(&spot, |h| h.flags &= (1 << 56) - 1)
    };
    "block-backref-revision-high": "BLK-15", kernel reads, check misses,
    "gives a leaf a back reference revision that does not exist", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.flags ^= 3 << 56);
    "block-copies-differ": "DUP-01", kernel reads, check misses,
    "changes an inode in the second copy of its leaf only", needs "metadata in two copies",
    |image, target| {
        let spot = some!(second_copy(image, target)?);
        image.edit::<btrfsimg_ondisk::InodeItem>(&spot, |i| i.sequence += 1)?;
        image.only_mirror(spot.block, 1).map(Some)
    };
    "node-level": "NODE-01" or "BLK-04", kernel refuses, check names,
    "gives a node level 9", needs "a subvolume with a node",
    |image, _| {
        let node = some!(image.find_node(Trees::Subvolumes, 1)?);
        image.edit_header(&node, |h| h.level = 9)
    };
    "node-empty": "NODE-02" or "BLK-08", kernel refuses, check names,
    "takes all pointers from a node", needs "a subvolume with a node",
    |image, _| {
        let node = some!(image.find_node(Trees::Subvolumes, 1)?);
        image.edit_header(&node, |h| h.nritems = 0.into())
    };
    "node-nritems": "NODE-02", kernel refuses, check names,
    "gives a node more pointers than fit", needs "a subvolume with a node",
    |image, _| {
        let node = some!(image.find_node(Trees::Subvolumes, 1)?);
        image.edit_header(&node, |h| h.nritems = 10_000.into())
    };
    "node-pointer-null": "NODE-03", kernel refuses, check names,
    "makes a pointer of a node null", needs "a subvolume with a node",
    |image, _| {
        let node = some!(image.find_node(Trees::Subvolumes, 1)?);
        pointer(image, &node, 0, |p| p.block = Logical(0))
    };
    "node-pointer-unaligned": "NODE-03", kernel refuses, check names,
    "points a pointer of a node into the middle of a sector", needs "a subvolume with a node",
    |image, _| {
        let node = some!(image.find_node(Trees::Subvolumes, 1)?);
        pointer(image, &node, 0, |p| p.block = Logical(p.block.0 + 512))
    };
    "node-key-order": "NODE-04", kernel refuses, check names,
    "gives two pointers of a node the same key", needs "a subvolume with a node of two children",
    |image, _| {
        let node = some!(image.find_node(Trees::Subvolumes, 2)?);
        let first = image.block(node.block, &ParentExpectation::default())?.key_ptr(0);
        pointer(image, &node, 1, |p| p.key = first.key)
    };
    "leaf-empty": "LEAF-02", kernel refuses, check names,
    "takes all items from the device tree", needs "a device tree of one leaf",
    |image, _| {
        let spot = some!(image.last(objectid::DEV_TREE)?);
        if !spot.above.is_empty() {
            return Ok(None);
        }
        image.edit_header(&spot, |h| h.nritems = 0.into())
    };
    "leaf-key-order": "LEAF-03", kernel refuses, check names,
    "gives two neighbouring items of a leaf the same key", needs "a leaf of a subvolume",
    |image, target| {
        let spot = some!(image.find(target, Trees::Subvolumes, |i| i.next().is_some())?);
        let next = Spot { slot: spot.slot + 1, ..spot.clone() };
        image.rekey(&next, spot.key)
    };
    "leaf-item-gap": "LEAF-04", kernel refuses, check names,
    "moves an item's data a byte down, so that a gap is left", needs "a leaf of a subvolume",
    |image, target| item_header(image, target, |offset, size| (offset - 1, size));
    "leaf-item-beyond": "LEAF-05" or "LEAF-04", kernel refuses, check names,
    "moves an item's data beyond the end of the leaf", needs "a leaf of a subvolume",
    |image, target| item_header(image, target, |offset, size| (offset + 70_000, size));
    "leaf-item-size-wraps": "LEAF-05" or "LEAF-04", kernel refuses, check names,
    "makes an item's size so large that its end wraps around", needs "a leaf of a subvolume",
    |image, target| item_header(image, target, |offset, _| (offset, u32::MAX));
    "leaf-items-overlap-headers": "LEAF-06", kernel refuses, check names,
    "lets the data of the last item of a leaf grow into the item headers", needs "a leaf of a subvolume",
    |image, target| {
        let spot = some!(image.find(target, Trees::Subvolumes, |i| i.next().is_none())?);
        table(image, &spot, |offset, size| (0, offset + size))
    };
    "leaf-nritems": "LEAF-06" or "LEAF-03" or "LEAF-04", kernel refuses, check names,
    "makes a leaf claim more items than fit", needs "a leaf of a subvolume",
    |image, target| header(image, target, |h| h.nritems = 100_000.into());
    "leaf-item-type-unknown": "LEAF-08", kernel reads, check names,
    "puts an item of an unknown type into a subvolume", needs "room in the last leaf of a subvolume",
    |image, _| stray(image, KeyType(99), &[]);
    "leaf-inode-cache": "LEAF-09", kernel reads, check names,
    "puts a left-over of the retired inode cache into a subvolume",
    needs "room in the last leaf of a subvolume",
    |image, _| {
        let tree = some!(image.subvolumes()?.first().copied());
        image.append(tree, |_| Key::new(objectid::FREE_INO, KeyType::VERITY_DESC_ITEM, 0), &[0; 8]).map(|s| s.map(drop))
    };
    "leaf-item-length": "LEAF-10", kernel reads, check misses,
    "makes a UUID item longer than a whole number of subvolume ids", needs "a UUID tree with an item and room",
    |image, _| {
        let spot = some!(image.find(&Target::Any, Trees::One(objectid::UUID_TREE), |i| i.has_room(0))?);
        image.edit_bytes(&spot, |data| data.push(0))
    };
    "raid-stripe-without-feature": "RS-01", kernel refuses, check misses,
    "puts a RAID stripe item into the device tree", needs "a device tree with room",
    |image, _| image.append(objectid::DEV_TREE, |_| Key::new(1 << 40, KeyType::RAID_STRIPE, 4096), &[0; 16])
        .map(|s| s.map(drop));
}

/// An inode's leaf in a subvolume.
fn leaf(image: &Image, target: &Target) -> Found<Spot> {
    in_subvolumes(image, target, KeyType::INODE_ITEM, |_| true)
}

fn header(image: &mut Image, target: &Target, edit: impl FnOnce(&mut Header)) -> Found<()> {
    let spot = some!(leaf(image, target)?);
    image.edit_header(&spot, edit)
}

/// A leaf of a subvolume that is there twice.
fn second_copy(image: &Image, target: &Target) -> Found<Spot> {
    let spot = some!(leaf(image, target)?);
    let copies = image.copies(spot.block, image.nodesize())?.len();
    Ok((copies > 1).then_some(spot))
}

fn pointer(image: &mut Image, node: &Spot, slot: usize, edit: impl FnOnce(&mut KeyPtr)) -> Found<()> {
    let block = image.block_mut(node.block)?;
    let mut pointer = block.key_ptr(slot);
    edit(&mut pointer);
    block.set_key_ptr(slot, pointer);
    image.edit_header(node, |_| ())
}

/// Changes where the data of an inode item are, by what the item header says: offset and size.
fn item_header(image: &mut Image, target: &Target, edit: impl FnOnce(u32, u32) -> (u32, u32)) -> Found<()> {
    let spot = some!(leaf(image, target)?);
    table(image, &spot, edit)
}

fn table(image: &mut Image, spot: &Spot, edit: impl FnOnce(u32, u32) -> (u32, u32)) -> Found<()> {
    let at = HEADER_LEN + spot.slot * ITEM_HEADER_LEN + 17;
    image.edit_block(spot, |bytes| {
        let word = |from: usize| {
            u32::from_le_bytes([bytes[from], bytes[from + 1], bytes[from + 2], bytes[from + 3]])
        };
        let (offset, size) = edit(word(at), word(at + 4));
        bytes[at..at + 4].copy_from_slice(&offset.to_le_bytes());
        bytes[at + 4..at + 8].copy_from_slice(&size.to_le_bytes());
    })
}

/// Puts an item behind the last of the first subvolume, under an inode number that nothing has.
pub(super) fn stray(image: &mut Image, key_type: KeyType, data: &[u8]) -> Found<()> {
    let tree = some!(image.subvolumes()?.first().copied());
    let key = |last: Key| Key::new(last.objectid + 1, key_type, 0);
    image.append(tree, key, data).map(|s| s.map(drop))
}
