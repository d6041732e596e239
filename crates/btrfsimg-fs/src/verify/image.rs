//! Reading tree blocks, every copy of each.

use btrfsimg_ondisk::{
    BlockContext, FramedBlock, Item, Judged, Key, KeyPtr, Logical, ParentExpectation, Superblock, Uuid,
    Violation,
};

use super::finding::{Finding, Findings, Place};
use super::progress::Progress;
use super::walk::Tree;
use crate::chunk_map::{ChunkMap, Place as Stored};
use crate::device::Device;

/// The image being judged.
pub(super) struct Image<'a> {
    pub(super) device: &'a dyn Device,
    pub(super) device_len: u64,
    pub(super) superblock: Superblock,
    pub(super) ctx: BlockContext,
    pub(super) chunks: ChunkMap,
    pub(super) threads: usize,
    /// What every block's header says, as far as known.
    pub(super) chunk_tree_uuid: Option<[u8; 16]>,
    /// The chunk tree and the root tree that are gone by, once found.
    pub(super) chunk_tree: Option<Tree>,
    pub(super) root_tree: Option<Tree>,
    pub(super) progress: &'a Progress,
}

/// A pointer to a block: where, and what it must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer {
    pub(super) at: Logical,
    pub(super) expect: ParentExpectation,
}

/// A tree block that can be used, sound or not.
pub(super) struct Block {
    pub(super) logical: Logical,
    pub(super) tree: u64,
    pub(super) owner: u64,
    pub(super) level: u8,
    pub(super) judged: Judged,
}

impl Block {
    /// Gives each good item of a leaf with its slot.
    pub(super) fn for_each_item<'b>(&'b self, ctx: &BlockContext, mut each: impl FnMut(usize, Item<'b>)) {
        if self.level != 0 {
            return;
        }
        match &self.judged {
            Judged::Sound(block) => (0..block.nritems()).for_each(|slot| each(slot, block.item(slot))),
            Judged::Faulty(block) => {
                for slot in 0..block.slots() {
                    if let Some(Ok(item)) = block.item(slot, ctx) {
                        each(slot, item);
                    }
                }
            }
        }
    }

    /// The pointers of a node.
    pub(super) fn pointers(&self) -> Vec<KeyPtr> {
        if self.level == 0 {
            return Vec::new();
        }
        match &self.judged {
            Judged::Sound(block) => (0..block.nritems()).map(|slot| block.key_ptr(slot)).collect(),
            Judged::Faulty(block) => (0..block.slots()).filter_map(|slot| block.key_ptr(slot)).collect(),
        }
    }

    pub(super) fn last_key(&self) -> Option<Key> {
        match &self.judged {
            Judged::Sound(block) => block.nritems().checked_sub(1).map(|slot| block.key(slot)),
            Judged::Faulty(block) => block.key(block.slots().checked_sub(1)?),
        }
    }

    pub(super) fn place(&self) -> Place {
        Place::block(self.tree, self.logical, self.level == 0)
    }
}

/// A copy of a block after its check.
struct Copied {
    judged: Judged,
    violations: Vec<Violation>,
}

impl Image<'_> {
    /// The block that `pointer` of `tree` points to. Every fault of every copy goes to `findings`; copies that are
    /// equal are judged once. `None` when no copy is of any use.
    pub(super) fn read(
        &self,
        tree: u64,
        pointer: &Pointer,
        strict: bool,
        findings: &mut Findings,
    ) -> Option<Block> {
        let place = Place::block(tree, pointer.at, pointer.expect.level.unwrap_or(0) == 0);
        let copies = match self.copies(pointer.at) {
            Ok(copies) => copies,
            Err(reason) => {
                findings.add("BLK-01", place, reason);
                return None;
            }
        };
        let mut best: Option<Copied> = None;
        for (mirror, stored) in copies.iter().enumerate() {
            let place = if copies.len() > 1 { at_mirror(&place, mirror, *stored) } else { place.clone() };
            let has_sound = best.as_ref().is_some_and(|b| b.judged.is_sound());
            let mut fault = |f: Finding| match has_sound && f.severity().is_error() {
                true => findings.spare.push(f),
                false => findings.push(f),
            };
            let mut bytes = vec![0; self.ctx.nodesize].into_boxed_slice();
            if let Err(error) = self.device.read_at(&mut bytes, stored.physical) {
                fault(Finding::new("BLK-05", place, format!("cannot read the block: {error}")));
                continue;
            }
            if best.as_ref().is_some_and(|b| b.judged.bytes() == &bytes[..]) {
                continue;
            }
            let this = self.judge(pointer, bytes, strict && best.is_none());
            let is_sound = this.judged.is_sound();
            if is_sound && has_sound {
                fault(Finding::new("DUP-01", place.clone(), "copies differ, each sound in itself"));
            }
            this.violations.iter().for_each(|v| fault(Finding::of(v.clone(), &place)));
            if best.is_none() || (is_sound && !has_sound) {
                best = Some(this);
            }
        }
        let block = usable(tree, pointer.at, best?)?;
        if let Some(expect) =
            self.chunk_tree_uuid.filter(|u| strict && *u != block.judged.header().chunk_tree_uuid)
        {
            let (have, expect) =
                (Uuid::from_bytes(block.judged.header().chunk_tree_uuid), Uuid::from_bytes(expect));
            findings.add("BLK-12", block.place(), format!("chunk tree uuid, have {have} expect {expect}"));
        }
        Some(block)
    }

    fn judge(&self, pointer: &Pointer, bytes: Box<[u8]>, strict: bool) -> Copied {
        let mut violations = Vec::new();
        let mut sink = |v| violations.push(v);
        let framed = FramedBlock::examine(bytes, pointer.at, &self.ctx, &pointer.expect, &mut sink);
        let judged = framed.judge(&self.ctx, strict, &mut sink);
        Copied { judged, violations }
    }

    fn copies(&self, logical: Logical) -> Result<Vec<Stored>, String> {
        let node = self.ctx.nodesize as u64;
        if !logical.0.is_multiple_of(self.ctx.sectorsize) {
            return Err(format!("unaligned block, have {logical} expect aligned to {}", self.ctx.sectorsize));
        }
        match self.chunks.map(logical, node) {
            Ok(places) => Ok(places.collect()),
            Err(_) => Err(format!("unable to find chunk map for logical {logical} length {node}")),
        }
    }
}

/// The block, unless what is wrong with it makes its contents those of something else.
fn usable(tree: u64, logical: Logical, best: Copied) -> Option<Block> {
    const FOREIGN: [&str; 6] = ["BLK-02", "BLK-03", "BLK-04", "BLK-06", "BLK-07", "BLK-10"];
    if best.violations.iter().any(|v| FOREIGN.contains(&v.rule.0)) && !best.judged.is_sound() {
        return None;
    }
    let header = best.judged.header();
    Some(Block { logical, tree, owner: header.owner.get(), level: header.level, judged: best.judged })
}

fn at_mirror(place: &Place, mirror: usize, stored: Stored) -> Place {
    Place {
        mirror: Some(mirror),
        devid: Some(stored.devid),
        physical: Some(stored.physical),
        ..place.clone()
    }
}
