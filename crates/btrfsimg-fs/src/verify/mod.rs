//! Judging an image on its own: every rule of `format/06`, from the bytes alone.
//!
//! **Architecture invariant.** Nothing here is shared with what writes or reads images: of this crate only
//! [`crate::device`], [`crate::chunk_map`] and the error type, and the on-disk and compression crates.
//!
//! The trees are read once each, leaves in parallel runs. Extents are kept in one compact sorted list; references,
//! names and types are compared as sums of hashes and named in further passes only where a sum is not zero. So memory
//! grows with the number of extents (48 bytes each), free runs, directories and subvolumes, not with names or files.

mod chunks;
mod csums;
mod decode;
mod extents;
mod finding;
mod free_space;
mod image;
mod inode;
mod inodes;
mod log;
mod log_names;
mod names;
mod parallel;
mod passes;
mod paths;
mod progress;
mod quota;
mod reach;
mod report;
mod roots;
mod sharing;
mod subvolumes;
mod supers;
mod usage;
mod users;
mod walk;

use btrfsimg_ondisk::{BlockContext, Superblock, check_sys_chunk_array, sys_chunks};

pub use finding::{Count, Finding, Place};
pub use progress::Progress;
pub use report::Summary;

use crate::chunk_map::{Chunk, ChunkMap};
use crate::device::Device;
use crate::error::{Error, Result};
use finding::Findings;
use image::Image;
use passes::Passes;
use report::Report;

/// What to judge.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Compare every sector of data with its checksum, on every copy.
    pub data: bool,
    /// Decode every compressed extent.
    pub decode: bool,
    /// Threads that read and judge; 0 is one for each processor.
    pub threads: usize,
}

impl Options {
    /// Metadata alone, on all processors.
    pub fn new() -> Options {
        Options::default()
    }

    /// Whether data are compared with their checksums.
    pub fn with_data(self, data: bool) -> Options {
        Options { data, ..self }
    }

    /// Whether compressed extents are decoded.
    pub fn with_decode(self, decode: bool) -> Options {
        Options { decode, ..self }
    }

    /// How many threads work; 0 is one for each processor.
    pub fn with_threads(self, threads: usize) -> Options {
        Options { threads, ..self }
    }
}

/// Judges the file system on `device`. Findings go to `sink` as they are made, the fault at the root before what
/// follows from it; an image that breaks rules is no error here.
///
/// # Errors
/// `NotBtrfs` when nothing looks like a superblock, `Unsupported` for features and profiles that this version does
/// not understand, `Io` when the device's length or a superblock cannot be read.
pub fn verify(device: &dyn Device, options: &Options, sink: &mut dyn FnMut(&Finding)) -> Result<Summary> {
    verify_watched(device, options, &Progress::default(), sink)
}

/// [`verify`], saying in `progress` how far it has come.
///
/// # Errors
/// As those of [`verify`].
pub fn verify_watched(
    device: &dyn Device,
    options: &Options,
    progress: &Progress,
    sink: &mut dyn FnMut(&Finding),
) -> Result<Summary> {
    let mut report = Report::new(sink);
    let mut findings = Findings::default();
    let device_len = device.len().map_err(Error::io("length of the image"))?;
    let superblock = supers::read(device, device_len, &mut findings);
    report.absorb(findings);
    let superblock = match superblock {
        Ok(Some(superblock)) => superblock,
        Ok(None) => return Ok(report.finish()),
        Err(error) => return unsupported(report, error),
    };
    let Some(mut image) = open(device, device_len, superblock, options, progress) else {
        return Ok(report.finish());
    };
    let mut passes = Passes::new(&mut report);
    passes.chunk_tree(&mut image);
    if let Some(chunk) = image.chunks.iter().find(|c| !c.is_linear()) {
        let profile = btrfsimg_ondisk::block_group_flags::describe(chunk.flags);
        let error = Error::Unsupported(format!("block group profile {profile} (chunk {})", chunk.start));
        return unsupported(report, error);
    }
    passes.find_root_tree(&mut image);
    passes.trees(&image, options);
    Ok(report.finish())
}

/// What ends the verification: `error`, unless there is worse to tell.
fn unsupported(report: Report<'_>, error: Error) -> Result<Summary> {
    let summary = report.finish();
    if summary.errors > 0 { Ok(summary) } else { Err(error) }
}

/// The image with its system chunks mapped; `None` when the superblock does not say how to read it.
fn open<'a>(
    device: &'a dyn Device,
    device_len: u64,
    superblock: Superblock,
    options: &Options,
    progress: &'a Progress,
) -> Option<Image<'a>> {
    let ctx = BlockContext {
        nodesize: usize::try_from(superblock.nodesize.get()).ok()?,
        sectorsize: u64::from(superblock.sectorsize.get()),
        csum: superblock.csum_kind()?,
        fsid: superblock.metadata_fsid(),
        generation: superblock.generation.get(),
        incompat: superblock.incompat_flags.get(),
    };
    let mut bad = Vec::new();
    check_sys_chunk_array(&superblock, &mut |v| bad.extend(v.key));
    let mut chunks = ChunkMap::default();
    for entry in sys_chunks(&superblock).map_while(std::result::Result::ok) {
        if !bad.contains(&entry.key) {
            let chunk = Chunk::new(btrfsimg_ondisk::Logical(entry.key.offset), entry.chunk, entry.stripes);
            // An overlap is found again in the chunk tree, which says where.
            let _ = chunks.insert(chunk);
        }
    }
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        n => n,
    };
    Some(Image {
        device,
        device_len,
        superblock,
        ctx,
        chunks,
        threads,
        chunk_tree_uuid: None,
        chunk_tree: None,
        root_tree: None,
        progress,
    })
}
