//! Where image bytes come from and go to. The only module that touches the operating system for them.

mod file;
mod mem;
mod overlay;

use std::io;

use btrfsimg_ondisk::Physical;

pub use file::{Access, FileDevice};
pub use mem::MemDevice;
pub use overlay::OverlayDevice;

/// A device of a file system: bytes at physical offsets.
///
/// The seam where files, memory, and the tests' failing and crashing devices plug in.
pub trait Device: Send + Sync {
    /// Fills `buf` with the bytes at `at`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the device ends before.
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()>;

    /// Writes all of `buf` at `at`; a file grows to hold it.
    fn write_at(&self, buf: &[u8], at: Physical) -> io::Result<()>;

    /// Returns when all that was written is durable.
    fn sync(&self) -> io::Result<()>;

    /// Bytes of the device.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Makes a file this long; new bytes are a hole. Block devices refuse.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes the `len` bytes at `at` zeros that take no room; a block device discards them.
    ///
    /// # Errors
    /// `Unsupported` where the host cannot.
    fn punch(&self, at: Physical, len: u64) -> io::Result<()> {
        let _ = (at, len);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether it is a file with holes, so that what is not used takes no room and is to take none.
    fn is_sparse(&self) -> bool {
        false
    }
}
