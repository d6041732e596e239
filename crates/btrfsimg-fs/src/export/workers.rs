//! Regular files: created, decoded and written by several threads.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender};

use super::Shared;
use super::attributes::{set_default_mode, set_on_fd, set_property};
use super::dirs::Dir;
use super::host::{self, failed};
use crate::error::Result;
use crate::read::{Info, Loss, Segment, SegmentKind, SegmentReader};

/// Most bytes that are read and written at once.
const BUFFER: u64 = 1 << 20;

/// A file to create and fill.
#[derive(Debug)]
pub(super) struct FileJob {
    pub(super) dir: Dir,
    pub(super) name: Vec<u8>,
    pub(super) info: Info,
    /// The file, where the walk made it: one that gets more names.
    pub(super) made: Option<(OwnedFd, bool)>,
}

/// A large file, filled in parts. Whoever lets go of it last finishes it: the walk, or who writes a part.
#[derive(Debug)]
pub(super) struct LargeFile {
    dir: Dir,
    name: Vec<u8>,
    info: Info,
    fd: OwnedFd,
    is_new: bool,
    failed: AtomicBool,
    losses: Mutex<Vec<Loss>>,
}

/// A run of bytes of a large file.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) segment: Segment,
    /// Where in the segment it starts.
    pub(super) skip: u64,
    pub(super) len: u64,
}

/// What is handed to a thread at once.
#[derive(Debug)]
pub(super) enum Work {
    /// Small files.
    Files(Vec<FileJob>),
    /// Parts of a large one.
    Parts(Arc<LargeFile>, Vec<Part>),
}

/// Work, and what its end is known by.
#[derive(Debug)]
pub(super) struct Todo {
    pub(super) work: Work,
    pub(super) _under_way: Sender<Infallible>,
}

/// Works until there is no more.
pub(super) fn run(shared: &Shared<'_>, todo: &Receiver<Todo>) {
    let mut writer = Writer { shared, reader: SegmentReader::default(), buffer: Vec::new() };
    for Todo { work, _under_way } in todo {
        match work {
            Work::Files(jobs) => jobs.into_iter().for_each(|job| writer.file(job)),
            Work::Parts(file, parts) => {
                let written = parts.iter().try_for_each(|part| writer.part(&file, part));
                if let Err(e) = written {
                    file.fail(shared, e);
                }
                LargeFile::release(file, shared);
            }
        }
    }
}

struct Writer<'a> {
    shared: &'a Shared<'a>,
    reader: SegmentReader,
    buffer: Vec<u8>,
}

impl Writer<'_> {
    fn file(&mut self, job: FileJob) {
        let shared = self.shared;
        let (made, dir) = (job.made, job.dir);
        let result = match made {
            Some(made) => Ok(made),
            None => host::create_file(shared, &dir, &job.name, &job.info),
        }
        .and_then(|(fd, is_new)| {
            set_property(shared, &fd, &job.info);
            let mut losses = Vec::new();
            let filled = self.fill(&fd, &job.info, &mut losses)?;
            finish(shared, &dir, &job.name, &fd, &job.info, is_new, filled)?;
            shared.damaged(&dir.state.node.path_of(&job.name), losses);
            Ok(())
        });
        match result {
            Ok(()) => _ = shared.files.fetch_add(1, Ordering::Relaxed),
            Err(e) => shared.fail(&dir.state.node.path_of(&job.name), e),
        }
        dir.release(shared);
    }

    /// Writes all segments that are no holes. Says where the last of them ends.
    fn fill(&mut self, fd: &OwnedFd, info: &Info, losses: &mut Vec<Loss>) -> Result<u64> {
        let mut filled = 0;
        let mut segments = self.shared.segments(info);
        while let Some(segment) = segments.next(self.shared.fs)? {
            if !matches!(segment.kind, SegmentKind::Hole) {
                self.write(fd, info, &segment, 0, segment.len, losses)?;
                filled = segment.offset.saturating_add(segment.len);
            }
        }
        losses.extend(segments.take_losses());
        Ok(filled)
    }

    fn part(&mut self, file: &LargeFile, part: &Part) -> Result<()> {
        let mut losses = Vec::new();
        self.write(&file.fd, &file.info, &part.segment, part.skip, part.len, &mut losses)?;
        file.add_losses(losses);
        Ok(())
    }

    fn write(
        &mut self,
        fd: &OwnedFd,
        info: &Info,
        segment: &Segment,
        skip: u64,
        len: u64,
        losses: &mut Vec<Loss>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let n = (len - done).min(BUFFER);
            let from = skip.saturating_add(done);
            self.buffer.resize(usize::try_from(n).unwrap_or_default(), 0);
            let (fs, buffer) = (self.shared.fs, &mut self.buffer);
            match self.shared.options.salvage {
                true => self.reader.salvage(fs, info, segment, from, buffer, &mut |loss| losses.push(loss)),
                false => self.reader.read(fs, info, segment, from, buffer)?,
            }
            host::write_all_at(fd, &self.buffer, segment.offset.saturating_add(from))?;
            self.shared.bytes.fetch_add(n, Ordering::Relaxed);
            done += n;
        }
        Ok(())
    }
}

/// Gives a file that was filled, up to `filled` at least, its length and its attributes.
fn finish(
    shared: &Shared<'_>,
    dir: &Dir,
    name: &[u8],
    fd: &OwnedFd,
    info: &Info,
    is_new: bool,
    filled: u64,
) -> Result<()> {
    if info.size() != filled {
        rustix::fs::ftruncate(fd, info.size()).map_err(failed("set length"))?;
    }
    if is_new {
        set_default_mode(shared, fd.as_fd(), info)?;
    }
    if is_new || shared.options.preserve.changes_existing() {
        set_on_fd(shared, dir.state.node.spot(name), fd.as_fd(), info)?;
    }
    Ok(())
}

impl LargeFile {
    /// Creates the file of `job`. Where that fails it is reported.
    pub(super) fn create(shared: &Shared<'_>, job: FileJob) -> Option<Arc<LargeFile>> {
        let FileJob { dir, name, info, made } = job;
        let made = match made {
            Some(made) => Ok(made),
            None => host::create_file(shared, &dir, &name, &info),
        };
        match made {
            Ok((fd, is_new)) => {
                set_property(shared, &fd, &info);
                let failed = AtomicBool::new(false);
                let losses = Mutex::default();
                Some(Arc::new(LargeFile { dir, name, info, fd, is_new, failed, losses }))
            }
            Err(e) => {
                shared.fail(&dir.state.node.path_of(&name), e);
                dir.release(shared);
                None
            }
        }
    }

    /// Reports its first failure.
    pub(super) fn fail(&self, shared: &Shared<'_>, error: crate::Error) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            shared.fail(&self.dir.state.node.path_of(&self.name), error);
        }
    }

    /// Notes bytes that are not what they were.
    pub(super) fn add_losses(&self, losses: Vec<Loss>) {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).extend(losses);
    }

    /// Ends a use; the last one finishes the file.
    pub(super) fn release(file: Arc<LargeFile>, shared: &Shared<'_>) {
        let Some(file) = Arc::into_inner(file) else { return };
        let mut losses = std::mem::take(&mut *file.losses.lock().unwrap_or_else(PoisonError::into_inner));
        losses.sort_by_key(|loss| loss.range.start);
        shared.damaged(&file.dir.state.node.path_of(&file.name), losses);
        if !file.failed.load(Ordering::Relaxed) {
            match finish(shared, &file.dir, &file.name, &file.fd, &file.info, file.is_new, 0) {
                Ok(()) => _ = shared.files.fetch_add(1, Ordering::Relaxed),
                Err(e) => file.fail(shared, e),
            }
        }
        file.dir.release(shared);
    }
}
