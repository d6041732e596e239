//! Properties and inode flags of what is made, copied and moved: as the kernel gives them to new inodes, and as cp(1) and
//! mv(1) leave them on a mount.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs;
use std::path::Path;

use btrfsimg_testkit::Oracle;
use btrfsimg_testkit::treediff::{DiffOptions, diff};
use common::{Lab, run, sh};
use writing::assert_checks_clean;

/// Files and directories with each property and flag, and subvolumes that pass on something or nothing.
const FILL: &str = "
text() { yes \"line $1\" | head -c 30000; }
for s in src move1 move2 move3; do
  mkdir -p $s/lzo $s/nocow $s/plain; btrfs property set $s/lzo compression lzo; chattr +C $s/nocow
  for d in lzo nocow plain; do text $d > $s/$d/f; ln -s f $s/$d/l; mkdir $s/$d/e; ln $s/$d/f $s/$d/e/link; done
  mkdir $s/late; text l > $s/late/f; mkdir $s/late/e; btrfs property set $s/late compression zlib
  text p > $s/prop; btrfs property set $s/prop compression zstd
  text n > $s/none; btrfs property set $s/none compression none
  touch $s/nc; chattr +C $s/nc; text nc > $s/nc
  for f in c m d A S D; do if [ $f = D ]; then mkdir $s/flag$f; else text $f > $s/flag$f; fi; chattr +$f $s/flag$f; done
done
text i > fixed; text a > append; chattr +i fixed; chattr +a append
for v in none zstd nocow; do btrfs -q subvolume create $v; done
btrfs property set zstd compression zstd; chattr +C nocow; sync -f .
";

/// Lines for the command, and what a shell does on the mount.
const EDITS: &[(&str, &str)] = &[
    ("cp -a /src /fixed /append /none/", "cp -a src fixed append none/"),
    ("cp -a /src /fixed /append /zstd/", "cp -a src fixed append zstd/"),
    ("cp -a /src /fixed /append /nocow/", "cp -a src fixed append nocow/"),
    ("cp -r /src /zstd/again", "cp -r src zstd/again"),
    ("cp -a --reflink=never /src /none/stored", "cp -a --reflink=never src none/stored"),
    ("cp -r --preserve=links,xattr /src /none/kept", "cp -r --preserve=links,xattr src none/kept"),
    ("cp -r --preserve=all /src/plain /nocow/kept", "cp -r --preserve=all src/plain nocow/kept"),
    ("mv /move1 /none/moved", "mv move1 none/moved"),
    ("mv /move2 /zstd/moved", "mv move2 zstd/moved"),
    (
        "mv /move3/prop /move3/nc /move3/flagc /move3/nocow /nocow/",
        "mv move3/prop move3/nc move3/flagc move3/nocow nocow/",
    ),
    ("mv /move3/plain/f /zstd/", "mv move3/plain/f zstd/"),
];

/// Flags and properties of all that is there.
const LOOK: &str = "find . ! -type l -print0 | sort -z | xargs -0 lsattr -d
    find . -print0 | sort -z | xargs -0 getfattr -h -d -m btrfs 2>/dev/null";

fn edit(lab: &Lab, line: &str) {
    let words = line.split(' ').map(|w| if w.starts_with('/') { lab.at(w) } else { w.to_owned() });
    let ran = run(&words.collect::<Vec<_>>());
    assert!(ran.code == 0 && ran.stderr.is_empty(), "{line}: exit {} {}", ran.code, ran.stderr);
}

#[track_caller]
fn assert_same(theirs: &Path, ours: &Path) {
    let options = DiffOptions { times: false, ..DiffOptions::default() };
    diff(theirs, ours, &options).unwrap().assert_equal();
    let (theirs, ours) = (sh(theirs, LOOK), sh(ours, LOOK));
    let wrong: Vec<_> = theirs.lines().zip(ours.lines()).filter(|(a, b)| a != b).take(12).collect();
    assert!(theirs == ours, "by the kernel and by us: {wrong:#?}");
}

/// A copy of the image that can be mounted beside it.
fn twin(lab: &Lab) -> std::path::PathBuf {
    let twin = lab.host("twin.img");
    fs::copy(&lab.image, &twin).unwrap();
    sh(lab.dir.path(), "btrfstune -fm twin.img");
    twin
}

#[test]
fn copies_and_moves_have_the_flags_that_cp_and_mv_give_them() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, FILL))) else { return };
    let (twin, oracle) = (twin(&lab), Oracle::new());
    let mount = oracle.mount(&twin, "rw").unwrap().unwrap();
    for (ours, theirs) in EDITS {
        edit(&lab, ours);
        sh(mount.path(), theirs);
    }
    drop(mount);
    assert_checks_clean(&lab.image, "copies and moves");
    let theirs = oracle.mount(&twin, "ro").unwrap().unwrap();
    lab.mounted(|ours| assert_same(theirs.path(), ours));
    drop(theirs);
    oracle.judge(&lab.image, None).unwrap().assert_ok();
}

#[test]
fn copies_from_another_image_and_from_the_host_have_no_flags_either() {
    let Some(from) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, FILL))) else { return };
    let made = Lab::kernel_made(&[], "rw", |top| {
        sh(top, "mkdir plain zstd; btrfs property set zstd compression zstd");
    });
    let Some(to) = made else { return };
    let (twin, oracle) = (twin(&to), Oracle::new());
    from.mounted(|host| {
        let mount = oracle.mount(&twin, "rw").unwrap().unwrap();
        for dir in ["plain", "zstd"] {
            sh(host, &format!("cp -a src fixed append {}/{dir}", mount.path().display()));
            let entries = [
                "late", "lzo", "nocow", "plain", "prop", "none", "nc", "flagc", "flagd", "flagA", "flagS",
                "flagD",
            ];
            let entries: Vec<String> =
                entries.iter().map(|e| format!("{}/src/{e}", host.display())).collect();
            sh(
                host,
                &format!(
                    "mkdir {0}/{dir}/host; cp -a {1} {0}/{dir}/host",
                    mount.path().display(),
                    entries.join(" ")
                ),
            );
            let (src, to_dir) = (from.at("/src"), to.at(&format!("/{dir}")));
            run(&["cp", "-a", &src, &from.at("/fixed"), &from.at("/append"), &to_dir]).expect(0);
            let target = to.at(&format!("/{dir}/host"));
            run(&["mkdir", &target]).expect(0);
            run(&[&["cp".to_owned(), "-a".to_owned()], &entries[..], &[target]].concat()).expect(0);
        }
    });
    assert_checks_clean(&to.image, "copies");
    let theirs = oracle.mount(&twin, "ro").unwrap().unwrap();
    to.mounted(|ours| assert_same(theirs.path(), ours));
}

/// Wherever leaves end: what a kernel makes in a directory has the property that the directory has.
#[test]
fn a_kernel_finds_the_property_of_every_directory() {
    let oracle = Oracle::new();
    if !oracle.has_kernel() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab { image: dir.path().join("p.img"), dir };
    let image = lab.image.to_str().unwrap();
    run(&["mkfs", "-q", "-n", "4k", "-b", "200M", image]).expect(0);
    let name = |n: usize| format!("/p/{n}{}", "x".repeat(n * 7 % 50));
    let lines = lab.host("lines");
    let batch = |text: String| {
        fs::write(&lines, text).unwrap();
        run(&["batch", image, lines.to_str().unwrap()]).expect(0);
    };
    batch((0..400).fold("mkdir /p\nprop set /p compression zstd\n".to_owned(), |t, n| {
        t + &format!("mkdir {}\n", name(n))
    }));
    // Names that grow and shrink, and items between those that are there.
    batch(
        (0..400)
            .step_by(3)
            .map(|n| format!("mv {} /p/{}\n", name(n), "y".repeat(200 - n / 3) + &n.to_string()))
            .collect(),
    );
    batch(
        (1..400)
            .step_by(3)
            .map(|n| format!("mkdir {0}/d\nxattr set {0} user.a {1}\n", name(n), "v".repeat(n)))
            .collect(),
    );
    assert_checks_clean(&lab.image, "batch");
    let mount = oracle.mount(&lab.image, "rw").unwrap().unwrap();
    let script = "for d in p/*; do mkdir $d/new; done; ls -d p/*/new | wc -l
        getfattr --absolute-names -n btrfs.compression p/*/new 2>/dev/null | grep -c zstd";
    assert_eq!(sh(mount.path(), script), "400\n400\n");
}
