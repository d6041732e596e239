//! One file: which of its extents are made anew, and whether that gains anything.

use std::ops::Range;

use btrfsimg_compress::{Algorithm, Decision, MAX_CHUNK, Method, Property, WorkspacePool};
use btrfsimg_ondisk::{BackRef, FileExtent, FileExtentKind, InodeItem, KeyType, Logical};

use super::{Counts, Options};
use crate::error::{Error, Result};
use crate::lookup::{self, Place, file_extents};
use crate::txn::{Sharing, Transaction};
use crate::write::contents::{PIECE, read_stored, replace_extents};
use crate::write::encode::{CompressionPolicy, EncodedData, EncodedExtent, Format, ParallelEncoder};
use crate::write::inode::COMPRESSION_XATTR;

/// Why a file is not done.
pub(super) enum Failure {
    /// It cannot be read: it is left, and the next one follows.
    Left(Error),
    /// The step fails.
    Fatal(Error),
}

/// How far a file is done.
#[derive(Clone, Debug)]
pub(super) struct FileCursor {
    path: Vec<u8>,
    place: Place,
    flags: u64,
    size: u64,
    /// The size in whole sectors.
    end: u64,
    decision: Decision,
    next: u64,
    counts: Counts,
    rewritten_before: u64,
}

/// A file extent with bytes outside the tree.
#[derive(Clone, Copy, Debug)]
struct Old {
    start: u64,
    end: u64,
    compression: u8,
    disk: Logical,
    disk_len: u64,
    /// All of the extent on disk is seen through it.
    is_whole: bool,
    back: BackRef,
    /// References to its extent on disk; `None` when some are not this file's.
    refs: Option<u64>,
}

/// Extents looked at for one window, at most.
const WINDOW_EXTENTS: usize = 4096;
impl FileCursor {
    pub(super) fn new(
        tx: &Transaction<'_>,
        path: Vec<u8>,
        place: Place,
        inode: &InodeItem,
        options: &Options,
    ) -> Result<FileCursor> {
        let property = lookup::xattr(tx, place, COMPRESSION_XATTR)?;
        let property = property.as_deref().and_then(Property::from_stored);
        let policy = CompressionPolicy { request: options.request, build_default: None, force: false };
        let flags = inode.flags.get();
        let sector = u64::from(tx.sectorsize());
        let size = inode.size.get();
        Ok(FileCursor {
            path,
            place,
            flags,
            size,
            end: size.checked_next_multiple_of(sector).unwrap_or(0),
            decision: policy.decision(flags, property.as_ref()),
            next: 0,
            counts: Counts::default(),
            rewritten_before: 0,
        })
    }

    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// File bytes in new extents since the last step ended.
    pub(super) fn rewritten_in_step(&self) -> u64 {
        self.counts.rewritten - self.rewritten_before
    }

    pub(super) fn end_step(&mut self) {
        self.rewritten_before = self.counts.rewritten;
    }

    /// Does the next window of the file. Says whether there was one.
    pub(super) fn advance(
        &mut self,
        tx: &mut Transaction<'_>,
        options: &Options,
        pool: &WorkspacePool,
    ) -> Result<bool, Failure> {
        if self.next >= self.end {
            return Ok(false);
        }
        let window = self.next_window(tx, options).map_err(Failure::Left)?;
        let (Some(first), Some(last)) = (window.first(), window.last()) else { return Ok(true) };
        if window.len() == 1 && first.refs.is_some() && self.is_best(first, options) {
            return Ok(true);
        }
        let range = first.start..last.end;
        let decision = self.decision_for(&window, options);
        // A failure here is no fault of this file.
        tx.flush_csums().map_err(Failure::Fatal)?;
        let encoded = self.encode(tx, range.clone(), decision, pool);
        let (data, extents) = encoded.map_err(Failure::Left)?;
        if !self.is_worth_it(&window, &data, &extents, options) {
            return Ok(true);
        }
        replace_extents(tx, self.place, range.clone(), &data, &extents).map_err(Failure::Fatal)?;
        self.counts.rewritten += range.end - range.start;
        self.counts.extents_before += window.len() as u64;
        self.counts.extents_after += extents.len() as u64;
        self.counts.disk_before += held(&window);
        self.counts.disk_after += data.data.len() as u64;
        Ok(true)
    }

    /// The next extents, side by side in the file, that may be made anew together: none that is good as it is, and
    /// none that is shared. None at all where there is only more to skip.
    fn next_window(&mut self, tx: &mut Transaction<'_>, options: &Options) -> Result<Vec<Old>> {
        let (place, from) = (self.place, self.next);
        let mut found = Vec::new();
        self.next = self.end;
        file_extents(&*tx, place, from, |start, extent| {
            let is_enough = start >= self.end || found.len() == WINDOW_EXTENTS;
            if is_enough {
                self.next = start;
            } else if start >= from {
                found.extend(Old::new(place, start, &extent));
            }
            Ok(!is_enough)
        })?;
        let mut window: Vec<Old> = Vec::new();
        for mut old in found {
            if let (Some(first), Some(last)) = (window.first(), window.last())
                && (last.end != old.start || old.end - first.start > options.target)
            {
                self.next = old.start;
                break;
            }
            if !self.is_good(&old, options) && old.end <= self.end {
                let key = place.key(KeyType::EXTENT_DATA, old.start);
                old.refs = match tx.sharing(place.tree, &key, old.disk, old.disk_len, old.back)? {
                    Sharing::Own(refs) => Some(refs),
                    Sharing::Shared => None,
                };
                if old.refs.is_some() || options.unshare {
                    window.push(old);
                    continue;
                }
                if window.is_empty() {
                    self.counts.shared += 1;
                    self.counts.shared_bytes += old.end - old.start;
                }
            }
            if !window.is_empty() {
                // It comes again, as the first of what follows.
                self.next = old.start;
                break;
            }
        }
        Ok(window)
    }

    /// The code of the compression that an extent is to have, if it gains by any.
    fn wanted(&self, old: &Old, options: &Options) -> u8 {
        match self.decision {
            Decision::Try { method, .. } => method.algorithm().code(),
            // Nobody says anything: what is compressed stays so.
            Decision::Raw if options.request.is_none() => old.compression,
            Decision::Raw => 0,
        }
    }

    /// Whether an extent is as compressed as asked, and all of it in use: alone it cannot become better.
    fn is_best(&self, old: &Old, options: &Options) -> bool {
        let tries_level = options.recompress && old.compression != 0;
        old.is_whole && old.compression == self.wanted(old, options) && !tries_level
    }

    /// Whether it is as large as asked as well.
    fn is_good(&self, old: &Old, options: &Options) -> bool {
        let largest = if old.compression == 0 { options.target } else { MAX_CHUNK as u64 };
        self.is_best(old, options) && old.end - old.start >= largest
    }

    fn decision_for(&self, window: &[Old], options: &Options) -> Decision {
        let compressed = window.iter().find_map(|old| Algorithm::from_code(old.compression));
        match (self.decision, compressed) {
            (Decision::Raw, Some(algorithm)) if options.request.is_none() => {
                Decision::Try { method: Method::with_default_level(algorithm), heuristic: true }
            }
            (decision, _) => decision,
        }
    }

    /// Reads and encodes `range`, piece by piece.
    fn encode(
        &self,
        tx: &mut Transaction<'_>,
        range: Range<u64>,
        decision: Decision,
        pool: &WorkspacePool,
    ) -> Result<(EncodedData, Vec<EncodedExtent>)> {
        let mut encoder = ParallelEncoder::new(pool, Format::of(tx));
        let (mut data, mut extents) = (EncodedData::default(), Vec::new());
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(PIECE));
            // Behind the end of the file there is nothing to compress.
            let bytes = read_stored(tx, self.place, self.flags, at..end.min(self.size))?;
            encoder.encode(at, &bytes, decision, &mut data, &mut extents);
            at = end;
        }
        Ok((data, extents))
    }

    /// Whether new extents are better: they take less on disk; or no more, and they are fewer; or they are of the
    /// algorithm that is wanted, where the old ones are of another; or the file shares some that it is to have for
    /// itself.
    fn is_worth_it(
        &self,
        window: &[Old],
        data: &EncodedData,
        extents: &[EncodedExtent],
        options: &Options,
    ) -> bool {
        let (new, old) = (data.data.len() as u64, held(window));
        let changes_algorithm = window.iter().any(|o| ![0, self.wanted(o, options)].contains(&o.compression));
        let unshares = window.iter().any(|o| o.refs.is_none());
        new < old || (new == old && extents.len() < window.len()) || changes_algorithm || unshares
    }
}

impl Old {
    /// What an extent item is; `None` for what has no bytes of its own on disk.
    fn new(place: Place, start: u64, extent: &FileExtent<'_>) -> Option<Old> {
        let FileExtentKind::Regular(range) = &extent.kind else { return None };
        let (disk, disk_len) = extent.disk_extent()?;
        let len = range.num_bytes.get();
        Some(Old {
            start,
            end: start.checked_add(len)?,
            compression: extent.compression,
            disk,
            disk_len,
            is_whole: range.offset.get() == 0 && len == extent.ram_bytes,
            back: BackRef::Data {
                root: place.tree,
                objectid: place.ino,
                offset: start.wrapping_sub(range.offset.get()),
            },
            refs: None,
        })
    }
}

/// Bytes on disk that `window` holds by itself: of an extent that other parts of the file refer to as well, its share.
fn held(window: &[Old]) -> u64 {
    let share = |old: &Old| old.refs.map_or(0, |refs| old.disk_len / refs.max(1));
    window.iter().map(share).sum()
}
