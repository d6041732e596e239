//! Rules of headers and item tables: BLK-, NODE-, LEAF- (`format/06 §6.2`).

use super::view::{View, is_aligned};
use super::{BlockContext, Violation};
use crate::block::header_flags;
use crate::{
    HEADER_LEN, Header, ITEM_HEADER_LEN, Key, Logical, MAX_LEVEL, ParentExpectation, leaf_data_size,
    max_key_ptrs, objectid,
};

/// Judges header, checksum, the parent's expectations, and the item table, in the kernel's order.
pub(crate) fn check_frame(
    block: View<'_>,
    logical: Logical,
    ctx: &BlockContext,
    expect: &ParentExpectation,
    sink: &mut dyn FnMut(Violation),
) {
    let Some(header) = block.header().filter(|_| block.bytes.len() == ctx.nodesize) else {
        let have = block.bytes.len();
        return sink(Violation::new(
            "BLK-02",
            format!("short block, have {have} bytes expect {}", ctx.nodesize),
        ));
    };
    check_identity(block, header, logical, ctx, sink);
    check_expectation(block, header, expect, sink);
    check_table(block, header, ctx, sink);
}

/// What a block says of itself, and its entries: all that needs no knowledge of where it is.
pub(crate) fn check_table(
    block: View<'_>,
    header: &Header,
    ctx: &BlockContext,
    sink: &mut dyn FnMut(Violation),
) {
    if header.flags.get() & header_flags::WRITTEN == 0 {
        sink(Violation::new("BLK-11", "invalid flag, WRITTEN not set"));
    }
    if header.level == 0 {
        check_leaf(block, header, ctx, sink);
    } else {
        check_node(block, header, ctx, sink);
    }
}

fn check_identity(
    block: View<'_>,
    header: &Header,
    logical: Logical,
    ctx: &BlockContext,
    sink: &mut dyn FnMut(Violation),
) {
    if header.bytenr.get() != logical.0 {
        sink(Violation::new("BLK-02", format!("bad bytenr, have {} expect {logical}", header.bytenr)));
    }
    if header.fsid != ctx.fsid {
        let (have, expect) = (uuid::Uuid::from_bytes(header.fsid), uuid::Uuid::from_bytes(ctx.fsid));
        sink(Violation::new("BLK-03", format!("bad fsid, have {have} expect {expect}")));
    }
    if header.level >= MAX_LEVEL {
        sink(Violation::new("BLK-04", format!("bad level, have {} expect below {MAX_LEVEL}", header.level)));
    }
    if !ctx.csum.verify_block(block.bytes) {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let (have, expect) = (&header.csum[..], &ctx.csum.of_block(block.bytes).0[..]);
        let width = ctx.csum.width();
        let reason =
            format!("checksum mismatch, have 0x{} expect 0x{}", hex(&have[..width]), hex(&expect[..width]));
        sink(Violation::new("BLK-05", reason));
    }
}

pub(crate) fn check_expectation(
    block: View<'_>,
    header: &Header,
    expect: &ParentExpectation,
    sink: &mut dyn FnMut(Violation),
) {
    if let Some(level) = expect.level.filter(|&l| l != header.level) {
        sink(Violation::new("BLK-06", format!("tree level mismatch, have {} expect {level}", header.level)));
    }
    if let Some(generation) = expect.generation.filter(|&g| g != header.generation.get()) {
        let have = header.generation;
        sink(Violation::new("BLK-07", format!("parent transid mismatch, have {have} expect {generation}")));
    }
    if let Some(tree) = expect.tree.filter(|_| !expect.admits_owner(header.owner.get())) {
        sink(Violation::new("BLK-10", format!("owner mismatch, have {} expect {tree}", header.owner)));
    }
    if let Some(want) = expect.first_key {
        match block.key(0) {
            Some(have) if have == want => {}
            Some(have) => {
                sink(Violation::new("BLK-08", format!("tree first key mismatch, have {have} expect {want}")));
            }
            None => sink(Violation::new("BLK-08", format!("invalid tree nritems, have 0 expect key {want}"))),
        }
    }
}

fn check_node(block: View<'_>, header: &Header, ctx: &BlockContext, sink: &mut dyn FnMut(Violation)) {
    if header.level >= MAX_LEVEL {
        sink(Violation::new(
            "NODE-01",
            format!("invalid level for node, have {} expect [1, 7]", header.level),
        ));
    }
    let (n, max) = (header.nritems.get() as usize, max_key_ptrs(ctx.nodesize));
    if n == 0 || n > max {
        sink(Violation::new("NODE-02", format!("invalid nritems, have {n} expect range [1, {max}]")));
    }
    let mut before: Option<Key> = None;
    for slot in 0..block.slots() {
        let Some(ptr) = block.key_ptr(slot) else { break };
        let at = ptr.block.0;
        if at == 0 || !is_aligned(at, ctx.sectorsize) {
            let reason = format!("unaligned pointer, have {at} should be aligned to {}", ctx.sectorsize);
            sink(Violation::new("NODE-03", reason).at(slot, ptr.key));
        }
        if let Some(prev) = before.filter(|p| *p >= ptr.key) {
            sink(
                Violation::new("NODE-04", format!("bad key order, prev {prev} current {}", ptr.key))
                    .at(slot, ptr.key),
            );
        }
        before = Some(ptr.key);
    }
}

fn check_leaf(block: View<'_>, header: &Header, ctx: &BlockContext, sink: &mut dyn FnMut(Violation)) {
    let n = header.nritems.get() as usize;
    if n == 0 {
        return check_empty_leaf(header, sink);
    }
    let mut end = leaf_data_size(ctx.nodesize) as u64;
    let mut before = Key::MIN;
    for slot in 0..block.slots() {
        let Some(item) = block.item_header(slot) else { break };
        let key = item.key.get();
        let mut fault = |rule, reason: String| sink(Violation::new(rule, reason).at(slot, key));
        if before >= key {
            fault("LEAF-03", format!("bad key order, prev {before} current {key}"));
        }
        let (offset, size) = (u64::from(item.offset.get()), u64::from(item.size.get()));
        if offset + size != end {
            fault("LEAF-04", format!("unexpected item end, have {} expect {end}", offset + size));
        }
        if offset + size > leaf_data_size(ctx.nodesize) as u64 {
            let max = leaf_data_size(ctx.nodesize);
            fault(
                "LEAF-05",
                format!("slot end outside of leaf, have {} expect range [0, {max}]", offset + size),
            );
        }
        if offset < ((slot + 1) * ITEM_HEADER_LEN) as u64 {
            let headers = HEADER_LEN + (slot + 1) * ITEM_HEADER_LEN;
            let data = HEADER_LEN as u64 + offset;
            fault("LEAF-06", format!("slot overlaps with its data, item end {headers} data start {data}"));
        }
        (before, end) = (key, offset);
    }
    if n > block.slots() {
        let max = block.slots();
        sink(Violation::new("LEAF-06", format!("invalid nritems, have {n} expect at most {max}")));
    }
}

fn check_empty_leaf(header: &Header, sink: &mut dyn FnMut(Violation)) {
    const NEVER_EMPTY: [u64; 6] = [
        objectid::ROOT_TREE,
        objectid::CHUNK_TREE,
        objectid::DEV_TREE,
        objectid::FS_TREE,
        objectid::DATA_RELOC_TREE,
        objectid::EXTENT_TREE,
    ];
    let owner = header.owner.get();
    if header.flags.get() & header_flags::RELOC != 0 {
        return;
    }
    if NEVER_EMPTY.contains(&owner) {
        let tree = objectid::Printed(owner);
        sink(Violation::new("LEAF-02", format!("invalid root, root {tree} must never be empty")));
    } else if owner == 0 {
        sink(Violation::new("LEAF-02", "invalid owner, root 0 is not defined"));
    }
}
