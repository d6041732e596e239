//! What the kernel wrote, read back: the kernel itself is the judge.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::fs;
use std::path::Path;

use btrfsimg_testkit::oddtree::OddTree;
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::treediff::{DiffOptions, diff};
use common::{Lab, run, sh};

/// Writes the odd tree through the kernel, copies it out, and compares with what the kernel shows.
fn odd_tree(mkfs_args: &[&str], options: &str, tree: &OddTree) {
    let Some(lab) = Lab::kernel_made(mkfs_args, options, |top| {
        tree.build(&top.join("odd")).unwrap();
    }) else {
        return;
    };
    let out = lab.host("out");
    run(&["cp", "-q", "-a", &lab.at("/odd"), out.to_str().unwrap()]).expect(0);
    lab.mounted(|top| diff(&top.join("odd"), &out, &DiffOptions::default()).unwrap().assert_equal());
}

#[test]
fn everything_a_tree_can_hold_uncompressed() {
    odd_tree(&[], "rw", &OddTree::default());
}

#[test]
fn everything_a_tree_can_hold_zlib() {
    let tree = OddTree { symlink_len: 3949, ..small() };
    odd_tree(&["-M", "--csum", "xxhash"], "rw,compress-force=zlib:9", &tree);
}

#[test]
fn everything_a_tree_can_hold_lzo() {
    odd_tree(&["-O", "^no-holes", "--csum", "sha256"], "rw,compress-force=lzo", &small());
}

#[test]
fn everything_a_tree_can_hold_zstd_at_a_small_node() {
    let tree = OddTree { symlink_len: 3949, ..small() };
    odd_tree(&["-n", "4096", "--csum", "blake2"], "rw,compress-force=zstd:15", &tree);
}

fn small() -> OddTree {
    OddTree { many: 300, links: 30, residues: 10, huge: false, ..OddTree::default() }
}

/// Files whose extents are partial, shared, inline with others behind, preallocated, or holes.
const LAYOUTS: &str = r#"
pattern() { yes "line $1 of a file that compresses" | head -c "$2"; }
pattern 1 300000 > parts; sync
dd if=/dev/urandom of=parts bs=4096 seek=5 count=1 conv=notrunc status=none; sync
dd if=/dev/urandom of=parts bs=1000 seek=90 count=3 conv=notrunc status=none; sync
cp --reflink=always parts shared; sync
truncate -s 150001 shared; sync
fallocate -p -o 65536 -l 8192 parts; sync
head -c 4096 /dev/zero | tr '\0' a > inline_then_more; sync
pattern 2 100000 >> inline_then_more; sync
printf 'short' > inline_then_prealloc; sync
fallocate -n -o 4096 -l 20000 inline_then_prealloc; truncate -s 12345 inline_then_prealloc; sync
fallocate -l 1000000 prealloc; printf x | dd of=prealloc bs=1 seek=500000 conv=notrunc status=none; sync
truncate -s 5000000 sparse; pattern 3 70000 | dd of=sparse bs=4096 seek=777 conv=notrunc status=none; sync
truncate -s 9000001 sparse
pattern 4 2047 > i2047; pattern 4 2048 > i2048; pattern 4 2049 > i2049; pattern 4 4095 > i4095
: > empty
touch nocow; chattr +C nocow; pattern 5 100000 > nocow
head -c 20000000 /dev/urandom > large; sync
dd if=/dev/zero of=large bs=4096 seek=1000 count=50 conv=notrunc status=none
"#;

#[test]
fn every_layout_of_a_file() {
    for options in ["rw", "rw,compress-force=zlib", "rw,compress-force=lzo", "rw,compress-force=zstd:3"] {
        let Some(lab) = Lab::kernel_made(&[], options, |top| {
            sh(top, LAYOUTS);
        }) else {
            return;
        };
        let out = lab.host("out");
        run(&["cp", "-q", "-a", &lab.at("/."), out.to_str().unwrap()]).expect(0);
        lab.mounted(|top| {
            diff(top, &out, &DiffOptions::default()).unwrap().assert_equal();
            for entry in fs::read_dir(top).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let cat = run(&["cat", &lab.at(&format!("/{name}"))]).expect(0);
                assert!(cat.stdout == fs::read(top.join(&name)).unwrap(), "{options} {name}");
                ranges(&lab.image, &name, &cat.stdout);
            }
        });
        assert_holes_are_kept(&out);
    }
}

/// Reads ranges of a file through the library, as a file that is read from the middle.
fn ranges(image: &Path, name: &str, whole: &[u8]) {
    use btrfsimg_fs::device::{Access, FileDevice};
    use btrfsimg_fs::read::{FileReader, Filesystem};
    use std::io::Read as _;

    let device = FileDevice::open(image, Access::Read, 0).unwrap();
    let fs = Filesystem::open(std::sync::Arc::new(device)).unwrap();
    let info = fs.info(fs.resolve(name.as_bytes(), false).unwrap()).unwrap();
    let mut rng = Rng::new(3);
    for _ in 0..20 {
        let from = rng.index(whole.len() + 1);
        let to = from + rng.index(200_000);
        let mut got = Vec::new();
        let mut reader = FileReader::between(&fs, &info, from as u64, to as u64).unwrap();
        reader.read_to_end(&mut got).unwrap();
        assert!(got == whole[from..to.min(whole.len())], "{name} {from}..{to}");
    }
}

fn assert_holes_are_kept(out: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let meta = fs::metadata(out.join("sparse")).unwrap();
    assert_eq!(meta.len(), 9_000_001);
    assert!(meta.blocks() * 512 < 200_000, "{} blocks", meta.blocks());
}

#[test]
fn subvolumes_and_snapshots() {
    let Some(lab) = Lab::kernel_made(&[], "rw,compress=zstd", |top| {
        let script = "
            btrfs -q subvolume create a; echo one > a/f
            btrfs -q subvolume create a/b; echo two > a/b/g; ln -s ../../plain a/b/up
            btrfs -q subvolume snapshot -r a snap; echo changed > a/f
            mkdir plain; echo three > plain/h; ln -s /a/b/g plain/abs; ln -s nowhere plain/dangling
            ln -s loop plain/loop";
        sh(top, script);
    }) else {
        return;
    };
    let out = lab.host("out");
    run(&["cp", "-q", "-a", &lab.at("/."), out.to_str().unwrap()]).expect(0);
    lab.mounted(|top| {
        // The kernel gives the directory in the place of a subvolume the time of its lookup.
        let options = DiffOptions { times: false, ..DiffOptions::default() };
        diff(top, &out, &options).unwrap().assert_equal();
    });
    let cat = |path: &str| String::from_utf8(run(&["cat", &lab.at(path)]).expect(0).stdout).unwrap();
    assert_eq!(cat("/a/b/g"), "two\n");
    assert_eq!(cat("/snap/f"), "one\n");
    assert_eq!(cat("/plain/abs"), "two\n");
    assert_eq!(cat("/a/b/up/h"), "three\n");
    assert_eq!(cat("/plain/../../../a/./f"), "changed\n");
    assert_eq!(run(&["ls", &lab.at("/snap/b")]).expect(0).text(), "");
    assert_eq!(
        run(&["ls", "--subvol", "a", "-i", lab.image.to_str().unwrap(), "/"]).expect(0).text(),
        "b\nf\n"
    );
    for (path, says) in [
        ("/nope", "/nope: no such file or directory"),
        ("/a/f/x", "/a/f/x: not a directory"),
        ("/a/f/", "/a/f/: not a directory"),
        ("/plain/dangling", "no such file or directory"),
        ("/plain/loop", "too many levels of symbolic links"),
        ("/plain", "is a directory"),
    ] {
        let ran = run(&["cat", &lab.at(path)]).expect(1);
        assert!(ran.stderr.contains(says), "{path}: {}", ran.stderr);
    }
}

#[test]
fn names_and_xattrs_with_one_hash() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        let script = "
            for n in ue2r43xy c54cvxdh qlvw434k flotycs9; do echo $n > $n; done
            setfattr -n user.ue2r43xy -v 1 ue2r43xy; setfattr -n user.c54cvxdh -v 2 ue2r43xy
            printf x > $'new\\nline'; printf y > $'\\xff\\xfe'; printf z > ./-dash; printf c > a:b";
        sh(top, script);
    }) else {
        return;
    };
    for name in ["ue2r43xy", "c54cvxdh", "qlvw434k", "flotycs9"] {
        assert_eq!(run(&["cat", &lab.at(&format!("/{name}"))]).expect(0).text(), format!("{name}\n"));
    }
    let stat = run(&["stat", &lab.at("/ue2r43xy")]).expect(0);
    assert!(stat.text().contains("user.ue2r43xy=1\n") && stat.text().contains("user.c54cvxdh=2\n"));
    let json = run(&["ls", "--json", &lab.at("/")]).expect(0);
    assert!(json.text().contains(r#""name_b64": "//4=""#), "{}", json.text());
    let long = run(&["ls", "-l", &lab.at("/")]).expect(0);
    assert!(long.text().contains(r"new\nline") && long.text().contains(r"\xff\xfe"));
    assert_eq!(run(&["cat", &lab.at("/a:b")]).expect(0).text(), "c");
}

#[test]
fn stat_and_prop_as_the_kernel_has_them() {
    let Some(lab) = Lab::kernel_made(&["-L", "the label"], "rw,compress=zstd", |top| {
        let script = "
            mkdir d; btrfs property set d compression zstd; echo x > d/f; yes | head -c 100000 > d/big
            mknod dev b 5 300; mkfifo p; ln -s d/f l; chmod 4751 d/f; chown 12:34 d/f
            btrfs -q subvolume create s; btrfs property set s ro true; touch -d 1901-02-03 d/old";
        sh(top, script);
    }) else {
        return;
    };
    lab.mounted(|top| {
        for path in ["d", "d/f", "d/big", "dev", "p", "l", "s", "d/old"] {
            // Size, blocks, links, mode, owner, type, inode, times: as the two print them.
            let kernel = sh(
                top,
                &format!("stat -c '%s %b %i %h %04a/%A %u %g' {path}; TZ=UTC stat -c '%y|%z' {path}"),
            );
            let ours = run(&["stat", &lab.at(&format!("/{path}"))]).expect(0);
            let words: Vec<&str> = ours.text().split_whitespace().collect();
            let after = |label: &str| words[words.iter().position(|w| *w == label).unwrap() + 1];
            let line =
                |label: &str| ours.text().lines().find_map(|l| l.strip_prefix(label)).unwrap().to_owned();
            let ours = format!(
                "{} {} {} {} {} {} {}\n{}|{}\n",
                after("Size:"),
                after("Blocks:"),
                after("Inode:"),
                after("Links:"),
                after("Access:").trim_matches(['(', ')']),
                after("Uid:"),
                after("Gid:"),
                line("Modify: "),
                line("Change: "),
            );
            assert_eq!(ours, kernel, "{path}");
        }
        for path in ["d", "d/f", "s", "."] {
            let kernel = sh(top, &format!("btrfs property get {path} 2>/dev/null || true"));
            let ours = run(&["prop", "get", &lab.at(&format!("/{path}"))]).expect(0);
            assert_eq!(ours.text(), kernel, "{path}");
            let kernel = sh(top, &format!("btrfs property list {path} 2>/dev/null || true"));
            let ours = run(&["prop", "list", &lab.at(&format!("/{path}"))]).expect(0);
            assert_eq!(ours.text(), kernel, "{path}");
        }
    });
    assert_eq!(
        run(&["prop", "get", lab.image.to_str().unwrap(), "label"]).expect(0).text(),
        "label=the label\n"
    );
    assert_eq!(run(&["prop", "get", "-t", "s", &lab.at("/s")]).expect(0).text(), "ro=true\n");
    assert_eq!(run(&["prop", "get", &lab.at("/d/f"), "compression"]).expect(0).text(), "compression=zstd\n");
    assert!(
        run(&["prop", "get", &lab.at("/d"), "ro"])
            .expect(1)
            .stderr
            .contains("not compatible with property: ro")
    );
    assert!(run(&["prop", "get", &lab.at("/d"), "foo"]).expect(1).stderr.contains("unknown property: foo"));
}
