//! CS-: checksums of data.

use btrfsimg_ondisk::{
    FileExtent, FileExtentKind, InodeItem, Key, KeyType, Logical, block_group_flags, inode_flags, objectid,
};

use super::file_extents::{extent, regular};
use super::{in_tree, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Spot, Target};

const CSUMS: (u64, KeyType) = (objectid::CSUM_TREE, KeyType::EXTENT_CSUM);

super::table! {
    "csum-item-objectid": "CS-01", kernel refuses, check names,
    "adds a checksum item under another objectid", needs "a checksum item, and room behind the last",
    |image, _| {
        let data = vec![0; image.ctx().csum.width()];
        let key = |last: Key| Key { objectid: last.objectid + 1, ..last };
        image.append(objectid::CSUM_TREE, key, &data).map(|s| s.map(drop))
    };
    "csum-item-unaligned": "CS-02", kernel refuses, check names,
    "moves a checksum item to the middle of a sector", needs "a checksum item",
    |image, target| {
        let spot = some!(item(image, target)?);
        image.rekey(&spot, Key { offset: spot.key.offset + 512, ..spot.key })
    };
    "csum-item-size": "CS-03", kernel refuses, check names,
    "cuts a byte from a checksum", needs "a checksum item",
    |image, target| {
        let spot = some!(item(image, target)?);
        image.edit_bytes(&spot, |data| data.truncate(data.len() - 1))
    };
    "csum-item-empty": "CS-03", kernel refuses, check names,
    "takes all checksums from an item", needs "a checksum item",
    |image, target| {
        let spot = some!(item(image, target)?);
        image.edit_bytes(&spot, Vec::clear)
    };
    "csum-items-overlap": "CS-04", kernel refuses, check names,
    "adds a checksum item for a sector that has a checksum", needs "a checksum item of two sectors, and room",
    |image, target| {
        let (width, sector) = (image.ctx().csum.width(), image.sector());
        let spot = some!(in_tree(image, target, CSUMS, |i| i.data.len() >= 2 * width && i.has_room(width))?);
        let data = image.item(&spot)?;
        let last = (data.len() / width - 1) as u64;
        let key = Key { offset: spot.key.offset + last * sector, ..spot.key };
        image.insert(objectid::CSUM_TREE, key, &data[data.len() - width..]).map(|s| s.map(drop))
    };
    "csum-without-data": "CS-05", kernel reads, check misses,
    "adds a checksum for space that no extent has", needs "a checksum item, and room behind the last",
    |image, _| {
        let data = vec![0; image.ctx().csum.width()];
        image.append(objectid::CSUM_TREE, |last| Key { offset: 1 << 50, ..last }, &data).map(|s| s.map(drop))
    };
    "csum-end-overflow": "CS-05", kernel reads, check misses,
    "adds an item of two checksums for the last sector of 64 bits", needs "a checksum item, and room behind the last",
    |image, _| {
        let data = vec![0; 2 * image.ctx().csum.width()];
        let last_sector = 0u64.wrapping_sub(image.sector());
        let key = |last: Key| Key { offset: last_sector, ..last };
        image.append(objectid::CSUM_TREE, key, &data).map(|s| s.map(drop))
    };
    "csum-over-free-space": "CS-05", kernel reads, check names,
    "adds checksums at the start, in the middle and at the end of each free range of data",
    needs "a checksum item, free space for data, and room",
    |image, _| {
        let (width, sector) = (image.ctx().csum.width(), image.sector());
        let mut any = None;
        for gap in image.gaps(block_group_flags::DATA)? {
            let (first, last) = (gap.start.next_multiple_of(sector), gap.end / sector * sector - sector);
            let mut places = vec![first, (first + last) / 2 / sector * sector, last];
            places.dedup();
            for at in places.into_iter().filter(|at| (first..=last).contains(at)) {
                let key = Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at);
                any = image.insert(objectid::CSUM_TREE, key, &vec![0x5a; width])?.or(any);
            }
        }
        Ok(any.map(drop))
    };
    "csum-missing": "CS-06", kernel refuses, check names,
    "removes the checksum of the first sector of an item", needs "a checksum item of two sectors",
    |image, target| {
        let (width, sector) = (image.ctx().csum.width(), image.sector());
        let spot = some!(in_tree(image, target, CSUMS, |i| i.data.len() >= 2 * width)?);
        image.edit_bytes(&spot, |data| drop(data.drain(..width)))?;
        image.rekey(&spot, Key { offset: spot.key.offset + sector, ..spot.key })
    };
    "csum-of-nodatasum": "CS-07", kernel reads, check names,
    "turns checksums off for a file that has some", needs "an uncompressed file extent with checksums",
    |image, target| {
        let spot = some!(regular(image, target, |e| e.compression == 0)?);
        let key = Key::new(spot.key.objectid, KeyType::INODE_ITEM, 0);
        let inode = some!(image.find_key(spot.tree, key)?);
        image.edit::<InodeItem>(&inode, |i| i.flags |= inode_flags::NODATASUM)
    };
    "csum-of-prealloc": "CS-08", kernel reads, check names,
    "adds a checksum for preallocated space that was never written", needs "a preallocated extent",
    |image, target| {
        let spot = some!(extent(image, target, |_, e| matches!(e.kind, FileExtentKind::Prealloc(_)))?);
        let data = image.item(&spot)?;
        let Some((at, _)) = FileExtent::parse(&data).ok().and_then(|e| e.disk_extent()) else { return Ok(None) };
        let key = Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at.0);
        let sum = vec![0; image.ctx().csum.width()];
        image.insert(objectid::CSUM_TREE, key, &sum).map(|s| s.map(drop))
    };
    "csum-data-flip": "CS-09", kernel refuses, check names,
    "flips a bit of a file's data, on every copy", needs "a file extent with checksums",
    |image, target| flip(image, target, None);
    "csum-data-flip-mirror": "CS-09", kernel reads, check names,
    "flips a bit of a file's data, on its second copy", needs "data in two copies, with checksums",
    |image, target| flip(image, target, Some(1));
    "csum-flip": "CS-09", kernel refuses, check names,
    "flips a bit of a checksum", needs "a checksum item",
    |image, target| {
        let spot = some!(item(image, target)?);
        image.edit_bytes(&spot, |data| data[0] ^= 1)
    };
}

fn item(image: &Image, target: &Target) -> Found<Spot> {
    in_tree(image, target, CSUMS, |_| true)
}

fn flip(image: &mut Image, target: &Target, mirror: Option<usize>) -> Found<()> {
    let sums = some!(item(image, &Target::Any)?).key.offset;
    // Of compressed data, a verifier that decodes may name what does not decode.
    let with_sums = |e: &FileExtent<'_>| e.disk_extent().is_some_and(|(at, _)| at.0 >= sums);
    let plain = regular(image, target, |e| with_sums(e) && e.compression == 0)?;
    let spot = some!(plain.or(regular(image, target, with_sums)?));
    let data = image.item(&spot)?;
    let Some((at, _)) = FileExtent::parse(&data).ok().and_then(|e| e.disk_extent()) else { return Ok(None) };
    let offset = FileExtent::parse(&data).ok().and_then(|e| e.range().map(|r| r.offset.get())).unwrap_or(0);
    let at = Logical(at.0 + if data[16] == 0 { offset } else { 0 });
    let mut byte = image.read_data(at, 1)?;
    byte[0] ^= 0x10;
    match mirror {
        None => image.write_data(at, &byte)?,
        Some(mirror) => {
            let place = *some!(image.copies(at, 1)?.get(mirror));
            image.write_physical(place, byte);
            image.changed(crate::image::Change {
                logical: Some(at.0),
                physical: Some(place.0),
                ..crate::image::Change::new("data changed")
            });
        }
    }
    Ok(Some(()))
}
