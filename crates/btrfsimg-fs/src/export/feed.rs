//! Hands out regular files to the threads that write them: small ones in batches, large ones in parts.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::Shared;
use super::dirs::Dir;
use super::workers::{FileJob, LargeFile, Part, Todo, Work};
use crate::open_files;
use crate::read::{Info, Segment, SegmentKind};

/// Files with more bytes than this are written in parts.
const LARGE: u64 = 8 << 20;
/// Bytes of a batch of small files, and of a part of a large one.
const BATCH_BYTES: u64 = 1 << 20;
/// Files of a batch.
const BATCH_FILES: usize = 64;
/// Open files of all batches together, at most.
const BATCH_FDS: usize = 128;

/// How many of the threads that are asked for the limit of open files allows: each has a batch or a large file, and one
/// waits for it.
pub(super) fn workers(asked: usize) -> usize {
    asked.clamp(1, (open_files::limit() / 16).max(1))
}

pub(super) struct Feed<'a> {
    shared: &'a Shared<'a>,
    work: Sender<Todo>,
    /// All that is handed out has a clone of the sender: the receiver is told when the last of them is gone.
    under_way: (Sender<Infallible>, Receiver<Infallible>),
    batch: Batch,
    /// Open files of one batch, at most.
    fds: usize,
}

/// Files that wait to be handed out.
#[derive(Default)]
struct Batch {
    jobs: Vec<FileJob>,
    bytes: u64,
    fds: usize,
}

impl<'a> Feed<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, work: Sender<Todo>, workers: usize) -> Feed<'a> {
        // One batch is filled and one waits to be sent; for each worker one is in the queue and one with it.
        let fds = BATCH_FDS.min(open_files::limit() / 4) / (2 * workers + 2);
        Feed { shared, work, under_way: bounded(0), batch: Batch::default(), fds: fds.max(2) }
    }

    /// A regular file `name` in `dir`, which is made already where `made` is it.
    pub(super) fn file(&mut self, dir: &Dir, name: &[u8], info: &Info, made: Option<(OwnedFd, bool)>) {
        let is_first = self.batch.jobs.last().is_none_or(|j| !Arc::ptr_eq(&j.dir.state, &dir.state));
        let is_open = made.is_some();
        let job = FileJob { dir: dir.share(), name: name.to_vec(), info: *info, made };
        let stored = info.size().min(info.item.nbytes.get());
        if stored > LARGE {
            return self.large(job);
        }
        self.batch.fds += usize::from(is_first) + usize::from(is_open);
        self.batch.bytes += stored;
        self.batch.jobs.push(job);
        let Batch { jobs, bytes, fds } = &self.batch;
        if *bytes >= BATCH_BYTES || jobs.len() >= BATCH_FILES || *fds >= self.fds {
            self.flush();
        }
    }

    /// Hands out what waits.
    pub(super) fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if !batch.jobs.is_empty() {
            self.send(Work::Files(batch.jobs));
        }
    }

    /// Waits until all that was given is written.
    pub(super) fn wait(&mut self) {
        self.flush();
        let (handed_out, done) = std::mem::replace(&mut self.under_way, bounded(0));
        drop(handed_out);
        // Nothing is ever sent: it ends with the last clone.
        let _ = done.recv();
    }

    fn send(&self, work: Work) {
        // The other side is gone only after a panic, which the scope passes on.
        let _ = self.work.send(Todo { work, _under_way: self.under_way.0.clone() });
    }

    /// Hands out a large file in parts.
    fn large(&mut self, job: FileJob) {
        let info = job.info;
        let Some(file) = LargeFile::create(self.shared, job) else { return };
        let mut segments = self.shared.segments(&info);
        let (mut parts, mut bytes) = (Vec::new(), 0);
        loop {
            match segments.next(self.shared.fs) {
                Ok(Some(segment)) if matches!(segment.kind, SegmentKind::Hole) => {}
                Ok(Some(segment)) => self.cut(&file, &segment, &mut parts, &mut bytes),
                Ok(None) => {
                    file.add_losses(segments.take_losses());
                    break;
                }
                Err(e) => {
                    file.fail(self.shared, e);
                    break;
                }
            }
        }
        if !parts.is_empty() {
            self.send(Work::Parts(file.clone(), parts));
        }
        LargeFile::release(file, self.shared);
    }

    /// Adds a segment to `parts`, and sends those whenever they are enough.
    fn cut(&self, file: &Arc<LargeFile>, segment: &Segment, parts: &mut Vec<Part>, bytes: &mut u64) {
        let mut skip = 0;
        while skip < segment.len {
            let len = (segment.len - skip).min(BATCH_BYTES);
            parts.push(Part { segment: segment.clone(), skip, len });
            skip += len;
            *bytes += len;
            if *bytes >= BATCH_BYTES {
                self.send(Work::Parts(file.clone(), std::mem::take(parts)));
                *bytes = 0;
            }
        }
    }
}
