//! Inodes, names, xattrs, file extents and their bytes, the same for the committed state and inside a transaction.
//!
//! Everything here is generic over [`Items`], which every [`Blocks`] is: the strict view, in which a fault in a
//! block fails what touches it. A reader of damaged images brings its own view, which gives the items one by one,
//! each good or an error.

mod data;
mod dir;
mod file;
mod losses;
mod path;
mod segments;
mod subvolume;

use btrfsimg_ondisk::{BlockContext, InodeItem, Item, Key, KeyType, RootItem, objectid};
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::tree::{self, Blocks, Cursor};

pub use data::{Contents, Owner, Scratch, read_segment};
pub use dir::{
    Entry, check_name, entries, entries_by_hash, find_entry, next_dir_index, second_entry, target,
};
pub use file::{FILE_SIZE_MAX, check_size, file_extents, symlink_target, xattr, xattrs};
pub use losses::{Loss, Losses};
pub(crate) use path::file_beneath;
pub use path::{SYMLINKS_MAX, resolve, resolve_parent, stand_in_above};
pub use segments::{Segment, SegmentKind, Segments};
pub use subvolume::{
    Subvolume, default_subvolume, deleted_subvolumes, subvolume, subvolume_is_readonly, subvolume_link,
    subvolume_path, subvolumes,
};

/// An inode of a subvolume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The subvolume's tree: 5, or 256 and up.
    pub tree: u64,
    /// The inode's number, or [`Place::EMPTY_DIR`].
    pub ino: u64,
}

impl Place {
    /// The root directory of the top-level subvolume.
    pub const TOP: Place = Place::root(objectid::FS_TREE);

    /// The number of the inode that stands where a snapshot holds the entry of a subvolume which is not in the
    /// snapshot: an empty directory, never on disk (`format/02 §2.12`).
    #[doc(alias = "BTRFS_EMPTY_SUBVOL_DIR_OBJECTID")]
    pub const EMPTY_DIR: u64 = 2;

    /// The root directory of the subvolume `tree`.
    pub const fn root(tree: u64) -> Place {
        Place { tree, ino: objectid::FIRST_FREE }
    }

    /// The empty directory that stands for a subvolume which is not there.
    pub const fn empty_dir(tree: u64) -> Place {
        Place { tree, ino: Place::EMPTY_DIR }
    }

    /// Whether it is a stand-in that is not on disk.
    pub const fn is_empty_dir(self) -> bool {
        self.ino == Place::EMPTY_DIR
    }

    /// The key of an item of this inode.
    pub const fn key(self, key_type: KeyType, offset: u64) -> Key {
        Key::new(self.ino, key_type, offset)
    }

    /// All keys of its items of one type.
    pub const fn keys(self, key_type: KeyType) -> (Key, Key) {
        (self.key(key_type, 0), self.key(key_type, u64::MAX))
    }
}

/// A view of trees as items in key order.
pub trait Items {
    /// Calls `each` with every item whose key is in `from..=to`, in order, until it returns `false`. A view that
    /// goes on behind faults gives an error in the place of what it cannot read; it may stand for many items.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, and what `each` returns.
    fn walk(
        &self,
        tree: u64,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(Result<Item<'_>>) -> Result<bool>,
    ) -> Result<()>;

    /// Calls `found` with the last item whose key is in `from..=to`, if there is one.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, and what `found` returns.
    fn with_last(
        &self,
        tree: u64,
        from: &Key,
        to: &Key,
        found: &mut dyn FnMut(Item<'_>) -> Result<()>,
    ) -> Result<()>;

    /// A copy of the last item whose key is in `from..=to`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    fn last(&self, tree: u64, from: &Key, to: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut last = None;
        self.with_last(tree, from, to, &mut |item| {
            last = Some((item.key, item.data.to_vec()));
            Ok(())
        })?;
        Ok(last)
    }

    /// What of the superblock the parsers need.
    fn context(&self) -> &BlockContext;
}

impl<B: Blocks> Items for B {
    fn walk(
        &self,
        tree: u64,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(Result<Item<'_>>) -> Result<bool>,
    ) -> Result<()> {
        tree::walk_items(self, tree, from, to, |item| each(Ok(item)))
    }

    fn with_last(
        &self,
        tree: u64,
        from: &Key,
        to: &Key,
        found: &mut dyn FnMut(Item<'_>) -> Result<()>,
    ) -> Result<()> {
        match Cursor::at_or_before(self, tree, to)? {
            Some(cursor) if cursor.key() >= *from => found(cursor.item()),
            _ => Ok(()),
        }
    }

    fn context(&self) -> &BlockContext {
        self.ctx()
    }
}

/// Calls `found` with the data of the item with exactly `key`, if there is one.
pub(crate) fn with_item<T>(
    items: &impl Items,
    tree: u64,
    key: &Key,
    found: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<Option<T>> {
    let (mut found, mut result) = (Some(found), None);
    items.walk(tree, key, key, &mut |item| {
        let item = item?;
        if let Some(found) = found.take() {
            result = Some(found(item.data)?);
        }
        Ok(false)
    })?;
    Ok(result)
}

/// The inode at `place`, if there is one.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn lookup_inode(items: &impl Items, place: Place) -> Result<Option<InodeItem>> {
    if place.is_empty_dir() {
        return Ok(Some(empty_dir_inode()));
    }
    let key = place.key(KeyType::INODE_ITEM, 0);
    with_item(items, place.tree, &key, |data| {
        InodeItem::read_from_bytes(data)
            .map_err(|_| Error::corrupt("INO-03", format!("invalid inode item size, have {}", data.len())))
    })
}

/// The inode at `place`, which something refers to.
///
/// # Errors
/// LK-09 when it is missing; `Corrupt`, `Io`.
pub fn inode(items: &impl Items, place: Place) -> Result<InodeItem> {
    lookup_inode(items, place)?.ok_or_else(|| {
        Error::corrupt("LK-09", format!("root={} inode {} has no inode item", place.tree, place.ino))
    })
}

/// What kernels show in the place of a subvolume that is not there, but for the times.
fn empty_dir_inode() -> InodeItem {
    let mut inode = InodeItem::zeroed();
    inode.nlink = 1.into();
    inode.mode = 0o040_755.into();
    inode
}

/// The highest inode number in `tree`; below 256 when it has none.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn highest_inode(items: &impl Items, tree: u64) -> Result<u64> {
    let from = Key::new(objectid::FIRST_FREE, KeyType(0), 0);
    let to = Key::new(objectid::LAST_FREE, KeyType(255), u64::MAX);
    Ok(items.last(tree, &from, &to)?.map_or(objectid::FIRST_FREE - 1, |(key, _)| key.objectid))
}

/// The ROOT_ITEM of `tree` and its key, if there is such a tree.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn root_item(items: &impl Items, tree: u64) -> Result<Option<(Key, RootItem)>> {
    let (from, to) = Place { tree: objectid::ROOT_TREE, ino: tree }.keys(KeyType::ROOT_ITEM);
    let mut found = None;
    items.with_last(objectid::ROOT_TREE, &from, &to, &mut |item| {
        found = Some((item.key, tree::parse_root_item(&item)?));
        Ok(())
    })?;
    Ok(found)
}
