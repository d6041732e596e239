//! Experiments 1, 5 and 6: codecs alone, in memory.

use super::{Bench, corpus, corpus::Kind, mb_per_s, plot, published, table};
use anyhow::{Context, Result};
use btrfsimg_compress::{
    CompressionSpec, Decoder, Encoded, MAX_CHUNK, Method, Workspace, WorkspacePool, encode_extent, heuristic,
};
use std::{hint::black_box, time::Instant};

const SECTOR: u32 = 4096;

pub(super) fn method(name: &str) -> Result<Method> {
    let spec: CompressionSpec = name.parse()?;
    spec.method().context("none is no method")
}

/// What a method does to chunks.
struct Measured {
    bytes: u64,
    stored: u64,
    encode: f64,
    decode: f64,
    memory: usize,
}

/// Encodes and decodes each chunk once, on one thread.
fn measure(method: Method, chunks: &[Vec<u8>]) -> Result<Measured> {
    let mut workspace = Workspace::with_probe(method);
    let mut stored: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut sum = Measured { bytes: 0, stored: 0, encode: 0.0, decode: 0.0, memory: workspace.bytes() };
    let mut out = Vec::new();
    let start = Instant::now();
    for (i, chunk) in chunks.iter().enumerate() {
        let rounded = chunk.len().next_multiple_of(SECTOR as usize) as u64;
        sum.bytes += chunk.len() as u64;
        match encode_extent(&mut workspace, chunk, SECTOR, &mut out) {
            Encoded::Kept { stored_len, .. } => {
                sum.stored += stored_len as u64;
                stored.push((i, out.clone()));
            }
            Encoded::Raw => sum.stored += rounded,
        }
    }
    sum.encode = start.elapsed().as_secs_f64();
    let (mut decoder, mut buf) = (Decoder::new(), vec![0; MAX_CHUNK]);
    let start = Instant::now();
    for (i, stored) in &stored {
        let buf = &mut buf[..chunks[*i].len()];
        decoder.decode_extent(method.algorithm(), stored, SECTOR, buf)?;
        black_box(buf);
    }
    sum.decode = start.elapsed().as_secs_f64();
    Ok(sum)
}

/// Seconds that copying the chunks takes.
fn copying(chunks: &[Vec<u8>]) -> f64 {
    let mut out = Vec::with_capacity(MAX_CHUNK);
    let start = Instant::now();
    for chunk in chunks {
        out.clear();
        out.extend_from_slice(chunk);
        black_box(&out);
    }
    start.elapsed().as_secs_f64()
}

fn methods(quick: bool) -> Vec<String> {
    if quick {
        return ["lzo", "zlib:1", "zlib:3", "zlib:9", "zstd:-15", "zstd:-5", "zstd:1", "zstd:3", "zstd:15"]
            .map(str::to_owned)
            .to_vec();
    }
    let zlib = (1..=9).map(|level| format!("zlib:{level}"));
    let zstd = (-15..=15).filter(|level| *level != 0).map(|level| format!("zstd:{level}"));
    ["lzo".to_owned()].into_iter().chain(zlib).chain(zstd).collect()
}

pub(super) fn alone(bench: &mut Bench<'_>) -> Result<String> {
    let mut text =
        "\n## 1. Codecs alone\nFiles in chunks of 128 KiB, one thread; ratios after rounding to sectors of \
                    4 KiB. Published (in brackets): whole files of Silesia, 2017.\n"
            .to_owned();
    let limit = if bench.options.quick { 16 << 20 } else { 200 << 20 };
    for corpus in bench.corpora.clone() {
        let chunks = corpus::chunks(&corpus.dir, limit)?;
        let copy = copying(&chunks);
        let mut rows = Vec::new();
        let (mut encode, mut decode) = (Vec::new(), Vec::new());
        for name in methods(bench.options.quick) {
            let m = measure(method(&name)?, &chunks)?;
            let published = published::row(published::CODEC, &name);
            let beside = |ours: String, i: usize, digits: usize| {
                published.map_or(ours.clone(), |p| format!("{ours} ({:.digits$})", p[i]))
            };
            let ratio = m.bytes as f64 / m.stored.max(1) as f64;
            let [fast, adjusted] = [m.encode, m.encode - copy].map(|s| mb_per_s(m.bytes, s));
            let [read, read_adjusted] = [m.decode, m.decode - copy].map(|s| mb_per_s(m.bytes, s));
            if let Some(level) = name.strip_prefix("zstd:").and_then(|l| l.parse::<f64>().ok()) {
                encode.push((level, fast));
                decode.push((level, read));
            }
            rows.push(vec![
                name.clone(),
                m.bytes.to_string(),
                m.stored.to_string(),
                beside(format!("{ratio:.3}"), 0, 3),
                format!("{:.2}", m.encode),
                beside(format!("{fast:.0}"), 1, 0),
                beside(format!("{adjusted:.0}"), 2, 0),
                beside(format!("{:.2}", m.memory as f64 / 1e6), 5, 2),
                beside(format!("{read:.0}"), 3, 0),
                beside(format!("{read_adjusted:.0}"), 4, 0),
            ]);
        }
        text.push_str(&format!("\n### {}\n", corpus.name));
        let head = [
            "method",
            "bytes",
            "stored",
            "ratio",
            "s",
            "compress MB/s",
            "adjusted",
            "memory MB",
            "decompress MB/s",
            "adjusted",
        ];
        text.push_str(&table(&head, &rows));
        let lines = [("compress", encode), ("decompress", decode)]
            .map(|(name, points)| plot::Line { name: name.to_owned(), points });
        let title = format!("zstd, {}", corpus.name);
        let svg = plot::lines(&title, "level", "MB/s, one thread", &lines)?;
        text.push_str(&bench.plot(&format!("codec-{}", slug(&corpus.name)), svg));
    }
    Ok(text)
}

pub(super) fn slug(name: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(clean).collect::<String>().trim_matches('-').to_owned()
}

pub(super) fn negative_levels(bench: &mut Bench<'_>) -> Result<String> {
    let mut text =
        "\n## 5. Levels −15 to 15 by kind of file\nStored bytes as a share of the files' (per cent), with \
                    the kernel's heuristic as `--compress` has it. Published: a Linux 6.13 tar, 2025.\n"
            .to_owned();
    let limit: u64 = if bench.options.quick { 4 << 20 } else { 64 << 20 };
    let mut samples: Vec<Vec<Vec<u8>>> = vec![Vec::new(); Kind::ALL.len()];
    for corpus in &bench.corpora {
        let mut room: Vec<u64> = vec![limit / bench.corpora.len() as u64; Kind::ALL.len()];
        corpus::read(&corpus.dir, u64::MAX, &mut |path, bytes| {
            let kind = Kind::of(path, &bytes);
            if let Some(i) = Kind::ALL.iter().position(|(k, _)| Some(*k) == kind)
                && room[i] > 0
            {
                room[i] = room[i].saturating_sub(bytes.len() as u64);
                samples[i].extend(bytes.chunks(MAX_CHUNK).map(<[u8]>::to_vec));
            }
            room.iter().any(|r| *r > 0)
        })?;
    }
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (_, name) in Kind::ALL {
        lines.push(plot::Line { name: name.to_owned(), points: Vec::new() });
    }
    for (level, published) in published::SHARES {
        if bench.options.quick && ![-15, -10, -5, -1, 1, 3, 9, 15].contains(&level) {
            continue;
        }
        let method = method(&format!("zstd:{level}"))?;
        let mut row = vec![level.to_string(), format!("{published} %")];
        for (sample, line) in samples.iter().zip(&mut lines) {
            if sample.is_empty() {
                row.push("–".to_owned());
                continue;
            }
            let share = share(method, sample);
            line.points.push((f64::from(level), share));
            row.push(format!("{share:.1} %"));
        }
        rows.push(row);
    }
    let head: Vec<&str> = ["level", "published"].into_iter().chain(Kind::ALL.map(|(_, n)| n)).collect();
    text.push_str(&table(&head, &rows));
    let published = published::SHARES.iter().map(|(level, share)| (f64::from(*level), f64::from(*share)));
    lines.push(plot::Line { name: "published: Linux tar".to_owned(), points: published.collect() });
    let svg = plot::lines("Stored share by level", "zstd level", "per cent", &lines)?;
    text.push_str(&bench.plot("levels-by-kind", svg));
    Ok(text)
}

fn share(method: Method, chunks: &[Vec<u8>]) -> f64 {
    let (mut workspace, mut out) = (Workspace::with_probe(method), Vec::new());
    let (mut bytes, mut stored) = (0_usize, 0_usize);
    for chunk in chunks {
        bytes += chunk.len();
        let kept = heuristic::is_compressible(chunk)
            && encode_extent(&mut workspace, chunk, SECTOR, &mut out) != Encoded::Raw;
        stored += if kept { out.len() } else { chunk.len().next_multiple_of(SECTOR as usize) };
    }
    stored as f64 * 100.0 / bytes.max(1) as f64
}

pub(super) fn workspaces(bench: &mut Bench<'_>) -> Result<String> {
    let mut text = "\n## 6. Workspaces kept idle\nPublished (2017): with as many idle ones kept as there are cores, \
                    cores + 1 in use meant an allocation for each chunk; keeping one more, 3 in all, took 1.44 s in \
                    place of 1.70 (lzo) and 1.80 in place of 2.04 (zstd). Here: chunks of a corpus by cores + 1 \
                    threads.\n"
        .to_owned();
    let limit = if bench.options.quick { 32 << 20 } else { 500 << 20 };
    let chunks = corpus::chunks(&bench.corpora[0].dir, limit)?;
    let threads = std::thread::available_parallelism()?.get() + 1;
    let mut rows = Vec::new();
    for name in ["lzo", "zstd:3"] {
        let method = method(name)?;
        for workers in [threads - 1, 0] {
            let pool = WorkspacePool::new(workers);
            let start = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let (pool, chunks) = (&pool, &chunks);
                    scope.spawn(move || {
                        let mut out = Vec::new();
                        for chunk in chunks.iter().skip(thread).step_by(threads) {
                            encode_extent(&mut pool.get(method), chunk, SECTOR, &mut out);
                        }
                    });
                }
            });
            let (seconds, stats) = (start.elapsed().as_secs_f64(), pool.stats());
            let kept = workers + 1;
            rows.push(vec![
                name.to_owned(),
                kept.to_string(),
                chunks.len().to_string(),
                stats.allocated.to_string(),
                stats.reused.to_string(),
                stats.peak_bytes.to_string(),
                format!("{seconds:.2}"),
            ]);
        }
    }
    let head = ["method", "idle kept", "chunks", "allocated", "reused", "bytes at most", "s"];
    text.push_str(&table(&head, &rows));
    Ok(text)
}
