//! ROOT_ITEM `(tree id, 132, offset)`: where a tree's root is, and what a subvolume is (`format/02 §2.8`).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::items::disk_struct;
use crate::{DiskKey, InodeItem, Timespec};

/// Bytes of a ROOT_ITEM written before `generation_v2` existed.
pub const ROOT_ITEM_V0_LEN: usize = 239;

/// Bits of [`RootItem::flags`].
pub mod root_flags {
    /// The subvolume is read-only.
    pub const RDONLY: u64 = 1;
    /// The subvolume is being deleted.
    pub const DEAD: u64 = 1 << 48;
}

disk_struct! {
    /// ROOT_ITEM, 439 bytes.
    #[doc(alias = "btrfs_root_item")]
    RootItem, 439 {
        /// An inode item whose size, nbytes, nlink and mode are fixed values.
        0 inode: InodeItem,
        /// The root node's generation.
        160 generation: U64,
        /// 256 for subvolumes, else 0.
        168 root_dirid: U64,
        /// Logical address of the root node.
        176 bytenr: U64,
        /// 0.
        184 byte_limit: U64,
        /// Blocks of the tree × nodesize.
        192 bytes_used: U64,
        /// Transaction of the last snapshot of this tree.
        200 last_snapshot: U64,
        /// See [`root_flags`].
        208 flags: U64,
        /// 1; 0 in a subvolume that is being deleted.
        216 refs: U32,
        /// Where its deletion goes on.
        220 drop_progress: DiskKey,
        /// Level of `drop_progress`.
        237 drop_level: u8,
        /// Level of the root node.
        238 level: u8,
        /// Equals `generation` when the fields below are valid.
        239 generation_v2: U64,
        /// The subvolume's UUID.
        247 uuid: [u8; 16],
        /// UUID of what it is a snapshot of.
        263 parent_uuid: [u8; 16],
        /// UUID at the sender's.
        279 received_uuid: [u8; 16],
        /// Transaction of the last change of an inode in it.
        295 ctransid: U64,
        /// Transaction of its creation.
        303 otransid: U64,
        /// Transaction at the sender's.
        311 stransid: U64,
        /// Transaction of receiving it.
        319 rtransid: U64,
        /// Last change.
        327 ctime: Timespec,
        /// Creation.
        339 otime: Timespec,
        /// Sending.
        351 stime: Timespec,
        /// Receiving.
        363 rtime: Timespec,
        /// Zero.
        375 reserved: [U64; 8],
    }
}

impl RootItem {
    /// The item in `data`, of either size. The fields behind `generation_v2` read as zero when they are stale.
    /// `None` when `data` has neither size.
    pub fn parse(data: &[u8]) -> Option<RootItem> {
        let mut item = match data.len() {
            439 => RootItem::read_from_bytes(data).ok()?,
            ROOT_ITEM_V0_LEN => {
                let mut full = [0; 439];
                full[..ROOT_ITEM_V0_LEN].copy_from_slice(data);
                RootItem::read_from_bytes(&full).ok()?
            }
            _ => return None,
        };
        if item.generation_v2 != item.generation {
            item.as_mut_bytes()[ROOT_ITEM_V0_LEN..].fill(0);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_stale_items_read_with_zero_tails() {
        let mut item = RootItem::zeroed();
        item.generation = 7.into();
        item.generation_v2 = 6.into();
        item.uuid = [9; 16];
        assert_eq!(RootItem::parse(item.as_bytes()).unwrap().uuid, [0; 16]);
        assert_eq!(RootItem::parse(&item.as_bytes()[..239]).unwrap().generation.get(), 7);
        item.generation_v2 = 7.into();
        assert_eq!(RootItem::parse(item.as_bytes()).unwrap().uuid, [9; 16]);
        assert!(RootItem::parse(&item.as_bytes()[..300]).is_none());
    }
}
