//! FE-25, FE-27: compressed data that do not decode, or are not as kernels write them, under right checksums.

use btrfsimg_ondisk::{
    COMPRESSION_LZO, COMPRESSION_ZLIB, COMPRESSION_ZSTD, FILE_EXTENT_INLINE_HEAD_LEN, FileExtentKind, Logical,
};

use super::file_extents::{extent, regular};
use super::some;
use crate::error::Found;
use crate::image::Image;
use crate::place::Target;

super::table! {
    "zlib-header": "FE-25", kernel refuses, check misses,
    "makes the header of a zlib stream one of another method", needs "an extent compressed with zlib",
    |image, target| stream(image, target, COMPRESSION_ZLIB, |d| d[0] = 0xff);
    "zlib-data": "FE-25", kernel refuses, check misses,
    "makes the first block of a zlib stream one of the type that does not exist",
    needs "an extent compressed with zlib",
    |image, target| stream(image, target, COMPRESSION_ZLIB, |d| d[2] |= 0b110);
    "lzo-total-overrun": "FE-25", kernel refuses, check misses,
    "makes an LZO stream longer than its extent", needs "an extent compressed with lzo",
    |image, target| stream(image, target, COMPRESSION_LZO, |d| put(d, 0, 1 << 20));
    "lzo-total-zero": "FE-25", kernel refuses, check misses,
    "makes an LZO stream empty", needs "an extent compressed with lzo",
    |image, target| stream(image, target, COMPRESSION_LZO, |d| put(d, 0, 0));
    "lzo-segment-overrun": "FE-25", kernel refuses, check misses,
    "makes an LZO segment longer than its stream", needs "an extent compressed with lzo",
    |image, target| stream(image, target, COMPRESSION_LZO, |d| put(d, 4, 1 << 20));
    "lzo-segment-data": "FE-25", kernel refuses, check misses,
    "makes an LZO segment copy bytes from before its start", needs "an extent compressed with lzo",
    |image, target| stream(image, target, COMPRESSION_LZO, |d| d[8..16].copy_from_slice(&[0x12, b'a', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]));
    "zstd-magic": "FE-25", kernel refuses, check misses,
    "changes the magic of a zstd frame", needs "an extent compressed with zstd",
    |image, target| stream(image, target, COMPRESSION_ZSTD, |d| d[0] ^= 1);
    "zstd-window-large": "FE-25", kernel refuses, check misses,
    "makes a zstd frame ask for a window of 2 GiB", needs "an extent compressed with zstd with a window descriptor",
    |image, target| stream(image, target, COMPRESSION_ZSTD, |d| {
        // Without the single-segment flag the window descriptor follows the frame header's descriptor.
        d[4] &= !0x20;
        d[5] = 21 << 3;
    });
    "zstd-block-type": "FE-25", kernel refuses, check misses,
    "makes the blocks of a zstd frame of the reserved type", needs "an extent compressed with zstd",
    |image, target| stream(image, target, COMPRESSION_ZSTD, |d| {
        let end = d.len().min(64);
        d[6..end].fill(0xff);
    });
    "inline-zlib-header": "FE-25", kernel refuses, check misses,
    "makes the header of an inline zlib stream one of another method", needs "an inline extent compressed with zlib",
    |image, target| inline(image, target, COMPRESSION_ZLIB);
    "inline-lzo-total": "FE-25", kernel refuses, check misses,
    "changes the length of an inline LZO stream", needs "an inline extent compressed with lzo",
    |image, target| inline(image, target, COMPRESSION_LZO);
    "inline-zstd-magic": "FE-25", kernel refuses, check misses,
    "changes the magic of an inline zstd frame", needs "an inline extent compressed with zstd",
    |image, target| inline(image, target, COMPRESSION_ZSTD);
    "compressed-padding": "FE-27", kernel reads, check misses,
    "writes into the padding behind a compressed stream", needs "a compressed extent with padding",
    |image, target| {
        let sector = image.sector();
        for method in [COMPRESSION_ZSTD, COMPRESSION_ZLIB, COMPRESSION_LZO] {
            let Some(spot) = regular(image, target, |e| e.compression == method)? else { continue };
            let item = image.item(&spot)?;
            let extent = btrfsimg_ondisk::FileExtent::parse(&item).ok().and_then(|e| e.disk_extent());
            let (at, len) = some!(extent);
            let at = Logical(at.0 + len - sector);
            let mut data = image.read_data(at, usize::try_from(sector).unwrap_or(4096))?;
            if let Some(last) = data.last_mut().filter(|b| **b == 0) {
                *last = 0x55;
                return image.write_checked_data(at, &data);
            }
        }
        Ok(None)
    };
}

fn put(data: &mut [u8], at: usize, value: u32) {
    data[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Changes the first sector of a compressed extent, and its checksum.
fn stream(image: &mut Image, target: &Target, method: u8, edit: impl FnOnce(&mut [u8])) -> Found<()> {
    let spot = some!(regular(image, target, |e| e.compression == method)?);
    let item = image.item(&spot)?;
    let at = some!(btrfsimg_ondisk::FileExtent::parse(&item).ok().and_then(|e| e.disk_extent())).0;
    let sector = usize::try_from(image.sector()).unwrap_or(4096);
    let mut data = image.read_data(Logical(at.0), sector)?;
    edit(&mut data);
    image.write_checked_data(Logical(at.0), &data)
}

/// Changes the first byte of an inline stream.
fn inline(image: &mut Image, target: &Target, method: u8) -> Found<()> {
    let spot = some!(extent(image, target, |_, e| {
        e.compression == method && matches!(e.kind, FileExtentKind::Inline(_))
    })?);
    image.edit_at::<u8>(&spot, FILE_EXTENT_INLINE_HEAD_LEN, |b| *b ^= 0xff)
}
