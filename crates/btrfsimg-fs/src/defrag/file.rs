//! One file: which of its extents are made anew, and whether that gains anything.

use std::collections::VecDeque;
use std::ops::Range;

use btrfsimg_compress::{Algorithm, Decision, MAX_CHUNK, Method, Property, WorkspacePool};
use btrfsimg_ondisk::{BackRef, FileExtent, FileExtentKind, InodeItem, KeyType, Logical, inode_flags};

use super::{Counts, Options};
use crate::error::{Error, Result};
use crate::lookup::{self, Place, file_extents};
use crate::txn::{Sharing, Transaction};
use crate::write::contents::{PIECE, read_stored, replace_extents};
use crate::write::data::place;
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
    /// Extents that were looked up and are not done.
    ahead: VecDeque<Old>,
    /// Where to look for those behind them.
    next: u64,
    /// The one that was left as it is before what comes next.
    passed: Option<Old>,
    counts: Counts,
    rewritten_before: u64,
    /// Items that were passed.
    #[cfg(test)]
    pub(super) items: u64,
}

/// A file extent with bytes outside the tree.
#[derive(Clone, Copy, Debug)]
struct Old {
    start: u64,
    /// Of the part that is made anew.
    end: u64,
    /// Bytes of the file that its item covers.
    len: u64,
    compression: u8,
    disk: Logical,
    disk_len: u64,
    /// All of the extent on disk is seen through it.
    is_whole: bool,
    back: BackRef,
    /// References to its extent on disk; `None` when some are not this file's.
    refs: Option<u64>,
}

/// Extents of one window, at most.
const WINDOW_EXTENTS: usize = 4096;
/// Extents looked up at a time.
const AHEAD: usize = 256;

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
            ahead: VecDeque::new(),
            next: 0,
            passed: None,
            counts: Counts::default(),
            rewritten_before: 0,
            #[cfg(test)]
            items: 0,
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
        if self.ahead.is_empty() && self.next >= self.end {
            return Ok(false);
        }
        let window = self.next_window(tx, options).map_err(Failure::Left)?;
        let (Some(first), Some(last)) = (window.first(), window.last()) else { return Ok(true) };
        if window.len() == 1 && first.refs.is_some() && self.is_best(first, options) {
            self.passed = Some(*last);
            return Ok(true);
        }
        let range = first.start..last.end;
        let decision = self.decision_for(&window, options);
        // A failure here is no fault of this file.
        tx.flush_csums().map_err(Failure::Fatal)?;
        let encoded = self.encode(tx, range.clone(), decision, pool);
        let (data, extents) = encoded.map_err(Failure::Left)?;
        if !self.is_worth_it(&window, extents.len(), data.data.len() as u64, options) {
            self.passed = Some(*last);
            return Ok(true);
        }
        let placement = place(tx, &data, &extents.iter().collect::<Vec<_>>()).map_err(Failure::Fatal)?;
        // Where free space is in pieces, what was to be better may have become raw, or many.
        let placed: Vec<_> = placement.disk_extents(&data, &extents).collect();
        let disk = placed.iter().map(|(_, len)| len).sum();
        if placement.has_raw_instead() || !self.is_worth_it(&window, placed.len(), disk, options) {
            let given_back = placed.into_iter().try_for_each(|(at, len)| tx.release_data(at, len));
            given_back.map_err(Failure::Fatal)?;
            for old in window.iter().filter(|old| old.refs.is_none()) {
                self.counts.shared += 1;
                self.counts.shared_bytes += old.end - old.start;
            }
            self.passed = Some(*last);
            return Ok(true);
        }
        replace_extents(tx, self.place, range.clone(), &data, &extents, &placement)
            .map_err(Failure::Fatal)?;
        self.counts.rewritten += range.end - range.start;
        self.counts.extents_before += window.len() as u64;
        self.counts.extents_after += placed.len() as u64;
        self.counts.disk_before += held(&window);
        self.counts.disk_after += disk;
        self.look_again(first, &extents, options);
        Ok(true)
    }

    /// Where compressed extents became raw ones, those may go together with raw ones beside them: to be looked up again, with
    /// what is before them. As every change made something better, that ends.
    fn look_again(&mut self, first: &Old, extents: &[EncodedExtent], options: &Options) {
        let raw = extents.iter().find(|e| e.compression == 0);
        let before = self.passed.take().filter(|old| old.end == first.start && old.compression == 0);
        if let Some(raw) = raw.filter(|_| self.keeps_compression(options) && first.compression != 0) {
            let is_first = raw.file_offset == first.start;
            let start = before.filter(|_| is_first).map_or(raw.file_offset, |old| old.start);
            (self.ahead, self.next) = (VecDeque::new(), start);
        }
    }

    /// The next extents, side by side in the file, that may be made anew together: none that is good as it is, and
    /// none that is shared. None at all where there is only more to skip.
    fn next_window(&mut self, tx: &mut Transaction<'_>, options: &Options) -> Result<Vec<Old>> {
        let mut window: Vec<Old> = Vec::new();
        while window.len() < WINDOW_EXTENTS {
            if self.ahead.is_empty() {
                self.look_ahead(tx)?;
            }
            let Some(mut old) = self.ahead.pop_front() else { break };
            if let (Some(first), Some(last)) = (window.first(), window.last())
                && (last.end != old.start
                    || old.end - first.start > options.target
                    || self.keeps_compression(options) && old.compression != first.compression)
            {
                // It comes again, as the first of what follows.
                self.ahead.push_front(old);
                break;
            }
            let is_good = self.is_good(&old, options);
            if (!is_good || options.unshare) && old.end <= self.end {
                let key = self.place.key(KeyType::EXTENT_DATA, old.start);
                old.refs = match tx.sharing(self.place.tree, &key, old.disk, old.disk_len, old.back)? {
                    Sharing::Own(refs) => Some(refs),
                    Sharing::Shared => None,
                };
                let is_wanted =
                    if is_good { old.refs.is_none() } else { old.refs.is_some() || options.unshare };
                if is_wanted {
                    if old.end - old.start > options.target {
                        return Ok(vec![self.cut(old, options)]);
                    }
                    window.push(old);
                    continue;
                }
                if window.is_empty() && old.refs.is_none() {
                    self.counts.shared += 1;
                    self.counts.shared_bytes += old.end - old.start;
                }
            }
            if !window.is_empty() {
                self.ahead.push_front(old);
                break;
            }
            self.passed = Some(old);
        }
        Ok(window)
    }

    /// Looks up the extents that follow. Each is looked up once, as one window changes none that is behind it.
    fn look_ahead(&mut self, tx: &Transaction<'_>) -> Result<()> {
        let (place, from, end) = (self.place, self.next, self.end);
        let ahead = &mut self.ahead;
        self.next = end;
        file_extents(tx, place, from, |start, extent| {
            let is_enough = start >= end || ahead.len() == AHEAD;
            #[cfg(test)]
            {
                self.items += 1;
            }
            if is_enough {
                self.next = start;
            } else {
                // Of one that was cut, what is left.
                ahead
                    .extend(Old::new(place, start, &extent).map(|old| Old { start: start.max(from), ..old }));
            }
            Ok(!is_enough)
        })
    }

    /// The start of an extent that is too long to be in memory at once. What is left of it is looked up again, as its
    /// item is another one where the start is made anew.
    fn cut(&mut self, old: Old, options: &Options) -> Old {
        let end = old.start + options.target / MAX_CHUNK as u64 * MAX_CHUNK as u64;
        (self.ahead, self.next) = (VecDeque::new(), end);
        Old { end, ..old }
    }

    /// The code of the compression that an extent is to have, if it gains by any.
    fn wanted(&self, old: &Old, options: &Options) -> u8 {
        match self.decision {
            Decision::Try { method, .. } => method.algorithm().code(),
            Decision::Raw if self.keeps_compression(options) => old.compression,
            Decision::Raw => 0,
        }
    }

    /// Whether nobody asks for a compression: what is compressed stays so, by its algorithm, and what is not stays so
    /// too. Without checksums data are never compressed.
    fn keeps_compression(&self, options: &Options) -> bool {
        let may_be = self.flags & (inode_flags::NODATACOW | inode_flags::NODATASUM) == 0;
        self.decision == Decision::Raw && options.request.is_none() && may_be
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
        let first = window.first().filter(|_| self.keeps_compression(options));
        match first.and_then(|old| Algorithm::from_code(old.compression)) {
            Some(algorithm) => {
                Decision::Try { method: Method::with_default_level(algorithm), heuristic: true }
            }
            None => self.decision,
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

    /// Whether so many new extents of `new` bytes on disk are better: they take less on disk; or no more, and they are
    /// fewer; or they are of the algorithm that is wanted, where the old ones are of another; or the file shares some
    /// that it is to have for itself.
    fn is_worth_it(&self, window: &[Old], extents: usize, new: u64, options: &Options) -> bool {
        let old = held(window);
        let changes_algorithm = window.iter().any(|o| ![0, self.wanted(o, options)].contains(&o.compression));
        let unshares = window.iter().any(|o| o.refs.is_none());
        new < old || (new == old && extents < window.len()) || changes_algorithm || unshares
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
            len,
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
    let share = |old: &Old| {
        let refs = old.refs?.max(1);
        let part =
            u128::from(old.end - old.start) * u128::from(old.disk_len / refs) / u128::from(old.len.max(1));
        u64::try_from(part).ok()
    };
    window.iter().filter_map(share).fold(0, u64::saturating_add)
}
