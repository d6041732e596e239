//! What is wrong is refused, by name, with the exit code of its kind, and nothing is lost (DESIGN 7).

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use btrfsimg_ondisk::CsumType;
use btrfsimg_testkit::loop_device::LoopDevice;
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::{JudgeOptions, Oracle, btrfs_progs};
use common::{Ran, command, overwrite, run};
use writing::{finish, names_in, sha256};

/// An image with a few files, a source beside it, and what can be wrong with either.
struct Bench {
    dir: tempfile::TempDir,
}

const SIZE: u64 = 64 << 20;

impl Bench {
    fn new() -> Bench {
        let bench = Bench { dir: tempfile::tempdir().unwrap() };
        let source = bench.dir.path().join("src");
        fs::create_dir_all(source.join("d")).unwrap();
        fs::write(source.join("file"), "file").unwrap();
        fs::write(source.join("d/big"), Rng::new(1).bytes(40 << 20)).unwrap();
        fs::write(bench.dir.path().join("not.img"), vec![7; 1 << 20]).unwrap();
        fs::write(bench.dir.path().join("empty.img"), "").unwrap();
        bench.fresh();
        bench
    }

    /// Makes `i.img` anew.
    fn fresh(&self) {
        self.run("mkfs -q -f i.img -b 64M").expect(0);
        self.run("mkdir i.img:/dir").expect(0);
        self.run("cp src/file i.img:/file").expect(0);
    }

    /// Runs a command line in the directory of the bench.
    fn run(&self, line: &str) -> Ran {
        let words: Vec<&str> = line.split(' ').map(|w| w.trim_matches('\'')).collect();
        finish(command(&words).current_dir(self.dir.path()))
    }

    fn image(&self) -> std::path::PathBuf {
        self.dir.path().join("i.img")
    }

    /// Changes the primary superblock's number at `field`, and seals it.
    fn patch_superblock(&self, field: usize, change: impl FnOnce(u64) -> u64) {
        const AT: u64 = 65536;
        let mut block = [0; 4096];
        File::open(self.image()).unwrap().read_exact_at(&mut block, AT).unwrap();
        let old = u64::from_le_bytes(block[field..field + 8].try_into().unwrap());
        block[field..field + 8].copy_from_slice(&change(old).to_le_bytes());
        let csum = CsumType::Crc32c.of_block(&block);
        block[..32].copy_from_slice(&csum.0);
        overwrite(&self.image(), AT, &block);
    }
}

/// Command lines that must be refused with this code and these words, and must change nothing.
const REFUSED: &[(&str, i32, &[&str])] = &[
    // No image, or none that there could be.
    ("cp src/file nowhere/", 2, &["neither side is in an image"]),
    ("cp src/file missing.img:/file", 2, &["missing.img"]),
    ("cp i.img:/file i.img:/file", 1, &["the same file"]),
    ("mkdir i.img", 1, &["i.img", "top directory"]),
    ("mkdir missing.img:/d", 2, &["missing.img"]),
    ("rm missing.img:/d", 2, &["missing.img"]),
    ("mkdir not.img:/d", 1, &["not.img", "not a btrfs file system"]),
    ("cp src/file not.img:/", 1, &["not.img", "not a btrfs file system"]),
    ("mkdir empty.img:/d", 1, &["empty.img", "not a btrfs file system"]),
    ("prop set not.img label x", 1, &["not.img", "not a btrfs file system"]),
    // Sources.
    ("mkfs new.img -r src/file", 1, &["src/file", "not a directory"]),
    ("mkfs new.img -r src/none", 1, &["src/none", "No such file or directory"]),
    ("mkfs i.img -r src/none -f", 1, &["src/none", "No such file or directory"]),
    ("mkfs src -r src", 1, &["src", "neither a regular file nor a block device"]),
    ("mkfs nodir/new.img -r src", 1, &["nodir/new.img", "No such file or directory"]),
    ("cp src/none i.img:/", 1, &["src/none", "No such file or directory"]),
    ("cp src/d i.img:/", 1, &["src/d", "-r"]),
    // Targets.
    ("cp src/file i.img:/no/where", 1, &["btrfsimg: i.img:/no: no such file or directory"]),
    ("cp src/file i.img:/no/", 1, &["i.img:/no/", "not a directory"]),
    ("cp src/file src/d/big i.img:/no", 1, &["i.img:/no", "not a directory"]),
    ("cp src/file i.img:/file/x", 1, &["i.img:/file/x", "not a directory"]),
    ("cp -r src/d i.img:/file", 1, &["i.img:/file"]),
    ("mkdir i.img:/dir", 1, &["i.img:/dir", "already exists"]),
    ("mkdir i.img:/a/b", 1, &["btrfsimg: i.img:/a: no such file or directory"]),
    ("mkdir -p i.img:/file/b", 1, &["i.img:/file/b", "not a directory"]),
    ("mkdir -m 9 i.img:/d", 2, &["9", "octal"]),
    ("rm i.img:/none", 1, &["i.img:/none", "no such file or directory"]),
    ("rm i.img:/dir", 1, &["i.img:/dir", "-r"]),
    ("rm i.img:/", 1, &["i.img:/", "top directory"]),
    // The value of an option in other commands, a path here.
    ("rm -i i.img -r --subvol file /dir", 2, &["file", "write /file", "--from-subvol file"]),
    ("rm -i i.img -r /dir --subvol file", 2, &["write /file", "--from-subvol file"]),
    // What is wrong with the target is said of that.
    ("mv i.img:/dir i.img:/file", 1, &["btrfsimg: i.img:/file: not a directory"]),
    ("mv -T i.img:/file i.img:/dir", 1, &["btrfsimg: i.img:/dir: is a directory"]),
    // With one that is there: nothing is removed.
    ("rm i.img:/file i.img:/none", 1, &["i.img:/none"]),
    ("mkdir i.img:/x i.img:/dir", 1, &["i.img:/dir"]),
    // Properties, with what is valid.
    ("prop set i.img:/dir compression zstd:16", 2, &["level 16", "zstd", "-15 to 15"]),
    ("prop set i.img:/dir compression ZSTD", 2, &["ZSTD", "zstd", "lzo", "none"]),
    ("prop set i.img:/dir compression lzo:1", 2, &["lzo"]),
    ("prop set i.img:/dir compression zstdfoo", 2, &["zstdfoo"]),
    ("prop set i.img:/dir compression zlib:10", 2, &["level 10", "zlib", "1 to 9"]),
    ("prop set i.img:/dir ro true", 1, &["i.img:/dir", "ro"]),
    ("prop set i.img:/ ro maybe", 2, &["maybe", "true", "false"]),
    ("prop set i.img:/dir label x", 1, &["label"]),
    ("prop set i.img:/dir colour red", 1, &["colour", "ro", "label", "compression"]),
    ("cp --compress zstd:x src/file i.img:/", 2, &["zstd:x", "-15 to 15"]),
    ("cp --compress '' src/file i.img:/", 2, &["lzo"]),
    // Options of mkfs.
    ("mkfs new.img -n 12345", 2, &["12345", "4096", "65536"]),
    ("mkfs new.img -n 2k", 2, &["2048", "4096"]),
    ("mkfs new.img -n 128k", 2, &["65536"]),
    ("mkfs new.img --csum md5", 2, &["md5", "crc32c", "xxhash", "sha256", "blake2"]),
    ("mkfs new.img -b 12Q", 2, &["12Q", "k, M, G, T"]),
    ("mkfs new.img -U nonsense", 2, &["nonsense"]),
    ("mkfs new.img --compress zstd:16", 2, &["zstd:16", "-15 to 15"]),
    ("mkfs new.img --compress-force Z", 2, &["Z"]),
    ("mkfs new.img --slack 10% -b 1G", 2, &["--slack"]),
    ("mkfs new.img --slack x", 2, &["x"]),
    ("mkfs new.img -r src -b 1M", 5, &["1048576", "a size of"]),
    ("mkfs i.img -f -r src -b 1M", 5, &["1048576", "a size of"]),
    ("mkfs new.img -b 0", 5, &["a size of"]),
    ("mkfs i.img", 1, &["i.img", "btrfs", "-f"]),
];

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let bench = Bench::new();
    let before = (sha256(&bench.image()), names_in(bench.dir.path()));
    let mut wrong = Vec::new();
    for (line, code, words) in REFUSED {
        let ran = bench.run(line);
        let unsaid: Vec<_> = words.iter().filter(|w| !ran.stderr.contains(**w)).collect();
        if ran.code != *code || !unsaid.is_empty() {
            wrong.push(format!(
                "{line}: exit {} not {code}; {unsaid:?} is not in: {}",
                ran.code,
                ran.stderr.trim()
            ));
        }
        let after = (sha256(&bench.image()), names_in(bench.dir.path()));
        if after != before {
            wrong.push(format!("{line}: changed the image or the directory: {:?}", after.1));
            bench.fresh();
            return assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), REFUSED.len(), wrong.join("\n"));
}

/// A superblock that says something else.
struct Faulty {
    what: &'static str,
    /// Offset of the number that is changed (`format/02`), and how.
    field: usize,
    change: fn(u64) -> u64,
    /// Exit codes of reading and of writing, and what the latter says.
    reads: i32,
    writes: i32,
    says: &'static str,
}

const FLAGS: usize = 0x38;
const LOG_ROOT: usize = 0x60;
const COMPAT_RO: usize = 0xb4;
const INCOMPAT: usize = 0xbc;
const DEVICE_TOTAL_BYTES: usize = 0xc9 + 8;

const fn faulty(
    what: &'static str,
    field: usize,
    change: fn(u64) -> u64,
    reads: i32,
    writes: i32,
    says: &'static str,
) -> Faulty {
    Faulty { what, field, change, reads, writes, says }
}

const FAULTY: &[Faulty] = &[
    faulty("an unknown incompat feature", INCOMPAT, |f| f | 1 << 40, 3, 3, "40"),
    faulty("zones", INCOMPAT, |f| f | 1 << 12, 3, 3, "ZONED"),
    faulty("simple quotas", INCOMPAT, |f| f | 1 << 16, 0, 3, "SIMPLE_QUOTA"),
    faulty("an unknown compat_ro feature", COMPAT_RO, |f| f | 1 << 40, 0, 3, "40"),
    faulty("a log", LOG_ROOT, |_| 30 << 20, 0, 3, "log"),
    faulty("the flag of a seed", FLAGS, |f| f | 1 << 32, 0, 3, "seed"),
    faulty("a device longer than the file", DEVICE_TOTAL_BYTES, |_| 2 * SIZE, 0, 4, "truncated"),
];

/// Each changes something of what [`Bench::fresh`] makes.
const EDITS: &[&str] = &[
    "mkdir i.img:/x",
    "cp src/file i.img:/x",
    "cp i.img:/file i.img:/x",
    "rm i.img:/file",
    "rm -r i.img:/dir",
    "mv i.img:/file i.img:/x",
    "ln i.img:/file i.img:/x",
    "ln -s y i.img:/x",
    "touch i.img:/file",
    "truncate -s 1 i.img:/file",
    "write i.img:/file src/file",
    "chmod 600 i.img:/file",
    "chown 1 i.img:/file",
    "mknod i.img:/x p",
    "xattr set i.img:/file user.a b",
    "prop set i.img:/dir compression zstd",
    "subvol create i.img:/x",
    "subvol snapshot i.img:/ i.img:/x",
];

#[test]
fn images_that_may_not_be_written() {
    let bench = Bench::new();
    for Faulty { what, field, change, reads, writes, says } in FAULTY {
        bench.fresh();
        bench.patch_superblock(*field, change);
        let before = sha256(&bench.image());
        assert_eq!(bench.run("ls i.img:/").code, *reads, "reading an image with {what}");
        for line in EDITS.iter().chain(&["prop set i.img label x", "subvol set-default i.img:/"]) {
            let ran = bench.run(line);
            let said = ran.stderr.contains("i.img") && ran.stderr.contains(says);
            assert!(
                ran.code == *writes && said,
                "{line}, image with {what}: exit {} {}",
                ran.code,
                ran.stderr
            );
        }
        assert_eq!(sha256(&bench.image()), before, "{what}");
    }
}

#[test]
fn a_truncated_image_is_neither_written_nor_lengthened() {
    let bench = Bench::new();
    for length in [SIZE - 4096, 5 << 20, 70_000, 65_536, 1] {
        bench.fresh();
        File::options().write(true).open(bench.image()).unwrap().set_len(length).unwrap();
        let before = sha256(&bench.image());
        let ran = bench.run("mkdir i.img:/x");
        assert!(
            [1, 4].contains(&ran.code) && ran.stderr.contains("i.img"),
            "{length}: {} {}",
            ran.code,
            ran.stderr
        );
        assert_eq!((sha256(&bench.image()), fs::metadata(bench.image()).unwrap().len()), (before, length));
    }
}

/// What the tree holds is bad: the fault is named, and nothing is written.
#[test]
fn a_damaged_tree_is_not_edited() {
    let bench = Bench::new();
    let damaged = common::edit_blocks(&bench.image(), |block| {
        let is_fs_leaf = block[88..96] == 5_u64.to_le_bytes();
        // The size of the first item's data.
        if is_fs_leaf {
            block[101 + 21] ^= 0x40
        }
        is_fs_leaf
    });
    assert!(damaged > 0);
    let before = sha256(&bench.image());
    for line in EDITS {
        let ran = bench.run(line);
        let said = ran.stderr.contains("i.img") && ran.stderr.contains("corrupt leaf: root=5");
        assert!(ran.code == 4 && said, "{line}: exit {} {}", ran.code, ran.stderr);
        assert_eq!(sha256(&bench.image()), before, "{line}");
    }
}

/// The name of a subvolume goes, and what it holds cannot: the change is made, and said; the rest is named.
#[test]
fn what_a_deleted_subvolume_held_cannot_be_dropped() {
    let bench = Bench::new();
    let source = bench.dir.path().join("src/many");
    fs::create_dir(&source).unwrap();
    (0..100).for_each(|n| fs::write(source.join(format!("f{n}")), [b'x'; 1000]).unwrap());
    bench.run("subvol create i.img:/s").expect(0);
    bench.run("cp -r src/many i.img:/s").expect(0);
    let damaged = common::edit_blocks(&bench.image(), |block| {
        let [owner, first] = [88, 101].map(|at| u64::from_le_bytes(block[at..at + 8].try_into().unwrap()));
        let is_later_leaf = owner == 256 && block[100] == 0 && first > 300;
        if is_later_leaf {
            block[101 + 21] ^= 0x40;
        }
        is_later_leaf
    });
    assert!(damaged > 0);
    let ran = bench.run("rm -v -r --subvol i.img:/s").expect(4);
    assert_eq!(ran.text(), "removed directory 'i.img:/s'\n");
    for words in
        ["i.img: the subvolumes are deleted", "'btrfsimg subvol sync i.img'", "corrupt leaf: root=256"]
    {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    assert_eq!(bench.run("ls i.img:/").expect(0).text(), "dir\nfile\n");
}

#[test]
fn an_image_in_use_is_not_written() {
    let bench = Bench::new();
    let lines = [
        "mkdir i.img:/x",
        "cp src/file i.img:/x",
        "rm i.img:/file",
        "prop set i.img label x",
        "mkfs i.img -f",
    ];
    let refused = |words: &[&str]| {
        for line in lines {
            let ran = bench.run(line);
            assert_eq!(ran.code, 1, "{line}: {}", ran.stderr);
            assert!(words.iter().all(|w| ran.stderr.contains(w)), "{line}: {}", ran.stderr);
        }
    };
    let before = sha256(&bench.image());
    let reader = File::open(bench.image()).unwrap();
    reader.lock_shared().unwrap();
    refused(&["i.img", "locked"]);
    bench.run("ls i.img:/").expect(0);
    reader.unlock().unwrap();
    reader.lock().unwrap();
    refused(&["i.img", "locked"]);
    assert!(bench.run("ls i.img:/").expect(1).stderr.contains("locked"));
    drop(reader);
    if Oracle::new().has_kernel() {
        let device = LoopDevice::attach(&bench.image(), true).unwrap();
        refused(&["i.img", "loop"]);
        drop(device);
        let mount = Oracle::new().mount(&bench.image(), "ro").unwrap();
        refused(&["i.img", "loop"]);
        // Reading is fine.
        assert_eq!(bench.run("cat i.img:/file").expect(0).text(), "file");
        drop(mount);
    }
    assert_eq!((sha256(&bench.image()), names_in(bench.dir.path()).len()), (before, 4));
}

/// Full in the middle of a copy: the state before, the length before, and a size that would have done.
#[test]
fn a_full_image_is_as_it_was() {
    let bench = Bench::new();
    for i in 0..3000 {
        fs::write(bench.dir.path().join(format!("src/d/s{i}")), "small ".repeat(i % 300)).unwrap();
    }
    let image = bench.image();
    let kernel_sees = || bench.run("ls -l -R i.img:/").expect(0).text().to_owned();
    let before = (kernel_sees(), fs::metadata(&image).unwrap().len());
    let superblock = btrfs_progs::dump_super(&image, &["-f"]).ok();
    let ran = bench.run("cp -a src/d i.img:/").expect(5);
    assert!(ran.stderr.contains("i.img") && ran.stderr.contains("no space left"), "{}", ran.stderr);
    assert_eq!((kernel_sees(), fs::metadata(&image).unwrap().len()), before);
    assert_eq!(btrfs_progs::dump_super(&image, &["-f"]).ok(), superblock);
    judge(&image);
    // What it names will do.
    let enough = writing::size_that_will_do(&ran);
    bench.run(&format!("mkfs -q -f i.img -b {enough}")).expect(0);
    bench.run("cp -a src/d i.img:/").expect(0);
    writing::assert_checks_clean(&image, "cp into a full image of the size that was named");
    // In a partition it must not.
    bench.fresh();
    let disk = [&vec![0; 1 << 20][..], &fs::read(&image).unwrap()].concat();
    let path = bench.dir.path().join("disk.img");
    fs::write(&path, &disk).unwrap();
    let ran = bench.run("cp --grow --offset 1M -a src/d disk.img:/").expect(1);
    assert!(ran.stderr.contains("disk.img: --grow"), "{}", ran.stderr);
    assert!(fs::read(&path).unwrap() == disk);
    // And with leave to grow it grows.
    bench.run("cp --grow -a src/d i.img:/").expect(0);
    assert!(fs::metadata(&image).unwrap().len() > SIZE);
    let options = JudgeOptions { write_bytes: 0, ..JudgeOptions::default() };
    Oracle::new().judge_with(&image, &options).unwrap().assert_ok();
}

/// A scrub takes most of so small an image for chunks of its own: little can be written then.
#[track_caller]
fn judge(image: &Path) {
    let options = JudgeOptions { write_bytes: 256 << 10, ..JudgeOptions::default() };
    Oracle::new().judge_with(image, &options).unwrap().assert_ok();
}

/// The rest is copied, what failed is listed, and the exit code says so.
#[test]
fn what_cannot_be_read_is_left_out_and_said() {
    // Root reads everything, so that the command runs as somebody else.
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let can = Command::new("setpriv").args(nobody).arg("true").status().is_ok_and(|s| s.success());
    if !can {
        println!("skipped: setpriv cannot change the user");
        return;
    }
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .tempdir()
        .unwrap();
    let ours = dir.path().join("btrfsimg");
    fs::copy(env!("CARGO_BIN_EXE_btrfsimg"), &ours).unwrap();
    common::sh(
        dir.path(),
        "mkdir -p src/shut src/open; echo a > src/a; echo s > src/secret; echo i > src/shut/inside; echo z > src/open/z
        head -c 3000000 /dev/zero > src/large; ln src/secret src/open/link; chmod 600 src/secret src/large; chmod 700 src/shut
        chmod 777 .",
    );
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        finish(command.args(nobody).arg(&ours).args(words).current_dir(dir.path()))
    };
    let image = dir.path().join("i.img");
    let expect = |ran: Ran, what: &str| {
        assert_eq!(ran.code, 1, "{what}: {}", ran.stderr);
        for path in ["/secret: ", "/large: ", "/shut: "] {
            let said = ran
                .stderr
                .lines()
                .find(|l| l.contains(path))
                .unwrap_or_else(|| panic!("{what}: {}", ran.stderr));
            assert!(said.contains("src/") && said.contains("Permission denied"), "{said}");
        }
        let list = run(&["ls", "-R", &format!("{}:/", image.display())]).expect(0);
        assert!(list.text().contains("open") && list.text().contains('z'), "{}", list.text());
        assert!(!list.text().contains("secret") && !list.text().contains("link"), "{}", list.text());
        writing::assert_checks_clean(&image, what);
    };
    expect(as_nobody(&["mkfs", "i.img", "-r", "src"]), "mkfs");
    as_nobody(&["mkfs", "-f", "i.img", "-b", "100M"]).expect(0);
    expect(as_nobody(&["cp", "-a", "src/.", "i.img:/"]), "cp into a directory");
    as_nobody(&["mkfs", "-f", "i.img", "-b", "100M"]).expect(0);
    expect(as_nobody(&["cp", "-r", "src", "i.img:/new"]), "cp as a new one");
    // An image that may not be written.
    fs::set_permissions(&image, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    std::os::unix::fs::chown(&image, Some(0), Some(0)).unwrap();
    let ran = as_nobody(&["mkdir", "i.img:/x"]).expect(1);
    assert!(ran.stderr.contains("i.img") && ran.stderr.contains("ermission"), "{}", ran.stderr);
}

#[test]
fn names_that_are_too_long() {
    let bench = Bench::new();
    let long = "x".repeat(256);
    for line in [
        format!("mkdir i.img:/{long}"),
        format!("mkdir -p i.img:/a/{long}"),
        format!("cp src/file i.img:/{long}"),
    ] {
        let ran = bench.run(&line).expect(1);
        assert!(ran.stderr.contains("256") && ran.stderr.contains("255"), "{}", ran.stderr);
    }
    bench.run(&format!("mkdir i.img:/{}", &long[1..])).expect(0);
    let label = bench.run(&format!("prop set i.img label {long}")).expect(2);
    assert!(label.stderr.contains("255"), "{}", label.stderr);
    writing::assert_checks_clean(&bench.image(), "a name of 255 bytes");
}

/// A symlink whose target no leaf of the image holds (format: 3949 bytes at a nodesize of 4 KiB), and an xattr.
#[test]
fn what_no_leaf_holds_is_left_out_and_said() {
    let bench = Bench::new();
    let source = bench.dir.path().join("src");
    fs::remove_file(source.join("d/big")).unwrap();
    std::os::unix::fs::symlink("t".repeat(3949), source.join("fits")).unwrap();
    std::os::unix::fs::symlink("t".repeat(3950), source.join("long")).unwrap();
    let ran = bench.run("mkfs -f i.img -r src -n 4k").expect(1);
    assert!(
        ran.stderr.contains("src/long") && ran.stderr.contains("3949") && !ran.stderr.contains("fits"),
        "{}",
        ran.stderr
    );
    assert_eq!(bench.run("ls i.img:/").expect(0).text(), "d\nfile\nfits\n");
    let ran = bench.run("cp -a src/. i.img:/d").expect(1);
    assert!(ran.stderr.contains("/long: "), "{}", ran.stderr);
    assert_eq!(bench.run("ls i.img:/d").expect(0).text(), "d\nfile\nfits\n");
    writing::assert_checks_clean(&bench.image(), "long symlinks");
}
