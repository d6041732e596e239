//! SB-: the superblock and its copies.

use btrfsimg_ondisk::{STRIPE_LEN, SUPERBLOCK_OFFSETS, Superblock, block_group_flags, compat_ro, incompat};

use super::some;
use crate::error::Found;
use crate::image::Image;

super::table! {
    "super-magic": "SB-01", kernel refuses, check misses,
    "takes the magic out of the first superblock", needs "a second copy of the superblock",
    |image, _| {
        if image.superblock_copies()?.len() < 2 {
            return Ok(None);
        }
        image.edit_super(SUPERBLOCK_OFFSETS[0], |sb| sb.magic = *b"_BHRfS_X").map(Some)
    };
    "super-csum-type": "SB-02", kernel refuses, check names,
    "gives the superblock a checksum algorithm that does not exist", needs "a superblock",
    |image, _| supers(image, |sb| sb.csum_type = 4.into());
    "super-checksum": "SB-03", kernel refuses, check names,
    "changes the superblock's checksum", needs "a superblock",
    |image, _| supers(image, |sb| sb.csum[0] ^= 1);
    "super-bytenr": "SB-04", kernel refuses, check names,
    "makes each superblock say that it is a sector further", needs "a superblock",
    |image, _| supers(image, |sb| sb.bytenr += 4096);
    "super-flags-unknown": "SB-05", kernel refuses, check misses,
    "sets a superblock flag that nothing knows", needs "a superblock",
    |image, _| supers(image, |sb| sb.flags |= 1 << 20);
    "super-root-level": "SB-06", kernel refuses, check names,
    "gives the root tree eight levels more than a tree can have", needs "a superblock",
    |image, _| supers(image, |sb| sb.root_level = 8);
    "super-chunk-root-level": "SB-06", kernel refuses, check names,
    "gives the chunk tree level 8, one more than a tree can have", needs "a superblock",
    |image, _| supers(image, |sb| sb.chunk_root_level = 8);
    "super-log-root-level": "SB-06", kernel refuses, check names,
    "gives the log tree level 8, one more than a tree can have", needs "a superblock",
    |image, _| supers(image, |sb| sb.log_root_level = 8);
    "super-sectorsize": "SB-07", kernel refuses, check names,
    "makes the sector size a number that is no power of two", needs "a superblock",
    |image, _| supers(image, |sb| sb.sectorsize = 6144.into());
    "super-nodesize": "SB-08", kernel refuses, check names,
    "makes the node size a number that is no power of two", needs "a superblock",
    |image, _| supers(image, |sb| sb.nodesize = 20480.into());
    "super-leafsize": "SB-09", kernel refuses, check misses,
    "makes the retired leaf size differ from the node size", needs "a superblock",
    |image, _| supers(image, |sb| sb.leafsize = sb.leafsize.get().wrapping_mul(2).into());
    "super-root-unaligned": "SB-10", kernel refuses, check names,
    "moves the pointer to the root tree into the middle of a sector", needs "a superblock",
    |image, _| supers(image, |sb| sb.root += 512);
    "super-chunk-root-unaligned": "SB-10", kernel refuses, check names,
    "moves the pointer to the chunk tree into the middle of a sector", needs "a superblock",
    |image, _| supers(image, |sb| sb.chunk_root += 512);
    "super-log-root-unaligned": "SB-10", kernel refuses, check names,
    "points to a log tree in the middle of a sector", needs "a superblock",
    |image, _| supers(image, |sb| sb.log_root += 512);
    "super-dev-fsid": "SB-11", kernel refuses, check names,
    "gives the superblock's device item another file system's UUID", needs "a superblock",
    |image, _| supers(image, |sb| sb.dev_item.fsid[0] ^= 1);
    "super-metadata-uuid": "SB-26", kernel reads, check misses,
    "sets a metadata UUID without its feature", needs "an image without METADATA_UUID",
    |image, _| {
        if image.superblock().has_incompat(incompat::METADATA_UUID) {
            return Ok(None);
        }
        supers(image, |sb| sb.metadata_uuid[0] = 1)
    };
    "super-bytes-used-small": "SB-12", kernel refuses, check names,
    "makes the bytes in use less than six blocks", needs "a superblock",
    |image, _| supers(image, |sb| sb.bytes_used = u64::from(sb.nodesize.get() * 5).into());
    "super-stripesize": "SB-13", kernel refuses, check names,
    "makes the stripe size a number that is no power of two", needs "a superblock",
    |image, _| supers(image, |sb| sb.stripesize = 4095.into());
    "super-num-devices": "SB-14", kernel refuses, check names,
    "makes the number of devices 0", needs "a superblock",
    |image, _| supers(image, |sb| sb.num_devices = 0.into());
    "super-sys-array-short": "SB-15", kernel refuses, check names,
    "makes the system chunk array too short for a chunk", needs "a superblock",
    |image, _| supers(image, |sb| sb.sys_chunk_array_size = 96.into());
    "super-sys-array-long": "SB-15", kernel refuses, check names,
    "makes the system chunk array longer than its room", needs "a superblock",
    |image, _| supers(image, |sb| sb.sys_chunk_array_size = 2049.into());
    "super-sys-chunk-type": "SB-15", kernel refuses, check names,
    "makes the first chunk of the system chunk array a metadata chunk", needs "a superblock",
    // 17 bytes of key, then the chunk's flags at 24.
    |image, _| supers(image, |sb| {
        sb.sys_chunk_array[17 + 24] ^= (block_group_flags::SYSTEM | block_group_flags::METADATA).to_le_bytes()[0];
    });
    "super-sys-chunk-length": "SB-15", kernel refuses, check misses,
    "makes the first chunk of the system chunk array shorter than its item in the chunk tree", needs "a superblock",
    |image, _| sys_chunk_field(image, 0, |length| length - STRIPE_LEN);
    "super-sys-chunk-stripe": "SB-15", kernel refuses, check misses,
    "moves the second stripe of the first chunk of the system chunk array", needs "a system chunk of two stripes",
    |image, _| {
        let stripes = image.superblock().sys_chunk_array[17 + 44];
        if stripes != 2 {
            return Ok(None);
        }
        // Behind the chunk's fixed part and a stripe; after a devid.
        sys_chunk_field(image, 48 + 32 + 8, |offset| offset + STRIPE_LEN)
    };
    "super-incompat-unknown": "SB-16", kernel refuses, check names,
    "sets an incompatible feature that nothing knows", needs "a superblock",
    |image, _| supers(image, |sb| sb.incompat_flags |= 1 << 40);
    "super-mixed-groups-nodesize": "SB-17", kernel refuses, check misses,
    "sets MIXED_GROUPS where node size and sector size differ", needs "a node size above the sector size",
    |image, _| {
        if image.nodesize() == image.sector() {
            return Ok(None);
        }
        supers(image, |sb| sb.incompat_flags |= incompat::MIXED_GROUPS)
    };
    "super-block-group-tree-alone": "SB-18", kernel refuses, check names,
    "sets BLOCK_GROUP_TREE without a valid free space tree", needs "a superblock",
    |image, _| supers(image, |sb| {
        sb.compat_ro_flags |= compat_ro::BLOCK_GROUP_TREE;
        sb.compat_ro_flags &= !compat_ro::FREE_SPACE_TREE_VALID;
    });
    "super-cache-generation": "SB-19", kernel reads, check misses,
    "makes the space cache newer than the file system", needs "a superblock",
    |image, _| supers(image, |sb| sb.cache_generation = sb.generation + 1);
    "super-chunk-root-generation": "SB-19", kernel refuses, check names,
    "makes the chunk tree newer than the file system", needs "a superblock",
    |image, _| supers(image, |sb| sb.chunk_root_generation = sb.generation + 1);
    "super-total-bytes": "SB-20", kernel reads, check names,
    "makes the total a sector less than the devices have", needs "a superblock",
    |image, _| supers(image, |sb| sb.total_bytes -= 4096);
    "super-bytes-used": "SB-21", kernel reads, check names,
    "makes the bytes in use a sector more than block groups have", needs "a superblock",
    |image, _| supers(image, |sb| sb.bytes_used += 4096);
    "super-dev-item": "SB-22", kernel reads, check misses,
    "makes the superblock's device item say a sector more is in use", needs "a superblock",
    |image, _| supers(image, |sb| sb.dev_item.bytes_used += 4096);
    "super-copy-stale": "SB-23", kernel reads, check misses,
    "makes the second superblock a generation older", needs "a second copy of the superblock",
    |image, _| {
        let at = *some!(image.superblock_copies()?.get(1));
        image.edit_super(at, |sb| sb.generation -= 1).map(Some)
    };
    "super-copy-newer": "SB-23", kernel reads, check misses,
    "makes the second superblock a generation newer", needs "a second copy of the superblock",
    |image, _| {
        let at = *some!(image.superblock_copies()?.get(1));
        image.edit_super(at, |sb| sb.generation += 1).map(Some)
    };
    "super-copy-checksum": "SB-23", kernel reads, check misses,
    "changes the checksum of the second superblock", needs "a second copy of the superblock",
    |image, _| {
        let at = *some!(image.superblock_copies()?.get(1));
        image.edit_super(at, |sb| sb.csum[0] ^= 1).map(Some)
    };
    "super-reserved": "SB-24", kernel reads, check misses,
    "sets a reserved byte", needs "a superblock",
    |image, _| supers(image, |sb| sb.reserved[100] = 1);
    "super-conversion": "SB-25", kernel refuses, check names,
    "says that btrfstune is changing the file system's UUID", needs "a superblock",
    |image, _| supers(image, |sb| sb.flags |= 1 << 35);
    "super-devices-many": "SB-27", kernel reads, check names,
    "makes the number of devices more than there can be", needs "a superblock",
    |image, _| supers(image, |sb| sb.num_devices = ((1u64 << 31) + 1).into());
}

/// Changes a number at byte `at` of the first chunk of the system chunk array, behind its key of 17 bytes.
fn sys_chunk_field(image: &mut Image, at: usize, edit: impl Fn(u64) -> u64) -> Found<()> {
    supers(image, |sb| {
        let field = &mut sb.sys_chunk_array[17 + at..17 + at + 8];
        let mut number = [0; 8];
        number.copy_from_slice(field);
        field.copy_from_slice(&edit(u64::from_le_bytes(number)).to_le_bytes());
    })
}

pub(super) fn supers(image: &mut Image, edit: impl Fn(&mut Superblock)) -> Found<()> {
    image.edit_supers(edit).map(Some)
}
