//! Rules of EXTENT_ITEM, METADATA_ITEM and keyed references: EX-, KR- (`format/06 §6.10`).

use zerocopy::FromBytes;

use super::view::{ItemAt, is_aligned};
use super::{BlockContext, Checked, Violation, ensure};
use crate::extent_refs::{BackRef, InlineRef, take_inline};
use crate::{
    ExtentDataRef, ExtentItem, KeyType, MAX_LEVEL, TreeBlockInfo, data_ref_hash, extent_flags, incompat,
    objectid,
};

pub(super) fn check(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let key = item.key;
    let skinny = key.key_type == KeyType::METADATA_ITEM;
    ensure!(
        !skinny || ctx.incompat & incompat::SKINNY_METADATA != 0,
        "EX-01",
        "invalid key type, METADATA_ITEM type invalid when SKINNY_METADATA feature disabled"
    );
    ensure!(
        is_aligned(key.objectid, ctx.sectorsize),
        "EX-02",
        "invalid key objectid, have {} expect to be aligned to {}",
        key.objectid,
        ctx.sectorsize
    );
    ensure!(
        !skinny || key.offset < u64::from(MAX_LEVEL),
        "EX-03",
        "invalid tree level, have {} expect [0, 7]",
        key.offset
    );
    let Ok((head, rest)) = ExtentItem::ref_from_prefix(item.data) else {
        ensure!(false, "EX-04", "invalid item size, have {} expect at least 24", item.data.len());
        return Ok(());
    };
    let refs = check_head(item, head, rest, ctx)?;
    check_inline(head.refs.get(), refs, ctx)?;
    check_overlap(item, ctx)
}

/// Judges flags, generation and kind; gives the bytes of the inline references.
fn check_head<'a>(
    item: &ItemAt<'_>,
    head: &ExtentItem,
    rest: &'a [u8],
    ctx: &BlockContext,
) -> Result<&'a [u8], Violation> {
    let (key, flags) = (item.key, head.flags.get());
    let newest = ctx.generation.saturating_add(1);
    ensure!(
        head.generation.get() <= newest,
        "EX-05",
        "invalid generation, have {} expect [0, {newest}]",
        head.generation
    );
    let kind = flags & (extent_flags::DATA | extent_flags::TREE_BLOCK);
    ensure!(kind.count_ones() == 1, "EX-06", "invalid extent flag, have 0x{flags:x} expect 1 bit set in 0x3");
    if kind == extent_flags::DATA {
        ensure!(
            key.key_type == KeyType::EXTENT_ITEM
                && is_aligned(key.offset, ctx.sectorsize)
                && flags & extent_flags::FULL_BACKREF == 0,
            "EX-08",
            "invalid data extent, have key {key} flags 0x{flags:x}, expect EXTENT_ITEM, length aligned to {}, no full backref",
            ctx.sectorsize
        );
        return Ok(rest);
    }
    if key.key_type == KeyType::METADATA_ITEM {
        return Ok(rest);
    }
    ensure!(
        key.offset == ctx.nodesize as u64,
        "EX-07",
        "invalid extent length, have {} expect {}",
        key.offset,
        ctx.nodesize
    );
    let Ok((info, rest)) = TreeBlockInfo::ref_from_prefix(rest) else {
        return Err(Violation::new("EX-09", "tree block info crosses item end"));
    };
    ensure!(
        info.level < MAX_LEVEL,
        "EX-09",
        "invalid tree block info level, have {} expect [0, 7]",
        info.level
    );
    Ok(rest)
}

fn check_inline(total: u64, mut bytes: &[u8], ctx: &BlockContext) -> Checked {
    let (mut last_type, mut last_seq, mut counted) = (0u8, u64::MAX, 0u64);
    while let Some(&kind) = bytes.first() {
        let (inline, tail) = take_inline(bytes)?;
        let (seq, count) = match inline {
            InlineRef::Owner(root) => (root, 0),
            InlineRef::Ref(back, count) => (check_back_ref(&back, count, ctx)?, count),
        };
        counted = counted.saturating_add(u64::from(count));
        ensure!(
            kind >= last_type,
            "EX-14",
            "inline ref out-of-order: prev type {} current type {}",
            KeyType(last_type),
            KeyType(kind)
        );
        if kind > last_type {
            last_seq = u64::MAX;
        }
        ensure!(
            seq <= last_seq,
            "EX-14",
            "inline ref out-of-order: type {} prev seq 0x{last_seq:x} current seq 0x{seq:x}",
            KeyType(kind)
        );
        (last_type, last_seq, bytes) = (kind, seq, tail);
    }
    ensure!(counted <= total, "EX-16", "invalid extent refs, have {total} expect >= inline {counted}");
    Ok(())
}

/// Judges a reference's own fields; gives its sequence.
fn check_back_ref(back: &BackRef, count: u32, ctx: &BlockContext) -> Result<u64, Violation> {
    match *back {
        BackRef::TreeBlock { root } => Ok(root),
        BackRef::SharedBlock { parent } => {
            check_parent(parent, ctx)?;
            Ok(parent)
        }
        BackRef::SharedData { parent } => {
            check_parent(parent, ctx)?;
            ensure!(count > 0, "EX-13", "invalid shared data backref count, should have non-zero value");
            Ok(parent)
        }
        BackRef::Data { root, objectid, offset } => {
            check_data_ref("EX-13", root, objectid, offset, count, ctx)?;
            Ok(data_ref_hash(root, objectid, offset))
        }
    }
}

fn check_parent(parent: u64, ctx: &BlockContext) -> Checked {
    ensure!(
        is_aligned(parent, ctx.sectorsize),
        "EX-12",
        "invalid tree parent bytenr, have {parent} expect aligned to {}",
        ctx.sectorsize
    );
    Ok(())
}

fn check_data_ref(
    rule: &'static str,
    root: u64,
    objectid: u64,
    offset: u64,
    count: u32,
    ctx: &BlockContext,
) -> Checked {
    let fault = |reason: String| Err(Violation::new(rule, reason));
    if !objectid::is_fs_tree(root) && ![objectid::ROOT_TREE, objectid::DATA_RELOC_TREE].contains(&root) {
        return fault(format!("invalid data ref root value {}", objectid::Printed(root)));
    }
    // Kernels from 6.11 refuse the retired inode cache (-12) too; images that still have it are otherwise sound.
    if !objectid::is_inode(objectid) && objectid != objectid::FREE_INO {
        return fault(format!("invalid data ref objectid value {}", objectid::Printed(objectid)));
    }
    if !is_aligned(offset, ctx.sectorsize) {
        return fault(format!("invalid data ref offset, have {offset} expect aligned to {}", ctx.sectorsize));
    }
    if count == 0 {
        return fault("invalid data ref count, should have non-zero value".to_owned());
    }
    Ok(())
}

fn check_overlap(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let Some((before, _)) = item.before else { return Ok(()) };
    let length = match before.key_type {
        KeyType::METADATA_ITEM => ctx.nodesize as u64,
        KeyType::EXTENT_ITEM => before.offset,
        _ => return Ok(()),
    };
    // Wraps as in the kernel: an end beyond 2^64 is the chunk map's to refuse.
    let end = before.objectid.wrapping_add(length);
    ensure!(
        end <= item.key.objectid,
        "EX-17",
        "previous extent {before} overlaps current extent {}",
        item.key
    );
    Ok(())
}

pub(super) fn check_keyed(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let (key, len) = (item.key, item.data.len());
    let fits = match key.key_type {
        KeyType::EXTENT_DATA_REF => len.is_multiple_of(size_of::<ExtentDataRef>()),
        KeyType::SHARED_DATA_REF => len == 4,
        _ => len == 0,
    };
    ensure!(fits, "KR-01", "invalid item size for a {}, have {len}", key.key_type);
    ensure!(
        is_aligned(key.objectid, ctx.sectorsize),
        "KR-02",
        "invalid key objectid, have {} expect to be aligned to {}",
        key.objectid,
        ctx.sectorsize
    );
    match key.key_type {
        KeyType::SHARED_BLOCK_REF | KeyType::SHARED_DATA_REF => {
            ensure!(
                is_aligned(key.offset, ctx.sectorsize),
                "KR-03",
                "invalid tree parent bytenr, have {} expect aligned to {}",
                key.offset,
                ctx.sectorsize
            );
            let counts = key.key_type != KeyType::SHARED_DATA_REF || item.data != [0; 4];
            ensure!(counts, "KR-04", "invalid shared data backref count, should have non-zero value");
        }
        KeyType::EXTENT_DATA_REF => {
            for r in keyed_data_refs(item.data) {
                let (root, ino, offset) = (r.root.get(), r.objectid.get(), r.offset.get());
                check_data_ref("KR-04", root, ino, offset, r.count.get(), ctx)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn keyed_data_refs(data: &[u8]) -> impl Iterator<Item = &ExtentDataRef> {
    data.chunks_exact(size_of::<ExtentDataRef>()).filter_map(|b| ExtentDataRef::ref_from_bytes(b).ok())
}

/// KR-05 and KR-06. Assumes that [`check_keyed`] passed.
pub(super) fn check_keyed_strict(item: &ItemAt<'_>) -> Checked {
    /// Colliding hashes go to the next offsets; an earlier one may be gone since.
    const COLLISIONS_MAX: u64 = 1024;
    let key = item.key;
    if let Some((before, _)) = item.before {
        ensure!(before.objectid == key.objectid, "KR-06", "keyed ref without its extent item before it");
    }
    if key.key_type != KeyType::EXTENT_DATA_REF {
        return Ok(());
    }
    ensure!(!item.data.is_empty(), "KR-01", "invalid item size for a {}, have 0", key.key_type);
    for r in keyed_data_refs(item.data) {
        let hash = data_ref_hash(r.root.get(), r.objectid.get(), r.offset.get());
        ensure!(
            key.offset.wrapping_sub(hash) < COLLISIONS_MAX,
            "KR-05",
            "invalid key offset of a data ref, have 0x{:x} expect 0x{hash:x}",
            key.offset
        );
    }
    Ok(())
}
