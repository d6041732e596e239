//! The hashes that place names and references in the trees (`format/03 §3.1`).

/// The crc32c register after `bytes`, starting at `seed`, without initial or final inversion.
pub fn raw_crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The key offset of a DIR_ITEM or XATTR_ITEM with this name.
#[doc(alias = "btrfs_name_hash")]
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(raw_crc32c(0xFFFF_FFFE, name))
}

/// The key offset of an INODE_EXTREF for `name` in directory `parent`.
#[doc(alias = "btrfs_extref_hash")]
#[expect(clippy::cast_possible_truncation, reason = "the seed is the low half, by definition")]
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    u64::from(raw_crc32c(parent as u32, name))
}

/// The key offset of a keyed EXTENT_DATA_REF, and the order of inline ones.
#[doc(alias = "hash_extent_data_ref")]
pub fn data_ref_hash(root: u64, objectid: u64, offset: u64) -> u64 {
    let high = raw_crc32c(u32::MAX, &root.to_le_bytes());
    let low = raw_crc32c(raw_crc32c(u32::MAX, &objectid.to_le_bytes()), &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `format/03 §3.3`: name, name hash, standard crc32c, extref hash for parents 256 and 2^33+257.
    const NAMES: &[(&str, u64, u32, u64, u64)] = &[
        ("", 0xffff_fffe, 0x0000_0000, 0x0000_0100, 0x0000_0101),
        ("a", 0xcc44_3fcc, 0xc1d0_4330, 0x93ad_1060, 0x61c6_9363),
        ("123456789", 0xe8c7_bb34, 0xe306_9283, 0x11df_8707, 0xe5e1_514f),
        ("foo", 0x957a_c39c, 0xcfc4_ae1d, 0xbc02_9510, 0x1943_076e),
        ("default", 0x8dbf_c2d2, 0x1a43_11e5, 0x4e4d_1091, 0x264e_3c59),
        ("btrfs.compression", 0x20cc_df69, 0x80d7_fcc9, 0xa836_52de, 0xf7d2_8e81),
        ("security.selinux", 0xe38e_4c43, 0xee7d_be42, 0xcb83_d9a9, 0x398f_d457),
        ("user.test", 0x0629_ae99, 0x0de8_872e, 0xff31_92aa, 0x0b0f_44e2),
        ("hello.txt", 0x415f_eb59, 0x4a9e_c2ee, 0xb847_d76a, 0x4c79_0122),
    ];

    #[test]
    fn names_hash_as_the_kernel_hashes_them() {
        for &(name, hash, crc, ext256, ext_big) in NAMES {
            assert_eq!(name_hash(name.as_bytes()), hash, "{name}");
            assert_eq!(!raw_crc32c(u32::MAX, name.as_bytes()), crc, "{name}");
            assert_eq!(extref_hash(256, name.as_bytes()), ext256, "{name}");
            assert_eq!(extref_hash((1 << 33) + 257, name.as_bytes()), ext_big, "{name}");
        }
    }

    #[test]
    fn known_names_collide() {
        for (a, b) in [
            ("c1371838", "c2000402"),
            ("ue2r43xy", "c54cvxdh"),
            ("qlvw434k", "flotycs9"),
            ("user.c1371838", "user.c2000402"),
        ] {
            assert_eq!(name_hash(a.as_bytes()), name_hash(b.as_bytes()), "{a} {b}");
        }
    }

    #[test]
    fn data_refs_hash_as_the_kernel_hashes_them() {
        let vectors: &[(u64, u64, u64, u64)] = &[
            (5, 257, 0, 0x0dfb_591f_a80d_95ea),
            (256, 257, 0, 0x0dea_30de_a80d_95ea),
            (256, 300, 4096, 0x0dea_30de_a5f7_b000),
            (1, 256, 0, 0x1d75_9829_da01_9814),
            (u64::MAX - 8, 256, 65536, 0x7ad1_d871_3531_f30d),
            (5, 1 << 40, 1 << 20, 0x0dfb_591f_6af2_a2ea),
        ];
        for &(root, objectid, offset, hash) in vectors {
            assert_eq!(data_ref_hash(root, objectid, offset), hash, "{root} {objectid} {offset}");
        }
    }
}
