//! Reading what is broken: older roots, bytes whose checksum is wrong, inodes without an item.

use std::sync::{Arc, PoisonError};

use btrfsimg_ondisk::{BackupRoot, FileType, InodeItem, Key, KeyType, Logical, objectid};

use zerocopy::FromBytes as _;

use super::{Filesystem, Info, Loss, Segment, SegmentKind, SegmentReader};
use crate::block_store::{BlockStore, backup_roots};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lookup::{Items as _, Owner, Place, read_segment};
use crate::tree::TreeRoot;

/// What an inode whose item cannot be read counts: more than any has.
pub(super) const UNKNOWN_NBYTES: u64 = u64::MAX;

impl Filesystem {
    /// Opens a broken file system. Where its newest trees cannot be read, older ones that the superblock still names
    /// take their place; what was found to be broken goes to `fault`.
    ///
    /// # Errors
    /// As [`Filesystem::open`], where no copy of the superblock or no root tree can be read.
    pub fn salvage(device: Arc<dyn Device>, fault: &mut dyn FnMut(Error)) -> Result<Filesystem> {
        let store = BlockStore::open_damaged(device, fault)?;
        let fs = Filesystem { store, roots: Default::default(), stale: Some(Default::default()) };
        let backups = backup_roots(fs.superblock());
        fs.choose_root(objectid::FS_TREE, &backups, fault, |b| {
            (b.fs_root.get(), b.fs_root_gen.get(), b.fs_root_level)
        });
        fs.choose_root(objectid::CSUM_TREE, &backups, fault, |b| {
            (b.csum_root.get(), b.csum_root_gen.get(), b.csum_root_level)
        });
        Ok(fs)
    }

    /// What is wrong with the blocks that were read on though they are of another generation than what points to them
    /// says, each once: what is in them may be older, or newer, than the rest. Of a salvage alone.
    pub fn take_stale(&self) -> Vec<Error> {
        let taken = self
            .stale
            .as_ref()
            .map(|s| std::mem::take(&mut *s.lock().unwrap_or_else(PoisonError::into_inner)));
        taken.unwrap_or_default().into_values().collect()
    }

    /// Takes a backup root of `tree` where its own cannot be read.
    fn choose_root(
        &self,
        tree: u64,
        backups: &[BackupRoot],
        fault: &mut dyn FnMut(Error),
        of: impl Fn(&BackupRoot) -> (u64, u64, u8),
    ) {
        let Err(error) = self.tree_root(tree).and_then(|root| self.page_of(&root)) else { return };
        fault(error);
        let roots = backups.iter().map(|b| {
            let (logical, generation, level) = of(b);
            TreeRoot { tree, logical: Logical(logical), generation, level }
        });
        if let Some(root) = roots.into_iter().find(|root| self.page_of(root).is_ok()) {
            self.cached_roots().insert(tree, root);
        }
    }

    /// The inode at `place`, and what is wrong with it. Where its item cannot be read, it is one of type `file_type`,
    /// for its owner alone, and as long as its extents. The top of a subvolume is a directory, whatever its item says.
    pub fn salvage_info(&self, place: Place, file_type: FileType) -> (Info, Option<Error>) {
        let error = match self.info(place) {
            Ok(mut info) if place == Place::root(place.tree) && !info.is_dir() => {
                info.item.mode = (0o040_000 | info.mode() & 0o7777).into();
                let reason = format!("the top directory of subvolume {} is of another type", place.tree);
                return (info, Some(Error::corrupt("ROOT-12", reason)));
            }
            Ok(info) => return (info, None),
            Err(error) => error,
        };
        let mode = match file_type {
            FileType::DIR => 0o040_700,
            FileType::SYMLINK => 0o120_777,
            _ => 0o100_600,
        };
        let item = InodeItem {
            mode: mode.into(),
            nlink: 1.into(),
            size: self.end_of_extents(place).into(),
            nbytes: UNKNOWN_NBYTES.into(),
            ..InodeItem::zeroed()
        };
        (Info { place, item }, Some(error))
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
