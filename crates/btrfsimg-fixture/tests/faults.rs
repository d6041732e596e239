//! Each fault of the table in a sound image: what verify, the kernel and `btrfs check` say of it.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use btrfsimg_fixture::{Error, Fault, Kernel, Target, faults};
use btrfsimg_fs::device::{Access, Device, FileDevice, OverlayDevice};
use btrfsimg_fs::verify::{Finding, Options, verify};
use btrfsimg_ondisk::{CsumType, Rule, Severity};
use btrfsimg_testkit::oracle::Oracle;
use btrfsimg_testkit::{Mount, sparse};
use common::Images;

/// What verify finds, in order, consequences left out; and the error that it ends with.
fn findings(device: &dyn Device) -> (Vec<Finding>, Option<btrfsimg_fs::Error>) {
    let mut found = Vec::new();
    let options = Options::new().with_data(true).with_decode(true).with_threads(1);
    let result = verify(device, &options, &mut |f| found.extend((!f.consequence).then(|| f.clone())));
    (found, result.err())
}

fn open(path: &Path, access: Access) -> Arc<FileDevice> {
    Arc::new(FileDevice::open(path, access, 0).unwrap())
}

/// The first image that has a place for `fault`, with the fault in memory above it.
fn broken(images: &Images, fault: &Fault) -> Option<(PathBuf, OverlayDevice)> {
    images.paths.iter().find_map(|path| {
        let overlay = Arc::new(OverlayDevice::new(open(path, Access::Read)).unwrap());
        match fault.apply(overlay.clone(), &Target::Any) {
            Ok(changes) => {
                assert!(!changes.is_empty(), "{} says nothing of what it changed", fault.name);
                Some((path.clone(), Arc::into_inner(overlay).unwrap()))
            }
            Err(Error::NoPlace { .. }) => None,
            Err(error) => panic!("{} in {}: {error}", fault.name, path.display()),
        }
    })
}

#[test]
fn each_fault_is_named_by_those_who_should() {
    let images = Images::make();
    sound_images_are_sound(&images);
    std::thread::scope(|scope| {
        scope.spawn(|| the_kernel_and_btrfs_check_do_as_the_table_says(&images));
        verify_names_each_fault_first(&images);
    });
}

fn sound_images_are_sound(images: &Images) {
    for path in &images.paths {
        let (found, error) = findings(&*open(path, Access::Read));
        assert!(error.is_none(), "{}: {error:?}", path.display());
        // Left behind by mkfs.btrfs 6.2.
        let odd: Vec<_> = found.iter().filter(|f| f.rule.0 != "FS-10").collect();
        assert!(odd.is_empty(), "{}: {odd:#?}", path.display());
    }
}

/// Whether verify names the fault in `device` first, above what it finds in the sound image; if not, what it finds.
fn judge(fault: &Fault, sound: &Path, device: &dyn Device) -> Result<(), String> {
    let (before, _) = findings(&*open(sound, Access::Read));
    let (found, error) = findings(device);
    // A feature that is not known is an error of its own kind: exit code 3.
    if matches!(&error, Some(btrfsimg_fs::Error::Unsupported(what)) if what.contains(fault.rule)) {
        return Ok(());
    }
    let new = found.iter().find(|f| !before.iter().any(|b| (b.rule, &b.place) == (f.rule, &f.place)));
    if new.is_some_and(|f| fault.is_named_by(f.rule)) {
        return Ok(());
    }
    let rules: Vec<_> = found.iter().take(6).map(|f| format!("{}: {f}", f.rule)).collect();
    Err(format!("{} ({}) in {}: {rules:#?}", fault.name, fault.rule, sound.display()))
}

fn verify_names_each_fault_first(images: &Images) {
    let mut wrong = Vec::new();
    for fault in faults() {
        match broken(images, fault) {
            Some((path, device)) => wrong.extend(judge(fault, &path, &device).err()),
            None if images.complete => wrong.push(format!("{}: no image has a place", fault.name)),
            None => {}
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

/// Each fault in one of four images that differ in checksum and node size.
#[test]
fn neither_checksum_nor_node_size_makes_a_difference() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    common::make_tree(&tree);
    let kinds = [
        (CsumType::Crc32c, 65536),
        (CsumType::Sha256, 16384),
        (CsumType::Blake2b, 32768),
        (CsumType::XxHash64, 8192),
    ];
    let (mut wrong, mut judged) = (Vec::new(), 0);
    for (at, (csum, nodesize)) in kinds.into_iter().enumerate() {
        let image = dir.path().join(format!("{csum}.img"));
        common::make_own(&tree, &image, nodesize, csum);
        for fault in faults().skip(at).step_by(kinds.len()) {
            let overlay = Arc::new(OverlayDevice::new(open(&image, Access::Read)).unwrap());
            match fault.apply(overlay.clone(), &Target::Any) {
                Ok(_) => wrong.extend(judge(fault, &image, &*overlay).err()),
                Err(Error::NoPlace { .. }) => continue,
                Err(error) => panic!("{} in {}: {error}", fault.name, image.display()),
            }
            judged += 1;
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
    assert!(judged > 100, "only {judged} faults had a place");
}

#[test]
fn every_rule_has_a_fault_and_every_fault_a_rule() {
    let mut names = HashSet::new();
    for fault in faults() {
        assert!(names.insert(fault.name), "{} twice", fault.name);
        for rule in fault.twins.iter().chain([&fault.rule]) {
            assert!(Rule::find(rule).is_some(), "{}: no rule {rule}", fault.name);
        }
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(fault.name.chars().all(fits), "{}", fault.name);
    }
    let without: Vec<_> = Rule::all().filter(|r| !faults().any(|f| f.rule == r.id)).map(|r| r.id).collect();
    assert_eq!(without, [""; 0], "rules without a fault");
}

/// A rule whose every breach keeps a kernel from mounting or reading is one of those that kernels refuse (SB-25 is about
/// what is unfinished, not corrupt), and of each of those some breach does (but for the four that the description of
/// [`Severity::Refused`] names).
#[test]
fn rules_are_as_grave_as_kernels_take_them() {
    const UNCHECKED: [&str; 4] = ["DE-05", "FS-01", "FS-02", "FS-03"];
    for rule in Rule::all().filter(|rule| rule.id != "SB-25") {
        let kernels: Vec<Kernel> = faults().filter(|f| f.rule == rule.id).map(|f| f.kernel).collect();
        if kernels.iter().all(|k| *k == Kernel::Refuses) {
            assert_eq!(rule.severity, Severity::Refused, "{}", rule.id);
        }
        if rule.severity == Severity::Refused {
            let refused = kernels.contains(&Kernel::Refuses);
            assert_eq!(refused, !UNCHECKED.contains(&rule.id), "{}", rule.id);
        }
    }
}

/// More entries than any directory of the images has.
const ENDLESS: usize = 10_000;

/// Reads everything below `top`, each directory once, whatever its name leads to; the first error. Says whether the lists
/// of all directories end.
fn read_all(top: &Path) -> std::io::Result<bool> {
    let mut met = HashSet::new();
    let mut pending = vec![top.to_owned()];
    while let Some(dir) = pending.pop() {
        let meta = std::fs::metadata(&dir)?;
        if !met.insert((meta.dev(), meta.ino())) {
            continue;
        }
        for (nth, entry) in std::fs::read_dir(dir)?.enumerate() {
            if nth == ENDLESS {
                return Ok(false);
            }
            let path = entry?.path();
            let meta = std::fs::symlink_metadata(&path)?;
            if meta.is_dir() {
                pending.extend(path.starts_with(top).then_some(path));
            } else if meta.is_symlink() {
                std::fs::read_link(&path)?;
            } else if meta.is_file() {
                let mut bytes = Vec::new();
                File::open(&path)?.take(16 << 20).read_to_end(&mut bytes)?;
            }
        }
    }
    Ok(true)
}

/// What a kernel does with the image, and why.
fn kernel(image: &Path, fault: &Fault) -> (Kernel, String) {
    // A read-only device refuses an image with a log: it cannot be replayed there.
    let options = if fault.rule.starts_with("LOG-") { "rw" } else { "ro" };
    let mount = match Mount::open(image, options) {
        Ok(mount) => mount,
        Err(error) => return (Kernel::Refuses, format!("{error:#}")),
    };
    match read_all(mount.path()) {
        Ok(true) => (Kernel::Reads, String::new()),
        Ok(false) => (Kernel::Loops, String::new()),
        Err(error) => (Kernel::Refuses, error.to_string()),
    }
}

/// Whether `btrfs check` names a fault: exit 1. What ends it otherwise (it dies on some) does not count as a name.
fn check(image: &Path) -> bool {
    let args = ["20", "btrfs", "check", "--readonly", "--check-data-csum"];
    let output = Command::new("timeout").args(args).arg(image).output().unwrap();
    output.status.code() == Some(1)
}

fn the_kernel_and_btrfs_check_do_as_the_table_says(images: &Images) {
    let oracle = Oracle::new();
    if !oracle.has_kernel() || !oracle.has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("broken.img");
    let mut wrong = Vec::new();
    for fault in faults() {
        let Some((path, _)) = broken(images, fault) else { continue };
        let _ = std::fs::remove_file(&image);
        sparse::copy(&path, &image).unwrap();
        fault.apply(open(&image, Access::Write), &Target::Any).unwrap();
        let (does, why) = kernel(&image, fault);
        let named = check(&image);
        if (does, named) != (fault.kernel, fault.check) {
            wrong.push(format!("{} {} kernel={does:?} check={named} {why}", fault.name, fault.rule));
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}
