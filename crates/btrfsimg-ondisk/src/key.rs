//! Keys: what every item of every tree is found by, and the numbers that appear in them.

use std::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The type byte of a key. A newtype, not an enum: unknown values survive a round trip.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct KeyType(pub u8);

macro_rules! key_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        #[allow(missing_docs, reason = "each is its item's name; format/02 says what it holds")]
        impl KeyType {
            $($(#[$doc])* pub const $name: KeyType = KeyType($value);)*

            /// The field's name for this type, or `None` when unknown.
            pub fn name(self) -> Option<&'static str> {
                match self { $(KeyType::$name => Some($text),)* _ => None }
            }

            /// The type with this name (as `inspect tree` prints it), if known.
            pub fn from_name(name: &str) -> Option<KeyType> {
                match name { $($text => Some(KeyType::$name),)* _ => None }
            }
        }
    };
}

key_types! {
    UNTYPED = 0, "UNTYPED";
    INODE_ITEM = 1, "INODE_ITEM";
    INODE_REF = 12, "INODE_REF";
    INODE_EXTREF = 13, "INODE_EXTREF";
    XATTR_ITEM = 24, "XATTR_ITEM";
    VERITY_DESC_ITEM = 36, "VERITY_DESC_ITEM";
    VERITY_MERKLE_ITEM = 37, "VERITY_MERKLE_ITEM";
    ORPHAN_ITEM = 48, "ORPHAN_ITEM";
    DIR_LOG_ITEM = 60, "DIR_LOG_ITEM";
    DIR_LOG_INDEX = 72, "DIR_LOG_INDEX";
    DIR_ITEM = 84, "DIR_ITEM";
    DIR_INDEX = 96, "DIR_INDEX";
    EXTENT_DATA = 108, "EXTENT_DATA";
    EXTENT_CSUM = 128, "EXTENT_CSUM";
    ROOT_ITEM = 132, "ROOT_ITEM";
    ROOT_BACKREF = 144, "ROOT_BACKREF";
    ROOT_REF = 156, "ROOT_REF";
    EXTENT_ITEM = 168, "EXTENT_ITEM";
    METADATA_ITEM = 169, "METADATA_ITEM";
    EXTENT_OWNER_REF = 172, "EXTENT_OWNER_REF";
    TREE_BLOCK_REF = 176, "TREE_BLOCK_REF";
    EXTENT_DATA_REF = 178, "EXTENT_DATA_REF";
    SHARED_BLOCK_REF = 182, "SHARED_BLOCK_REF";
    SHARED_DATA_REF = 184, "SHARED_DATA_REF";
    BLOCK_GROUP_ITEM = 192, "BLOCK_GROUP_ITEM";
    FREE_SPACE_INFO = 198, "FREE_SPACE_INFO";
    FREE_SPACE_EXTENT = 199, "FREE_SPACE_EXTENT";
    FREE_SPACE_BITMAP = 200, "FREE_SPACE_BITMAP";
    DEV_EXTENT = 204, "DEV_EXTENT";
    DEV_ITEM = 216, "DEV_ITEM";
    CHUNK_ITEM = 228, "CHUNK_ITEM";
    RAID_STRIPE = 230, "RAID_STRIPE";
    QGROUP_STATUS = 240, "QGROUP_STATUS";
    QGROUP_INFO = 242, "QGROUP_INFO";
    QGROUP_LIMIT = 244, "QGROUP_LIMIT";
    QGROUP_RELATION = 246, "QGROUP_RELATION";
    #[doc(alias = "BTRFS_BALANCE_ITEM_KEY")]
    TEMPORARY_ITEM = 248, "TEMPORARY_ITEM";
    #[doc(alias = "BTRFS_DEV_STATS_KEY")]
    PERSISTENT_ITEM = 249, "PERSISTENT_ITEM";
    DEV_REPLACE = 250, "DEV_REPLACE";
    UUID_SUBVOL = 251, "UUID_KEY_SUBVOL";
    UUID_RECEIVED_SUBVOL = 252, "UUID_KEY_RECEIVED_SUBVOL";
    STRING_ITEM = 253, "STRING_ITEM";
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "UNKNOWN.{}", self.0),
        }
    }
}

impl fmt::Debug for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key in memory. Ordered by objectid, then type, then offset, each unsigned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// An inode, tree, or address, as the type says.
    pub objectid: u64,
    /// What kind of item this is the key of.
    pub key_type: KeyType,
    /// An offset, hash, or id, as the type says.
    pub offset: u64,
}

impl Key {
    /// The smallest key.
    pub const MIN: Key = Key::new(0, KeyType(0), 0);
    /// The largest key.
    pub const MAX: Key = Key::new(u64::MAX, KeyType(255), u64::MAX);

    /// The key `(objectid, key_type, offset)`.
    pub const fn new(objectid: u64, key_type: KeyType, offset: u64) -> Key {
        Key { objectid, key_type, offset }
    }

    /// The key right after this one, or `None` after the last.
    pub fn successor(self) -> Option<Key> {
        let Key { objectid, key_type, offset } = self;
        if let Some(offset) = offset.checked_add(1) {
            return Some(Key { offset, ..self });
        }
        match key_type.0.checked_add(1) {
            Some(t) => Some(Key::new(objectid, KeyType(t), 0)),
            None => objectid.checked_add(1).map(|o| Key::new(o, KeyType(0), 0)),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { objectid, key_type, offset } = self;
        write!(f, "({} {key_type} {offset})", objectid::Printed(*objectid))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key on disk, 17 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "btrfs_disk_key")]
pub struct DiskKey {
    /// See [`Key::objectid`].
    pub objectid: U64,
    /// See [`Key::key_type`].
    pub key_type: KeyType,
    /// See [`Key::offset`].
    pub offset: U64,
}
const _: () = assert!(size_of::<DiskKey>() == 17);

impl DiskKey {
    /// The key in memory.
    pub fn get(&self) -> Key {
        Key::new(self.objectid.get(), self.key_type, self.offset.get())
    }
}

impl From<Key> for DiskKey {
    fn from(k: Key) -> DiskKey {
        DiskKey { objectid: k.objectid.into(), key_type: k.key_type, offset: k.offset.into() }
    }
}

/// Well-known objectids (`format/01 §1.4`, `format/02 §2.12`).
pub mod objectid {
    use std::fmt;

    /// The root tree.
    pub const ROOT_TREE: u64 = 1;
    /// The extent tree.
    pub const EXTENT_TREE: u64 = 2;
    /// The chunk tree.
    pub const CHUNK_TREE: u64 = 3;
    /// The device tree.
    pub const DEV_TREE: u64 = 4;
    /// The top-level subvolume.
    pub const FS_TREE: u64 = 5;
    /// The directory in the root tree that holds `default`.
    pub const ROOT_TREE_DIR: u64 = 6;
    /// The checksum tree.
    pub const CSUM_TREE: u64 = 7;
    /// The quota tree.
    pub const QUOTA_TREE: u64 = 8;
    /// The UUID tree.
    pub const UUID_TREE: u64 = 9;
    /// The free space tree.
    pub const FREE_SPACE_TREE: u64 = 10;
    /// The block group tree.
    pub const BLOCK_GROUP_TREE: u64 = 11;
    /// The RAID stripe tree.
    pub const RAID_STRIPE_TREE: u64 = 12;
    /// Objectid of DEV_ITEM keys.
    pub const DEV_ITEMS: u64 = 1;
    /// Objectid of CHUNK_ITEM keys.
    pub const FIRST_CHUNK_TREE: u64 = 256;
    /// First inode of a subvolume (its root directory), and first subvolume id.
    pub const FIRST_FREE: u64 = 256;
    /// Last inode number and last tree id.
    pub const LAST_FREE: u64 = -256i64 as u64;
    /// Balance item.
    pub const BALANCE: u64 = -4i64 as u64;
    /// Orphan items.
    pub const ORPHAN: u64 = -5i64 as u64;
    /// Log trees.
    pub const TREE_LOG: u64 = -6i64 as u64;
    /// Relocation trees.
    pub const TREE_RELOC: u64 = -8i64 as u64;
    /// The data relocation tree.
    pub const DATA_RELOC_TREE: u64 = -9i64 as u64;
    /// Objectid of EXTENT_CSUM keys.
    pub const EXTENT_CSUM: u64 = -10i64 as u64;
    /// Objectid of v1 free space headers.
    pub const FREE_SPACE: u64 = -11i64 as u64;
    /// The retired free inode cache.
    pub const FREE_INO: u64 = -12i64 as u64;

    /// Whether `id` is the id of a subvolume-like tree: 5, or 256 to 2^48 − 1.
    #[doc(alias = "is_fstree")]
    pub const fn is_fs_tree(id: u64) -> bool {
        id == FS_TREE || (id >= FIRST_FREE && id < 1 << 48)
    }

    /// Whether `ino` can be the number of an inode in a subvolume.
    pub const fn is_inode(ino: u64) -> bool {
        ino >= FIRST_FREE && ino <= LAST_FREE
    }

    /// The name of a well-known tree, as `btrfs inspect-internal dump-tree` prints it.
    pub fn tree_name(id: u64) -> Option<&'static str> {
        Some(match id {
            ROOT_TREE => "ROOT_TREE",
            EXTENT_TREE => "EXTENT_TREE",
            CHUNK_TREE => "CHUNK_TREE",
            DEV_TREE => "DEV_TREE",
            FS_TREE => "FS_TREE",
            CSUM_TREE => "CSUM_TREE",
            QUOTA_TREE => "QUOTA_TREE",
            UUID_TREE => "UUID_TREE",
            FREE_SPACE_TREE => "FREE_SPACE_TREE",
            BLOCK_GROUP_TREE => "BLOCK_GROUP_TREE",
            RAID_STRIPE_TREE => "RAID_STRIPE_TREE",
            TREE_LOG => "TREE_LOG",
            TREE_RELOC => "TREE_RELOC",
            DATA_RELOC_TREE => "DATA_RELOC_TREE",
            _ => return None,
        })
    }

    /// Prints an objectid in decimal; those of the top 256 as the negative number they stand for.
    pub struct Printed(pub u64);

    impl fmt::Display for Printed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            if self.0 > LAST_FREE { write!(f, "{}", self.0.cast_signed()) } else { self.0.fmt(f) }
        }
    }
}
