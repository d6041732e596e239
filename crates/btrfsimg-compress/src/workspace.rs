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
    Zstd(zstd::Encoder),
}

impl Workspace {
    /// A workspace for `method`, without a probe. All its memory is allocated here.
    pub fn new(method: Method) -> Workspace {
        let level = method.level().unwrap_or(0);
        let codec = match method.algorithm() {
            Algorithm::Zlib => Codec::Zlib(zlib::Encoder::new(level)),
            Algorithm::Lzo => Codec::Lzo(lzo::Encoder::new()),
            Algorithm::Zstd => Codec::Zstd(zstd::Encoder::new(level)),
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
            Codec::Zstd(encoder) => encoder.bytes(),
        };
        codec + self.probe.as_ref().map_or(0, Probe::bytes)
    }

    /// Whether it can be [retargeted](Self::retarget) to `method` without allocating, and if so how many bytes
    /// larger than needed it is.
    pub(crate) fn surplus_for(&self, method: Method) -> Option<usize> {
        let level = method.level().unwrap_or(0);
        match (&self.codec, method.algorithm()) {
            (Codec::Zlib(encoder), Algorithm::Zlib) => {
                (encoder.class() == zlib::Encoder::class_of(level)).then_some(0)
            }
            (Codec::Lzo(_), Algorithm::Lzo) => Some(0),
            (Codec::Zstd(encoder), Algorithm::Zstd) => encoder.surplus_for(level),
            _ => None,
        }
    }

    /// Makes it work for `method`, which it has a surplus for.
    pub(crate) fn retarget(&mut self, method: Method, probe: bool) {
        self.method = method;
        if let (Codec::Zstd(encoder), Some(level)) = (&mut self.codec, method.level()) {
            encoder.set_level(level);
        }
        if probe && wants_probe(method) && self.probe.is_none() {
            self.probe = Some(Probe::new());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_CHUNK, encode_extent};

    /// Bytes that make every strategy fill its tables.
    fn busy_chunk() -> Vec<u8> {
        let words = (0..u32::MAX).step_by(0x9e37);
        words.flat_map(|n| (n.wrapping_mul(n) >> 20).to_le_bytes()).take(MAX_CHUNK).collect()
    }

    #[test]
    fn a_zstd_workspace_with_a_surplus_never_grows() {
        let levels = [-15, -1, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15];
        let methods = levels.map(|level| Method::with_level(Algorithm::Zstd, level).unwrap());
        let chunk = busy_chunk();
        for made_for in methods {
            let mut workspace = Workspace::new(made_for);
            let bytes = workspace.bytes();
            assert!(workspace.surplus_for(made_for).is_some(), "{made_for} fits itself");
            for used_for in methods {
                if workspace.surplus_for(used_for).is_some() {
                    workspace.retarget(used_for, false);
                    encode_extent(&mut workspace, &chunk, 4096, &mut Vec::new());
                    assert_eq!(workspace.bytes(), bytes, "made for {made_for}, used for {used_for}");
                }
            }
        }
    }
}
