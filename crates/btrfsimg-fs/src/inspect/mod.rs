//! The structures of an image as they are, one by one, damaged ones too.

mod compression;
mod files;
mod item;
mod space;
mod usage;

use std::collections::HashSet;

use btrfsimg_ondisk::{
    FramedBlock, Header, KeyType, Logical, ParentExpectation, Physical, SUPERBLOCK_LEN, Superblock,
    Violation, check_superblock, objectid, superblock_offsets,
};
use zerocopy::FromBytes;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::read::Filesystem;
use crate::tree::TreeRoot;

pub use compression::{Amount, CompressionCount, CompressionUsage, Report, Storage};
pub use item::describe;
pub use usage::{GroupUsage, SpaceUsage, space_usage};

/// A copy of the superblock.
#[derive(Clone, Debug)]
pub struct SuperCopy {
    /// Where it is.
    pub at: Physical,
    /// Its fields, whatever they are.
    pub superblock: Superblock,
    /// The rules that it breaks.
    pub faults: Vec<Violation>,
}

/// Every copy of the superblock that the device is long enough for, the primary one first.
///
/// # Errors
/// `NotBtrfs` when the device is too short for one; `Io`.
pub fn superblocks(device: &dyn Device) -> Result<Vec<SuperCopy>> {
    let len = device.len().map_err(Error::io("length of the image"))?;
    let mut copies = Vec::new();
    // The length may be that of a superblock's end: the offsets ask for one byte more.
    for at in superblock_offsets(len.saturating_add(1)) {
        let mut bytes = [0; SUPERBLOCK_LEN];
        device.read_at(&mut bytes, at).map_err(Error::io(format!("read the superblock at byte {at}")))?;
        if let Ok(superblock) = Superblock::read_from_bytes(&bytes) {
            let mut faults = Vec::new();
            check_superblock(&superblock, at, &mut |v| faults.push(v));
            copies.push(SuperCopy { at, superblock, faults });
        }
    }
    if copies.is_empty() {
        return Err(Error::NotBtrfs("shorter than a superblock at 64 KiB".to_owned()));
    }
    Ok(copies)
}

/// A tree block as far as it can be read.
#[derive(Debug)]
pub struct BlockView {
    /// The tree it was reached from; the owner in its header when it was asked for alone.
    pub tree: u64,
    /// Its address.
    pub logical: Logical,
    /// Its header and slots.
    pub block: FramedBlock,
    /// What is wrong with its frame. Its items are judged one by one ([`FramedBlock::item`]).
    pub faults: Vec<Violation>,
}

impl BlockView {
    /// Its header.
    pub fn header(&self) -> Header {
        self.block.header()
    }
}

/// The block at `logical`: of its copies the first without a fault in its frame, else the first that can be read.
///
/// # Errors
/// `Io` when no copy can be read; `Corrupt` when no chunk holds it.
pub fn block(fs: &Filesystem, logical: Logical, expect: &ParentExpectation) -> Result<BlockView> {
    let (store, mut best, mut error) = (fs.store(), None, None);
    for copy in 0.. {
        let mut bytes = vec![0; store.ctx().nodesize].into_boxed_slice();
        match store.read_data(logical, &mut bytes, copy) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e @ Error::Io { .. }) => {
                error.get_or_insert(e);
                continue;
            }
            Err(e) => return Err(e),
        }
        let mut faults = Vec::new();
        let block = FramedBlock::examine(bytes, logical, store.ctx(), expect, &mut |v| faults.push(v));
        let is_sound = faults.is_empty();
        let tree = expect.tree.unwrap_or_else(|| block.header().owner.get());
        let view = BlockView { tree, logical, block, faults };
        if is_sound {
            return Ok(view);
        }
        best.get_or_insert(view);
    }
    best.ok_or_else(|| {
        error.unwrap_or_else(|| Error::corrupt("CH-02", format!("chunk of {logical} has no stripes")))
    })
}

/// Calls `each` with every block of a tree from `root` down, parents before children, in key order; with an error
/// in the place of a block that cannot be read.
///
/// # Errors
/// What `each` returns.
pub fn walk_tree(
    fs: &Filesystem,
    root: &TreeRoot,
    each: &mut dyn FnMut(Result<BlockView>) -> Result<()>,
) -> Result<()> {
    let mut pending = vec![(root.logical, root.expectation())];
    // Pointers of a damaged tree may lead anywhere, back to where they came from too.
    let mut visited = HashSet::new();
    while let Some((logical, expect)) = pending.pop() {
        if !visited.insert(logical) {
            let reason = format!("block {logical} is reached a second time");
            each(Err(Error::corrupt("BLK-01", reason)))?;
            continue;
        }
        let view = match block(fs, logical, &expect) {
            Ok(view) => view,
            Err(e) => {
                each(Err(e))?;
                continue;
            }
        };
        if let Some(level) = expect.level.filter(|&l| l > 0 && l == view.header().level) {
            let children = (0..view.block.slots()).rev().filter_map(|slot| view.block.key_ptr(slot));
            pending.extend(children.map(|ptr| {
                let expect = ParentExpectation {
                    level: Some(level - 1),
                    generation: Some(ptr.generation),
                    first_key: Some(ptr.key),
                    tree: Some(root.tree),
                };
                (ptr.block, expect)
            }));
        }
        each(Ok(view))?;
    }
    Ok(())
}

/// The roots of all trees: the root tree and the chunk tree, then those in the root tree in the order of their ids,
/// also where a root item breaks a rule, then those of the log; errors in the place of roots that cannot be read.
///
/// # Errors
/// `Corrupt`, `Io`, when the root tree itself cannot be read.
pub fn tree_roots(fs: &Filesystem) -> Result<Vec<Result<TreeRoot>>> {
    let special = |tree| crate::tree::required_root(fs.store(), tree);
    let root_tree = special(objectid::ROOT_TREE)?;
    let mut roots = vec![Ok(root_tree), special(objectid::CHUNK_TREE)];
    roots_in(fs, &root_tree, &mut roots)?;
    let sb = fs.superblock();
    if sb.log_root.get() != 0 {
        let log = TreeRoot {
            tree: objectid::TREE_LOG,
            logical: Logical(sb.log_root.get()),
            level: sb.log_root_level,
            // The log is written by the transaction after the committed one.
            generation: sb.generation.get().saturating_add(1),
        };
        roots.push(Ok(log));
        roots_in(fs, &log, &mut roots)?;
    }
    Ok(roots)
}

/// Adds the roots that a tree of root items holds.
fn roots_in(fs: &Filesystem, tree: &TreeRoot, roots: &mut Vec<Result<TreeRoot>>) -> Result<()> {
    let ctx = fs.store().ctx();
    walk_tree(fs, tree, &mut |view| {
        let view = match view {
            Ok(view) if view.header().level == 0 => view,
            Ok(_) => return Ok(()),
            Err(e) => {
                roots.push(Err(e));
                return Ok(());
            }
        };
        for slot in 0..view.block.slots() {
            let Some(key) = view.block.key(slot).filter(|k| k.key_type == KeyType::ROOT_ITEM) else {
                continue;
            };
            if let Some(Err(fault)) = view.block.item(slot, ctx) {
                roots.push(Err(Error::corrupt_block(tree.tree, view.logical, true, fault)));
            }
            if let Some(item) = view.block.root_item(slot) {
                roots.push(Ok(TreeRoot::of_item(key.objectid, &item)));
            }
        }
        Ok(())
    })
}

/// The tree that a user names: an id, or a name as `fs`, `FS_TREE`, `free-space`.
pub fn parse_tree(text: &str) -> Option<u64> {
    if let Ok(id) = text.parse::<u64>() {
        return Some(id);
    }
    if let Ok(id) = text.parse::<i64>() {
        return Some(id.cast_unsigned());
    }
    let name = text.to_ascii_uppercase().replace('-', "_");
    let name = name.strip_suffix("_TREE").unwrap_or(&name);
    let known = (1..=12).chain([objectid::DATA_RELOC_TREE, objectid::TREE_LOG, objectid::TREE_RELOC]);
    known
        .into_iter()
        .find(|&id| objectid::tree_name(id).is_some_and(|n| n.strip_suffix("_TREE").unwrap_or(n) == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_by_name() {
        let cases = [
            ("fs", Some(5)),
            ("FS_TREE", Some(5)),
            ("free-space", Some(10)),
            ("block_group", Some(11)),
            ("257", Some(257)),
            ("-9", Some(objectid::DATA_RELOC_TREE)),
            ("data_reloc", Some(objectid::DATA_RELOC_TREE)),
            ("tree", None),
            ("", None),
        ];
        for (text, id) in cases {
            assert_eq!(parse_tree(text), id, "{text}");
        }
    }
}
