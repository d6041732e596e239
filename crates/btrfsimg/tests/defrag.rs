//! `defrag`: the bytes stay, the extents become better, and what is shared stays shared. The kernel is the judge.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use btrfsimg_testkit::btrfs_progs;
use btrfsimg_testkit::oracle::{JudgeOptions, Oracle};
use common::{Lab, find_sectors, overwrite, run, sh};
use serde_json::Value;

/// Fragments, extents of every algorithm, windows into extents, holes, shared extents, subvolumes with a snapshot.
const LAYOUT: &str = r#"
pattern() { yes "line $1 of a file that compresses" | head -c "$2"; }
pattern 1 5000000 > raw
for i in $(seq 0 40); do head -c 8192 /dev/urandom | dd of=fragments bs=4096 seek=$((i * 2)) conv=notrunc status=none; sync; done
mkdir -p d/zlib d/none; btrfs property set d/zlib compression zlib; btrfs property set d/none compression none
pattern 2 900000 > d/zlib/file; pattern 3 300000 > d/none/file; pattern 4 3000001 > d/plain; sync
ln fragments d/link
cp --reflink=always raw shared
pattern 5 400000 > holes; sync; fallocate -p -o 100000 -l 50000 holes; fallocate -n -o 1000000 -l 65536 holes
pattern 6 700000 > windows; sync
for i in 3 50 51 90; do head -c 4096 /dev/urandom | dd of=windows bs=4096 seek=$i conv=notrunc status=none; sync; done
printf small > inline; touch nocow; chattr +C nocow; pattern 7 300000 > nocow
setfattr -n user.a -v b raw; touch -d '2001-02-03 04:05:06' raw d/plain
btrfs subvolume create sub >/dev/null; pattern 8 700000 > sub/old; sync
btrfs subvolume snapshot sub snapshot >/dev/null; pattern 9 700000 > sub/new
sync
"#;

fn lab() -> Option<Lab> {
    Lab::kernel_made(&[], "rw", |top| _ = sh(top, LAYOUT))
}

/// All that users see of files, by the kernel.
fn seen(lab: &Lab) -> String {
    let mut seen = String::new();
    lab.mounted(|top| {
        seen = sh(
            top,
            "find . -type f | sort | tee list | xargs sha256sum; find . | sort | xargs stat -c '%n %s %b %y %z %a %h'; \
             find . | sort | xargs getfattr -h -d -m -"
                .replace("tee list | ", "")
                .as_str(),
        );
    });
    seen
}

#[derive(Debug, PartialEq, Clone)]
struct Extent {
    at: u64,
    disk: u64,
    len: u64,
    compression: String,
}

/// Extents outside the tree by dump-tree, by inode.
fn extents(image: &Path, tree: &str) -> BTreeMap<u64, Vec<Extent>> {
    let dump = btrfs_progs::dump_tree(image, &["-t", tree]).unwrap();
    let (mut found, mut key, mut disk, mut len) = (BTreeMap::<u64, Vec<Extent>>::new(), (0, 0), 0, 0);
    for line in dump.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let n = |i: usize| words[i].trim_matches(['(', ')']).parse::<u64>().unwrap();
        match words[..] {
            ["item", _, "key", _, "EXTENT_DATA", ..] => (key, disk) = ((n(3), n(5)), 0),
            ["extent", "data", "disk", "byte", ..] => disk = n(4),
            ["extent", "data", "offset", ..] => len = n(5),
            ["extent", "compression", _, name] if disk != 0 => {
                let compression = name.trim_matches(['(', ')']).to_owned();
                found.entry(key.0).or_default().push(Extent { at: key.1, disk, len, compression });
            }
            _ => {}
        }
    }
    found
}

fn inode(lab: &Lab, path: &str) -> u64 {
    let ran = run(&["stat", "--json", &lab.at(path)]).expect(0);
    let value: Value = serde_json::from_slice(&ran.stdout).unwrap();
    value["files"][0]["inode"].as_u64().unwrap()
}

fn of(lab: &Lab, path: &str) -> Vec<Extent> {
    extents(&lab.image, "5").remove(&inode(lab, path)).unwrap_or_default()
}

fn kinds(extents: &[Extent]) -> Vec<&str> {
    let mut kinds: Vec<&str> = extents.iter().map(|e| e.compression.as_str()).collect();
    kinds.dedup();
    kinds
}

/// Runs `defrag --json` on the image with these options.
fn defrag(lab: &Lab, options: &[&str], path: &str) -> Value {
    let ran = run(&[&["defrag", "--json"], options, &[&lab.at(path)]].concat()).expect(0);
    serde_json::from_slice::<Value>(&ran.stdout).unwrap()["images"][0].clone()
}

#[test]
fn bytes_times_properties_and_snapshots_stay() {
    let Some(lab) = lab() else { return };
    let before = seen(&lab);
    let [snapshot, shared] = [extents(&lab.image, "257"), BTreeMap::from([(0, of(&lab, "/shared"))])];
    for options in [
        &["-r"][..],
        &["-r", "-c", "zstd"],
        &["-r", "-c", "lzo"],
        &["-r", "-c", "zlib:9", "--target-extent-size", "128k"],
        &["-r", "-c", "none"],
        &["-r", "-c", "zstd:-5"],
    ] {
        for path in ["/", "/sub"] {
            defrag(&lab, options, path);
        }
        assert_eq!(seen(&lab), before, "{options:?}");
        assert_eq!(extents(&lab.image, "257"), snapshot, "{options:?}: the snapshot");
        assert_eq!(of(&lab, "/shared"), shared[&0], "{options:?}: a shared file");
        assert_eq!(of(&lab, "/raw"), shared[&0], "{options:?}: the other one");
        Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
    }
}

#[test]
fn extents_become_fewer_and_what_is_good_is_left() {
    let Some(lab) = lab() else { return };
    assert!(of(&lab, "/fragments").len() > 30);
    let done = defrag(&lab, &["-r"], "/");
    assert_eq!(of(&lab, "/fragments").len(), 1);
    // What is compressed stays so without -c; what is not stays so too.
    assert_eq!(kinds(&of(&lab, "/d/zlib/file")), ["zlib"]);
    assert_eq!(kinds(&of(&lab, "/windows")), ["none"]);
    assert_eq!(of(&lab, "/windows").len(), 1);
    let count = |name: &str| done[name].as_u64().unwrap();
    // One file with two names is one file.
    let names: Vec<&str> =
        done["rewritten"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["/d/link", "/holes", "/windows"]);
    assert_eq!(of(&lab, "/holes").len(), 2, "a hole is between");
    assert!(count("extents_after") == 4 && count("extents_before") > 32, "{done}");
    assert_eq!(count("shared_bytes"), 2 * 5_001_216, "raw and its clone");
    // A window of an extent that was overwritten holds all of it: that room comes back.
    assert!(count("disk_after") < count("disk_before"), "{done}");
    let image = fs::read(&lab.image).unwrap();
    assert_eq!(defrag(&lab, &["-r"], "/")["files_rewritten"], 0);
    assert!(fs::read(&lab.image).unwrap() == image, "nothing to do is no commit");
}

#[test]
fn a_request_is_above_the_property_and_leaves_it() {
    let Some(lab) = lab() else { return };
    let property =
        |path: &str| run(&["prop", "get", &lab.at(path), "compression"]).expect(0).text().to_owned();
    let before = [property("/d/zlib/file"), property("/d/none/file")];
    defrag(&lab, &["-r", "-c", "zstd"], "/");
    for path in ["/d/zlib/file", "/d/none/file", "/d/plain"] {
        assert_eq!(kinds(&of(&lab, path)), ["zstd"], "{path}");
    }
    // Parts of one extent on both sides of a hole; then what is preallocated, which has no compression.
    let holes = of(&lab, "/holes");
    assert!(holes.iter().all(|e| e.compression == "zstd"), "{holes:?}");
    assert_eq!(kinds(&of(&lab, "/nocow")), ["none"], "nodatacow is never compressed");
    assert_eq!(kinds(&of(&lab, "/fragments")), ["none"], "noise does not become smaller");
    assert_eq!([property("/d/zlib/file"), property("/d/none/file")], before);
    // By the property again; what its file shares with nobody has no say in it.
    defrag(&lab, &["-r"], "/");
    assert_eq!(kinds(&of(&lab, "/d/zlib/file")), ["zlib"]);
    assert_eq!(kinds(&of(&lab, "/d/plain")), ["zstd"]);
    defrag(&lab, &["-r", "-c", "none"], "/d");
    assert_eq!(kinds(&of(&lab, "/d/plain")), ["none"]);
    // A level: tried again, kept where it is smaller.
    defrag(&lab, &["-c", "zstd:-15"], "/d/plain");
    let disk = |value: Value| (value["disk_before"].as_u64().unwrap(), value["disk_after"].as_u64().unwrap());
    assert_eq!(disk(defrag(&lab, &["-c", "zstd"], "/d/plain")), (0, 0), "of the algorithm already");
    assert_eq!(disk(defrag(&lab, &["-c", "zstd:-15"], "/d/plain")), (0, 0), "no smaller than before");
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

#[test]
fn sharing_is_broken_only_when_asked() {
    let Some(lab) = lab() else { return };
    let before = seen(&lab);
    // A snapshot shares whole leaves: no reference says so.
    let done = defrag(&lab, &["-r", "-c", "zstd"], "/sub");
    assert_eq!(done["shared_extents"], 1, "{done}");
    let names: Vec<&Value> = done["rewritten"].as_array().unwrap().iter().map(|f| &f["path"]).collect();
    assert_eq!(names, ["/sub/new"]);
    let done = defrag(&lab, &["-r", "-c", "zstd", "--unshare"], "/");
    assert_eq!(done["shared_extents"], 0, "{done}");
    let [raw, shared] = [of(&lab, "/raw"), of(&lab, "/shared")];
    assert_eq!((kinds(&raw), kinds(&shared)), (vec!["zstd"], vec!["zstd"]));
    assert!(raw.iter().all(|r| shared.iter().all(|s| r.disk != s.disk)));
    defrag(&lab, &["-r", "-c", "lzo", "--unshare"], "/sub");
    assert_eq!(seen(&lab), before);
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

/// Bytes that do not compress.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Compressed extents of the largest size are shared too; and parts of some that become raw go together with raw ones
/// beside them in one go.
#[test]
fn what_is_unshared_is_left_alone_by_the_next_run() {
    let chunk = |n| [noise(20 << 10, n), b"text ".repeat(30_000)].concat()[..128 << 10].to_vec();
    let Some(lab) = Lab::kernel_made(&[], "rw,compress=lzo", |top| {
        fs::write(top.join("z"), (0..4).flat_map(chunk).collect::<Vec<_>>()).unwrap();
        sh(top, "sync; cp --reflink=always z y; cp --reflink=always z x; sync");
        for (name, at) in [("y", 20 << 10), ("x", 0), ("x", (256 << 10) + (4 << 10)), ("y", 400 << 10)] {
            let file = File::options().write(true).open(top.join(name)).unwrap();
            file.write_all_at(&noise(8 << 10, at), at).unwrap();
            sh(top, "sync");
        }
        sh(top, "btrfs -q subvolume snapshot . snap");
    }) else {
        return;
    };
    let before = seen(&lab);
    let done = defrag(&lab, &["-r", "--unshare"], "/");
    assert_eq!((&done["files_rewritten"], &done["shared_extents"]), (&3.into(), &0.into()), "{done}");
    let (top, snapshot) = (extents(&lab.image, "5"), extents(&lab.image, "256"));
    let files = ["/x", "/y", "/z"].map(|path| inode(&lab, path));
    for (n, file) in files.iter().enumerate() {
        let others = files.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, other)| &top[other]);
        for extent in others.chain(files.iter().map(|file| &snapshot[file])).flatten() {
            assert!(top[file].iter().all(|ours| ours.disk != extent.disk), "{file}");
        }
    }
    let done = defrag(&lab, &["-r", "--unshare"], "/");
    assert_eq!((&done["files_rewritten"], &done["bytes"]), (&0.into(), &0.into()), "{done}");
    assert_eq!(seen(&lab), before);
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

#[test]
fn a_broken_file_is_left_and_the_others_follow() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "yes first | head -c 300000 > a; yes broken-broken- | head -c 300000 > b; yes last | head -c 300000 > c",
        );
    }) else {
        return;
    };
    let sector: Vec<u8> = b"broken-broken-\n".iter().copied().cycle().take(4096).collect();
    let places = find_sectors(&lab.image, &sector);
    overwrite(&lab.image, places[0], &[0; 16]);
    let ran = run(&["defrag", "-r", "-c", "zstd", &lab.at("/")]).expect(4);
    assert!(ran.stderr.contains("/b: ") && ran.stderr.contains("checksum"), "{}", ran.stderr);
    assert!(ran.text().contains("2 of 3 files made anew"), "{}", ran.text());
    assert_eq!(kinds(&of(&lab, "/b")), ["none"]);
    assert_eq!(kinds(&of(&lab, "/c")), ["zstd"]);
    run(&["defrag", &lab.at("/")]).expect(1);
    run(&["defrag", &lab.at("/none")]).expect(1);
    run(&["defrag", "-c", "zstd:16", &lab.at("/a")]).expect(2);
    run(&["defrag", "-t", "4k", &lab.at("/a")]).expect(2);
}

#[test]
fn little_room_means_small_steps_and_none_is_an_error() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() || !oracle.has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("i.img"));
    fs::create_dir(&tree).unwrap();
    // As text for lzo and for zstd.
    sh(&tree, "seq 1 4000000 | head -c 24000000 > a; seq 9000000 | tail -c 24000000 > b");
    let mkfs = ["mkfs", "-q", "--size", "min", "--compress-force", "lzo", "-r"];
    run(&[&mkfs[..], &[tree.to_str().unwrap(), image.to_str().unwrap()]].concat()).expect(0);
    let address = format!("{}:/", image.display());
    let full = run(&["defrag", "-r", "-c", "none", &address]).expect(5);
    assert!(full.stderr.contains("--grow"), "{}", full.stderr);
    // Steps that were done are whole; there is no room left to write more.
    let judge = JudgeOptions { source: Some(&tree), read_write: false, ..JudgeOptions::default() };
    oracle.judge_with(&image, &judge).unwrap().assert_ok();
    run(&["defrag", "-r", "-c", "none", "--grow", &address]).expect(0);
    run(&["defrag", "-r", "-c", "zstd", &address]).expect(0);
    oracle.judge_with(&image, &judge).unwrap().assert_ok();
}

/// Where free space is in pieces smaller than what would be compressed, the file stays as it is: raw in pieces it would be
/// worse. What fits is made anew, and counted as `inspect compression` counts it.
#[test]
fn a_file_that_would_become_raw_in_pieces_is_left() {
    let oracle = Oracle::new();
    if !oracle.has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("i.img"));
    fs::create_dir(&tree).unwrap();
    // A chunk of `a` takes about 30 KiB with zstd, all of `b` 4 KiB.
    sh(
        &tree,
        "seq 200000 | head -c 1048576 > a; yes | head -c 131072 > b; mkdir fill; cd fill
        for n in $(seq 1000 2999); do head -c 8192 /dev/urandom > $n; done",
    );
    run(&["mkfs", "-q", "--size", "min", "-r", tree.to_str().unwrap(), image.to_str().unwrap()]).expect(0);
    let at = |path: &str| format!("{}:{path}", image.display());
    for (n, size) in [1 << 20, 1 << 18, 1 << 16, 1 << 14, 1 << 12].into_iter().enumerate() {
        let noise = dir.path().join("noise");
        fs::write(&noise, self::noise(size, 7)).unwrap();
        let fill = |i: &u32| run(&["cp", noise.to_str().unwrap(), &at(&format!("/fill/{n}-{i}"))]).code == 0;
        assert!((0..1000).find(|i| !fill(i)).is_some());
    }
    let odd = (1000..3000).step_by(2).map(|n| at(&format!("/fill/{n}")));
    run(&["rm".to_owned()].into_iter().chain(odd).collect::<Vec<_>>()).expect(0);
    let ran = |words: &[&str]| {
        let ran = run(&[words, &["--json", &at("/a"), &at("/b")]].concat()).expect(0);
        serde_json::from_slice::<Value>(&ran.stdout).unwrap()
    };
    let types = || ran(&["inspect", "compression"]);
    let before = types();
    let report = ran(&["defrag", "-c", "zstd"])["images"][0].clone();
    let after = types();
    let used = |of: &Value, path: usize| of["compression"][path]["total"]["disk"].as_u64().unwrap();
    assert_eq!(used(&before, 0), used(&after, 0), "{after:#}");
    assert_eq!((used(&before, 1), used(&after, 1)), (131_072, 4096), "{after:#}");
    assert_eq!(
        (&report["files_rewritten"], &report["disk_before"], &report["disk_after"]),
        (&1.into(), &131_072.into(), &4096.into())
    );
    let judge = JudgeOptions { read_write: false, ..JudgeOptions::default() };
    oracle.judge_with(&image, &judge).unwrap().assert_ok();
}

/// A property is put on all below, and then defrag goes by it.
#[test]
fn a_property_reaches_what_is_below() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir -p d/e; yes text | head -c 300000 | tee d/a d/e/b > beside; mkfifo d/fifo; ln -s ../beside d/link
             touch d/nocow; chattr +C d/nocow; yes text | head -c 300000 > d/nocow
             btrfs subvolume create d/sub > /dev/null; yes text | head -c 300000 > d/sub/c; sync",
        );
    }) else {
        return;
    };
    let set = |words: &[&str]| {
        run(&[&["prop", "set", "-r", &lab.at("/d"), "compression"], words].concat()).expect(0)
    };
    let told = set(&["zlib:9"]).stderr;
    assert_eq!(told.matches("left out").count(), 1, "{told}");
    assert!(told.contains("/d/nocow: left out: it is nodatacow"), "{told}");
    lab.mounted(|top| {
        let got = sh(top, "for i in d d/a d/e d/e/b d/sub d/sub/c d/nocow beside; do echo $i $(btrfs property get $i compression); done");
        let of = |path: &str| format!("{path} compression=zlib:9\n");
        let with = ["d", "d/a", "d/e", "d/e/b", "d/sub", "d/sub/c"].map(of).concat();
        assert_eq!(got, with + "d/nocow\nbeside\n");
    });
    defrag(&lab, &["-r"], "/d");
    for (path, kind) in [("/d/a", "zlib"), ("/d/e/b", "zlib"), ("/d/nocow", "none"), ("/beside", "none")] {
        assert_eq!(kinds(&of(&lab, path)), [kind], "{path}");
    }
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
    set(&[""]);
    lab.mounted(|top| assert_eq!(sh(top, "find d -exec getfattr -d -m btrfs {} +"), ""));
    let label = run(&["prop", "set", "-r", &lab.at("/"), "label", "x"]).expect(2);
    assert!(label.stderr.contains("-r is for compression"), "{}", label.stderr);
}

#[test]
fn nobody_asks_for_compression_and_each_part_stays_as_it_is() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "text() { yes \"text $1\" | head -c 65536; }
             put() { btrfs property set $1 compression $2; text $3 | dd of=$1 bs=64k seek=$3 conv=notrunc status=none; sync; }
             touch two three never
             put two zstd 0; put two zstd 1; put two lzo 2; put two lzo 3; btrfs property set two compression ''
             put three lzo 0; put three none 1; put three none 2; put three zstd 3; put three zstd 4
             btrfs property set three compression none
             put never zstd 0; put never zstd 1; put never none 2; btrfs property set never compression ''
             printf tail >> never; sync",
        );
    }) else {
        return;
    };
    let before = seen(&lab);
    let runs = |name: &str| {
        let extents = of(&lab, name);
        let runs = extents.chunk_by(|a, b| a.compression == b.compression);
        runs.map(|run| (run[0].compression.clone(), run.len())).collect::<Vec<_>>()
    };
    let is = |kind: &str, count: usize| (kind.to_owned(), count);
    assert_eq!(runs("/two"), [is("zstd", 2), is("lzo", 2)]);
    defrag(&lab, &["-r"], "/");
    assert_eq!(runs("/two"), [is("zstd", 1), is("lzo", 1)]);
    assert_eq!(runs("/three"), [is("lzo", 1), is("none", 1), is("zstd", 1)]);
    assert_eq!(seen(&lab), before);
    // Without checksums: kernels never compress such data.
    let size = 3 * 65_536 + 4_u64;
    let flagged = common::edit_items(&lab.image, |key_type, item| {
        let is_it = key_type == 1 && item[16..24] == size.to_le_bytes();
        if is_it {
            item[64..72].copy_from_slice(&1_u64.to_le_bytes());
        }
        is_it
    });
    assert!(flagged > 0);
    defrag(&lab, &["-r"], "/never");
    assert_eq!(runs("/never"), [is("none", 1)]);
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

/// Parts of preallocated extents, which kernels make longer than any other one.
#[test]
fn extents_of_any_length_are_made_anew_in_pieces() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() || !oracle.has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab { image: dir.path().join("large.img"), dir };
    // As large that a block group holds such an extent.
    btrfs_progs::mkfs(&lab.image, 4 << 30, &[]).unwrap();
    let mount = oracle.mount(&lab.image, "rw").unwrap().unwrap();
    sh(
        mount.path(),
        "put() { dd of=$1 bs=1M seek=$2 conv=notrunc iflag=fullblock status=none; }
         fallocate -l 150M long; yes long | head -c 136M | put long 0; truncate -s 136M long
         fallocate -l 40M noise; head -c 40M /dev/urandom | put noise 0
         fallocate -l 40M both; head -c 36M /dev/urandom | put both 0; yes both | head -c 4M | put both 36; sync",
    );
    drop(mount);
    let before = seen(&lab);
    const MIB: u64 = 1 << 20;
    let lens = |path: &str| of(&lab, path).iter().map(|e| e.len / MIB).collect::<Vec<_>>();
    assert_eq!(lens("/long").first(), Some(&136), "one extent, longer than 128 MiB");
    // A part of an extent of 150 MiB, which is free then.
    defrag(&lab, &[], "/long");
    assert_eq!(lens("/long"), [32, 32, 32, 32, 8]);
    defrag(&lab, &["-c", "zstd", "--target-extent-size", "4M"], "/long");
    assert_eq!(kinds(&of(&lab, "/long")), ["zstd"]);
    assert_eq!(defrag(&lab, &["-c", "zstd"], "/noise")["files_rewritten"], 0, "noise stays, whole");
    assert_eq!(lens("/noise"), [40]);
    defrag(&lab, &["-c", "zstd"], "/both");
    let both = of(&lab, "/both");
    assert_eq!((both[0].len, both[0].compression.as_str()), (32 * MIB, "none"), "{:?}", both[0]);
    assert!(both.iter().filter(|e| e.at >= 36 * MIB).all(|e| e.compression == "zstd"), "{both:?}");
    assert_eq!(sums(&seen(&lab)), sums(&before));
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

/// The lines with digests.
fn sums(seen: &str) -> Vec<&str> {
    seen.lines().filter(|line| line.contains("  ./")).collect()
}
