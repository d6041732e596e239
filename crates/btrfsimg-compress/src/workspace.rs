//! The memory that one compression at a time needs: a codec's tables, and the probe's.

use crate::method::{Algorithm, Method};
use crate::probe::Probe;
use crate::{lzo, zlib, zstd};

/// From this zstd level on an attempt is slow enough to be worth a probe: those below run at 350 MB/s and more
/// over archives and pictures, those from here on at 120 and less.
const PROBE_ZSTD_FROM: i32 = 11;

/// A codec's state for one method, reused from chunk to chunk. The bytes it makes do not depend on what it
/// made before. Get one from a [`WorkspacePool`](crate::WorkspacePool), or make one for a single thread.
pub struct Workspace {
    method: Method,
    pub(crate) codec: Codec,
    probe: Option<Probe>,
}

pub(crate) enum Codec {
    Zlib(zlib::Encoder),
    Lzo(lzo::Encoder),
    Zstd {
        encoder: zstd::Encoder,
        /// The highest level that the tables are large enough for.
        capacity_level: i32,
        /// What the tables took when that was last known.
        capacity_bytes: usize,
    },
}

impl Workspace {
    /// A workspace for `method`, without a probe. All its memory is allocated here.
    pub fn new(method: Method) -> Workspace {
        let level = method.level().unwrap_or(0);
        let codec = match method.algorithm() {
            Algorithm::Zlib => Codec::Zlib(zlib::Encoder::new(level)),
            Algorithm::Lzo => Codec::Lzo(lzo::Encoder::new()),
            Algorithm::Zstd => {
                let encoder = zstd::Encoder::new(level);
                Codec::Zstd { capacity_level: level, capacity_bytes: encoder.bytes(), encoder }
            }
        };
        Workspace { method, codec, probe: None }
    }

    /// As [`new`](Self::new), with a zstd-1 probe in front of zlib and of zstd from level 11 up: a chunk that
    /// the heuristic finds nothing in and that zstd at level 1, tuned for small gains, cannot make smaller is
    /// not tried.
    pub fn with_probe(method: Method) -> Workspace {
        let mut workspace = Workspace::new(method);
        if wants_probe(method) {
            workspace.probe = Some(Probe::new());
        }
        workspace
    }

    /// What it compresses with.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Bytes of memory it holds.
    pub fn bytes(&self) -> usize {
        let codec = match &self.codec {
            Codec::Zlib(encoder) => encoder.bytes(),
            Codec::Lzo(_) => lzo::Encoder::BYTES,
            Codec::Zstd { encoder, .. } => encoder.bytes(),
        };
        codec + self.probe.as_ref().map_or(0, Probe::bytes)
    }

    /// Whether it can be [retargeted](Self::retarget) to `method` without allocating, and if so how much larger
    /// than needed it is (0 is a perfect fit).
    pub(crate) fn surplus_for(&self, method: Method) -> Option<i32> {
        let level = method.level().unwrap_or(0);
        match &self.codec {
            Codec::Zlib(encoder) if method.algorithm() == Algorithm::Zlib => {
                (encoder.class() == zlib::Encoder::class_of(level)).then_some(0)
            }
            Codec::Lzo(_) if method.algorithm() == Algorithm::Lzo => Some(0),
            Codec::Zstd { capacity_level, .. } if method.algorithm() == Algorithm::Zstd => {
                capacity_level.checked_sub(level).filter(|&surplus| surplus >= 0)
            }
            _ => None,
        }
    }

    /// Makes it work for `method`, which it has a surplus for.
    pub(crate) fn retarget(&mut self, method: Method, probe: bool) {
        self.method = method;
        if let (Codec::Zstd { encoder, .. }, Some(level)) = (&mut self.codec, method.level()) {
            encoder.set_level(level);
        }
        if probe && wants_probe(method) && self.probe.is_none() {
            self.probe = Some(Probe::new());
        }
    }

    /// After use: zstd gives up tables that were three times too large for 128 chunks on end, and then they
    /// are what its level of late needs.
    pub(crate) fn settle(&mut self) {
        if let Codec::Zstd { encoder, capacity_level, capacity_bytes } = &mut self.codec
            && encoder.bytes() < *capacity_bytes
        {
            *capacity_bytes = encoder.bytes();
            *capacity_level = encoder.level();
        }
    }

    /// Whether an attempt on `chunk` would be a waste, by the probe; `false` without one.
    pub(crate) fn is_hopeless(&mut self, chunk: &[u8]) -> bool {
        wants_probe(self.method) && self.probe.as_mut().is_some_and(|probe| probe.is_hopeless(chunk))
    }
}

fn wants_probe(method: Method) -> bool {
    match method.algorithm() {
        Algorithm::Zlib => true,
        Algorithm::Lzo => false,
        Algorithm::Zstd => method.level().is_some_and(|level| level >= PROBE_ZSTD_FROM),
    }
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace").field("method", &self.method).field("bytes", &self.bytes()).finish()
    }
}
