//! Experiment 7: many files with properties and xattrs.

use super::{Bench, published, table};
use crate::many::Place;
use anyhow::Result;
use std::fs;

/// Files of the table with xattrs: each is one of the tmpfs, of 64 KiB.
const WITH_XATTRS: usize = 20_000;

pub(super) fn properties(bench: &mut Bench<'_>) -> Result<String> {
    let most = bench.options.files.unwrap_or(if bench.options.quick { 1000 } else { 1_000_000 });
    let mut text = "\n## 7. Many files with a property\nFiles of 64 KiB of 'A' into a directory with the property \
                    `lzo`: `cp -r` from names of one inode on the tmpfs, the kernel from a buffer through a loop \
                    mount, umount included. `ls -lR` to nowhere. Published (in brackets): the kernel, 2014.\n"
        .to_owned();
    let place = Place { binary: &bench.binary, dir: bench.tmpfs.path() };
    let (mut rows, mut n) = (Vec::new(), (most / 100).max(1));
    while n <= most {
        let published = published::PROPERTIES.iter().find(|(count, _)| *count == n).map(|(_, p)| p[0]);
        let beside = |s: f64, i: usize| published.map_or(format!("{s:.2}"), |p| format!("{s:.2} ({})", p[i]));
        let source = place.names_of_one_inode(n)?;
        let (ours, listing) = place.copy_into_property(&source)?;
        fs::remove_dir_all(&source)?;
        let kernel = place.by_the_kernel(n)?;
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
    text.push_str(&format!(
        "\nWith further xattrs ({} files of 64 KiB of 'A', `mkfs --rootdir` with lzo):\n",
        most.min(WITH_XATTRS)
    ));
    text.push_str(&with_xattrs(&place, most.min(WITH_XATTRS))?);
    Ok(text)
}

fn with_xattrs(place: &Place<'_>, n: usize) -> Result<String> {
    let (mut rows, mut none) = (Vec::new(), 0.0);
    for (i, xattrs) in [0, 4, 10].into_iter().enumerate() {
        let (cost, listing) = place.with_xattrs(n, xattrs)?;
        if i == 0 {
            none = cost.wall;
        }
        let share = published::PROPERTIES[0].1;
        let published = share[i][0] / share[0][0];
        rows.push(vec![
            xattrs.to_string(),
            format!("{:.2}", cost.wall),
            format!("{:.2}", cost.cpu),
            format!("{:.2} ({published:.2})", cost.wall / f64::max(none, 1e-9)),
            format!("{:.2}", listing.wall),
        ]);
    }
    Ok(table(&["xattrs", "create s", "CPU s", "against none", "ls -lR s"], &rows))
}
