//! Compressed contents in images: what btrfsimg stores, the kernel and `btrfs restore` read; what the kernel stores,
//! btrfsimg reads; and each chunk is judged on its own.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use btrfsimg_compress::{Encoded, Method, Workspace, encode_extent};
use btrfsimg_testkit::btrfs_progs;
use btrfsimg_testkit::oracle::Oracle;
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::treediff::{DiffOptions, diff};
use common::{Lab, edit_blocks, run, sh};
use serde_json::Value;

const CHUNK: usize = 131_072;

fn text(len: usize) -> Vec<u8> {
    let lines =
        (0_u32..).flat_map(|n| format!("line {n} of a text, {}\n", n.wrapping_mul(n) % 97).into_bytes());
    lines.take(len).collect()
}

/// Machine code as it looks: this test's own.
fn executable(len: usize) -> Vec<u8> {
    let own = fs::read(std::env::current_exe().unwrap()).unwrap();
    own[own.len() / 3..].iter().copied().chain(text(len)).take(len).collect()
}

/// Bytes of each texture.
fn textures(len: usize) -> [(&'static str, Vec<u8>); 4] {
    let random = Rng::new(len as u64 + 1).bytes(len);
    [("zeros", vec![0; len]), ("random", random), ("text", text(len)), ("executable", executable(len))]
}

/// Every size around the limits of a sector, an inline extent and a chunk, in every texture.
fn write_odd_sizes(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let around = |n: usize| n - 1..=n + 1;
    let sizes = [2048, 4096, 8192, 12_288, 65_536, CHUNK, 2 * CHUNK].into_iter().flat_map(around);
    for size in [0, 1, 7, 200].into_iter().chain(sizes) {
        for (texture, bytes) in textures(size) {
            fs::write(dir.join(format!("{size}-{texture}")), bytes).unwrap();
        }
    }
    let [zeros, random] = [vec![0; 3 * CHUNK / 2], Rng::new(9).bytes(CHUNK)];
    fs::write(dir.join("zeros-random-zeros"), [&zeros[..], &random, &zeros].concat()).unwrap();
}

/// Sizes up to a byte more than a sector, those around a limit all, their textures in turn.
fn write_small_sizes(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let textures = textures(4097);
    let sizes = (0..80).chain(2000..2100).chain(4000..=4097).chain((80..4000).step_by(53));
    for (i, size) in sizes.enumerate() {
        let (_, bytes) = &textures[i % textures.len()];
        fs::write(dir.join(size.to_string()), &bytes[..size]).unwrap();
    }
}

/// Files whose LZO stream has a segment end at each residue where a pad may be due (`format/04 §4.4`), in the middle
/// and at the end; found by trying.
fn write_lzo_residues(dir: &Path) {
    let mut workspace = Workspace::new(Method::LZO);
    let (mut rng, mut stored) = (Rng::new(4), Vec::new());
    let mut wanted: BTreeSet<(bool, usize)> =
        [4091, 4092, 4093, 4094, 4095, 0].into_iter().flat_map(|r| [(false, r), (true, r)]).collect();
    for turn in 0.. {
        if wanted.is_empty() {
            return;
        }
        assert!(turn < 400_000, "not found: {wanted:?}");
        let mut input = Vec::new();
        while input.len() < 8192 {
            let burst = rng.index(400);
            input.extend(rng.bytes(burst));
            input.resize(input.len() + rng.index(300), 0);
        }
        input.truncate(8192);
        let is_end = turn % 2 == 0;
        if !is_end {
            input.resize(16_384, 0);
        }
        if encode_extent(&mut workspace, &input, 4096, &mut stored) == Encoded::Raw {
            continue;
        }
        let mut at = 4;
        for _ in 0..2 {
            let len = u32::from_le_bytes(stored[at..at + 4].try_into().unwrap());
            at += 4 + len as usize;
            let residue = at % 4096;
            at += [0, 1, 2, 3][if residue > 4092 { 4096 - residue } else { 0 }];
            let is_last = is_end && input.len() <= 8192 && at >= stored_total(&stored);
            if wanted.remove(&(is_last, residue)) {
                fs::write(dir.join(format!("residue-{residue}-{is_last}")), &input).unwrap();
            }
        }
    }
}

fn stored_total(stored: &[u8]) -> usize {
    u32::from_le_bytes(stored[..4].try_into().unwrap()) as usize
}

fn every_method() -> impl Iterator<Item = String> {
    let zlib = (1..=9).map(|level| format!("zlib:{level}"));
    let zstd = (-15..=15).filter(|level| *level != 0).map(|level| format!("zstd:{level}"));
    zlib.chain(zstd).chain(["lzo".to_owned()])
}

#[test]
fn the_kernel_and_restore_read_every_size_texture_and_level() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("i.img"));
    write_odd_sizes(&tree.join("odd"));
    write_small_sizes(&tree.join("small"));
    write_lzo_residues(&tree.join("odd"));
    run(&["mkfs", "-q", "-b", "1G", image.to_str().unwrap()]).expect(0);
    let source = dir.path().join("source");
    for method in every_method() {
        // One of each algorithm over all sizes; every level over a few.
        let all = ["lzo", "zlib:3", "zstd:3"].contains(&method.as_str());
        let files = if all { "odd small" } else { "odd/*random-* odd/131073* odd/12287* odd/200-*" };
        let target = source.join(&method);
        fs::create_dir_all(&target).unwrap();
        sh(&tree, &format!("cp -a {files} {}", target.display()));
        let address = format!("{}:/", image.display());
        let compress = format!("--compress={method}");
        run(&["cp", "-q", "-a", "--no-sync", &compress, target.to_str().unwrap(), &address]).expect(0);
    }
    Oracle::new().judge(&image, None).unwrap().assert_ok();
    let mount = Oracle::new().mount(&image, "ro").unwrap();
    if let Some(mount) = &mount {
        for method in every_method() {
            let options = DiffOptions::default();
            diff(&source.join(&method), &mount.path().join(&method), &options).unwrap().assert_equal();
        }
    }
    drop(mount);
    if Oracle::new().has_progs() {
        let restored = dir.path().join("restored");
        fs::create_dir(&restored).unwrap();
        btrfs_progs::restore(&image, &restored).unwrap();
        sh(dir.path(), "diff -r --no-dereference source restored");
    }
    let out = dir.path().join("out");
    run(&["cp", "-q", "-a", &format!("{}:/.", image.display()), out.to_str().unwrap()]).expect(0);
    sh(dir.path(), "diff -r --no-dereference source out");
}

/// Extents of a file by `btrfs inspect-internal dump-tree`: file offset, length, compression.
fn extents(dump: &str) -> Vec<(u64, u64, String)> {
    let (mut found, mut offset, mut len) = (Vec::new(), 0, 0);
    for line in dump.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["item", _, "key", _, "EXTENT_DATA", at, ..] => offset = at.trim_matches(')').parse().unwrap(),
            ["extent", "data", "offset", _, "nr", n, ..] => len = n.parse().unwrap(),
            ["extent", "compression", _, name] => {
                found.push((offset, len, name.trim_matches(['(', ')']).to_owned()));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn each_chunk_is_judged_on_its_own() {
    if !Oracle::new().has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let random = Rng::new(1).bytes(2 * CHUNK);
    let contents = [&random[..], &text(2 * CHUNK), &random[..CHUNK], &text(CHUNK)].concat();
    fs::write(tree.join("file"), &contents).unwrap();
    let chunk = CHUNK as u64;
    for (option, name) in [("--compress", "zlib"), ("--compress", "zstd"), ("--compress-force", "lzo")] {
        let image = dir.path().join("i.img");
        let words = ["mkfs", "-q", "-f", "-r", tree.to_str().unwrap(), option, name, image.to_str().unwrap()];
        run(&words).expect(0);
        let dump = btrfs_progs::dump_tree(&image, &["-t", "fs"]).unwrap();
        // Neighbours that stay raw are one extent.
        let expect = [
            (0, 2 * chunk, "none"),
            (2 * chunk, chunk, name),
            (3 * chunk, chunk, name),
            (4 * chunk, chunk, "none"),
            (5 * chunk, chunk, name),
        ];
        assert_eq!(extents(&dump), expect.map(|(at, len, name)| (at, len, name.to_owned())), "{name}");
        assert!(!dump.contains("NOCOMPRESS"), "{name}: no flag behind the user's back");
        Oracle::new().judge(&image, Some(&tree)).unwrap().assert_ok();
    }
}

#[test]
fn workspaces_are_allocated_once() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..10_000 {
        fs::write(tree.join(n.to_string()), format!("{n} {}", "a".repeat(200))).unwrap();
    }
    let image = dir.path().join("i.img");
    let words = ["mkfs", "--no-sync", "--json", "--stats", "--threads", "3", "--compress-force", "zstd:3"];
    let paths = ["-r", tree.to_str().unwrap(), image.to_str().unwrap()];
    let ran = run(&[&words[..], &paths[..]].concat()).expect(0);
    let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let count = |name: &str| document["workspaces"][name].as_u64().unwrap();
    assert!((1..=4).contains(&count("allocated")), "{document}");
    assert_eq!(count("allocated") + count("reused"), 10_000, "{document}");
    assert!(count("bytes") <= count("peak_bytes") && count("peak_bytes") < 16 << 20, "{document}");
    let more = ["cp", "--stats", "--grow", "--compress=lzo", "-r", tree.to_str().unwrap()];
    let ran = run(&[&more[..], &[&format!("{}:/more", image.display())]].concat()).expect(0);
    assert!(ran.text().starts_with("workspaces: ") && ran.text().contains(" reused, "), "{}", ran.text());
}

/// All sizes through the kernel, by each algorithm; then extents that are shared, seen through windows, with holes
/// between.
const KERNEL_WRITES: &str = r#"
for algorithm in zlib lzo zstd; do
  mkdir $algorithm; btrfs property set $algorithm compression $algorithm
  cp -r "$SOURCE"/. $algorithm/
  yes "a line that compresses" | head -c 600000 > $algorithm/first; sync
  cp --reflink=always $algorithm/first $algorithm/second; sync
  for file in first second; do
    dd if=/dev/urandom of=$algorithm/$file bs=4096 seek=$((RANDOM % 30 + 3)) count=1 conv=notrunc status=none
    fallocate -p -o 204800 -l 12288 $algorithm/$file; fallocate -p -o 409600 -l 40960 $algorithm/$file
  done; sync
done
"#;

#[test]
fn what_the_kernel_compressed_reads_back() {
    let tree = tempfile::tempdir().unwrap();
    write_odd_sizes(&tree.path().join("odd"));
    write_small_sizes(&tree.path().join("small"));
    let Some(lab) = Lab::kernel_made(&[], "rw,compress-force", |top| {
        sh(top, &format!("SOURCE={}\n{KERNEL_WRITES}", tree.path().display()));
    }) else {
        return;
    };
    let dump = btrfs_progs::dump_tree(&lab.image, &["-t", "fs"]).unwrap();
    for algorithm in ["1 (zlib)", "2 (lzo)", "3 (zstd)"] {
        let windows = dump.lines().zip(dump.lines().skip(1)).filter(|(window, compression)| {
            window.contains("extent data offset ")
                && !window.contains("extent data offset 0 ")
                && compression.contains(algorithm)
        });
        assert!(windows.count() >= 4, "windows into extents by {algorithm}");
        let inline = format!("compression {algorithm}");
        let lines = dump.lines().filter(|l| l.contains("inline extent data size") && l.contains(&inline));
        assert!(lines.count() > 100, "inline extents by {algorithm}");
    }
    let out = lab.host("out");
    run(&["cp", "-q", "-a", &lab.at("/."), out.to_str().unwrap()]).expect(0);
    lab.mounted(|top| diff(top, &out, &DiffOptions::default()).unwrap().assert_equal());
    run(&["verify", "-q", "--data", lab.image.to_str().unwrap()]).expect(0);
}

/// Has size and nbytes of inodes, ram_bytes and num_bytes of extents in the top-level subvolume say `to` where they
/// say `from`.
fn patch_files(image: &Path, from: usize, to: usize) -> usize {
    let [from, to] = [from as u64, to as u64].map(u64::to_le_bytes);
    edit_blocks(image, |block| {
        let mut changed = false;
        let is_fs_leaf = block[88..96] == 5_u64.to_le_bytes() && block[100] == 0;
        let nritems = u32::from_le_bytes(block[96..100].try_into().unwrap()) as usize;
        for slot in 0..if is_fs_leaf { nritems } else { 0 } {
            let header = 101 + 25 * slot;
            let [data, len] =
                [17, 21].map(|at| u32::from_le_bytes(block[header + at..][..4].try_into().unwrap()) as usize);
            let fields = match (block[header + 8], len) {
                (1, 160) => [16, 24],
                (108, 53) => [8, 45],
                _ => continue,
            };
            for field in fields.map(|at| 101 + data + at) {
                if block[field..field + 8] == from {
                    block[field..field + 8].copy_from_slice(&to);
                    changed = true;
                }
            }
        }
        changed
    })
}

#[test]
fn streams_shorter_and_longer_than_the_extent_says() {
    let Some(lab) = Lab::kernel_made(&[], "rw,compress-force", |top| {
        for (i, algorithm) in ["zlib", "lzo", "zstd"].into_iter().enumerate() {
            sh(top, &format!("mkdir {algorithm}; btrfs property set {algorithm} compression {algorithm}"));
            for (name, size) in [("longer", 29), ("shorter", 15)] {
                fs::write(top.join(algorithm).join(name), text((size - i) * 4096)).unwrap();
            }
        }
    }) else {
        return;
    };
    // Size, nbytes, num_bytes and ram_bytes all say the same here, and go together.
    for (gives, says) in (0..3).flat_map(|i| [(29 - i, 22 - i), (15 - i, 18 - i)]) {
        assert!(patch_files(&lab.image, gives * 4096, says * 4096) > 0);
    }
    lab.mounted(|top| {
        for (i, algorithm) in ["zlib", "lzo", "zstd"].into_iter().enumerate() {
            for (name, gives, says) in [("longer", 29 - i, 22 - i), ("shorter", 15 - i, 18 - i)] {
                let mut expect = text(gives * 4096);
                expect.resize(says * 4096, 0);
                let path = format!("/{algorithm}/{name}");
                let ours = run(&["cat", &lab.at(&path)]).expect(0).stdout;
                assert!(ours == expect, "{path}: {} bytes", ours.len());
                assert!(fs::read(top.join(&path[1..])).unwrap() == expect, "{path}, the kernel");
            }
        }
    });
}
