//! BLK-, NODE-, LEAF-.

use super::fixtures::{GENERATION, LOGICAL, csum_leaf, ctx, empty, fs_leaf, leaf, seal};
use super::{broken_rules, check};
use crate::{
    FramedBlock, ITEM_HEADER_LEN, Key, KeyPtr, KeyType, Logical, ParentExpectation, TreeBlock, objectid,
};

/// The first rule broken when `bytes` are read from `logical` by a pointer that says `expect`.
fn first(bytes: Box<[u8]>, logical: Logical, expect: &ParentExpectation) -> Option<&'static str> {
    FramedBlock::parse(bytes, logical, &ctx(), expect).err().map(|v| v.rule.0)
}

fn sealed_with(change: impl FnOnce(&mut TreeBlock)) -> Box<[u8]> {
    let mut block = fs_leaf();
    change(&mut block);
    seal(block)
}

#[test]
fn a_block_is_what_its_header_says() {
    let any = ParentExpectation::default();
    let cases: &[(Box<[u8]>, Option<&str>)] = &[
        (seal(fs_leaf()), None),
        (sealed_with(|b| b.header_mut().bytenr = 4096.into()), Some("BLK-02")),
        (sealed_with(|b| b.header_mut().fsid[3] = 0), Some("BLK-03")),
        (sealed_with(|b| b.header_mut().level = 8), Some("BLK-04")),
    ];
    for (bytes, rule) in cases {
        assert_eq!(first(bytes.clone(), LOGICAL, &any), *rule);
    }
    let mut flipped = seal(fs_leaf());
    flipped[16000] ^= 1;
    assert_eq!(first(flipped, LOGICAL, &any), Some("BLK-05"));
    assert_eq!(first(seal(fs_leaf())[..4096].into(), LOGICAL, &any), Some("BLK-02"), "a short block");
    let mut unwritten = fs_leaf();
    let csum = ctx().csum.of_block(unwritten.bytes());
    unwritten.header_mut().csum = csum.0;
    assert_eq!(first(unwritten.bytes().into(), LOGICAL, &any), Some("BLK-11"));
}

#[test]
fn a_block_is_what_its_parent_says() {
    let none = ParentExpectation::default();
    let key = Key::new(256, KeyType::INODE_ITEM, 0);
    let cases = [
        (
            ParentExpectation {
                level: Some(0),
                generation: Some(GENERATION),
                first_key: Some(key),
                tree: Some(5),
            },
            None,
        ),
        (ParentExpectation { level: Some(1), ..none }, Some("BLK-06")),
        (ParentExpectation { generation: Some(9), ..none }, Some("BLK-07")),
        (
            ParentExpectation { first_key: Some(Key::new(255, KeyType::INODE_ITEM, 0)), ..none },
            Some("BLK-08"),
        ),
        (ParentExpectation { tree: Some(2), ..none }, Some("BLK-10")),
        (ParentExpectation { tree: Some(objectid::DATA_RELOC_TREE), ..none }, Some("BLK-10")),
        (ParentExpectation { tree: Some(300), ..none }, None),
        (ParentExpectation { tree: Some(objectid::TREE_RELOC), ..none }, None),
    ];
    for (expect, rule) in cases {
        assert_eq!(first(seal(fs_leaf()), LOGICAL, &expect), rule, "{expect:?}");
    }
    let expect = ParentExpectation { first_key: Some(key), ..none };
    assert_eq!(first(seal(empty(7, 0)), LOGICAL, &expect), Some("BLK-08"), "an empty leaf has no first key");
}

fn node() -> TreeBlock {
    let mut node = empty(5, 1);
    for (slot, id) in [256u64, 300, 400].into_iter().enumerate() {
        let ptr = KeyPtr {
            key: Key::new(id, KeyType::INODE_ITEM, 0),
            block: Logical((slot as u64 + 8) << 20),
            generation: GENERATION,
        };
        node.insert_key_ptr(slot, ptr);
    }
    node
}

fn set_nritems(block: &mut TreeBlock, n: u32) {
    block.header_mut().nritems = n.into();
}

#[test]
fn nodes() {
    let sound = node();
    check(&sound, "NODE-02", |b| set_nritems(b, 0));
    check(&sound, "NODE-02", |b| set_nritems(b, 494));
    check(&sound, "NODE-02", |b| set_nritems(b, u32::MAX));
    for block in [0, 4097] {
        check(&sound, "NODE-03", |b| {
            let ptr = b.key_ptr(1);
            b.set_key_ptr(1, KeyPtr { block: Logical(block), ..ptr });
        });
    }
    check(&sound, "NODE-04", |b| {
        let ptr = b.key_ptr(0);
        b.set_key_ptr(1, KeyPtr { block: Logical(9 << 20), ..ptr });
    });
    check(&sound, "BLK-14", |b| b.header_mut().flags = 0.into());
    check(&sound, "BLK-15", |b| b.header_mut().flags |= 2 << 56);
    // A node's level is part of the header rules; NODE-01 says the same of a block that is being built.
    let mut deep = node();
    deep.header_mut().level = 9;
    assert_eq!(deep.check(&ctx()).unwrap_err().rule.0, "NODE-01");
}

/// Writes the data offset and size of the item header in `slot`.
fn set_item(block: &mut TreeBlock, slot: usize, offset: u32, size: u32) {
    let at = crate::HEADER_LEN + slot * ITEM_HEADER_LEN + 17;
    block.bytes_mut()[at..at + 4].copy_from_slice(&offset.to_le_bytes());
    block.bytes_mut()[at + 4..at + 8].copy_from_slice(&size.to_le_bytes());
}

#[test]
fn leaves() {
    let sound = csum_leaf();
    check(&sound, "LEAF-03", |b| b.set_item_key(1, b.key(0)));
    check(&sound, "LEAF-04", |b| set_item(b, 1, 16000, 8));
    check(&sound, "LEAF-04", |b| set_item(b, 1, u32::MAX, u32::MAX));
    check(&sound, "LEAF-04", |b| set_item(b, 0, 16384, 8));
    check(&sound, "LEAF-06", |b| {
        // The data of the first item take all the room there is.
        let room = b.leaf_free();
        b.remove_items(1..2);
        set_item(b, 0, 0, 16283);
        assert!(room > 0);
    });
    let mut many = sound.clone();
    set_nritems(&mut many, 1_000_000);
    assert!(broken_rules(&many).contains(&"LEAF-04") && broken_rules(&many).contains(&"LEAF-06"));
}

#[test]
fn empty_leaves() {
    for owner in [1, 2, 3, 4, 5, objectid::DATA_RELOC_TREE, 0] {
        assert_eq!(broken_rules(&empty(owner, 0)), ["LEAF-02"], "owner {owner}");
    }
    for owner in [7, 8, 9, 10, 11, 256] {
        assert!(broken_rules(&empty(owner, 0)).is_empty(), "owner {owner}");
    }
    let mut relocated = empty(5, 0);
    relocated.header_mut().flags = (crate::header_flags::BACKREF_REV | crate::header_flags::RELOC).into();
    assert!(broken_rules(&relocated).is_empty());
}

#[test]
fn what_a_leaf_may_hold() {
    let sound = fs_leaf();
    let insert = |b: &mut TreeBlock, key: Key, data: &[u8]| {
        let slot = b.search(&key).unwrap_err();
        b.insert_items(slot, std::iter::once((key, data)));
    };
    check(&sound, "LEAF-08", |b| insert(b, Key::new(257, KeyType(8), 0), b""));
    check(&sound, "LEAF-09", |b| insert(b, Key::new(objectid::FREE_INO, KeyType::UNTYPED, 0), &[0; 41]));
    check(&sound, "LEAF-10", |b| insert(b, Key::new(objectid::ORPHAN, KeyType::ORPHAN_ITEM, 300), &[0]));
    let quota = leaf(8, &vec![(Key::new(0, KeyType::QGROUP_INFO, 5), vec![0; 40])]);
    check(&quota, "LEAF-10", |b| b.replace_item(0, &[0; 32]));
}

/// Any change of a byte that no checksum guards gives a violation or a sound block, never a panic; an item is given
/// out only when its own check passed.
#[test]
fn hostile_bytes() {
    let mut seed = 1u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % n
    };
    let sound = [fs_leaf(), super::fixtures::extent_leaf(), super::fixtures::root_leaf(), node()];
    for round in 0..20_000 {
        let mut block = sound[round % sound.len()].clone();
        for _ in 0..=random(4) {
            let used = 101 + 25 * 14;
            let at = if random(2) == 0 { 48 + random(used - 48) } else { 16384 - 1 - random(1200) };
            block.bytes_mut()[at] = [0, 1, 0x80, 0xff, random(256).to_le_bytes()[0]][random(5)];
        }
        let expect = ParentExpectation::default();
        let mut sink = |_| ();
        let framed = FramedBlock::examine(seal(block), LOGICAL, &ctx(), &expect, &mut sink);
        framed.check_items(&ctx(), &mut sink);
        crate::check_strict(&framed, &ctx(), &mut sink);
        for slot in 0..framed.slots() {
            let _ = framed.item(slot, &ctx());
        }
    }
}
