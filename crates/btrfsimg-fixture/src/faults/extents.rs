//! EX-, KR-, XR-: extent items and what refers to extents.

use btrfsimg_ondisk::{
    BackRef, BlockGroupItem, ChunkItem, ExtentDataRef, ExtentItem, FileExtent, FileExtentKind,
    FileExtentRange, InlineRef, InodeItem, Key, KeyType, Logical, STRIPE_LEN, TreeBlockInfo,
    block_group_flags as bg, extent_flags, header_flags, incompat, objectid, write_extent_item,
};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::{S_IFREG, chunks, devices, in_subvolumes, in_tree, inode, kind, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Seen, Spot, Target, Trees};

const EXTENT_ITEM: (u64, KeyType) = (objectid::EXTENT_TREE, KeyType::EXTENT_ITEM);
const METADATA_ITEM: (u64, KeyType) = (objectid::EXTENT_TREE, KeyType::METADATA_ITEM);
const DATA_REF: (u64, KeyType) = (objectid::EXTENT_TREE, KeyType::EXTENT_DATA_REF);
/// Where the first inline reference of a data extent, or of a skinny metadata item, begins.
const INLINE: usize = size_of::<ExtentItem>();

super::table! {
    "metadata-item-without-feature": "EX-01", kernel refuses, check names,
    "takes SKINNY_METADATA from an image that has METADATA_ITEMs", needs "an image with SKINNY_METADATA",
    |image, _| {
        some!(in_tree(image, &Target::Any, METADATA_ITEM, |_| true)?);
        image.edit_supers(|sb| sb.incompat_flags &= !incompat::SKINNY_METADATA).map(Some)
    };
    "extent-item-unaligned": "EX-02", kernel refuses, check names,
    "moves a data extent to the middle of a sector", needs "a data extent",
    |image, target| {
        let spot = some!(data(image, target, |i| {
            i.next().is_none_or(|n| n.objectid > i.key.objectid + 512)
        })?);
        image.rekey(&spot, Key { objectid: spot.key.objectid + 512, ..spot.key })
    };
    "metadata-item-level": "EX-03", kernel refuses, check names,
    "gives a tree block level 8", needs "a METADATA_ITEM",
    |image, target| {
        let spot = some!(in_tree(image, target, METADATA_ITEM, |_| true)?);
        image.rekey(&spot, Key { offset: 8, ..spot.key })
    };
    "extent-item-size": "EX-04", kernel refuses, check names,
    "cuts the last byte of an extent item's head", needs "a data extent",
    |image, target| {
        let spot = some!(data(image, target, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(INLINE - 1))
    };
    "extent-item-generation": "EX-05", kernel refuses, check names,
    "gives an extent a generation from the future", needs "a data extent",
    |image, target| {
        let future = image.ctx().generation + 1000;
        edit(image, target, |e| e.generation = future.into())
    };
    "extent-item-flags": "EX-06", kernel refuses, check names,
    "makes an extent both data and a tree block", needs "a data extent",
    |image, target| edit(image, target, |e| e.flags |= extent_flags::TREE_BLOCK);
    "tree-block-extent-length": "EX-07", kernel refuses, check names,
    "makes a tree block's extent a sector longer than a block", needs "an image without SKINNY_METADATA",
    |image, target| {
        let spot = some!(fat(image, target)?);
        image.rekey(&spot, Key { offset: spot.key.offset + 4096, ..spot.key })
    };
    "data-extent-full-backref": "EX-08", kernel refuses, check misses,
    "gives a data extent full back references", needs "a data extent",
    |image, target| edit(image, target, |e| e.flags |= extent_flags::FULL_BACKREF);
    "data-extent-length": "EX-08", kernel refuses, check names,
    "makes a data extent half a sector shorter", needs "a data extent",
    |image, target| {
        let spot = some!(data(image, target, |_| true)?);
        image.rekey(&spot, Key { offset: spot.key.offset - 512, ..spot.key })
    };
    "tree-block-info-level": "EX-09", kernel refuses, check names,
    "gives a tree block level 8 in its info", needs "an image without SKINNY_METADATA",
    |image, target| {
        let spot = some!(fat(image, target)?);
        image.edit_at::<TreeBlockInfo>(&spot, INLINE, |i| i.level = 8)
    };
    "inline-ref-cut": "EX-10", kernel refuses, check names,
    "cuts the last byte of an inline reference", needs "a data extent with an inline reference",
    |image, target| {
        let spot = some!(data(image, target, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(data.len() - 1))
    };
    "inline-ref-padding": "EX-15" or "EX-10" or "EX-11", kernel refuses, check names,
    "leaves five bytes behind the last inline reference", needs "a data extent, and room in its leaf",
    |image, target| {
        let spot = some!(data(image, target, |i| i.has_room(5))?);
        image.edit_bytes(&spot, |data| data.extend_from_slice(&[KeyType::TREE_BLOCK_REF.0, 0, 0, 0, 0]))
    };
    "inline-ref-type": "EX-11", kernel refuses, check names,
    "gives an inline reference a type that does not exist", needs "a data extent with an inline reference",
    |image, target| {
        let spot = some!(data(image, target, |_| true)?);
        image.edit_at::<u8>(&spot, INLINE, |t| *t = 175)
    };
    "inline-ref-parent-unaligned": "EX-12", kernel refuses, check names,
    "makes a shared reference name a parent in the middle of a sector", needs "an inline shared reference",
    |image, target| {
        let spot = some!(image.find(target, Trees::One(objectid::EXTENT_TREE), |i| {
            let is_item = i.is(KeyType::EXTENT_ITEM) || i.is(KeyType::METADATA_ITEM);
            is_item && i.data.get(INLINE).is_some_and(|t| [182, 184].contains(t))
        })?);
        image.edit_at::<U64>(&spot, INLINE + 1, |parent| *parent += 512)
    };
    "inline-data-ref-root": "EX-13", kernel refuses, check names,
    "makes a data reference name a tree that holds no data", needs "a data extent with an inline reference",
    |image, target| inline_ref(image, target, |r| r.root = objectid::EXTENT_TREE.into());
    "inline-data-ref-inode": "EX-13", kernel refuses, check names,
    "makes a data reference name an inode that cannot be", needs "a data extent with an inline reference",
    |image, target| inline_ref(image, target, |r| r.objectid = 1.into());
    "inline-data-ref-offset": "EX-13", kernel refuses, check names,
    "makes a data reference name an offset in the middle of a sector", needs "a data extent with an inline reference",
    |image, target| inline_ref(image, target, |r| r.offset += 512);
    "inline-data-ref-count": "EX-13", kernel refuses, check names,
    "makes a data reference count nothing", needs "a data extent with an inline reference",
    |image, target| inline_ref(image, target, |r| r.count = 0.into());
    "inline-refs-order": "EX-14", kernel refuses, check misses,
    "swaps two inline references", needs "a data extent with two inline references",
    |image, target| {
        let two = INLINE + 2 * 29;
        let spot = some!(data(image, target, |i| i.data.len() >= two && i.data[INLINE + 29] == 178)?);
        image.edit_bytes(&spot, |data| {
            let (a, b) = data[INLINE..two].split_at_mut(29);
            a.swap_with_slice(b);
        })
    };
    "extent-item-few-refs": "EX-16", kernel refuses, check names,
    "makes an extent count fewer references than it lists", needs "a data extent with an inline reference",
    |image, target| edit(image, target, |e| e.refs = 0.into());
    "extent-items-overlap": "EX-17", kernel refuses, check names,
    "makes a data extent reach into the next extent", needs "two data extents in a leaf",
    |image, target| {
        let spot = some!(data(image, target, |i| {
            i.next().is_some_and(|n| n.key_type == KeyType::EXTENT_ITEM)
        })?);
        let next = image.block(spot.block, &Default::default())?.key(spot.slot + 1);
        let length = next.objectid + image.sector() - spot.key.objectid;
        image.rekey(&spot, Key { offset: length, ..spot.key })
    };
    "keyed-ref-size": "KR-01", kernel refuses, check names,
    "cuts the last byte of a keyed reference", needs "a keyed data reference",
    |image, target| {
        let spot = some!(in_tree(image, target, DATA_REF, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(27))
    };
    "keyed-ref-unaligned": "KR-02", kernel refuses, check misses,
    "moves a keyed reference to an extent in the middle of a sector", needs "a keyed data reference",
    |image, target| {
        let spot = some!(in_tree(image, target, DATA_REF, |i| {
            i.next().is_none_or(|n| n.objectid > i.key.objectid + 512)
        })?);
        image.rekey(&spot, Key { objectid: spot.key.objectid + 512, ..spot.key })
    };
    "keyed-ref-parent-unaligned": "KR-03", kernel refuses, check names,
    "adds a keyed shared reference of a parent in the middle of a sector", needs "a data extent, and room in its leaf",
    |image, target| {
        let spot = some!(data(image, target, |_| true)?);
        let key = Key::new(spot.key.objectid, KeyType::SHARED_DATA_REF, 512);
        image.insert(objectid::EXTENT_TREE, key, &1u32.to_le_bytes()).map(|s| s.map(drop))
    };
    "keyed-ref-root": "KR-04", kernel refuses, check names,
    "makes a keyed data reference name a tree that holds no data", needs "a keyed data reference",
    |image, target| {
        let spot = some!(in_tree(image, target, DATA_REF, |_| true)?);
        image.edit::<ExtentDataRef>(&spot, |r| r.root = objectid::EXTENT_TREE.into())
    };
    "keyed-ref-hash": "KR-05", kernel reads, check misses,
    "moves a keyed data reference to a key that is not its hash", needs "a keyed data reference",
    |image, target| {
        let spot = some!(in_tree(image, target, DATA_REF, |i| {
            i.next().is_none_or(|n| n > Key { offset: i.key.offset + 5000, ..i.key })
        })?);
        image.rekey(&spot, Key { offset: spot.key.offset + 5000, ..spot.key })
    };
    "keyed-ref-no-extent": "KR-06", kernel reads, check names,
    "adds a keyed reference of an extent that does not exist", needs "an extent tree with room",
    |image, _| {
        let back = BackRef::Data { root: objectid::FS_TREE, objectid: 300, offset: 0 };
        let key = Key::new(1 << 50, KeyType::EXTENT_DATA_REF, back.sequence());
        image.append(objectid::EXTENT_TREE, |_| key, &back.keyed_data(1)).map(|s| s.map(drop))
    };
    "extent-item-refs": "XR-01", kernel reads, check names,
    "makes an extent count a reference more than it lists", needs "a data extent",
    |image, target| edit(image, target, |e| e.refs += 1);
    "extent-ref-inode": "XR-02", kernel reads, check names,
    "makes a data reference name another inode", needs "a data extent with an inline reference",
    |image, target| inline_ref(image, target, |r| r.objectid += 1000);
    "extent-ref-offset": "XR-02", kernel reads, check names,
    "makes a data reference name another file offset", needs "a data extent with an inline reference",
    |image, target| inline_ref(image, target, |r| r.offset += 1 << 30);
    "extent-ref-count": "XR-02", kernel reads, check names,
    "makes a data reference count one user more", needs "a data extent with an inline reference",
    |image, target| {
        let spot = some!(referenced(image, target)?);
        image.edit::<ExtentItem>(&spot, |e| e.refs += 1)?;
        image.edit_at::<ExtentDataRef>(&spot, INLINE + 1, |r| r.count += 1)
    };
    "tree-block-ref-root": "XR-02", kernel reads, check names,
    "makes a tree block's reference name another tree", needs "a METADATA_ITEM",
    |image, target| {
        let spot = some!(in_tree(image, target, METADATA_ITEM, |i| i.data.get(INLINE) == Some(&176))?);
        image.edit_at::<U64>(&spot, INLINE + 1, |root| *root += 3)
    };
    "tree-block-level": "XR-02", kernel reads, check misses,
    "gives a tree block another level than it has", needs "a METADATA_ITEM",
    |image, target| {
        let spot = some!(in_tree(image, target, METADATA_ITEM, |i| i.key.offset == 0)?);
        image.rekey(&spot, Key { offset: 3, ..spot.key })
    };
    "tree-block-full-backref": "XR-03" or "XR-02", kernel reads, check names,
    "says that a leaf's extents refer to it by its address, when they refer to its tree",
    needs "a leaf with data extents that is not shared",
    |image, target| {
        let leaf = some!(in_subvolumes(image, target, KeyType::EXTENT_DATA, |i| {
            FileExtent::parse(i.data).is_ok_and(|e| e.disk_extent().is_some())
        })?);
        let spot = some!(image.tree_block_item(leaf.block)?);
        let head: ExtentItem = some!(image.get(&spot, 0)?);
        if head.flags & extent_flags::FULL_BACKREF != 0 {
            return Ok(None);
        }
        image.edit::<ExtentItem>(&spot, |e| e.flags |= extent_flags::FULL_BACKREF)
    };
    "tree-block-moved": "XR-03", kernel reads, check names,
    "says that a balance moved a leaf, whose extents refer to its tree", needs "a leaf with data extents below a root node",
    |image, target| {
        let leaf = some!(super::file_extents::regular(image, target, |_| true)?);
        let item = some!(image.tree_block_item(leaf.block)?);
        let head: ExtentItem = some!(image.get(&item, 0)?);
        if leaf.above.is_empty() || head.flags & extent_flags::FULL_BACKREF != 0 {
            return Ok(None);
        }
        image.edit_header(&leaf, |h| h.flags |= header_flags::RELOC)
    };
    "tree-block-no-extent-item": "XR-04", kernel reads, check names,
    "removes the extent item of a tree block", needs "a METADATA_ITEM",
    |image, target| {
        let spot = some!(in_tree(image, target, METADATA_ITEM, |i| i.slot > 0)?);
        image.remove(&spot)
    };
    "tree-block-extent-of-data": "XR-04", kernel reads, check misses,
    "makes the extent item of a tree block one of data", needs "an image without SKINNY_METADATA",
    |image, target| {
        let spot = some!(fat(image, target)?);
        some!(image.edit_bytes(&spot, |data| drop(data.drain(INLINE..INLINE + size_of::<TreeBlockInfo>())))?);
        image.edit::<ExtentItem>(&spot, |e| e.flags ^= extent_flags::DATA | extent_flags::TREE_BLOCK)
    };
    "extent-item-unused": "XR-04", kernel reads, check names,
    "adds the extent item of data that nothing uses", needs "free data space, and room in the extent tree",
    |image, _| {
        let gap = some!(image.gaps(bg::DATA)?.into_iter().find(|g| g.end - g.start > 1 << 16));
        let back = BackRef::Data { root: objectid::FS_TREE, objectid: 1 << 20, offset: 0 };
        data_item(image, gap.start, image.sector(), back)
    };
    "extent-refs-zero": "XR-04", kernel reads, check names,
    "leaves the extent item of what a file used, with no reference", needs "an uncompressed file extent that nothing shares",
    |image, target| {
        let spot = some!(super::file_extents::regular(image, target, |e| e.compression == 0)?);
        let inode = some!(image.find_key(spot.tree, Key::new(spot.key.objectid, KeyType::INODE_ITEM, 0))?);
        let range: FileExtentRange = some!(image.get(&spot, btrfsimg_ondisk::FILE_EXTENT_INLINE_HEAD_LEN)?);
        let item = some!(data(image, &Target::Any, |i| i.key.objectid == range.disk_bytenr.get())?);
        let head: ExtentItem = some!(image.get(&item, 0)?);
        if head.refs != 1 {
            return Ok(None);
        }
        some!(image.edit_at::<FileExtentRange>(&spot, btrfsimg_ondisk::FILE_EXTENT_INLINE_HEAD_LEN, |r| {
            (r.disk_bytenr, r.disk_num_bytes, r.offset) = (0.into(), 0.into(), 0.into());
        })?);
        some!(image.edit::<InodeItem>(&inode, |i| i.nbytes -= range.num_bytes)?);
        some!(image.edit_bytes(&item, |data| data.truncate(INLINE))?);
        image.edit::<ExtentItem>(&item, |e| e.refs = 0.into())
    };
    "tree-block-in-data-group": "XR-05", kernel reads, check names,
    "moves the device tree's root into a data block group", needs "a device tree, and free data space",
    |image, _| {
        let to = some!(image.free_block(bg::DATA, |at| at % STRIPE_LEN == 0)?);
        image.move_root(objectid::DEV_TREE, to)
    };
    "block-group-type-and-chunk": "XR-05", kernel reads, check names,
    "makes a data block group and its chunk hold metadata", needs "a data block group in use",
    |image, _| {
        let sums = some!(in_tree(image, &Target::Any, (objectid::CSUM_TREE, KeyType::EXTENT_CSUM), |_| true)?);
        let start = some!(image.store().chunks().lookup(Logical(sums.key.offset)).map(|c| c.start.0));
        let group = some!(devices::data_group(image, &Target::Any)?.filter(|g| g.key.objectid == start));
        let key = Key::new(objectid::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, start);
        let chunk = some!(chunks::chunk(image, &Target::Key(key))?);
        some!(image.edit::<BlockGroupItem>(&group, |g| g.flags ^= bg::DATA | bg::METADATA)?);
        image.edit::<ChunkItem>(&chunk, |c| c.flags ^= bg::DATA | bg::METADATA)
    };
    "block-group-system": "XR-05", kernel reads, check names,
    "makes a metadata block group and its chunk hold the chunk tree", needs "a metadata block group",
    |image, _| {
        let start = image.superblock().root.get();
        let chunk = image.store().chunks().lookup(Logical(start));
        let start = some!(chunk.filter(|c| c.flags & bg::TYPE_MASK == bg::METADATA)).start.0;
        let group = some!(devices::group_at(image, start)?);
        let key = Key::new(objectid::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, start);
        let chunk = some!(chunks::chunk(image, &Target::Key(key))?);
        some!(image.edit::<BlockGroupItem>(&group, |g| g.flags ^= bg::METADATA | bg::SYSTEM)?);
        image.edit::<ChunkItem>(&chunk, |c| c.flags ^= bg::METADATA | bg::SYSTEM)
    };
    "extent-beyond-block-group": "XR-06", kernel reads, check names,
    "preallocates space that crosses the end of a block group", needs "free space at the end of a data block group",
    |image, target| {
        let ends: Vec<u64> = image.store().chunks().iter().map(|c| c.end()).collect();
        let sector = image.sector();
        let gap = some!(image.gaps(bg::DATA)?.into_iter().find(|g| ends.contains(&g.end) && g.end - g.start >= sector));
        prealloc(image, target, gap.end - sector, 2 * sector)
    };
    "tree-block-on-superblock": "XR-07", kernel reads, check names,
    "moves the device tree's root next to a superblock copy",
    needs "a metadata block group over a superblock copy, with free space",
    |image, _| {
        let windows: Vec<_> = image.store().chunks().iter().flat_map(|c| c.superblock_windows()).collect();
        let node = image.nodesize();
        // Behind the copy itself, which stays as it is, and in the same stripe.
        let inside = |at: u64| {
            windows.iter().any(|w| w.contains(&at) && at - w.start == STRIPE_LEN / 2 && at - w.start + node <= STRIPE_LEN)
        };
        let to = some!(image.free_block(bg::METADATA, inside)?);
        image.move_root(objectid::DEV_TREE, to)
    };
    "tree-block-crosses-stripe": "XR-08", kernel reads, check names,
    "moves the device tree's root over the end of a stripe of 64 KiB",
    needs "a node size above the sector size, and free metadata space",
    |image, _| {
        let node = image.nodesize();
        let starts: Vec<(u64, u64)> = image.store().chunks().iter().map(|c| (c.start.0, c.end())).collect();
        let crosses = |at: u64| {
            starts.iter().any(|(s, e)| (*s..*e).contains(&at) && (at - s) % STRIPE_LEN + node > STRIPE_LEN)
        };
        let to = some!(image.free_block(bg::METADATA, crosses)?);
        image.move_root(objectid::DEV_TREE, to)
    };
}

/// The item of a data extent that has inline references.
fn data(image: &Image, target: &Target, wanted: impl Fn(&Seen<'_>) -> bool) -> Found<Spot> {
    in_tree(image, target, EXTENT_ITEM, |i| {
        let is_data = ExtentItem::read_from_prefix(i.data).is_ok_and(|(e, _)| e.flags == extent_flags::DATA);
        is_data && i.data.len() > INLINE && wanted(i)
    })
}

/// The item of a tree block in an image without SKINNY_METADATA.
fn fat(image: &Image, target: &Target) -> Found<Spot> {
    in_tree(image, target, EXTENT_ITEM, |i| {
        ExtentItem::read_from_prefix(i.data).is_ok_and(|(e, _)| e.flags & extent_flags::TREE_BLOCK != 0)
    })
}

/// A data extent whose first inline reference is by tree, inode and offset, and the only one.
fn referenced(image: &Image, target: &Target) -> Found<Spot> {
    data(image, target, |i| i.data.len() == INLINE + 29 && i.data[INLINE] == KeyType::EXTENT_DATA_REF.0)
}

fn inline_ref(image: &mut Image, target: &Target, edit: impl FnOnce(&mut ExtentDataRef)) -> Found<()> {
    let spot = some!(referenced(image, target)?);
    image.edit_at(&spot, INLINE + 1, edit)
}

fn edit(image: &mut Image, target: &Target, edit: impl FnOnce(&mut ExtentItem)) -> Found<()> {
    let spot = some!(data(image, target, |_| true)?);
    image.edit(&spot, edit)
}

/// Adds a data extent's item with one reference.
fn data_item(image: &mut Image, at: u64, len: u64, back: BackRef) -> Found<()> {
    let mut head = ExtentItem::zeroed();
    head.refs = 1.into();
    head.generation = image.ctx().generation.into();
    head.flags = extent_flags::DATA.into();
    let mut item = Vec::new();
    write_extent_item(&mut item, &head, None, &[InlineRef::Ref(back, 1)]);
    let key = Key::new(at, KeyType::EXTENT_ITEM, len);
    image.insert(objectid::EXTENT_TREE, key, &item).map(|s| s.map(drop))
}

/// Gives a file a preallocated extent at `at` behind its last, with all that counts it.
fn prealloc(image: &mut Image, target: &Target, at: u64, len: u64) -> Found<()> {
    let spot = some!(inode(image, target, |i| kind(i) == S_IFREG)?);
    let (tree, ino) = (spot.tree, spot.key.objectid);
    let back = BackRef::Data { root: tree, objectid: ino, offset: 1 << 40 };
    some!(data_item(image, at, len, back)?);
    let range = FileExtentRange {
        disk_bytenr: at.into(),
        disk_num_bytes: len.into(),
        offset: 0.into(),
        num_bytes: len.into(),
    };
    let extent = FileExtent {
        generation: image.ctx().generation,
        ram_bytes: len,
        compression: 0,
        kind: FileExtentKind::Prealloc(range),
    };
    let mut data = Vec::new();
    extent.write(&mut data);
    some!(image.insert(tree, Key::new(ino, KeyType::EXTENT_DATA, 1 << 40), &data)?);
    let inode = some!(image.find_key(tree, Key::new(ino, KeyType::INODE_ITEM, 0))?);
    image.edit::<InodeItem>(&inode, |i| i.nbytes += len)
}
