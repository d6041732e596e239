//! What can go wrong in breaking an image.

/// The result of breaking an image.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an image was not changed. Nothing was written then, but for I/O errors of the writing itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The image, or the chosen target, has no place for the fault.
    #[error("no place for {fault}: it needs {needs}")]
    NoPlace {
        /// The fault's name.
        fault: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// The image cannot be read or written.
    #[error(transparent)]
    Image(#[from] btrfsimg_fs::Error),
}

/// What a fault's function gives: `None` where there is no place.
pub(crate) type Found<T> = std::result::Result<Option<T>, btrfsimg_fs::Error>;

/// What is there, or no place for the fault.
macro_rules! some {
    ($found:expr) => {
        match $found {
            Some(found) => found,
            None => return Ok(None),
        }
    };
}
pub(crate) use some;
