//! Compression as btrfs stores it: zlib, LZO and zstd streams in the file system's framing, the kernel's
//! compressibility heuristic, the policy that decides what is compressed, and a pool of workspaces.
//!
//! Bytes in, bytes out. A *chunk* is at most [`MAX_CHUNK`] bytes of a file, the most one compressed extent
//! may hold. [`encode_extent`] and [`encode_inline`] give what goes on disk, or say that the bytes are better
//! stored raw; [`Decoder`] reads what is on disk as leniently as the kernel does, and its `inspect_` methods
//! report what the kernel tolerates but a careful writer would not produce.
//!
//! **Architecture invariants.** No I/O, no threads, no knowledge of inodes or trees. The same input and
//! [`Method`] give the same bytes whatever a workspace did before. No stored bytes make a decoder panic,
//! loop, or allocate more than the caller's output plus a constant.

mod decode;
mod encode;
mod error;
pub mod heuristic;
mod inspect;
mod lzo;
mod lzo_frame;
mod method;
mod policy;
mod pool;
mod probe;
mod property;
mod workspace;
mod zlib;
mod zstd;

pub use decode::Decoder;
pub use encode::{Encoded, EncodedInline, encode_extent, encode_inline};
pub use error::{DecodeError, SpecError};
pub use inspect::{Finding, Inspection};
pub use method::{Algorithm, CompressionSpec, Method};
pub use policy::{Decision, Situation, decide};
pub use pool::{PoolStats, PooledWorkspace, UNUSED_FOR, WorkspacePool};
pub use property::{Property, PropertyChange};
pub use workspace::Workspace;

/// The most file bytes that one compressed extent holds, and the most bytes that its stream may take on disk
/// (128 KiB, whatever the algorithm).
#[doc(alias = "BTRFS_MAX_UNCOMPRESSED")]
#[doc(alias = "BTRFS_MAX_COMPRESSED")]
pub const MAX_CHUNK: usize = 128 * 1024;

/// The most file bytes that readers take from one compressed extent. No writer is known that makes one of more than
/// [`MAX_CHUNK`]; kernels read longer ones whatever their length, and this bounds what a hostile one costs.
pub const MAX_DECODED: usize = 1 << 20;

/// The kernel's default for the most stored bytes of an inline extent (mount option `max_inline`).
pub const DEFAULT_MAX_INLINE: usize = 2048;

/// The names and versions of the codecs in this build, since another version may compress to other bytes.
pub fn codec_versions() -> Vec<(&'static str, String)> {
    let zlib = if cfg!(feature = "fast-zlib") { "zlib (libdeflate)" } else { "zlib (miniz_oxide)" };
    vec![
        (zlib, zlib::VERSION.to_owned()),
        ("lzo (minilzo)", lzo::VERSION.to_owned()),
        ("zstd", zstd_safe::version_string().to_owned()),
    ]
}
