//! Block groups and the free space in them; allocation.

use std::collections::BTreeMap;
use std::ops::Range;

use btrfsimg_ondisk::{Logical, block_group_flags as bg};

use super::runs::Runs;
use super::{csums, free_space};
use crate::block_store::BlockStore;
use crate::chunk_map::Chunk;
use crate::error::{Error, Result};

/// Nodes that lie together.
const NODES_TOGETHER: u64 = 128;

/// What space is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SpaceKind {
    /// File data.
    Data,
    /// Every tree but the chunk tree.
    Metadata,
    /// The chunk tree.
    System,
    /// File data and trees alike, where the file system mixes them.
    Mixed,
}

impl SpaceKind {
    /// Its bits in block group flags.
    pub fn flag(self) -> u64 {
        match self {
            SpaceKind::Data => bg::DATA,
            SpaceKind::Metadata => bg::METADATA,
            SpaceKind::System => bg::SYSTEM,
            SpaceKind::Mixed => bg::DATA | bg::METADATA,
        }
    }

    /// Whether file data may be in it.
    fn is_for_data(self) -> bool {
        self.flag() & bg::DATA != 0
    }

    /// Whether a block group or chunk with these flags is of this kind.
    pub(super) fn is_served_by(self, flags: u64) -> bool {
        flags & self.flag() == self.flag()
    }
}

/// How a block group's free space is recorded in the free space tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recorded {
    /// Not at all: there is no (valid) free space tree.
    No,
    /// As FREE_SPACE_EXTENT items.
    Extents,
    /// As FREE_SPACE_BITMAP items.
    Bitmaps,
}

/// Free space of one block group.
#[derive(Clone, Debug)]
pub(super) struct FreeSpace {
    pub(super) recorded: Recorded,
    /// What was free before this transaction: only this transaction can have allocated it since.
    before: Runs,
    /// What of it is free by the extent tree as well. The free space tree alone is not believed.
    proven: Runs,
    /// What of it was asked for checksums that are left over from something else.
    asked_for_csums: Runs,
    /// As the free space tree has it now; `None` when it has nothing yet.
    pub(super) written: Option<Runs>,
    /// As it must have it after the commit.
    pub(super) after: Runs,
    /// What may be handed out: free before and after the commit, and no superblock copy on it.
    pub(super) available: Runs,
    /// Where the last search ended.
    hint: u64,
    /// No run that is available is this long.
    no_run_of: u64,
}

/// A block group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) flags: u64,
    pub(super) used: u64,
    /// The value in its item; `None` when it has none yet.
    pub(super) used_written: Option<u64>,
    pub(super) free: FreeSpace,
}

impl Group {
    /// The group of a chunk that is new in this transaction: all free.
    pub(super) fn new(chunk: &Chunk, recorded: Recorded) -> Group {
        let all = Runs::one(chunk.start.0..chunk.end());
        Group::with_free(chunk, 0, None, FreeSpace::new(recorded, None, all, chunk))
    }

    pub(super) fn with_free(chunk: &Chunk, used: u64, used_written: Option<u64>, free: FreeSpace) -> Group {
        Group { start: chunk.start.0, length: chunk.length, flags: chunk.flags, used, used_written, free }
    }

    pub(super) fn is_new(&self) -> bool {
        self.used_written.is_none()
    }

    /// Sees to it that no extent is in `range`, which was free before, before it is used: asks the extent tree once for
    /// each free run.
    fn prove_free(&mut self, store: &BlockStore, range: &Range<u64>) -> Result<()> {
        if self.free.proven.contains(range) {
            return Ok(());
        }
        for run in self.free.before.meeting(range) {
            free_space::check_free(store, self.start, &run)?;
            self.free.proven.insert(run);
        }
        Ok(())
    }

    /// The free runs of `range` over which the csum tree has something: it is asked once for each.
    fn stale_csums(&mut self, store: &BlockStore, range: &Range<u64>) -> Result<Runs> {
        let mut stale = Runs::default();
        if self.free.asked_for_csums.contains(range) {
            return Ok(stale);
        }
        for run in self.free.before.meeting(range) {
            if csums::is_any_over(store, &run)? {
                stale.insert(run.clone());
            }
            self.free.asked_for_csums.insert(run);
        }
        Ok(stale)
    }

    /// Takes a range that is available for `kind`. Of data, returns the free runs it is in that have checksums.
    fn claim(&mut self, store: &BlockStore, range: Range<u64>, kind: SpaceKind) -> Result<Runs> {
        self.prove_free(store, &range)?;
        let stale = if kind.is_for_data() { self.stale_csums(store, &range)? } else { Runs::default() };
        self.free.available.remove(range.clone());
        self.free.after.remove(range.clone());
        self.free.hint = range.end;
        self.used += range.end - range.start;
        Ok(stale)
    }
}

impl FreeSpace {
    /// A place for `len` bytes. All that is asked of one group has the same `align`.
    fn find(&mut self, len: u64, align: u64) -> Option<u64> {
        let found = (len < self.no_run_of).then(|| self.available.find(len, align, self.hint)).flatten();
        if found.is_none() {
            self.no_run_of = self.no_run_of.min(len);
        }
        found
    }

    /// Whether nothing was or is allocated, in the committed state and in this transaction.
    fn is_whole(&self, length: u64) -> bool {
        self.before.total() == length && self.after.total() == length
    }

    pub(super) fn new(recorded: Recorded, written: Option<Runs>, after: Runs, chunk: &Chunk) -> FreeSpace {
        let mut available = after.clone();
        chunk.superblock_windows().into_iter().for_each(|w| available.remove(w));
        // What does not come from the free space tree comes from the extent tree, or is new.
        let proven = if written.is_none() { after.clone() } else { Runs::default() };
        let (before, no_run_of) = (after.clone(), u64::MAX);
        let asked_for_csums = Runs::default();
        FreeSpace { recorded, before, proven, asked_for_csums, written, after, available, hint: 0, no_run_of }
    }
}

/// The block groups that a transaction has touched, by logical start. Others are loaded when they are needed, so
/// that a small change reads little of a large image.
#[derive(Default)]
pub(super) struct Space {
    groups: BTreeMap<u64, Group>,
    /// The group that served each kind last.
    current: BTreeMap<SpaceKind, u64>,
    /// The longest free run of groups that are not loaded.
    longest: BTreeMap<u64, u64>,
    /// Space in one piece that is kept for nodes, out of what is available.
    for_nodes: Range<u64>,
    /// Free runs that were handed out in part, with checksums left over from something else.
    pub(super) stale_csums: Runs,
    /// Change of the superblock's `bytes_used`.
    pub(super) bytes_used_delta: i64,
}

impl Space {
    /// Adds the group of a new chunk, which serves its kind from now on.
    pub(super) fn add_new(&mut self, kind: SpaceKind, group: Group) {
        self.current.insert(kind, group.start);
        self.groups.insert(group.start, group);
    }

    /// `len` bytes aligned to `align` from an existing block group of `kind`; `None` when none has them.
    pub(super) fn alloc(
        &mut self,
        store: &BlockStore,
        kind: SpaceKind,
        len: u64,
        align: u64,
    ) -> Result<Option<Logical>> {
        let current = self.current.get(&kind).copied().filter(|start| self.groups.contains_key(start));
        if let Some(start) = current
            && let Some(at) = self.take(store, start, kind, len, align)?
        {
            return Ok(Some(at));
        }
        for start in candidates(store, kind) {
            if self.longest_run(store, start)?.is_some_and(|longest| longest < len) {
                continue;
            }
            if let Some(at) = self.take(store, start, kind, len, align)? {
                self.current.insert(kind, start);
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The same from the group at `start` alone.
    fn take(
        &mut self,
        store: &BlockStore,
        start: u64,
        kind: SpaceKind,
        len: u64,
        align: u64,
    ) -> Result<Option<Logical>> {
        let group = self.load(store, start)?;
        let Some(at) = group.free.find(len, align) else { return Ok(None) };
        let stale = group.claim(store, at..at + len, kind)?;
        stale.iter().for_each(|run| self.stale_csums.insert(run));
        self.bytes_used_delta += len.cast_signed();
        Ok(Some(Logical(at)))
    }

    /// A place for a node among the others, in a group of this transaction; `None` when none has room for more of them.
    pub(super) fn alloc_node(&mut self, kind: SpaceKind, nodesize: u64) -> Option<Logical> {
        if self.for_nodes.is_empty() {
            let group = self.current.get(&kind).and_then(|start| self.groups.get_mut(start))?;
            let at = group.free.find(NODES_TOGETHER * nodesize, nodesize)?;
            self.for_nodes = at..at + NODES_TOGETHER * nodesize;
            group.free.available.remove(self.for_nodes.clone());
        }
        let at = self.for_nodes.start;
        let (_, group) = self.groups.range_mut(..=at).next_back()?;
        group.free.after.remove(at..at + nodesize);
        group.used += nodesize;
        self.for_nodes.start += nodesize;
        self.bytes_used_delta += nodesize.cast_signed();
        Some(Logical(at))
    }

    /// Gives back what is left of the space for nodes.
    pub(super) fn release_nodes(&mut self) {
        let rest = std::mem::take(&mut self.for_nodes);
        if let Some((_, group)) =
            self.groups.range_mut(..=rest.start).next_back().filter(|_| !rest.is_empty())
        {
            group.free.available.insert(rest);
            group.free.no_run_of = u64::MAX;
        }
    }

    /// Bytes of the longest free run of a group that is not loaded, where that is cheap to know.
    fn longest_run(&mut self, store: &BlockStore, start: u64) -> Result<Option<u64>> {
        if self.groups.contains_key(&start) {
            return Ok(None);
        }
        if let Some(longest) = self.longest.get(&start) {
            return Ok(Some(*longest));
        }
        let Some(chunk) = store.chunks().lookup(Logical(start)) else { return Ok(None) };
        let longest = free_space::longest_run(store, chunk)?;
        self.longest.extend(longest.map(|longest| (start, longest)));
        Ok(longest)
    }

    /// Bytes of `kind` that may be handed out in the groups that are loaded.
    pub(super) fn available_now(&self, kind: SpaceKind) -> u64 {
        let loaded = self.groups.values().filter(|g| kind.is_served_by(g.flags));
        loaded.map(|g| g.free.available.total()).sum()
    }

    /// The same, more groups being loaded until it is `enough`.
    pub(super) fn available(&mut self, store: &BlockStore, kind: SpaceKind, enough: u64) -> Result<u64> {
        let mut sum = self.available_now(kind);
        for start in candidates(store, kind) {
            if sum >= enough {
                break;
            }
            if !self.groups.contains_key(&start) && self.longest_run(store, start)? != Some(0) {
                sum += self.load(store, start)?.free.available.total();
            }
        }
        Ok(sum)
    }

    /// A block group of data or metadata that was empty in the committed state and is now, but of another kind than
    /// `kind`: it leaves the transaction's groups. The last of its kind stays where it alone says that there are to be
    /// two copies of data.
    pub(super) fn take_empty_group(&mut self, store: &BlockStore, kind: SpaceKind) -> Result<Option<Group>> {
        let tells = |c: &Chunk| {
            let is_dup_data = SpaceKind::Data.is_served_by(c.flags) && c.flags & bg::DUP != 0;
            is_dup_data && store.chunks().iter().filter(|other| other.flags == c.flags).count() == 1
        };
        let others = store.chunks().iter().filter(|c| {
            !kind.is_served_by(c.flags)
                && !SpaceKind::System.is_served_by(c.flags)
                && c.is_linear()
                && !tells(c)
        });
        for (start, length) in others.map(|c| (c.start.0, c.length)) {
            if self.longest_run(store, start)?.is_some_and(|longest| longest < length) {
                continue;
            }
            let group = self.load(store, start)?;
            if !group.is_new() && group.used == 0 && group.free.is_whole(length) {
                group.prove_free(store, &(start..start + length))?;
                self.current.retain(|_, current| *current != start);
                return Ok(self.groups.remove(&start));
            }
        }
        Ok(None)
    }

    /// Whether this transaction allocated the `len` bytes at `at`: they were free in the committed state, and are not
    /// now. The generation on disk does not tell: an image may lie.
    pub(super) fn is_own(&mut self, store: &BlockStore, at: Logical, len: u64) -> Result<bool> {
        let Some(chunk) = store.chunks().lookup(at) else { return Ok(false) };
        let group = self.load(store, chunk.start.0)?;
        let end = at.checked_add(len).map_or(u64::MAX, |e| e.0);
        Ok(group.free.before.contains(&(at.0..end)) && !group.free.after.touches(&(at.0..end)))
    }

    /// Gives back `len` bytes at `at`. What this transaction allocated itself is reusable at once; what the committed
    /// state reaches, only after the commit.
    pub(super) fn free(&mut self, store: &BlockStore, at: Logical, len: u64) -> Result<()> {
        let own = self.is_own(store, at, len)?;
        let chunk = store.chunks().lookup(at).ok_or_else(|| {
            Error::corrupt("BLK-01", format!("unable to find chunk map for logical {at} length {len}"))
        })?;
        let group = self.load(store, chunk.start.0)?;
        let end = at.checked_add(len).map_or(u64::MAX, |e| e.0);
        if end > group.start + group.length || group.used < len {
            return Err(Error::corrupt(
                "BG-08",
                format!("extent {at} length {len} is not counted in its block group"),
            ));
        }
        if group.free.after.touches(&(at.0..end)) {
            return Err(Error::corrupt("FS-08", format!("extent {at} length {len} is in use, and free")));
        }
        group.used -= len;
        group.free.after.insert(at.0..end);
        if own {
            group.free.available.insert(at.0..end);
            group.free.no_run_of = u64::MAX;
        }
        self.bytes_used_delta -= len.cast_signed();
        Ok(())
    }

    fn load(&mut self, store: &BlockStore, start: u64) -> Result<&mut Group> {
        use std::collections::btree_map::Entry;
        match self.groups.entry(start) {
            Entry::Occupied(group) => Ok(group.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(free_space::load_group(store, Logical(start))?)),
        }
    }

    /// The groups of this transaction.
    pub(super) fn groups(&self) -> impl DoubleEndedIterator<Item = &Group> {
        self.groups.values()
    }

    pub(super) fn remove_group(&mut self, start: u64) {
        self.groups.remove(&start);
        self.current.retain(|_, current| *current != start);
    }

    pub(super) fn group_mut(&mut self, start: u64) -> Option<&mut Group> {
        self.groups.get_mut(&start)
    }
}

/// The chunks that may serve `kind`, newest first.
fn candidates(store: &BlockStore, kind: SpaceKind) -> Vec<u64> {
    store.chunks().iter().rev().filter(|c| kind.is_served_by(c.flags)).map(|c| c.start.0).collect()
}
