//! A device in memory.

use std::io;
use std::sync::{PoisonError, RwLock};

use btrfsimg_ondisk::Physical;

use super::Device;

/// A device in memory, for tests and for building small images without a file.
#[derive(Default)]
pub struct MemDevice {
    bytes: RwLock<Vec<u8>>,
}

impl MemDevice {
    /// A device that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> MemDevice {
        MemDevice { bytes: RwLock::new(bytes) }
    }

    /// A copy of its bytes.
    pub fn contents(&self) -> Vec<u8> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn range(len: usize, at: Physical) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(at.0).ok()?;
    Some(start..start.checked_add(len)?)
}

impl Device for MemDevice {
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let range = range(buf.len(), at).and_then(|r| bytes.get(r));
        buf.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], at: Physical) -> io::Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let range = range(buf.len(), at).ok_or(io::ErrorKind::InvalidInput)?;
        if bytes.len() < range.end {
            bytes.resize(range.end, 0);
        }
        bytes[range].copy_from_slice(buf);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.read().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.bytes.write().unwrap_or_else(PoisonError::into_inner).resize(len, 0);
        Ok(())
    }

    fn punch(&self, at: Physical, len: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let range = range(len, at).and_then(|r| bytes.get_mut(r));
        range.ok_or(io::ErrorKind::InvalidInput)?.fill(0);
        Ok(())
    }

    fn is_sparse(&self) -> bool {
        true
    }
}
