//! A file from first to last byte, in bounded memory.

use std::io::{self, Read};

use super::segments::owner_of;
use super::{Filesystem, Info, Segment, SegmentKind, Segments};
use crate::error::{Error, Result};
use crate::lookup::{Owner, Scratch, check_size, read_segment};

/// Most bytes that one read of the device gives.
pub(super) const READ_MAX: u64 = 1 << 20;

/// Reads a regular file in order. Memory: one extent, at most 1 MiB of it.
pub struct FileReader<'f> {
    fs: &'f Filesystem,
    owner: Owner,
    segments: Segments,
    /// The segment that is being read, and how much of it was.
    current: Option<(Segment, u64)>,
    scratch: Scratch,
    /// Bytes of the last part, for [`Read`].
    buffer: Vec<u8>,
    taken: usize,
}

impl<'f> FileReader<'f> {
    /// Reads the regular file `info` from its start.
    ///
    /// # Errors
    /// `IsDirectory`, `Invalid` when it is no regular file.
    pub fn new(fs: &'f Filesystem, info: &Info) -> Result<FileReader<'f>> {
        FileReader::between(fs, info, 0, info.size())
    }

    /// Reads its bytes in `from..to`, cut at its size.
    ///
    /// # Errors
    /// As [`FileReader::new`].
    pub fn between(fs: &'f Filesystem, info: &Info, from: u64, to: u64) -> Result<FileReader<'f>> {
        check_regular(info)?;
        Ok(FileReader {
            fs,
            owner: owner_of(info),
            segments: Segments::between(info, from, to),
            current: None,
            scratch: Scratch::default(),
            buffer: Vec::new(),
            taken: 0,
        })
    }

    /// The next part; `None` at the end. The bytes of [`Part::Data`] are in `buf`, all of it.
    ///
    /// # Errors
    /// `Corrupt` with inode and offset (checksum mismatch on every copy, bytes that do not decode), `Io`.
    pub fn next_part(&mut self, buf: &mut Vec<u8>) -> Result<Option<Part>> {
        let (segment, done) = match self.current.take() {
            Some(current) => current,
            None => match self.segments.next(self.fs)? {
                Some(segment) => (segment, 0),
                None => return Ok(None),
            },
        };
        let offset = segment.offset.saturating_add(done);
        let left = segment.len - done;
        if matches!(segment.kind, SegmentKind::Hole) {
            return Ok(Some(Part::Hole { offset, len: left }));
        }
        let len = left.min(READ_MAX);
        buf.resize(usize::try_from(len).unwrap_or_default(), 0);
        read_segment(self.fs, self.owner, &segment, done, buf, &mut self.scratch)?;
        if len < left {
            self.current = Some((segment, done + len));
        }
        Ok(Some(Part::Data { offset }))
    }
}

/// What [`FileReader::next_part`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Zeros that are not stored.
    Hole {
        /// Where in the file, in bytes.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Bytes, in the buffer.
    Data {
        /// Where in the file, in bytes.
        offset: u64,
    },
}

/// Whether `info` is a regular file, of a size that one can have.
pub(super) fn check_regular(info: &Info) -> Result<()> {
    let name = || format!("root={} inode {}", info.place.tree, info.place.ino);
    match info.file_type() {
        Some(btrfsimg_ondisk::FileType::REG_FILE) => check_size(info.place, info.size()),
        Some(btrfsimg_ondisk::FileType::DIR) => Err(Error::IsDirectory(name())),
        _ => Err(Error::Invalid(format!("{}: not a regular file", name()))),
    }
}

impl Read for FileReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.buffer.len() {
            let mut buffer = std::mem::take(&mut self.buffer);
            let part = self.next_part(&mut buffer).map_err(io::Error::other)?;
            (self.buffer, self.taken) = (buffer, 0);
            match part {
                None => {
                    self.buffer.clear();
                    return Ok(0);
                }
                Some(Part::Data { .. }) => {}
                Some(Part::Hole { offset, len }) => {
                    let now = len.min(READ_MAX);
                    self.buffer.clear();
                    self.buffer.resize(usize::try_from(now).unwrap_or_default(), 0);
                    if now < len {
                        let offset = offset.saturating_add(now);
                        let rest = Segment { offset, len: len - now, kind: SegmentKind::Hole };
                        self.current = Some((rest, 0));
                    }
                }
            }
        }
        let rest = &self.buffer[self.taken..];
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        self.taken += n;
        Ok(n)
    }
}
