//! Experiment 7: many files with properties and xattrs.

use super::{Bench, published, table};
use crate::{measure, measure::Cost, trees};
use anyhow::{Context, Result};
use btrfsimg_testkit::{btrfs_progs, mount::Mount};
use std::{ffi::OsString, fs, path::Path, time::Instant};

const FILE: usize = 64 << 10;
/// Names of one source directory: one inode, so that the source costs nothing.
const NAMES_PER_DIR: usize = 10_000;

pub(super) fn properties(bench: &mut Bench<'_>) -> Result<String> {
    let most = bench.options.files.unwrap_or(if bench.options.quick { 1000 } else { 100_000 });
    let mut text = "\n## 7. Many files with a property\nFiles of 64 KiB of 'A' into a directory with the property \
                    `lzo`: `cp -r` from names of one inode on the tmpfs, the kernel from a buffer through a loop \
                    mount, umount included. `ls -lR` to nowhere. Published (in brackets): the kernel, 2014.\n"
        .to_owned();
    let (mut rows, mut n) = (Vec::new(), (most / 10).max(1));
    while n <= most {
        let published = published::PROPERTIES.iter().find(|(count, _)| *count == n).map(|(_, p)| p[0]);
        let beside = |s: f64, i: usize| published.map_or(format!("{s:.2}"), |p| format!("{s:.2} ({})", p[i]));
        let source = names_of_one_inode(bench, n)?;
        let (ours, listing) = create(bench, &source)?;
        fs::remove_dir_all(&source)?;
        let kernel = by_the_kernel(bench, n)?;
        rows.push(vec![
            n.to_string(),
            beside(ours.wall, 0),
            format!("{:.2}", ours.cpu),
            format!("{:.0}", ours.peak),
            format!("{kernel:.2}"),
            format!("{:.2}", ours.wall / kernel.max(1e-9)),
            beside(listing.wall, 1),
        ]);
        n = n.saturating_mul(10);
    }
    let head = ["files", "create s", "CPU s", "peak MiB", "kernel s", "ours / kernel", "ls -lR s"];
    text.push_str(&table(&head, &rows));
    text.push_str("\nWith further xattrs (files of 4 KiB, `mkfs --rootdir`):\n");
    text.push_str(&with_xattrs(bench, most.min(20_000))?);
    Ok(text)
}

/// `n` names of one file of 64 KiB of 'A'. Copied without -a, each becomes a file of its own.
fn names_of_one_inode(bench: &Bench<'_>, n: usize) -> Result<std::path::PathBuf> {
    let top = bench.tmpfs.path().join("names");
    fs::create_dir_all(&top)?;
    let first = bench.tmpfs.path().join("A");
    fs::write(&first, vec![b'A'; FILE])?;
    for i in 0..n {
        let dir = top.join((i / NAMES_PER_DIR).to_string());
        if i.is_multiple_of(NAMES_PER_DIR) {
            fs::create_dir(&dir)?;
        }
        fs::hard_link(&first, dir.join(i.to_string()))?;
    }
    Ok(top)
}

fn ours(bench: &Bench<'_>, words: &[&str]) -> Result<Cost> {
    let argv = [bench.binary.clone().into_os_string()].into_iter().chain(words.iter().map(OsString::from));
    measure::run(&argv.collect::<Vec<_>>())
}

/// Into a new image, in a directory with the property; then listed.
fn create(bench: &Bench<'_>, source: &Path) -> Result<(Cost, Cost)> {
    let image = bench.tmpfs.path().join("image");
    let (name, dir) = (image.display().to_string(), format!("{}:/d", image.display()));
    ours(bench, &["mkfs", "-q", "-f", "-b", "16G", &name])?;
    ours(bench, &["mkdir", &dir])?;
    ours(bench, &["prop", "set", &dir, "compression", "lzo"])?;
    let source = source.display().to_string();
    let cost = ours(bench, &["cp", "-q", "-r", &source, &dir])?;
    let listing = ours(bench, &["ls", "-l", "-R", &dir])?;
    fs::remove_file(image)?;
    Ok((cost, listing))
}

/// The kernel writing the same bytes from a buffer: seconds, umount included.
fn by_the_kernel(bench: &Bench<'_>, n: usize) -> Result<f64> {
    let image = bench.tmpfs.path().join("kernel");
    btrfs_progs::mkfs(&image, 16 << 30, &[])?;
    let mount = Mount::open(&image, "rw")?;
    let dir = mount.path().join("d");
    fs::create_dir(&dir)?;
    let set = ["property", "set", &dir.display().to_string(), "compression", "lzo"].map(OsString::from);
    trees::run("btrfs", set).context("cannot set the property")?;
    let (buffer, start) = (vec![b'A'; FILE], Instant::now());
    for i in 0..n {
        let below = dir.join((i / NAMES_PER_DIR).to_string());
        if i.is_multiple_of(NAMES_PER_DIR) {
            fs::create_dir(&below)?;
        }
        fs::write(below.join(i.to_string()), &buffer)?;
    }
    mount.unmount()?;
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(image)?;
    Ok(seconds)
}

fn with_xattrs(bench: &Bench<'_>, n: usize) -> Result<String> {
    let (mut rows, mut none) = (Vec::new(), 0.0);
    for (i, xattrs) in [0, 4, 10].into_iter().enumerate() {
        let source = bench.tmpfs.path().join("xattrs");
        fs::create_dir(&source)?;
        for file in 0..n {
            fs::write(source.join(file.to_string()), [b'A'; 4096])?;
        }
        for x in 0..xattrs {
            let script =
                format!("find . -type f -print0 | xargs -0 setfattr -n user.property{x} -v some-value-{x}");
            trees::run("sh", ["-c", &format!("cd '{}' && {script}", source.display())])?;
        }
        let image = bench.tmpfs.path().join("image");
        let words = ["mkfs", "-q", "--compress-force=lzo", "-r"];
        let paths = [source.display().to_string(), image.display().to_string()];
        let cost = ours(bench, &[&words[..], &[&paths[0], &paths[1]]].concat())?;
        let listing = ours(bench, &["ls", "-l", "-R", &paths[1]])?;
        if i == 0 {
            none = cost.cpu;
        }
        let share = published::PROPERTIES[0].1;
        let published = share[i][0] / share[0][0];
        rows.push(vec![
            xattrs.to_string(),
            format!("{:.2}", cost.wall),
            format!("{:.2}", cost.cpu),
            format!("{:.2} ({published:.2})", cost.cpu / f64::max(none, 1e-9)),
            format!("{:.2}", listing.wall),
        ]);
        fs::remove_dir_all(source)?;
        fs::remove_file(image)?;
    }
    Ok(table(&["xattrs", "create s", "CPU s", "CPU against none", "ls -lR s"], &rows))
}
