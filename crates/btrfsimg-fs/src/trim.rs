//! What the committed state does not use, given back to the host: holes, or zeros.
//!
//! Free is what no extent item covers, in every block group, and device space of no chunk. The free space tree is not
//! asked: an image may lie there. Kept besides: the first MiB (boot loaders), and the copies of the superblock.

use std::ops::Range;

use btrfsimg_ondisk::{
    BlockGroupItem, DevId, Key, KeyType, Logical, Physical, RootItem, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS,
    objectid,
};
use zerocopy::FromBytes as _;

use crate::block_store::BlockStore;
use crate::chunk_map::Chunk;
use crate::error::{Error, Result};
use crate::tree::{TreeRoot, block_group_tree, lookup, walk_items};

/// Bytes at the start of a device that no chunk may use.
const RESERVED: u64 = 1 << 20;

/// How space is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Method {
    /// Not at all: it is only counted.
    Count,
    /// As holes; an error where the host cannot make them.
    #[default]
    Holes,
    /// As holes; as zeros where the host cannot make holes.
    HolesOrZeros,
    /// As zeros.
    Zeros,
}

/// What was free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trimmed {
    /// Bytes in block groups, on all copies.
    pub in_groups: u64,
    /// Bytes of the device in no chunk.
    pub unallocated: u64,
}

impl Trimmed {
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.in_groups.saturating_add(self.unallocated)
    }
}

/// Gives back what the committed state of `store` does not use. Whoever calls it holds the device for writing, and has
/// no transaction open.
///
/// # Errors
/// `Unsupported` for several devices, profiles that spread a chunk, and a log to replay; `Corrupt` where two chunks
/// share device space, extents overlap, a block group does not use what its extents take, or the
/// root of a tree cannot be read: nothing is given back then. `Io`; what was given back before stays so.
pub fn trim(store: &BlockStore, method: Method) -> Result<Trimmed> {
    let sb = store.superblock();
    if sb.log_root.get() != 0 {
        return Err(Error::Unsupported("trimming an image with a log to replay".to_owned()));
    }
    if sb.num_devices.get() != 1 {
        return Err(Error::Unsupported(format!("trimming a file system of {} devices", sb.num_devices)));
    }
    let device_end = sb.dev_item.total_bytes.get().min(store.device().len().map_err(Error::io("trim"))?);
    let gaps = unallocated(store, device_end)?;
    // All is looked at before anything goes.
    check_roots(store)?;
    for chunk in store.chunks().iter() {
        chunk.places(chunk.start).map(drop)?;
        let mut free = 0;
        free_in(store, chunk, &mut |range| {
            free += range.end - range.start;
            Ok(())
        })?;
        check_used(store, chunk, chunk.length - free)?;
    }
    if method != Method::Count {
        // A state that is not durable yet must not come back after what it replaced is gone.
        store.device().sync().map_err(Error::io("sync the image"))?;
    }
    let mut trimmed = Trimmed::default();
    for chunk in store.chunks().iter() {
        free_in(store, chunk, &mut |free| {
            for place in chunk.places(Logical(free.start))? {
                let start = place.physical.0;
                trimmed.in_groups += give_back(store, start..start + (free.end - free.start), method)?;
            }
            Ok(())
        })?;
    }
    for gap in gaps {
        trimmed.unallocated += give_back(store, gap, method)?;
    }
    Ok(trimmed)
}

/// Where the root of a tree cannot be read, an older state is all that is left of it, in space that is free now.
fn check_roots(store: &BlockStore) -> Result<()> {
    let mut roots = Vec::new();
    walk_items(store, objectid::ROOT_TREE, &Key::MIN, &Key::MAX, |item| {
        if item.key.key_type == KeyType::ROOT_ITEM
            && let Some(root) = RootItem::parse(item.data)
        {
            roots.push(TreeRoot::of_item(item.key.objectid, &root));
        }
        Ok(true)
    })?;
    // One without a block was never written, or is dropped.
    for root in roots.iter().filter(|root| root.logical.0 != 0) {
        store.read_block(root.logical, &root.expectation())?;
    }
    Ok(())
}

/// The device's ranges behind the reserved one that no chunk is on.
fn unallocated(store: &BlockStore, device_end: u64) -> Result<Vec<Range<u64>>> {
    let taken = store.chunks().device_extents(DevId(store.superblock().dev_item.devid.get()), device_end)?;
    let mut gaps = Vec::new();
    // A chunk may begin below (DE-11): kernels use it all the same.
    let mut at = RESERVED;
    for range in taken {
        gaps.push(at..range.start);
        at = at.max(range.end);
    }
    gaps.push(at..device_end.max(at));
    gaps.retain(|gap| !gap.is_empty());
    Ok(gaps)
}

/// A lost extent item would make data look free: the block group says how much there must be.
fn check_used(store: &BlockStore, chunk: &Chunk, have: u64) -> Result<()> {
    let tree = block_group_tree(store.superblock().compat_ro_flags.get());
    let key = Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length);
    let item = lookup(store, tree, &key)?.and_then(|data| BlockGroupItem::read_from_bytes(&data).ok());
    match item {
        Some(item) if item.used.get() == have => Ok(()),
        Some(item) => {
            let reason = format!("block group {}: used, have {} expect {have}", chunk.start, item.used);
            Err(Error::corrupt("BG-08", reason))
        }
        None => Err(Error::corrupt("BG-07", format!("chunk {} has no block group item", chunk.start))),
    }
}

/// Calls `each` with every logical range of a chunk that no extent is in.
fn free_in(store: &BlockStore, chunk: &Chunk, each: &mut dyn FnMut(Range<u64>) -> Result<()>) -> Result<()> {
    let nodesize = u64::from(store.superblock().nodesize.get());
    let last = Key::new(chunk.end().saturating_sub(1), KeyType(u8::MAX), u64::MAX);
    let mut at = chunk.start.0;
    walk_items(store, objectid::EXTENT_TREE, &Key::new(at, KeyType(0), 0), &last, |item| {
        let length = match item.key.key_type {
            KeyType::EXTENT_ITEM => item.key.offset,
            KeyType::METADATA_ITEM => nodesize,
            _ => return Ok(true),
        };
        let start = item.key.objectid;
        let end = start.checked_add(length).filter(|end| start >= at && *end <= chunk.end());
        let end = end.ok_or_else(|| {
            let reason = format!("extent {start} length {length} overlaps another, or the end of its chunk");
            Error::corrupt("EX-17", reason)
        })?;
        if start > at {
            each(at..start)?;
        }
        at = end;
        Ok(true)
    })?;
    if at < chunk.end() { each(at..chunk.end()) } else { Ok(()) }
}

/// Gives back a range of the device, but for the copies of the superblock. Says how many bytes.
fn give_back(store: &BlockStore, range: Range<u64>, method: Method) -> Result<u64> {
    let mut given = 0;
    let mut at = range.start;
    let copies = SUPERBLOCK_OFFSETS.map(|start| start..start + SUPERBLOCK_LEN as u64);
    for kept in copies.into_iter().chain(std::iter::once(range.end..range.end)) {
        let end = kept.start.clamp(at, range.end);
        if end > at {
            apply(store, at..end, method)?;
            given += end - at;
        }
        at = at.max(kept.end).min(range.end);
    }
    Ok(given)
}

fn apply(store: &BlockStore, range: Range<u64>, method: Method) -> Result<()> {
    let (device, at, len) = (store.device(), Physical(range.start), range.end - range.start);
    let what = || format!("give back {len} bytes at byte {at}");
    match method {
        Method::Count => Ok(()),
        Method::Holes => device.punch(at, len).map_err(Error::io(what())),
        Method::Zeros => zero(store, range).map_err(Error::io(what())),
        Method::HolesOrZeros => match device.punch(at, len) {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                zero(store, range).map_err(Error::io(what()))
            }
            other => other.map_err(Error::io(what())),
        },
    }
}

/// Writes zeros where there is anything else: holes stay holes.
fn zero(store: &BlockStore, range: Range<u64>) -> std::io::Result<()> {
    const PIECE: usize = 1 << 18;
    let (mut buffer, zeros) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from(range.end - at).map_or(PIECE, |left| left.min(PIECE));
        store.device().read_at(&mut buffer[..len], Physical(at))?;
        if buffer[..len].iter().any(|byte| *byte != 0) {
            store.device().write_at(&zeros[..len], Physical(at))?;
        }
        at += len as u64;
    }
    Ok(())
}
