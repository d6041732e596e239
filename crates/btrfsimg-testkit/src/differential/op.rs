//! What is done to a file system, in a form that the kernel and the library can both do.

use std::fmt;

use crate::rng::Rng;

/// A path below the top, components parted by `/`; empty for the top itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Path(pub Vec<u8>);

impl Path {
    /// The entry `name` of this directory.
    pub fn join(&self, name: &[u8]) -> Path {
        Path(if self.0.is_empty() { name.to_vec() } else { [&self.0, &b"/"[..], name].concat() })
    }

    /// Whether it is `dir` or below it.
    pub fn is_in(&self, dir: &Path) -> bool {
        dir.0.is_empty() || self == dir || self.0.starts_with(&[&dir.0, &b"/"[..]].concat())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// What bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// That no codec makes smaller.
    Random,
    /// Text.
    Text,
    /// Zeros.
    Zeros,
    /// Text with random sectors between.
    Mixed,
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "they are what the system calls of that name take")]
pub enum Op {
    Create {
        path: Path,
        mode: u32,
    },
    Write {
        path: Path,
        at: u64,
        len: usize,
        pattern: Pattern,
        seed: u64,
    },
    Truncate {
        path: Path,
        size: u64,
    },
    Punch {
        path: Path,
        at: u64,
        len: u64,
    },
    /// FICLONERANGE; unless `exact`, for as much of `len` as that takes.
    Clone {
        from: Path,
        at: u64,
        len: u64,
        to: Path,
        to_at: u64,
        exact: bool,
    },
    Rename {
        from: Path,
        to: Path,
    },
    Link {
        from: Path,
        to: Path,
    },
    Symlink {
        target: Vec<u8>,
        path: Path,
    },
    Mkdir {
        path: Path,
        mode: u32,
    },
    Mknod {
        path: Path,
        kind: u32,
        major: u32,
        minor: u32,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    SetXattr {
        path: Path,
        name: &'static str,
        len: usize,
        seed: u64,
    },
    RemoveXattr {
        path: Path,
        name: &'static str,
    },
    /// Without a level, which the kernel does not pass on.
    Property {
        path: Path,
        value: &'static str,
    },
    Chmod {
        path: Path,
        mode: u32,
    },
    Chown {
        path: Path,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// mtime and atime, long ago, so that they are told from those of now.
    SetTimes {
        path: Path,
        sec: i64,
        nsec: u32,
    },
    /// fallocate(2), which only the kernel does.
    Allocate {
        path: Path,
        at: u64,
        len: u64,
        keep_size: bool,
    },
    /// What chattr(1) sets of i, a, d, A and C, as bits of `FS_IOC_SETFLAGS`.
    SetFlags {
        path: Path,
        flags: u32,
    },
    /// An ACL with a named user.
    SetAcl {
        path: Path,
        is_default: bool,
        seed: u64,
    },
    CreateSubvolume {
        path: Path,
    },
    Snapshot {
        from: Path,
        to: Path,
        readonly: bool,
    },
    DeleteSubvolume {
        path: Path,
    },
    SetReadonly {
        path: Path,
        readonly: bool,
    },
    /// All before is durable, and what follows is another transaction.
    Commit,
}

impl Op {
    /// Whether it names subvolumes as such: such are done by btrfs-progs, which has errors of its own.
    pub fn is_about_subvolumes(&self) -> bool {
        matches!(
            self,
            Op::CreateSubvolume { .. }
                | Op::Snapshot { .. }
                | Op::DeleteSubvolume { .. }
                | Op::SetReadonly { .. }
        )
    }
}

/// The flags of `FS_IOC_SETFLAGS` that are set and cleared: immutable, append-only, no dump, no atime, no CoW.
pub(super) const FLAGS: u32 = 0x10 | 0x20 | 0x40 | 0x80 | 0x80_0000;

/// An ACL as xattrs hold it: version, then entries of tag, permissions and id.
pub(super) fn acl(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, id) in [(0x01u16, u32::MAX), (0x02, 1000), (0x04, u32::MAX), (0x10, u32::MAX), (0x20, u32::MAX)]
    {
        out.extend(tag.to_le_bytes());
        out.extend(u16::try_from(rng.index(8)).unwrap_or(0).to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// The bytes of a write.
pub(super) fn bytes(pattern: Pattern, len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let text = || format!("line {seed} of a text that compresses\n").into_bytes().into_iter().cycle();
    match pattern {
        Pattern::Random => rng.bytes(len),
        Pattern::Zeros => vec![0; len],
        Pattern::Text => text().take(len).collect(),
        Pattern::Mixed => {
            let mut out: Vec<u8> = text().take(len).collect();
            for sector in out.chunks_mut(4096) {
                if rng.index(3) == 0 {
                    let random = rng.bytes(sector.len());
                    sector.copy_from_slice(&random);
                }
            }
            out
        }
    }
}
