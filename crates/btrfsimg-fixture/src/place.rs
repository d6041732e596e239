//! Finding where to break an image.

use std::ops::{ControlFlow, Range};

use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::{Result, lookup};
use btrfsimg_ondisk::{FileExtent, Key, KeyType, Logical, TreeBlock, objectid};

use crate::error::Found;
use crate::image::Image;

/// What is to be broken.
#[derive(Clone, Debug, Default)]
pub enum Target {
    /// The first place that fits.
    #[default]
    Any,
    /// The item with this key, in whichever of the fault's trees it is.
    Key(Key),
    /// An inode, its names, its extents.
    Inode {
        /// Its subvolume.
        tree: u64,
        /// Its number.
        ino: u64,
        /// The logical ranges of its data.
        extents: Vec<Range<u64>>,
    },
}

impl Target {
    /// The inode at `path`, from the top-level subvolume; a symlink at its end is meant itself.
    ///
    /// # Errors
    /// `NotFound`, and whatever reading the image gives.
    pub fn at_path(fs: &Filesystem, path: &[u8]) -> Result<Target> {
        let place = fs.resolve(path, false)?;
        let mut extents = Vec::new();
        let (from, to) = place.keys(KeyType::EXTENT_DATA);
        btrfsimg_fs::tree::walk_items(fs.store(), place.tree, &from, &to, |item| {
            if let Some((at, len)) = FileExtent::parse(item.data).ok().and_then(|e| e.disk_extent()) {
                extents.push(at.0..at.0.saturating_add(len));
            }
            Ok(true)
        })?;
        lookup::inode(fs, place)?;
        Ok(Target::Inode { tree: place.tree, ino: place.ino, extents })
    }

    fn fits(&self, seen: &Seen<'_>, image: &Image) -> bool {
        match self {
            Target::Any => true,
            Target::Key(key) => seen.key == *key,
            Target::Inode { tree, ino, .. } if objectid::is_fs_tree(seen.tree) => {
                (seen.tree, seen.key.objectid) == (*tree, *ino)
            }
            Target::Inode { extents, .. } => match seen.tree {
                objectid::EXTENT_TREE => extents.iter().any(|e| e.start == seen.key.objectid),
                objectid::CSUM_TREE => {
                    let sectors = (seen.data.len() / image.ctx().csum.width()) as u64;
                    let covered = sectors.saturating_mul(image.ctx().sectorsize);
                    let end = seen.key.offset.saturating_add(covered);
                    extents.iter().any(|e| e.start < end && seen.key.offset < e.end)
                }
                _ => false,
            },
        }
    }
}

/// Where an item is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The tree that it was found in.
    pub tree: u64,
    /// The leaf.
    pub block: Logical,
    /// The slot.
    pub slot: usize,
    /// The key.
    pub key: Key,
    /// The nodes above, from the root, with the slot that leads on.
    pub(crate) above: Vec<(Logical, usize)>,
}

/// An item that may be the one.
pub(crate) struct Seen<'a> {
    pub(crate) tree: u64,
    pub(crate) key: Key,
    pub(crate) data: &'a [u8],
    pub(crate) slot: usize,
    pub(crate) leaf: &'a TreeBlock,
}

impl Seen<'_> {
    /// The key in the next slot of the leaf.
    pub(crate) fn next(&self) -> Option<Key> {
        (self.slot + 1 < self.leaf.nritems()).then(|| self.leaf.key(self.slot + 1))
    }

    /// Whether the leaf has room for another item with so many bytes of data.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.leaf.leaf_free() >= bytes + btrfsimg_ondisk::ITEM_HEADER_LEN
    }

    pub(crate) fn is(&self, key_type: KeyType) -> bool {
        self.key.key_type == key_type
    }
}

/// Trees to look in.
#[derive(Clone, Copy)]
pub(crate) enum Trees {
    One(u64),
    /// Every subvolume, the top level first.
    Subvolumes,
}

/// What a walk gives to its visitor: the nodes above a block, its address and the block.
pub(crate) type Visit<'v> = dyn FnMut(&[(Logical, usize)], Logical, &TreeBlock) -> ControlFlow<()> + 'v;

impl Image {
    /// The first item of `trees` that `target` and `wanted` allow.
    pub(crate) fn find(
        &self,
        target: &Target,
        trees: Trees,
        wanted: impl Fn(&Seen<'_>) -> bool,
    ) -> Found<Spot> {
        for tree in self.expand(trees)? {
            let mut found = None;
            self.walk(tree, &mut |above, at, block| {
                if !block.is_leaf() {
                    return ControlFlow::Continue(());
                }
                for slot in 0..block.nritems() {
                    let item = block.item(slot);
                    let seen = Seen { tree, key: item.key, data: item.data, slot, leaf: block };
                    if target.fits(&seen, self) && wanted(&seen) {
                        found = Some(Spot { tree, block: at, slot, key: item.key, above: above.to_vec() });
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The item with `key`.
    pub(crate) fn find_key(&self, tree: u64, key: Key) -> Found<Spot> {
        self.find(&Target::Any, Trees::One(tree), |i| i.key == key)
    }

    /// The last item of a tree.
    pub(crate) fn last(&self, tree: u64) -> Found<Spot> {
        let mut last = None;
        self.walk(tree, &mut |above, at, block| {
            if block.is_leaf() && block.nritems() > 0 {
                let slot = block.nritems() - 1;
                last = Some(Spot { tree, block: at, slot, key: block.key(slot), above: above.to_vec() });
            }
            ControlFlow::Continue(())
        })?;
        Ok(last)
    }

    /// The first node of `trees` with so many pointers, and the nodes above it.
    pub(crate) fn find_node(&self, trees: Trees, pointers: usize) -> Found<Spot> {
        for tree in self.expand(trees)? {
            let mut found = None;
            self.walk(tree, &mut |above, at, block| {
                if block.is_leaf() || block.nritems() < pointers {
                    return ControlFlow::Continue(());
                }
                found = Some(Spot { tree, block: at, slot: 0, key: block.key(0), above: above.to_vec() });
                ControlFlow::Break(())
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn expand(&self, trees: Trees) -> Result<Vec<u64>> {
        match trees {
            Trees::One(tree) => Ok(vec![tree]),
            Trees::Subvolumes => self.subvolumes(),
        }
    }
}
