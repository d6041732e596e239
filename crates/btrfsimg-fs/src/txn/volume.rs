//! A file system that is open for writing.

use std::sync::Arc;

use btrfsimg_ondisk::{
    COMPAT_RO_KNOWN, CsumType, DevId, DevItem, Key, KeyType, SUPERBLOCK_OFFSETS, Superblock, Timespec, Uuid,
    block_group_flags as bg, compat_ro, compat_ro_names, incompat, incompat_names, objectid, sys_chunks,
    uuid_from_random,
};

use super::chunks::ChunkPolicy;
use super::{Transaction, Undo};
use crate::block_store::BlockStore;
use crate::chunk_map::Chunk;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tree::{Blocks, Cursor, lookup, required_root};

/// Incompat features that are kept exact when writing.
const WRITABLE: u64 = incompat::MIXED_BACKREF
    | incompat::DEFAULT_SUBVOL
    | incompat::MIXED_GROUPS
    | incompat::COMPRESS_LZO
    | incompat::COMPRESS_ZSTD
    | incompat::BIG_METADATA
    | incompat::EXTENDED_IREF
    | incompat::SKINNY_METADATA
    | incompat::NO_HOLES
    | incompat::METADATA_UUID;
/// Bytes of changed blocks kept in memory before the oldest are written to their place.
const DIRTY_BUDGET: usize = 32 << 20;
/// Superblock flags of a normal state: written, or with a noted error.
const NORMAL_FLAGS: u64 = 1 | 4;

/// How a file system is opened for writing.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeOptions {
    /// Let the image grow when it is full.
    pub grow: bool,
    /// Do not wait for durability: for fixtures that are thrown away.
    pub no_sync: bool,
    /// Only to see what a change needs: data are not written. For a device whose writes go nowhere.
    pub dry_run: bool,
    /// Draw UUIDs from what they are for, not at random: for equal images.
    pub reproducible: bool,
    /// With `dry_run`: as if the device had this many bytes.
    pub assumed_size: Option<u64>,
    /// Bytes of changed blocks kept in memory before the oldest are written to their place; 32 MiB when not given.
    pub dirty_budget: Option<usize>,
}

/// A file system that is open for writing. One transaction at a time.
pub struct Volume {
    pub(super) store: BlockStore,
    pub(super) chunk_tree_uuid: [u8; 16],
    pub(super) policy: ChunkPolicy,
    pub(super) sync: bool,
    pub(super) dry_run: bool,
    /// Bytes of changed blocks kept in memory.
    pub(super) dirty_budget: usize,
    pub(super) reproducible: bool,
    pub(super) poisoned: bool,
}

/// What a new file system is like.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Checksum of blocks and data.
    pub csum: CsumType,
    /// Incompatible features.
    pub incompat: u64,
    /// Read-only compatible features.
    pub compat_ro: u64,
    /// The file system's UUID.
    pub fsid: Uuid,
    /// The device's UUID.
    pub device_uuid: Uuid,
    /// The UUID in every block and device extent.
    pub chunk_tree_uuid: Uuid,
}

impl Volume {
    /// Opens the file system on `device` for writing.
    ///
    /// # Errors
    /// As [`BlockStore::open`], and `Unsupported` for what is not kept exact when writing: features by name, a log
    /// to replay, an unfinished balance. `Corrupt` for an image that is shorter than its file system.
    pub fn open(device: Arc<dyn Device>, options: VolumeOptions) -> Result<Volume> {
        let store = BlockStore::open(device)?;
        check_writable(&store)?;
        if options.grow {
            check_growable(&store)?;
        }
        let root = required_root(&store, objectid::CHUNK_TREE)?;
        let chunk_tree_uuid = store.block(root.logical, &root.expectation())?.header().chunk_tree_uuid;
        let total_bytes = options.assumed_size.unwrap_or(store.superblock().dev_item.total_bytes.get());
        let policy = ChunkPolicy::Existing { total_bytes, grow: options.grow };
        Ok(Volume {
            store,
            chunk_tree_uuid,
            policy,
            sync: !options.no_sync,
            dry_run: options.dry_run,
            dirty_budget: options.dirty_budget.unwrap_or(DIRTY_BUDGET),
            reproducible: options.reproducible,
            poisoned: false,
        })
    }

    /// An empty device that is to become a file system: no trees, no chunks, nothing written.
    ///
    /// # Errors
    /// None in practice: the checksum is known.
    pub fn blank(device: Arc<dyn Device>, geometry: &Geometry, options: VolumeOptions) -> Result<Volume> {
        let store = BlockStore::blank(device, blank_superblock(geometry))?;
        Ok(Volume {
            store,
            chunk_tree_uuid: geometry.chunk_tree_uuid.into_bytes(),
            policy: ChunkPolicy::Growing { least: 0 },
            sync: !options.no_sync,
            dry_run: options.dry_run,
            dirty_budget: options.dirty_budget.unwrap_or(DIRTY_BUDGET),
            reproducible: options.reproducible,
            poisoned: false,
        })
    }

    /// Begins a transaction in which all happens at `now`.
    ///
    /// # Errors
    /// `Poisoned` after an error while committing; SB-19 where the generation cannot grow.
    pub fn begin(&mut self, now: Timespec) -> Result<Transaction<'_>> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        let superblock = *self.store.superblock();
        let transid = superblock.generation.get().checked_add(1).ok_or_else(|| {
            Error::corrupt("SB-19", format!("generation {} has no next one", superblock.generation))
        })?;
        let length = self.store.device().len().ok();
        let undo = Undo { chunks: self.store.chunks().clone(), policy: self.policy, length };
        Ok(Transaction {
            transid,
            superblock,
            volume: self,
            trees: Default::default(),
            dirty: Default::default(),
            dirty_leaves: Default::default(),
            refs: Default::default(),
            space: Default::default(),
            new_chunks: Vec::new(),
            removed_chunks: Vec::new(),
            reserve: Default::default(),
            pending_csums: Default::default(),
            joins: true,
            failed: None,
            written: Default::default(),
            now,
            begun: false,
            undo,
        })
    }

    /// The committed state.
    pub fn store(&self) -> &BlockStore {
        &self.store
    }
}

/// A UUID drawn from the file system's, what it is for, and which one of those it is.
pub(crate) fn derived_uuid(fsid: Uuid, purpose: &str, id: u64) -> Uuid {
    let seed = [fsid.as_bytes(), purpose.as_bytes(), &id.to_le_bytes()].concat();
    let digest = CsumType::Sha256.of(&seed).0;
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid_from_random(bytes)
}

fn check_writable(store: &BlockStore) -> Result<()> {
    let sb = store.superblock();
    if sb.bytenr.get() != SUPERBLOCK_OFFSETS[0] {
        let reason = format!("the primary superblock is damaged (the copy at byte {} is sound)", sb.bytenr);
        return Err(Error::corrupt("SB-03", format!("{reason}; mend it with 'btrfs rescue super-recover'")));
    }
    let unsupported = |what: String| Err(Error::Unsupported(format!("writing to an image with {what}")));
    let unknown = sb.incompat_flags.get() & !WRITABLE;
    if unknown != 0 {
        return unsupported(format!("incompatible feature {}", incompat_names(unknown).join(", ")));
    }
    let unknown = sb.compat_ro_flags.get() & !COMPAT_RO_KNOWN;
    if unknown != 0 {
        return unsupported(format!("read-only compatible feature {}", compat_ro_names(unknown).join(", ")));
    }
    if sb.log_root.get() != 0 {
        return unsupported(
            "a log to replay (mount it once, or drop the log with 'btrfs rescue zero-log')".to_owned(),
        );
    }
    if sb.flags.get() & !NORMAL_FLAGS != 0 {
        return unsupported(format!(
            "superblock flags 0x{:x} (seed, metadata dump, or unfinished btrfstune)",
            sb.flags
        ));
    }
    let balance = Key::new(objectid::BALANCE, KeyType::TEMPORARY_ITEM, 0);
    if lookup(store, objectid::ROOT_TREE, &balance)?.is_some() {
        return unsupported("an unfinished balance (resume or cancel it on a mount)".to_owned());
    }
    let relocation = Key::new(objectid::TREE_RELOC, KeyType::ROOT_ITEM, 0);
    let next = Cursor::at_or_after(store, objectid::ROOT_TREE, &relocation)?.map(|c| c.key());
    if next.is_some_and(|k| (k.objectid, k.key_type) == (relocation.objectid, relocation.key_type)) {
        return unsupported("an unfinished relocation (finish it on a mount)".to_owned());
    }
    let have = store.device().len().map_err(Error::io("length of the image"))?;
    if have < sb.dev_item.total_bytes.get() {
        let reason = format!(
            "the image is truncated: device size {} is beyond its {have} bytes",
            sb.dev_item.total_bytes
        );
        return Err(Error::corrupt("DEV-06", reason));
    }
    // Blocks of the chunk tree may go into any system chunk, and are found through those of the superblock alone.
    let listed: Vec<u64> = sys_chunks(sb).map_while(Result::ok).map(|chunk| chunk.key.offset).collect();
    let is_missing = |chunk: &&Chunk| chunk.flags & bg::SYSTEM != 0 && !listed.contains(&chunk.start.0);
    if let Some(chunk) = store.chunks().iter().find(is_missing) {
        let reason = format!("system chunk {} is not in the superblock's array", chunk.start);
        return Err(Error::corrupt("SB-15", reason));
    }
    // Or else what is written may be somebody else's: behind the file system, or in another chunk.
    let device = sb.dev_item;
    store.chunks().device_extents(DevId(device.devid.get()), device.total_bytes.get()).map(drop)
}

/// Refuses to grow over what is not the file system's: whatever follows it in its file.
fn check_growable(store: &BlockStore) -> Result<()> {
    let have = store.device().len().map_err(Error::io("length of the image"))?;
    let used = store.superblock().dev_item.total_bytes.get();
    if have > used {
        let reason = format!("{} bytes follow the file system's {used} in its file", have - used);
        return Err(Error::Invalid(format!(
            "cannot grow: {reason}; they would be overwritten (truncate the file first)"
        )));
    }
    Ok(())
}

fn blank_superblock(g: &Geometry) -> Superblock {
    let mut sb = Superblock::zeroed();
    sb.magic = Superblock::MAGIC;
    sb.flags = 1.into();
    sb.fsid = g.fsid.into_bytes();
    sb.root_dir_objectid = objectid::ROOT_TREE_DIR.into();
    sb.num_devices = 1.into();
    sb.sectorsize = g.sectorsize.into();
    sb.nodesize = g.nodesize.into();
    sb.leafsize = g.nodesize.into();
    sb.stripesize = g.sectorsize.into();
    sb.csum_type = g.csum.code().into();
    sb.incompat_flags = g.incompat.into();
    sb.compat_ro_flags = g.compat_ro.into();
    // Without a free space tree: a cache of version 1 may be made, and there is none that is valid.
    let has_tree = g.compat_ro & compat_ro::FREE_SPACE_TREE != 0;
    sb.cache_generation = if has_tree { 0 } else { u64::MAX }.into();
    sb.dev_item = DevItem {
        devid: 1.into(),
        io_align: g.sectorsize.into(),
        io_width: g.sectorsize.into(),
        sector_size: g.sectorsize.into(),
        uuid: g.device_uuid.into_bytes(),
        fsid: g.fsid.into_bytes(),
        ..DevItem::zeroed()
    };
    sb
}
