//! What is taken from the source, and what is said at the end.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use btrfsimg_compress::PoolStats;
use btrfsimg_ondisk::Timespec;

use crate::existing::Existing;
use crate::preserve::Preserve;
use crate::write::encode::CompressionPolicy;

/// Where holes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sparse {
    /// What the source says are holes.
    #[default]
    Auto,
    /// Aligned runs of zeros of at least 64 KiB, and nothing else: independent of the source's file system.
    Always,
    /// No holes.
    Never,
}

/// How a tree is imported.
#[derive(Clone)]
pub struct Options<'a> {
    /// What comes along with type and contents. Permission bits of what is new always do.
    pub preserve: Preserve,
    /// Which compression is used.
    pub compression: CompressionPolicy,
    /// Threads that read and encode; at least one.
    pub workers: usize,
    /// Where holes come from.
    pub sparse: Sparse,
    /// Reproducible images: mtimes after this are set to it, and the other times to the mtime.
    pub clamp: Option<Timespec>,
    /// Files that are left out: (device major, minor) and inode. The image itself, say.
    pub exclude: Vec<((u32, u32), u64)>,
    /// What happens to files that are there already.
    pub existing: Existing,
    /// Have [`Report::copied`] list all that is imported.
    pub list: bool,
    /// Set from outside to stop.
    pub cancel: Option<&'a AtomicBool>,
    /// Told now and then what is in so far.
    pub progress: Option<&'a dyn Fn(&Report)>,
}

/// Something that was not imported, or not wholly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The source's path.
    pub path: PathBuf,
    /// What went wrong.
    pub reason: String,
}

/// What was imported.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symlinks, fifos, sockets, devices.
    pub others: u64,
    /// Bytes of file data read.
    pub bytes_read: u64,
    /// Bytes of file data stored, but for inline ones.
    pub bytes_stored: u64,
    /// The workspaces of the compression.
    pub workspaces: PoolStats,
    /// Paths below the source, empty for itself, of all that went in, if they are wanted.
    pub copied: Vec<PathBuf>,
    /// What went wrong; the rest is in.
    pub failures: Vec<Failure>,
}
