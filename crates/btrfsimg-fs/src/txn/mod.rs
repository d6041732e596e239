//! Transactions: copy-on-write B-trees, allocation, references, commit. Knows trees, extents and roots; no paths,
//! names or file types.
//!
//! Blocks that a transaction changes live in memory under new addresses; nothing that the committed superblock
//! reaches is overwritten before [`Transaction::commit`] has written the next one. Dropping a transaction leaves
//! the image as it was.

mod batch;
mod chunks;
mod commit;
mod cow;
mod csums;
mod drop_tree;
mod edit;
mod free_space;
mod quota;
mod refs;
mod reserve;
mod roots;
mod runs;
mod sharing;
mod space;
mod volume;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use btrfsimg_ondisk::{
    BackRef, BlockContext, Key, Logical, ParentExpectation, RootItem, Superblock, TreeBlock, Uuid, incompat,
    objectid,
};
use rustc_hash::FxHashMap;

pub use batch::ItemBatch;
pub use chunks::ChunkPolicy;
pub(crate) use chunks::device_key;
pub use drop_tree::TreeDrop;
pub use sharing::Sharing;
pub use space::SpaceKind;
pub(crate) use volume::derived_uuid;
pub use volume::{Geometry, Volume, VolumeOptions};

use crate::error::{Error, Result};
use crate::tree::{Blocks, TreeRoot, root_item};
use refs::{DelayedRefs, ExtentKind};
use space::Space;

/// A change of a file system that happens as a whole or not at all.
pub struct Transaction<'v> {
    volume: &'v mut Volume,
    transid: u64,
    /// As it will be committed; roots and counts are filled in at the end.
    superblock: Superblock,
    trees: BTreeMap<u64, OpenTree>,
    /// Blocks that are new in this transaction and in memory, by address.
    dirty: FxHashMap<u64, Arc<TreeBlock>>,
    /// Leaves among them in the order they came, oldest first: candidates to be written early.
    dirty_leaves: VecDeque<u64>,
    refs: DelayedRefs,
    space: Space,
    new_chunks: Vec<NewChunk>,
    /// Chunks that were given back and whose items are in the trees still.
    removed_chunks: Vec<crate::chunk_map::Chunk>,
    reserve: reserve::Reserve,
    pending_csums: csums::PendingCsums,
    /// Whether small blocks of the trees that accounting changes are joined with their neighbours.
    joins: bool,
    /// The first change that failed half way: what is in memory must not become the state of the image.
    failed: Option<Error>,
    /// Logical ranges that this transaction has written to.
    written: runs::Runs,
    now: btrfsimg_ondisk::Timespec,
    /// The superblock is being written, or was.
    begun: bool,
    undo: Undo,
}

/// A tree of the transaction: its root as it is now.
struct OpenTree {
    root: TreeRoot,
    /// Its ROOT_ITEM; the root and chunk trees have none.
    item: Option<(Key, RootItem)>,
    changed: bool,
    /// Blocks more than before.
    blocks_delta: i64,
}

/// A chunk allocated in this transaction whose items are not in the trees yet.
struct NewChunk {
    start: Logical,
    kind: SpaceKind,
}

impl<'v> Transaction<'v> {
    /// The id of this transaction: the generation of all that it writes.
    pub fn transid(&self) -> u64 {
        self.transid
    }

    /// The time that everything in this transaction happens at.
    pub fn now(&self) -> btrfsimg_ondisk::Timespec {
        self.now
    }

    /// A new UUID: at random, or where images are to be equal, from what it is for and the transaction: an id may have
    /// been another's before.
    pub(crate) fn new_uuid(&self, purpose: &str, id: u64) -> Uuid {
        match self.volume.reproducible {
            true => {
                let purpose = format!("{purpose} of transaction {}", self.transid);
                derived_uuid(Uuid::from_bytes(self.superblock.fsid), &purpose, id)
            }
            false => Uuid::new_v4(),
        }
    }

    /// Bytes of a tree block.
    pub fn nodesize(&self) -> u32 {
        self.superblock.nodesize.get()
    }

    /// Bytes of a sector.
    pub fn sectorsize(&self) -> u32 {
        self.superblock.sectorsize.get()
    }

    /// The superblock as it will be committed, but for roots and counts.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The same, to change label and feature bits.
    pub fn superblock_mut(&mut self) -> &mut Superblock {
        &mut self.superblock
    }

    /// Sets incompat feature bits with this commit.
    pub fn set_incompat(&mut self, bits: u64) {
        self.superblock.incompat_flags = (self.superblock.incompat_flags.get() | bits).into();
    }

    /// Whether holes need no file extent items.
    pub fn no_holes(&self) -> bool {
        self.superblock.has_incompat(incompat::NO_HOLES)
    }

    /// From now on, in this and later transactions of the volume, all work ends with `Interrupted` once `flag` is set, and
    /// a commit too until its superblock is being written.
    pub fn stop_on(&mut self, flag: Arc<AtomicBool>) {
        self.volume.store.stop_on(flag);
    }

    /// Allocates `len` bytes for data, in one piece.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn alloc_data(&mut self, len: u64) -> Result<Logical> {
        let sectorsize = u64::from(self.sectorsize());
        let at = self.alloc(SpaceKind::Data, len, sectorsize)?;
        self.remove_stale_csums().map(|()| at)
    }

    /// The same, but only in block groups that are there: `None` where none has `len` bytes in one piece.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn alloc_data_in_place(&mut self, len: u64) -> Result<Option<Logical>> {
        let (kind, sectorsize) = (self.kind_here(SpaceKind::Data), u64::from(self.sectorsize()));
        if !self.keeps_reserve(kind, len)? {
            return Ok(None);
        }
        let at = self.space.alloc(&self.volume.store, kind, len, sectorsize)?;
        self.remove_stale_csums().map(|()| at)
    }

    /// Where blocks and data are read from. Checksums of data written here are found in the tree after
    /// [`Transaction::flush_csums`].
    pub(crate) fn block_store(&self) -> &crate::block_store::BlockStore {
        &self.volume.store
    }

    /// Whether data are not written: [`VolumeOptions::dry_run`].
    pub fn is_dry_run(&self) -> bool {
        self.volume.dry_run
    }

    /// Writes data to every copy of an allocated range.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_data(&mut self, at: Logical, bytes: &[u8]) -> Result<()> {
        if self.volume.dry_run {
            return Ok(());
        }
        self.written.insert(at.0..at.0.saturating_add(bytes.len() as u64));
        self.volume.store.write_copies(at, bytes)
    }

    /// Notes a data extent that was allocated here, its checksums (none for nodatasum), and its first reference.
    ///
    /// # Errors
    /// As any change of a tree.
    pub fn create_data_extent(&mut self, at: Logical, len: u64, back: BackRef, csums: &[u8]) -> Result<()> {
        self.refs.create(at, len, ExtentKind::Data, back);
        self.add_csums(at, csums)?;
        self.bound_refs()
    }

    /// Gives back data space that was allocated here, and that no extent was made of.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn release_data(&mut self, at: Logical, len: u64) -> Result<()> {
        self.space.free(&self.volume.store, at, len)
    }

    /// Changes the count of a data extent's reference. At no references it is freed, with its checksums: where a
    /// reference is to take another one's place, it comes first.
    ///
    /// # Errors
    /// `Corrupt` when that leaves fewer than none, as far as known now; as any change of a tree.
    pub fn change_data_ref(&mut self, at: Logical, len: u64, back: BackRef, delta: i64) -> Result<()> {
        self.gather_data_ref(at, len, back, delta)?;
        if delta < 0 { self.with_reserve(Self::bound_refs) } else { self.bound_refs() }
    }

    /// The result of a change that may have been made in part, where it is an error.
    fn note_failure<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.failed.get_or_insert_with(|| error.again());
        }
        result
    }

    fn gather_data_ref(&mut self, at: Logical, len: u64, back: BackRef, delta: i64) -> Result<()> {
        if self.refs.add(at, len, ExtentKind::Data, back, delta) {
            self.remove_csums(at, len)?;
            self.space.free(&self.volume.store, at, len)?;
        }
        Ok(())
    }

    /// Whether data and metadata share block groups.
    pub(crate) fn is_mixed(&self) -> bool {
        self.superblock.has_incompat(incompat::MIXED_GROUPS)
    }

    pub(super) fn kind_here(&self, kind: SpaceKind) -> SpaceKind {
        if self.is_mixed() && kind != SpaceKind::System { SpaceKind::Mixed } else { kind }
    }

    fn alloc(&mut self, kind: SpaceKind, len: u64, align: u64) -> Result<Logical> {
        let kind = self.kind_here(kind);
        if !self.keeps_reserve(kind, len)? {
            return Err(Error::no_space("room for metadata: the last of it is kept for removing"));
        }
        loop {
            if let Some(at) = self.space.alloc(&self.volume.store, kind, len, align)? {
                return Ok(at);
            }
            self.alloc_chunk(kind, len)?;
        }
    }
}

impl Blocks for Transaction<'_> {
    fn block(&self, logical: Logical, expect: &ParentExpectation) -> Result<Arc<TreeBlock>> {
        match self.dirty.get(&logical.0) {
            Some(block) => {
                self.volume.store.check_stop()?;
                // On a hostile image a pointer may lead to a place that the image calls free, where another block is now.
                block.check_expected(expect).map_err(|violation| {
                    let tree = expect.tree.unwrap_or(0);
                    Error::corrupt_block(tree, logical, block.is_leaf(), violation)
                })?;
                Ok(block.clone())
            }
            None => self.volume.store.read_block(logical, expect),
        }
    }

    fn root(&self, tree: u64) -> Result<Option<TreeRoot>> {
        if let Some(open) = self.trees.get(&tree) {
            return Ok(Some(open.root));
        }
        match tree {
            objectid::ROOT_TREE | objectid::CHUNK_TREE => self.volume.store.root(tree),
            _ => Ok(root_item(self, tree)?.map(|(_, item)| TreeRoot::of_item(tree, &item))),
        }
    }

    fn ctx(&self) -> &BlockContext {
        self.volume.store.ctx()
    }
}

impl Transaction<'_> {
    /// Makes holes of what was written, in a file that has holes: it was free before, and nothing reaches it now. Where
    /// that cannot be, the bytes stay, as what was deleted does.
    fn give_back_written(&self) {
        let store = &self.volume.store;
        if !store.device().is_sparse() {
            return;
        }
        for range in self.written.iter() {
            let mut at = range.start;
            while let Some(chunk) = store.chunks().lookup(Logical(at)).filter(|_| at < range.end) {
                let end = range.end.min(chunk.end());
                for place in chunk.places(Logical(at)).into_iter().flatten() {
                    let _ = store.device().punch(place.physical, end - at);
                }
                at = end;
            }
        }
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.begun {
            return;
        }
        self.give_back_written();
        *self.volume.store.chunks_mut() = std::mem::take(&mut self.undo.chunks);
        self.volume.policy = self.undo.policy;
        // What was written behind the old end is not the file's. Block devices keep their length anyway, and where
        // the length cannot be set, the committed state is whole all the same.
        if let Some(length) = self.undo.length {
            let device = self.volume.store.device();
            if device.len().is_ok_and(|now| now > length) {
                let _ = device.set_len(length);
            }
        }
    }
}

/// What an aborted transaction puts back.
struct Undo {
    chunks: crate::chunk_map::ChunkMap,
    policy: ChunkPolicy,
    /// Bytes of the device, when they could be read.
    length: Option<u64>,
}
