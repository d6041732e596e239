//! A file in order, decoded by several threads.

use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::file::{READ_MAX, check_regular};
use super::segments::owner_of;
use super::{Filesystem, Info, Segment, SegmentKind, Segments};
use crate::error::Result;
use crate::lookup::{Owner, Scratch, read_segment};

/// A part of a file: zeros that are not stored, or bytes.
#[derive(Debug)]
pub enum Piece<'a> {
    /// So many zeros.
    Hole(u64),
    /// These bytes.
    Data(&'a [u8]),
}

/// A part to read, and where its bytes go.
struct Job {
    segment: Segment,
    skip: u64,
    len: usize,
    done: Sender<Result<Vec<u8>>>,
}

/// What comes next, in order.
enum Next {
    Hole(u64),
    Data(Receiver<Result<Vec<u8>>>),
    Failed(crate::error::Error),
}

/// Calls `each` with every part of the bytes `range` of the regular file `info`, in order, while `workers`
/// threads read and decode ahead. Memory: at most 4 parts of 1 MiB for each worker.
///
/// # Errors
/// `IsDirectory`, `Invalid` when it is no regular file; `Corrupt` with inode and offset, `Io`, and what `each`
/// returns.
pub fn stream_file(
    fs: &Filesystem,
    info: &Info,
    range: std::ops::Range<u64>,
    workers: usize,
    mut each: impl FnMut(Piece<'_>) -> Result<()>,
) -> Result<()> {
    check_regular(info)?;
    let workers = workers.max(1);
    let owner = owner_of(info);
    thread::scope(|scope| {
        let (jobs, to_do) = bounded::<Job>(workers);
        let (queue, parts) = bounded::<Next>(2 * workers);
        for _ in 0..workers {
            let to_do = to_do.clone();
            scope.spawn(move || work(fs, owner, &to_do));
        }
        drop(to_do);
        let segments = Segments::between(info, range.start, range.end);
        scope.spawn(move || plan(fs, segments, &jobs, &queue));
        for part in parts {
            match part {
                Next::Hole(len) => each(Piece::Hole(len))?,
                Next::Failed(e) => return Err(e),
                Next::Data(bytes) => {
                    // A worker that is gone has panicked, and the scope passes that on.
                    let Ok(bytes) = bytes.recv() else { return Ok(()) };
                    each(Piece::Data(&bytes?))?;
                }
            }
        }
        Ok(())
    })
}

/// Cuts the file into parts of at most 1 MiB, until nobody waits for them any more.
fn plan(fs: &Filesystem, mut segments: Segments, jobs: &Sender<Job>, queue: &Sender<Next>) {
    loop {
        let segment = match segments.next(fs) {
            Ok(Some(segment)) => segment,
            Ok(None) => return,
            Err(e) => {
                // Whoever stopped listening does not need the error.
                let _ = queue.send(Next::Failed(e));
                return;
            }
        };
        if matches!(segment.kind, SegmentKind::Hole) {
            if queue.send(Next::Hole(segment.len)).is_err() {
                return;
            }
            continue;
        }
        let mut skip = 0;
        while skip < segment.len {
            let len = (segment.len - skip).min(READ_MAX);
            let (done, bytes) = bounded(1);
            let size = usize::try_from(len).unwrap_or_default();
            let job = Job { segment: segment.clone(), skip, len: size, done };
            if queue.send(Next::Data(bytes)).is_err() || jobs.send(job).is_err() {
                return;
            }
            skip += len;
        }
    }
}

fn work(fs: &Filesystem, owner: Owner, jobs: &Receiver<Job>) {
    let mut scratch = Scratch::default();
    for job in jobs {
        let mut bytes = vec![0; job.len];
        let read = read_segment(fs, owner, &job.segment, job.skip, &mut bytes, &mut scratch);
        // Whoever stopped listening does not need the bytes.
        let _ = job.done.send(read.map(|()| bytes));
    }
}
