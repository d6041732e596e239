//! Equal contents give equal bytes, whatever the machine is like (DESIGN 8).

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::{JudgeOptions, OddTree, Oracle};
use common::Ran;
use writing::{assert_same_bytes, finish, run_in, sha256};

const EPOCH: &str = "1700000000";
const UUID: &str = "6ec0b3a5-7d0f-4d0e-9d5c-0123456789ab";

fn build(source: &Path, image: &Path, env: &[(&str, Option<&str>)], more: &[&str]) -> Ran {
    let fixed = ["mkfs", "-q", image.to_str().unwrap(), "-r", source.to_str().unwrap(), "-U", UUID];
    let env = [env, &[("SOURCE_DATE_EPOCH", Some(EPOCH))]].concat();
    run_in(Path::new("/"), &env, &[&fixed, more].concat())
}

fn judge(image: &Path) {
    let options = JudgeOptions { read_write: false, ..JudgeOptions::default() };
    Oracle::new().judge_with(image, &options).unwrap().assert_ok();
}

/// Entries of every kind, none of which depend on who makes them.
const ENTRIES: &[&str] = &["a", "b.d", "b.d/c", "b.d/d", "e.d", "e.d/f", "link", "zeros", "text", "z"];

/// The same small tree, its entries made in the order of ENTRIES or the other way round.
fn small_tree(top: &Path, backwards: bool) {
    fs::create_dir_all(top).unwrap();
    let mut order: Vec<&str> = ENTRIES.to_vec();
    if backwards {
        order.reverse();
    }
    for name in order {
        let path = top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match name {
            _ if name.ends_with(".d") => fs::create_dir_all(&path).unwrap(),
            "link" => symlink("b.d/c", &path).unwrap(),
            "zeros" => fs::write(&path, vec![0; 300_000]).unwrap(),
            "text" => fs::write(&path, "some text that compresses\n".repeat(20_000)).unwrap(),
            _ => fs::write(&path, Rng::new(name.len() as u64).bytes(name.len() * 3000)).unwrap(),
        }
    }
    for (name, mode) in [("", 0o755), ("b.d", 0o700), ("e.d", 0o755), ("a", 0o640), ("text", 0o444)] {
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for name in ["b.d/c", "b.d/d", "e.d/f", "zeros", "z"] {
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
}

#[test]
fn a_tree_with_everything_is_the_same_for_any_number_of_threads_and_over_an_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    OddTree { many: 2000, residues: 10, huge: false, ..OddTree::default() }.build(&at("odd")).unwrap();
    for kind in [&[][..], &["--compress", "zstd:3"], &["--compress-force", "lzo", "-n", "64k"]] {
        let with = |image: &str, more: &[&str]| {
            build(&at("odd"), &at(image), &[], &[kind, &["-f", "--no-sync"], more].concat()).expect(0);
        };
        with("one", &["--threads", "1"]);
        with("many", &["--threads", "7"]);
        assert_same_bytes(&at("one"), &at("many"), "threads");
        // An old file that is longer, full of something else.
        let length = fs::metadata(at("one")).unwrap().len() + 12_345_678;
        fs::write(at("old"), vec![0x5a; usize::try_from(length).unwrap()]).unwrap();
        with("old", &[]);
        assert_same_bytes(&at("one"), &at("old"), "an old file");
    }
    judge(&at("old"));
}

#[test]
fn nothing_of_the_environment_shows() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    small_tree(&at("src"), false);
    let pristine = at("pristine.img");
    build(&at("src"), &pristine, &[("TZ", None), ("LC_ALL", None)], &[]).expect(0);

    let image = at("tz.img");
    build(&at("src"), &image, &[("TZ", Some("Pacific/Auckland")), ("LC_ALL", Some("tr_TR.UTF-8"))], &[])
        .expect(0);
    assert_same_bytes(&pristine, &image, "time zone and locale");

    let image = at("umask.img");
    let ours = env!("CARGO_BIN_EXE_btrfsimg");
    let line =
        format!("umask 077; exec {ours} mkfs -q {} -r {} -U {UUID}", image.display(), at("src").display());
    let mut shell = Command::new("bash");
    finish(shell.args(["-c", &line]).env("SOURCE_DATE_EPOCH", EPOCH)).expect(0);
    assert_same_bytes(&pristine, &image, "umask");

    small_tree(&at("backwards"), true);
    let image = at("order.img");
    build(&at("backwards"), &image, &[], &[]).expect(0);
    assert_same_bytes(&pristine, &image, "the order in which entries were made, and all their times");

    // Another clock is another image.
    let image = at("later.img");
    let source = at("src");
    let later = ["mkfs", "-q", image.to_str().unwrap(), "-r", source.to_str().unwrap(), "-U", UUID];
    run_in(Path::new("/"), &[("SOURCE_DATE_EPOCH", Some("1600000000"))], &later).expect(0);
    assert!(fs::read(&pristine).unwrap() != fs::read(&image).unwrap());
}

/// Holes come from the contents, since file systems differ in what they say.
#[test]
fn the_sources_file_system_does_not_show() {
    let Some(memory) = writing::shm() else { return };
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let in_memory = tempfile::tempdir_in(memory).unwrap();
    let mut images: Vec<PathBuf> = Vec::new();
    for top in [on_disk.path(), in_memory.path()] {
        let source = top.join("src");
        small_tree(&source, false);
        let holes = fs::File::create(source.join("holes")).unwrap();
        holes.set_len(10 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&holes, b"data", 5 << 20).unwrap();
        drop(holes);
        // The same bytes without holes.
        let bytes = fs::read(source.join("holes")).unwrap();
        fs::write(source.join("no-holes"), bytes).unwrap();
        fs::set_permissions(source.join("holes"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(source.join("no-holes"), fs::Permissions::from_mode(0o644)).unwrap();
        let image = top.join("i.img");
        build(&source, &image, &[], &["--compress", "zlib:6"]).expect(0);
        images.push(image);
    }
    assert_same_bytes(&images[0], &images[1], "disk and memory");
    let listed = common::run(&["stat", "--json", &format!("{}:/no-holes", images[0].display())]).expect(0);
    let blocks = listed
        .text()
        .split("\"blocks\": ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .parse::<u64>()
        .unwrap();
    assert!(blocks * 512 <= 128 << 10, "{blocks} blocks: zeros were stored");
}

#[test]
fn a_seed_is_as_good_as_a_uuid_and_without_either_a_note_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    small_tree(&at("src"), false);
    let build = |image: &str, more: &[&str]| {
        let image = at(image);
        let source = at("src");
        let fixed = ["mkfs", image.to_str().unwrap(), "-r", source.to_str().unwrap()];
        run_in(Path::new("/"), &[("SOURCE_DATE_EPOCH", Some(EPOCH))], &[&fixed, more].concat())
            .expect(0)
            .stderr
    };
    assert_eq!(build("a", &["--seed", "release 7"]), "");
    assert_eq!(build("b", &["--seed", "release 7"]), "");
    assert_same_bytes(&at("a"), &at("b"), "one seed");
    build("c", &["--seed", "release 8"]);
    assert!(fs::read(at("a")).unwrap() != fs::read(at("c")).unwrap());
    assert!(build("d", &[]).contains("UUID is random"));
    build("e", &[]);
    assert!(fs::read(at("d")).unwrap() != fs::read(at("e")).unwrap());
}

/// Edits are as reproducible as new images.
#[test]
fn equal_edits_of_equal_images_are_equal() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    small_tree(&at("src"), false);
    for (image, tz) in [("a", "UTC"), ("b", "Asia/Tokyo")] {
        build(&at("src"), &at(image), &[], &[]).expect(0);
        let to = |path: &str| format!("{}:{path}", at(image).display());
        let source = at("src");
        for line in [
            vec!["mkdir", "-p", &to("/x/y")],
            vec!["prop", "set", &to("/x/y"), "compression", "zstd:3"],
            vec!["cp", "-q", "-a", source.to_str().unwrap(), &to("/x/y/")],
            vec!["rm", "-r", &to("/b.d"), &to("/a")],
        ] {
            run_in(Path::new("/"), &[("SOURCE_DATE_EPOCH", Some(EPOCH)), ("TZ", Some(tz))], &line).expect(0);
        }
    }
    assert_same_bytes(&at("a"), &at("b"), "edits");
}

/// What these images are pinned to. A change of the layout, or of a codec, changes them: that is to be meant, and
/// noted in the CHANGELOG.
const PINNED: &[(&[&str], &str)] = &[
    (&[], "5a6e05523f5df10d2dde8c00a499bfb853536a9408d14056c4c76834e6b130e2"),
    (&["--compress-force", "zstd:3"], "f9ed34439b11f6f00b4a8a52fd2ba6e6db28a77b665324b045a13a82e0112145"),
];

#[test]
fn pinned_digests() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("src");
    small_tree(&source, false);
    // The owner is whoever runs the test, and only root is the same everywhere.
    if std::os::unix::fs::MetadataExt::uid(&fs::metadata(&source).unwrap()) != 0 {
        println!("skipped: the tree is not root's");
        return;
    }
    let have: Vec<String> = PINNED
        .iter()
        .map(|(kind, _)| {
            let image = dir.path().join("p.img");
            build(&source, &image, &[], &[kind, &["-f"][..]].concat()).expect(0);
            judge(&image);
            sha256(&image)
        })
        .collect();
    assert_eq!(have, PINNED.iter().map(|(_, digest)| *digest).collect::<Vec<_>>());
}

/// A subvolume that gets the id of one that was deleted is another one.
#[test]
fn no_two_subvolumes_have_one_uuid() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("a.img"));
    fs::create_dir(&tree).unwrap();
    build(&tree, &image, &[], &[]).expect(0);
    let env = [("SOURCE_DATE_EPOCH", Some(EPOCH))];
    let name = format!("{}:/v", image.display());
    let mut uuids = std::collections::HashSet::new();
    for _ in 0..3 {
        run_in(Path::new("/"), &env, &["subvol", "create", &name]).expect(0);
        let shown = run_in(Path::new("/"), &env, &["subvol", "show", &name]).expect(0);
        let field = |what: &str| {
            let line = shown.text().lines().find(|l| l.trim_start().starts_with(what));
            line.unwrap_or_else(|| panic!("{}", shown.text())).split(':').nth(1).unwrap().trim().to_owned()
        };
        assert_eq!(field("Subvolume ID"), "256");
        assert!(uuids.insert(field("UUID")), "{} was another's", field("UUID"));
        run_in(Path::new("/"), &env, &["subvol", "delete", &name]).expect(0);
    }
}
