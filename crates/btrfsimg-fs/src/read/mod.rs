//! Reading: what a file system holds, with no way to change it.
//!
//! A [`Filesystem`] is a view of [`Items`](crate::lookup::Items), so everything in [`lookup`](mod@crate::lookup)
//! works on it. It reads on behind faults: of a damaged leaf it gives the good items, and an error in the place
//! of each bad one.
//!
//! **Architecture invariant:** nothing here can reach a writer.

mod file;
mod info;
mod salvage;
mod segments;
mod stream;
mod view;

use std::sync::{Arc, Mutex, PoisonError};

use btrfsimg_ondisk::{Superblock, objectid};
use rustc_hash::FxHashMap;

use crate::block_store::BlockStore;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::tree::TreeRoot;

pub use crate::lookup::{Loss, Segment, SegmentKind, Segments};
pub use file::{FileReader, Part};
pub use info::{COMPRESSION_XATTR, Info};
pub use salvage::Salvaged;
pub use segments::SegmentReader;
pub use stream::{Piece, stream_file};

/// A file system opened for reading.
pub struct Filesystem {
    store: BlockStore,
    /// Roots of trees looked up so far: every lookup in a tree starts at its root.
    roots: Mutex<FxHashMap<u64, TreeRoot>>,
}

impl Filesystem {
    /// Opens the file system on `device`. What a log tree holds is not replayed: reading gives the last commit.
    ///
    /// # Errors
    /// `NotBtrfs`, `Corrupt`, `Unsupported` (features and profiles by name), `Io`.
    pub fn open(device: Arc<dyn Device>) -> Result<Filesystem> {
        Ok(Filesystem { store: BlockStore::open(device)?, roots: Mutex::default() })
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        self.store.superblock()
    }

    /// The blocks.
    pub fn store(&self) -> &BlockStore {
        &self.store
    }

    /// Whether a log tree waits to be replayed: files that were synced last may read as older than they are.
    pub fn has_log(&self) -> bool {
        self.superblock().log_root.get() != 0
    }

    /// The label, without its NULs.
    pub fn label(&self) -> &[u8] {
        self.superblock().label()
    }

    /// The inode that `path` names, from the top-level subvolume. See [`lookup::resolve`].
    ///
    /// # Errors
    /// As [`lookup::resolve`].
    pub fn resolve(&self, path: &[u8], follow_last: bool) -> Result<Place> {
        lookup::resolve(self, Place::TOP, path, follow_last)
    }

    /// The root of `tree`.
    fn tree_root(&self, tree: u64) -> Result<TreeRoot> {
        if let Some(root) = self.cached_roots().get(&tree) {
            return Ok(*root);
        }
        let root = self.lookup_root(tree)?;
        self.cached_roots().insert(tree, root);
        Ok(root)
    }

    fn cached_roots(&self) -> std::sync::MutexGuard<'_, FxHashMap<u64, TreeRoot>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lookup_root(&self, tree: u64) -> Result<TreeRoot> {
        if [objectid::ROOT_TREE, objectid::CHUNK_TREE].contains(&tree) {
            return crate::tree::required_root(&self.store, tree);
        }
        let found = lookup::root_item(self, tree)?;
        found.map(|(_, item)| TreeRoot::of_item(tree, &item)).ok_or_else(|| {
            let name = objectid::tree_name(tree).unwrap_or("subvolume");
            Error::corrupt("ROOT-09", format!("tree {} ({name}) is missing", objectid::Printed(tree)))
        })
    }
}
