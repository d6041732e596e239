//! `docs/compression.md`: what a workspace takes in memory, beside the kernel's.

use btrfsimg_compress::{CompressionSpec, Method, Workspace};
use std::fmt::Write;

pub(super) const PAGE: &str = "docs/compression.md";

const HEAD: &str = "\
# Memory of compression

<!-- Made by `cargo xtask docs` from the workspaces themselves. -->

A *workspace* is what compressing one chunk of at most 128 KiB needs: tables of the codec, and for zlib and for zstd
from level 11 up the tables of a zstd-1 probe, which spares chunks that cannot become smaller the slow attempt. Each
thread has one at a time. They are taken from a pool and given back: a fitting idle one, the smallest that is large
enough, is handed out before one is allocated; at most threads + 1 are kept idle; one that nothing asked for over
4096 hand-outs is given up. `mkfs --stats`, `cp --stats` and `defrag --stats` say how often one was allocated and
reused.

Two things are allocated in the steady state, inside the codecs: the LZO encoder's binding makes an output buffer of
4.4 KiB for each sector, as its interface takes none; and zstd gives up tables that were three times too large for a
frame, once in 128 frames at most, and allocates them again for the next large chunk.

The kernel's zstd workspaces serve streams of pages and hold buffers for them; these are one-shot. Its zlib workspace
is that of zlib's deflate at a window of 32 KiB and memLevel 8, and a page; its LZO workspace a dictionary of 16 KiB
and two buffers of the worst case of a page. Of the 128 KiB that ours has room for, as its interface wants them, the
encoder uses 32 KiB.
";

fn methods() -> impl Iterator<Item = String> {
    let zlib = (1..=9).map(|level| format!("zlib:{level}"));
    let zstd = (-15..=15).filter(|level| *level != 0).map(|level| format!("zstd:{level}"));
    ["lzo".to_owned()].into_iter().chain(zlib).chain(zstd)
}

/// Bytes of the kernel's workspace (commit messages of 2025 for zstd; for the others from its sources).
fn kernel(method: Method) -> usize {
    const PAGE: usize = 4096;
    match (method.algorithm(), method.level().unwrap_or(0)) {
        (btrfsimg_compress::Algorithm::Lzo, _) => (16 << 10) + 2 * 4421,
        (btrfsimg_compress::Algorithm::Zlib, _) => 268_104 + PAGE,
        (_, ..=-1) => 926_969,
        (_, 0 | 3) => 1_303_801,
        (_, 1) => 943_353,
        (_, 2) => 1_041_657,
        (_, 4 | 11) => 1_959_161,
        (_, 5..=10) => 1_697_017,
        (_, 12) => 2_483_449,
        (_, 13) => 2_632_633,
        (_, 14..) => 3_277_111,
    }
}

/// Methods whose rows are equal stand on one line.
pub(super) fn page() -> String {
    let mut out = HEAD.to_owned();
    out.push_str("\n| method | bytes | with the probe | the kernel's bytes |\n|---|---|---|---|\n");
    let mut rows: Vec<(String, String, [usize; 3])> = Vec::new();
    for name in methods() {
        let Some(method) = name.parse::<CompressionSpec>().ok().and_then(CompressionSpec::method) else {
            continue;
        };
        let bytes = Workspace::new(method).bytes();
        let row = [bytes, Workspace::with_probe(method).bytes(), kernel(method)];
        match rows
            .last_mut()
            .filter(|(first, _, last)| *last == row && first.split(':').next() == name.split(':').next())
        {
            Some((_, to, _)) => *to = name,
            None => rows.push((name.clone(), name, row)),
        }
    }
    for (from, to, [bytes, probing, kernel]) in rows {
        let level = to.rsplit(':').next().unwrap_or_default();
        let range = if from == to { from } else { format!("{from} to {level}") };
        let probing = if probing == bytes { "–".to_owned() } else { probing.to_string() };
        // Writing to a string does not fail.
        let _ = writeln!(out, "| {range} | {bytes} | {probing} | {kernel} |");
    }
    out.push_str("\nDecoding takes about 200 KiB for each thread, for all algorithms together.\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_on_the_page() {
        let page = page();
        for start in [
            "| lzo |",
            "| zlib:1",
            "| zstd:-15 to -1 |",
            "| zstd:3 |",
            "| zstd:5 to 10 |",
            "| zstd:14 to 15 |",
        ] {
            assert!(page.contains(&format!("\n{start}")), "{start}\n{page}");
        }
    }
}
