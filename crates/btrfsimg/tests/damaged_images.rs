//! Damage: what can be read is read, what cannot is named, and nothing leaves the target directory.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use btrfsimg_ondisk::CsumType;
use btrfsimg_testkit::rng::Rng;
use common::{Lab, command, edit_blocks, edit_index, find_sectors, overwrite, patch_blocks, run, sh};
use rustix::fs::{Mode, OFlags, mkdirat, open, openat};

const FILL: &str = "
    mkdir d; for i in $(seq 40); do echo $i > d/file$i; done
    yes one | head -c 50000 > d/one; yes two | head -c 50000 > d/two";

fn out_of(lab: &Lab) -> String {
    lab.host("out").to_str().unwrap().to_owned()
}

#[test]
fn either_copy_of_metadata_will_do() {
    let Some(lab) = Lab::kernel_made(&["-m", "dup"], "rw", |top| {
        sh(top, FILL);
    }) else {
        return;
    };
    let before = run(&["ls", "-lR", &lab.at("/")]).expect(0);
    let chunks = run(&["inspect", "tree", "-t", "chunk", lab.image.to_str().unwrap()]).expect(0);
    let metadata = chunks.text().lines().find(|l| l.contains("METADATA|DUP")).unwrap().to_owned();
    let offset = |n: usize| -> u64 {
        let stripe = metadata.split("; devid 1 offset ").nth(n).unwrap();
        stripe.split(' ').next().unwrap().parse().unwrap()
    };
    overwrite(&lab.image, offset(1), &vec![0; 8 << 20]);
    assert_eq!(run(&["ls", "-lR", &lab.at("/")]).expect(0).text(), before.text());
    assert_eq!(run(&["cat", &lab.at("/d/file7")]).expect(0).text(), "7\n");
    overwrite(&lab.image, offset(2), &vec![0; 8 << 20]);
    let ran = run(&["ls", &lab.at("/")]).expect(4);
    assert!(ran.stderr.contains("block="), "{}", ran.stderr);
}

#[test]
fn a_bad_sector_is_named_and_the_rest_is_copied() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, FILL);
    }) else {
        return;
    };
    let content = run(&["cat", &lab.at("/d/one")]).expect(0).stdout;
    let hits = find_sectors(&lab.image, &content[4096..8192]);
    assert!(!hits.is_empty());
    // 'one\n' repeats in every sector: the third of the file is behind the first hit.
    overwrite(&lab.image, hits[0] + 2 * 4096, b"x");
    let ran = run(&["cat", &lab.at("/d/one")]).expect(4);
    assert!(
        ran.stderr.contains("/d/one: ") && ran.stderr.contains("offset 8192: checksum mismatch"),
        "{}",
        ran.stderr
    );
    let ran = run(&["cp", "-r", &lab.at("/d"), &out_of(&lab)]).expect(4);
    assert!(ran.stderr.contains("/d/one: "), "{}", ran.stderr);
    assert_eq!(fs::read(lab.host("out/two")).unwrap().len(), 50_000);
    assert_eq!(fs::read_dir(lab.host("out")).unwrap().count(), 42);
}

#[test]
fn either_copy_of_data_will_do_sector_by_sector() {
    let Some(lab) = Lab::kernel_made(&["-d", "dup"], "rw", |top| {
        fs::write(top.join("f"), Rng::new(5).bytes(100_000)).unwrap();
    }) else {
        return;
    };
    let content = Rng::new(5).bytes(100_000);
    let first = find_sectors(&lab.image, &content[..4096]);
    let last = find_sectors(&lab.image, &content[20 * 4096..21 * 4096]);
    assert_eq!((first.len(), last.len()), (2, 2));
    overwrite(&lab.image, first[0], b"bad");
    overwrite(&lab.image, last[1], b"bad");
    assert!(run(&["cat", &lab.at("/f")]).expect(0).stdout == content);
    overwrite(&lab.image, last[0], b"bad");
    run(&["cat", &lab.at("/f")]).expect(4);
}

#[test]
fn one_bad_name_hides_no_good_one() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, FILL);
    }) else {
        return;
    };
    // The name_len of an index entry (behind a location of 17, a transid of 8 and a data_len of 2 bytes).
    let mut entry = 6u16.to_le_bytes().to_vec();
    entry.extend_from_slice(b"\x01file33");
    let mut broken = entry.clone();
    broken[..2].copy_from_slice(&600u16.to_le_bytes());
    assert!(patch_blocks(&lab.image, &entry, &broken) > 0);
    let ran = run(&["ls", &lab.at("/d")]).expect(4);
    assert_eq!(ran.text().lines().count(), 41);
    assert!(ran.stderr.contains("DIR_INDEX") && ran.stderr.contains("DIR-06"), "{}", ran.stderr);
    assert!(!ran.text().contains("file33"));
    run(&["cp", "-r", &lab.at("/d"), &out_of(&lab)]).expect(4);
    assert_eq!(fs::read_to_string(lab.host("out/file34")).unwrap(), "34\n");
    let tree = run(&["inspect", "tree", "-t", "fs", lab.image.to_str().unwrap()]).expect(4);
    assert!(tree.text().contains("ERROR") && tree.text().contains("file34"));
}

/// Gives entries of a directory other names, in DIR_INDEX alone: the check of a DIR_ITEM would see the hash.
fn rename_in_index(lab: &Lab, from: &str, to: &str) {
    edit_index(&lab.image, from, |item| item[30..].copy_from_slice(to.as_bytes()));
}

#[test]
fn hostile_names_do_not_leave_the_target() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        let script = "
            mkdir -p d/xx d/sub; echo evil > d/xx/passwd; echo evil > d/a_b; echo evil > d/nul0; echo good > d/good
            ln -s /tmp d/link1; mkdir d/link2; echo planted > d/link2/btrfsimg-planted
            ln -s ../../outside d/slink1; echo through > d/slink2";
        sh(top, script);
    }) else {
        return;
    };
    for (from, to) in
        [("xx", ".."), ("a_b", "a/b"), ("nul0", "nul\0"), ("link2", "link1"), ("slink2", "slink1")]
    {
        rename_in_index(&lab, from, to);
    }
    let ran = run(&["cp", "-a", &lab.at("/d"), &out_of(&lab)]);
    assert_ne!(ran.code, 0);
    assert_eq!(fs::read_to_string(lab.host("out/good")).unwrap(), "good\n");
    let mut here: Vec<String> = fs::read_dir(lab.dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    here.sort();
    assert_eq!(here, ["k.img", "out"], "{}", ran.stderr);
    assert!(!Path::new("/tmp/btrfsimg-planted").exists());
    for says in ["'..' cannot be the name", "neither '/' nor NUL", "/link1: ", "a second entry of this name"]
    {
        assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
    }
}

/// Two files of one name: the first is copied, the second is reported, and a salvage finds it a place. No device that
/// the first one made is opened.
#[test]
fn a_second_entry_of_a_name_takes_no_place() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir d; echo first > d/file1; echo second > d/file2; mknod d/node1 c 1 5; echo zeros > d/node2",
        );
    }) else {
        return;
    };
    rename_in_index(&lab, "file2", "file1");
    rename_in_index(&lab, "node2", "node1");
    for options in [&["-r"][..], &["-a"], &["-a", "--salvage"]] {
        let out = out_of(&lab);
        let ran = run(&[&["cp"], options, &[&lab.at("/d"), &out]].concat());
        assert_eq!(ran.code, if options.contains(&"--salvage") { 1 } else { 4 }, "{}", ran.stderr);
        for name in ["file1", "node1"] {
            let says = format!("/d/{name}: corrupt file system: ");
            let line = ran.stderr.lines().find(|line| line.contains(&says)).unwrap_or_default();
            assert!(
                line.contains("a second entry of this name") && line.contains("DIR-12"),
                "{}",
                ran.stderr
            );
        }
        let of = |text: &str| sh(Path::new(&out), &format!("grep -rlx {text} . || true")).lines().count();
        assert_eq!(fs::read_to_string(lab.host("out/file1")).unwrap(), "first\n");
        let found = usize::from(options.contains(&"--salvage"));
        assert_eq!((of("second"), of("zeros")), (found, found), "{options:?}: {}", ran.stderr);
        fs::remove_dir_all(&out).unwrap();
    }
    // The same within the image, and into another one.
    let other = lab.host("other.img");
    run(&["mkfs", "-q", other.to_str().unwrap()]).expect(0);
    for to in [lab.at("/copy"), format!("{}:/copy", other.display())] {
        let ran = run(&["cp", "-r", &lab.at("/d"), &to]).expect(4);
        assert_eq!(ran.stderr.matches("a second entry of this name").count(), 2, "{}", ran.stderr);
        assert_eq!(run(&["cat", &format!("{to}/file1")]).expect(0).text(), "first\n");
    }
}

#[test]
fn symlinks_that_wait_in_the_target_are_not_followed() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, "mkdir -p d/sub; echo x > d/sub/f; echo y > d/g; mkfifo d/p");
    }) else {
        return;
    };
    let out = lab.host("out");
    fs::create_dir_all(out.join("d")).unwrap();
    fs::create_dir(lab.host("elsewhere")).unwrap();
    fs::write(lab.host("victim"), "untouched").unwrap();
    symlink(lab.host("elsewhere"), out.join("d/sub")).unwrap();
    symlink(lab.host("victim"), out.join("d/g")).unwrap();
    let ran = run(&["cp", "-r", &lab.at("/d"), out.to_str().unwrap()]).expect(1);
    assert_eq!(fs::read_to_string(lab.host("victim")).unwrap(), "untouched");
    assert_eq!(fs::read_dir(lab.host("elsewhere")).unwrap().count(), 0);
    assert!(ran.stderr.contains("/d/g: not writing through a symlink that leads out"), "{}", ran.stderr);
    assert!(fs::symlink_metadata(out.join("d/p")).is_ok());
}

/// Levels of the deep chain: its path is longer than PATH_MAX, and a test may not have as many open files.
const LEVELS: usize = 3000;

/// Goes down the chain below `top`, making each level first where `make` says so. Gives the last one.
fn descend(top: &Path, make: bool) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at = open(top, flags, Mode::empty()).unwrap();
    for _ in 0..LEVELS {
        if make {
            mkdirat(&at, "dd", Mode::RWXU).unwrap();
        }
        at = openat(&at, "dd", flags, Mode::empty()).unwrap();
    }
    at
}

#[test]
fn a_chain_of_directories_deeper_than_open_files_and_paths() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        fs::create_dir(top.join("deep")).unwrap();
        let bottom = descend(&top.join("deep"), true);
        openat(&bottom, "bottom", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
    }) else {
        return;
    };
    let out = out_of(&lab);
    let cp = command(&["cp", "-a", &lab.at("/deep"), &out]);
    let limited = std::process::Command::new("bash")
        .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
        .arg(cp.get_program())
        .args(cp.get_args())
        .output()
        .unwrap();
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
    let bottom = descend(Path::new(&out), false);
    openat(&bottom, "bottom", OFlags::RDONLY, Mode::empty()).unwrap();
    let listed = run(&["ls", "-R", &lab.at("/deep")]).expect(0);
    assert!(listed.text().ends_with("bottom\n"));
    // Rust's own removal opens a file for each level.
    sh(lab.dir.path(), "rm -rf out");
}

#[test]
fn files_of_many_exbibytes() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir d; truncate -s 7E d/big; printf end | dd of=d/big bs=1 seek=1E conv=notrunc status=none",
        );
    }) else {
        return;
    };
    // ext4 and tmpfs take less than 7 EiB: refused with the file's name, and the rest is done.
    let ran = run(&["cp", "-a", &lab.at("/d"), &out_of(&lab)]);
    assert!(ran.code == 0 || ran.stderr.contains("/d/big: "), "{}", ran.stderr);
    let mut cat = command(&["cat", &lab.at("/d/big")]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut head = [1; 4096];
    std::io::Read::read_exact(cat.stdout.as_mut().unwrap(), &mut head).unwrap();
    drop(cat.stdout.take());
    assert_eq!(head, [0; 4096]);
    // The reader went away: success.
    assert_eq!(cat.wait().unwrap().code(), Some(0));
}

#[test]
fn sizes_in_the_superblock_that_make_no_sense() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |_| {}) else { return };
    let pristine = fs::read(&lab.image).unwrap();
    for (field, value) in [(144, 0u32), (144, 3), (148, 0), (148, 1), (148, u32::MAX), (160, 5000)] {
        let mut superblock = pristine[65536..65536 + 4096].to_vec();
        superblock[field..field + 4].copy_from_slice(&value.to_le_bytes());
        let csum = CsumType::Crc32c.of_block(&superblock);
        superblock[..32].copy_from_slice(&csum.0);
        overwrite(&lab.image, 65536, &superblock);
        // The copy still serves a reader.
        let ran = run(&["ls", lab.image.to_str().unwrap()]).expect(0);
        assert!(ran.stderr.contains("primary superblock is damaged"), "{}", ran.stderr);
        overwrite(&lab.image, 64 << 20, &superblock);
        for args in [&["ls"][..], &["inspect", "tree"], &["inspect", "super"]] {
            let args = [args, &[lab.image.to_str().unwrap()]].concat();
            let ran = run(&args).expect(4);
            assert!(ran.stderr.contains("[SB-"), "{}", ran.stderr);
        }
        overwrite(&lab.image, 64 << 20, &pristine[64 << 20..(64 << 20) + 4096]);
    }
}

#[test]
fn random_damage_never_panics() {
    let Some(lab) = Lab::kernel_made(&["-m", "single"], "rw,compress-force=lzo", |top| {
        sh(top, FILL);
    }) else {
        return;
    };
    let pristine = fs::read(&lab.image).unwrap();
    let mut used = Vec::new();
    for at in (0..pristine.len()).step_by(4096) {
        if pristine[at + 32..at + 48] == pristine[65536 + 32..65536 + 48] && at != 65536 {
            used.push(at);
        }
    }
    let mut rng = Rng::new(11);
    for round in 0..60 {
        let mut hits = 0;
        edit_blocks(&lab.image, |block| {
            for _ in 0..=rng.below(3) {
                let at = 32 + 16 + rng.index(block.len() - 48);
                block[at] ^= 1 << rng.below(8);
            }
            hits += 1;
            rng.below(4) == 0
        });
        assert!(hits > 5);
        let image = lab.image.to_str().unwrap();
        for args in [
            vec!["ls", "-lR", image],
            vec!["cp", "-r", &lab.at("/."), lab.dir.path().to_str().unwrap()],
            vec!["cp", "-r", "--salvage", &lab.at("/."), lab.dir.path().to_str().unwrap()],
            vec!["inspect", "tree", image],
            vec!["inspect", "super", "-a", "-f", image],
        ] {
            let ran = run(&args);
            assert!([0, 1, 3, 4].contains(&ran.code), "round {round} {args:?}: {} {}", ran.code, ran.stderr);
        }
        for at in &used {
            overwrite(&lab.image, *at as u64, &pristine[*at..(*at + 16384).min(pristine.len())]);
        }
    }
}
