//! The fixed-size structs inside items (`format/02`), as zerocopy views: here those of files and directories, in
//! `space_items` those that keep space.
//!
//! Field names are the kernel's. Meaning and valid ranges are in the comment of each; the checks are in
//! [`crate::check`]. Structs with names behind them (directory entries, inode references) are not here: they are
//! reachable only through their parsers.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Declares on-disk structs: derives, `repr(C)`, and a compile-time assert of the size and of each field's offset.
/// `crate Name, …` declares one that the crate keeps to itself.
macro_rules! disk_struct {
    ($(#[$doc:meta])* crate $name:ident, $($rest:tt)*) => {
        disk_struct! { @[pub(crate)] $(#[$doc])* $name, $($rest)* }
    };
    ($(#[$doc:meta])* $name:ident, $($rest:tt)*) => {
        disk_struct! { @[pub] $(#[$doc])* $name, $($rest)* }
    };
    (@[$vis:vis] $(#[$doc:meta])* $name:ident, $size:literal {
        $($(#[$fdoc:meta])* $off:literal $field:ident: $ty:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        $vis struct $name { $($(#[$fdoc])* $vis $field: $ty,)* }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(std::mem::offset_of!($name, $field) == $off);)*
        };
        #[allow(dead_code, reason = "each struct has it; some are only read")]
        impl $name {
            /// All fields zero.
            $vis fn zeroed() -> Self {
                <Self as zerocopy::FromZeros>::new_zeroed()
            }
        }
    };
}
pub(crate) use disk_struct;

disk_struct! {
    /// A time: seconds since 1970 (may be negative) and nanoseconds.
    #[doc(alias = "btrfs_timespec")]
    Timespec, 12 {
        /// Seconds.
        0 sec: I64,
        /// Nanoseconds, 0 to 999,999,999.
        8 nsec: U32,
    }
}

impl Timespec {
    /// The time `sec` + `nsec`.
    pub fn new(sec: i64, nsec: u32) -> Timespec {
        Timespec { sec: sec.into(), nsec: nsec.into() }
    }
}

disk_struct! {
    /// INODE_ITEM `(ino, 1, 0)`.
    #[doc(alias = "btrfs_inode_item")]
    InodeItem, 160 {
        /// Transaction that created the inode.
        0 generation: U64,
        /// Transaction of its last change.
        8 transid: U64,
        /// Bytes of a file; twice the names' length of a directory; target length of a symlink.
        16 size: U64,
        /// Uncompressed bytes of its extents (`num_bytes`), or `ram_bytes` of an inline one.
        24 nbytes: U64,
        /// Always 0.
        32 block_group: U64,
        /// Names that refer to it; 1 for directories.
        40 nlink: U32,
        /// Owner.
        44 uid: U32,
        /// Group.
        48 gid: U32,
        /// File type and permission bits as in `st_mode`.
        52 mode: U32,
        /// Device number, `(major << 20) | minor`.
        56 rdev: U64,
        /// See [`inode_flags`].
        64 flags: U64,
        /// Change counter.
        72 sequence: U64,
        /// Zero.
        80 reserved: [U64; 4],
        /// Last access.
        112 atime: Timespec,
        /// Last change of the inode.
        124 ctime: Timespec,
        /// Last change of the contents.
        136 mtime: Timespec,
        /// Creation.
        148 otime: Timespec,
    }
}

/// Bits of [`InodeItem::flags`].
#[allow(missing_docs, reason = "the kernel's names; format/02 §2.7")]
pub mod inode_flags {
    pub const NODATASUM: u64 = 0x1;
    pub const NODATACOW: u64 = 0x2;
    pub const READONLY: u64 = 0x4;
    pub const NOCOMPRESS: u64 = 0x8;
    pub const PREALLOC: u64 = 0x10;
    pub const SYNC: u64 = 0x20;
    pub const IMMUTABLE: u64 = 0x40;
    pub const APPEND: u64 = 0x80;
    pub const NODUMP: u64 = 0x100;
    pub const NOATIME: u64 = 0x200;
    pub const DIRSYNC: u64 = 0x400;
    pub const COMPRESS: u64 = 0x800;
    /// Only in the inode embedded in a ROOT_ITEM.
    pub const ROOT_ITEM_INIT: u64 = 0x8000_0000;
    /// Read-only compatible: fs-verity.
    pub const RO_VERITY: u64 = 1 << 32;

    /// The names of the set bits, in bit order.
    pub fn names(flags: u64) -> Vec<&'static str> {
        const TABLE: &[(u64, &str)] = &[
            (NODATASUM, "NODATASUM"),
            (NODATACOW, "NODATACOW"),
            (READONLY, "READONLY"),
            (NOCOMPRESS, "NOCOMPRESS"),
            (PREALLOC, "PREALLOC"),
            (SYNC, "SYNC"),
            (IMMUTABLE, "IMMUTABLE"),
            (APPEND, "APPEND"),
            (NODUMP, "NODUMP"),
            (NOATIME, "NOATIME"),
            (DIRSYNC, "DIRSYNC"),
            (COMPRESS, "COMPRESS"),
            (ROOT_ITEM_INIT, "ROOT_ITEM_INIT"),
            (RO_VERITY, "VERITY"),
        ];
        TABLE.iter().filter(|(bit, _)| flags & bit != 0).map(|&(_, name)| name).collect()
    }
}

/// Bytes before the name of a directory entry or xattr.
pub const DIR_ITEM_HEAD_LEN: usize = 30;
/// Bytes before the data of an inline file extent.
pub const FILE_EXTENT_INLINE_HEAD_LEN: usize = 21;
/// Bytes of a regular or preallocated file extent.
pub const FILE_EXTENT_LEN: usize = 53;

disk_struct! {
    /// EXTENT_DATA, the part that all kinds share; an inline extent's data follow.
    #[doc(alias = "btrfs_file_extent_item")]
    FileExtentHead, 21 {
        /// Transaction that created the data.
        0 generation: U64,
        /// Uncompressed bytes of the whole extent.
        8 ram_bytes: U64,
        /// 0 none, 1 zlib, 2 lzo, 3 zstd.
        16 compression: u8,
        /// 0.
        17 encryption: u8,
        /// 0.
        18 other_encoding: U16,
        /// 0 inline, 1 regular, 2 preallocated.
        20 kind: u8,
    }
}

disk_struct! {
    /// EXTENT_DATA of a regular or preallocated extent, behind the head.
    FileExtentRange, 32 {
        /// Logical start of the extent on disk; 0 is a hole.
        0 disk_bytenr: U64,
        /// Bytes of the whole extent on disk.
        8 disk_num_bytes: U64,
        /// Where this range starts in the uncompressed extent, in bytes.
        16 offset: U64,
        /// Uncompressed bytes of this range.
        24 num_bytes: U64,
    }
}

disk_struct! {
    /// Head of ROOT_REF and ROOT_BACKREF; the name follows.
    #[doc(alias = "btrfs_root_ref")]
    RootRefHead, 18 {
        /// Directory that holds the subvolume's entry.
        0 dirid: U64,
        /// Its DIR_INDEX offset there.
        8 sequence: U64,
        /// Bytes of the name.
        16 name_len: U16,
    }
}
