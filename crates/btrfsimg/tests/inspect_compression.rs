//! `inspect compression`, judged by what btrfs-progs says of the items, and by compsize where it is installed.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use btrfsimg_testkit::btrfs_progs;
use common::{Lab, patch_blocks, run, sh};
use serde_json::Value;

/// Every kind of extent; shared within a file, between files, and between subvolumes; two names of one file.
const LAYOUT: &str = r#"
pattern() { yes "line $1 of a file that compresses" | head -c "$2"; }
head -c 300000 /dev/urandom > random
pattern 1 1000000 > text; sync
cp --reflink=always text copy; ln text link
dd if=/dev/urandom of=text bs=4k count=3 seek=5 conv=notrunc status=none; sync
printf abc > inline_raw; pattern 2 3000 > inline_zstd; ln inline_zstd inline_link
fallocate -l 1M prealloc; pattern 3 5000 | dd of=prealloc bs=1 seek=500000 conv=notrunc status=none
truncate -s 10M hole; ln -s text symlink; mkfifo fifo
mkdir -p d/zlib d/lzo/deep d/empty
btrfs property set d/zlib compression zlib; btrfs property set d/lzo compression lzo
pattern 4 500000 > d/zlib/a; pattern 5 400000 > d/lzo/b; pattern 6 3000 > d/lzo/c; sync
cp --reflink=always d/zlib/a d/lzo/deep/a_again; cp --reflink=always d/zlib/a d/zlib/a_again
btrfs subvolume create -q sub 2>/dev/null || btrfs subvolume create sub >/dev/null
cp --reflink=always text sub/text; pattern 7 200000 > sub/own; sync
btrfs subvolume snapshot sub d/snapshot >/dev/null; sync
"#;

fn lab() -> Option<Lab> {
    Lab::kernel_made(&[], "rw,compress-force=zstd", |top| {
        sh(top, LAYOUT);
    })
}

/// Bytes on disk, uncompressed, referenced.
type Row = [u64; 3];

#[derive(Debug, PartialEq, Default)]
struct Usage {
    files: u64,
    extents: u64,
    refs: u64,
    inline: u64,
    types: BTreeMap<String, Row>,
}

/// Adds what dump-tree says of a subvolume; `seen` are the extents of those before.
fn count_dump(dump: &str, seen: &mut BTreeSet<u64>, usage: &mut Usage) {
    let mut links = BTreeMap::new();
    let (mut ino, mut is_extent, mut is_file, mut disk, mut num) = (0, false, false, (0, 0), (0, 0));
    let mut kind = "";
    for line in dump.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let n = |i: usize| words[i].parse::<u64>().unwrap();
        match words[..] {
            ["item", _, "key", id, key_type, ..] => {
                ino = id.trim_start_matches('(').parse().unwrap_or(0);
                is_extent = key_type == "EXTENT_DATA";
                is_file = key_type == "INODE_ITEM";
            }
            ["block", "group", _, "mode", mode, "links", _, ..] if is_file && mode.starts_with("100") => {
                links.insert(ino, n(6));
                usage.files += n(6);
            }
            _ if !is_extent || !links.contains_key(&ino) => {}
            ["generation", _, "type", _, name] => kind = name,
            ["inline", "extent", "data", "size", _, "ram_bytes", _, "compression", _, name] => {
                usage.inline += links[&ino];
                let row = usage.types.entry(name.trim_matches(['(', ')']).to_owned()).or_default();
                row[0] += links[&ino] * n(4);
                row[1] += links[&ino] * n(6);
                row[2] += links[&ino] * n(6);
            }
            ["extent", "data", "disk", "byte", ..] => disk = (n(4), n(6)),
            ["prealloc", "data", "disk", "byte", ..] => disk = (n(4), n(6)),
            ["prealloc", "data", "offset", _, "nr", _] => {
                let row = usage.types.entry("prealloc".to_owned()).or_default();
                usage.refs += links[&ino];
                row[2] += links[&ino] * n(5);
                if seen.insert(disk.0) {
                    usage.extents += 1;
                    row[0] += disk.1;
                    row[1] += disk.1;
                }
            }
            ["extent", "data", "offset", ..] => num = (n(5), n(7)),
            ["extent", "compression", _, name] if disk.0 != 0 => {
                assert_eq!(kind, "(regular)");
                let row = usage.types.entry(name.trim_matches(['(', ')']).to_owned()).or_default();
                usage.refs += links[&ino];
                row[2] += links[&ino] * num.0;
                if seen.insert(disk.0) {
                    usage.extents += 1;
                    row[0] += disk.1;
                    row[1] += num.1;
                }
            }
            _ => {}
        }
    }
}

fn expected(image: &Path, trees: &[&str]) -> Usage {
    let (mut seen, mut usage) = (BTreeSet::new(), Usage::default());
    for tree in trees {
        count_dump(&btrfs_progs::dump_tree(image, &["-t", tree]).unwrap(), &mut seen, &mut usage);
    }
    usage
}

fn usage_of(value: &Value) -> Usage {
    let n = |field: &str| value[field].as_u64().unwrap();
    let row = |v: &Value| ["disk", "uncompressed", "referenced"].map(|field| v[field].as_u64().unwrap());
    let types = value["types"].as_array().unwrap();
    let types = types.iter().map(|t| (t["type"].as_str().unwrap().to_owned(), row(t)));
    Usage {
        files: n("files"),
        extents: n("extents"),
        refs: n("refs"),
        inline: n("inline"),
        types: types.collect(),
    }
}

fn json(args: &[&str]) -> Value {
    let ran = run(&[&["inspect", "compression", "--json"], args].concat()).expect(0);
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn the_table_is_what_the_items_say() {
    let Some(lab) = lab() else { return };
    let all = json(&[&lab.at("/")]);
    let found = usage_of(&all["compression"][0]);
    assert_eq!(found, expected(&lab.image, &["5", "256", "257"]));
    let kinds: Vec<&str> = found.types.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["lzo", "none", "prealloc", "zlib", "zstd"]);
    assert!(found.refs > found.extents, "something is shared");
    // The subvolume alone: what it shares counts here too.
    let sub = json(&[&lab.at("/sub")]);
    assert_eq!(usage_of(&sub["compression"][0]), expected(&lab.image, &["256"]));
    let by_id = json(&["--subvol", "256", "-i", lab.image.to_str().unwrap(), "/"]);
    assert_eq!(usage_of(&by_id["compression"][0]), usage_of(&sub["compression"][0]));
}

#[test]
fn each_directory_is_counted_as_if_alone() {
    let Some(lab) = lab() else { return };
    let listed = |depth: &str| {
        let found = json(&["--depth", depth, &lab.at("/")]);
        let directories = found["compression"][0]["directories"].as_array().unwrap().clone();
        let of = |d: &Value| (d["path"].as_str().unwrap().to_owned(), usage_of(d));
        directories.iter().map(of).collect::<Vec<_>>()
    };
    let names = |found: &[(String, Usage)]| found.iter().map(|(p, _)| p.clone()).collect::<Vec<_>>();
    assert_eq!(names(&listed("0")), [""; 0]);
    assert_eq!(names(&listed("1")), ["/d", "/sub"]);
    let two = listed("2");
    assert_eq!(names(&two), ["/d/empty", "/d/lzo", "/d/snapshot", "/d/zlib", "/d", "/sub"]);
    assert_eq!(names(&listed("9")).len(), 7);
    for (path, usage) in listed("9") {
        let alone = json(&[&lab.at(&path)]);
        assert_eq!(usage, usage_of(&alone["compression"][0]), "{path}");
    }
    // The table: a line for each, a blank one, then the whole.
    let text = run(&["inspect", "compression", "--depth", "1", &lab.at("/")]).expect(0);
    let lines: Vec<&str> = text.text().lines().collect();
    assert!(lines[0].ends_with("Path") && lines[1].ends_with(" /d") && lines[2].ends_with(" /sub"));
    assert!(lines[3].is_empty() && lines[4].starts_with("Processed ") && lines[6].starts_with("TOTAL "));
}

/// Several paths: one table, in which what they share counts once; a file named twice counts twice.
#[test]
fn several_paths_are_one_table() {
    let Some(lab) = lab() else { return };
    let both = json(&[&lab.at("/sub"), &lab.at("/d/snapshot")]);
    assert_eq!(usage_of(&both["all"]), expected(&lab.image, &["256", "257"]));
    for (at, tree) in ["256", "257"].into_iter().enumerate() {
        assert_eq!(usage_of(&both["compression"][at]), expected(&lab.image, &[tree]), "alone");
    }
    let text = |more: &[&str]| run(&[&["inspect", "compression", "-b"], more].concat()).expect(0);
    let ran = text(&[&lab.at("/sub"), &lab.at("/d/snapshot")]);
    let lines: Vec<&str> = ran.text().lines().collect();
    assert_eq!(lines.iter().filter(|line| line.starts_with("TOTAL")).count(), 1, "{lines:?}");
    assert!(lines[0].starts_with("Processed "), "{lines:?}");
    let twice = json(&[&lab.at("/text"), &lab.at("/text")]);
    let (once, twice) = (usage_of(&twice["compression"][0]), usage_of(&twice["all"]));
    assert_eq!((twice.files, twice.extents, twice.refs), (2, once.extents, 2 * once.refs));
    // Another image has extents of its own, whatever their addresses.
    let copy = lab.image.with_extension("copy");
    std::fs::copy(&lab.image, &copy).unwrap();
    let apart = usage_of(&json(&[&lab.at("/text"), &format!("{}:/text", copy.display())])["all"]);
    assert_eq!((apart.extents, apart.refs), (2 * once.extents, 2 * once.refs));
    let listed = text(&["--depth", "1", &lab.at("/"), &lab.at("/d")]);
    let lines: Vec<&str> = listed.text().lines().collect();
    let heads = lines.iter().filter(|line| line.ends_with("Path")).count();
    assert_eq!(
        (heads, lines.iter().filter(|line| line.starts_with("Processed ")).count()),
        (1, 1),
        "{lines:?}"
    );
}

#[test]
fn what_compsize_says() {
    if Command::new("compsize").arg("--help").output().is_err() {
        println!("skipped: compsize is not installed");
        return;
    }
    let Some(lab) = lab() else { return };
    // Blanks aside: they pad by unit.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    lab.mounted(|top| {
        for path in ["", "d", "d/lzo", "sub", "text", "inline_link"] {
            for option in [None, Some("-b")] {
                let output = Command::new("compsize").args(option).arg(top.join(path)).output().unwrap();
                let address = lab.at(&format!("/{path}"));
                let args = ["inspect", "compression"].into_iter().chain(option).chain([&*address]);
                let ours = run(&args.collect::<Vec<_>>()).expect(0);
                let theirs = String::from_utf8(output.stdout).unwrap();
                assert_eq!(words(ours.text()), words(&theirs), "{path} {option:?}");
            }
        }
    });
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_counted() {
    let Some(lab) = lab() else { return };
    let whole = usage_of(&json(&[&lab.at("/d")])["compression"][0]);
    // data_len, name_len, type and name of the entry `c` of /d/lzo: a type that there is not.
    let entry = |file_type: u8| [0, 0, 1, 0, file_type, b'c'];
    assert!(patch_blocks(&lab.image, &entry(1), &entry(99)) > 0);
    let ran = run(&["inspect", "compression", "--json", &lab.at("/d")]).expect(4);
    assert!(ran.stderr.contains("/d/lzo"), "{}", ran.stderr);
    let value: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let rest = usage_of(&value["compression"][0]);
    assert_eq!((rest.files, rest.extents, rest.inline), (whole.files - 1, whole.extents, whole.inline - 1));
    run(&["inspect", "compression", &lab.at("/nothing")]).expect(1);
    run(&["inspect", "compression"]).expect(2);
}
