//! Defragmentation: the bytes of files in fewer extents, or compressed otherwise, in place in the image.
//!
//! A file stays as it is to its users: contents, times, flags, property. What it shares with other files or
//! snapshots stays shared, unless asked otherwise. What would gain nothing is left alone. The work comes in steps,
//! each for a transaction of its own, as new extents need room before the old ones give theirs back.

mod file;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use btrfsimg_compress::{CompressionSpec, WorkspacePool};
use btrfsimg_ondisk::EXTENT_MAX;

use crate::error::{Error, Result};
use crate::lookup::Place;
use crate::txn::Transaction;
use file::FileCursor;
use walk::Directory;

/// Extents of at least so many bytes are large enough, as with `btrfs filesystem defragment`.
pub const DEFAULT_TARGET: u64 = 32 << 20;

/// How files are made anew.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Compress so, above any property, which stays as it is. Else as the property and the flags say; what is
    /// compressed where they say nothing stays so.
    pub request: Option<CompressionSpec>,
    /// Try what is compressed by the algorithm already, too: another level may store it in less.
    pub recompress: bool,
    /// Extents of at least so many bytes are left alone, where they are of the algorithm that is wanted. From a
    /// chunk (128 KiB) to 128 MiB; memory grows with it.
    pub target: u64,
    /// Give a file extents of its own where it shares some.
    pub unshare: bool,
}

/// What was done to a file, or to all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// File bytes that are in new extents.
    pub rewritten: u64,
    /// Extents that they were in, and are in.
    pub extents_before: u64,
    /// See `extents_before`.
    pub extents_after: u64,
    /// Bytes on disk that the old extents took; of one that is left in use elsewhere in its file, a share.
    pub disk_before: u64,
    /// Bytes on disk that the new extents take.
    pub disk_after: u64,
    /// Extents left alone because they are shared.
    pub shared: u64,
    /// File bytes in them.
    pub shared_bytes: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.rewritten += other.rewritten;
        self.extents_before += other.extents_before;
        self.extents_after += other.extents_after;
        self.disk_before += other.disk_before;
        self.disk_after += other.disk_after;
        self.shared += other.shared;
        self.shared_bytes += other.shared_bytes;
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Files looked at.
    pub files: u64,
    /// Files with new extents.
    pub files_rewritten: u64,
    /// Of all files.
    pub total: Counts,
}

/// Who is told of each file, by the path that was given or found.
pub trait Observer {
    /// A file is done.
    fn file(&mut self, path: &[u8], counts: &Counts);

    /// A file or directory was left alone.
    fn failed(&mut self, path: &[u8], error: Error);
}

/// The work that is left.
#[derive(Debug)]
pub struct Defrag {
    options: Options,
    waiting: Vec<(Vec<u8>, Place, bool)>,
    /// How many of those that wait were begun.
    begun: usize,
    directories: Vec<Directory>,
    current: Option<FileCursor>,
    /// Inodes with more names, and directories.
    visited: HashSet<Place>,
    /// Those of them that were added since the last mark.
    visited_since: Vec<Place>,
    report: Report,
}

/// A place to go back to when a step fails: it costs as much as the step added, and the directories above it.
#[derive(Debug)]
pub struct Mark {
    waiting: usize,
    begun: usize,
    directories: Vec<Directory>,
    current: Option<FileCursor>,
    report: Report,
}

impl Defrag {
    /// Nothing to do yet.
    pub fn new(options: Options) -> Defrag {
        let target = options.target.clamp(btrfsimg_compress::MAX_CHUNK as u64, EXTENT_MAX);
        Defrag {
            options: Options { target, ..options },
            waiting: Vec::new(),
            begun: 0,
            directories: Vec::new(),
            current: None,
            visited: HashSet::new(),
            visited_since: Vec::new(),
            report: Report::default(),
        }
    }

    /// Adds the file at `place`, or with `recursive` all files below it in its subvolume; told of as `path`.
    pub fn add(&mut self, path: Vec<u8>, place: Place, recursive: bool) {
        self.waiting.push((path, place, recursive));
    }

    /// Where the work is, to go back to. There is one mark: an earlier one is no more.
    pub fn mark(&mut self) -> Mark {
        self.visited_since.clear();
        Mark {
            waiting: self.waiting.len(),
            begun: self.begun,
            directories: self.directories.clone(),
            current: self.current.clone(),
            report: self.report,
        }
    }

    /// Goes back to the last mark, as if nothing had been added or done since.
    pub fn rewind(&mut self, mark: Mark) {
        for place in self.visited_since.drain(..) {
            self.visited.remove(&place);
        }
        self.waiting.truncate(mark.waiting);
        (self.begun, self.directories) = (mark.begun, mark.directories);
        (self.current, self.report) = (mark.current, mark.report);
    }

    /// Says whether `place` is met for the first time.
    fn visit(&mut self, place: Place) -> bool {
        let is_new = self.visited.insert(place);
        self.visited_since.extend(is_new.then_some(place));
        is_new
    }

    /// What was done so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Works until about `bytes` of files are in new extents. Says whether there is more to do.
    ///
    /// # Errors
    /// `NoSpace`, `Corrupt`, `Io`, `Interrupted`: nothing of this step is to be committed.
    pub fn step(
        &mut self,
        tx: &mut Transaction<'_>,
        bytes: u64,
        pool: &WorkspacePool,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<bool> {
        let start = self.report.total.rewritten;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let done = self.report.total.rewritten - start
                + self.current.as_ref().map_or(0, FileCursor::rewritten_in_step);
            if done >= bytes {
                self.current.iter_mut().for_each(FileCursor::end_step);
                return Ok(true);
            }
            let Some(cursor) = &mut self.current else {
                if self.next_file(tx, observer)? {
                    continue;
                }
                return Ok(false);
            };
            match cursor.advance(tx, &self.options, pool) {
                Ok(true) => {}
                Ok(false) => self.end_file(observer),
                Err(file::Failure::Left(error)) => {
                    observer.failed(cursor.path(), error);
                    self.end_file(observer);
                }
                Err(file::Failure::Fatal(error)) => return Err(error),
            }
        }
    }

    fn end_file(&mut self, observer: &mut dyn Observer) {
        let Some(cursor) = self.current.take() else { return };
        let counts = cursor.counts();
        self.report.files += 1;
        self.report.files_rewritten += u64::from(counts.rewritten > 0);
        self.report.total.add(counts);
        observer.file(cursor.path(), counts);
    }
}
