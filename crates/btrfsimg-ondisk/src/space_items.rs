//! The fixed-size structs inside the items that keep space: chunks, devices, block groups, extents, free space, quotas.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::DiskKey;
use crate::items::disk_struct;

disk_struct! {
    /// CHUNK_ITEM `(256, 228, logical)` without its stripes.
    #[doc(alias = "btrfs_chunk")]
    ChunkItem, 48 {
        /// Logical bytes.
        0 length: U64,
        /// Always the extent tree.
        8 owner: U64,
        /// 65536.
        16 stripe_len: U64,
        /// See [`block_group_flags`].
        24 flags: U64,
        /// 65536.
        32 io_align: U32,
        /// 65536.
        36 io_width: U32,
        /// The file system's sectorsize.
        40 sector_size: U32,
        /// Stripes that follow.
        44 num_stripes: U16,
        /// 2 for RAID10, else 1.
        46 sub_stripes: U16,
    }
}

disk_struct! {
    /// One stripe of a chunk.
    #[doc(alias = "btrfs_stripe")]
    Stripe, 32 {
        /// The device.
        0 devid: U64,
        /// Physical start.
        8 offset: U64,
        /// The device's UUID.
        16 dev_uuid: [u8; 16],
    }
}

/// Type and profile bits of chunks and block groups.
#[allow(missing_docs, reason = "the kernel's names; format/02 §2.6")]
pub mod block_group_flags {
    pub const DATA: u64 = 0x1;
    pub const SYSTEM: u64 = 0x2;
    pub const METADATA: u64 = 0x4;
    pub const RAID0: u64 = 0x8;
    pub const RAID1: u64 = 0x10;
    pub const DUP: u64 = 0x20;
    pub const RAID10: u64 = 0x40;
    pub const RAID5: u64 = 0x80;
    pub const RAID6: u64 = 0x100;
    pub const RAID1C3: u64 = 0x200;
    pub const RAID1C4: u64 = 0x400;
    /// Every type bit.
    pub const TYPE_MASK: u64 = DATA | SYSTEM | METADATA;
    /// Every profile bit; none set is SINGLE.
    pub const PROFILE_MASK: u64 = RAID0 | RAID1 | DUP | RAID10 | RAID5 | RAID6 | RAID1C3 | RAID1C4;

    /// `DATA|SINGLE` and the like, as `btrfs filesystem df` words it.
    pub fn describe(flags: u64) -> String {
        const TABLE: &[(u64, &str)] = &[
            (DATA, "DATA"),
            (SYSTEM, "SYSTEM"),
            (METADATA, "METADATA"),
            (RAID0, "RAID0"),
            (RAID1, "RAID1"),
            (DUP, "DUP"),
            (RAID10, "RAID10"),
            (RAID5, "RAID5"),
            (RAID6, "RAID6"),
            (RAID1C3, "RAID1C3"),
            (RAID1C4, "RAID1C4"),
        ];
        let mut names: Vec<String> =
            TABLE.iter().filter(|(bit, _)| flags & bit != 0).map(|&(_, n)| n.to_owned()).collect();
        if flags & PROFILE_MASK == 0 {
            names.push("SINGLE".to_owned());
        }
        let unknown = flags & !(TYPE_MASK | PROFILE_MASK);
        if unknown != 0 {
            names.push(format!("0x{unknown:x}"));
        }
        names.join("|")
    }
}

disk_struct! {
    /// DEV_ITEM `(1, 216, devid)`, and the superblock's copy of it.
    #[doc(alias = "btrfs_dev_item")]
    DevItem, 98 {
        /// From 1.
        0 devid: U64,
        /// Bytes of the device that the file system uses.
        8 total_bytes: U64,
        /// Sum of its DEV_EXTENT lengths.
        16 bytes_used: U64,
        /// sectorsize.
        24 io_align: U32,
        /// sectorsize.
        28 io_width: U32,
        /// sectorsize.
        32 sector_size: U32,
        /// 0.
        36 dev_type: U64,
        /// 0.
        44 generation: U64,
        /// 0.
        52 start_offset: U64,
        /// 0.
        60 dev_group: U32,
        /// 0.
        64 seek_speed: u8,
        /// 0.
        65 bandwidth: u8,
        /// The device's UUID.
        66 uuid: [u8; 16],
        /// The fsid of tree blocks.
        82 fsid: [u8; 16],
    }
}

disk_struct! {
    /// DEV_EXTENT `(devid, 204, physical)`.
    #[doc(alias = "btrfs_dev_extent")]
    DevExtent, 48 {
        /// The chunk tree, 3.
        0 chunk_tree: U64,
        /// 256.
        8 chunk_objectid: U64,
        /// Logical start of the chunk.
        16 chunk_offset: U64,
        /// Bytes on the device.
        24 length: U64,
        /// As in the header of every block.
        32 chunk_tree_uuid: [u8; 16],
    }
}

disk_struct! {
    /// BLOCK_GROUP_ITEM `(logical, 192, length)`.
    #[doc(alias = "btrfs_block_group_item")]
    BlockGroupItem, 24 {
        /// Allocated bytes.
        0 used: U64,
        /// 256.
        8 chunk_objectid: U64,
        /// The chunk's flags.
        16 flags: U64,
    }
}

disk_struct! {
    /// Head of EXTENT_ITEM and METADATA_ITEM; inline references follow.
    #[doc(alias = "btrfs_extent_item")]
    ExtentItem, 24 {
        /// Sum of all references, inline and keyed.
        0 refs: U64,
        /// Transaction that allocated it.
        8 generation: U64,
        /// See [`extent_flags`].
        16 flags: U64,
    }
}

/// Bits of [`ExtentItem::flags`].
#[allow(missing_docs, reason = "the kernel's names; format/02 §2.9")]
pub mod extent_flags {
    pub const DATA: u64 = 0x1;
    pub const TREE_BLOCK: u64 = 0x2;
    pub const FULL_BACKREF: u64 = 0x100;
}

disk_struct! {
    /// Behind the head of a tree block's EXTENT_ITEM when SKINNY_METADATA is off.
    #[doc(alias = "btrfs_tree_block_info")]
    TreeBlockInfo, 18 {
        /// The block's first key when it was allocated.
        0 key: DiskKey,
        /// The block's level.
        17 level: u8,
    }
}

disk_struct! {
    /// Payload of EXTENT_DATA_REF.
    #[doc(alias = "btrfs_extent_data_ref")]
    ExtentDataRef, 28 {
        /// The tree.
        0 root: U64,
        /// The inode.
        8 objectid: U64,
        /// File offset less extent offset (wraps).
        16 offset: U64,
        /// File extents with these values.
        24 count: U32,
    }
}

disk_struct! {
    /// FREE_SPACE_INFO `(start, 198, length)`.
    #[doc(alias = "btrfs_free_space_info")]
    FreeSpaceInfo, 8 {
        /// Free runs of the block group.
        0 extent_count: U32,
        /// Bit 0: they are kept as bitmaps.
        4 flags: U32,
    }
}

disk_struct! {
    /// Header of a v1 free space cache, `(-11, 0, start)` in the root tree.
    #[doc(alias = "btrfs_free_space_header")]
    FreeSpaceHeader, 41 {
        /// The cache's inode in the root tree.
        0 location: DiskKey,
        /// Transaction that wrote it.
        17 generation: U64,
        /// Entries.
        25 num_entries: U64,
        /// Bitmaps.
        33 num_bitmaps: U64,
    }
}

disk_struct! {
    /// Entry of a RAID_STRIPE item.
    RaidStride, 16 {
        /// The device.
        0 devid: U64,
        /// Where on it.
        8 physical: U64,
    }
}

disk_struct! {
    /// QGROUP_STATUS `(0, 240, 0)`, without the last field that old images lack.
    #[doc(alias = "btrfs_qgroup_status_item")]
    QgroupStatus, 32 {
        /// 1.
        0 version: U64,
        /// Equals the superblock's when consistent.
        8 generation: U64,
        /// 1 on, 2 rescan, 4 inconsistent, 8 simple.
        16 flags: U64,
        /// Progress of a rescan.
        24 rescan: U64,
    }
}

disk_struct! {
    /// QGROUP_INFO `(0, 242, qgroupid)`.
    #[doc(alias = "btrfs_qgroup_info_item")]
    QgroupInfo, 40 {
        /// Transaction of the last update.
        0 generation: U64,
        /// Bytes referenced.
        8 rfer: U64,
        /// The same, compressed.
        16 rfer_cmpr: U64,
        /// Bytes of its own.
        24 excl: U64,
        /// The same, compressed.
        32 excl_cmpr: U64,
    }
}

disk_struct! {
    /// QGROUP_LIMIT `(0, 244, qgroupid)`.
    #[doc(alias = "btrfs_qgroup_limit_item")]
    QgroupLimit, 40 {
        /// Which limits hold.
        0 flags: U64,
        /// Bytes.
        8 max_rfer: U64,
        /// Bytes.
        16 max_excl: U64,
        /// Bytes.
        24 rsv_rfer: U64,
        /// Bytes.
        32 rsv_excl: U64,
    }
}

disk_struct! {
    /// Device error counts, `(0, 249, devid)` in the device tree.
    #[doc(alias = "btrfs_dev_stats_item")]
    DevStats, 40 {
        /// Write, read, flush, corruption and generation errors.
        0 values: [U64; 5],
    }
}

disk_struct! {
    /// DEV_REPLACE `(0, 250, 0)`.
    #[doc(alias = "btrfs_dev_replace_item")]
    DevReplace, 72 {
        /// Device that is replaced.
        0 src_devid: U64,
        /// Progress.
        8 cursor_left: U64,
        /// Progress.
        16 cursor_right: U64,
        /// Whether the source is read.
        24 cont_reading_from_srcdev_mode: U64,
        /// 0 never, 1 started, 2 finished, 3 canceled, 4 suspended.
        32 replace_state: U64,
        /// Seconds since 1970.
        40 time_started: U64,
        /// Seconds since 1970.
        48 time_stopped: U64,
        /// Count.
        56 num_write_errors: U64,
        /// Count.
        64 num_uncorrectable_read_errors: U64,
    }
}

disk_struct! {
    /// One of the three arguments of a paused balance.
    #[doc(alias = "btrfs_disk_balance_args")]
    BalanceArgs, 136 {
        /// Profiles to act on.
        0 profiles: U64,
        /// Usage filter.
        8 usage: U64,
        /// Device filter.
        16 devid: U64,
        /// Physical range filter.
        24 pstart: U64,
        /// Its end.
        32 pend: U64,
        /// Logical range filter.
        40 vstart: U64,
        /// Its end.
        48 vend: U64,
        /// Profile to convert to.
        56 target: U64,
        /// Which filters hold.
        64 flags: U64,
        /// Count filter.
        72 limit: U64,
        /// Stripe filter.
        80 stripes_min: U32,
        /// Stripe filter.
        84 stripes_max: U32,
        /// Zero.
        88 unused: [U64; 6],
    }
}
