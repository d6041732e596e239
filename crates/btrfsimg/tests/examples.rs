//! Every example of every `--help` works as it is written.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::path::Path;
use std::process::Command;

use btrfsimg_testkit::sparse;
use common::{run, sh};

/// What the examples find on the host, and in `base.img`.
const WORLD: &str = r#"
umask 022; mkdir dir site; echo x > site/index.html; for f in fstab hosts passwd app.conf policy.bin; do echo $f > $f; done
head -c 70000 /dev/urandom > boot.bin; gzip -c boot.bin > disk.gz; printf 'mkdir -p /home/bob\n' > edits.txt
mkdir -p rootfs; cd rootfs
mkdir -p usr/bin usr/lib usr/share/doc usr/share/man etc home/ann home/ann.old home/shared var/www var/spool var/log \
    var/lib/libvirt/images base boot dev run dir mnt opt srv old/empty/tree
ln -s usr/bin bin; ln -s boot/vmlinuz vmlinuz; ln -s etc link; echo x > opt/x
for f in a b f new current usr/bin/sh usr/bin/ping usr/lib/libc disk.raw var/lib/db boot/vmlinuz var/log/lastlog \
    var/log/messages etc/fstab etc/fstab.new etc/group etc/hosts etc/machine-id etc/resolv.conf etc/shadow; do
    yes "a line of $f" | head -c 9000 > $f; done
yes root:x:0:0:root | head -c 9000 > etc/passwd
"#;

/// What an example needs besides: the beginning of what it is, and lines of a batch that make it.
const NEEDS: &[(&str, &str)] = &[
    ("cat", "write /etc/os-release app.conf"),
    ("cp", "mkdir /data"),
    ("prop", "mkdir /data\nsubvol create /snapshot\nsubvol create /snap"),
    ("xattr set", "mkdir /data"),
    (
        "xattr",
        "mkdir /data\nxattr set /data user.origin 1\nxattr set /data user.note 2\n\
      xattr set /bin/ping security.capability 0x0100000200200000000000000000000000000000",
    ),
    ("rm", "mkdir /snapshots\nsubvol create /snapshots/one"),
    ("subvol snapshot", "subvol create /data"),
    (
        "subvol delete",
        "subvol create /data.1\nsubvol create /data.2\nsubvol create /containers\n\
      subvol create /containers/one\nsubvol create /five",
    ),
    ("subvol show", "subvol create /data\nsubvol create /other"),
    ("subvol list", "subvol create /containers"),
    ("subvol set-default", "subvol create /@rootfs"),
    ("inspect tree", "subvol create /one\nsubvol create /two"),
];

/// Examples that name an address of somebody's image.
const OF_ONE_IMAGE: &[&str] = &["inspect tree -b ", "chunk-stripe-len-zero"];

/// Every `--help`, from the top.
fn helps(command: &[String], found: &mut Vec<String>) {
    let text = run(&[command, &["--help".to_owned()]].concat()).expect(0).text().to_owned();
    let names = text.split_once("\nCommands:\n").map_or("", |(_, behind)| behind);
    let names = names.lines().take_while(|line| line.starts_with("  "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    for name in names.into_iter().filter(|name| *name != "help") {
        let below = [command, &[name.to_owned()]].concat();
        // A line that goes on does not begin with the name of a command.
        if run(&[below.as_slice(), &["--help".to_owned()]].concat()).code == 0 {
            helps(&below, found);
        }
    }
    found.push(text);
}

fn examples() -> Vec<String> {
    let mut texts = Vec::new();
    helps(&[], &mut texts);
    let lines = texts.iter().flat_map(|text| text.lines());
    let mut examples: Vec<String> = lines
        .filter(|line| line.starts_with("  ") && line.contains("btrfsimg "))
        .filter(|line| {
            ["btrfsimg ", "printf ", "echo ", "zcat "].iter().any(|word| line[2..].starts_with(word))
        })
        .map(|line| line.trim().to_owned())
        .collect();
    examples.sort();
    examples.dedup();
    examples
}

#[test]
fn every_example_works() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path();
    sh(top, WORLD);
    let path = |name: &str| top.join(name);
    run(&["mkfs", "-q", path("base.img").to_str().unwrap(), "-r", path("rootfs").to_str().unwrap()])
        .expect(0);
    let program = Path::new(env!("CARGO_BIN_EXE_btrfsimg"));
    let examples = examples();
    assert!(examples.len() > 100, "only {} examples", examples.len());
    let mut failed = Vec::new();
    for example in examples.iter().filter(|e| !OF_ONE_IMAGE.iter().any(|part| e.contains(part))) {
        let what = example.split("btrfsimg ").nth(1).unwrap();
        for image in ["out.img", "old.img", "new.img", "small.img", "broken.img"] {
            let _ = std::fs::remove_file(path(image));
            if what.contains(image) && !what.starts_with("mkfs ") {
                sparse::copy(&path("base.img"), &path(image)).unwrap();
                if let Some((_, lines)) = NEEDS.iter().find(|(start, _)| what.starts_with(start)) {
                    std::fs::write(path("needs"), lines).unwrap();
                    let batch =
                        Command::new(program).args(["batch", image, "needs"]).current_dir(top).output();
                    let batch = batch.unwrap();
                    assert!(batch.status.success(), "{example}: {}", String::from_utf8_lossy(&batch.stderr));
                }
            }
        }
        // What others make of it is theirs.
        let script =
            if example.starts_with("btrfsimg ") { example.split(" | ").next().unwrap() } else { example };
        let output = Command::new("bash")
            .args([
                "-ec",
                &format!("set -o pipefail; btrfsimg() {{ \"$PROGRAM\" \"$@\"; }}; {script} > made"),
            ])
            .env("PROGRAM", program)
            .current_dir(top)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        if !output.status.success() {
            failed.push(format!("{example}: {} {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join(""));
}
