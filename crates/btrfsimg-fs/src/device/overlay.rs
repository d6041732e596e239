//! Writes kept in memory above a device that is not touched: to see what a change would need.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use btrfsimg_ondisk::Physical;

use super::Device;

/// Granularity of what is kept, in bytes.
const PAGE: u64 = 4096;

/// A device whose writes go to memory.
pub struct OverlayDevice {
    base: Arc<dyn Device>,
    pages: RwLock<BTreeMap<u64, Box<[u8]>>>,
    len: RwLock<u64>,
}

impl OverlayDevice {
    /// Over `base`.
    ///
    /// # Errors
    /// When the length of `base` cannot be read.
    pub fn new(base: Arc<dyn Device>) -> io::Result<OverlayDevice> {
        let len = RwLock::new(base.len()?);
        Ok(OverlayDevice { base, pages: RwLock::default(), len })
    }

    /// The page at `at` of the base; zeros where it ends.
    #[expect(clippy::cast_possible_truncation, reason = "at most a page")]
    fn base_page(&self, at: u64) -> io::Result<Box<[u8]>> {
        let mut page = vec![0; PAGE as usize].into_boxed_slice();
        let have = self.base.len()?.saturating_sub(at).min(PAGE);
        if have > 0 {
            self.base.read_at(&mut page[..have as usize], Physical(at))?;
        }
        Ok(page)
    }
}

/// The pages that `len` bytes at `at` touch: page start, offset in the page, offset in the bytes, length.
#[expect(clippy::cast_possible_truncation, reason = "at most a page")]
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = at + done as u64;
        let within = (here % PAGE) as usize;
        let n = (PAGE as usize - within).min(len - done);
        let piece = (n > 0).then_some((here - within as u64, within, done, n));
        done += n;
        piece
    })
}

impl Device for OverlayDevice {
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()> {
        if at
            .0
            .checked_add(buf.len() as u64)
            .is_none_or(|end| end > *self.len.read().unwrap_or_else(PoisonError::into_inner))
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let touched = pages.range(at.0 / PAGE * PAGE..at.0 + buf.len() as u64).next().is_some();
        if !touched && at.0 + buf.len() as u64 <= self.base.len()? {
            return self.base.read_at(buf, at);
        }
        for (page, within, done, n) in pieces(at.0, buf.len()) {
            match pages.get(&page) {
                Some(bytes) => buf[done..done + n].copy_from_slice(&bytes[within..within + n]),
                None => buf[done..done + n].copy_from_slice(&self.base_page(page)?[within..within + n]),
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], at: Physical) -> io::Result<()> {
        let end = at.0.checked_add(buf.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        for (page, within, done, n) in pieces(at.0, buf.len()) {
            let bytes = match pages.entry(page) {
                std::collections::btree_map::Entry::Occupied(e) => e.into_mut(),
                std::collections::btree_map::Entry::Vacant(e) => e.insert(self.base_page(page)?),
            };
            bytes[within..within + n].copy_from_slice(&buf[done..done + n]);
        }
        let mut len = self.len.write().unwrap_or_else(PoisonError::into_inner);
        *len = (*len).max(end);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(*self.len.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        *self.len.write().unwrap_or_else(PoisonError::into_inner) = len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;

    #[test]
    fn reads_see_writes_and_the_base_does_not() {
        let base = Arc::new(MemDevice::new((0..=255u8).cycle().take(20_000).collect()));
        let before = base.contents();
        let overlay = OverlayDevice::new(base.clone()).unwrap();
        let mut expect = before.clone();
        for (at, len) in [(5usize, 3usize), (4090, 20), (8192, 8192), (19_000, 3_000)] {
            let bytes = vec![0xee; len];
            overlay.write_at(&bytes, Physical(at as u64)).unwrap();
            expect.resize(expect.len().max(at + len), 0);
            expect[at..at + len].copy_from_slice(&bytes);
        }
        for (at, len) in [(0usize, 22_000usize), (4095, 2), (100, 50), (21_990, 10)] {
            let mut buf = vec![0; len];
            overlay.read_at(&mut buf, Physical(at as u64)).unwrap();
            assert_eq!(buf, expect[at..at + len], "{at} {len}");
        }
        assert!(overlay.read_at(&mut [0; 2], Physical(21_999)).is_err());
        assert_eq!(base.contents(), before);
    }
}
