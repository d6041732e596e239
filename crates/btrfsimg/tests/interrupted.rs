//! Commands that are killed, interrupted, or run out of disk: the image is what it was or what it was to become.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use btrfsimg_testkit::Oracle;
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::synthetic;
use btrfsimg_testkit::treediff::{DiffOptions, diff};
use common::{command, run, sh};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use writing::{assert_checks_clean, names_in, sha256};

/// A tree, an image that holds another, and both as they were.
struct Bench {
    dir: TempDir,
    image: PathBuf,
    tree: PathBuf,
}

impl Bench {
    fn new(megabytes: usize) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let (image, tree) = (dir.path().join("i.img"), dir.path().join("tree"));
        for n in 0..600 {
            let sub = tree.join(format!("d{}/e{}", n % 7, n % 5));
            fs::create_dir_all(&sub).unwrap();
            fs::write(sub.join(format!("file {n}")), Rng::new(n).bytes(megabytes * (1 << 20) / 600)).unwrap();
        }
        let old = dir.path().join("old");
        fs::create_dir_all(old.join("kept")).unwrap();
        fs::write(old.join("kept/file"), Rng::new(99).bytes(100_000)).unwrap();
        run(&["mkfs", "-q", image.to_str().unwrap(), "-r", old.to_str().unwrap(), "-b", "300M"]).expect(0);
        Bench { dir, image, tree }
    }

    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.image.display())
    }

    /// Starts copying the tree in.
    fn copy_in(&self) -> Child {
        let args = ["cp", "-q", "-r", self.tree.to_str().unwrap(), &self.at("/new")];
        command(&args).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap()
    }

    /// Whether the tree is in the image: wholly, or not at all. Everything else is as it was.
    #[track_caller]
    fn is_copied(&self) -> bool {
        let image = self.image.to_str().unwrap();
        run(&["verify", "-q", "--data", image]).expect(0);
        let out = self.dir.path().join("out");
        run(&["cp", "-q", "-a", &self.at("/."), out.to_str().unwrap()]).expect(0);
        assert_eq!(fs::read(out.join("kept/file")).unwrap(), Rng::new(99).bytes(100_000));
        let is_there = out.join("new").exists();
        if is_there {
            let options = DiffOptions { times: false, owners: false, ..DiffOptions::default() };
            diff(&self.tree, &out.join("new"), &options).unwrap().assert_equal();
        }
        assert_eq!(names_in(&out).len(), 1 + usize::from(is_there), "something else is there");
        fs::remove_dir_all(&out).unwrap();
        is_there
    }

    /// Makes the image as it was.
    fn take_out(&self) {
        run(&["rm", "-r", &self.at("/new")]).expect(0);
    }
}

fn signal(child: &Child, signal: Signal) {
    // One that has ended is still ours until it is waited for.
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// How long the command takes when nobody ends it.
fn time_of(mut child: Child) -> Duration {
    let start = Instant::now();
    assert!(child.wait().unwrap().success());
    start.elapsed()
}

/// Most likely before the end, also where the machine is faster than it was.
fn some_time(rng: &mut Rng, whole: Duration) {
    let thousandth = f64::from(u32::try_from(rng.below(700)).unwrap()) / 1000.0;
    std::thread::sleep(whole.mul_f64(thousandth));
}

#[test]
fn killed_while_a_tree_is_copied_in() {
    let bench = Bench::new(12);
    let whole = time_of(bench.copy_in());
    assert!(bench.is_copied());
    bench.take_out();
    let (mut rng, mut killed) = (Rng::new(11), 0);
    for kill in 0..12 {
        let mut child = bench.copy_in();
        some_time(&mut rng, whole);
        signal(&child, Signal::KILL);
        killed += usize::from(child.wait().unwrap().signal() == Some(9));
        if bench.is_copied() {
            bench.take_out();
        }
        if kill % 6 == 5 {
            Oracle::new().judge(&bench.image, None).unwrap().of_cut_off_writer().assert_ok();
        }
    }
    assert!(killed > 2, "only {killed} were killed before they ended");
}

#[test]
fn interrupted_while_a_tree_is_copied_in() {
    let bench = Bench::new(12);
    let whole = time_of(bench.copy_in());
    bench.take_out();
    let (mut rng, mut stopped) = (Rng::new(5), 0);
    for round in 0..6 {
        let before = fs::metadata(&bench.image).unwrap().len();
        let mut child = bench.copy_in();
        some_time(&mut rng, whole);
        signal(&child, if round % 2 == 0 { Signal::TERM } else { Signal::INT });
        let status = child.wait().unwrap();
        let is_copied = bench.is_copied();
        // A signal before the handler is there ends the process, which then has done nothing.
        assert!(status.success() == is_copied, "{status}, copied: {is_copied}");
        stopped += usize::from(!is_copied);
        if is_copied {
            bench.take_out();
        }
        assert_eq!(fs::metadata(&bench.image).unwrap().len(), before);
    }
    assert!(stopped > 0);
    assert_checks_clean(&bench.image, "signals");
}

/// Commands that take long without a byte of data, and one that waits for its input.
#[test]
fn interrupted_while_no_data_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("many.img");
    synthetic::make_image(&image, 1 << 30, 150_000).unwrap();
    let top = format!("{}:/", image.display());
    let superblock = || {
        let mut bytes = vec![0; 4096];
        File::open(&image).unwrap().read_exact_at(&mut bytes, 64 << 10).unwrap();
        bytes
    };
    let before = superblock();
    let written = format!("{top}d0/f0");
    let remove = ["rm".to_owned(), "-r".to_owned()].into_iter().chain((0..150).map(|n| format!("{top}d{n}")));
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    for args in [
        words(&["chmod", "-R", "600", &top]),
        words(&["chown", "-R", "7:7", &top]),
        remove.collect(),
        words(&["write", &written]),
        words(&["cp", "-", &written]),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // What is piped in does not end.
        let mut child = command(&args).stderr(Stdio::null()).stdin(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(400));
        assert!(child.try_wait().unwrap().is_none(), "{args:?} takes too short a time");
        let asked = Instant::now();
        signal(&child, Signal::TERM);
        let input = child.stdin.take();
        let status = child.wait().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(1), "{args:?}: {:?}", asked.elapsed());
        assert_eq!(status.code(), Some(1), "{args:?}");
        assert_eq!(superblock(), before, "{args:?}");
        drop(input);
    }
    run(&["verify", "-q", image.to_str().unwrap()]).expect(0);
}

#[test]
fn interrupted_mkfs_leaves_the_old_file_and_no_other() {
    let bench = Bench::new(40);
    let before = sha256(&bench.image);
    let args = ["mkfs", "-q", "-f", bench.image.to_str().unwrap(), "-r", bench.tree.to_str().unwrap()];
    let absent = bench.dir.path().join("absent.img");
    let args_absent = ["mkfs", "-q", absent.to_str().unwrap(), "-r", bench.tree.to_str().unwrap()];
    for (n, args) in [&args[..], &args_absent[..]].into_iter().cycle().take(6).enumerate() {
        let mut child = command(args).stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
        // As soon as there is a temporary file the handler is there too.
        let until = Instant::now() + Duration::from_secs(20);
        while !names_in(bench.dir.path()).iter().any(|name| name.ends_with(".tmp")) && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        signal(&child, if n % 2 == 0 { Signal::INT } else { Signal::TERM });
        assert!(!child.wait().unwrap().success());
        assert_eq!(sha256(&bench.image), before);
        assert_eq!(names_in(bench.dir.path()), ["i.img", "old", "tree"]);
    }
}

/// A small tmpfs, unmounted when it is dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new(bytes: u64) -> Option<SmallDisk> {
        if !Oracle::new().has_kernel() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        sh(dir.path(), &format!("mount -t tmpfs -o size={bytes} none {}", dir.path().display()));
        Some(SmallDisk(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        sh(Path::new("/"), &format!("umount {}", self.0.path().display()));
    }
}

/// The image has room, the disk that holds it has not.
#[test]
fn a_full_disk_under_a_sparse_image() {
    let bench = Bench::new(12);
    let Some(disk) = SmallDisk::new(9 << 20) else { return };
    let image = disk.0.path().join("sparse.img");
    sh(disk.0.path(), &format!("cp --sparse=always {} sparse.img", bench.image.display()));
    let before = (sha256(&image), fs::metadata(&image).unwrap().len());
    let bench = Bench { image, ..bench };
    let says = |ran: common::Ran| {
        let ran = ran.expect(1);
        assert!(ran.stderr.contains("sparse.img") && ran.stderr.contains("No space left"), "{}", ran.stderr);
        assert!(ran.stderr.contains("the disk that holds"), "{}", ran.stderr);
    };
    says(run(&["cp", "-q", "-r", bench.tree.to_str().unwrap(), &bench.at("/new")]));
    assert_eq!(fs::metadata(&bench.image).unwrap().len(), before.1);
    assert!(!bench.is_copied());
    // Not one byte is left: a change of metadata alone does not fit either, or fits wholly.
    let rest = File::create(disk.0.path().join("rest")).unwrap();
    let mut filler = vec![1; 4096];
    while rest.write_all_at(&filler, rest.metadata().unwrap().len()).is_ok() {
        filler.fill(2);
    }
    let ran = run(&["mkdir", &bench.at("/dir")]);
    if ran.code != 0 {
        says(ran);
    }
    run(&["verify", "-q", "--data", bench.image.to_str().unwrap()]).expect(0);
    fs::remove_file(disk.0.path().join("rest")).unwrap();
    // What was written for a change that was given up still takes space, but a larger disk helps.
    sh(disk.0.path(), "mount -o remount,size=12m .");
    run(&["mkdir", "-p", &bench.at("/dir")]).expect(0);
    assert_checks_clean(&bench.image, "a full disk");
    sh(disk.0.path(), "mount -o remount,size=20m .");
    Oracle::new().judge(&bench.image, None).unwrap().of_cut_off_writer().assert_ok();
    sh(disk.0.path(), "mount -o remount,size=12m .");
    // A new image on it: named, and gone.
    let new = disk.0.path().join("new.img");
    let ran = run(&["mkfs", "-q", new.to_str().unwrap(), "-r", bench.tree.to_str().unwrap()]).expect(1);
    assert!(ran.stderr.contains("new.img") && ran.stderr.contains("No space left"), "{}", ran.stderr);
    assert_eq!(names_in(disk.0.path()), ["sparse.img"]);
    assert!(fs::metadata(&bench.image).unwrap().blocks() * 512 < 12 << 20);
}

/// Its deletion takes several commits where it is large; here the name goes, and what it held with it.
#[test]
fn killed_while_a_subvolume_is_deleted() {
    let bench = Bench::new(4);
    let base = bench.dir.path().join("base.img");
    let at = |path: &str| bench.at(path);
    run(&["subvol", "create", &at("/sub")]).expect(0);
    run(&["cp", "-q", "-r", bench.tree.to_str().unwrap(), &at("/sub/new")]).expect(0);
    run(&["subvol", "snapshot", &at("/sub"), &at("/snap")]).expect(0);
    run(&["rm", "-r", &at("/snap/new/d1")]).expect(0);
    fs::rename(&bench.image, &base).unwrap();
    let start = || {
        sh(bench.dir.path(), "cp --sparse=always base.img i.img");
        command(&["subvol", "delete", &at("/sub")])
            .stderr(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    let whole = time_of(start());
    let (mut rng, mut killed) = (Rng::new(12), 0);
    for kill in 0..8 {
        let mut child = start();
        some_time(&mut rng, whole);
        signal(&child, Signal::KILL);
        killed += usize::from(child.wait().unwrap().signal() == Some(9));
        let image = bench.image.to_str().unwrap();
        run(&["verify", "-q", "--data", image]).expect(0);
        let names = run(&["ls", image]).expect(0);
        let is_there = names.text().lines().any(|name| name == "sub");
        let options = DiffOptions { times: false, owners: false, ..DiffOptions::default() };
        let out = bench.dir.path().join("out");
        run(&["cp", "-q", "-a", &at("/snap/."), out.to_str().unwrap()]).expect(0);
        assert!(!out.join("new/d1").exists());
        assert!(diff(&bench.tree.join("d2"), &out.join("new/d2"), &options).unwrap().is_equal());
        fs::remove_dir_all(&out).unwrap();
        if is_there {
            run(&["cp", "-q", "-a", &at("/sub/new"), out.to_str().unwrap()]).expect(0);
            diff(&bench.tree, &out, &options).unwrap().assert_equal();
            fs::remove_dir_all(&out).unwrap();
        }
        if kill % 4 == 3 {
            Oracle::new().judge(&bench.image, None).unwrap().of_cut_off_writer().assert_ok();
        }
    }
    assert!(killed > 0, "only {killed} were killed before they ended");
}
