//! Subvolumes: what btrfsimg does to an image beside what the kernel does to a copy of it, and what either makes of what
//! the other left half done.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use btrfsimg_fs::block_store::BlockStore;
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::tree::root_item;
use btrfsimg_fs::txn::{TreeDrop, Volume, VolumeOptions};
use btrfsimg_fs::write::subvol;
use btrfsimg_ondisk::{Key, Timespec};
use btrfsimg_testkit::treediff::{DiffOptions, diff};
use btrfsimg_testkit::{Oracle, btrfs_progs, sparse};
use common::{Lab, run, sh};

/// Subvolumes with files of every storage, nested, with snapshots among them, some of files that changed since.
const AGED: &str = r#"
for v in a b; do
  btrfs -q subvolume create $v; mkdir -p $v/d/e
  for n in $(seq 700); do echo "file $n of $v" > "$v/d/inline-file-with-a-long-name-$n"; done
  for n in $(seq 60); do head -c $((n * 700)) /dev/urandom > $v/d/e/data-$n; done
  head -c 3000000 /dev/urandom > $v/large; cp --reflink=always $v/large $v/clone
done
btrfs -q subvolume create a/d/inner; echo x > a/d/inner/file; sync
btrfs -q subvolume snapshot a old; btrfs -q subvolume snapshot -r a fixed
rm a/d/inline*1* ; dd if=/dev/urandom of=a/large bs=4096 seek=100 count=20 conv=notrunc status=none; sync
btrfs -q subvolume snapshot old older; echo more >> older/d/e/data-3; rm old/clone; sync
"#;

fn aged() -> Option<Lab> {
    Lab::kernel_made(&["-n", "4096"], "rw", |top| {
        sh(top, AGED);
        // A default ACL: owner rwx, user 1000 rwx, group r-x, mask rwx, others nothing.
        let none = u32::MAX;
        let entries = [(1u16, 7u16, none), (2, 7, 1000), (4, 5, none), (0x10, 7, none), (0x20, 0, none)];
        let mut acl = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            acl.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(top.join("b/d"), "system.posix_acl_default", &acl, flags).unwrap();
    })
}

fn copy(lab: &Lab, name: &str) -> PathBuf {
    let to = lab.host(name);
    sparse::copy(&lab.image, &to).unwrap();
    to
}

fn at(image: &Path, path: &str) -> String {
    format!("{}:{path}", image.display())
}

/// Directories change when the command runs.
fn without_times() -> DiffOptions {
    DiffOptions { times: false, ..DiffOptions::default() }
}

/// Mounts an image, calls `look`, and unmounts; the kernel must have nothing to say.
fn mounted<T>(image: &Path, options: &str, look: impl FnOnce(&Path) -> T) -> T {
    let mount = Oracle::new().mount(image, options).unwrap().unwrap();
    let result = look(mount.path());
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    result
}

/// What `btrfs subvolume list` says, but for generations.
fn listed(top: &Path, letters: &str) -> Vec<String> {
    let text = sh(top, &format!("TZ=UTC btrfs subvolume list {letters} ."));
    let field = |line: &str| {
        line.split(" gen ")
            .map(|part| part.split_once(' ').map_or(part, |p| p.1).to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    text.lines().map(field).collect()
}

#[track_caller]
fn assert_sound(image: &Path) {
    assert_eq!(btrfs_progs::check(image).unwrap(), Vec::<String>::new());
    Oracle::new().judge(image, None).unwrap().assert_ok();
    run(&["verify", "--data", image.to_str().unwrap()]).expect(0);
}

/// Each line once by the kernel and once by btrfsimg.
const STEPS: [(&str, &[&[&str]]); 7] = [
    ("btrfs -q subvolume snapshot a a/d/copy", &[&["snapshot", "/a", "/a/d/copy"]]),
    ("btrfs -q subvolume snapshot -r a/d/copy b", &[&["snapshot", "-r", "/a/d/copy", "/b"]]),
    ("btrfs -q subvolume delete fixed old", &[&["delete", "/fixed", "/old"]]),
    (
        "btrfs -q subvolume create b/d/new; btrfs -q subvolume create b/d/new/er",
        &[&["create", "/b/d/new", "/b/d/new/er"]],
    ),
    (
        "btrfs -q subvolume snapshot b b2; btrfs -q subvolume delete a/d/inner",
        &[&["snapshot", "/b", "/b2"], &["delete", "/a/d/inner"]],
    ),
    ("btrfs -q subvolume snapshot b/copy back", &[&["snapshot", "/b/copy", "/"]]),
    ("btrfs -q subvolume delete older", &[&["delete", "/older"]]),
];

#[test]
fn subvolumes_change_as_by_the_kernel() {
    let Some(lab) = aged() else { return };
    let ours = copy(&lab, "ours.img");
    mounted(&lab.image, "rw", |top| {
        for (script, _) in STEPS {
            sh(top, &script.replace("b/copy back", "b/copy copy"));
        }
        sh(top, "rm b2/d/e/data-1 b2/d/inline*7; mkdir b2/d/x; rm copy/large");
    });
    for (_, commands) in STEPS {
        for words in commands {
            let words: Vec<String> = words
                .iter()
                .map(|w| if w.starts_with('/') { at(&ours, w) } else { (*w).to_owned() })
                .collect();
            run(&[&["subvol".to_owned()], &words[..]].concat()).expect(0);
        }
    }
    // Files of shared leaves, on both sides of a snapshot.
    let gone: Vec<String> = mounted(&ours, "ro", |top| {
        sh(top, "ls -d b2/d/inline*7").lines().map(|name| at(&ours, &format!("/{name}"))).collect()
    });
    run(&[&["rm".to_owned(), at(&ours, "/b2/d/e/data-1"), at(&ours, "/copy/large")], &gone[..]].concat())
        .expect(0);
    run(&["mkdir", &at(&ours, "/b2/d/x")]).expect(0);
    assert_sound(&ours);
    mounted(&lab.image, "ro", |theirs| {
        mounted(&ours, "ro", |ours| {
            diff(theirs, ours, &without_times()).unwrap().assert_equal();
            for letters in ["-p", "-r"] {
                assert_eq!(listed(ours, letters), listed(theirs, letters));
            }
            // Which are snapshots, by id and path.
            let ends = |lines: Vec<String>| -> Vec<String> {
                let ends = |line: &String| {
                    [line.split(' ').next().unwrap(), line.rsplit(' ').next().unwrap()].join(" ")
                };
                lines.iter().map(ends).collect()
            };
            assert_eq!(ends(listed(ours, "-s")), ends(listed(theirs, "-s")));
        });
    });
    // All of it goes, and leaves nothing behind.
    run(&[
        "subvol",
        "delete",
        "-R",
        &at(&ours, "/a"),
        &at(&ours, "/b"),
        &at(&ours, "/b2"),
        &at(&ours, "/copy"),
    ])
    .expect(0);
    assert_sound(&ours);
    let left = run(&["subvol", "list", "--json", ours.to_str().unwrap()]).expect(0);
    assert!(left.text().contains("\"subvolumes\": []"), "{}", left.text());
    let used = btrfs_progs::dump_super(&ours, &[]).unwrap();
    let used: u64 = used.lines().find_map(|l| l.strip_prefix("bytes_used")).unwrap().trim().parse().unwrap();
    assert!(used < 1 << 20, "{used} bytes are used by nothing");
}

#[test]
fn listed_and_shown_as_by_btrfs_subvolume() {
    let Some(lab) = aged() else { return };
    let image = lab.image.to_str().unwrap();
    lab.mounted(|top| {
        // The transactions of the second one's last change and creation: there are some before, and some after.
        let second = sh(top, "btrfs subvolume list -c . | sed -n 2p");
        let words: Vec<&str> = second.split_whitespace().collect();
        let (gen_, created) = (words[3], words[5]);
        let filters = ["", "+", "-"].map(|sign| [format!("-G {sign}{gen_}"), format!("-C {sign}{created}")]);
        let letters = "/-t/-r/-s/-o/-a/-p/-c/-u/-R/-g/-st/-pcuR/-tu/-at/--sort=path/--sort=-rootid/--sort=gen,-path/--sort=-ogen,+rootid";
        for letters in letters.split('/').chain(filters.as_flattened().iter().map(String::as_str)) {
            let theirs = sh(top, &format!("TZ=UTC btrfs subvolume list {letters} ."));
            let ours: Vec<&str> =
                ["subvol", "list"].into_iter().chain(letters.split_whitespace()).chain([image]).collect();
            assert_eq!(run(&ours).expect(0).text(), theirs, "{letters}");
        }
        let theirs = sh(top, "TZ=UTC btrfs subvolume list -q .");
        assert_eq!(run(&["subvol", "list", "--parent-uuid", image]).expect(0).text(), theirs);
        // btrfs-progs 6.2 print the time of creation there.
        let but_sent = |text: &str| -> Vec<String> {
            text.lines().filter(|l| !l.contains("Send time")).map(str::to_owned).collect()
        };
        for path in ["/", "/a", "/fixed", "/a/d/inner"] {
            let theirs = sh(top, &format!("TZ=UTC btrfs subvolume show .{path}"));
            let ours = run(&["subvol", "show", &lab.at(path)]).expect(0);
            assert_eq!(but_sent(ours.text()), but_sent(&theirs), "{path}");
            let field = |title: &str| {
                let line = theirs.lines().find(|line| line.trim_start().starts_with(title)).unwrap();
                line.split_whitespace().last().unwrap().to_owned()
            };
            for words in [["-r".to_owned(), field("Subvolume ID:")], ["-u".to_owned(), field("UUID:")]] {
                let ours = run(&["subvol", "show", &words[0], &words[1], image]).expect(0);
                assert_eq!(but_sent(ours.text()), but_sent(&theirs), "{words:?}");
            }
        }
    });
    let none =
        format!("{image}: no subvolume 999; 'btrfsimg subvol list {image}' shows those that there are");
    for words in [["show", "-r", "999"].as_slice(), &["set-default", "999"]] {
        let refused = run(&[&["subvol"], words, &[image]].concat()).expect(1);
        assert!(refused.stderr.contains(&none), "{}", refused.stderr);
    }
    assert_eq!(run(&["subvol", "get-default", image]).expect(0).text(), "ID 5 (FS_TREE)\n");
    run(&["subvol", "set-default", &lab.at("/a/d/inner")]).expect(0);
    assert_sound(&lab.image);
    let ours = run(&["subvol", "get-default", image]).expect(0);
    mounted(&lab.image, "ro", |top| {
        assert_eq!(fs::read_to_string(top.join("file")).unwrap(), "x\n");
        assert_eq!(ours.text(), sh(top, "btrfs subvolume get-default ."));
    });
    run(&["subvol", "set-default", "5", image]).expect(0);
    mounted(&lab.image, "ro", |top| assert!(top.join("a/d/inner").exists()));
}

#[test]
fn what_the_kernel_refuses_is_refused() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, "btrfs -q subvolume create a; btrfs -q subvolume create a/in; btrfs -q subvolume create kept; chattr +i kept
                 btrfs -q subvolume create d; btrfs -q subvolume create d/in; btrfs property set d ro true; mkdir plain; echo x > file
                 btrfs -q subvolume create outer; mkdir outer/dir; btrfs -q subvolume create outer/dir/ro
                 btrfs -q subvolume create outer/dir/ro/in; btrfs property set outer/dir/ro ro true");
    }) else {
        return;
    };
    let before = fs::read(&lab.image).unwrap();
    let cases: [(&[&str], &str); 11] = [
        (&["delete", "/a"], "directory not empty"),
        // The kernel deletes what is inside first, and refuses that.
        (&["delete", "-R", "/d"], ":/d/in: read-only file system"),
        (&["delete", "-R", "/outer"], ":/outer/dir/ro/in: read-only file system"),
        (&["delete", "/kept"], "immutable"),
        (&["delete", "/d/in"], "read-only file system"),
        (&["delete", "/plain"], "not a subvolume"),
        (&["delete", "/file"], "not a subvolume"),
        (&["create", "/d/new"], "read-only file system"),
        (&["create", "/plain"], "already exists"),
        (&["snapshot", "/a", "/d"], "read-only file system"),
        (&["snapshot", "/plain", "/new"], "not a subvolume"),
    ];
    for (words, reason) in cases {
        let words: Vec<String> =
            words.iter().map(|w| if w.starts_with('/') { lab.at(w) } else { (*w).to_owned() }).collect();
        let ran = run(&[&["subvol".to_owned()], &words[..]].concat()).expect(1);
        assert!(ran.stderr.contains(reason), "{words:?}: {}", ran.stderr);
    }
    let ran = run(&["rm", "-r", "--subvol", &lab.at("/outer")]).expect(1);
    assert!(ran.stderr.contains(":/outer/dir/ro/in: read-only file system"), "{}", ran.stderr);
    assert!(fs::read(&lab.image).unwrap() == before, "nothing was written");
    // That is the kernel's judgement: read-only inside is no reason, read-only around is.
    mounted(&copy(&lab, "kernel.img"), "rw", |top| {
        assert_eq!(sh(top, "btrfs subvolume delete outer/dir/ro/in 2>&1 | grep -c Read-only; true"), "1\n");
    });
    run(&["prop", "set", &lab.at("/outer/dir/ro"), "ro", "false"]).expect(0);
    run(&["prop", "set", &lab.at("/outer/dir/ro/in"), "ro", "true"]).expect(0);
    let told = run(&["subvol", "delete", "-vcR", &lab.at("/outer")]).expect(0);
    let lines: Vec<_> = told.text().lines().map(|l| l.rsplit(':').next().unwrap().to_owned()).collect();
    assert_eq!(lines, ["/outer/dir/ro/in'", "/outer/dir/ro'", "/outer'"]);
    run(&["subvol", "set-default", &lab.at("/d")]).expect(0);
    run(&["subvol", "delete", &lab.at("/d/in")]).expect(1);
    run(&["prop", "set", &lab.at("/d"), "ro", "false"]).expect(0);
    run(&["subvol", "delete", &lab.at("/d/in")]).expect(0);
    let refused = run(&["subvol", "delete", &lab.at("/d")]).expect(1);
    assert!(
        refused.stderr.contains("operation not permitted: it is the default subvolume"),
        "{}",
        refused.stderr
    );
    assert_sound(&lab.image);
}

/// A drop that ended after some steps: what the kernel, and what we make of it.
#[test]
fn an_interrupted_drop_is_taken_up_again() {
    let Some(lab) = aged() else { return };
    for (name, limit, most) in [("a", 15, 3), ("old", 15, 3), ("b", 15, 3)] {
        let half = copy(&lab, "half.img");
        run(&["subvol", "delete", &at(&half, "/a/d/inner")]).expect(0);
        drop_some(&half, name, limit, most);
        assert_eq!(btrfs_progs::check(&half).unwrap(), Vec::<String>::new(), "{name}");
        let listed = run(&["subvol", "list", "-d", half.to_str().unwrap()]).expect(0);
        assert!(listed.text().contains("top level 0 path DELETED"), "{}", listed.text());
        let ours = lab.host("ours.img");
        sparse::copy(&half, &ours).unwrap();
        run(&["subvol", "sync", ours.to_str().unwrap()]).expect(0);
        assert_eq!(run(&["subvol", "list", "-d", ours.to_str().unwrap()]).expect(0).text(), "");
        assert_sound(&ours);
        mounted(&half, "rw", |top| {
            sh(top, "btrfs subvolume sync . >/dev/null; sync");
            assert_eq!(sh(top, "btrfs subvolume list -d ."), "");
        });
        assert_sound(&half);
        mounted(&half, "ro", |theirs| {
            mounted(&ours, "ro", |ours| diff(theirs, ours, &without_times()).unwrap().assert_equal());
        });
    }
}

/// A drop that the kernel was in when it had to end: we go on where it was.
#[test]
fn a_drop_that_the_kernel_began_is_taken_up() {
    let fill = "btrfs -q subvolume create s; echo kept > kept
        perl -e 'for (1..16000) { open F, q(>), qq(s/f$_); print F q(x) x 1000; close F }'";
    let made = Lab::kernel_made(&["-n", "4096"], "rw,max_inline=0", |top| drop(sh(top, fill)));
    let Some(lab) = made else { return };
    let deleted = |image: &Path| run(&["subvol", "list", "-d", image.to_str().unwrap()]).expect(0);
    let half = lab.host("half.img");
    // A kernel that is to unmount leaves off. The drop takes many times as long as it takes umount(8) to come.
    let caught = (0..20).any(|delay| {
        copy(&lab, "half.img");
        let delete = format!("btrfs -q subvolume delete -c m/s && sleep 0.0{delay:02}; umount m");
        sh(lab.dir.path(), &format!("mkdir -p m; mount -o loop half.img m; {delete}"));
        is_in_a_drop(&half)
    });
    assert!(caught, "each time the kernel had not begun, or was done");
    assert_eq!(btrfs_progs::check(&half).unwrap(), Vec::<String>::new());
    run(&["mkdir", &at(&half, "/new")]).expect(0);
    assert!(deleted(&half).text().contains("DELETED"));
    assert_eq!(btrfs_progs::check(&half).unwrap(), Vec::<String>::new());
    run(&["verify", "--data", half.to_str().unwrap()]).expect(0);
    run(&["subvol", "sync", half.to_str().unwrap()]).expect(0);
    assert_eq!(deleted(&half).text(), "");
    assert_sound(&half);
    assert_eq!(run(&["cat", &at(&half, "/kept")]).expect(0).text(), "kept\n");
}

/// Whether the first subvolume is dropped in part.
fn is_in_a_drop(image: &Path) -> bool {
    let device = Arc::new(FileDevice::open(image, Access::Read, 0).unwrap());
    let item = root_item(&BlockStore::open(device).unwrap(), 256).unwrap();
    item.is_some_and(|(_, item)| item.drop_progress.get() != Key::MIN)
}

/// Deletes the subvolume `name` and drops a part of it, at most `steps` times `limit` extents.
fn drop_some(image: &Path, name: &str, limit: usize, steps: usize) {
    let now = Timespec::new(1_700_000_000, 0);
    let device = Arc::new(FileDevice::open(image, Access::Write, 0).unwrap());
    let mut volume = Volume::open(device, VolumeOptions::default()).unwrap();
    let mut tx = volume.begin(now).unwrap();
    let tree = subvol::begin_delete(&mut tx, Place::TOP, name.as_bytes()).unwrap();
    tx.commit().unwrap();
    let mut drop = TreeDrop::new(tree);
    for _ in 0..steps {
        let mut tx = volume.begin(now).unwrap();
        assert!(!subvol::finish(&mut tx, &mut drop, limit).unwrap(), "{name} is larger than that");
        tx.commit().unwrap();
    }
}

/// The property ro: of a subvolume in a read-only one, of one that holds others, and of one that was received.
#[test]
fn readonly_is_what_it_is_for_the_kernel() {
    let script = "
        btrfs -q subvolume create outer; btrfs -q subvolume create outer/inner; mkdir in
        btrfs -q subvolume create source; echo x > source/f; btrfs -q subvolume snapshot -r source sent
        btrfs -q send sent 2>/dev/null | btrfs -q receive in";
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, script))) else { return };
    let twin = copy(&lab, "twin.img");
    // (path, value, -f), and whether a directory can be made there afterwards.
    let steps: [(&str, &str, bool, bool); 8] = [
        ("outer", "true", false, false),
        ("outer/inner", "false", false, true),
        ("outer/inner", "true", false, false),
        ("outer/inner", "false", false, true),
        ("in/sent", "false", false, false),
        ("in/sent", "true", false, false),
        ("in/sent", "false", true, true),
        ("sent", "false", false, true),
    ];
    let theirs = mounted(&twin, "rw", |top| {
        steps.map(|(path, value, force, _)| {
            let force = if force { "-f" } else { "" };
            let set = format!("btrfs property set {force} -ts {path} ro {value}");
            let script = format!(
                "{set} >/dev/null 2>&1; echo $?; mkdir {path}/d$RANDOM 2>/dev/null && echo made || echo not"
            );
            sh(top, &format!("set +e; {script}; true"))
        })
    });
    for (n, ((path, value, force, makes), theirs)) in steps.into_iter().zip(theirs).enumerate() {
        let object = lab.at(&format!("/{path}"));
        let mut words = vec!["prop", "set", "-t", "s", &object, "ro", value];
        words.extend(force.then_some("-f"));
        let set = run(&words);
        assert!(set.code == 0 || set.stderr.contains("received"), "{path} {value}: {}", set.stderr);
        let made = run(&["mkdir", &lab.at(&format!("/{path}/d{n}"))]);
        assert_eq!(made.code == 0, makes, "{path} {value}: {}", made.stderr);
        let made = if made.code == 0 { "made" } else { "not" };
        assert_eq!(theirs, format!("{}\n{made}\n", set.code), "{path} {value}");
    }
    // What is known of the sender is gone, the moment of that stands there instead.
    let look = "for v in outer outer/inner in/sent sent; do btrfs subvolume show $v; done | grep -E '^\\s*(Received|Flags|Send|Receive)'
        btrfs subvolume list -R . | awk '{print $2, $NF, $(NF-2)}'; btrfs subvolume show in/sent | grep -c 'Receive time:.*-$' || true";
    let hide = |text: String| -> Vec<String> {
        let hidden = |line: &str| match line.split_once("Receive t") {
            Some((_, value)) => format!("Receive t{}", value.ends_with(['-', '0'])),
            None => line.to_owned(),
        };
        text.lines().map(hidden).collect()
    };
    let theirs = hide(mounted(&twin, "ro", |top| sh(top, look)));
    assert_eq!(hide(mounted(&lab.image, "ro", |top| sh(top, look))), theirs);
    assert_sound(&lab.image);
}

/// New subvolumes have quota groups, and the next kernel counts all of them anew by itself: `btrfs check` counts, too.
#[test]
fn the_kernel_counts_quota_groups_anew() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, "btrfs quota enable .
            for v in old gone; do btrfs -q subvolume create $v; head -c 3000000 /dev/urandom > $v/file; done
            btrfs qgroup create 1/1 .; btrfs qgroup assign --no-rescan 0/$(btrfs inspect-internal rootid old) 1/1 . 2>/dev/null
            btrfs qgroup limit 100M old; btrfs quota rescan -w . >/dev/null");
    }) else {
        return;
    };
    let file = lab.host("file");
    fs::write(&file, vec![b'x'; 2_000_000]).unwrap();
    let file = file.to_str().unwrap();
    for words in [
        vec!["subvol".to_owned(), "create".to_owned(), lab.at("/new")],
        vec!["cp".to_owned(), file.to_owned(), lab.at("/new/file")],
        vec!["subvol".to_owned(), "snapshot".to_owned(), lab.at("/old"), lab.at("/new/snap")],
        vec!["cp".to_owned(), file.to_owned(), lab.at("/old/more")],
        vec!["subvol".to_owned(), "delete".to_owned(), lab.at("/gone")],
    ] {
        run(&words).expect(0);
        assert_eq!(btrfs_progs::check(&lab.image).unwrap(), Vec::<String>::new(), "{words:?}");
    }
    let status = || {
        let dump = btrfs_progs::dump_tree(&lab.image, &["-t", "8"]).unwrap();
        let flags = dump.lines().find(|l| l.contains("flags") && l.contains("ON")).unwrap().trim().to_owned();
        (flags, dump.matches("QGROUP_INFO").count())
    };
    mounted(&lab.image, "rw", |top| {
        // Nobody asks for it: it is under way, or done.
        sh(
            top,
            "for i in $(seq 200); do btrfs quota rescan -s . | grep -q 'no rescan' && break; sleep 0.1; done; sync -f .",
        );
        let shown = sh(top, "btrfs qgroup show --raw -r .");
        let of = |path: &str| -> Vec<u64> {
            let id = sh(top, &format!("btrfs inspect-internal rootid {path}"));
            let line = shown.lines().find(|l| l.starts_with(&format!("0/{} ", id.trim()))).unwrap();
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let sector = |n: u64| n.next_multiple_of(4096);
        let node = 16384;
        // Referenced, and its own.
        assert_eq!(of("new")[..2], [sector(2_000_000) + node, sector(2_000_000) + node], "{shown}");
        assert_eq!(of("new/snap")[..2], [sector(3_000_000) + node, node], "{shown}");
        assert_eq!(
            of("old")[..2],
            [sector(3_000_000) + sector(2_000_000) + node, sector(2_000_000) + node],
            "{shown}"
        );
    });
    let (flags, groups) = status();
    assert!(!flags.contains("INCONSISTENT") && !flags.contains("RESCAN"), "{flags}");
    assert!(groups >= 5, "{groups} quota groups");
    assert_sound(&lab.image);
}
