//! Random operations that mostly make sense, and some that do not.

use std::collections::BTreeMap;

use super::Actor;
use super::op::{Op, Path, Pattern};
use crate::rng::Rng;

/// Files of more than this many names are not made.
const NAMES_MAX: usize = 120;
const SUBVOLUMES_MAX: usize = 7;
/// Some share a hash, one is as long as can be, one is no text.
const NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"f",
    b"g",
    b"ue2r43xy",
    b"c54cvxdh",
    b"\xff\xfe\x01",
    b"name with spaces",
    &[b'n'; 255],
];
const XATTRS: &[&str] =
    &["user.a", "user.b", "trusted.t", "user.a longer name than the others have", "security.capability"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    File,
    Dir,
    Symlink,
    Special,
    Subvolume,
    /// Stands where a snapshot holds the entry of a subvolume.
    Stub,
}

/// What names there ought to be, as far as that is needed to draw sensible operations.
#[derive(Clone, Default)]
pub struct Names(BTreeMap<Path, Kind>);

impl Names {
    /// An empty file system.
    pub fn new() -> Names {
        Names(BTreeMap::from([(Path::default(), Kind::Subvolume)]))
    }

    /// Draws `count` operations that `by` can do, as they change what there is.
    pub fn draw(&mut self, rng: &mut Rng, count: usize, by: Actor) -> Vec<Op> {
        let mut ops = Vec::with_capacity(count);
        while ops.len() < count {
            if let Some(op) = self.draw_one(rng, by) {
                self.note(&op);
                ops.push(op);
            }
        }
        ops
    }

    fn draw_one(&self, rng: &mut Rng, by: Actor) -> Option<Op> {
        let room = self.0.len() < NAMES_MAX;
        Some(match rng.index(106) {
            0..10 if room => {
                Op::Create { path: self.new_path(rng), mode: [0o644, 0o600, 0o755, 0o4755][rng.index(4)] }
            }
            10..34 => self.draw_write(rng)?,
            34..40 => Op::Truncate { path: self.file(rng)?, size: size(rng) },
            40..45 => Op::Punch { path: self.file(rng)?, at: offset(rng), len: 1 + size(rng) },
            45..52 => self.draw_clone(rng)?,
            52..58 => Op::Rename {
                from: self.any(rng)?,
                to: if rng.index(3) == 0 { self.any(rng)? } else { self.new_path(rng) },
            },
            58..61 if room => Op::Link { from: self.any(rng)?, to: self.new_path(rng) },
            61..64 if room => Op::Symlink {
                target: [&b"a"[..], b"b/../c", b"/nowhere", b"name with spaces/c"][rng.index(4)].to_vec(),
                path: self.new_path(rng),
            },
            64..69 if room => {
                Op::Mkdir { path: self.new_path(rng), mode: [0o755, 0o700, 0o755][rng.index(3)] }
            }
            69 if room => Op::Mknod {
                path: self.new_path(rng),
                kind: [0o010_000, 0o020_000, 0o060_000, 0o140_000][rng.index(4)],
                major: 3000,
                minor: 300,
            },
            70..74 => Op::Unlink { path: self.any(rng)? },
            74 => Op::Rmdir { path: self.any(rng)? },
            75..79 => Op::SetXattr {
                path: self.of(rng, &[Kind::File, Kind::Dir])?,
                name: XATTRS[rng.index(4)],
                len: [0, 10, 300, 2000][rng.index(4)],
                seed: rng.below(1000),
            },
            79 => Op::SetXattr { path: self.file(rng)?, name: XATTRS[4], len: 20, seed: 1 },
            80 => {
                Op::RemoveXattr { path: self.of(rng, &[Kind::File, Kind::Dir])?, name: XATTRS[rng.index(4)] }
            }
            81..84 => Op::Property {
                path: self.of(rng, &[Kind::File, Kind::Dir, Kind::Subvolume])?,
                value: ["zlib", "lzo", "zstd", "none", "", "zstd", "bogus"][rng.index(7)],
            },
            84..87 => Op::Chmod {
                path: self.of(rng, &[Kind::File, Kind::Dir])?,
                mode: [0o644, 0o600, 0o755, 0o4755, 0o2755, 0o1777][rng.index(6)],
            },
            87..89 => Op::Chown {
                path: self.any(rng)?,
                uid: [None, Some(0), Some(1000)][rng.index(3)],
                gid: [None, Some(0), Some(77)][rng.index(3)],
            },
            89..92 => Op::SetTimes {
                path: self.any(rng)?,
                sec: 1_000_000_000 + i64::from(u32::try_from(rng.below(100_000_000)).unwrap_or(0)),
                nsec: u32::try_from(rng.below(1_000_000_000)).unwrap_or(0),
            },
            92..96 => self.draw_subvolume(rng)?,
            96..100 => Op::Commit,
            100..102 => Op::SetFlags {
                path: self.of(rng, &[Kind::File, Kind::Dir])?,
                flags: [0, 0, 0x10, 0x20, 0x40, 0x80, 0x80_0000, 0x80_0040][rng.index(8)],
            },
            102..104 => Op::SetAcl {
                path: self.of(rng, &[Kind::File, Kind::Dir])?,
                is_default: rng.index(2) == 0,
                seed: rng.below(1000),
            },
            104..106 if by == Actor::Kernel => Op::Allocate {
                path: self.file(rng)?,
                at: offset(rng),
                len: 1 + size(rng),
                keep_size: rng.index(2) == 0,
            },
            _ => return None,
        })
    }

    fn draw_write(&self, rng: &mut Rng) -> Option<Op> {
        let pattern =
            [Pattern::Random, Pattern::Text, Pattern::Text, Pattern::Zeros, Pattern::Mixed][rng.index(5)];
        let len = usize::try_from(size(rng)).unwrap_or(0);
        Some(Op::Write { path: self.file(rng)?, at: offset(rng), len, pattern, seed: rng.below(1 << 30) })
    }

    fn draw_clone(&self, rng: &mut Rng) -> Option<Op> {
        let sectors = |rng: &mut Rng, max| rng.below(max) * 4096;
        let (from, to) = (self.file(rng)?, self.file(rng)?);
        let at = if rng.index(2) == 0 { 0 } else { sectors(rng, 40) };
        let to_at = if rng.index(2) == 0 { 0 } else { sectors(rng, 60) };
        let len = sectors(rng, 80) + 4096;
        Some(Op::Clone { from, at, len, to, to_at, exact: len % 5 == 0 })
    }

    fn draw_subvolume(&self, rng: &mut Rng) -> Option<Op> {
        let full = self.0.values().filter(|kind| **kind == Kind::Subvolume).count() > SUBVOLUMES_MAX;
        let some = |rng: &mut Rng| self.of(rng, &[Kind::Subvolume]).filter(|path| !path.0.is_empty());
        Some(match rng.index(10) {
            0..2 if !full => Op::CreateSubvolume { path: self.new_path(rng) },
            2..6 if !full && self.0.len() < NAMES_MAX => Op::Snapshot {
                from: self.of(rng, &[Kind::Subvolume])?,
                to: self.new_path(rng),
                readonly: rng.index(4) == 0,
            },
            6..9 => Op::DeleteSubvolume { path: some(rng)? },
            _ => Op::SetReadonly { path: some(rng)?, readonly: rng.index(2) == 0 },
        })
    }

    fn of(&self, rng: &mut Rng, kinds: &[Kind]) -> Option<Path> {
        let found: Vec<&Path> =
            self.0.iter().filter(|(_, kind)| kinds.contains(kind)).map(|(path, _)| path).collect();
        (!found.is_empty()).then(|| found[rng.index(found.len())].clone())
    }

    fn file(&self, rng: &mut Rng) -> Option<Path> {
        // Now and then what is no file.
        if rng.index(40) == 0 { self.any(rng) } else { self.of(rng, &[Kind::File]) }
    }

    /// Anything but the top.
    fn any(&self, rng: &mut Rng) -> Option<Path> {
        let count = self.0.len() - 1;
        (count > 0).then(|| self.0.keys().nth(1 + rng.index(count)).cloned().unwrap_or_default())
    }

    /// A name in some directory, most likely one that is not there.
    fn new_path(&self, rng: &mut Rng) -> Path {
        let dirs = [Kind::Dir, Kind::Subvolume];
        let dir = if rng.index(60) == 0 { self.any(rng) } else { self.of(rng, &dirs) };
        let dir = dir.filter(|dir| dir.0.iter().filter(|b| **b == b'/').count() < 4).unwrap_or_default();
        dir.join(NAMES[rng.index(NAMES.len())])
    }

    fn note(&mut self, op: &Op) {
        match op {
            Op::Create { path, .. } => self.add(path, Kind::File),
            Op::Mkdir { path, .. } => self.add(path, Kind::Dir),
            Op::Symlink { path, .. } => self.add(path, Kind::Symlink),
            Op::Mknod { path, .. } => self.add(path, Kind::Special),
            Op::CreateSubvolume { path } => self.add(path, Kind::Subvolume),
            Op::Link { from, to } => {
                if let Some(kind) =
                    self.0.get(from).copied().filter(|kind| ![Kind::Dir, Kind::Subvolume].contains(kind))
                {
                    self.add(to, kind);
                }
            }
            Op::Unlink { path }
                if self
                    .0
                    .get(path)
                    .is_some_and(|kind| ![Kind::Dir, Kind::Subvolume, Kind::Stub].contains(kind)) =>
            {
                self.0.remove(path);
            }
            Op::Rmdir { path } if self.0.get(path) == Some(&Kind::Dir) && self.below(path).len() == 1 => {
                self.0.remove(path);
            }
            Op::DeleteSubvolume { path }
                if self.below(path).iter().filter(|(_, kind)| *kind == Kind::Subvolume).count() == 1 =>
            {
                self.take(path);
            }
            Op::Snapshot { from, to, .. } => self.snapshot(from, to),
            Op::Rename { from, to } => self.rename(from, to),
            _ => {}
        }
    }

    fn add(&mut self, path: &Path, kind: Kind) {
        self.0.entry(path.clone()).or_insert(kind);
    }

    fn below(&self, path: &Path) -> Vec<(Path, Kind)> {
        self.0
            .iter()
            .filter(|(other, _)| other.is_in(path))
            .map(|(other, kind)| (other.clone(), *kind))
            .collect()
    }

    fn take(&mut self, path: &Path) -> Vec<(Path, Kind)> {
        let below = self.below(path);
        self.0.retain(|other, _| !other.is_in(path));
        below
    }

    fn put(&mut self, below: Vec<(Path, Kind)>, from: &Path, to: &Path) {
        for (path, kind) in below {
            let rest = path.0[from.0.len()..].strip_prefix(b"/").unwrap_or(&path.0[from.0.len()..]);
            let path = if rest.is_empty() { to.clone() } else { to.join(rest) };
            self.0.insert(path, kind);
        }
    }

    fn snapshot(&mut self, from: &Path, to: &Path) {
        if self.0.contains_key(to) {
            return;
        }
        let mut below = self.below(from);
        let nested: Vec<Path> = below
            .iter()
            .filter(|(path, kind)| *kind == Kind::Subvolume && path != from)
            .map(|(path, _)| path.clone())
            .collect();
        below.retain(|(path, _)| !nested.iter().any(|nested| path != nested && path.is_in(nested)));
        for (path, kind) in &mut below {
            if nested.contains(path) {
                *kind = Kind::Stub;
            }
        }
        self.put(below, from, to);
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let same_kind = |a: Kind, b: Kind| (a == Kind::Dir) == (b == Kind::Dir);
        let Some(kind) = self.0.get(from).copied() else { return };
        let replaced = self.0.get(to).copied();
        let fixed = [Kind::Subvolume, Kind::Stub];
        if fixed.contains(&kind)
            || replaced
                .is_some_and(|old| fixed.contains(&old) || !same_kind(kind, old) || self.below(to).len() > 1)
            || to.is_in(from)
            || self.subvolume_of(from) != self.subvolume_of(to)
        {
            return;
        }
        let below = self.take(from);
        self.put(below, from, to);
    }

    fn subvolume_of(&self, path: &Path) -> Option<&Path> {
        self.0
            .iter()
            .rev()
            .find(|(other, kind)| **kind == Kind::Subvolume && path.is_in(other))
            .map(|(other, _)| other)
    }
}

/// Sizes around each limit: inline, sector, compressed chunk, and some beyond.
fn size(rng: &mut Rng) -> u64 {
    match rng.index(8) {
        0 => rng.below(60),
        1 => rng.below(2100),
        2 => rng.below(4200),
        3 => rng.below(20_000),
        4 => 4096 * rng.below(40),
        5 => 131_000 + rng.below(200),
        6 => rng.below(300_000),
        _ => 4096 * rng.below(10),
    }
}

fn offset(rng: &mut Rng) -> u64 {
    match rng.index(5) {
        0..2 => 0,
        2 => 4096 * rng.below(80),
        _ => size(rng),
    }
}
