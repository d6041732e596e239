//! The workers of the data path: read, compress, checksum. Results do not depend on how many there are.

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use btrfsimg_compress::{Decision, WorkspacePool};
use crossbeam_channel::{Receiver, Sender};

use super::host::{self, SourceFile};
use super::options::Sparse;
use super::xattrs::SourceXattrs;
use crate::preserve::Preserve;
use crate::write::encode::{EncodedData, EncodedExtent, Encoder, Format};

/// Zero runs that become holes with [`Sparse::Always`] are whole blocks of this many bytes.
pub(super) const ZERO_BLOCK: usize = 64 << 10;

/// A regular file to be read whole.
pub(super) struct SmallFile {
    pub(super) dir: Arc<OwnedFd>,
    pub(super) name: CString,
    /// What stat said.
    pub(super) size: u64,
    pub(super) may_have_holes: bool,
    pub(super) preserve: Preserve,
    pub(super) flags: u64,
    pub(super) property: Option<btrfsimg_compress::Property>,
}

/// Work for one worker.
pub(super) enum Job {
    /// Some small files.
    Files(Vec<SmallFile>),
    /// A piece of a large one.
    Piece { file: SourceFile, range: Range<u64>, decision: Decision },
}

/// A small file after its work.
pub(super) struct FileDone {
    pub(super) extents: Vec<EncodedExtent>,
    /// Bytes that were there.
    pub(super) size: u64,
    pub(super) xattrs: SourceXattrs,
    /// Inode flags, inherited and the source's own.
    pub(super) flags: u64,
}

/// The result of a job.
pub(super) struct Done {
    pub(super) id: u64,
    pub(super) data: EncodedData,
    /// One for each file, or one for the piece.
    pub(super) files: Vec<io::Result<FileDone>>,
}

/// What all workers share.
pub(super) struct Shared<'a> {
    pub(super) pool: &'a WorkspacePool,
    pub(super) format: Format,
    pub(super) sparse: Sparse,
    pub(super) policy: &'a crate::write::encode::CompressionPolicy,
}

/// Works until there are no more jobs.
pub(super) fn run(
    shared: &Shared<'_>,
    jobs: &Receiver<(u64, Job)>,
    results: &Sender<Done>,
    used: &Receiver<EncodedData>,
) {
    let mut worker = Worker { encoder: Encoder::new(shared.pool, shared.format), shared, buf: Vec::new() };
    for (id, job) in jobs {
        // Buffers come back when they are placed: fresh memory costs a page fault for each page.
        let mut data = used.try_recv().unwrap_or_default();
        data.clear();
        let files = match job {
            Job::Files(files) => files.iter().map(|f| worker.small_file(f, &mut data)).collect(),
            Job::Piece { file, range, decision } => vec![worker.piece(&file, range, decision, &mut data)],
        };
        worker.encoder.checksum(&mut data);
        // The receiver is gone only when the import has failed.
        if results.send(Done { id, data, files }).is_err() {
            return;
        }
    }
}

struct Worker<'s, 'a> {
    encoder: Encoder<'a>,
    shared: &'s Shared<'a>,
    buf: Vec<u8>,
}

impl Worker<'_, '_> {
    fn small_file(&mut self, job: &SmallFile, data: &mut EncodedData) -> io::Result<FileDone> {
        let file = SourceFile::new(host::open_file(job.dir.as_fd(), &job.name)?);
        let xattrs = SourceXattrs::of(file.as_fd(), &job.preserve)?;
        let mut flags = job.flags;
        if job.preserve.flags {
            flags |= host::flags_of(file.as_fd(), false);
        }
        let decision = super::decision(self.shared.policy, flags, job.property.as_ref(), &xattrs);
        let (data_start, inline_start) = (data.data.len(), data.inline.len());
        let done = self.contents(&file, job, decision, data);
        if done.is_err() {
            data.data.truncate(data_start);
            data.inline.truncate(inline_start);
        }
        done.map(|(extents, size)| FileDone { extents, size, xattrs, flags })
    }

    fn contents(
        &mut self,
        file: &SourceFile,
        job: &SmallFile,
        decision: Decision,
        data: &mut EncodedData,
    ) -> io::Result<(Vec<EncodedExtent>, u64)> {
        let mut extents = Vec::new();
        if job.size == 0 {
            // Files in /proc have contents, whatever stat says.
            let mut bytes = std::mem::take(&mut self.buf);
            file.read_to_end(&mut bytes)?;
            let size = self.whole(bytes, decision, data, &mut extents);
            return Ok((extents, size));
        }
        let holes_count = job.may_have_holes && self.shared.sparse == Sparse::Auto;
        if job.size <= self.shared.format.sectorsize as u64 && !holes_count {
            let bytes = self.read(file, 0..job.size)?;
            let size = self.whole(bytes, decision, data, &mut extents);
            return Ok((extents, size));
        }
        let size = self.range(file, 0..job.size, job.may_have_holes, decision, data, &mut extents)?;
        Ok((extents, size))
    }

    /// Encodes all bytes of a file, inline if they fit so, and keeps their buffer. Says how many there are.
    fn whole(
        &mut self,
        bytes: Vec<u8>,
        decision: Decision,
        data: &mut EncodedData,
        extents: &mut Vec<EncodedExtent>,
    ) -> u64 {
        match self.encoder.encode_inline(&bytes, decision, data) {
            Some(inline) => extents.push(inline),
            None => self.encode(0, &bytes, decision, data, extents),
        }
        let size = bytes.len() as u64;
        self.buf = bytes;
        size
    }

    fn piece(
        &mut self,
        file: &SourceFile,
        range: Range<u64>,
        decision: Decision,
        data: &mut EncodedData,
    ) -> io::Result<FileDone> {
        let mut extents = Vec::new();
        let size = self.range(file, range, true, decision, data, &mut extents)?;
        Ok(FileDone { extents, size, xattrs: SourceXattrs::default(), flags: 0 })
    }

    /// Reads and encodes `range` of a file, holes left out. Says where the file's bytes ended.
    fn range(
        &mut self,
        file: &SourceFile,
        range: Range<u64>,
        may_have_holes: bool,
        decision: Decision,
        data: &mut EncodedData,
        extents: &mut Vec<EncodedExtent>,
    ) -> io::Result<u64> {
        let sector = self.shared.format.sectorsize as u64;
        // With Always, holes come from contents alone: what the source calls a hole is read, as zeros.
        let seek = may_have_holes && self.shared.sparse == Sparse::Auto;
        let mut at = range.start;
        while at < range.end {
            let segment = match seek {
                false => at..range.end,
                true => match file.next_data(at, range.end)? {
                    // A hole up to the end, or a file that is shorter by now.
                    None => return Ok(file.size()?.clamp(at, range.end)),
                    Some(d) => {
                        (d.start / sector * sector).max(at)..d.end.next_multiple_of(sector).min(range.end)
                    }
                },
            };
            let end = segment.start + self.segment(file, segment.clone(), decision, data, extents)?;
            if end < segment.end {
                return Ok(end);
            }
            at = end;
        }
        Ok(range.end)
    }

    /// Reads and encodes a range without holes that the source knows of. Says how many bytes were there.
    fn segment(
        &mut self,
        file: &SourceFile,
        segment: Range<u64>,
        decision: Decision,
        data: &mut EncodedData,
        extents: &mut Vec<EncodedExtent>,
    ) -> io::Result<u64> {
        if decision == Decision::Raw && self.shared.sparse != Sparse::Always {
            let len =
                usize::try_from(segment.end - segment.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
            let read = |buf: &mut [u8]| file.read(buf, segment.start);
            return self.encoder.read_raw(segment.start, len, data, extents, read).map(|n| n as u64);
        }
        let bytes = self.read(file, segment.clone())?;
        self.encode(segment.start, &bytes, decision, data, extents);
        let len = bytes.len() as u64;
        self.buf = bytes;
        Ok(len)
    }

    fn read(&mut self, file: &SourceFile, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.buf);
        let len = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        bytes.resize(len, 0);
        let read = file.read(&mut bytes, range.start)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn encode(
        &mut self,
        offset: u64,
        bytes: &[u8],
        decision: Decision,
        data: &mut EncodedData,
        extents: &mut Vec<EncodedExtent>,
    ) {
        if self.shared.sparse != Sparse::Always {
            return self.encoder.encode(offset, bytes, decision, data, extents);
        }
        let is_hole = |block: &[u8]| block.len() == ZERO_BLOCK && is_zero(block);
        let mut start = 0;
        while start < bytes.len() {
            let blocks = bytes[start..].chunks(ZERO_BLOCK);
            let hole = blocks.clone().take_while(|b| is_hole(b)).count() * ZERO_BLOCK;
            start += hole;
            let blocks = bytes[start..].chunks(ZERO_BLOCK);
            let len = blocks.take_while(|b| !is_hole(b)).map(<[u8]>::len).sum::<usize>();
            self.encoder.encode(offset + start as u64, &bytes[start..start + len], decision, data, extents);
            start += len;
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    rest.iter().all(|b| *b == 0) && words.iter().all(|w| u128::from_ne_bytes(*w) == 0)
}
