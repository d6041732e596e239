//! Tree blocks and data by logical address, from whichever copy is sound.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use btrfsimg_ondisk::{
    BackupRoot, BlockContext, FramedBlock, Key, Logical, ParentExpectation, Physical, SUPERBLOCK_LEN,
    SUPERBLOCK_OFFSETS, Superblock, TreeBlock, block_group_flags as bg, check_superblock, incompat,
    incompat_names, objectid, sys_chunks,
};
use rustc_hash::FxHashMap;
use zerocopy::{FromBytes, IntoBytes};

use crate::chunk_map::{Chunk, ChunkMap, Place};
use crate::device::Device;
use crate::error::{Error, Result};

/// Incompat features that a reader here understands. `verify::supers` has an equal list, and on purpose its own.
const READABLE: u64 = incompat::MIXED_BACKREF
    | incompat::DEFAULT_SUBVOL
    | incompat::MIXED_GROUPS
    | incompat::COMPRESS_LZO
    | incompat::COMPRESS_ZSTD
    | incompat::BIG_METADATA
    | incompat::EXTENDED_IREF
    | incompat::RAID56
    | incompat::SKINNY_METADATA
    | incompat::NO_HOLES
    | incompat::METADATA_UUID
    | incompat::RAID1C34
    | incompat::SIMPLE_QUOTA;

/// The blocks of an open file system.
pub struct BlockStore {
    device: Arc<dyn Device>,
    chunks: ChunkMap,
    superblock: Superblock,
    ctx: BlockContext,
    cache: Mutex<Cache>,
    blocks_read: AtomicU64,
    blocks_written: AtomicU64,
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

    /// Opens what may be broken: faults go to `fault`, and what cannot be read is left out. Where the chunk tree or the
    /// root tree cannot be read from its root, the newest backup root that can be takes its place. Of several devices
    /// only the given one is read: what it holds whole is there.
    ///
    /// # Errors
    /// As [`BlockStore::open`], where no copy of the superblock can be worked by, or no root tree can be read.
    pub fn open_damaged(device: Arc<dyn Device>, fault: &mut dyn FnMut(Error)) -> Result<BlockStore> {
        let superblock = read_damaged_superblock(&*device, fault)?;
        let mut store = BlockStore::blank(device, superblock)?;
        let mut tolerate = |e| {
            fault(e);
            Ok(())
        };
        check_devices(&superblock).or_else(&mut tolerate)?;
        store.load_system_chunks(&mut tolerate)?;
        store.leave_out_other_devices();
        let backups = backup_roots(&superblock);
        let roots = backups.iter().map(|b| {
            let (at, generation) = (b.chunk_root.get(), b.chunk_root_gen.get());
            root_at(objectid::CHUNK_TREE, at, generation, b.chunk_root_level)
        });
        for (at, expect) in [chunk_root(&superblock)].into_iter().chain(roots) {
            match store.read_block(at, &expect) {
                Ok(_) => {
                    store.load_chunk_tree((at, expect), &mut tolerate)?;
                    break;
                }
                Err(e) => tolerate(e)?,
            }
        }
        store.leave_out_other_devices();
        store.choose_tree_root(&backups, fault)?;
        Ok(store)
    }

    /// Makes mirrored chunks, of which each stripe holds all, chunks of the stripes on this device.
    fn leave_out_other_devices(&mut self) {
        const MIRRORED: u64 = bg::RAID1 | bg::RAID1C3 | bg::RAID1C4;
        let own = self.superblock.dev_item.devid;
        let shared = |c: &&Chunk| c.stripes.iter().any(|s| s.devid != own);
        let mut chunks: Vec<Chunk> = self.chunks.iter().filter(shared).cloned().collect();
        for chunk in &mut chunks {
            chunk.stripes.retain(|s| s.devid == own);
            chunk.flags &= !MIRRORED;
            // It takes the place of the one that was there.
            let _ = self.chunks.insert(chunk.clone());
        }
    }

    /// Takes the newest root of the root tree that can be read as the one of the superblock: its own also where some
    /// items in it are bad, and where no other can be read also one of another generation.
    fn choose_tree_root(&mut self, backups: &[BackupRoot], fault: &mut dyn FnMut(Error)) -> Result<()> {
        let sb = &self.superblock;
        let (at, expect) = root_at(objectid::ROOT_TREE, sb.root.get(), sb.generation.get(), sb.root_level);
        let Err(first) = self.read_block(at, &expect) else { return Ok(()) };
        if self.framed(at, &expect).is_some() {
            fault(first);
            return Ok(());
        }
        for b in backups {
            let (root, generation) = (b.tree_root.get(), b.tree_root_gen.get());
            let (at, expect) = root_at(objectid::ROOT_TREE, root, generation, b.tree_root_level);
            if self.read_block(at, &expect).is_ok() {
                fault(first);
                self.superblock.root = b.tree_root;
                self.superblock.root_level = b.tree_root_level;
                self.superblock.generation = b.tree_root_gen;
                return Ok(());
            }
        }
        let any_generation = ParentExpectation { generation: None, ..expect };
        if self.framed(at, &any_generation).is_some() {
            fault(first);
            return Ok(());
        }
        Err(first)
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
        })
    }

    /// Adds the chunks of the chunk tree; goes on behind what `fault` takes.
    fn load_chunk_tree(
        &mut self,
        root: (Logical, ParentExpectation),
        fault: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        let (mut found, mut last) = (Vec::new(), None);
        let mut todo = vec![root];
        while let Some((at, expect)) = todo.pop() {
            let in_order = expect.first_key.map_or(Ok(()), |key| check_order(last, key, at));
            let block = match in_order.and_then(|()| self.read_block(at, &expect)) {
                Ok(block) => block,
                Err(e) => {
                    last = last.max(expect.first_key);
                    fault(e)?;
                    continue;
                }
            };
            if block.is_leaf() {
                found.extend(block.items().filter_map(|i| Chunk::parse_item(&i)));
                last = block.nritems().checked_sub(1).map(|slot| block.key(slot)).or(last);
            } else {
                // The first one on top.
                let slots = (0..block.nritems()).rev();
                todo.extend(slots.map(|slot| child_expectation(&block, slot, objectid::CHUNK_TREE)));
            }
        }
        for chunk in found {
            self.chunks.remove(chunk.start);
            self.chunks.insert(chunk).or_else(&mut *fault)?;
        }
        Ok(())
    }

    /// The block at `logical`, from the first copy that passes every check.
    ///
    /// # Errors
    /// `Corrupt` with the first copy's fault when no copy is sound, `Io` when none can be read.
    pub fn read_block(&self, logical: Logical, expect: &ParentExpectation) -> Result<Arc<TreeBlock>> {
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

    /// The first copy of a block with a sound frame, whatever its items are.
    pub fn framed(&self, logical: Logical, expect: &ParentExpectation) -> Option<FramedBlock> {
        for copy in 0.. {
            let mut bytes = vec![0; self.ctx.nodesize].into_boxed_slice();
            match self.read_data(logical, &mut bytes, copy) {
                Ok(true) => {}
                Ok(false) => break,
                // A copy that cannot be read may be the last one: a next one says so.
                Err(Error::Io { .. }) => continue,
                Err(_) => break,
            }
            if let Ok(block) = FramedBlock::parse(bytes, logical, &self.ctx, expect) {
                return Some(block);
            }
        }
        None
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
    /// `Io`; BLK-01 when no chunk holds the range.
    pub fn read_data(&self, logical: Logical, buf: &mut [u8], copy: usize) -> Result<bool> {
        let Some(place) = self.chunks.map(logical, buf.len() as u64)?.nth(copy) else { return Ok(false) };
        self.device
            .read_at(buf, place.physical)
            .map_err(Error::io(format!("read data {logical} at byte {}", place.physical)))?;
        Ok(true)
    }

    /// Writes `bytes` to every copy of `logical`.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_copies(&self, logical: Logical, bytes: &[u8]) -> Result<()> {
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
fn root_at(tree: u64, at: u64, generation: u64, level: u8) -> (Logical, ParentExpectation) {
    let expect = ParentExpectation {
        level: Some(level),
        generation: Some(generation),
        first_key: None,
        tree: Some(tree),
    };
    (Logical(at), expect)
}

fn chunk_root(sb: &Superblock) -> (Logical, ParentExpectation) {
    let generation = sb.chunk_root_generation.get();
    root_at(objectid::CHUNK_TREE, sb.chunk_root.get(), generation, sb.chunk_root_level)
}

/// The backup roots of a superblock that were written, newest first (`format/01 §1.8`).
pub fn backup_roots(sb: &Superblock) -> Vec<BackupRoot> {
    let mut backups: Vec<_> = sb.super_roots.iter().copied().filter(|b| b.tree_root.get() != 0).collect();
    backups.sort_by_key(|b| std::cmp::Reverse(b.tree_root_gen.get()));
    backups
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

/// The superblock, checked; refuses what a reader here does not understand. A reader takes the newest sound copy
/// where the primary one is damaged, and says so through its `bytenr`.
fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let primary = read_superblock_copy(device, Physical(SUPERBLOCK_OFFSETS[0]));
    let Err(error) = primary else { return primary };
    if matches!(error, Error::Unsupported(_) | Error::Io { .. }) {
        return Err(error);
    }
    let copies =
        SUPERBLOCK_OFFSETS[1..].iter().filter_map(|&at| read_superblock_copy(device, Physical(at)).ok());
    copies.max_by_key(|sb| sb.generation.get()).ok_or(error)
}

/// The same; where no copy is sound, the first of those that say what it takes to read the rest.
fn read_damaged_superblock(device: &dyn Device, fault: &mut dyn FnMut(Error)) -> Result<Superblock> {
    let error = match read_superblock(device) {
        Err(error @ Error::Corrupt(_)) => error,
        sound => return sound,
    };
    let is_size = |n: u32| n.is_power_of_two() && (4096..=65536).contains(&n);
    let usable = |sb: &Superblock| {
        sb.csum_kind().is_some()
            && is_size(sb.sectorsize.get())
            && is_size(sb.nodesize.get())
            && check_features(sb).is_ok()
    };
    let copies = SUPERBLOCK_OFFSETS.iter().filter_map(|&at| superblock_bytes(device, Physical(at)).ok());
    let Some(superblock) = copies.into_iter().find(usable) else { return Err(error) };
    fault(error);
    Ok(superblock)
}

/// A copy of the superblock as it is: only the magic is right.
fn superblock_bytes(device: &dyn Device, at: Physical) -> Result<Superblock> {
    let mut bytes = [0u8; SUPERBLOCK_LEN];
    match device.read_at(&mut bytes, at) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            return Err(Error::NotBtrfs("shorter than a superblock at 64 KiB".to_owned()));
        }
        Err(e) => return Err(Error::io(format!("read the superblock at byte {at}"))(e)),
    }
    let sb = Superblock::read_from_bytes(&bytes).map_err(|_| Error::NotBtrfs("no superblock".to_owned()))?;
    if sb.magic != Superblock::MAGIC {
        let hint = "in a partition? --offset says where it starts";
        return Err(Error::NotBtrfs(format!("no btrfs magic at 64 KiB ({hint})")));
    }
    Ok(sb)
}

fn read_superblock_copy(device: &dyn Device, at: Physical) -> Result<Superblock> {
    let sb = superblock_bytes(device, at)?;
    let csum = sb
        .csum_kind()
        .ok_or_else(|| Error::Unsupported(format!("checksum type {} of the superblock", sb.csum_type)))?;
    if !csum.verify_block(sb.as_bytes()) {
        return Err(Error::corrupt("SB-03", "superblock checksum mismatch"));
    }
    check_features(&sb)?;
    // Before anything is divided by a sector or allocated by a node.
    let mut first = None;
    check_superblock(&sb, at, &mut |violation| {
        first.get_or_insert(violation);
    });
    match first {
        None => Ok(sb),
        Some(v) => Err(Error::corrupt(v.rule.0, format!("superblock: {}", v.reason))),
    }
}

fn check_features(sb: &Superblock) -> Result<()> {
    let unknown = sb.incompat_flags.get() & !READABLE;
    if unknown != 0 {
        return Err(Error::Unsupported(format!(
            "incompatible feature {}",
            incompat_names(unknown).join(", ")
        )));
    }
    Ok(())
}

fn check_devices(sb: &Superblock) -> Result<()> {
    if sb.num_devices.get() > 1 {
        return Err(Error::Unsupported(format!("a file system of {} devices", sb.num_devices)));
    }
    Ok(())
}
