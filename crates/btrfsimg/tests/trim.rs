//! `trim`, and what an edit that fails leaves in the file.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use btrfsimg_testkit::{Oracle, btrfs_progs, sparse};
use common::{Lab, run, sh};

const SECRET: &[u8] = b"the secret that was deleted, in the file's own bytes ";

fn holds_secret(image: &Path) -> bool {
    let file = File::open(image).unwrap();
    let ranges = sparse::data_ranges(&file, file.metadata().unwrap().len()).unwrap();
    ranges.into_iter().any(|range| {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        file.read_exact_at(&mut bytes, range.start).unwrap();
        // Extents start at sectors, and the secret at the start of its file.
        bytes.chunks(4096).any(|sector| sector.starts_with(SECRET))
    })
}

fn taken(image: &Path) -> u64 {
    fs::metadata(image).unwrap().blocks() * 512
}

#[track_caller]
fn assert_sound(image: &Path) {
    assert_eq!(btrfs_progs::check(image).unwrap(), Vec::<String>::new());
    Oracle::new().judge(image, None).unwrap().assert_ok();
}

/// An image of 128 MiB with what stays, what was deleted, and a snapshot that went.
fn used() -> Option<Lab> {
    let oracle = Oracle::new();
    if !oracle.has_progs() || !oracle.has_kernel() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("k.img");
    btrfs_progs::mkfs(&image, 128 << 20, &[]).unwrap();
    let mount = oracle.mount(&image, "rw,commit=1").unwrap()?;
    fill(mount.path());
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    Some(Lab { dir, image })
}

fn fill(top: &Path) {
    fs::write(top.join("secret"), SECRET.repeat(4000)).unwrap();
    sh(
            top,
            "mkdir d; for n in $(seq 300); do head -c $((n * 100)) /dev/urandom > d/$n; done; sync
             btrfs -q subvolume snapshot . s; rm -r d/1* secret; sync; btrfs -q subvolume delete s; btrfs subvolume sync . >/dev/null; sync",
        );
}

/// What a salvage reads then is an older state, in space that is free.
#[test]
fn an_image_whose_newest_tree_cannot_be_read_is_left_alone() {
    let Some(lab) = used() else { return };
    for fault in ["node-level", "node-empty", "node-nritems", "node-pointer-null", "node-key-order"] {
        let image = lab.dir.path().join("broken.img");
        fs::copy(&lab.image, &image).unwrap();
        let name = image.to_str().unwrap();
        run(&["fixture", "apply", name, fault]).expect(0);
        let before = fs::read(&image).unwrap();
        for zero in [&["trim"][..], &["trim", "--zero=always"]] {
            let ran = run(&[zero, &[name]].concat()).expect(4);
            assert!(ran.stderr.contains("corrupt node"), "{fault}: {}", ran.stderr);
            assert!(fs::read(&image).unwrap() == before, "{fault}: {zero:?} changed the image");
        }
    }
}

#[test]
fn what_is_deleted_goes_and_what_is_used_stays() {
    for how in [&["--zero"][..], &["--zero=always"]] {
        let Some(lab) = used() else { return };
        let image = lab.image.to_str().unwrap();
        assert!(holds_secret(&lab.image));
        let before = taken(&lab.image);
        run(&["trim", "-n", image]).expect(0);
        assert!(holds_secret(&lab.image) && taken(&lab.image) == before, "a dry run changes nothing");
        let said = run(&[&["trim", "--json"], how, &[image]].concat()).expect(0);
        assert!(!holds_secret(&lab.image), "{how:?}");
        if how != ["--zero=always"] {
            assert!(
                before - taken(&lab.image) > 200_000,
                "{} of {before} bytes are taken",
                taken(&lab.image)
            );
            assert!(
                said.text().contains(&format!("\"given_back\": {}", before - taken(&lab.image))),
                "{}",
                said.text()
            );
        }
        run(&["verify", "--data", image]).expect(0);
        assert_sound(&lab.image);
    }
}

/// In a disk image with other things around it.
#[test]
fn bytes_around_the_file_system_stay() {
    let Some(lab) = used() else { return };
    let (disk, offset) = (lab.host("disk.img"), 1 << 20);
    let (head, tail) = (vec![0xaa; offset], vec![0xbb; 1 << 20]);
    let inside = fs::read(&lab.image).unwrap();
    fs::write(&disk, [&head[..], &inside, &tail].concat()).unwrap();
    // What a boot loader put there.
    let file = File::options().read(true).write(true).open(&disk).unwrap();
    file.write_all_at(&[0xcc; 512], offset as u64).unwrap();
    run(&["trim", "--offset", &offset.to_string(), disk.to_str().unwrap()]).expect(0);
    let after = fs::read(&disk).unwrap();
    let end = offset + inside.len();
    assert!(
        after[..offset] == head[..] && after[end..] == tail[..] && after[offset..offset + 512] == [0xcc; 512]
    );
    for copy in [0x1_0000, 0x400_0000] {
        assert!(after[offset + copy..][..4096] == inside[copy..][..4096], "superblock copy at {copy}");
    }
    fs::write(&lab.image, &after[offset..end]).unwrap();
    assert!(!holds_secret(&lab.image));
    assert_sound(&lab.image);
}

/// An edit that fails on the way leaves neither its data nor room taken.
#[test]
fn an_edit_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (image, source) = (dir.path().join("x.img"), dir.path().join("source"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), SECRET.repeat(100_000)).unwrap();
    File::create(source.join("b")).unwrap().set_len(200 << 20).unwrap();
    sh(&source, "head -c 120000000 /dev/urandom > b");
    let name = image.to_str().unwrap();
    run(&["mkfs", "--size", "64M", name]).expect(0);
    let (before, bytes) = (taken(&image), fs::read(&image).unwrap());
    run(&["cp", "-r", source.to_str().unwrap(), &format!("{name}:/in")]).expect(5);
    assert!(!holds_secret(&image));
    assert!(fs::read(&image).unwrap() == bytes, "not a byte is another");
    assert!(taken(&image) <= before + (64 << 10), "{} bytes are taken, {before} were", taken(&image));
}

/// Old versions of mkfs put chunks there (DE-11). Kernels use and trim them as others.
#[test]
fn a_chunk_below_the_first_mebibyte_is_one_like_others() {
    let Some(lab) = used() else { return };
    let image = lab.image.to_str().unwrap();
    run(&["fixture", "apply", image, "dev-extent-in-reserved"]).expect(0);
    let before = taken(&lab.image);
    run(&["trim", image]).expect(0);
    assert!(taken(&lab.image) < before && !holds_secret(&lab.image));
    assert_eq!(btrfs_progs::check(&lab.image).unwrap(), Vec::<String>::new());
    let mut judged = Oracle::new().judge(&lab.image, None).unwrap();
    judged.faults.retain(|fault| !fault.contains("inside the reserved space"));
    judged.assert_ok();
}

/// What no extent item covers may be data all the same, where an item is lost: the block group tells.
#[test]
fn an_image_that_does_not_add_up_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("t.img");
    let (word, source) = (image.to_str().unwrap(), dir.path().join("src"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), vec![7; 100_000]).unwrap();
    run(&["mkfs", "-q", word, "-r", source.to_str().unwrap()]).expect(0);
    run(&["fixture", "apply", word, "block-group-used"]).expect(0);
    let before = fs::read(&image).unwrap();
    let ran = run(&["trim", word]).expect(4);
    assert!(ran.stderr.contains("BG-08"), "{}", ran.stderr);
    assert!(fs::read(&image).unwrap() == before, "it was changed");
}

/// Metadata of one profile and data of another that cannot be trimmed: nothing goes, wherever its chunks lie.
#[test]
fn nothing_goes_where_a_profile_is_not_supported() {
    if !Oracle::new().has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("k.img");
    btrfs_progs::mkfs(&image, 256 << 20, &["-d", "raid0", "-m", "dup"]).unwrap();
    // What would go: free space, and space of no chunk.
    let file = File::options().read(true).write(true).open(&image).unwrap();
    file.write_all_at(SECRET, 250 << 20).unwrap();
    let before = fs::read(&image).unwrap();
    let said = run(&["trim", image.to_str().unwrap()]).expect(3);
    assert!(said.stderr.contains("RAID0"), "{}", said.stderr);
    assert!(fs::read(&image).unwrap() == before, "something went");
}
