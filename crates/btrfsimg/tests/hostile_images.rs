//! Images that lie. Every command ends in time and within memory, and none writes to an image that a kernel would not
//! mount, or over what is in use.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_ondisk::{Key, KeyType, block_group_flags as bg, objectid};
use btrfsimg_testkit::Oracle;
use btrfsimg_testkit::hostile::{Hostile, Sharing};
use common::{limited, run};
use tempfile::TempDir;

/// Every command, `I` the image; what is in it is the file `f` and the directory `d`.
const READERS: &[&str] = &[
    "verify --data I",
    "inspect super --all I",
    "inspect tree I",
    "inspect compression I",
    "ls -lR I:/",
    "stat I:/f",
    "cat I:/f",
    "cp -r I:/ OUT",
    "cp -r --salvage I:/ OUT2",
    "prop list I:/f",
    "xattr list I:/f",
    "subvol list I",
    "subvol show I",
    "subvol get-default I",
    "trim -n I",
];
const WRITERS: &[&str] = &[
    "mkdir I:/new",
    "cp SRC I:/copy",
    "cp -r I:/d I:/e",
    "write --offset 1M I:/f SMALL",
    "mv I:/f I:/g",
    "ln I:/g I:/h",
    "touch I:/g",
    "truncate -s 100 I:/g",
    "chmod 600 I:/g",
    "chown 1:1 I:/g",
    "mknod I:/pipe p",
    "prop set I:/g compression zstd",
    "xattr set I:/g user.a b",
    "subvol create I:/s",
    "subvol snapshot I:/ I:/snap",
    "subvol sync I",
    "defrag -r -c zstd I",
    "fixture apply I inode-flags",
    "rm -r I:/d",
    "trim I",
];

const SIZE: u64 = 48 << 20;

struct Bench {
    dir: TempDir,
    image: PathBuf,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("i.img");
        let source = dir.path().join("src");
        fs::create_dir_all(source.join("d")).unwrap();
        fs::write(source.join("a"), vec![6; 2 << 20]).unwrap();
        fs::write(source.join("f"), vec![7; 1 << 20]).unwrap();
        fs::write(source.join("d/small"), "small").unwrap();
        let (image_word, source) = (image.to_str().unwrap(), source.to_str().unwrap());
        run(&["mkfs", "-q", "-n", "4k", "-b", "48M", image_word, "-r", source]).expect(0);
        Bench { dir, image }
    }

    fn lie(&self, how: impl FnOnce(&Hostile)) {
        let device = Arc::new(FileDevice::open(&self.image, Access::Write, 0).unwrap());
        how(&Hostile::open(device).unwrap());
    }

    fn words(&self, line: &str) -> Vec<String> {
        let at = |name: &str| self.dir.path().join(name).to_str().unwrap().to_owned();
        let word = |w: &str| match w {
            "SRC" => at("src/f"),
            "SMALL" => at("src/d/small"),
            "OUT" | "OUT2" => at(w),
            "I" => at("i.img"),
            w => w.replace("I:/", &format!("{}:/", at("i.img"))),
        };
        line.split(' ').map(word).collect()
    }

    /// Runs a command; its exit code, and what it said.
    fn limited(&self, line: &str) -> (i32, String) {
        let words = self.words(line);
        let (code, output) = limited(&words.iter().map(String::as_str).collect::<Vec<_>>());
        (code, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Every writer refuses the image with `code` and one of `rules`, and leaves it as it is.
    fn refuses(&self, writers: &[&str], rules: &[&str]) {
        let before = fs::read(&self.image).unwrap();
        for line in writers {
            let (code, said) = self.limited(line);
            assert!(code == 4 && rules.iter().any(|rule| said.contains(rule)), "{line}: {code}: {said}");
            assert!(fs::read(&self.image).unwrap() == before, "{line} has changed the image");
        }
    }

    /// Where there is a kernel, it does not mount the image either.
    fn is_refused_by_the_kernel(&self) {
        if Oracle::new().has_kernel() {
            assert!(Oracle::new().mount(&self.image, "ro").is_err());
        }
    }
}

/// Chunk tree first: nothing can be opened before it is read.
#[test]
fn nodes_that_share_children_end() {
    for sharing in [Sharing::OneChild, Sharing::Overlapping] {
        let bench = Bench::new();
        bench.lie(|image| image.share_children(objectid::CHUNK_TREE, sharing).unwrap());
        for line in READERS {
            let (code, said) = bench.limited(line);
            let goes_on = ["verify", "inspect", "cp -r --salvage"].iter().any(|word| line.contains(word));
            assert!(code == 4 || goes_on, "{line}: {code}: {said}");
        }
        bench.refuses(WRITERS, &["BLK-08", "NODE-04"]);
    }
}

/// Trees that are read when something is looked for.
#[test]
fn walks_of_trees_whose_nodes_share_children_end() {
    for tree in [objectid::FS_TREE, objectid::EXTENT_TREE, objectid::FREE_SPACE_TREE] {
        let bench = Bench::new();
        bench.lie(|image| image.share_children(tree, Sharing::Overlapping).unwrap());
        READERS.iter().chain(WRITERS).for_each(|line| _ = bench.limited(line));
        let (code, _) = bench.limited("verify I");
        assert_eq!(code, 4, "tree {tree}");
    }
}

/// Puts the first stripe of the first chunk of a type elsewhere.
fn move_stripe(image: &Hostile, flags: u64, devid: u64, offset: u64) {
    let mut key = Key::new(objectid::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, 0);
    loop {
        let found = image.key_from(objectid::CHUNK_TREE, key).expect("no chunk of that type");
        let mut is_wanted = false;
        let change = |_: &mut Key, data: &mut Vec<u8>| {
            is_wanted = u64::from_le_bytes(data[24..32].try_into().unwrap()) & flags != 0;
            if is_wanted {
                data[48..56].copy_from_slice(&devid.to_le_bytes());
                data[56..64].copy_from_slice(&offset.to_le_bytes());
            }
        };
        image.edit(objectid::CHUNK_TREE, found, change).unwrap();
        if is_wanted {
            return;
        }
        key = Key { offset: found.offset + 1, ..found };
    }
}

/// A chunk where it must not be: what is written to it may be written over anything.
#[test]
fn chunks_that_are_elsewhere() {
    for (n, (flags, devid, offset, rule)) in [
        (bg::DATA, 1, SIZE - 4096, "DE-10"),
        (bg::DATA, 1, SIZE, "DE-10"),
        (bg::DATA, 1, u64::MAX - 4095, "DE-10"),
        (bg::METADATA, 1, 1 << 20, "DE-04"),
        (bg::DATA, 1, 1 << 20, "DE-04"),
        (bg::DATA, 7, SIZE / 2, "DEV-07"),
    ]
    .into_iter()
    .enumerate()
    {
        let bench = Bench::new();
        bench.lie(|image| move_stripe(image, flags, devid, offset));
        // A fault is put into whatever can be read.
        let writers: Vec<_> = WRITERS.iter().copied().filter(|line| !line.starts_with("fixture")).collect();
        bench.refuses(&writers[..if n % 3 == 0 { writers.len() } else { 3 }], &[rule]);
        bench.is_refused_by_the_kernel();
    }
}

/// A file system in a partition: what follows it is not overwritten, whatever its chunks say.
#[test]
fn what_follows_a_file_system_is_left_alone() {
    let bench = Bench::new();
    bench.lie(|image| move_stripe(image, bg::DATA, 1, SIZE));
    let file = fs::File::options().write(true).open(&bench.image).unwrap();
    file.set_len(2 * SIZE).unwrap();
    bench.refuses(&["cp SRC I:/copy", "defrag -r -c zstd I"], &["DE-10"]);
}

/// What is in use, and the free space tree calls free: neither freed again nor overwritten.
#[test]
fn used_space_that_is_called_free() {
    for (flags, lines) in [
        (bg::DATA, &["cp SRC I:/copy", "rm I:/f", "truncate -s 0 I:/f", "write --offset 1M I:/f SMALL"][..]),
        (bg::METADATA, &["mkdir I:/new", "cp SRC I:/copy", "rm -r I:/d", "rm I:/f", "touch I:/f"]),
    ] {
        let bench = Bench::new();
        bench.lie(|image| {
            let (at, len) = image.extent_before_free_space(flags).unwrap();
            image.call_free(at, len).unwrap();
        });
        bench.refuses(lines, &["FS-08"]);
    }
}

/// A size from which nothing can be computed.
#[test]
fn sizes_beyond_what_a_file_can_have() {
    for size in [1 << 63, u64::MAX - 4095, u64::MAX - 4094, u64::MAX] {
        let bench = Bench::new();
        bench.lie(|image| {
            let from = Key::new(257, KeyType::INODE_ITEM, 0);
            let mut key = from;
            // The regular file.
            loop {
                key = image.key_from(objectid::FS_TREE, key).unwrap();
                let mut is_file = false;
                image
                    .edit(objectid::FS_TREE, key, |key, data| {
                        if key.key_type == KeyType::INODE_ITEM {
                            is_file = data[16..24] == (1_u64 << 20).to_le_bytes();
                            if is_file {
                                data[16..24].copy_from_slice(&size.to_le_bytes());
                            }
                        }
                    })
                    .unwrap();
                if is_file {
                    break;
                }
                key.objectid += 1;
                (key.key_type, key.offset) = (KeyType::INODE_ITEM, 0);
            }
        });
        let lines =
            ["write --offset 1M I:/f SMALL", "write I:/f SMALL", "truncate -s 2M I:/f", "truncate -s 1 I:/f"];
        bench.refuses(&lines, &["INO-13"]);
        for line in ["cat I:/f", "stat I:/f", "cp I:/f OUT", "defrag -c zstd I:/f"] {
            bench.limited(line);
        }
        let (code, _) = bench.limited("verify I");
        assert_eq!(code, 4, "{size}");
    }
}
