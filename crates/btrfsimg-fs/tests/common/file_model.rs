//! Files as their bytes, and random changes of them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::io::Read as _;

use btrfsimg_compress::{CompressionSpec, WorkspacePool};
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::read::{FileReader, Filesystem};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::contents::{Codec, clone_range, punch_hole, truncate, write_at};
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_testkit::rng::Rng;
use proptest::prelude::*;

/// A file as it must be.
#[derive(Clone, Debug)]
pub struct File {
    pub place: Place,
    pub bytes: Vec<u8>,
    pub nodatasum: bool,
}

/// A change of one of the files, which are named by their index.
#[derive(Clone, Debug)]
pub enum Op {
    Write {
        file: usize,
        offset: u64,
        len: u64,
        /// 0 zeros, 1 text, 2 random.
        kind: u8,
        compress: Option<&'static str>,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Punch {
        file: usize,
        start: u64,
        len: u64,
    },
    Clone {
        from: usize,
        to: usize,
        start: u64,
        /// `None`: to the end.
        len: Option<u64>,
        at: u64,
    },
    Commit,
}

const SECTOR: u64 = 4096;

/// Offsets and lengths where something happens: in the first sector, around sectors' ends, anywhere.
fn spot() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..5000_u64,
        (0..80_u64, 0..3_u64).prop_map(|(sector, d)| (sector * SECTOR + d).saturating_sub(1)),
        0..400_000_u64
    ]
}

fn aligned() -> impl Strategy<Value = u64> {
    prop_oneof![12 => (0..80_u64).prop_map(|s| s * SECTOR), 1 => 0..300_000_u64]
}

fn op(files: usize) -> impl Strategy<Value = Op> {
    let compress = prop::sample::select(vec![None, Some("zstd:1"), Some("lzo"), Some("zlib:1")]);
    prop_oneof![
        6 => (0..files, spot(), spot(), 0..3_u8, compress)
            .prop_map(|(file, offset, len, kind, compress)| Op::Write { file, offset, len, kind, compress }),
        3 => (0..files, spot()).prop_map(|(file, size)| Op::Truncate { file, size }),
        3 => (0..files, spot(), spot()).prop_map(|(file, start, len)| Op::Punch { file, start, len }),
        4 => (0..files, 0..files, aligned(), prop::option::of(aligned()), aligned())
            .prop_map(|(from, to, start, len, at)| Op::Clone { from, to, start, len, at }),
        1 => Just(Op::Commit),
    ]
}

/// Changes in a row.
pub fn ops(files: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(files), 1..40)
}

/// Does one thing to the image and to the model; where the model says that it must fail, to neither.
pub fn apply(tx: &mut Transaction<'_>, files: &mut [File], op: &Op) {
    match *op {
        Op::Write { file, offset, len, kind, compress } => {
            let bytes = contents(kind, len, offset);
            let request = compress.map(|c| c.parse::<CompressionSpec>().unwrap());
            let pool = WorkspacePool::new(1);
            let policy = CompressionPolicy { request, ..CompressionPolicy::default() };
            let mut codec = Codec::new(tx, &pool, policy);
            write_at(tx, files[file].place, offset, &bytes, &mut codec).unwrap();
            if !bytes.is_empty() {
                put(&mut files[file].bytes, offset, &bytes);
            }
        }
        Op::Truncate { file, size } => {
            truncate(tx, files[file].place, size).unwrap();
            files[file].bytes.resize(size_of(size), 0);
        }
        Op::Punch { file, start, len } => {
            punch_hole(tx, files[file].place, start..start + len).unwrap();
            let bytes = &mut files[file].bytes;
            let end = size_of(start + len).min(bytes.len());
            if let Some(hole) = bytes.get_mut(size_of(start)..end) {
                hole.fill(0);
            }
        }
        Op::Clone { from, to, start, len, at } => {
            let size = files[from].bytes.len() as u64;
            let len = len.unwrap_or(size.saturating_sub(start));
            let result = clone_range(tx, files[from].place, start..start + len, files[to].place, at)
                .map_err(|e| e.to_string());
            let may = may_clone(u64::from(tx.sectorsize()), files, from, to, start, len, at);
            assert_eq!(result.is_ok(), may, "{op:?} of {size} bytes: {result:?}");
            if may && len > 0 {
                let bytes = files[from].bytes[size_of(start)..size_of(start + len)].to_vec();
                put(&mut files[to].bytes, at, &bytes);
            }
        }
        Op::Commit => {}
    }
}

/// The rules of ioctl_ficlonerange(2) and of btrfs.
fn may_clone(sector: u64, files: &[File], from: usize, to: usize, start: u64, len: u64, at: u64) -> bool {
    let (size, old) = (files[from].bytes.len() as u64, files[to].bytes.len() as u64);
    if len == 0 {
        return true;
    }
    let is_aligned = |n: u64| n.is_multiple_of(sector);
    let ends = start + len == size && at + len >= old;
    let covered = len.next_multiple_of(sector);
    let apart = from != to || at >= start + covered || start >= at + covered;
    start + len <= size
        && is_aligned(start)
        && is_aligned(at)
        && (is_aligned(len) || ends)
        && apart
        && files[from].nodatasum == files[to].nodatasum
}

fn put(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (size_of(offset), size_of(offset) + bytes.len());
    file.resize(file.len().max(end), 0);
    file[start..end].copy_from_slice(bytes);
}

fn contents(kind: u8, len: u64, seed: u64) -> Vec<u8> {
    match kind {
        0 => vec![0; size_of(len)],
        1 => (0..len)
            .map(|i| b"line of text, "[size_of(i % 14)] ^ u8::try_from((i + seed) >> 12 & 7).unwrap())
            .collect(),
        _ => Rng::new(seed + len).bytes(size_of(len)),
    }
}

fn size_of(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// All bytes of a file at rest.
pub fn read(fs: &Filesystem, place: Place) -> Vec<u8> {
    let info = fs.info(place).unwrap();
    let mut bytes = Vec::new();
    FileReader::new(fs, &info).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}
