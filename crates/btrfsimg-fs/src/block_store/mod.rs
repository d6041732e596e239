//! Tree blocks and data by logical address, from whichever copy is sound.

mod damaged;
mod leaves;
mod page;
mod superblock;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use btrfsimg_ondisk::{
    BlockContext, Key, Logical, ParentExpectation, Physical, Superblock, TreeBlock, objectid, sys_chunks,
};
use rustc_hash::FxHashMap;

pub use leaves::Leaf;
pub use page::Page;
pub use superblock::backup_roots;

use crate::chunk_map::{Chunk, ChunkMap, Place};
use crate::device::Device;
use crate::error::{Error, Result};
use page::Salvage;
use superblock::{check_devices, read_superblock};

/// The blocks of an open file system.
pub struct BlockStore {
    device: Arc<dyn Device>,
    chunks: ChunkMap,
    superblock: Superblock,
    ctx: BlockContext,
    cache: Mutex<Cache>,
    blocks_read: AtomicU64,
    blocks_written: AtomicU64,
    /// Set from outside to stop.
    stop: Option<Arc<AtomicBool>>,
    /// Of what may be broken: reading goes on behind faults.
    salvage: Option<Salvage>,
}

/// Recently read blocks, in two generations: when the young one is full it becomes the old one.
#[derive(Default)]
struct Cache {
    young: FxHashMap<u64, Arc<TreeBlock>>,
    old: FxHashMap<u64, Arc<TreeBlock>>,
}

/// Bytes of blocks in one cache generation.
const CACHE_GENERATION: usize = 8 << 20;

impl Cache {
    fn get(&mut self, at: u64, capacity: usize) -> Option<Arc<TreeBlock>> {
        if let Some(block) = self.young.get(&at) {
            return Some(block.clone());
        }
        let block = self.old.remove(&at)?;
        self.insert(at, block.clone(), capacity);
        Some(block)
    }

    fn insert(&mut self, at: u64, block: Arc<TreeBlock>, capacity: usize) {
        if self.young.len() >= capacity {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(at, block);
    }

    fn remove(&mut self, at: u64) {
        self.young.remove(&at);
        self.old.remove(&at);
    }
}

impl BlockStore {
    /// Opens the file system on `device`: superblock, system chunks, chunk tree.
    ///
    /// # Errors
    /// `NotBtrfs`, `Corrupt`, `Unsupported` (features and profiles by name), `Io`.
    pub fn open(device: Arc<dyn Device>) -> Result<BlockStore> {
        let superblock = read_superblock(&*device)?;
        check_devices(&superblock)?;
        let mut store = BlockStore::blank(device, superblock)?;
        store.load_system_chunks(&mut Err)?;
        store.load_chunk_tree(chunk_root(&superblock), &mut Err)?;
        Ok(store)
    }

    fn load_system_chunks(&mut self, fault: &mut dyn FnMut(Error) -> Result<()>) -> Result<()> {
        let sys: Vec<_> = sys_chunks(&self.superblock).collect();
        for entry in sys {
            let inserted = match entry {
                Ok(e) => self.chunks.insert(Chunk::new(Logical(e.key.offset), e.chunk, e.stripes)),
                Err(e) => Err(Error::corrupt("SB-15", format!("sys_chunk_array: {e}"))),
            };
            inserted.or_else(&mut *fault)?;
        }
        Ok(())
    }

    /// A store over `device` that knows no chunks yet.
    ///
    /// # Errors
    /// `Corrupt` when the superblock names an unknown checksum.
    pub fn blank(device: Arc<dyn Device>, superblock: Superblock) -> Result<BlockStore> {
        let csum = superblock.csum_kind().ok_or_else(|| {
            Error::Unsupported(format!("checksum type {} of the superblock", superblock.csum_type))
        })?;
        let ctx = BlockContext {
            nodesize: superblock.nodesize.get() as usize,
            sectorsize: u64::from(superblock.sectorsize.get()),
            csum,
            fsid: superblock.metadata_fsid(),
            generation: superblock.generation.get(),
            incompat: superblock.incompat_flags.get(),
        };
        Ok(BlockStore {
            device,
            chunks: ChunkMap::default(),
            superblock,
            ctx,
            cache: Mutex::default(),
            blocks_read: AtomicU64::new(0),
            blocks_written: AtomicU64::new(0),
            stop: None,
            salvage: None,
        })
    }

    /// Adds the chunks of the chunk tree; goes on behind what `fault` takes.
    fn load_chunk_tree(&mut self, root: Root, fault: &mut dyn FnMut(Error) -> Result<()>) -> Result<()> {
        let mut found = Vec::new();
        self.leaves(objectid::CHUNK_TREE, &root, &Key::MIN, &Key::MAX, &mut |leaf| {
            let (page, slots) = match leaf {
                Ok(leaf) => leaf,
                Err(e) => return fault(e).map(|()| true),
            };
            // What makes all of it doubtful is told of with the other blocks.
            if let Some(e) = page.fault().filter(|_| page.doubt().is_none()) {
                fault(e.again())?;
            }
            let items = slots.filter_map(|slot| page.item(slot, objectid::CHUNK_TREE, self).ok());
            found.extend(items.filter_map(|item| Chunk::parse_item(&item)));
            Ok(true)
        })?;
        for chunk in found {
            self.chunks.remove(chunk.start);
            self.chunks.insert(chunk).or_else(&mut *fault)?;
        }
        Ok(())
    }

    /// From now on, whatever reads or writes blocks or data ends with `Interrupted` once `flag` is set: no work on a file
    /// system goes on for long without. Superblocks are not written here, so that a commit that has begun with its one
    /// is made to its end.
    pub fn stop_on(&mut self, flag: Arc<AtomicBool>) {
        self.stop = Some(flag);
    }

    /// Looks whether to stop.
    ///
    /// # Errors
    /// `Interrupted`.
    pub fn check_stop(&self) -> Result<()> {
        match &self.stop {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }

    /// The block at `logical`, from the first copy that passes every check.
    ///
    /// # Errors
    /// `Corrupt` with the first copy's fault when no copy is sound, `Io` when none can be read; `Interrupted`.
    pub fn read_block(&self, logical: Logical, expect: &ParentExpectation) -> Result<Arc<TreeBlock>> {
        self.check_stop()?;
        let capacity = CACHE_GENERATION / self.ctx.nodesize;
        let cached = self.cache().get(logical.0, capacity);
        if let Some(block) = cached.filter(|b| b.check_expected(expect).is_ok()) {
            return Ok(block);
        }
        self.blocks_read.fetch_add(1, Ordering::Relaxed);
        let places: Vec<Place> = self.chunks.map(logical, self.ctx.nodesize as u64)?.collect();
        let mut first_error = None;
        for place in places {
            match self.read_copy(logical, place.physical, expect) {
                Ok(block) => {
                    let block = Arc::new(block);
                    self.cache().insert(logical.0, block.clone(), capacity);
                    return Ok(block);
                }
                Err(error) => _ = first_error.get_or_insert(error),
            }
        }
        Err(first_error
            .unwrap_or_else(|| Error::corrupt("CH-02", format!("chunk of {logical} has no stripes"))))
    }

    fn read_copy(&self, logical: Logical, at: Physical, expect: &ParentExpectation) -> Result<TreeBlock> {
        let mut bytes = vec![0; self.ctx.nodesize].into_boxed_slice();
        self.device
            .read_at(&mut bytes, at)
            .map_err(Error::io(format!("read block {logical} at byte {at}")))?;
        TreeBlock::parse(bytes, logical, &self.ctx, expect).map_err(|violation| {
            Error::corrupt_block(expect.tree.unwrap_or(0), logical, expect.level == Some(0), violation)
        })
    }

    /// Fills `buf` from copy number `copy` of the data at `logical`. Says whether there is such a copy.
    ///
    /// # Errors
    /// `Io`; BLK-01 when no chunk holds the range; `Interrupted`.
    pub fn read_data(&self, logical: Logical, buf: &mut [u8], copy: usize) -> Result<bool> {
        self.check_stop()?;
        let Some(place) = self.chunks.map(logical, buf.len() as u64)?.nth(copy) else { return Ok(false) };
        self.device
            .read_at(buf, place.physical)
            .map_err(Error::io(format!("read data {logical} at byte {}", place.physical)))?;
        Ok(true)
    }

    /// Writes `bytes` to every copy of `logical`.
    ///
    /// # Errors
    /// `Io`, `Interrupted`.
    pub fn write_copies(&self, logical: Logical, bytes: &[u8]) -> Result<()> {
        self.check_stop()?;
        for place in self.chunks.map(logical, bytes.len() as u64)? {
            self.device
                .write_at(bytes, place.physical)
                .map_err(Error::io(format!("write {logical} at byte {}", place.physical)))?;
        }
        Ok(())
    }

    /// Forgets blocks that have changed on the device, and counts them as written.
    pub fn wrote_blocks(&self, blocks: impl Iterator<Item = Logical>) {
        let mut cache = self.cache();
        for at in blocks {
            cache.remove(at.0);
            self.blocks_written.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The superblock as last committed.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// What block checks need.
    pub fn ctx(&self) -> &BlockContext {
        &self.ctx
    }

    /// The chunks.
    pub fn chunks(&self) -> &ChunkMap {
        &self.chunks
    }

    /// The chunks, to add to.
    pub fn chunks_mut(&mut self) -> &mut ChunkMap {
        &mut self.chunks
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Takes `superblock` as the one that is committed now.
    pub fn set_superblock(&mut self, superblock: Superblock) {
        self.ctx.generation = superblock.generation.get();
        self.ctx.incompat = superblock.incompat_flags.get();
        self.superblock = superblock;
    }

    /// Tree blocks read from and written to the device so far.
    pub fn counters(&self) -> (u64, u64) {
        (self.blocks_read.load(Ordering::Relaxed), self.blocks_written.load(Ordering::Relaxed))
    }
}

/// Where the root of a tree is, and what it must be.
pub type Root = (Logical, ParentExpectation);

/// The root of `tree` as a superblock has it.
pub fn root_at(tree: u64, at: u64, generation: u64, level: u8) -> Root {
    let expect = ParentExpectation {
        level: Some(level),
        generation: Some(generation),
        first_key: None,
        tree: Some(tree),
    };
    (Logical(at), expect)
}

fn chunk_root(sb: &Superblock) -> Root {
    let generation = sb.chunk_root_generation.get();
    root_at(objectid::CHUNK_TREE, sb.chunk_root.get(), generation, sb.chunk_root_level)
}

/// Keys ascend over a whole tree. That a block lies behind all that was visited (`last` is its greatest key) is also
/// what ends a walk: of a tree whose nodes share children, each block is visited once.
///
/// # Errors
/// NODE-04.
pub fn check_order(last: Option<Key>, key: Key, block: Logical) -> Result<()> {
    match last {
        Some(last) if key <= last => {
            let reason = format!("block {block} starts at key {key}, which is not behind {last}");
            Err(Error::corrupt("NODE-04", reason))
        }
        _ => Ok(()),
    }
}

/// Where the child at `slot` of a node is, and what its block must be.
pub fn child_expectation(node: &TreeBlock, slot: usize, tree: u64) -> (Logical, ParentExpectation) {
    let ptr = node.key_ptr(slot);
    let expect = ParentExpectation {
        level: Some(node.level() - 1),
        generation: Some(ptr.generation),
        first_key: Some(ptr.key),
        tree: Some(tree),
    };
    (ptr.block, expect)
}
