//! A cheap look before an expensive attempt: zstd at level 1 runs at several GB/s over bytes that do not
//! compress, which makes media in a forced build nearly free.

use crate::heuristic::is_compressible;
use crate::{MAX_CHUNK, zstd};

/// Says "hopeless" where the heuristic finds nothing and zstd at level 1 does not make the chunk smaller.
pub(crate) struct Probe {
    encoder: zstd::Encoder,
    scratch: Vec<u8>,
}

impl Probe {
    pub(crate) fn new() -> Probe {
        let scratch = Vec::with_capacity(zstd_safe::compress_bound(MAX_CHUNK));
        Probe { encoder: zstd::Encoder::new(1), scratch }
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.encoder.bytes() + self.scratch.capacity()
    }

    /// The heuristic comes first because it costs compressible chunks next to nothing.
    pub(crate) fn is_hopeless(&mut self, chunk: &[u8]) -> bool {
        if is_compressible(chunk) {
            return false;
        }
        self.encoder.encode(chunk, &mut self.scratch);
        self.scratch.len() >= chunk.len()
    }
}
