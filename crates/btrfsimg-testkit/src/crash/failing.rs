//! A device whose n-th change fails.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use btrfsimg_fs::device::Device;
use btrfsimg_ondisk::Physical;

/// How it fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failing {
    /// Which write, change of length or sync is the first to fail, from 0.
    pub nth: usize,
    /// Whether all later ones fail too.
    pub from_then_on: bool,
    /// Whether a write that fails has written its first half.
    pub short: bool,
    /// The error's kind.
    pub kind: io::ErrorKind,
}

/// Something that was to change the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// A write at this offset.
    Write(u64),
    /// A change of length.
    SetLen,
    /// A sync.
    Sync,
}

/// Passes everything on, but for what fails.
pub struct FailingDevice {
    inner: Arc<dyn Device>,
    failing: Failing,
    attempts: Mutex<Vec<(Attempt, bool)>>,
}

impl FailingDevice {
    /// Above `inner`.
    pub fn new(inner: Arc<dyn Device>, failing: Failing) -> FailingDevice {
        FailingDevice { inner, failing, attempts: Mutex::default() }
    }

    /// All writes, changes of length and syncs there were, and whether each succeeded.
    pub fn attempts(&self) -> Vec<(Attempt, bool)> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn next(&self, attempt: Attempt) -> io::Result<()> {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let n = attempts.len();
        let fails = n == self.failing.nth || (self.failing.from_then_on && n > self.failing.nth);
        attempts.push((attempt, !fails));
        if fails { Err(io::Error::new(self.failing.kind, "made to fail")) } else { Ok(()) }
    }
}

impl Device for FailingDevice {
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()> {
        self.inner.read_at(buf, at)
    }

    fn write_at(&self, buf: &[u8], at: Physical) -> io::Result<()> {
        let result = self.next(Attempt::Write(at.0));
        match result {
            Ok(()) => self.inner.write_at(buf, at),
            Err(_) if self.failing.short => {
                self.inner.write_at(&buf[..buf.len() / 2], at)?;
                result
            }
            Err(_) => result,
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.next(Attempt::Sync)?;
        self.inner.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.next(Attempt::SetLen)?;
        self.inner.set_len(len)
    }
}
