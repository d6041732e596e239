//! New images, judged by the kernel and by btrfs-progs.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use btrfsimg_testkit::btrfs_progs::{dump_super, dump_tree};
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::{JudgeOptions, OddTree, Oracle};
use common::{Ran, run, sh};
use writing::{assert_checks_clean, field, names_in, number, sha256};

fn mkfs(image: &Path, more: &[&str]) -> Ran {
    run(&[&["mkfs", "-q", image.to_str().unwrap()], more].concat())
}

fn mkfs_of(image: &Path, root: &Path, more: &[&str]) -> Ran {
    mkfs(image, &[&["-r", root.to_str().unwrap()], more].concat())
}

/// Every algorithm, checksum and size of node at least once.
const KINDS: &[&[&str]] = &[
    &[],
    &["--compress-force", "lzo", "--csum", "xxhash"],
    &["--compress", "zlib:3", "--csum", "sha256"],
    &["--compress-force", "zstd:3", "--csum", "blake2b", "-n", "64k"],
    &["--compress-force", "zstd:-5", "--sparse", "always", "-n", "32k"],
    &["--compress-force", "zstd:15", "--sparse", "never", "-n", "4k"],
];

#[test]
fn everything_a_tree_can_hold() {
    let oracle = Oracle::new();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let oracle = &oracle;
            scope.spawn(move || {
                for kind in KINDS.iter().skip(half).step_by(2) {
                    odd_tree(oracle, kind);
                }
            });
        }
    });
}

fn odd_tree(oracle: &Oracle, kind: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("odd"), dir.path().join("odd.img"));
    let small_nodes = kind.contains(&"4k");
    let never_sparse = kind.contains(&"never");
    let symlink_len = if small_nodes { 3949 } else { 4095 };
    OddTree { many: 500, residues: 20, huge: !never_sparse, symlink_len, ..OddTree::default() }
        .build(&source)
        .unwrap();
    // A scrub takes the 16 MiB that an automatic size leaves for chunks of its own.
    let ran = mkfs_of(&image, &source, &[kind, &["--slack", "200M"]].concat()).expect(0);
    assert_eq!(ran.stderr, "", "{kind:?}");
    let judgement = oracle.judge(&image, Some(&source)).unwrap();
    assert!(judgement.is_ok(), "{kind:?}: {judgement}");
}

/// stat has no way to say when an inode was made in another file system than its own: the image is dumped.
#[test]
fn all_four_times_come_along() {
    if !Oracle::new().has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("src"), dir.path().join("t.img"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "f").unwrap();
    sh(
        &source,
        "touch -a -d @1111111111.123456789 f; touch -m -d @1222222222.987654321 f; touch -d @1333333333.5 .",
    );
    let before: Vec<String> =
        ["f", "."].map(|f| sh(&source, &format!("stat -c '%.9X %.9Z %.9Y %.9W' {f}"))).into();
    mkfs_of(&image, &source, &[]).expect(0);
    assert_eq!(
        before[0],
        sh(&source, "stat -c '%.9X %.9Z %.9Y %.9W' f"),
        "reading changed a time of the source"
    );
    let dump = dump_tree(&image, &["-t", "5"]).unwrap();
    for (ino, stat) in [(257, &before[0]), (256, &before[1])] {
        let item = dump.split(&format!("key ({ino} INODE_ITEM 0) itemoff")).nth(1).unwrap();
        // The dump has nanoseconds as a plain number.
        let time = |name| {
            let (seconds, nanoseconds) =
                field(item, name).split_once('.').map(|(s, n)| (s.to_owned(), n.to_owned())).unwrap();
            format!("{seconds}.{nanoseconds:0>9}")
        };
        let times: Vec<String> = ["atime", "ctime", "mtime", "otime"].map(time).into();
        let stat: Vec<&str> = stat.split_whitespace().collect();
        assert_eq!(times, stat, "inode {ino}");
    }
    // What the command itself says is the same.
    let said = run(&["stat", "--json", &format!("{}:/f", image.display())]).expect(0);
    assert!(said.text().split_whitespace().collect::<String>().contains("\"atime\":[1111111111,123456789]"));
}

/// The sizes that an image says of itself: the device's end in the superblock, and bytes that chunks take.
struct Sizes {
    total: u64,
    allocated: u64,
}

/// Reads them, and insists that superblock, device item and file agree.
#[track_caller]
fn sizes(image: &Path) -> Sizes {
    let superblock = dump_super(image, &["-a"]).unwrap();
    let total = number(&superblock, "total_bytes");
    assert_eq!(total, fs::metadata(image).unwrap().len());
    for copy in superblock.split("superblock: bytenr=").skip(1) {
        assert_eq!((number(copy, "total_bytes"), number(copy, "dev_item.total_bytes")), (total, total));
    }
    let chunks = dump_tree(image, &["-t", "chunk"]).unwrap();
    let item = chunks.split("DEV_ITEM 1)").nth(1).unwrap();
    let words: Vec<&str> = item.split_whitespace().collect();
    let after =
        |name: &str| words[words.iter().position(|w| *w == name).unwrap() + 1].parse::<u64>().unwrap();
    assert_eq!(after("total_bytes"), total);
    Sizes { total, allocated: after("bytes_used") }
}

impl Sizes {
    /// The first MiB of a device belongs to no chunk and is not free.
    fn unallocated(&self) -> u64 {
        self.total - self.allocated - (1 << 20)
    }
}

#[test]
fn automatic_sizes_leave_slack() {
    if !Oracle::new().has_progs() {
        return;
    }
    let dir = tempfile::tempdir_in(writing::shm().unwrap_or(std::env::temp_dir())).unwrap();
    let (source, image) = (dir.path().join("src"), dir.path().join("s.img"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("small"), "small").unwrap();
    let slack = |more: &[&str]| {
        mkfs_of(&image, &source, &[&["-f", "--no-sync"], more].concat()).expect(0);
        let sizes = sizes(&image);
        (sizes.unallocated(), sizes.allocated)
    };
    const MIB: u64 = 1 << 20;
    // Chunks end at multiples of 64 KiB, sizes at multiples of the sector, and the first MiB of the device counts
    // as used.
    let near = |have: u64, want: u64, what: &str| {
        assert!((want..=want + MIB).contains(&have), "{what}: {have} bytes of slack instead of {want}");
    };
    near(slack(&[]).0, 16 * MIB, "at least 16 MiB");
    near(slack(&["--slack", "0"]).0, 0, "none");
    near(slack(&["--slack", "5M"]).0, 5 * MIB, "bytes");
    let mut rng = Rng::new(1);
    for i in 0..20 {
        fs::write(source.join(i.to_string()), rng.bytes(10 << 20)).unwrap();
    }
    let (unallocated, used) = slack(&[]);
    near(unallocated, used / 10, "10 % of what is used");
    let (unallocated, used) = slack(&["--slack", "50%"]);
    near(unallocated, used / 2, "50 % of what is used");
}

#[test]
fn an_exact_size_is_exact() {
    let oracle = Oracle::new();
    if !oracle.has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("src"), dir.path().join("s.img"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), Rng::new(3).bytes(3 << 20)).unwrap();
    for (size, bytes) in [("100M", 100 << 20), ("64M", 64 << 20), ("100000001", 99_999_744), ("5G", 5 << 30)]
    {
        mkfs_of(&image, &source, &["-f", "-b", size]).expect(0);
        assert_eq!(sizes(&image).total, bytes, "{size}");
    }
    oracle.judge(&image, Some(&source)).unwrap().assert_ok();
    mkfs(&image, &["-f", "-b", "200M"]).expect(0);
    assert_eq!(sizes(&image).total, 200 << 20);
    oracle.judge(&image, None).unwrap().assert_ok();
}

#[test]
fn a_size_that_is_too_small_is_refused_with_one_that_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("src"), dir.path().join("s.img"));
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("random"), Rng::new(3).bytes(30 << 20)).unwrap();
    for i in 0..300 {
        fs::write(source.join(format!("d/{i}")), "text ".repeat(i)).unwrap();
    }
    fs::write(&image, "an old file").unwrap();
    for kind in [&["-n", "4k"][..], &["-n", "16k", "--compress", "zstd:1"], &["-n", "64k"]] {
        let try_size = |size: u64| {
            mkfs_of(&image, &source, &[kind, &["-f", "--no-sync", "-b", &size.to_string()]].concat())
        };
        let refused = try_size(8 << 20).expect(5);
        assert!(refused.stderr.contains("8388608"), "{}", refused.stderr);
        assert_eq!(names_in(dir.path()), ["s.img", "src"], "something was left behind");
        let enough = writing::size_that_will_do(&refused);
        try_size(enough).expect(0);
        assert_eq!(fs::metadata(&image).unwrap().len(), enough);
        assert_checks_clean(&image, &format!("{kind:?} -b {enough}"));
        let (mut too_small, mut works) = (8 << 20, enough);
        while works - too_small > 65536 {
            let middle = (too_small + (works - too_small) / 2) / 4096 * 4096;
            match try_size(middle).code {
                0 => works = middle,
                code => {
                    assert_eq!(code, 5, "{kind:?} -b {middle}");
                    too_small = middle;
                }
            }
        }
        assert!(enough * 100 <= works * 105, "{kind:?}: {enough} asked for, but {works} works");
    }
}

#[test]
fn a_refused_size_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("src"), dir.path().join("s.img"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), Rng::new(3).bytes(3 << 20)).unwrap();
    fs::write(&image, "an old file").unwrap();
    mkfs_of(&image, &source, &["-f", "-b", "1M"]).expect(5);
    assert_eq!(fs::read_to_string(&image).unwrap(), "an old file");
    assert_eq!(names_in(dir.path()), ["s.img", "src"]);
}

/// The smallest image is no dead end: the kernel writes a file of 1 MiB to it.
#[test]
fn the_smallest_image_takes_a_file_of_a_mebibyte() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("src");
    let mut rng = Rng::new(5);
    // What is left of the last chunk of data differs.
    for (size, nodesize) in [
        (0, "4k"),
        (0, "16k"),
        (0, "64k"),
        (1 << 20, "16k"),
        (17 << 20, "16k"),
        (20_000_000, "4k"),
        (40 << 20, "64k"),
    ] {
        fs::remove_dir_all(&source).ok();
        fs::create_dir(&source).unwrap();
        fs::write(source.join("f"), rng.bytes(size)).unwrap();
        let kind = format!("-n {nodesize} with {size} bytes");
        // A loop device may hold the last image a moment longer.
        let image = dir.path().join(format!("{nodesize}-{size}.img"));
        mkfs_of(&image, &source, &["-f", "--size", "min", "-n", nodesize]).expect(0);
        let judge = JudgeOptions { source: Some(&source), read_write: false, ..JudgeOptions::default() };
        let judgement = oracle.judge_with(&image, &judge).unwrap();
        assert!(judgement.is_ok(), "{kind}: {judgement}");
        let mount = oracle.mount(&image, "rw").unwrap().unwrap();
        let new = rng.bytes(1 << 20);
        fs::write(mount.path().join("new"), &new).unwrap_or_else(|e| panic!("{kind}: {e}"));
        sh(mount.path(), "sync -f .");
        assert!(fs::read(mount.path().join("new")).unwrap() == new);
        assert_eq!(mount.unmount().unwrap(), [""; 0], "{kind}");
        assert_checks_clean(&image, &kind);
    }
}

#[test]
fn an_image_without_content_is_a_sparse_gibibyte_or_as_long_as_the_file_was() {
    let oracle = Oracle::new();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("e.img");
    mkfs(&image, &[]).expect(0);
    let meta = fs::metadata(&image).unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() * 512 < 1 << 20, "{} bytes are not sparse", meta.blocks() * 512);
    oracle.judge(&image, None).unwrap().assert_ok();
    let other = dir.path().join("o.img");
    fs::File::create(&other).unwrap().set_len(300 << 20).unwrap();
    mkfs(&other, &[]).expect(0);
    assert_eq!(fs::metadata(&other).unwrap().len(), 300 << 20);
    oracle.judge(&other, None).unwrap().assert_ok();
}

#[test]
fn what_holds_something_known_is_overwritten_with_force_only() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("x.img");
    let mut ext4 = vec![0; 1 << 20];
    ext4[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    let mut tar = vec![0; 10_240];
    tar[257..262].copy_from_slice(b"ustar");
    let known: [(&str, Vec<u8>); 4] = [
        ("ext2, ext3 or ext4", ext4),
        ("tar", tar),
        ("gzip", [&[0x1f, 0x8b, 8][..], &[0; 100]].concat()),
        ("ELF", fs::read("/proc/self/exe").unwrap()),
    ];
    for (what, bytes) in known {
        fs::write(&image, &bytes).unwrap();
        let refused = mkfs(&image, &["-b", "64M"]).expect(1);
        assert!(refused.stderr.contains(what) && refused.stderr.contains("-f"), "{}", refused.stderr);
        assert!(fs::read(&image).unwrap() == bytes, "{what} was overwritten");
    }
    mkfs(&image, &["-f", "-b", "64M"]).expect(0);
    let before = sha256(&image);
    assert!(mkfs(&image, &["-b", "64M"]).expect(1).stderr.contains("btrfs"));
    assert_eq!(sha256(&image), before);
    // What nobody knows is data all the same; zeros are not.
    fs::write(&image, "nothing that anybody knows").unwrap();
    assert!(mkfs(&image, &["-b", "64M"]).expect(1).stderr.contains("-f"));
    assert_eq!(fs::read_to_string(&image).unwrap(), "nothing that anybody knows");
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    mkfs(&image, &["-b", "64M"]).expect(0);
    assert_eq!(names_in(dir.path()), ["x.img"]);
}

#[test]
fn label_and_uuid() {
    if !Oracle::new().has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("l.img");
    let uuid = "6ec0b3a5-7d0f-4d0e-9d5c-0123456789ab";
    mkfs(&image, &["-L", "a label", "-U", uuid]).expect(0);
    let superblock = dump_super(&image, &[]).unwrap();
    assert_eq!(field(&superblock, "fsid"), uuid);
    assert!(superblock.contains("label\t\t\ta label\n"), "{superblock}");
    let longest = "x".repeat(255);
    mkfs(&image, &["-f", "-L", &longest]).expect(0);
    assert_eq!(field(&dump_super(&image, &[]).unwrap(), "label"), longest);
    assert_checks_clean(&image, "mkfs with the longest label");
    assert!(mkfs(&image, &["-f", "-L", &"x".repeat(256)]).expect(2).stderr.contains("255"));
}

#[test]
fn a_symlink_is_followed_and_the_old_files_mode_and_owner_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real/r.img"), dir.path().join("l.img"));
    fs::create_dir(dir.path().join("real")).unwrap();
    symlink("real/r.img", &link).unwrap();
    // To nothing yet, then to a file.
    mkfs(&link, &["-b", "64M"]).expect(0);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("real/r.img"));
    assert_eq!(fs::metadata(&real).unwrap().len(), 64 << 20);
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    let owner = fs::metadata("/proc/self").unwrap().uid();
    if owner == 0 {
        std::os::unix::fs::chown(&real, Some(1234), Some(56)).unwrap();
    }
    mkfs(&link, &["-f", "-b", "65M"]).expect(0);
    let meta = fs::metadata(&real).unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o7777), (65 << 20, 0o640));
    if owner == 0 {
        assert_eq!((meta.uid(), meta.gid()), (1234, 56));
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(names_in(&dir.path().join("real")), ["r.img"]);
}

#[test]
fn an_image_in_its_own_source_is_left_out() {
    let oracle = Oracle::new();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("self.img");
    fs::write(dir.path().join("f"), "f").unwrap();
    for more in [&["-b", "128M"][..], &["-f", "-b", "128M"]] {
        mkfs_of(&image, dir.path(), more).expect(0);
        let listed = run(&["ls", &format!("{}:/", image.display())]).expect(0);
        assert_eq!(listed.text(), "f\n", "{more:?}");
        oracle.judge(&image, None).unwrap().assert_ok();
    }
}
