//! ROOT-, CH-, DEV-, DE-, BG-, EX-, KR-, FS-.

use super::fixtures::{
    chunk_leaf, data_ref, dev_leaf, extent_item, extent_leaf, free_space_leaf, leaf, root_leaf,
};
use super::{check, check_len, check_patch, check_taken};
use crate::block_group_flags as bg;
use crate::{BackRef, InlineRef, Key, KeyType, TreeBlock, objectid};

#[test]
fn roots() {
    let sound = root_leaf();
    check(&sound, "ROOT-01", |b| b.set_item_key(0, Key::new(0, KeyType::ROOT_ITEM, 0)));
    check(&sound, "ROOT-01", |b| b.set_item_key(2, Key::new(objectid::TREE_RELOC, KeyType::ROOT_ITEM, 0)));
    check(&sound, "ROOT-01", |b| b.set_item_key(2, Key::new(objectid::TREE_RELOC, KeyType::ROOT_ITEM, 3)));
    check_len(&sound, "ROOT-02", 0, 438);
    for at in [160, 200, 239] {
        check_patch(&sound, "ROOT-03", 0, at, &12u64.to_le_bytes());
    }
    check_patch(&sound, "ROOT-04", 0, 176, &4097u64.to_le_bytes());
    check_patch(&sound, "ROOT-05", 0, 238, &[8]);
    check_patch(&sound, "ROOT-05", 0, 237, &[8]);
    check_patch(&sound, "ROOT-06", 0, 220, &257u64.to_le_bytes());
    check_patch(&sound, "ROOT-07", 0, 208, &2u64.to_le_bytes());
    let mut old = sound.clone();
    let short = old.item(0).data[..239].to_vec();
    old.replace_item(0, &short);
    assert!(super::broken_rules(&old).is_empty(), "an item of before generation_v2");
    let name = [&[0; 16][..], &2u16.to_le_bytes(), b"ab"].concat();
    let with_ref = leaf(1, &vec![(Key::new(5, KeyType::ROOT_REF, 256), name)]);
    check_len(&with_ref, "LEAF-10", 0, 19);
}

#[test]
fn chunks() {
    let sound = chunk_leaf();
    check_len(&sound, "CH-01", 1, 79);
    check_len(&sound, "CH-01", 1, 80);
    check_patch(&sound, "CH-01", 1, 44, &3u16.to_le_bytes());
    check_patch(&sound, "CH-02", 1, 44, &0u16.to_le_bytes());
    let one_stripe = |flags: u64| {
        move |b: &mut TreeBlock| {
            let mut data = b.item(1).data[..80].to_vec();
            data[44..46].copy_from_slice(&1u16.to_le_bytes());
            data[24..32].copy_from_slice(&flags.to_le_bytes());
            b.replace_item(1, &data);
        }
    };
    check(&sound, "CH-03", one_stripe(bg::METADATA | bg::DUP));
    check(&sound, "CH-04", one_stripe(bg::METADATA | bg::RAID5));
    check(&sound, "CH-05", |b| b.set_item_key(1, Key::new(256, KeyType::CHUNK_ITEM, 4095)));
    check_patch(&sound, "CH-06", 1, 40, &8192u32.to_le_bytes());
    check_patch(&sound, "CH-07", 1, 0, &0u64.to_le_bytes());
    check_patch(&sound, "CH-07", 1, 0, &4097u64.to_le_bytes());
    check_patch(&sound, "CH-08", 1, 0, &(u64::MAX - 4095).to_le_bytes());
    check_patch(&sound, "CH-09", 1, 16, &0u64.to_le_bytes());
    check_patch(&sound, "CH-10", 1, 0, &(1u64 << 48).to_le_bytes());
    let types = [
        ("CH-11", bg::METADATA | bg::DUP | 1 << 20),
        ("CH-12", bg::METADATA | bg::DUP | bg::RAID1),
        ("CH-13", bg::DUP),
        ("CH-14", bg::SYSTEM | bg::METADATA | bg::DUP),
        ("CH-15", bg::DATA | bg::METADATA | bg::DUP),
        ("CH-16", bg::METADATA),
        ("CH-16", bg::METADATA | bg::RAID10),
    ];
    for (rule, flags) in types {
        check_patch(&sound, rule, 1, 24, &flags.to_le_bytes());
    }
    check(&sound, "CH-16", |b| {
        let mut data = b.item(1).data.to_vec();
        data[44..46].copy_from_slice(&3u16.to_le_bytes());
        data.resize(48 + 96, 0);
        b.replace_item(1, &data);
    });
}

#[test]
fn devices() {
    let sound = chunk_leaf();
    check(&sound, "DEV-01", |b| b.set_item_key(0, Key::new(2, KeyType::DEV_ITEM, 1)));
    check_len(&sound, "DEV-02", 0, 97);
    check(&sound, "DEV-03", |b| b.set_item_key(0, Key::new(1, KeyType::DEV_ITEM, 2)));
    check_patch(&sound, "DEV-04", 0, 16, &(2u64 << 30).to_le_bytes());
    let sound = dev_leaf();
    check_patch(&sound, "DE-01", 0, 0, &4u64.to_le_bytes());
    check_patch(&sound, "DE-02", 0, 8, &4u64.to_le_bytes());
    check_patch(&sound, "DE-03", 0, 16, &4097u64.to_le_bytes());
    check_patch(&sound, "DE-03", 0, 24, &4097u64.to_le_bytes());
    check_patch(&sound, "DE-04", 0, 24, &(16u64 << 20).to_le_bytes());
    check_len(&sound, "DE-05", 0, 47);
    check(&sound, "DE-11", |b| b.set_item_key(0, Key::new(1, KeyType::DEV_EXTENT, 65536)));
}

#[test]
fn block_groups() {
    let sound = extent_leaf();
    let at = 3;
    check(&sound, "BG-01", |b| b.set_item_key(at, Key::new(1 << 24, KeyType::BLOCK_GROUP_ITEM, 0)));
    check_len(&sound, "BG-02", at, 36);
    check_patch(&sound, "BG-03", at, 8, &1u64.to_le_bytes());
    check_patch(&sound, "BG-04", at, 0, &(9u64 << 20).to_le_bytes());
    check_patch(&sound, "BG-05", at, 16, &(bg::DATA | bg::DUP | bg::RAID1).to_le_bytes());
    check_patch(&sound, "BG-06", at, 16, &(bg::DATA | bg::SYSTEM).to_le_bytes());
}

#[test]
fn extents() {
    let sound = extent_leaf();
    let block = 4;
    check(&sound, "EX-02", |b| b.set_item_key(0, Key::new((1 << 24) - 1, KeyType::EXTENT_ITEM, 8192)));
    check(&sound, "EX-03", |b| b.set_item_key(block, Key::new((1 << 24) + 8192, KeyType::METADATA_ITEM, 8)));
    check_len(&sound, "EX-04", 0, 23);
    check_patch(&sound, "EX-05", 0, 8, &12u64.to_le_bytes());
    for flags in [0u64, 3, 4] {
        check_patch(&sound, "EX-06", 0, 16, &flags.to_le_bytes());
    }
    check_patch(&sound, "EX-07", 0, 16, &2u64.to_le_bytes());
    check_patch(&sound, "EX-08", 0, 16, &0x101u64.to_le_bytes());
    check_patch(&sound, "EX-08", block, 16, &1u64.to_le_bytes());
    check(&sound, "EX-09", |b| {
        b.set_item_key(block, Key::new((1 << 24) + 8192, KeyType::EXTENT_ITEM, 16384));
        let mut data = b.item(block).data[..24].to_vec();
        data.extend([0; 17]);
        data.push(8);
        b.replace_item(block, &data);
    });
    check_len(&sound, "EX-10", 0, 24 + 29 + 28);
    check_patch(&sound, "EX-11", 0, 24, &[0]);
    check_patch(&sound, "EX-11", 0, 24, &[180]);
    check_patch(&sound, "EX-12", block, 24 + 10, &1u64.to_le_bytes());
    check_patch(&sound, "EX-16", 0, 0, &3u64.to_le_bytes());
    check(&sound, "EX-17", |b| {
        b.remove_items(1..block);
        b.set_item_key(0, Key::new(1 << 24, KeyType::EXTENT_ITEM, 12288));
    });
    let skinny = crate::BlockContext { incompat: 0, ..super::ctx() };
    assert_eq!(sound.check(&skinny).unwrap_err().rule.0, "EX-01");
}

#[test]
fn inline_refs() {
    let sound = extent_leaf();
    let data = |root: u64, objectid: u64, offset: u64, count: u32| {
        move |b: &mut TreeBlock| {
            let r = InlineRef::Ref(BackRef::Data { root, objectid, offset }, count);
            b.replace_item(0, &extent_item(1, 10, &[r]));
        }
    };
    for bad in [data(2, 257, 0, 1), data(5, 255, 0, 1), data(5, 257, 1, 1), data(5, 257, 0, 0)] {
        check(&sound, "EX-13", bad);
    }
    let refs = |list: Vec<InlineRef>| move |b: &mut TreeBlock| b.replace_item(0, &extent_item(1, 10, &list));
    check(&sound, "EX-13", refs(vec![InlineRef::Ref(BackRef::SharedData { parent: 4096 }, 0)]));
    let shared = |parent| InlineRef::Ref(BackRef::SharedData { parent }, 1);
    check(&sound, "EX-14", refs(vec![shared(4096), shared(8192)]));
    check(&sound, "EX-14", refs(vec![shared(4096), InlineRef::Ref(data_ref(5), 1)]));
    let mut good = sound.clone();
    refs(vec![InlineRef::Owner(5), InlineRef::Ref(data_ref(5), 1), shared(8192), shared(4096)])(&mut good);
    assert!(super::broken_rules(&good).is_empty());
}

#[test]
fn keyed_refs() {
    let sound = extent_leaf();
    let at = 1u64 << 24;
    check_len(&sound, "KR-01", 1, 27);
    check_taken(&sound, "KR-01", |b| b.replace_item(1, b""));
    check_len(&sound, "KR-01", 2, 8);
    check_len(&sound, "KR-01", 5, 1);
    let hash = sound.key(1).offset;
    check(&sound, "KR-02", |b| b.set_item_key(5, Key::new(at + 8193, KeyType::SHARED_BLOCK_REF, 4096)));
    check(&sound, "KR-03", |b| b.set_item_key(2, Key::new(at, KeyType::SHARED_DATA_REF, 1)));
    check_patch(&sound, "KR-04", 1, 0, &2u64.to_le_bytes());
    check_patch(&sound, "KR-04", 1, 24, &0u32.to_le_bytes());
    check_patch(&sound, "KR-04", 2, 0, &0u32.to_le_bytes());
    check_patch(&sound, "KR-05", 1, 8, &258u64.to_le_bytes());
    check(&sound, "KR-05", |b| b.set_item_key(1, Key::new(at, KeyType::EXTENT_DATA_REF, hash - 1)));
    check(&sound, "KR-06", |b| b.set_item_key(5, Key::new(at + 12288, KeyType::SHARED_BLOCK_REF, 4096)));
    let mut collided = sound.clone();
    collided.set_item_key(1, Key::new(at, KeyType::EXTENT_DATA_REF, hash + 1));
    assert!(super::broken_rules(&collided).is_empty());
}

#[test]
fn free_space() {
    let sound = free_space_leaf();
    check_len(&sound, "FS-01", 0, 7);
    check_patch(&sound, "FS-01", 0, 4, &2u32.to_le_bytes());
    check_patch(&sound, "FS-01", 0, 0, &257u32.to_le_bytes());
    let at = sound.key(1).objectid;
    check(&sound, "FS-01", |b| b.set_item_key(0, Key::new(at - 4096, KeyType::FREE_SPACE_INFO, 0)));
    check(&sound, "FS-02", |b| b.set_item_key(1, Key::new(at, KeyType::FREE_SPACE_EXTENT, 0)));
    check(&sound, "FS-02", |b| b.set_item_key(1, Key::new(at, KeyType::FREE_SPACE_EXTENT, 100)));
    check_len(&sound, "FS-02", 1, 1);
    check_len(&sound, "FS-03", 3, 31);
    check(&sound, "FS-03", |b| b.set_item_key(3, Key::new(2 << 24, KeyType::FREE_SPACE_BITMAP, 2 << 20)));
    let stripe = |at| leaf(12, &vec![(Key::new(at, KeyType::RAID_STRIPE, 4096), vec![0; 16])]);
    assert_eq!(stripe(4096).check(&super::ctx()).unwrap_err().rule.0, "RS-01", "without its feature");
    let with = crate::BlockContext { incompat: crate::incompat::RAID_STRIPE_TREE, ..super::ctx() };
    assert_eq!(stripe(4096).check(&with), Ok(()));
    assert_eq!(stripe(4097).check(&with).unwrap_err().rule.0, "RS-01");
}
