//! Space: how free space is recorded, images that are full, block groups that are empty, files that are deleted and
//! still there.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs;
use std::path::{Path, PathBuf};

use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use btrfsimg_fs::write::contents;
use btrfsimg_ondisk::Timespec;
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::{JudgeOptions, Oracle, btrfs_progs};
use common::{Lab, run, sh};
use writing::{assert_checks_clean, size_that_will_do};

fn lab() -> Lab {
    let dir = tempfile::tempdir().unwrap();
    Lab { image: dir.path().join("t.img"), dir }
}

impl Lab {
    fn image(&self) -> &str {
        self.image.to_str().unwrap()
    }

    fn mkfs(&self, args: &[&str]) {
        run(&[&["mkfs", "-q", self.image()], args].concat()).expect(0);
    }

    /// A directory of the host that a script fills.
    fn source(&self, name: &str, script: &str) -> PathBuf {
        let dir = self.host(name);
        fs::create_dir_all(&dir).unwrap();
        sh(&dir, script);
        dir
    }

    fn rm(&self, paths: impl Iterator<Item = String>) {
        let words: Vec<String> = ["rm".to_owned()].into_iter().chain(paths.map(|p| self.at(&p))).collect();
        run(&words).expect(0);
    }
}

/// Files `f1`, `f2` and so on, of so many zeros.
fn files(dir: &Path, count: usize, bytes: usize) {
    fs::create_dir_all(dir).unwrap();
    let zeros = vec![0; bytes];
    (1..=count).for_each(|i| fs::write(dir.join(format!("f{i}")), &zeros).unwrap());
}

/// Free space of each block group in the free space tree, as btrfs-progs show it: (runs, as bitmaps).
fn recorded(image: &Path) -> Vec<(u64, bool)> {
    let dump = btrfs_progs::dump_tree(image, &["-t", "10"]).unwrap();
    let infos = dump.lines().filter(|l| l.contains("free space info extent count"));
    infos
        .map(|l| {
            let words: Vec<u64> = l.split_whitespace().filter_map(|w| w.parse().ok()).collect();
            (words[0], words[1] == 1)
        })
        .collect()
}

/// More free runs than a group's threshold become bitmaps, few become extents again; the kernel goes on with both.
#[test]
fn free_space_is_recorded_as_the_kernel_does() {
    if !Oracle::new().has_progs() {
        return;
    }
    let lab = lab();
    let source = lab.host("src");
    files(&source, 4000, 8000);
    // Groups of 204 MiB: 26 bitmaps, so bitmaps above 292 runs and extents below 192.
    lab.mkfs(&["-b", "2G"]);
    run(&["cp", "-q", "-r", source.to_str().unwrap(), &lab.at("/d")]).expect(0);
    let fragmented = |least: u64| {
        let groups = recorded(&lab.image);
        assert_checks_clean(&lab.image, "rm");
        groups.into_iter().filter(|(runs, _)| *runs >= least).collect::<Vec<_>>()
    };
    assert_eq!(fragmented(193), []);
    lab.rm((1..=4000).filter(|i| i % 2 == 0).map(|i| format!("/d/f{i}")));
    let many = fragmented(193);
    assert!(!many.is_empty() && many.iter().all(|(runs, bitmaps)| *runs > 292 && *bitmaps), "{many:?}");
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
    // Between the thresholds bitmaps stay.
    lab.rm((1..=3500).filter(|i| i % 2 == 1).map(|i| format!("/d/f{i}")));
    let fewer = fragmented(193);
    assert!(!fewer.is_empty() && fewer.iter().all(|(_, bitmaps)| *bitmaps), "{fewer:?}");
    lab.rm((3501..=3800).filter(|i| i % 2 == 1).map(|i| format!("/d/f{i}")));
    let few: Vec<_> = recorded(&lab.image).into_iter().filter(|(runs, _)| (50..192).contains(runs)).collect();
    assert!(!few.is_empty() && few.iter().all(|(_, bitmaps)| !bitmaps), "{few:?}");
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
}

/// Bitmaps that the kernel made are edited, become extents when few runs are left, and the kernel goes on either way.
#[test]
fn bitmaps_of_the_kernel_are_edited() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() || !oracle.has_progs() {
        return;
    }
    let lab = lab();
    // Its first data group is of 8 MiB (bitmaps above 11 runs, and for ever), later ones are of 204 MiB.
    btrfs_progs::mkfs(&lab.image, 2 << 30, &[]).unwrap();
    let mount = oracle.mount(&lab.image, "rw,max_inline=0").unwrap().unwrap();
    sh(
        mount.path(),
        "for i in $(seq 6000); do head -c 8000 /dev/zero > f$i; done; sync -f .
        rm f*[02468]; sync -f .",
    );
    mount.unmount().unwrap();
    let bitmaps = || recorded(&lab.image).into_iter().filter(|(_, bitmaps)| *bitmaps).count();
    let before = bitmaps();
    assert!(before >= 2, "{:?}", recorded(&lab.image));
    // Some are filled, some emptied.
    let source = lab.host("src");
    files(&source, 300, 8000);
    run(&["cp", "-q", "-r", source.to_str().unwrap(), &lab.at("/d")]).expect(0);
    lab.rm((1..=1000).filter(|i| i % 2 == 1).map(|i| format!("/f{i}")));
    assert_checks_clean(&lab.image, "cp and rm");
    assert_eq!(bitmaps(), before);
    oracle.judge(&lab.image, None).unwrap().assert_ok();
    lab.rm((1001..=6000).filter(|i| i % 2 == 1).map(|i| format!("/f{i}")));
    assert_checks_clean(&lab.image, "rm");
    assert!(bitmaps() < before, "{:?}", recorded(&lab.image));
    oracle.judge(&lab.image, None).unwrap().assert_ok();
}

/// Fills an image until nothing more goes in, in smaller and smaller steps. The directories that went in.
fn fill_up(lab: &Lab, source: &Path) -> Vec<String> {
    let (mut n, mut filled) = (0, Vec::new());
    for files in [1000, 100, 1] {
        let part = lab.host(&format!("part{files}"));
        fs::create_dir_all(&part).unwrap();
        for i in 0..files {
            fs::copy(source, part.join(format!("f{i}"))).unwrap();
        }
        loop {
            n += 1;
            let name = format!("/fill{n}");
            let ran = run(&["cp", "-q", "-r", part.to_str().unwrap(), &lab.at(&name)]);
            if ran.code == 5 {
                assert!(size_that_will_do(&ran) > fs::metadata(&lab.image).unwrap().len());
                break;
            }
            assert_eq!(ran.code, 0, "{}", ran.stderr);
            filled.push(name);
        }
    }
    filled
}

/// On an image with no room for one more file, trees of any size can still be removed, and then there is room.
#[test]
fn a_full_image_can_be_emptied() {
    let lab = lab();
    let tree = lab.host("tree");
    files(&tree.join("a"), 8000, 0);
    files(&tree.join("b"), 3000, 5000);
    sh(&tree, "ln b/f1 link; ln b/f2 b/twin");
    lab.mkfs(&["-n", "4k", "-b", "48M"]);
    run(&["cp", "-q", "-a", tree.to_str().unwrap(), &lab.at("/tree")]).expect(0);
    let small = lab.host("small");
    fs::write(&small, vec![b'x'; 1800]).unwrap();
    let filled = fill_up(&lab, &small);
    assert_checks_clean(&lab.image, "filling");
    let before = fs::read(&lab.image).unwrap();
    let more = lab.host("part100");
    run(&["cp", "-r", more.to_str().unwrap(), &lab.at("/more")]).expect(5);
    assert!(before == fs::read(&lab.image).unwrap(), "a refused change wrote something");
    run(&["rm", &lab.at("/tree/b/f3")]).expect(0);
    assert_checks_clean(&lab.image, "rm");
    for path in [&["/tree/b".to_owned(), "/tree".to_owned()], &filled[..]].concat() {
        let path = path.as_str();
        run(&["rm", "-r", &lab.at(path)]).expect(0);
        assert_checks_clean(&lab.image, path);
    }
    Oracle::new().judge(&lab.image, None).unwrap().assert_ok();
    run(&["cp", "-q", "-a", tree.to_str().unwrap(), &lab.at("/tree")]).expect(0);
    assert_checks_clean(&lab.image, "cp");
}

/// Where no file fits any more, those that are there can be made shorter, and get holes: whichever they are.
#[test]
fn a_full_image_can_be_shrunk() {
    let lab = lab();
    let tree = lab.host("tree");
    files(&tree, 600, 9000);
    let mut rng = Rng::new(8);
    fs::write(tree.join("large"), rng.bytes(6 << 20)).unwrap();
    lab.mkfs(&["-n", "4k", "-b", "48M"]);
    run(&["cp", "-q", "-a", tree.to_str().unwrap(), &lab.at("/tree")]).expect(0);
    let small = lab.host("small");
    fs::write(&small, vec![b'x'; 1800]).unwrap();
    let filled = fill_up(&lab, &small);
    punch(&lab.image, "/tree/large", (0..40).map(|n| n * 131_072..n * 131_072 + 65_536));
    assert_checks_clean(&lab.image, "holes");
    for files in (1..=600).collect::<Vec<_>>().chunks(20).step_by(3) {
        let paths = files.iter().map(|n| lab.at(&format!("/tree/f{n}")));
        let words: Vec<String> =
            ["truncate", "-s", "4097"].map(str::to_owned).into_iter().chain(paths).collect();
        run(&words).expect(0);
        assert_checks_clean(&lab.image, "truncate");
    }
    for size in ["3000001", "0"] {
        run(&["truncate", "-s", size, &lab.at("/tree/large")]).expect(0);
    }
    run(&["truncate", "-s", "10", &lab.at(&format!("{}/f0", filled[0]))]).expect(0);
    // There is no room yet for what the kernel would write.
    let judge = JudgeOptions { write_bytes: 0, ..JudgeOptions::default() };
    Oracle::new().judge_with(&lab.image, &judge).unwrap().assert_ok();
    lab.mounted(|top| {
        assert_eq!(fs::read(top.join("tree/f7")).unwrap(), [0; 4097]);
        assert_eq!(fs::read(top.join(&filled[0][1..]).join("f0")).unwrap(), [b'x'; 10]);
    });
}

/// Makes holes in a file, each in a commit of its own.
fn punch(image: &Path, path: &str, holes: impl Iterator<Item = std::ops::Range<u64>>) {
    let device = FileDevice::open(image, Access::Write, 0).unwrap();
    let mut volume = Volume::open(std::sync::Arc::new(device), VolumeOptions::default()).unwrap();
    for hole in holes {
        let mut tx = volume.begin(Timespec::new(1_700_000_000, 0)).unwrap();
        let place = lookup::resolve(&tx, Place::TOP, path.as_bytes(), false).unwrap();
        contents::punch_hole(&mut tx, place, hole).unwrap();
        tx.commit().unwrap();
    }
}

/// A snapshot is what one deletes to have room again.
#[test]
fn a_full_image_gives_up_its_subvolumes() {
    let lab = lab();
    let tree = lab.host("tree");
    files(&tree, 3000, 3000);
    lab.mkfs(&["-n", "4k", "-b", "48M"]);
    run(&["subvol", "create", &lab.at("/s")]).expect(0);
    run(&["cp", "-q", "-a", tree.to_str().unwrap(), &lab.at("/s/tree")]).expect(0);
    run(&["subvol", "snapshot", &lab.at("/s"), &lab.at("/snap")]).expect(0);
    run(&["subvol", "create", &lab.at("/snap/inside")]).expect(0);
    let small = lab.host("small");
    fs::write(&small, vec![b'x'; 1800]).unwrap();
    fill_up(&lab, &small);
    run(&["rm", "-r", "--subvol", &lab.at("/snap")]).expect(0);
    assert_checks_clean(&lab.image, "rm --subvol");
    fill_up(&lab, &small);
    run(&["subvol", "delete", &lab.at("/s")]).expect(0);
    assert_checks_clean(&lab.image, "subvol delete");
    run(&["cp", "-q", "-a", tree.to_str().unwrap(), &lab.at("/tree")]).expect(0);
    assert_checks_clean(&lab.image, "cp");
}

/// Space that was all given to data can become metadata again, when the data are gone.
#[test]
fn empty_block_groups_are_given_back() {
    let lab = lab();
    lab.mkfs(&["-b", "96M", "-n", "4k"]);
    let data = lab.host("data");
    // Data take all there is.
    for (n, bytes) in [(1, 32 << 20), (2, 8 << 20), (3, 1 << 20)] {
        fs::write(&data, vec![0x5a_u8; bytes]).unwrap();
        for i in 0.. {
            let ran = run(&["cp", "-q", data.to_str().unwrap(), &lab.at(&format!("/data{n}_{i}"))]);
            if ran.code == 5 {
                break;
            }
            assert_eq!(ran.code, 0, "{}", ran.stderr);
        }
    }
    let names: Vec<String> = run(&["ls", &lab.at("/")]).expect(0).text().lines().map(str::to_owned).collect();
    lab.rm(names.iter().map(|n| format!("/{n}")));
    assert_checks_clean(&lab.image, "rm");
    // More metadata than fit beside the groups of data that are there.
    let tree = lab.host("tree");
    files(&tree, 14000, 1500);
    run(&["cp", "-q", "-r", tree.to_str().unwrap(), &lab.at("/tree")]).expect(0);
    // No room is left for the kernel to write much.
    let judge = JudgeOptions { write_bytes: 0, ..JudgeOptions::default() };
    Oracle::new().judge_with(&lab.image, &judge).unwrap().assert_ok();
}

/// Files that were deleted while they were open, when the power went: edits keep them as they are, and the kernel
/// removes them at the next mount.
#[test]
fn orphans_stay_for_the_kernel() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() || !oracle.has_progs() {
        return;
    }
    let lab = lab();
    let (live, source) = (lab.host("live.img"), lab.source("src", "echo new > new; mkdir d; echo x > d/f"));
    btrfs_progs::mkfs(&live, 300 << 20, &[]).unwrap();
    let mount = oracle.mount(&live, "rw").unwrap().unwrap();
    let script = format!(
        "head -c 3000000 /dev/urandom > big; echo small > small; mkdir dir; echo kept > dir/kept; sync -f .
        btrfs -q subvolume create sub; head -c 200000 /dev/urandom > sub/big
        btrfs -q subvolume snapshot . snap; sync -f .
        exec 3< big 4< small 5< sub/big; rm big small sub/big; sync -f .; btrfs filesystem sync .
        cp --sparse=always {} {}",
        live.display(),
        lab.image()
    );
    sh(mount.path(), &script);
    mount.unmount().unwrap();
    let orphans = || btrfs_progs::dump_tree(&lab.image, &[]).unwrap().matches("ORPHAN_ITEM").count();
    let before = orphans();
    assert!(before >= 3, "{before} orphans");
    assert_checks_clean(&lab.image, "the power cut");
    let source = source.display();
    for words in [
        format!("cp -r {source} {}", lab.at("/copied")),
        format!("cp -r {source} {}", lab.at("/sub/copied")),
        format!("rm -r {}", lab.at("/dir")),
        format!("cp {source}/new {}", lab.at("/copied/new")),
        format!("mkdir {}", lab.at("/snap/made")),
    ] {
        run(&words.split(' ').collect::<Vec<_>>()).expect(0);
        assert_checks_clean(&lab.image, &words);
    }
    assert_eq!(orphans(), before);
    assert_eq!(run(&["verify", "--data", lab.image()]).code, 0);
    let mount = oracle.mount(&lab.image, "rw").unwrap().unwrap();
    assert_eq!(sh(mount.path(), "ls; cat copied/new sub/copied/d/f"), "copied\nsnap\nsub\nnew\nx\n");
    sh(mount.path(), "ls sub snap >/dev/null; sync -f .");
    mount.unmount().unwrap();
    assert_eq!(orphans(), 0);
    oracle.judge(&lab.image, None).unwrap().assert_ok();
}

/// Filled, half of it deleted at random, filled again: nothing leaks, and what is free is found, in pieces as it is.
#[test]
fn aged_images_take_as_much_as_new_ones() {
    let lab = lab();
    lab.mkfs(&["-n", "4k", "-b", "96M"]);
    let mut rng = Rng::new(5);
    let mut parts = Vec::new();
    for (name, count, most) in [("large", 20, 200_000), ("middle", 1, 100_000), ("small", 1, 8192)] {
        let dir = lab.host(name);
        fs::create_dir(&dir).unwrap();
        let mut bytes = 0;
        for i in 0..count {
            let size = if count == 1 { most } else { rng.index(most) };
            fs::write(dir.join(format!("f{i}")), vec![0xa5_u8; size]).unwrap();
            bytes += size;
        }
        parts.push((dir, bytes));
    }
    let (mut held, mut n, mut first) = (Vec::new(), 0, 0);
    for round in 0..4 {
        for (dir, bytes) in &parts {
            loop {
                n += 1;
                let name = format!("/d{n}");
                let words = ["cp", "-q", "--no-sync", "-r", dir.to_str().unwrap(), &lab.at(&name)];
                let ran = run(&words);
                if ran.code == 5 {
                    break;
                }
                assert_eq!(ran.code, 0, "{}", ran.stderr);
                held.push((name, *bytes));
            }
        }
        assert_checks_clean(&lab.image, "filling");
        let stored: usize = held.iter().map(|(_, bytes)| bytes).sum();
        first = if round == 0 { stored } else { first };
        assert!(stored >= first / 100 * 97, "round {round}: {stored} bytes, at first {first}");
        let (gone, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(|_| rng.index(2) == 0);
        let words = ["rm", "-r"].map(str::to_owned).into_iter();
        run(&words.chain(gone.iter().map(|(name, _)| lab.at(name))).collect::<Vec<_>>()).expect(0);
        assert_checks_clean(&lab.image, "rm");
        held = kept;
    }
    // Without room for much more.
    let judge = JudgeOptions { write_bytes: 0, ..JudgeOptions::default() };
    Oracle::new().judge_with(&lab.image, &judge).unwrap().assert_ok();
}
