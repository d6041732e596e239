//! The superblock (`format/02 §2.1–2.4`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::items::disk_struct;
use crate::{ChunkItem, CsumType, DevItem, DiskKey, Key, Physical, Stripe};

/// Bytes of a superblock copy.
#[doc(alias = "BTRFS_SUPER_INFO_SIZE")]
pub const SUPERBLOCK_LEN: usize = 4096;
/// Where the copies are on a device, in bytes.
#[doc(alias = "btrfs_sb_offset")]
pub const SUPERBLOCK_OFFSETS: [u64; 3] = [0x1_0000, 0x400_0000, 0x40_0000_0000];

/// The places of the copies that a device of `total_bytes` has: all that lie wholly and strictly inside it
/// (`format/01 §1.3`).
pub fn superblock_offsets(total_bytes: u64) -> impl Iterator<Item = Physical> {
    SUPERBLOCK_OFFSETS
        .into_iter()
        .take_while(move |o| o + (SUPERBLOCK_LEN as u64) < total_bytes)
        .map(Physical)
}

disk_struct! {
    /// One of the four backup slots in the superblock.
    #[doc(alias = "btrfs_root_backup")]
    BackupRoot, 168 {
        /// Root tree.
        0 tree_root: U64,
        /// Its generation.
        8 tree_root_gen: U64,
        /// Chunk tree.
        16 chunk_root: U64,
        /// Its generation.
        24 chunk_root_gen: U64,
        /// Extent tree.
        32 extent_root: U64,
        /// Its generation.
        40 extent_root_gen: U64,
        /// Top-level subvolume.
        48 fs_root: U64,
        /// Its generation.
        56 fs_root_gen: U64,
        /// Device tree.
        64 dev_root: U64,
        /// Its generation.
        72 dev_root_gen: U64,
        /// Checksum tree.
        80 csum_root: U64,
        /// Its generation.
        88 csum_root_gen: U64,
        /// As in the superblock.
        96 total_bytes: U64,
        /// As in the superblock.
        104 bytes_used: U64,
        /// As in the superblock.
        112 num_devices: U64,
        /// Zero.
        120 unused_64: [U64; 4],
        /// Level.
        152 tree_root_level: u8,
        /// Level.
        153 chunk_root_level: u8,
        /// Level.
        154 extent_root_level: u8,
        /// Level.
        155 fs_root_level: u8,
        /// Level.
        156 dev_root_level: u8,
        /// Level.
        157 csum_root_level: u8,
        /// Zero.
        158 unused_8: [u8; 10],
    }
}

disk_struct! {
    /// A superblock copy, 4096 bytes.
    #[doc(alias = "btrfs_super_block")]
    Superblock, 4096 {
        /// Checksum of all that follows.
        0 csum: [u8; 32],
        /// The file system's UUID as users see it.
        32 fsid: [u8; 16],
        /// Physical offset of this copy.
        48 bytenr: U64,
        /// 1 (written), and state bits.
        56 flags: U64,
        /// `_BHRfS_M`.
        64 magic: [u8; 8],
        /// The last committed transaction.
        72 generation: U64,
        /// Logical address of the root tree's root.
        80 root: U64,
        /// Logical address of the chunk tree's root.
        88 chunk_root: U64,
        /// Logical address of the log root tree; 0 is none.
        96 log_root: U64,
        /// Unused.
        104 log_root_transid: U64,
        /// Sum of the devices' bytes.
        112 total_bytes: U64,
        /// Sum of the block groups' used bytes.
        120 bytes_used: U64,
        /// 6.
        128 root_dir_objectid: U64,
        /// At least 1.
        136 num_devices: U64,
        /// Bytes of a sector.
        144 sectorsize: U32,
        /// Bytes of a tree block.
        148 nodesize: U32,
        /// Equals nodesize.
        152 leafsize: U32,
        /// Equals sectorsize.
        156 stripesize: U32,
        /// Valid bytes of `sys_chunk_array`.
        160 sys_chunk_array_size: U32,
        /// Generation of the chunk tree's root.
        164 chunk_root_generation: U64,
        /// None defined.
        172 compat_flags: U64,
        /// See [`compat_ro`].
        180 compat_ro_flags: U64,
        /// See [`incompat`].
        188 incompat_flags: U64,
        /// See [`CsumType`].
        196 csum_type: U16,
        /// Level of the root tree's root.
        198 root_level: u8,
        /// Level of the chunk tree's root.
        199 chunk_root_level: u8,
        /// Level of the log root tree's root.
        200 log_root_level: u8,
        /// The device that this copy is on.
        201 dev_item: DevItem,
        /// NUL-terminated.
        299 label: [u8; 256],
        /// v1 space cache: valid if it equals `generation`; 0 with a free space tree, −1 without any.
        555 cache_generation: U64,
        /// The UUID tree is complete if it equals `generation`.
        563 uuid_tree_generation: U64,
        /// The fsid in tree blocks when METADATA_UUID is set.
        571 metadata_uuid: [u8; 16],
        /// extent-tree-v2 only.
        587 nr_global_roots: U64,
        /// remap-tree only.
        595 remap_root: U64,
        /// remap-tree only.
        603 remap_root_generation: U64,
        /// remap-tree only.
        611 remap_root_level: u8,
        /// Zero, kept as read.
        612 reserved: [u8; 199],
        /// The SYSTEM chunks, needed to read the chunk tree.
        811 sys_chunk_array: [u8; 2048],
        /// Recent roots.
        2859 super_roots: [BackupRoot; 4],
        /// Zero, kept as read.
        3531 padding: [u8; 565],
    }
}

/// Bits of [`Superblock::flags`].
pub mod super_flags {
    /// Set in every superblock.
    pub const WRITTEN: u64 = 1;
    /// The file system met an error.
    pub const ERROR: u64 = 1 << 2;
    /// A seed device: read-only, for others to sprout from.
    pub const SEEDING: u64 = 1 << 32;
    /// A metadata dump.
    pub const METADUMP: u64 = 1 << 33;
    /// A metadata dump, second version.
    pub const METADUMP_V2: u64 = 1 << 34;
    /// A conversion by btrfstune is unfinished: of the fsid (two versions), to the block group tree, or of
    /// checksums. Kernels refuse the file system until it is done.
    pub const CHANGING: u64 = 1 << 35 | 1 << 36 | 1 << 38 | 1 << 39 | 1 << 40;
    /// What kernels accept.
    pub const KNOWN: u64 = WRITTEN | 1 << 1 | ERROR | SEEDING | METADUMP | METADUMP_V2;
}

/// Incompatible feature bits: a reader that does not know one must not open the file system.
#[allow(missing_docs, reason = "the kernel's names; format/02 §2.3")]
pub mod incompat {
    pub const MIXED_BACKREF: u64 = 1;
    pub const DEFAULT_SUBVOL: u64 = 1 << 1;
    pub const MIXED_GROUPS: u64 = 1 << 2;
    pub const COMPRESS_LZO: u64 = 1 << 3;
    pub const COMPRESS_ZSTD: u64 = 1 << 4;
    pub const BIG_METADATA: u64 = 1 << 5;
    pub const EXTENDED_IREF: u64 = 1 << 6;
    pub const RAID56: u64 = 1 << 7;
    pub const SKINNY_METADATA: u64 = 1 << 8;
    pub const NO_HOLES: u64 = 1 << 9;
    pub const METADATA_UUID: u64 = 1 << 10;
    pub const RAID1C34: u64 = 1 << 11;
    pub const ZONED: u64 = 1 << 12;
    pub const EXTENT_TREE_V2: u64 = 1 << 13;
    pub const RAID_STRIPE_TREE: u64 = 1 << 14;
    pub const SIMPLE_QUOTA: u64 = 1 << 16;
    pub const REMAP_TREE: u64 = 1 << 17;
}

/// Read-only compatible feature bits: a writer that does not know one must not write.
#[allow(missing_docs, reason = "the kernel's names; format/02 §2.3")]
pub mod compat_ro {
    pub const FREE_SPACE_TREE: u64 = 1;
    pub const FREE_SPACE_TREE_VALID: u64 = 1 << 1;
    pub const VERITY: u64 = 1 << 2;
    pub const BLOCK_GROUP_TREE: u64 = 1 << 3;
}

const INCOMPAT_NAMES: [(u64, &str); 17] = [
    (incompat::MIXED_BACKREF, "MIXED_BACKREF"),
    (incompat::DEFAULT_SUBVOL, "DEFAULT_SUBVOL"),
    (incompat::MIXED_GROUPS, "MIXED_GROUPS"),
    (incompat::COMPRESS_LZO, "COMPRESS_LZO"),
    (incompat::COMPRESS_ZSTD, "COMPRESS_ZSTD"),
    (incompat::BIG_METADATA, "BIG_METADATA"),
    (incompat::EXTENDED_IREF, "EXTENDED_IREF"),
    (incompat::RAID56, "RAID56"),
    (incompat::SKINNY_METADATA, "SKINNY_METADATA"),
    (incompat::NO_HOLES, "NO_HOLES"),
    (incompat::METADATA_UUID, "METADATA_UUID"),
    (incompat::RAID1C34, "RAID1C34"),
    (incompat::ZONED, "ZONED"),
    (incompat::EXTENT_TREE_V2, "EXTENT_TREE_V2"),
    (incompat::RAID_STRIPE_TREE, "RAID_STRIPE_TREE"),
    (incompat::SIMPLE_QUOTA, "SIMPLE_QUOTA"),
    (incompat::REMAP_TREE, "REMAP_TREE"),
];

const COMPAT_RO_NAMES: [(u64, &str); 4] = [
    (compat_ro::FREE_SPACE_TREE, "FREE_SPACE_TREE"),
    (compat_ro::FREE_SPACE_TREE_VALID, "FREE_SPACE_TREE_VALID"),
    (compat_ro::VERITY, "VERITY"),
    (compat_ro::BLOCK_GROUP_TREE, "BLOCK_GROUP_TREE"),
];

/// Every incompat bit with a name. Which of them a tool supports is its own list.
pub const INCOMPAT_KNOWN: u64 = 0x3_7fff & !(1 << 15);
/// Every compat_ro bit with a name.
pub const COMPAT_RO_KNOWN: u64 = 0xf;

fn names(bits: u64, table: &[(u64, &str)]) -> Vec<String> {
    (0..64)
        .filter(|bit| bits & (1 << bit) != 0)
        .map(|bit| match table.iter().find(|(b, _)| *b == 1 << bit) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("bit {bit}"),
        })
        .collect()
}

/// The names of the set incompat bits; `bit N` for one without a name.
pub fn incompat_names(bits: u64) -> Vec<String> {
    names(bits, &INCOMPAT_NAMES)
}

/// The names of the set compat_ro bits; `bit N` for one without a name.
pub fn compat_ro_names(bits: u64) -> Vec<String> {
    names(bits, &COMPAT_RO_NAMES)
}

impl Superblock {
    /// `_BHRfS_M`.
    #[doc(alias = "BTRFS_MAGIC")]
    pub const MAGIC: [u8; 8] = *b"_BHRfS_M";

    /// The checksum algorithm, if known.
    pub fn csum_kind(&self) -> Option<CsumType> {
        CsumType::from_code(self.csum_type.get())
    }

    /// The fsid that tree blocks carry.
    pub fn metadata_fsid(&self) -> [u8; 16] {
        if self.has_incompat(incompat::METADATA_UUID) { self.metadata_uuid } else { self.fsid }
    }

    /// Whether all of these incompat bits are set.
    pub fn has_incompat(&self, bits: u64) -> bool {
        self.incompat_flags.get() & bits == bits
    }

    /// Whether all of these compat_ro bits are set.
    pub fn has_compat_ro(&self, bits: u64) -> bool {
        self.compat_ro_flags.get() & bits == bits
    }

    /// The label without its NULs.
    pub fn label(&self) -> &[u8] {
        let end = self.label.iter().position(|&b| b == 0).unwrap_or(self.label.len());
        &self.label[..end]
    }

    /// The copy for `offset`, its `bytenr` and checksum made right.
    pub fn sealed_for(&self, offset: Physical, csum: CsumType) -> Superblock {
        let mut copy = *self;
        copy.bytenr = offset.0.into();
        copy.csum = [0; 32];
        copy.csum = csum.of_block(copy.as_bytes()).0;
        copy
    }
}

/// One entry of `sys_chunk_array`, or one CHUNK_ITEM: the chunk and its stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysChunk {
    /// `(256, 228, logical)`.
    pub key: Key,
    /// The chunk.
    pub chunk: ChunkItem,
    /// Its stripes.
    pub stripes: Vec<Stripe>,
}

/// The entries of the superblock's `sys_chunk_array`, in order; an error where one does not fit.
/// The values are not judged here: see [`crate::check_sys_chunk_array`].
pub fn sys_chunks(sb: &Superblock) -> impl Iterator<Item = Result<SysChunk, &'static str>> {
    let size = usize::try_from(sb.sys_chunk_array_size.get()).unwrap_or(usize::MAX);
    let mut rest = sb.sys_chunk_array.get(..size);
    let mut failed = rest.is_none();
    let mut first = failed.then_some(Err("size is beyond the array"));
    std::iter::from_fn(move || {
        if let Some(error) = first.take() {
            return Some(error);
        }
        let bytes = rest.filter(|r| !r.is_empty() && !failed)?;
        match take_chunk(bytes) {
            Some((chunk, tail)) => {
                rest = Some(tail);
                Some(Ok(chunk))
            }
            None => {
                failed = true;
                Some(Err("an entry does not fit"))
            }
        }
    })
}

fn take_chunk(bytes: &[u8]) -> Option<(SysChunk, &[u8])> {
    let (key, rest) = DiskKey::read_from_prefix(bytes).ok()?;
    let (chunk, rest) = ChunkItem::read_from_prefix(rest).ok()?;
    let (stripes, rest) =
        <[Stripe]>::ref_from_prefix_with_elems(rest, usize::from(chunk.num_stripes.get())).ok()?;
    Some((SysChunk { key: key.get(), chunk, stripes: stripes.to_vec() }, rest))
}
