//! Space: what is free, and moving a block there.

use std::ops::{ControlFlow, Range};

use btrfsimg_fs::Result;
use btrfsimg_ondisk::{Key, KeyType, Logical, RootItem, objectid};

use crate::error::{Found, some};
use crate::image::Image;
use crate::place::{Spot, Target, Trees};

impl Image {
    /// The free ranges in the chunks that have one of the type bits `flags`.
    pub(crate) fn gaps(&self, flags: u64) -> Result<Vec<Range<u64>>> {
        let mut used: Vec<Range<u64>> = Vec::new();
        let node = self.nodesize();
        self.walk(objectid::EXTENT_TREE, &mut |_, _, block| {
            if block.is_leaf() {
                for item in block.items() {
                    match item.key.key_type {
                        KeyType::EXTENT_ITEM => {
                            used.push(item.key.objectid..item.key.objectid + item.key.offset)
                        }
                        KeyType::METADATA_ITEM => used.push(item.key.objectid..item.key.objectid + node),
                        _ => {}
                    }
                }
            }
            ControlFlow::Continue(())
        })?;
        let mut gaps = Vec::new();
        for chunk in self.store().chunks().iter().filter(|c| c.flags & flags != 0) {
            let mut at = chunk.start.0;
            for range in used.iter().filter(|r| r.start < chunk.end() && r.end > chunk.start.0) {
                if range.start > at {
                    gaps.push(at..range.start);
                }
                at = at.max(range.end);
            }
            if at < chunk.end() {
                gaps.push(at..chunk.end());
            }
        }
        Ok(gaps)
    }

    /// Room for a tree block at an address for which `wanted` holds, in chunks of the type `flags`.
    pub(crate) fn free_block(&self, flags: u64, wanted: impl Fn(u64) -> bool) -> Found<Logical> {
        let (node, sector) = (self.nodesize(), self.sector());
        for gap in self.gaps(flags)? {
            let mut at = gap.start.next_multiple_of(sector);
            while at + node <= gap.end {
                if wanted(at) {
                    return Ok(Some(Logical(at)));
                }
                at += sector;
            }
        }
        Ok(None)
    }

    /// Moves the root block of `tree` to `to`: the block, its root item and its extent item.
    pub(crate) fn move_root(&mut self, tree: u64, to: Logical) -> Found<()> {
        let (from, level) = some!(self.root_of(tree)?);
        let mut block = self.block(from, &Default::default())?;
        block.header_mut().bytenr = to.0.into();
        self.put_block(to, block);
        let root = some!(self.find(&Target::Any, Trees::One(objectid::ROOT_TREE), |i| {
            i.is(KeyType::ROOT_ITEM) && i.key.objectid == tree
        })?);
        some!(self.edit::<RootItem>(&root, |r| r.bytenr = to.0.into())?);
        let item = some!(self.tree_block_item(from)?);
        let data = self.item(&item)?;
        let offset =
            if item.key.key_type == KeyType::METADATA_ITEM { u64::from(level) } else { item.key.offset };
        self.replace(&item, Key { objectid: to.0, offset, ..item.key }, &data)
    }

    /// The extent item of the tree block at `at`.
    pub(crate) fn tree_block_item(&self, at: Logical) -> Found<Spot> {
        self.find(&Target::Any, Trees::One(objectid::EXTENT_TREE), |i| {
            i.key.objectid == at.0 && (i.is(KeyType::METADATA_ITEM) || i.is(KeyType::EXTENT_ITEM))
        })
    }
}
