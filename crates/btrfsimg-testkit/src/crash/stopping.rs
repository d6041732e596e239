//! A device during whose use somebody asks to stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use btrfsimg_fs::device::Device;
use btrfsimg_ondisk::Physical;

/// Passes everything on, and sets a flag at one of the reads, writes, changes of length and syncs.
pub struct StoppingDevice {
    inner: Arc<dyn Device>,
    nth: usize,
    flag: Arc<AtomicBool>,
    uses: AtomicUsize,
}

impl StoppingDevice {
    /// Above `inner`; the flag is set at the use number `nth`, from 0.
    pub fn new(inner: Arc<dyn Device>, nth: usize) -> StoppingDevice {
        StoppingDevice { inner, nth, flag: Arc::default(), uses: AtomicUsize::new(0) }
    }

    /// What is set.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.flag.clone()
    }

    /// How often it was used.
    pub fn uses(&self) -> usize {
        self.uses.load(Ordering::Relaxed)
    }

    fn used(&self) {
        if self.uses.fetch_add(1, Ordering::Relaxed) == self.nth {
            self.flag.store(true, Ordering::Relaxed);
        }
    }
}

impl Device for StoppingDevice {
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()> {
        self.used();
        self.inner.read_at(buf, at)
    }

    fn write_at(&self, buf: &[u8], at: Physical) -> io::Result<()> {
        self.used();
        self.inner.write_at(buf, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.used();
        self.inner.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.used();
        self.inner.set_len(len)
    }
}
