//! How far a verification has come.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes judged of those to judge; another thread may look at any time.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Bytes of tree blocks and data that were read, each once.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Bytes of tree blocks and data to read, as the extent tree has them: 0 until it was read, and only an estimate
    /// where it is damaged.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(super) fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn expect(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }
}
