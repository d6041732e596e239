//! The one error type of the library.

use std::fmt;
use std::io;

use btrfsimg_ondisk::{Logical, Violation, objectid};

/// What the library's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Every message names the object it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// The object and what was done to it.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The image breaks a rule of the format.
    #[error("{0}")]
    Corrupt(Box<Corrupt>),
    /// No superblock where one must be.
    #[error("not a btrfs file system: {0}")]
    NotBtrfs(String),
    /// The image uses a feature that is not supported, or not for writing.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The image is full.
    #[error("no space left in the image: {what}{}", .needed.map(|n| format!("; a size of {n} bytes will do")).unwrap_or_default())]
    NoSpace {
        /// What did not fit.
        what: String,
        /// A total size that will do, in bytes, when known.
        needed: Option<u64>,
    },
    /// There is no such path, tree, or property.
    #[error("{0}: no such file or directory")]
    NotFound(String),
    /// There is already something by that name.
    #[error("{0}: already exists")]
    Exists(String),
    /// A component of a path is no directory.
    #[error("{0}: not a directory")]
    NotDirectory(String),
    /// A directory where something else is wanted.
    #[error("{0}: is a directory")]
    IsDirectory(String),
    /// A directory that has entries.
    #[error("{0}: directory not empty")]
    NotEmpty(String),
    /// The subvolume or inode may not be changed.
    #[error("{0}")]
    ReadOnly(String),
    /// An argument that makes no sense for the object; says what would.
    #[error("{0}")]
    Invalid(String),
    /// The image is in use.
    #[error("{0}")]
    Busy(String),
    /// A signal asked to stop. Nothing was changed.
    #[error("interrupted; nothing was changed")]
    Interrupted,
    /// An earlier error after the first write left this handle unusable. The image itself holds its last
    /// committed state.
    #[error("an earlier error made this handle unusable; open the image again")]
    Poisoned,
}

/// Where and how an image breaks a rule.
#[derive(Debug, Clone)]
pub struct Corrupt {
    /// The kind of block, when it is about one.
    pub block: Option<CorruptBlock>,
    /// The rule.
    pub violation: Violation,
}

/// A tree block with a fault.
#[derive(Debug, Clone, Copy)]
pub struct CorruptBlock {
    /// The tree it was reached from.
    pub tree: u64,
    /// Its logical address.
    pub logical: Logical,
    /// Whether it is a leaf, as far as known.
    pub leaf: bool,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(b) = &self.block {
            let kind = if b.leaf { "leaf" } else { "node" };
            write!(f, "corrupt {kind}: root={} block={} ", objectid::Printed(b.tree), b.logical)?;
        } else {
            f.write_str("corrupt file system: ")?;
        }
        self.violation.fmt(f)
    }
}

impl Error {
    /// Wraps an I/O error with the object it is about.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    /// A rule that no single block shows.
    pub fn corrupt(rule: &'static str, reason: impl Into<String>) -> Error {
        Error::Corrupt(Box::new(Corrupt { block: None, violation: Violation::new(rule, reason) }))
    }

    /// A rule broken by a block.
    pub fn corrupt_block(tree: u64, logical: Logical, leaf: bool, violation: Violation) -> Error {
        Error::Corrupt(Box::new(Corrupt { block: Some(CorruptBlock { tree, logical, leaf }), violation }))
    }

    /// The same once more, for whoever meets its consequences later.
    pub(crate) fn again(&self) -> Error {
        match self {
            Error::Io { what, source } => {
                let source = match source.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(source.kind(), source.to_string()),
                };
                Error::Io { what: what.clone(), source }
            }
            Error::Corrupt(corrupt) => Error::Corrupt(corrupt.clone()),
            Error::NoSpace { what, needed } => Error::NoSpace { what: what.clone(), needed: *needed },
            Error::Unsupported(what) => Error::Unsupported(what.clone()),
            Error::Interrupted => Error::Interrupted,
            other => Error::Invalid(other.to_string()),
        }
    }

    /// The same of the root of a tree, in whose place one of `generation` serves.
    pub(crate) fn read_by(self, generation: Option<u64>) -> Error {
        let generation =
            generation.map_or_else(|| "an older generation".to_owned(), |g| format!("generation {g}"));
        self.and(&format!("; read as of {generation}: what was changed later is missing"))
    }

    /// The same with what follows from it.
    pub(crate) fn and(mut self, consequence: &str) -> Error {
        match &mut self {
            Error::Io { what, .. } => what.push_str(consequence),
            Error::Corrupt(corrupt) => corrupt.violation.reason.push_str(consequence),
            _ => {}
        }
        self
    }

    /// A full image, size unknown.
    pub fn no_space(what: impl Into<String>) -> Error {
        Error::NoSpace { what: what.into(), needed: None }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Error::Io { what: "system call".to_owned(), source: errno.into() }
    }
}
