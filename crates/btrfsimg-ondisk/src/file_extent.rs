//! EXTENT_DATA: a file's reference to an extent (`format/02 §2.7`).

use zerocopy::{FromBytes, IntoBytes};

use crate::check::Violation;
use crate::{FILE_EXTENT_LEN, FileExtentHead, FileExtentRange, Logical};

/// Stored as is.
pub const COMPRESSION_NONE: u8 = 0;
/// zlib.
pub const COMPRESSION_ZLIB: u8 = 1;
/// LZO1X in btrfs framing.
pub const COMPRESSION_LZO: u8 = 2;
/// zstd.
pub const COMPRESSION_ZSTD: u8 = 3;

/// Where the data of a file extent are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileExtentKind<'a> {
    /// In the item itself, as stored (compressed or not).
    Inline(&'a [u8]),
    /// In an extent on disk; `disk_bytenr` 0 is a hole.
    Regular(FileExtentRange),
    /// Allocated, reads as zeros.
    Prealloc(FileExtentRange),
}

/// A file extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileExtent<'a> {
    /// Transaction that created the data.
    pub generation: u64,
    /// Uncompressed bytes of the whole extent; exact for an inline one.
    pub ram_bytes: u64,
    /// The code on disk, 0 to 3.
    pub compression: u8,
    /// Where the data are.
    pub kind: FileExtentKind<'a>,
}

impl<'a> FileExtent<'a> {
    /// The extent in `data`.
    ///
    /// # Errors
    /// FE-03, FE-04, FE-10: too short, an unknown type, a wrong length. Other rules are the tree checker's.
    pub fn parse(data: &'a [u8]) -> Result<FileExtent<'a>, Violation> {
        let Ok((head, rest)) = FileExtentHead::read_from_prefix(data) else {
            return Err(Violation::new(
                "FE-03",
                format!("invalid item size, have {} expect at least 21", data.len()),
            ));
        };
        let range = || {
            FileExtentRange::read_from_bytes(rest).map_err(|_| {
                Violation::new(
                    "FE-10",
                    format!("invalid item size, have {} expect {FILE_EXTENT_LEN}", data.len()),
                )
            })
        };
        let kind = match head.kind {
            0 => FileExtentKind::Inline(rest),
            1 => FileExtentKind::Regular(range()?),
            2 => FileExtentKind::Prealloc(range()?),
            k => {
                return Err(Violation::new(
                    "FE-04",
                    format!("invalid file extent type, have {k} expect [0, 2]"),
                ));
            }
        };
        Ok(FileExtent {
            generation: head.generation.get(),
            ram_bytes: head.ram_bytes.get(),
            compression: head.compression,
            kind,
        })
    }

    /// Appends the item's bytes to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut head = FileExtentHead::zeroed();
        head.generation = self.generation.into();
        head.ram_bytes = self.ram_bytes.into();
        head.compression = self.compression;
        head.kind = match self.kind {
            FileExtentKind::Inline(_) => 0,
            FileExtentKind::Regular(_) => 1,
            FileExtentKind::Prealloc(_) => 2,
        };
        out.extend_from_slice(head.as_bytes());
        match &self.kind {
            FileExtentKind::Inline(stored) => out.extend_from_slice(stored),
            FileExtentKind::Regular(range) | FileExtentKind::Prealloc(range) => {
                out.extend_from_slice(range.as_bytes());
            }
        }
    }

    /// The range of a regular or preallocated extent.
    pub fn range(&self) -> Option<&FileExtentRange> {
        match &self.kind {
            FileExtentKind::Inline(_) => None,
            FileExtentKind::Regular(range) | FileExtentKind::Prealloc(range) => Some(range),
        }
    }

    /// The extent on disk and its bytes there, unless inline or a hole.
    pub fn disk_extent(&self) -> Option<(Logical, u64)> {
        let range = self.range()?;
        let bytenr = range.disk_bytenr.get();
        (bytenr != 0).then_some((Logical(bytenr), range.disk_num_bytes.get()))
    }

    /// Bytes of the file that it covers, from its key's offset: of an inline extent, up to the end of its last
    /// sector; saturating.
    pub fn covers(&self, sectorsize: u64) -> u64 {
        match self.range() {
            Some(range) => range.num_bytes.get(),
            None => self.ram_bytes.checked_next_multiple_of(sectorsize).unwrap_or(u64::MAX),
        }
    }

    /// What it adds to its inode's `nbytes`.
    pub fn nbytes(&self) -> u64 {
        match self.range() {
            Some(range) if range.disk_bytenr.get() == 0 => 0,
            Some(range) => range.num_bytes.get(),
            None => self.ram_bytes,
        }
    }
}
