//! Copies into, out of, between and within images: what comes along, as cp(1) has it.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/as_cp.rs"]
mod as_cp;
mod common;

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use as_cp::{as_cp_does, as_cp_does_under};
use btrfsimg_testkit::oracle::Oracle;
use common::{Lab, run, sh};
use serde_json::Value;

/// An ACL is a part of the mode: with it it comes, and what is there goes; a mode alone would give the group its mask.
#[test]
fn acls_come_and_go_with_the_mode() {
    let there = "setfacl -m d:u:7:rwx .; mkdir t t/dd; echo old > t/f; echo old > t/plain; echo old > f
        setfacl -m u:8:rwx f t/f t/plain; setfacl -m u:8:rwx -m d:u:9:rwx t/dd; setfattr -n user.old -v 1 t/plain";
    let mut copies = Vec::new();
    for way in ["-r", "-rp", "-a", "-r --preserve", "-a --no-preserve=xattr", "-a --no-preserve=ownership"]
        .map(str::to_owned)
        .into_iter()
        .chain(
            ["mode", "ownership", "timestamps", "xattr", "mode,xattr"].map(|p| format!("-r --preserve={p}")),
        )
    {
        copies.push(format!("{way} s/t s/f s/new d"));
        copies.push(format!("{way} s/t/. d/fresh"));
    }
    let cases: Vec<_> = copies.iter().map(|copy| (there, copy.as_str())).collect();
    let comes = "echo f > f; chown 3:4 f; chmod 640 f; setfacl -m u:5:rwx,g::r f; cp -p f new; mkdir t t/dd
        cp -p f t/f; echo p > t/plain; chmod 664 t/plain; setfattr -n user.x -v 1 f t/f t/dd; echo g > t/dd/g
        setfacl -m u:5:rwx -m d:u:6:rwx t/dd; mkfifo t/pipe; setfacl -m u:5:rw t/pipe; ln -s f t/l; mkdir -m 750 t/e";
    as_cp_does(comes, &cases);
}

/// Without the mode what is new has that of any new file, and what was there keeps its own.
#[test]
fn modes_that_are_not_kept() {
    let there = "mkdir -m 705 t; echo old > t/old; chmod 604 t/old";
    let comes =
        "mkdir -m 1750 t; mkdir -m 2711 t/d; echo 1 > t/f; chmod 6751 t/f; echo 2 > t/old; chmod 400 t/old
        mkfifo -m 640 t/p; ln -s f t/l; setfacl -m u:7:rwx t/f; python3 -c 'import socket
socket.socket(socket.AF_UNIX).bind(\"t/s\")'";
    let copies = ["-r", "-a", "-p"].map(|way| {
        ["mode", "all", "mode,ownership"].map(|not| match way {
            "-p" => format!("-p --no-preserve={not} s/t/f s/t/old d/t"),
            way => format!("{way} --no-preserve={not} s/t d"),
        })
    });
    let copies = copies.concat();
    // Images have no umask: new files are made there as under this one.
    let with_acl = format!("setfacl -m d:u:7:rwx,d:g::rwx .; {there}");
    let cases = [there, &with_acl].map(|there| copies.iter().map(move |copy| (there, copy.as_str())));
    as_cp_does_under("022", comes, &cases.into_iter().flatten().collect::<Vec<_>>());
}

/// Names of one inode below several sources.
#[test]
fn links_between_sources() {
    let there = "mkdir old; echo old > old/x; ln old/x y";
    let copies = [
        "-a s/a s/b d",
        "-r s/a s/b d",
        "-a s/a/x s/b/y d",
        "-d s/b/y s/a/x d",
        "-a s/b s/a/l s/a/x d",
        "-a s/a/. s/b d",
        "-a s/a s/b s/c/b d",
        "-a -T s/a d",
        "-a s/a/x s/c/x d",
        "-r --preserve=links s/a s/a/x s/b/y d/old",
    ];
    let comes = "mkdir a b c c/b; echo 1 > a/x; ln a/x b/y; ln a/x b/z; ln -s q a/l; ln a/l b/m
        echo other > c/b/y; echo cx > c/x; mkfifo a/p; ln a/p b/p";
    as_cp_does(comes, &copies.map(|copy| (there, copy)));
}

/// Where the host takes no ACLs the copy fails as cp(1)'s does, and the mode gives nobody more than the ACL did.
#[test]
fn an_acl_that_the_host_does_not_take() {
    let fill = "echo f > f; chmod 600 f; setfacl -m u:5:rwx f; echo p > plain; chmod 664 plain";
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, fill))) else { return };
    let dir = lab.host("ram");
    fs::create_dir(&dir).unwrap();
    sh(lab.dir.path(), "mount -t ramfs ramfs ram");
    let ran = ["-p", "-a", "--preserve=mode"].map(|way| {
        let to = dir.join(way.trim_start_matches('-').replace('=', ""));
        let ran = run(&["cp", way, &lab.at("/f"), to.to_str().unwrap()]);
        (ran.code, sh(&dir, &format!("stat -c %a {}", to.display())), ran.stderr)
    });
    let plain = run(&["cp", "-p", &lab.at("/plain"), dir.to_str().unwrap()]).code;
    sh(lab.dir.path(), "umount ram");
    assert_eq!(plain, 0);
    for (code, mode, said) in ran {
        assert_eq!((code, mode.as_str()), (1, "600\n"), "{said}");
        assert!(said.contains("/f: system.posix_acl_access: Operation not supported"), "{said}");
    }
}

/// The compression property goes to a host on btrfs, before the data; elsewhere the copy says that it did not.
#[test]
fn the_compression_property_on_the_host() {
    let fill = "for f in zlib zstd lzo none; do touch $f; btrfs property set $f compression $f; yes | head -c 300000 > $f; done
        setfattr -n btrfs.compression -v zstd:7 zstd; mkdir d; btrfs property set d compression lzo; yes | head -c 300000 > plain
        touch d/zlib; btrfs property set d/zlib compression zlib; yes | head -c 9000000 > d/zlib; mkdir e; echo > e/f";
    let Some(source) = Lab::kernel_made(&[], "rw", |top| drop(sh(top, fill))) else { return };
    let Some(host) = Lab::kernel_made(&[], "rw", |_| {}) else { return };
    let oracle = Oracle::new();
    let mount = oracle.mount(&host.image, "rw").unwrap().unwrap();
    let to = mount.path().to_str().unwrap().to_owned();
    let ran = run(&["cp", "-a", &source.at("/."), &to]).expect(0);
    assert_eq!(ran.stderr, "");
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    let look = |lab: &Lab| {
        let mut seen = String::new();
        lab.mounted(|top| {
            seen = sh(
                top,
                "getfattr -R -m btrfs -d . | sort; find . -type f -o -type d | sort | xargs lsattr -d; for f in zlib zstd lzo none plain d/zlib; do \
                echo $f $(filefrag -v $f | grep -c encoded); md5sum $f; done",
            );
        });
        seen
    };
    assert_eq!(look(&host), look(&source));
    let out = host.host("out");
    let ran = run(&["cp", "-a", &source.at("/zstd"), out.to_str().unwrap()]);
    if ran.code == 0 && !ran.stderr.is_empty() {
        assert!(ran.stderr.contains("btrfs.compression"), "{}", ran.stderr);
    }
    oracle.judge(&host.image, None).unwrap().assert_ok();
}

/// Each word of --preserve keeps what it says, and nothing else.
#[test]
fn what_is_listed_is_kept() {
    let stat_line = |stat: &Value| {
        let file = &stat["files"][0];
        let xattr = file["xattrs"].as_array().unwrap().iter().map(|x| x["name"].as_str().unwrap());
        let year = if file["mtime"][0].as_u64().unwrap() < 1_000_000_000 { "2001" } else { "x" };
        let mode = file["mode"].as_str().unwrap().trim_start_matches('0');
        let owner = format!("{}:{}", file["uid"], file["gid"]);
        [mode, &owner, year].into_iter().chain(xattr).collect::<Vec<_>>().join(" ")
    };
    let dir = tempfile::tempdir().unwrap();
    let host = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    sh(
        dir.path(),
        "echo x > f; chown 5:6 f; chmod 2751 f; setfattr -n user.a -v 1 f; touch -d 2001-02-03 f; ln f g",
    );
    run(&["mkfs", "-q", "-b", "200M", &host("a.img")]).expect(0);
    let image = format!("{}:", host("a.img"));
    run(&["cp", "-a", &host("f"), &format!("{image}/f")]).expect(0);
    let cases = [
        ("--preserve=mode", "751 0:0 x"),
        ("--preserve=ownership", "751 5:6 x"),
        ("--preserve=timestamps", "751 0:0 2001"),
        ("--preserve=mode,ownership", "2751 5:6 x"),
        ("-p", "2751 5:6 2001"),
        ("-a", "2751 5:6 2001 user.a"),
        ("--preserve=xattr", "751 0:0 x user.a"),
    ];
    let minus = [
        ("mode", "644 5:6 2001 user.a"),
        ("ownership", "751 0:0 2001 user.a"),
        ("timestamps", "2751 5:6 x user.a"),
        ("xattr", "2751 5:6 2001"),
        ("all", "644 0:0 x"),
    ];
    let minus = minus.map(|(what, seen)| (format!("--no-preserve={what}"), seen));
    let cases = cases.map(|(way, seen)| (vec![way], seen)).into_iter();
    let cases = cases.chain(minus.iter().map(|(way, seen)| (vec!["-a", way], *seen)));
    for (n, (ways, expected)) in cases.enumerate() {
        let targets = [format!("{image}/in{n}"), format!("{image}/within{n}"), host(&format!("out{n}"))];
        for (from, to) in [host("f"), format!("{image}/f"), format!("{image}/f")].iter().zip(&targets) {
            let args = [&["cp"], &ways[..], &[from.as_str(), to]].concat();
            // On the host those bits take a word of their own.
            let setuid = if expected.starts_with("2751") { "--setuid" } else { "--force" };
            let args = [&args[..], &[setuid]].concat();
            run(&args).expect(0);
            let seen = if to.contains(".img:") {
                let stat = run(&["stat", "--json", to]).expect(0);
                stat_line(&serde_json::from_slice(&stat.stdout).unwrap())
            } else {
                let meta = fs::metadata(to).unwrap();
                let year = if meta.mtime() < 1_000_000_000 { "2001" } else { "x" };
                let xattr = sh(dir.path(), &format!("getfattr -m user {to} | sed 1d"));
                let line = format!("{:o} {}:{} {year} {xattr}", meta.mode() & 0o7777, meta.uid(), meta.gid());
                line.trim().to_owned()
            };
            assert_eq!(seen, expected, "{ways:?} {from} {to}");
        }
    }
}
