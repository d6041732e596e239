//! FE-: file extents.

use std::mem::offset_of;

use btrfsimg_ondisk::{
    COMPRESSION_ZSTD, FILE_EXTENT_INLINE_HEAD_LEN, FileExtent, FileExtentHead, FileExtentKind,
    FileExtentRange, InodeItem, Key, KeyType, Logical, incompat, inode_flags,
};

use super::{S_IFDIR, S_IFLNK, blocks, edit_inode, in_subvolumes, inode, kind, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Seen, Spot, Target};

/// Where the head of an extent item says how it is encoded.
const COMPRESSION: usize = offset_of!(FileExtentHead, compression);
const ENCRYPTION: usize = offset_of!(FileExtentHead, encryption);
const KIND: usize = offset_of!(FileExtentHead, kind);
/// Where the range begins.
const RANGE: usize = FILE_EXTENT_INLINE_HEAD_LEN;

super::table! {
    "file-extent-offset": "FE-01", kernel refuses, check names,
    "moves a file extent to the middle of a sector", needs "a regular file extent",
    |image, target| {
        let spot = some!(regular(image, target, |_| true)?);
        image.rekey(&spot, Key { offset: spot.key.offset + 512, ..spot.key })
    };
    "file-extent-no-inode": "FE-02", kernel refuses, check names,
    "adds a file extent of an inode that has no other item", needs "room in the last leaf of a subvolume",
    |image, _| {
        let mut data = Vec::new();
        let kind = FileExtentKind::Inline(b"stray");
        FileExtent { generation: 1, ram_bytes: 5, compression: 0, kind }.write(&mut data);
        blocks::stray(image, KeyType::EXTENT_DATA, &data)
    };
    "file-extent-head-cut": "FE-03", kernel refuses, check names,
    "cuts a file extent before its type", needs "a file extent",
    |image, target| {
        let spot = some!(extent(image, target, |_, _| true)?);
        image.edit_bytes(&spot, |data| data.truncate(KIND))
    };
    "file-extent-type": "FE-04", kernel refuses, check names,
    "gives a file extent a type that does not exist", needs "a file extent",
    |image, target| byte(image, target, KIND, 3);
    "file-extent-compression": "FE-05", kernel refuses, check misses,
    "gives a file extent a compression that does not exist", needs "a file extent",
    |image, target| byte(image, target, COMPRESSION, 4);
    "file-extent-encryption": "FE-06", kernel refuses, check misses,
    "says that a file extent is encrypted", needs "a file extent",
    |image, target| byte(image, target, ENCRYPTION, 1);
    "file-extent-inline-offset": "FE-07", kernel refuses, check misses,
    "moves an inline extent away from the start of its file", needs "an inline extent",
    |image, target| {
        let spot = some!(inline(image, target, |_| true)?);
        image.rekey(&spot, Key { offset: image.sector(), ..spot.key })
    };
    "file-extent-inline-ram-bytes": "FE-09", kernel refuses, check names,
    "makes an inline extent a byte longer than its data", needs "an uncompressed inline extent",
    |image, target| {
        let spot = some!(inline(image, target, |e| e.compression == 0)?);
        image.edit::<FileExtentHead>(&spot, |e| e.ram_bytes += 1)
    };
    "file-extent-size": "FE-10", kernel refuses, check names,
    "cuts the last byte of a file extent", needs "a regular file extent",
    |image, target| {
        let spot = some!(regular(image, target, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(52))
    };
    "file-extent-unaligned": "FE-11", kernel refuses, check names,
    "makes a file extent a byte longer than its sectors", needs "a regular file extent",
    |image, target| {
        let spot = some!(regular(image, target, |_| true)?);
        image.edit_at::<FileExtentRange>(&spot, RANGE, |r| r.num_bytes += 1)
    };
    "file-extent-wraps": "FE-12", kernel refuses, check names,
    "moves the last extent of a file so far that its end wraps around", needs "a regular file extent",
    |image, target| {
        let spot = some!(last_regular(image, target, |_| true)?);
        image.rekey(&spot, Key { offset: 0u64.wrapping_sub(image.sector()), ..spot.key })
    };
    "file-extent-overlap": "FE-13", kernel refuses, check names,
    "moves a file extent a sector into the one before", needs "a file with two extents in a leaf",
    |image, target| {
        let sector = image.sector();
        let spot = some!(in_subvolumes(image, target, KeyType::EXTENT_DATA, |i| {
            let Some(before) = i.slot.checked_sub(1).map(|s| i.leaf.item(s)) else { return false };
            before.key.key_type == KeyType::EXTENT_DATA
                && before.key.objectid == i.key.objectid
                && FileExtent::parse(before.data)
                    .is_ok_and(|e| before.key.offset + e.covers(sector) == i.key.offset && e.covers(sector) > sector)
        })?);
        image.rekey(&spot, Key { offset: spot.key.offset - sector, ..spot.key })
    };
    "file-extent-empty": "FE-14", kernel reads, check names,
    "takes the length from a file extent", needs "a regular file extent",
    |image, target| {
        let spot = some!(last_regular(image, target, |_| true)?);
        image.edit_at::<FileExtentRange>(&spot, RANGE, |r| r.num_bytes = 0.into())
    };
    "file-extent-beyond-extent": "FE-15", kernel reads, check names,
    "makes a file extent start at the end of its extent", needs "an uncompressed file extent",
    |image, target| {
        let spot = some!(regular(image, target, |e| e.compression == 0)?);
        image.edit_at::<FileExtentRange>(&spot, RANGE, |r| r.offset = r.disk_num_bytes)
    };
    "hole-ram-bytes": "FE-15", kernel reads, check names,
    "takes the length in memory from a hole", needs "a hole in an image without NO_HOLES",
    |image, target| {
        let spot = some!(extent(image, target, |_, e| {
            matches!(e.kind, FileExtentKind::Regular(_)) && e.disk_extent().is_none()
        })?);
        image.edit::<FileExtentHead>(&spot, |e| e.ram_bytes = 0.into())
    };
    "file-extent-ram-bytes-short": "FE-15", kernel reads, check names,
    "makes an extent shorter in memory than what a file shows of it", needs "an uncompressed file extent",
    |image, target| {
        let sector = image.sector();
        let spot = some!(regular(image, target, |e| e.compression == 0)?);
        let range: FileExtentRange = some!(image.get(&spot, RANGE)?);
        let short = range.offset.get() + range.num_bytes.get() - sector;
        image.edit::<FileExtentHead>(&spot, |e| e.ram_bytes = short.into())
    };
    "file-extent-prealloc-compressed": "FE-16", kernel refuses, check names,
    "says that a preallocated extent is compressed", needs "a preallocated extent",
    |image, target| {
        let spot = some!(extent(image, target, |_, e| matches!(e.kind, FileExtentKind::Prealloc(_)))?);
        image.edit_at::<u8>(&spot, COMPRESSION, |b| *b = 1)
    };
    "file-extent-ram-bytes": "FE-17", kernel reads, check misses,
    "makes the ram_bytes of an uncompressed extent a sector more than its bytes on disk",
    needs "an uncompressed file extent",
    |image, target| {
        let sector = image.sector();
        let spot = some!(regular(image, target, |e| e.compression == 0)?);
        image.edit::<FileExtentHead>(&spot, |e| e.ram_bytes += sector)
    };
    "file-extent-compressed-large": "FE-18", kernel reads, check misses,
    "makes a compressed extent claim 256 KiB of data", needs "a compressed extent",
    |image, target| {
        let spot = some!(regular(image, target, |e| e.compression != 0)?);
        image.edit::<FileExtentHead>(&spot, |e| e.ram_bytes = (256 << 10).into())
    };
    "file-extent-compressed-long": "FE-18", kernel reads, check misses,
    "makes a file end with a compressed extent of 512 KiB of data, in a stream that gives them",
    needs "a file that ends with an extent compressed with zstd",
    |image, target| {
        let spot = some!(last_regular(image, target, |e| e.compression == COMPRESSION_ZSTD)?);
        let range: FileExtentRange = some!(image.get(&spot, RANGE)?);
        if range.offset != 0 {
            return Ok(None);
        }
        let (len, sector) = (512u64 << 10, usize::try_from(image.sector()).unwrap_or(4096));
        // A frame with a window of 128 KiB, of four blocks of 128 KiB of one byte each; the last is marked.
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
        for (at, byte) in (0u32..4).zip(*b"long") {
            let block = (128 << 10 << 3) | (1 << 1) | u32::from(at == 3);
            frame.extend_from_slice(&block.to_le_bytes()[..3]);
            frame.push(byte);
        }
        frame.resize(sector, 0);
        some!(image.write_checked_data(Logical(range.disk_bytenr.get()), &frame)?);
        some!(image.edit::<FileExtentHead>(&spot, |e| e.ram_bytes = len.into())?);
        some!(image.edit_at::<FileExtentRange>(&spot, RANGE, |r| r.num_bytes = len.into())?);
        let inode = some!(image.find_key(spot.tree, Key::new(spot.key.objectid, KeyType::INODE_ITEM, 0))?);
        image.edit::<InodeItem>(&inode, |i| {
            i.size = (spot.key.offset + len).into();
            i.nbytes = (i.nbytes.get() - range.num_bytes.get() + len).into();
        })
    };
    "file-extent-inline-empty": "FE-19", kernel reads, check names,
    "takes the data from an inline extent", needs "an uncompressed inline extent",
    |image, target| {
        let spot = some!(inline(image, target, |e| e.compression == 0)?);
        image.edit::<FileExtentHead>(&spot, |e| e.ram_bytes = 0.into())?;
        image.edit_bytes(&spot, |data| data.truncate(RANGE))
    };
    "symlink-size": "FE-20", kernel reads, check misses,
    "makes a symlink's size a byte more than its target", needs "a symlink",
    |image, target| edit_inode(image, target, |i| kind(i) == S_IFLNK, |i| i.size += 1);
    "file-compressed-without-sums": "FE-21", kernel reads, check names,
    "turns checksums off for a file with a compressed extent", needs "a compressed extent",
    |image, target| {
        let spot = some!(regular(image, target, |e| e.compression != 0)?);
        let inode = some!(image.find_key(spot.tree, Key::new(spot.key.objectid, KeyType::INODE_ITEM, 0))?);
        image.edit::<InodeItem>(&inode, |i| i.flags |= inode_flags::NODATASUM)
    };
    "file-extent-overlap-leaves": "FE-22", kernel reads, check names,
    "lets the last compressed extent of a leaf reach into the first of the next leaf",
    needs "a file whose compressed extents go on in another leaf",
    |image, target| {
        let sector = image.sector();
        let spot = some!(in_subvolumes(image, target, KeyType::EXTENT_DATA, |i| {
            i.next().is_none() && is_regular(i, |e| e.compression != 0)
        })?);
        let next = image.find(&Target::Any, crate::place::Trees::One(spot.tree), |i| i.key > spot.key)?;
        let next = some!(next.filter(|n| (n.key.objectid, n.key.key_type) == (spot.key.objectid, spot.key.key_type)));
        let reach = next.key.offset - spot.key.offset + sector;
        image.edit_at::<FileExtentRange>(&spot, RANGE, |r| r.num_bytes = reach.into())?;
        image.edit::<FileExtentHead>(&spot, |e| e.ram_bytes = reach.into())
    };
    "file-extent-gap": "FE-23", kernel reads, check names,
    "removes a hole's item where holes need one", needs "a hole in an image without NO_HOLES",
    |image, target| {
        if image.superblock().has_incompat(incompat::NO_HOLES) {
            return Ok(None);
        }
        let spot = some!(extent(image, target, |_, e| {
            e.range().is_some_and(|r| r.disk_bytenr == 0) && e.covers(4096) > 0
        })?);
        image.remove(&spot)
    };
    "file-extent-no-extent-item": "FE-24", kernel refuses, check names,
    "points a file extent to space that no extent item has", needs "a regular file extent",
    |image, target| {
        let spot = some!(regular(image, target, |_| true)?);
        image.edit_at::<FileExtentRange>(&spot, RANGE, |r| r.disk_bytenr += 1 << 40)
    };
    "file-extent-disk-num-bytes": "FE-24", kernel reads, check names,
    "makes a file extent believe that its extent is a sector longer", needs "a compressed extent",
    |image, target| {
        let sector = image.sector();
        let spot = some!(regular(image, target, |e| e.compression != 0 && e.ram_bytes > 3 * 4096)?);
        image.edit_at::<FileExtentRange>(&spot, RANGE, |r| r.disk_num_bytes += sector)
    };
    "file-extent-generation": "FE-28", kernel reads, check names,
    "gives a file extent a generation from the future", needs "a regular file extent",
    |image, target| {
        let future = image.ctx().generation + 1000;
        let spot = some!(regular(image, target, |_| true)?);
        image.edit::<FileExtentHead>(&spot, |e| e.generation = future.into())
    };
    "symlink-target-nul": "FE-29", kernel reads, check misses,
    "makes the second byte of a symlink's target NUL", needs "a symlink",
    |image, target| {
        let links = some!(inode(image, target, |i| kind(i) == S_IFLNK && i.size > 2)?);
        let key = Key::new(links.key.objectid, KeyType::EXTENT_DATA, 0);
        let spot = some!(image.find_key(links.tree, key)?);
        image.edit_at::<u8>(&spot, RANGE + 1, |b| *b = 0)
    };
    "file-extent-in-directory": "FE-26", kernel reads, check names,
    "gives a directory a file extent", needs "a directory below the root, and room in its leaf",
    |image, target| {
        let spot = some!(inode(image, target, |i| kind(i) == S_IFDIR)?);
        let mut data = Vec::new();
        let kind = FileExtentKind::Inline(b"stray");
        FileExtent { generation: 1, ram_bytes: 5, compression: 0, kind }.write(&mut data);
        let key = Key::new(spot.key.objectid, KeyType::EXTENT_DATA, 0);
        image.insert(spot.tree, key, &data).map(|s| s.map(drop))
    };
}

/// A file extent for which `wanted` holds.
pub(super) fn extent(
    image: &Image,
    target: &Target,
    wanted: impl Fn(&Seen<'_>, &FileExtent<'_>) -> bool,
) -> Found<Spot> {
    in_subvolumes(image, target, KeyType::EXTENT_DATA, |i| {
        FileExtent::parse(i.data).is_ok_and(|e| wanted(i, &e))
    })
}

fn is_regular(seen: &Seen<'_>, wanted: impl Fn(&FileExtent<'_>) -> bool) -> bool {
    FileExtent::parse(seen.data).is_ok_and(|e| {
        matches!(e.kind, FileExtentKind::Regular(_)) && e.disk_extent().is_some() && wanted(&e)
    })
}

/// A regular extent that is no hole.
pub(super) fn regular(
    image: &Image,
    target: &Target,
    wanted: impl Fn(&FileExtent<'_>) -> bool,
) -> Found<Spot> {
    in_subvolumes(image, target, KeyType::EXTENT_DATA, |i| is_regular(i, &wanted))
}

/// The same, with no other extent of the file behind it in the leaf.
fn last_regular(image: &Image, target: &Target, wanted: impl Fn(&FileExtent<'_>) -> bool) -> Found<Spot> {
    in_subvolumes(image, target, KeyType::EXTENT_DATA, |i| {
        let goes_on = i.next().is_some_and(|n| n.objectid == i.key.objectid);
        !goes_on && i.next().is_some() && is_regular(i, &wanted)
    })
}

fn inline(image: &Image, target: &Target, wanted: impl Fn(&FileExtent<'_>) -> bool) -> Found<Spot> {
    extent(image, target, |_, e| matches!(e.kind, FileExtentKind::Inline(_)) && wanted(e))
}

fn byte(image: &mut Image, target: &Target, at: usize, value: u8) -> Found<()> {
    let spot = some!(extent(image, target, |_, _| true)?);
    image.edit_at::<u8>(&spot, at, |b| *b = value)
}
