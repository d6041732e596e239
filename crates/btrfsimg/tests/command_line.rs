//! What people see of the command: what it says it did, what it says is wrong, and what it shows beside what the
//! kernel and the tools of a mounted file system show.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::{Lab, Ran, run, sh};

/// An image with a few files in a directory, and the directory to work in.
fn lab() -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("s.img");
    let lab = Lab { dir, image };
    sh(lab.dir.path(), "mkdir -p src/d; printf x > src/f; printf y > src/d/g; ln -s f src/l");
    in_lab(&lab, &["mkfs", "-q", "s.img", "-r", "src"]).expect(0);
    lab
}

/// Runs the command beside the image, so that it has a short name.
fn in_lab(lab: &Lab, args: &[&str]) -> Ran {
    let output =
        common::command(args).current_dir(lab.dir.path()).stdin(std::process::Stdio::null()).output();
    let output = output.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Ran { code: output.status.code().unwrap(), stdout: output.stdout, stderr }
}

#[test]
fn verbose_names_each_thing_that_changed() {
    let lab = lab();
    for (args, said) in [
        (
            "touch -d @0 s.img:/new",
            "created 's.img:/new'\naccess time of 's.img:/new' set to 1970-01-01 00:00:00.000000000 +0000\nmodification time of 's.img:/new' set to 1970-01-01 00:00:00.000000000 +0000\n",
        ),
        (
            "touch -m -d @1 s.img:/f",
            "modification time of 's.img:/f' set to 1970-01-01 00:00:01.000000000 +0000\n",
        ),
        ("touch -c s.img:/none", ""),
        ("mknod s.img:/p p", "created fifo 's.img:/p'\n"),
        ("mknod s.img:/n c 1 3", "created character special file 's.img:/n'\n"),
        ("xattr set s.img:/f user.a b", "set user.a=b of 's.img:/f'\n"),
        ("xattr rm s.img:/f user.a", "removed user.a of 's.img:/f'\n"),
        ("prop set s.img:/d compression zstd:3", "set compression=zstd:3 of 's.img:/d'\n"),
        ("mkdir -p s.img:/a/b", "created directory 's.img:/a'\ncreated directory 's.img:/a/b'\n"),
        ("rmdir -p s.img:/a/b", "removed directory 's.img:/a/b'\nremoved directory 's.img:/a'\n"),
        ("chmod 600 s.img:/f", "mode of 's.img:/f' changed from 0644 (-rw-r--r--) to 0600 (-rw-------)\n"),
        ("chown 1:2 s.img:/f", "ownership of 's.img:/f' changed from 0:0 to 1:2\n"),
        ("chattr +Ai s.img:/f", "flags of 's.img:/f' changed from - to iA\n"),
        ("chattr -i s.img:/f", "flags of 's.img:/f' changed from iA to A\n"),
        ("ln s.img:/f s.img:/h", "'s.img:/h' => 's.img:/f'\n"),
        ("mv s.img:/h s.img:/i", "renamed 's.img:/h' -> 's.img:/i'\n"),
        ("truncate -s 3 s.img:/f", "s.img:/f: 1 byte, now 3\n"),
        ("subvol create s.img:/s", "Create subvolume 's.img:/s'\n"),
        ("subvol set-default s.img:/s", "Set subvolume 256 as the default of 's.img'\n"),
        ("rm -r s.img:/d", "removed 's.img:/d/g'\nremoved directory 's.img:/d'\n"),
    ] {
        let words: Vec<&str> = args.split(' ').chain(["-v"]).collect();
        // Options come before the words of chattr.
        let words = if words[0] == "chattr" { [&["-v"], &words[..words.len() - 1]].concat() } else { words };
        let ran = in_lab(&lab, &words);
        assert_eq!((ran.code, ran.text(), ran.stderr.as_str()), (0, said, ""), "{args}");
    }
    let ran = in_lab(&lab, &["mkfs", "-v", "t.img", "-r", "src"]).expect(0);
    assert!(ran.text().contains("\n'src' copied\n'src/d' copied\n"), "{}", ran.text());
    assert!(ran.text().contains("\n  2 files, 2 directories, 1 other\n"), "{}", ran.text());
}

#[test]
fn an_image_by_its_option_is_enough() {
    let lab = lab();
    for args in [
        "subvol list",
        "subvol show",
        "subvol get-default",
        "subvol sync",
        "trim",
        "ls",
        "stat",
        "du",
        "df",
        "lsattr",
        "inspect super",
        "inspect compression",
        "inspect tree",
    ] {
        let words: Vec<&str> = args.split(' ').chain(["-i", "s.img"]).collect();
        let ran = in_lab(&lab, &words);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args}");
    }
    let ran = in_lab(&lab, &["trim"]).expect(2);
    assert!(ran.stderr.contains("write IMAGE:/path, or -i IMAGE"), "{}", ran.stderr);
}

/// As getopt has it: scripts add what was given already.
#[test]
fn an_option_may_be_given_twice_and_the_last_value_counts() {
    let lab = lab();
    for args in [
        "cp -r -R -p -p -f -f src/d s.img:/twice",
        "cp -rRf --preserve=mode --preserve=xattr src/d s.img:/twice",
        "mkdir -p -p s.img:/p/q",
        "rm -r -r -f -f s.img:/p",
        "truncate -s 1 -s 7 s.img:/f",
        "verify --data --data s.img",
    ] {
        in_lab(&lab, &args.split(' ').collect::<Vec<_>>()).expect(0);
    }
    let ran = in_lab(&lab, &["stat", "--json", "s.img:/f"]).expect(0);
    assert!(ran.text().contains("\"size\": 7"), "{}", ran.text());
    std::fs::write(lab.dir.path().join("lines"), "truncate -s 1 -s 9 /f\nrm -r -r /twice\n").unwrap();
    in_lab(&lab, &["batch", "s.img", "lines"]).expect(0);
    let ran = in_lab(&lab, &["stat", "--json", "s.img:/f"]).expect(0);
    assert!(ran.text().contains("\"size\": 9"), "{}", ran.text());
}

/// Nobody reads what went wrong: the rest is done, and the exit code tells.
#[test]
fn standard_error_may_be_gone() {
    let lab = lab();
    for stderr in ["2>/dev/full", "2>&-", "2> >(true)"] {
        let ls = format!("\"$0\" ls s.img:/none s.img:/f {stderr}; echo $?");
        let cp =
            format!("mkdir out; \"$0\" cp s.img:/none s.img:/f out {stderr}; echo $?; ls out; rm -r out");
        let script = format!("{ls}; {cp}");
        let shell = std::process::Command::new("bash")
            .args(["-c", &script, env!("CARGO_BIN_EXE_btrfsimg")])
            .current_dir(lab.dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8(shell.stdout).unwrap();
        assert_eq!(said, "/f\n1\n1\nf\n", "{stderr}");
    }
}

#[test]
fn messages_name_the_object_and_the_way_out() {
    let lab = lab();
    in_lab(&lab, &["mknod", "s.img:/null", "c", "1", "3"]).expect(0);
    in_lab(&lab, &["ln", "-s", "nowhere", "s.img:/dangling"]).expect(0);
    for (args, code, said) in [
        ("mkdir s.img:/no/such/dir", 1, "btrfsimg: s.img:/no: no such file or directory\n"),
        ("mkdir s.img:/d/no/dir", 1, "btrfsimg: s.img:/d/no: no such file or directory\n"),
        ("mkdir s.img:/f/x", 1, "btrfsimg: s.img:/f: not a directory\n"),
        ("mkdir s.img:/l/x/y", 1, "btrfsimg: s.img:/l: not a directory\n"),
        ("cp src/f s.img:/no/f", 1, "btrfsimg: s.img:/no: no such file or directory\n"),
        ("mv s.img:/f s.img:/no/f", 1, "btrfsimg: s.img:/no: no such file or directory\n"),
        ("ln s.img:/f s.img:/no/f", 1, "btrfsimg: s.img:/no: no such file or directory\n"),
        ("cp -r s.img:/f s.img:/no/", 1, "btrfsimg: s.img:/no/: not a directory\n"),
        ("cp -r src/f s.img:/no/", 1, "btrfsimg: s.img:/no/: not a directory\n"),
        ("cp -r s.img:/d s.img:/yes/", 0, ""),
        ("cp s.img:/null s.img:/copy", 1, "btrfsimg: s.img:/null: is a device: what cp(1) would read of it"),
        ("cp -r s.img:/null s.img:/copy", 0, ""),
        ("rm s.img:/none", 1, "btrfsimg: s.img:/none: no such file or directory\n"),
        ("rmdir s.img:/d", 1, "btrfsimg: s.img:/d: directory not empty\n"),
        ("rmdir s.img:/f", 1, "btrfsimg: s.img:/f: not a directory\n"),
        ("cp s.img ./dir", 2, "write IMAGE:/path for the one that is: s.img:/ for what is in s.img\n"),
        ("cp -t s.img:/f src/f", 1, "btrfsimg: s.img:/f: not a directory\n"),
        ("cp -T src/f s.img:/d", 1, "btrfsimg: s.img:/d: cannot overwrite it with a file: is a directory\n"),
        ("cp -T src/f src/l s.img:/d", 2, "with -T there is one source"),
        ("cp -t src/f s.img:/f", 1, "btrfsimg: src/f: not a directory\n"),
        ("cp -T s.img:/f src/d", 1, "btrfsimg: s.img:/f: src/d: is a directory"),
        ("cp -rL src s.img:/c", 2, "cannot be used with"),
        ("chown 5: s.img:/f", 2, "the user's login group, which is not known here; write 5:GID"),
        ("chmod u+q s.img:/f", 2, "'u+q' is no mode"),
        ("chmod --reference other.img:/f s.img:/f", 2, "no such image"),
        ("chattr s.img:/f", 2, "no change given"),
        ("chattr +x s.img:/f", 2, "there is no flag 'x'"),
        ("chattr +i s.img:/f -R", 2, "options and changes come before the paths"),
        ("chattr +i s.img:/l", 0, ""),
        ("chattr +cm s.img:/d", 1, "btrfsimg: s.img:/d: invalid argument: "),
        (
            "chattr +C s.img:/d/g",
            0,
            "btrfsimg: warning: s.img:/d/g: C stays as it is: the file is not empty\n",
        ),
        (
            "batch src/f s.img",
            2,
            "s.img: no lines of commands, but binary; the image comes first: batch IMAGE FILE\n",
        ),
        ("df -h s.img", 0, ""),
        ("inspect tree -b 12345 s.img", 2, "12345 is no tree block's address: no block group holds it"),
        ("touch -h s.img:/none", 1, "btrfsimg: s.img:/none: no such file or directory\n"),
        ("touch -ch s.img:/none", 0, ""),
        ("truncate -c -s 1 s.img:/no/x s.img:/none s.img:/dangling", 0, ""),
        ("truncate -s 1 s.img:/dangling", 1, "s.img:/dangling: not writing through a dangling symlink"),
        ("touch -t 13010000 s.img:/f", 2, "'13010000' is no time"),
        (
            "ln -s s.img:/d s.img:/m",
            0,
            "btrfsimg: warning: s.img:/m: leads to 's.img:/d' as it is written; for the place in the image write /d\n",
        ),
        ("mkfs -q -f u.img --compress zstd", 0, ""),
        ("mkfs u.img -f --compress zstd", 0, "prop set u.img compression zstd"),
    ] {
        let ran = in_lab(&lab, &args.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, code, "{args}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(said) && (said.is_empty() == ran.stderr.is_empty()),
            "{args}: {}",
            ran.stderr
        );
        let name = ran.stderr.matches("s.img:").count();
        assert!(name <= 3 && !ran.stderr.contains("s.img:/: s.img"), "{args}: {}", ran.stderr);
    }
}

#[test]
fn cp_out_takes_names_directories_and_symlinks_as_told() {
    let lab = lab();
    for args in [
        "cp -T s.img:/f named",
        "cp -rT s.img:/d merged",
        "cp -rT s.img:/d merged",
        "cp -P s.img:/l link",
        "cp -L s.img:/l file",
        "cp -t src/d s.img:/f s.img:/l",
    ] {
        in_lab(&lab, &args.split(' ').collect::<Vec<_>>()).expect(0);
    }
    let look = "cat named file merged/g src/d/f src/d/l; readlink link; test ! -L file; test ! -e merged/d";
    assert_eq!(sh(lab.dir.path(), look), "xxyxxf\n");
}

/// Files of every size and kind, in several subvolumes, some with several names.
const FILL: &str =
    "mkdir -p a/b links empty; for i in 0 1 2048 4096 5000 131073; do head -c $i /dev/urandom > a/$i; done
    truncate -s 9M a/b/hole; printf x >> a/b/hole; ln -s 0 a/link; mkfifo a/fifo; mknod a/null c 1 3
    mkdir z; btrfs property set z compression zstd; yes | head -c 700000 > z/text; sync -f .
    head -c 5000 /dev/zero > links/one; ln links/one links/two; ln links/one links/three
    btrfs -q subvolume create sub; cp --reflink=always a/131073 sub/; fallocate -l 1M sub/prealloc
    touch -d '2001-02-03 04:05:06.789' a/1; chmod 4755 a/5000; chown 12:34 a/b
    touch i n; chattr +i i; chattr +C n; chattr +dAS a/0; chattr +c z/text; chattr +m a/1; chattr +aD empty
    head -c 3000000 /dev/urandom > n; sync -f .";

/// `du`, `df`, `ls` and `lsattr` beside those of the mounted file system.
#[test]
fn what_is_shown_is_what_a_mounted_file_system_shows() {
    for mkfs in [&[][..], &["-M", "-n", "4096"], &["-d", "dup", "-m", "single"]] {
        let Some(lab) = Lab::kernel_made(mkfs, "rw", |top| drop(sh(top, FILL))) else { return };
        let ours = |args: &[&str]| run(&[args, &["-i", lab.image.to_str().unwrap()]].concat()).expect(0);
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<String>>();
        lab.mounted(|top| {
            let theirs = |script: &str| sh(top, &format!("TZ=UTC; export TZ; {script}"));
            for (args, script) in [
                (&["du"][..], "du"),
                (&["du", "-d", "1"], "du -d 1"),
                (&["du", "-h"], "du -h"),
                (&["du", "-sc"], "du -sc"),
                (&["du", "-a", "--subvol", "/sub"], "cd sub; du -a"),
                (&["du", "-ah", "a", "z"], "du -ah a z"),
                (&["ls", "-A", "a"], "ls -A a"),
            ] {
                // Where a walk starts it is called '.', here '/'.
                let kernel = theirs(script).replace("\t./", "\t/").replace("\t.\n", "\t/\n");
                assert_eq!(lines(ours(args).text()), lines(&kernel), "{script} {mkfs:?}");
            }
            let fields = |text: &str| -> Vec<Vec<String>> {
                let lines = text.lines().filter(|line| !line.starts_with("total "));
                lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
            };
            for dir in ["a", "a/b", "sub", "z"] {
                for (args, script) in [
                    ("-l", "ls -lAn --time-style='+%F %H:%M'"),
                    ("-n", "ls -An --time-style='+%F %H:%M'"),
                    ("-r", "ls -Ar"),
                    ("-t", "ls -At"),
                    ("-tr", "ls -Atr"),
                    ("--full-time", "ls -An --full-time"),
                    ("-lh", "ls -lhAn --time-style='+%F %H:%M'"),
                    ("-ld", "ls -lnd --time-style='+%F %H:%M'"),
                ] {
                    let theirs = theirs(&format!("LC_ALL=C {script} {dir}"));
                    assert_eq!(fields(ours(&["ls", args, dir]).text()), fields(&theirs), "{script} {dir}");
                }
            }
            let letters = |text: &str| -> BTreeSet<(String, String)> {
                let row = |line: &str| {
                    let (flags, path) = line.split_once(' ').unwrap();
                    let path = path.trim_start().trim_start_matches("./").trim_start_matches('/');
                    (flags.replace('-', ""), path.to_owned())
                };
                text.lines().map(row).collect()
            };
            for (args, script) in [
                (&["lsattr"][..], "lsattr"),
                (&["lsattr", "a"], "lsattr a"),
                (&["lsattr", "-d", "empty"], "lsattr -d empty"),
            ] {
                let kernel = theirs(&format!("{script} 2>/dev/null || true"));
                assert_eq!(letters(ours(args).text()), letters(&kernel), "{script}");
            }
            // The reserve is no block group.
            let kernel = theirs("btrfs filesystem df . | grep -v GlobalReserve");
            let df = ours(&["df"]);
            assert_eq!(lines(df.text()).difference(&lines(&kernel)).count(), 5, "{}\n{kernel}", df.text());
            let usage = theirs("btrfs filesystem usage -b . | tr -s '\\t ' ' '");
            // A mounted one with mixed block groups takes its reserve off what is free.
            let compared = if mkfs.contains(&"-M") { 4 } else { 5 };
            for line in ours(&["df", "-b"]).text().lines().take(compared) {
                let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(usage.lines().any(|l| l.trim().starts_with(&line)), "{line} is not in {usage}");
            }
        });
    }
}

/// Images in turn, and one of them by two names: each is changed as a whole or not at all.
#[test]
fn what_fails_in_one_image_leaves_all_of_it_as_it_was() {
    let lab = lab();
    in_lab(&lab, &["mkdir", "s.img:/e"]).expect(0);
    in_lab(&lab, &["subvol", "create", "s.img:/v", "s.img:/w"]).expect(0);
    let sound = std::fs::read(&lab.image).unwrap();
    sh(lab.dir.path(), "ln -s s.img other.img");
    for args in [
        "rm s.img:/f t.img:/f s.img:/missing",
        "rm s.img:/f src/../s.img:/missing",
        "rm s.img:/f t.img:/f other.img:/missing",
        "mkdir s.img:/new t.img:/new s.img:/new",
        "mkdir s.img:/new src/../s.img:/new",
        "chmod 600 s.img:/f t.img:/f s.img:/missing",
        "chmod 600 s.img:/f other.img:/missing",
        "subvol delete s.img:/v t.img:/v s.img:/missing",
        "subvol delete s.img:/v src/../s.img:/missing",
        "touch s.img:/new t.img:/new src/../s.img:/missing/new",
        "truncate -s 5 s.img:/f t.img:/f s.img:/missing/f",
    ] {
        std::fs::write(lab.host("t.img"), &sound).unwrap();
        in_lab(&lab, &args.split(' ').collect::<Vec<_>>()).expect(1);
        assert!(std::fs::read(&lab.image).unwrap() == sound, "{args}");
        // The other image is another one's business.
        assert_eq!(std::fs::read(lab.host("t.img")).unwrap() != sound, args.contains("t.img:"), "{args}");
    }
    // One commit for each image, whatever it is called.
    let generation = || {
        let bytes = std::fs::read(&lab.image).unwrap();
        u64::from_le_bytes(bytes[0x1_0048..0x1_0050].try_into().unwrap())
    };
    let before = generation();
    in_lab(&lab, &["mkdir", "s.img:/a", "src/../s.img:/a/b", "other.img:/a/b/c"]).expect(0);
    assert_eq!(generation(), before + 1);
    // What is in one image by two names is in one image.
    in_lab(&lab, &["mv", "s.img:/f", "other.img:/g"]).expect(0);
    in_lab(&lab, &["ln", "src/../s.img:/g", "s.img:/h"]).expect(0);
    in_lab(&lab, &["subvol", "snapshot", "src/../s.img:/v", "s.img:/x"]).expect(0);
    in_lab(&lab, &["chmod", "--reference=src/../s.img:/g", "s.img:/h"]).expect(0);
}

/// Words in another order, or of another kind, than they are meant: the error says the right command.
#[test]
fn errors_show_the_command_that_was_meant() {
    let dir = tempfile::tempdir().unwrap();
    let mut image = dir.path().join("t.img");
    run(&["mkfs", "-q", "-b", "200M", image.to_str().unwrap()]).expect(0);
    sh(dir.path(), "echo hi > app.conf; mkdir src; mv t.img z.img; cp app.conf a.conf");
    image = dir.path().join("z.img");
    let before = fs::read(&image).unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["cp", "app.conf", "z.img"], "z.img:/ for what is in z.img"),
        (&["cp", "z.img", "app.conf"], "z.img:/ for what is in z.img"),
        (&["touch", "-r", "app.conf", "z.img:/x"], "app.conf: a reference is a file of the image"),
        (&["chmod", "--reference", "app.conf", "z.img:/"], "app.conf: a reference is a file of the image"),
        (&["write", "app.conf", "z.img:/x"], "btrfsimg write z.img:/x app.conf"),
        (&["prop", "set", "compression", "zstd", "z.img:/"], "btrfsimg prop set z.img:/ compression zstd"),
        (&["prop", "set", "z.img:/", "zstd", "compression"], "btrfsimg prop set z.img:/ compression zstd"),
        (&["mkfs", "n.img", "src"], "btrfsimg mkfs n.img -r src"),
        (&["mkfs", "src", "n.img"], "btrfsimg mkfs n.img -r src"),
    ];
    for (words, said) in cases {
        let output = common::command(words).current_dir(dir.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains(said), "{words:?}: {stderr}");
    }
    assert!(fs::read(&image).unwrap() == before);
}

/// What was copied, and to where, as `cp -v` has it.
#[test]
fn cp_says_where_things_go() {
    let dir = tempfile::tempdir().unwrap();
    sh(dir.path(), "mkdir -p s/t/u out; echo 1 > s/t/a; ln s/t/a s/t/b; echo 2 > s/f");
    let cp = |words: &[&str]| {
        let output =
            common::command(&[&["cp", "-v"], words].concat()).current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines.join(" ")
    };
    run(&["mkfs", "-q", "-b", "200M", dir.path().join("i").to_str().unwrap()]).expect(0);
    assert_eq!(
        cp(&["-a", "s/t", "i:/"]),
        "'s/t' -> 'i:/t' 's/t/a' -> 'i:/t/a' 's/t/b' -> 'i:/t/b' 's/t/u' -> 'i:/t/u'"
    );
    assert_eq!(cp(&["s/f", "i:/t/a"]), "'s/f' -> 'i:/t/a'");
    assert_eq!(cp(&["s/f", "i:/t"]), "'s/f' -> 'i:/t/f'");
    assert_eq!(
        cp(&["-r", "i:/t", "i:/n"]),
        "'i:/t' -> 'i:/n' 'i:/t/a' -> 'i:/n/a' 'i:/t/b' -> 'i:/n/b' 'i:/t/f' -> 'i:/n/f' 'i:/t/u' -> 'i:/n/u'"
    );
    assert_eq!(
        cp(&["-a", "i:/t", "out"]),
        "'i:/t' -> 'out/t' 'i:/t/a' -> 'out/t/a' 'i:/t/b' -> 'out/t/b' 'i:/t/f' -> 'out/t/f' 'i:/t/u' -> 'out/t/u'"
    );
    assert_eq!(cp(&["i:/t/a", "out/x"]), "'i:/t/a' -> 'out/x'");
}
