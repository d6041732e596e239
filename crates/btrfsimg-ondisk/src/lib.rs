//! The btrfs on-disk format as Rust types: structs, keys, tree blocks, checksums, hashes and the tree checker.
//!
//! Nothing here does I/O. Bytes come in; typed views go out, and only through their check:
//! a block becomes a [`FramedBlock`] (header and item table sound), then a [`TreeBlock`] (every item checked by
//! the rules of the kernel's tree checker). Names are reachable only through [`DirItems`], which checks an
//! entry whole before it yields one.
//!
//! Names follow the kernel's structs and fields; each constant carries the kernel's name as a doc alias.

mod addr;
mod block;
mod check;
mod checksum;
mod dir_items;
mod extent_refs;
mod file_extent;
mod hash;
mod inode_refs;
mod items;
mod key;
mod leaf;
mod root_item;
mod space_items;
mod superblock;

pub use addr::{DevId, Generation, Logical, ObjectId, Physical};
pub use block::{
    BlockFault, FramedBlock, Header, Item, Judged, KeyPtr, ParentExpectation, TreeBlock, header_flags,
};
pub use check::{
    BlockContext, RULE_FAMILIES, Rule, RuleInfo, Severity, Violation, check_strict, check_superblock,
    check_superblock_strict, check_sys_chunk_array,
};
pub use checksum::{CSUM_FIELD_LEN, Csum, CsumType};
pub use dir_items::{DirEntry, DirItemKind, DirItems, FileType, write_dir_entry};
pub use extent_refs::{BackRef, ExtentItemView, InlineRef, write_extent_item};
pub use file_extent::{
    COMPRESSION_LZO, COMPRESSION_NONE, COMPRESSION_ZLIB, COMPRESSION_ZSTD, FileExtent, FileExtentKind,
};
pub use hash::{data_ref_hash, extref_hash, name_hash, raw_crc32c};
pub use inode_refs::{InodeRef, inode_extrefs, inode_refs, write_inode_extref, write_inode_ref};
pub use items::*;
pub use key::{DiskKey, Key, KeyType, objectid};
pub use root_item::{ROOT_ITEM_V0_LEN, RootItem, root_flags};
pub use space_items::*;
pub use superblock::{
    BackupRoot, COMPAT_RO_KNOWN, INCOMPAT_KNOWN, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, Superblock, SysChunk,
    compat_ro, compat_ro_names, incompat, incompat_names, super_flags, superblock_offsets, sys_chunks,
};

/// Re-export: the UUID type of every struct's accessors.
pub use uuid::Uuid;

/// A version 4 UUID from 16 bytes that are as good as random.
pub fn uuid_from_random(bytes: [u8; 16]) -> Uuid {
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// Bytes of a tree block's header.
pub const HEADER_LEN: usize = 101;
/// Bytes of a leaf's item header (key, offset, size).
pub const ITEM_HEADER_LEN: usize = 25;
/// Bytes of a node's key pointer (key, blockptr, generation).
pub const KEY_PTR_LEN: usize = 33;
/// Levels of a tree: 0 (leaf) to 7.
#[doc(alias = "BTRFS_MAX_LEVEL")]
pub const MAX_LEVEL: u8 = 8;
/// Longest name of a directory entry or xattr, in bytes.
#[doc(alias = "BTRFS_NAME_LEN")]
pub const NAME_LEN_MAX: usize = 255;
/// Most links an inode can have.
#[doc(alias = "BTRFS_LINK_MAX")]
pub const LINK_MAX: u32 = 65535;
/// Bytes of a stripe unit, and the alignment of chunks.
#[doc(alias = "BTRFS_STRIPE_LEN")]
pub const STRIPE_LEN: u64 = 65536;
/// Most bytes of file data in one compressed extent.
#[doc(alias = "BTRFS_MAX_COMPRESSED")]
pub const COMPRESSED_EXTENT_MAX: usize = 131_072;
/// Most bytes of an uncompressed data extent.
#[doc(alias = "BTRFS_MAX_EXTENT_SIZE")]
pub const EXTENT_MAX: u64 = 128 << 20;

/// Bytes for items in a leaf of `nodesize` bytes: headers from its start, data from its end.
#[doc(alias = "BTRFS_LEAF_DATA_SIZE")]
pub const fn leaf_data_size(nodesize: usize) -> usize {
    nodesize - HEADER_LEN
}

/// Longest data of one item in a leaf of `nodesize` bytes.
#[doc(alias = "BTRFS_MAX_ITEM_SIZE")]
pub const fn max_item_size(nodesize: usize) -> usize {
    leaf_data_size(nodesize) - ITEM_HEADER_LEN
}

/// Most key pointers of a node of `nodesize` bytes.
#[doc(alias = "BTRFS_NODEPTRS_PER_BLOCK")]
pub const fn max_key_ptrs(nodesize: usize) -> usize {
    (nodesize - HEADER_LEN) / KEY_PTR_LEN
}

/// Longest name plus value of an xattr (`format/02 §2.7`).
#[doc(alias = "BTRFS_MAX_XATTR_SIZE")]
pub const fn max_xattr_size(nodesize: usize) -> usize {
    max_item_size(nodesize) - DIR_ITEM_HEAD_LEN
}

/// Longest symlink target: one inline extent, below a sector (`format/02 §2.7`).
pub fn max_symlink_len(sectorsize: usize, nodesize: usize) -> usize {
    (sectorsize - 1).min(max_item_size(nodesize) - FILE_EXTENT_INLINE_HEAD_LEN)
}
