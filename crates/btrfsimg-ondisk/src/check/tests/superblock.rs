//! SB-, and CH- in the superblock.

use zerocopy::IntoBytes;

use super::fixtures::chunk;
use crate::block_group_flags as bg;
use crate::{
    CsumType, DiskKey, Key, KeyType, Physical, Superblock, check_superblock, check_superblock_strict,
    compat_ro, incompat,
};

const AT: Physical = Physical(65536);

fn sound() -> Superblock {
    let mut sb = Superblock::zeroed();
    sb.magic = Superblock::MAGIC;
    (sb.fsid, sb.dev_item.fsid) = ([7; 16], [7; 16]);
    (sb.flags, sb.generation, sb.chunk_root_generation) = (1.into(), 10.into(), 10.into());
    (sb.root, sb.chunk_root) = ((1u64 << 24).into(), (2u64 << 24).into());
    (sb.total_bytes, sb.bytes_used, sb.num_devices) = ((1u64 << 30).into(), (6u64 * 16384).into(), 1.into());
    (sb.sectorsize, sb.nodesize, sb.leafsize, sb.stripesize) =
        (4096.into(), 16384.into(), 16384.into(), 4096.into());
    set_chunk(&mut sb, |_| ());
    sb
}

/// Makes the one system chunk, changed by `change`.
fn set_chunk(sb: &mut Superblock, change: impl FnOnce(&mut crate::ChunkItem)) {
    let (mut item, stripes) = chunk(bg::SYSTEM | bg::DUP, 2);
    change(&mut item);
    let key = DiskKey::from(Key::new(256, KeyType::CHUNK_ITEM, 2 << 24));
    let bytes = [key.as_bytes(), item.as_bytes(), stripes.as_bytes()].concat();
    sb.sys_chunk_array[..bytes.len()].copy_from_slice(&bytes);
    sb.sys_chunk_array_size = u32::try_from(bytes.len()).unwrap().into();
}

fn rules(sb: &Superblock) -> Vec<&'static str> {
    let mut rules = Vec::new();
    let mut sink = |v: crate::Violation| rules.push(v.rule.0);
    check_superblock(sb, AT, &mut sink);
    check_superblock_strict(sb, &mut sink);
    rules
}

fn check(rule: &str, change: impl FnOnce(&mut Superblock)) {
    let mut sb = sound();
    change(&mut sb);
    let sealed = sb.sealed_for(AT, CsumType::Crc32c);
    assert_eq!(rules(&sealed).first(), Some(&rule), "{:?}", rules(&sealed));
}

#[test]
fn every_field() {
    assert!(rules(&sound().sealed_for(AT, CsumType::Crc32c)).is_empty());
    assert_eq!(rules(&sound())[0], "SB-03");
    let mut elsewhere = Vec::new();
    let copy = sound().sealed_for(AT, CsumType::Crc32c);
    check_superblock(&copy, Physical(1 << 26), &mut |v| elsewhere.push(v.rule.0));
    assert_eq!(elsewhere, ["SB-04"]);
    check("SB-01", |s| s.magic[0] = b'!');
    check("SB-02", |s| s.csum_type = 4.into());
    check("SB-05", |s| s.flags = (1u64 << 3).into());
    check("SB-06", |s| s.root_level = 8);
    check("SB-06", |s| s.log_root_level = 200);
    check("SB-07", |s| s.sectorsize = 0.into());
    check("SB-07", |s| s.sectorsize = 4097.into());
    for nodesize in [0u32, 4352, 2048, 131_072] {
        check("SB-08", |s| (s.nodesize, s.leafsize) = (nodesize.into(), nodesize.into()));
    }
    check("SB-09", |s| s.leafsize = 4096.into());
    check("SB-10", |s| s.log_root = 1.into());
    check("SB-11", |s| s.dev_item.fsid[0] = 1);
    check("SB-11", |s| s.incompat_flags = incompat::METADATA_UUID.into());
    check("SB-12", |s| s.bytes_used = (6u64 * 16384 - 1).into());
    check("SB-13", |s| s.stripesize = 593_920.into());
    check("SB-13", |s| s.stripesize = 8192.into());
    check("SB-14", |s| s.num_devices = 0.into());
    check("SB-17", |s| s.incompat_flags = incompat::MIXED_GROUPS.into());
    check("SB-18", |s| s.compat_ro_flags = compat_ro::BLOCK_GROUP_TREE.into());
    check("SB-19", |s| s.chunk_root_generation = 11.into());
    check("SB-19", |s| s.cache_generation = 11.into());
    check("SB-20", |s| s.total_bytes = 0.into());
    check("SB-24", |s| s.padding[9] = 1);
    check("SB-26", |s| s.metadata_uuid[0] = 1);
    check("SB-27", |s| s.num_devices = ((1u64 << 31) + 1).into());
    check("SB-25", |s| s.flags = (1u64 << 38 | 1).into());
}

#[test]
fn system_chunks() {
    for size in [0u32, 96, 98, 128, 130, 2048, 2049, u32::MAX] {
        check("SB-15", |s| s.sys_chunk_array_size = size.into());
    }
    check("SB-15", |s| s.sys_chunk_array[8] = 229);
    check("SB-15", |s| set_chunk(s, |c| c.flags = (bg::METADATA | bg::DUP).into()));
    check("SB-15", |s| set_chunk(s, |c| c.num_stripes = u16::MAX.into()));
    check("CH-02", |s| {
        set_chunk(s, |c| c.num_stripes = 0.into());
        s.sys_chunk_array_size = 97.into();
    });
    check("CH-07", |s| set_chunk(s, |c| c.length = 0.into()));
    check("CH-09", |s| set_chunk(s, |c| c.stripe_len = (1u64 << 45).into()));
    check("CH-13", |s| set_chunk(s, |c| c.flags = 0x20.into()));
}
