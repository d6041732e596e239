//! Every command on every image of others (`BTRFSIMG_CORPUS`; see `btrfsimg-fs/tests/corpus.rs`): each ends in time,
//! within 512 MiB and without a panic, shows every block that dump-tree shows, and gets every file out that
//! btrfs restore gets.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use btrfsimg_testkit::btrfs_progs;
use common::limited;

/// The addresses in lines that begin with `leaf` or `node`.
fn blocks(text: &str) -> BTreeSet<u64> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let is_block = matches!(words.next(), Some("leaf" | "node"));
        is_block.then(|| words.next()?.parse().ok())?
    };
    text.lines().filter_map(address).collect()
}

/// Regular files below a directory, by path.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![dir.to_owned()]);
    while let Some(at) = todo.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_file() {
                found.insert(entry.path().strip_prefix(dir).unwrap().to_owned());
            }
        }
    }
    found
}

/// What another program says, within the time that we have; nothing when it crashes or takes longer.
fn other(program: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "20", program]).args(args).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().ok()?;
    output.status.code()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn judge(name: &str, archive: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let unpacked = Command::new("tar").arg("-xSJf").arg(archive).arg("-C").arg(dir.path()).status().unwrap();
    assert!(unpacked.success(), "{name}");
    let image =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_file()).unwrap();
    let image = image.to_str().unwrap();
    let top = format!("{image}:/");
    let out = dir.path().join("out");
    limited(&["verify", "--data", "--decode", image]);
    let (_, json) = limited(&["verify", "--json", &top]);
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(document["findings"].is_array(), "{name}");
    limited(&["inspect", "super", "--all", "--full", image]);
    let (_, tree) = limited(&["inspect", "tree", image]);
    limited(&["ls", "-lR", &top]);
    limited(&["stat", &top]);
    limited(&["du", "-a", &top]);
    limited(&["df", image]);
    limited(&["lsattr", &top]);
    limited(&["inspect", "compression", &top]);
    limited(&["subvol", "list", image]);
    let (_, listed) = limited(&["ls", "--json", &top]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let entries = listed["entries"].as_array().into_iter().flatten();
    let paths = entries.filter(|e| e["type"] == "regular file").filter_map(|e| e["path"].as_str());
    paths.take(2).for_each(|path| _ = limited(&["cat", &format!("{image}:{path}")]));
    limited(&["cat", &format!("{top}no-such-file")]);
    limited(&["cp", "-r", &top, dir.path().join("plain").to_str().unwrap()]);
    limited(&["cp", "-r", "--salvage", &top, out.to_str().unwrap()]);

    let shown = blocks(&String::from_utf8_lossy(&tree.stdout));
    let theirs = blocks(&other("btrfs", &["inspect-internal", "dump-tree", image]).unwrap_or_default());
    let missing: Vec<_> = theirs.difference(&shown).collect();
    assert!(missing.is_empty(), "{name}: dump-tree shows {missing:?} too");
    let restored = dir.path().join("restored");
    std::fs::create_dir(&restored).unwrap();
    other("btrfs", &["restore", "-i", image, restored.to_str().unwrap()]);
    let copied = files(&out);
    let missing: Vec<_> = files(&restored).into_iter().filter(|file| !copied.contains(file)).collect();
    assert!(missing.is_empty(), "{name}: btrfs restore gets {missing:?} too");
}

#[test]
fn every_command_on_every_image() {
    let Some(corpus) = std::env::var_os("BTRFSIMG_CORPUS").map(PathBuf::from) else {
        println!("skipped: BTRFSIMG_CORPUS is not set");
        return;
    };
    if let Err(error) = btrfs_progs::available() {
        assert!(std::env::var_os("BTRFSIMG_REQUIRE_ORACLES").is_none(), "{error}");
        println!("skipped: {error}");
        return;
    }
    let manifest = std::fs::read_to_string(corpus.join("MANIFEST.tsv")).unwrap();
    let names: Vec<(String, String)> = manifest
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, rest)| (name.to_owned(), rest.split('\t').next().unwrap_or_default().to_owned()))
        .collect();
    assert!(!names.is_empty(), "an empty corpus");
    let (todo, failed) = (Mutex::new(names), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let next = todo.lock().unwrap().pop();
            let Some((name, kind)) = next else { return };
            let archive = corpus.join(format!("{kind}-{name}.tar.xz"));
            if let Err(panic) = std::panic::catch_unwind(|| judge(&name, &archive)) {
                let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                failed.lock().unwrap().push(format!("{name}: {said}"));
            }
        }
    };
    std::thread::scope(|scope| {
        let workers = std::thread::available_parallelism().map_or(2, usize::from);
        (1..workers).for_each(|_| _ = scope.spawn(work));
        work();
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
