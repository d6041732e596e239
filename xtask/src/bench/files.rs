//! Experiment 7: many files with properties and xattrs.

use super::{Bench, published, table};
use crate::many::Place;
use anyhow::Result;
use std::fs;

pub(super) fn properties(bench: &mut Bench<'_>) -> Result<String> {
    let most = bench.options.files.unwrap_or(if bench.options.quick { 1000 } else { 1_000_000 });
    let mut text = "\n## 7. Many files with a property\nFiles of 64 KiB of 'A' into a directory with the property \
                    `lzo`, with so many further xattrs: `cp -r --preserve=xattr` from names of one inode on the tmpfs; \
                    without further ones the kernel too, from a buffer through a loop mount, umount included. `ls -lR` to \
                    nowhere. Published (in brackets): the kernel, 2014. Of the 0.75 µs of processor time that a further \
                    xattr costs, 0.5 µs are the system calls that read it from the source (by `perf`), the rest is 75 \
                    bytes more of leaf, twice.\n"
        .to_owned();
    let place = Place { binary: &bench.binary, dir: bench.tmpfs.path() };
    let (mut rows, mut n) = (Vec::new(), (most / 100).max(1));
    // Once beforehand: the first run reads the command itself.
    let source = place.names_of_one_inode(n, 0)?;
    place.copy_into_property(&source)?;
    fs::remove_dir_all(source)?;
    while n <= most {
        let published = published::PROPERTIES.iter().find(|(count, _)| *count == n).map(|(_, p)| p);
        let mut none = 0.0;
        for (i, xattrs) in [0, 4, 10].into_iter().enumerate() {
            let source = place.names_of_one_inode(n, xattrs)?;
            let (ours, listing) = place.copy_into_property(&source)?;
            fs::remove_dir_all(&source)?;
            let mut against_kernel = ["–".to_owned(), "–".to_owned()];
            if xattrs == 0 {
                none = ours.wall;
                let kernel = place.by_the_kernel(n)?;
                against_kernel =
                    [format!("{kernel:.2}"), format!("{:.2}", ours.wall / f64::max(kernel, 1e-9))];
            }
            let beside = |value: f64, published: Option<f64>| {
                published.map_or(format!("{value:.2}"), |p| format!("{value:.2} ({p:.2})"))
            };
            let mut row = vec![
                n.to_string(),
                xattrs.to_string(),
                beside(ours.wall, published.map(|p| p[i][0])),
                beside(ours.wall / f64::max(none, 1e-9), published.map(|p| p[i][0] / p[0][0])),
                format!("{:.2}", ours.cpu),
                format!("{:.0}", ours.peak),
            ];
            row.extend(against_kernel);
            row.push(beside(listing.wall, published.map(|p| p[i][1])));
            rows.push(row);
        }
        n = n.saturating_mul(10);
    }
    let head = [
        "files",
        "xattrs",
        "create s",
        "against none",
        "CPU s",
        "peak MiB",
        "kernel s",
        "ours / kernel",
        "ls -lR s",
    ];
    text.push_str(&table(&head, &rows));
    Ok(text)
}
