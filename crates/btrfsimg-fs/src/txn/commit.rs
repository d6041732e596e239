//! The commit: what is written, in which order, and where it waits for the device (`format/01 §1.7`).

use std::sync::Arc;

use btrfsimg_ondisk::{
    BackupRoot, Key, Logical, SUPERBLOCK_OFFSETS, Superblock, TreeBlock, header_flags, objectid,
    superblock_offsets,
};
use zerocopy::IntoBytes;

use super::Transaction;
use super::refs::JOINING_PASSES;
use crate::error::{Error, Result};

/// Bytes of neighbouring blocks that go out in one write.
const WRITE_RUN: usize = 1 << 20;
/// Passes over the accounting trees before giving up: each can only add blocks that were not yet copied.
const SETTLE_PASSES: usize = 64;

impl Transaction<'_> {
    /// Makes the transaction the state of the image.
    ///
    /// A power cut at any point leaves the state before or the state after, whole: nothing that the committed
    /// superblock reaches is overwritten, and the superblock goes out only when all it reaches is durable.
    ///
    /// # Errors
    /// `NoSpace`, `Corrupt`, `Io`; the image is as before unless the superblock was being written, after which the
    /// volume is poisoned.
    pub fn commit(mut self) -> Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.is_empty() {
            return Ok(());
        }
        self.settle()?;
        let superblock = self.next_superblock()?;
        // Data were written when they came. All blocks, in address order, so that they go out in long runs.
        let mut blocks: Vec<u64> = self.dirty.keys().copied().collect();
        blocks.sort_unstable();
        self.write_blocks(&blocks)?;
        self.grow_device(&superblock)?;
        // Barrier 1: what the new superblock reaches is durable before it.
        self.sync()?;
        // From here on nothing is put back: the new state may be the state.
        (self.volume.poisoned, self.begun) = (true, true);
        self.write_superblock(&superblock, 0)?;
        // Barrier 2: the new state is the state. The copies are for rescue tools and may lag.
        self.sync()?;
        for copy in 1..SUPERBLOCK_OFFSETS.len() {
            self.write_superblock(&superblock, copy)?;
        }
        self.sync()?;
        self.volume.store.set_superblock(superblock);
        self.volume.poisoned = false;
        Ok(())
    }

    /// Whether nothing has changed.
    fn is_empty(&self) -> bool {
        let roots = self.trees.values().all(|t| !t.changed);
        self.dirty.is_empty()
            && self.refs.is_empty()
            && roots
            && self.superblock == *self.volume.store.superblock()
    }

    /// Writes the accounting that changes itself (references, chunks, block groups, free space, roots) until a
    /// whole pass changes nothing. Each pass copies only blocks that were not copied before, so this ends.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.reserve.open = true;
        self.space.release_nodes();
        self.reset_quotas()?;
        // The root tree's root has the generation of the superblock, whatever else changed.
        self.path_to(objectid::ROOT_TREE, &Key::MIN)?;
        for pass in 0..SETTLE_PASSES {
            self.joins = pass < JOINING_PASSES;
            self.flush_csums()?;
            self.run_refs()?;
            let chunks = self.write_chunks()?;
            let groups = self.write_block_groups()?;
            let free = self.write_free_space()?;
            let roots = self.write_root_items()?;
            let settled = self.refs.is_empty() && self.pending_csums.is_empty();
            if settled && !(chunks || groups || free || roots) {
                return Ok(());
            }
        }
        Err(Error::corrupt("BG-08", "the accounting trees do not settle"))
    }

    /// The superblock of the state that this transaction makes.
    fn next_superblock(&mut self) -> Result<Superblock> {
        let root = self.current_root(objectid::ROOT_TREE)?.expect("settling opened it");
        let chunk_root = self.current_root(objectid::CHUNK_TREE)?.expect("every file system has one");
        let old_generation = self.superblock.generation;
        let mut sb = self.superblock;
        sb.generation = self.transid.into();
        sb.root = root.logical.0.into();
        sb.root_level = root.level;
        sb.chunk_root = chunk_root.logical.0.into();
        sb.chunk_root_level = chunk_root.level;
        sb.chunk_root_generation = chunk_root.generation.into();
        let used = sb.bytes_used.get().checked_add_signed(self.space.bytes_used_delta);
        sb.bytes_used =
            used.ok_or_else(|| Error::corrupt("SB-21", "bytes_used is less than what was freed"))?.into();
        if sb.uuid_tree_generation == old_generation {
            sb.uuid_tree_generation = sb.generation;
        }
        let slot = newest_backup(&sb, old_generation.get()).map_or(0, |i| (i + 1) % 4);
        sb.super_roots[slot] = self.backup_root(&sb)?;
        Ok(sb)
    }

    fn backup_root(&self, sb: &Superblock) -> Result<BackupRoot> {
        let mut backup = BackupRoot::zeroed();
        (backup.tree_root, backup.tree_root_gen, backup.tree_root_level) =
            (sb.root, sb.generation, sb.root_level);
        (backup.chunk_root, backup.chunk_root_gen) = (sb.chunk_root, sb.chunk_root_generation);
        backup.chunk_root_level = sb.chunk_root_level;
        let root = |tree| -> Result<_> {
            let root = self.current_root(tree)?;
            Ok(root.map_or((0.into(), 0.into(), 0), |r| (r.logical.0.into(), r.generation.into(), r.level)))
        };
        (backup.extent_root, backup.extent_root_gen, backup.extent_root_level) = root(objectid::EXTENT_TREE)?;
        (backup.fs_root, backup.fs_root_gen, backup.fs_root_level) = root(objectid::FS_TREE)?;
        (backup.dev_root, backup.dev_root_gen, backup.dev_root_level) = root(objectid::DEV_TREE)?;
        (backup.csum_root, backup.csum_root_gen, backup.csum_root_level) = root(objectid::CSUM_TREE)?;
        (backup.total_bytes, backup.bytes_used, backup.num_devices) =
            (sb.total_bytes, sb.bytes_used, sb.num_devices);
        Ok(backup)
    }

    /// Checks, seals and writes the blocks at these ascending addresses.
    pub(super) fn write_blocks(&mut self, addresses: &[u64]) -> Result<()> {
        let mut ctx = *self.volume.store.ctx();
        ctx.incompat = self.superblock.incompat_flags.get();
        let nodesize = u64::from(self.nodesize());
        addresses.iter().for_each(|at| self.written.insert(*at..at.saturating_add(nodesize)));
        let mut run: Vec<u8> = Vec::new();
        let mut run_start = 0;
        for &at in addresses {
            let block = Arc::make_mut(self.dirty.get_mut(&at).expect("only blocks in memory are written"));
            seal(block, ctx.csum);
            let (tree, is_leaf) = (block.header().owner.get(), block.is_leaf());
            block
                .check(&ctx)
                .map_err(|violation| Error::corrupt_block(tree, Logical(at), is_leaf, violation))?;
            let end = run_start + run.len() as u64;
            let chunk_start = self.volume.store.chunks().lookup(Logical(at)).is_some_and(|c| c.start.0 == at);
            if !run.is_empty() && (end != at || chunk_start || run.len() >= WRITE_RUN) {
                self.volume.store.write_copies(Logical(run_start), &run)?;
                run.clear();
            }
            if run.is_empty() {
                run_start = at;
            }
            run.extend_from_slice(self.dirty[&at].bytes());
        }
        if !run.is_empty() {
            self.volume.store.write_copies(Logical(run_start), &run)?;
        }
        debug_assert!(addresses.iter().all(|a| a % nodesize == 0));
        self.volume.store.wrote_blocks(addresses.iter().map(|&a| Logical(a)));
        Ok(())
    }

    fn grow_device(&self, sb: &Superblock) -> Result<()> {
        let device = self.volume.store.device();
        let have = device.len().map_err(Error::io("length of the image"))?;
        if have < sb.dev_item.total_bytes.get() {
            device.set_len(sb.dev_item.total_bytes.get()).map_err(Error::io("grow the image"))?;
        }
        Ok(())
    }

    fn write_superblock(&self, sb: &Superblock, copy: usize) -> Result<()> {
        let Some(at) = superblock_offsets(sb.dev_item.total_bytes.get()).nth(copy) else { return Ok(()) };
        let sealed = sb.sealed_for(at, self.volume.store.ctx().csum);
        let what = format!("write superblock copy {copy}");
        self.volume.store.device().write_at(sealed.as_bytes(), at).map_err(Error::io(what))
    }

    fn sync(&self) -> Result<()> {
        if !self.volume.sync {
            return Ok(());
        }
        self.volume.store.device().sync().map_err(Error::io("sync the image"))
    }
}

fn seal(block: &mut TreeBlock, csum: btrfsimg_ondisk::CsumType) {
    let header = block.header_mut();
    header.flags = (header.flags.get() | header_flags::WRITTEN).into();
    header.csum = [0; 32];
    let sum = csum.of_block(block.bytes());
    block.header_mut().csum = sum.0;
}

fn newest_backup(sb: &Superblock, generation: u64) -> Option<usize> {
    sb.super_roots.iter().position(|b| b.tree_root_gen.get() == generation && generation != 0)
}
