//! Reading what is broken: older roots, bytes whose checksum is wrong, inodes without an item.

use std::sync::Arc;

use btrfsimg_ondisk::{BackupRoot, FileType, InodeItem, Key, KeyType, Logical, objectid};

use zerocopy::FromBytes as _;

use super::{Filesystem, Info, Loss, Segment, SegmentKind, SegmentReader};
use crate::block_store::{BlockStore, backup_roots};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lookup::{Items as _, Owner, Place, check_size, read_segment};
use crate::tree::TreeRoot;

/// What an inode whose item cannot be read counts: more than any has.
pub(super) const UNKNOWN_NBYTES: u64 = u64::MAX;

/// An inode of a broken file system.
#[derive(Debug)]
pub struct Salvaged {
    /// It, as far as it is known.
    pub info: Info,
    /// Why it may not be what was written, though it is given.
    pub doubt: Option<Error>,
}

impl Filesystem {
    /// Opens a broken file system. Where its newest trees cannot be read, older ones that the superblock still names
    /// take their place; what was found to be broken goes to `fault`.
    ///
    /// # Errors
    /// As [`Filesystem::open`], where no copy of the superblock or no root tree can be read.
    pub fn salvage(device: Arc<dyn Device>, fault: &mut dyn FnMut(Error)) -> Result<Filesystem> {
        let store = BlockStore::open_damaged(device, fault)?;
        let fs = Filesystem { store, roots: Default::default() };
        let backups = backup_roots(fs.superblock());
        fs.choose_root(objectid::FS_TREE, &backups, fault, |b| {
            (b.fs_root.get(), b.fs_root_gen.get(), b.fs_root_level)
        });
        fs.choose_root(objectid::CSUM_TREE, &backups, fault, |b| {
            (b.csum_root.get(), b.csum_root_gen.get(), b.csum_root_level)
        });
        fs.store.take_doubtful().into_iter().for_each(fault);
        Ok(fs)
    }

    /// Takes a backup root of `tree` where its own cannot be read.
    fn choose_root(
        &self,
        tree: u64,
        backups: &[BackupRoot],
        fault: &mut dyn FnMut(Error),
        of: impl Fn(&BackupRoot) -> (u64, u64, u8),
    ) {
        let roots = backups.iter().map(|b| {
            let (logical, generation, level) = of(b);
            TreeRoot { tree, logical: Logical(logical), generation, level }
        });
        let at = |root: TreeRoot| (root.logical, root.expectation());
        match self.store.choose_root(self.tree_root(tree).map(at), roots.clone().map(at), fault) {
            Ok((logical, _)) => {
                let older = roots.into_iter().find(|root| root.logical == logical);
                let mut known = self.cached_roots();
                older.into_iter().for_each(|root| _ = known.insert(tree, root));
            }
            Err(e) => fault(e),
        }
    }

    /// The inode at `place`, which an entry says is of type `file_type`. Where its item breaks rules it is taken as it is, if
    /// it is of that type; else it is one for its owner alone, and as long as its extents. The top of a subvolume is a
    /// directory, whatever its item says.
    pub fn salvage_info(&self, place: Place, file_type: FileType) -> Salvaged {
        let error = match self.info(place) {
            Ok(mut info) if place == Place::root(place.tree) && !info.is_dir() => {
                info.item.mode = (0o040_000 | info.mode() & 0o7777).into();
                let reason = format!("the top directory of subvolume {} is of another type", place.tree);
                return Salvaged { info, doubt: Some(Error::corrupt("ROOT-12", reason)) };
            }
            Ok(info) => {
                // From its item to its last extent, with its names and its entries.
                let (first, last) =
                    (place.key(KeyType::INODE_ITEM, 0), place.key(KeyType::EXTENT_DATA, u64::MAX));
                return Salvaged { info, doubt: self.doubt(place.tree, &first, &last) };
            }
            Err(error) => error,
        };
        if let Some(item) = self.bad_inode(place)
            && FileType::from_mode(item.mode.get()) == Some(file_type)
            && check_size(place, item.size.get()).is_ok()
        {
            return Salvaged { info: Info { place, item }, doubt: Some(error) };
        }
        let (mode, size) = match file_type {
            FileType::DIR => (0o040_700, 0),
            FileType::SYMLINK => (0o120_777, self.end_of_extents(place)),
            _ => (0o100_600, self.end_of_extents(place)),
        };
        let doubt = match (file_type, size) {
            (FileType::DIR, _) | (_, 1..) => error,
            _ => error.and("; nothing is found of what was in it"),
        };
        let item = InodeItem {
            mode: mode.into(),
            nlink: 1.into(),
            size: size.into(),
            nbytes: UNKNOWN_NBYTES.into(),
            ..InodeItem::zeroed()
        };
        Salvaged { info: Info { place, item }, doubt: Some(doubt) }
    }

    /// The item of an inode that breaks rules.
    fn bad_inode(&self, place: Place) -> Option<InodeItem> {
        let (root, key) = (self.tree_root(place.tree).ok()?, place.key(KeyType::INODE_ITEM, 0));
        let mut found = None;
        let _ = self.store.leaves(place.tree, &(root.logical, root.expectation()), &key, &key, &mut |leaf| {
            let Ok((page, slots)) = leaf else { return Ok(true) };
            found =
                slots.into_iter().find(|&slot| page.key(slot) == key).and_then(|slot| page.bad_inode(slot));
            Ok(found.is_none())
        });
        found
    }

    /// Where the last extent of a file ends that can be read.
    fn end_of_extents(&self, place: Place) -> u64 {
        let (from, to) = place.keys(KeyType::EXTENT_DATA);
        let sectorsize = self.store.ctx().sectorsize;
        let mut end = 0;
        // Whatever ends the walk early, what came before it counts.
        let _ = self.walk(place.tree, &from, &to, &mut |item| {
            if let Ok(item) = item
                && let Ok(extent) = btrfsimg_ondisk::FileExtent::parse(item.data)
            {
                end = end.max(item.key.offset.saturating_add(extent.covers(sectorsize)));
            }
            Ok(true)
        });
        end
    }

    /// Calls `each` with every inode of a tree that has an item, in the order of their numbers, until it returns `false`.
    ///
    /// # Errors
    /// `Corrupt` where the root cannot be read; what `each` returns.
    pub fn inodes(&self, tree: u64, mut each: impl FnMut(Info) -> Result<bool>) -> Result<()> {
        let from = Key::new(objectid::FIRST_FREE, KeyType::INODE_ITEM, 0);
        let to = Key::new(objectid::LAST_FREE, KeyType::INODE_ITEM, u64::MAX);
        self.walk(tree, &from, &to, &mut |item| {
            let Ok(item) = item else { return Ok(true) };
            if item.key.key_type != KeyType::INODE_ITEM {
                return Ok(true);
            }
            let Ok(inode) = InodeItem::read_from_bytes(item.data) else { return Ok(true) };
            each(Info { place: Place { tree, ino: item.key.objectid }, item: inode })
        })
    }
}

impl SegmentReader {
    /// As [`SegmentReader::read`], but `out` is always filled, and what is wrong with it goes to `loss`: bytes that fail
    /// their checksum are given as they are, those that cannot be read or decoded as zeros.
    pub fn salvage(
        &mut self,
        fs: &Filesystem,
        info: &Info,
        segment: &Segment,
        skip: u64,
        out: &mut [u8],
        loss: &mut dyn FnMut(Loss),
    ) {
        let Err(error) = self.read(fs, info, segment, skip, out) else { return };
        let start = segment.offset.saturating_add(skip);
        let whole = start..start.saturating_add(out.len() as u64);
        let unchecked = Owner::unchecked(info.place);
        if !matches!(segment.kind, SegmentKind::Raw { .. }) {
            self.scratch.decode_any(true);
            let kept = read_segment(fs, unchecked, segment, skip, out, &mut self.scratch).is_ok();
            self.scratch.decode_any(false);
            if !kept {
                out.fill(0);
            }
            return loss(Loss { range: whole, error, kept });
        }
        let sector = usize::try_from(fs.store().ctx().sectorsize).unwrap_or(usize::MAX).max(1);
        let (mut at, mut current) = (start, None::<Loss>);
        let mut rest = out;
        while !rest.is_empty() {
            let to_sector_end = sector - usize::try_from(at % sector as u64).unwrap_or(0);
            let (piece, behind) = rest.split_at_mut(to_sector_end.min(rest.len()));
            let skip = at - segment.offset;
            let end = at.saturating_add(piece.len() as u64);
            if let Err(error) = self.read(fs, info, segment, skip, piece) {
                let kept = read_segment(fs, unchecked, segment, skip, piece, &mut self.scratch).is_ok();
                if !kept {
                    piece.fill(0);
                }
                match &mut current {
                    Some(c) if c.kept == kept && c.range.end == at => c.range.end = end,
                    _ => {
                        let done = current.replace(Loss { range: at..end, error, kept });
                        done.into_iter().for_each(&mut *loss);
                    }
                }
            }
            (at, rest) = (end, behind);
        }
        current.into_iter().for_each(loss);
    }
}
