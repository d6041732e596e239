//! `cp --salvage`: out of broken images comes what can be read; the rest is named.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/salvaged.rs"]
mod salvaged;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use btrfsimg_testkit::oracle::Oracle;
use btrfsimg_testkit::rng::Rng;
use common::{Lab, edit_items, find_sectors, item_types, overwrite, run, sh};
use salvaged::{NODESIZE, blocks, files, salvage};

#[test]
fn a_sound_image_comes_out_whole_and_without_complaint() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir d; echo a > d/a; ln d/a d/b; truncate -s 1M d/hole; btrfs subvolume create s >/dev/null; echo x > s/x",
        );
    }) else {
        return;
    };
    let (ran, out) = salvage(&lab);
    let ran = ran.expect(0);
    assert!(!out.join("lost+found").exists());
    assert!(ran.stderr.contains("0 failures"), "{}", ran.stderr);
    assert_eq!(fs::read(out.join("s/x")).unwrap(), b"x\n");
}

#[test]
fn damaged_bytes_are_named_and_the_others_are_right() {
    let content = Rng::new(5).bytes(3 << 20);
    // Not so random that it is stored raw where compression is asked for.
    let text: Vec<u8> = content.iter().map(|b| b'a' + b % 8).collect();
    for (options, expect) in
        [("rw", "bytes 8192 to 12288 copied as found"), ("rw,compress-force=zlib", "left as zeros")]
    {
        let Some(lab) = Lab::kernel_made(&[], options, |top| {
            fs::write(top.join("f"), &text).unwrap();
            fs::write(top.join("good"), b"good").unwrap();
        }) else {
            return;
        };
        let extent = match options {
            "rw" => find_sectors(&lab.image, &text[8192..12288])[0],
            // The second extent of a file of 128 KiB extents starts with a zlib header.
            _ => second_extent(&lab),
        };
        overwrite(&lab.image, extent + 100, &[0x5a; 200]);
        let (ran, out) = salvage(&lab);
        let ran = ran.expect(1);
        assert!(ran.stderr.contains("/f: ") && ran.stderr.contains(expect), "{}", ran.stderr);
        assert_eq!(fs::read(out.join("good")).unwrap(), b"good");
        let copy = fs::read(out.join("f")).unwrap();
        assert_eq!(copy.len(), text.len());
        let wrong = if options == "rw" { 8192..12288 } else { 131_072..262_144 };
        assert!(copy[..wrong.start] == text[..wrong.start] && copy[wrong.end..] == text[wrong.end..]);
        match options {
            "rw" => assert!(copy[8192 + 100..8192 + 300].iter().all(|b| *b == 0x5a)),
            _ => assert!(copy[wrong].iter().all(|b| *b == 0)),
        }
    }
}

/// Where in the image file the extent at 131072 of `/f` lies.
fn second_extent(lab: &Lab) -> u64 {
    let image = lab.image.to_str().unwrap();
    let tree = run(&["inspect", "tree", "-t", "fs", image]).expect(0);
    let line = tree.text().lines().find(|l| l.contains("EXTENT_DATA 131072")).unwrap().to_owned();
    let number = |text: &str, before: &str| -> u64 {
        text.split(before).nth(1).unwrap().split([' ', ')', ';']).next().unwrap().parse().unwrap()
    };
    let logical = number(&line, "disk_bytenr ");
    let chunks = run(&["inspect", "tree", "-t", "chunk", image]).expect(0);
    for chunk in chunks.text().lines().filter(|l| l.contains("CHUNK_ITEM")) {
        let (start, length) = (number(chunk, "CHUNK_ITEM "), number(chunk, "length "));
        if (start..start + length).contains(&logical) {
            return logical - start + number(chunk, "devid 1 offset ");
        }
    }
    panic!("no chunk holds {logical}");
}

#[test]
fn files_go_back_to_their_directory_when_its_list_is_lost() {
    let name = |i: usize| format!("file-{i:04}-{}", "n".repeat(100));
    let dir = |i: usize| if i.is_multiple_of(2) { "d" } else { "d/e" };
    let Some(lab) = Lab::kernel_made(&[], "rw,nodiscard", |top| {
        fs::create_dir_all(top.join("d/e")).unwrap();
        for i in 0..600 {
            fs::write(top.join(dir(i)).join(name(i)), i.to_string()).unwrap();
        }
    }) else {
        return;
    };
    let names_only = |block: &[u8]| item_types(block).iter().all(|t| [84, 96].contains(t));
    let mut killed = 0;
    for (at, block) in blocks(&lab.image, 5) {
        if block[100] == 0 && names_only(&block) {
            overwrite(&lab.image, at, &[0; NODESIZE]);
            killed += 1;
        }
    }
    assert!(killed > 4, "{killed} leaves of names alone");
    let (ran, out) = salvage(&lab);
    let ran = ran.expect(1);
    let expect: BTreeMap<PathBuf, Vec<u8>> =
        (0..600).map(|i| (out.join(dir(i)).join(name(i)), i.to_string().into_bytes())).collect();
    assert_eq!(files(&out), expect);
    let said = ran.stderr.matches("copied to where it says it was").count();
    assert!(said > 100, "{said}: {}", ran.stderr);
}

/// Makes both entries of `name` such that no reader takes them: only xattrs have data behind the name.
fn spoil_entries(image: &Path, name: &str) {
    let edited = edit_items(image, |key_type, item| {
        let is_entry = [84, 96].contains(&key_type) && item.get(30..) == Some(name.as_bytes());
        if is_entry {
            item[25] = 1;
        }
        is_entry
    });
    assert!(edited > 0, "no entry is called {name}");
}

#[test]
fn a_lost_file_takes_no_name_that_another_has() {
    let Some(lab) = Lab::kernel_made(&[], "rw,nodiscard", |top| {
        sh(top, "mkdir d; echo 1 > d/one; echo 2 > d/two; echo 3 > six; chmod 555 d; echo x > lost+found");
    }) else {
        return;
    };
    let inode = |path: &str| {
        let stat = run(&["stat", "--json", &lab.at(path)]).expect(0);
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
        stat["files"][0]["inode"].as_u64().unwrap()
    };
    let one = inode("/d/one");
    spoil_entries(&lab.image, "one");
    spoil_entries(&lab.image, "six");
    // The inode says that it has the name of the other.
    edit_items(&lab.image, |key_type, item| {
        let is_ref = key_type == 12 && item.get(10..) == Some(b"one");
        if is_ref {
            item[10..].copy_from_slice(b"two");
        }
        is_ref
    });
    let (ran, out) = salvage(&lab);
    let ran = ran.expect(1);
    let found: BTreeMap<String, Vec<u8>> = files(&out)
        .into_iter()
        .map(|(path, bytes)| (path.strip_prefix(&out).unwrap().to_str().unwrap().to_owned(), bytes))
        .collect();
    let in_lost_and_found = format!("lost+found-2/5-{one}-two");
    let expect = [("d/two", "2\n"), ("lost+found", "x\n"), (&in_lost_and_found[..], "1\n"), ("six", "3\n")];
    let expect = expect.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()));
    assert_eq!(found, BTreeMap::from(expect), "{}", ran.stderr);
    // That one is no path of the image.
    let said = format!("{}: inode {one} of subvolume 5", out.join(&in_lost_and_found).display());
    assert!(ran.stderr.contains(&said), "{}", ran.stderr);
}

#[test]
fn a_root_directory_without_its_inode_is_read() {
    let Some(lab) = Lab::kernel_made(&[], "rw,nodiscard", |top| {
        sh(top, "mkdir d; echo a > d/a; echo b > b");
    }) else {
        return;
    };
    // INODE_ITEM 256 becomes an item of a type that nothing knows.
    common::edit_blocks(&lab.image, |block| {
        let is_root_dir = block[88..96] == 5u64.to_le_bytes()
            && block[100] == 0
            && block[101..109] == 256u64.to_le_bytes()
            && block[109] == 1;
        block[109] = if is_root_dir { 2 } else { block[109] };
        is_root_dir
    });
    run(&["cp", "-r", &lab.at("/"), lab.host("strict").to_str().unwrap()]).expect(4);
    let (ran, out) = salvage(&lab);
    ran.expect(1);
    assert_eq!(fs::read(out.join("d/a")).unwrap(), b"a\n");
    assert_eq!(fs::read(out.join("b")).unwrap(), b"b\n");
}

#[test]
fn a_root_directory_of_another_type_is_read_and_nothing_goes_beside_the_target() {
    let Some(lab) = Lab::kernel_made(&[], "rw,nodiscard", |top| {
        sh(top, "mkdir d; echo a > d/a; echo b > b");
    }) else {
        return;
    };
    run(&["fixture", "apply", lab.image.to_str().unwrap(), "subvolume-root-dir-type"]).expect(0);
    let place = lab.host("place");
    fs::create_dir(&place).unwrap();
    let new = place.join("new");
    run(&["cp", "-r", "--salvage", &lab.at("/"), new.to_str().unwrap()]).expect(1);
    let beside: Vec<_> = fs::read_dir(&place).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(beside, ["new"]);
    let (ran, out) = salvage(&lab);
    ran.expect(1);
    for top in [new, out] {
        assert_eq!(fs::read(top.join("d/a")).unwrap(), b"a\n");
        assert_eq!(fs::read(top.join("b")).unwrap(), b"b\n");
    }
}

#[test]
fn a_block_of_another_generation_is_read_and_named() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        (0..400)
            .for_each(|i| fs::write(top.join(format!("f{i:03}-{}", "n".repeat(80))), i.to_string()).unwrap());
    }) else {
        return;
    };
    run(&["fixture", "apply", lab.image.to_str().unwrap(), "block-generation"]).expect(0);
    assert_ne!(run(&["ls", &lab.at("/")]).code, 0);
    let (ran, out) = salvage(&lab);
    let ran = ran.expect(1);
    assert!(
        ran.stderr.contains("transid mismatch") && ran.stderr.contains("read as it is"),
        "{}",
        ran.stderr
    );
    assert_eq!(files(&out).len(), 400);
}

#[test]
fn an_older_root_serves_where_the_newest_is_gone() {
    let Some(lab) = Lab::kernel_made(&[], "rw,nodiscard", |top| {
        sh(top, "echo old > old; sync; sleep 1; echo new > new");
    }) else {
        return;
    };
    let superblock = fs::read(&lab.image).unwrap()[65536..65536 + 4096].to_vec();
    let root = &superblock[80..88];
    let mut killed = 0;
    for (at, block) in blocks(&lab.image, 1) {
        if block[48..56] == *root {
            overwrite(&lab.image, at, &[0; NODESIZE]);
            killed += 1;
        }
    }
    assert_eq!(killed, 2, "both copies of the root tree's root");
    run(&["ls", &lab.at("/")]).expect(4);
    let (ran, out) = salvage(&lab);
    let ran = ran.expect(1);
    assert!(ran.stderr.contains("k.img: corrupt"), "{}", ran.stderr);
    let older = "what was changed later is missing";
    assert!(ran.stderr.contains("read as of generation") && ran.stderr.contains(older), "{}", ran.stderr);
    assert_eq!(fs::read(out.join("old")).unwrap(), b"old\n");
}

/// An image below 64 MiB has one superblock.
#[test]
fn a_damaged_superblock_serves_where_there_is_no_other() {
    for fault in ["super-checksum", "super-num-devices"] {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab { image: dir.path().join("i.img"), dir };
        let tree = lab.host("tree");
        fs::create_dir_all(tree.join("d")).unwrap();
        fs::write(tree.join("d/f"), Rng::new(3).bytes(300_000)).unwrap();
        let name = lab.image.to_str().unwrap();
        run(&["mkfs", "-q", name, "-r", tree.to_str().unwrap(), "--size", "min"]).expect(0);
        assert!(fs::metadata(&lab.image).unwrap().len() < 64 << 20);
        run(&["fixture", "apply", name, fault]).expect(0);
        let (ran, out) = salvage(&lab);
        let ran = ran.expect(1);
        assert!(ran.stderr.contains("superblock"), "{fault}: {}", ran.stderr);
        assert!(fs::read(out.join("d/f")).unwrap() == fs::read(tree.join("d/f")).unwrap(), "{fault}");
    }
}

#[test]
fn salvage_is_for_copies_out() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |_| {}) else { return };
    let file = lab.host("f");
    fs::write(&file, "x").unwrap();
    let ran = run(&["cp", "--salvage", file.to_str().unwrap(), &lab.at("/")]).expect(2);
    assert!(ran.stderr.contains("--salvage"), "{}", ran.stderr);
}

/// Files of all kinds, for faults to have a place in.
const ZOO: &str = r#"
text() { yes "line $1 of a file that compresses" | head -c "$2"; }
mkdir -p d/e; text 1 300000 > d/text; text 2 1000 > d/inline; head -c 50000 /dev/urandom > d/e/noise
for i in 0 3 6; do head -c 8192 /dev/urandom | dd of=holes bs=4096 seek=$i conv=notrunc status=none; sync; done
truncate -s 60000 holes; fallocate -l 100000 prealloc; text 3 5000 | dd of=prealloc conv=notrunc status=none
ln d/text linked; ln -s d/inline symlink; setfattr -n user.a -v b d/inline; mkfifo fifo
cp --reflink=always d/text shared; btrfs subvolume create sub > /dev/null; text 4 200000 > sub/file; sync
"#;

/// What a fault takes away is not left out in silence: an image that comes out without complaint is all there.
#[test]
fn nothing_is_lost_in_silence_whatever_the_fault() {
    // What the reader cannot know: a shorter size, extents that nothing says are in use, and that the last name of a
    // file was not removed (links 0, as those of a file that was removed while it was open).
    const UNKNOWABLE: [&str; 3] = ["inode-size-small", "extent-refs-zero", "inode-orphan-missing"];
    let list = run(&["fixture", "list", "--json"]).expect(0);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let faults = list["faults"].as_array().unwrap();
    for features in ["no-holes", "^no-holes"] {
        let Some(lab) = Lab::kernel_made(&["-O", features], "rw,compress=zlib", |top| {
            sh(top, ZOO);
        }) else {
            return;
        };
        let mut applied = 0;
        sh(lab.dir.path(), "cp k.img sound.img");
        let (ran, out) = salvage(&lab);
        ran.expect(0);
        let whole = files(&out);
        fs::remove_dir_all(&out).unwrap();
        for fault in faults {
            let (name, rule) = (fault["name"].as_str().unwrap(), fault["rule"].as_str().unwrap());
            // Holes that have items are a matter of files alone.
            if features == "^no-holes" && !rule.starts_with("FE-") {
                continue;
            }
            if run(&["fixture", "apply", lab.image.to_str().unwrap(), name]).code != 0 {
                continue;
            }
            applied += 1;
            let (ran, out) = salvage(&lab);
            if ran.code == 0 && !UNKNOWABLE.contains(&name) {
                assert!(files(&out) == whole, "{name} ({features}): {}", ran.stderr);
            }
            fs::remove_dir_all(&out).unwrap();
            sh(lab.dir.path(), "rm k.img; cp sound.img k.img");
        }
        assert!(applied > if features == "no-holes" { 100 } else { 15 }, "{applied} faults found a place");
    }
}

/// No reader gives other bytes than a kernel does, whatever is wrong with an extent.
#[test]
fn broken_extents_are_read_as_kernels_read_them_or_not_at_all() {
    let Some(lab) = Lab::kernel_made(&[], "rw,compress=zlib", |top| {
        sh(top, ZOO);
    }) else {
        return;
    };
    sh(lab.dir.path(), "cp k.img sound.img");
    let list = run(&["fixture", "list", "--json"]).expect(0);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let of_extents = |fault: &&serde_json::Value| fault["rule"].as_str().unwrap().starts_with("FE-");
    let (mut read, mut applied) = (0, 0);
    for name in list["faults"].as_array().unwrap().iter().filter(of_extents) {
        let name = name["name"].as_str().unwrap();
        if run(&["fixture", "apply", lab.image.to_str().unwrap(), name]).code != 0 {
            continue;
        }
        applied += 1;
        // Some are refused by kernels as a whole.
        if let Ok(Some(mount)) = Oracle::new().mount(&lab.image, "ro") {
            for (path, theirs) in kernel_reads(mount.path()) {
                let ours = run(&["cat", &lab.at(&path)]);
                if ours.code == 0 {
                    assert_eq!(Some(&ours.stdout), theirs.as_ref(), "{name}: {path}");
                    read += 1;
                }
            }
        }
        sh(lab.dir.path(), "rm k.img; cp sound.img k.img");
    }
    assert!(applied > 15 && read > applied, "{applied} faults, {read} files read");
}

/// Regular files below a directory, with their bytes where the kernel gives all of them.
fn kernel_reads(top: &Path) -> Vec<(String, Option<Vec<u8>>)> {
    let paths = sh(top, "find . -type f | sort");
    paths.lines().map(|path| (path[1..].to_owned(), fs::read(top.join(path)).ok())).collect()
}
