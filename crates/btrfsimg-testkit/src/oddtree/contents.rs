//! Files whose bytes or holes are the point.

use super::Builder;
use std::{fs::File, io, os::unix::fs::FileExt};

/// Around every border: inline limit (2048), sector (4096), chunk of compression (131072), and some large ones.
const SIZES: &[usize] = &[
    0, 1, 100, 2047, 2048, 2049, 3900, 4000, 4095, 4096, 4097, 8191, 8192, 8193, 12_287, 16_384, 65_535,
    65_536, 65_537, 131_071, 131_072, 131_073, 262_144, 1_048_577, 5_000_000,
];
/// What is compressed at once.
const CHUNK: usize = 128 << 10;
const SECTOR: usize = 4096;

/// Each size as text, as random bytes and as zeros.
pub(super) fn sizes(b: &mut Builder) -> io::Result<()> {
    b.dir("sizes")?;
    for &len in SIZES {
        b.file(format!("sizes/text{len}"), text(len))?;
        let random = b.rng.bytes(len);
        b.file(format!("sizes/rand{len}"), random)?;
        b.file(format!("sizes/zero{len}"), vec![0; len])?;
    }
    Ok(())
}

fn text(len: usize) -> Vec<u8> {
    let line = format!("the quick brown fox {len} jumps over\n");
    line.bytes().cycle().take(len).collect()
}

/// Files in which some chunks compress and others do not.
pub(super) fn mixtures(b: &mut Builder, residues: usize) -> io::Result<()> {
    let zeros = vec![0; CHUNK];
    let random = b.rng.bytes(CHUNK);
    b.file("mixed", [&zeros[..], &random, &zeros, &[b'x'; CHUNK]].concat())?;
    b.file("zrz", [&zeros[..], &random, &zeros].concat())?;
    // A heuristic that looks at the beginning only would give the whole file up.
    b.file("randhead", [&random[..], &b"hello world\n".repeat(400_000)].concat())?;
    b.file("texthead", [&text(CHUNK)[..], &random, &random].concat())?;
    b.dir("lzo")?;
    for i in 0..residues {
        let mut contents = Vec::with_capacity(CHUNK);
        while contents.len() < CHUNK {
            let random = b.rng.index(SECTOR + 1);
            contents.extend(b.rng.bytes(random));
            contents.resize(contents.len() + SECTOR - random, 0);
        }
        b.file(format!("lzo/r{i:03}"), contents)?;
    }
    Ok(())
}

/// Holes at every place.
pub(super) fn holes(b: &mut Builder, huge: bool) -> io::Result<()> {
    if huge {
        let data: &[(u64, &[u8])] =
            &[(100, b"x"), (4 << 30, &b"four".repeat(3000)), ((5 << 30) + 4096, b"five")];
        sparse(b, "sparse", 6 << 30, data)?;
    }
    sparse(b, "allhole", 1 << 20, &[])?;
    sparse(b, "tailhole", 1 << 20, &[(0, &b"head".repeat(3000))])?;
    sparse(b, "headhole", 1 << 20, &[((1 << 20) - 5000, &[b't'; 5000])])?;
    sparse(b, "oddhole", 100_001, &[(50_001, b"middle")])?;
    let mut pieces = Vec::new();
    for i in 0..32 {
        let (skip, len) = (b.rng.below(4096), 1 + b.rng.index(60_000));
        pieces.push((i * 2 * 65_536 + skip, b.rng.bytes(len)));
    }
    let pieces: Vec<(u64, &[u8])> = pieces.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    sparse(b, "holes", 64 * 65_536, &pieces)?;
    let flat = b.file("preallocated", "")?;
    let file = File::options().write(true).open(flat)?;
    let done = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20);
    if b.allowed("preallocated files", done)? {
        file.write_all_at(b"written inside", 300_000)?;
    }
    Ok(())
}

fn sparse(b: &Builder, name: &str, len: u64, data: &[(u64, &[u8])]) -> io::Result<()> {
    let path = b.file(name, "")?;
    let file = File::options().write(true).open(path)?;
    file.set_len(len)?;
    data.iter().try_for_each(|(at, bytes)| file.write_all_at(bytes, *at))
}
