//! Files and trees from one place of an image to another, or from another image, as cp(1) copies them.

mod file;
mod relocate;
mod source;
mod tree;

use std::sync::atomic::{AtomicBool, Ordering};

use btrfsimg_ondisk::Timespec;

use crate::error::{Error, Result};
use crate::existing::Existing;
use crate::preserve::Preserve;
use crate::write::encode::CompressionPolicy;

pub use relocate::relocate;
pub use source::Source;
pub use tree::{Links, copy_contents, copy_entry};

/// Whether copies share the extents of what they are copied from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reflink {
    /// Where that is possible.
    #[default]
    Auto,
    /// Always; a file whose extents cannot be shared is not copied.
    Always,
    /// Never: the bytes are stored again.
    Never,
}

/// How files are copied.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// What comes along with type and contents. Permission bits of what is new always do; inode flags are those of a new
    /// inode, as with cp(1).
    pub preserve: Preserve,
    /// Whether extents are shared.
    pub reflink: Reflink,
    /// What happens to files that are there already.
    pub existing: Existing,
    /// How data are compressed that are stored again.
    pub compression: CompressionPolicy,
    /// Times that are kept are at most this.
    pub clamp: Option<Timespec>,
    /// Threads that decode and encode.
    pub workers: usize,
    /// Set from outside to stop.
    pub cancel: Option<&'a AtomicBool>,
    /// Have [`Report::copied`] list all that is copied.
    pub list: bool,
}

impl Options<'_> {
    fn check_cancelled(&self) -> Result<()> {
        match self.cancel {
            Some(cancel) if cancel.load(Ordering::Relaxed) => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }
}

/// What was copied, by the path in the source.
#[derive(Debug, Default)]
pub struct Report {
    /// All of it, if it is wanted.
    pub copied: Vec<Vec<u8>>,
    /// What was not copied, or not wholly, and why. The rest is there.
    pub failures: Vec<(Vec<u8>, Error)>,
}
