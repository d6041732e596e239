//! The benchmark: image makers side by side, in turn, on one tmpfs.

pub(crate) mod makers;

use crate::{
    images,
    measure::{self, Cost},
    trees::{self, Tmpfs},
};
use anyhow::{Context, Result, ensure};
use makers::Maker;
use std::{fs, path::PathBuf};

/// Options of `cargo xtask speed`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The tree; it is copied to the tmpfs first
    #[arg(long)]
    tree: PathBuf,
    /// Rounds: in each, every maker runs once
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// What to compress with
    #[arg(long, value_delimiter = ',', default_value = "none,lzo,zlib:3,zstd:3")]
    compress: Vec<String>,
    /// Only btrfsimg and what makes btrfs images
    #[arg(long)]
    btrfs_only: bool,
    /// This binary instead of the release build
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Prints a Markdown table: medians, and each maker's time relative to btrfsimg's at the same compression.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.runs > 0, "no runs, no median");
    let binary = images::binary(options.binary.as_deref())?;
    let bytes = trees::size(&options.tree)?;
    // The source, one image at a time, and room for what small files and chunks round up to.
    let tmpfs = Tmpfs::mount(bytes.saturating_mul(6).saturating_add(4 << 30))?;
    let source = tmpfs.path().join("source");
    trees::copy(&options.tree, &source).context("cannot copy the tree to the tmpfs")?;
    let place = makers::Place { tmpfs: tmpfs.path().to_owned(), source, bytes };
    let makers = makers::all(&binary, &options.compress, options.btrfs_only);
    let mut results: Vec<(Vec<Cost>, f64)> = vec![(Vec::new(), 0.0); makers.len()];
    for round in 1..=options.runs {
        for (maker, (costs, size)) in makers.iter().zip(&mut results) {
            let cost = maker.run(&place).with_context(|| format!("{} at {}", maker.name, maker.spec))?;
            *size = measure::allocated(&place.image())?;
            fs::remove_file(place.image())?;
            eprintln!("round {round}: {} {}: {:.2} s", maker.name, maker.spec, cost.wall);
            costs.push(cost);
        }
    }
    let rows: Vec<Row> =
        makers.iter().zip(&results).map(|(m, (costs, size))| Row::new(m, costs, *size)).collect();
    print!("{}", table(&rows));
    println!("\nMedian of {} alternating runs; source and image on one tmpfs, warm.", options.runs);
    Ok(())
}

struct Row {
    name: String,
    spec: String,
    cost: Cost,
    size: f64,
}

impl Row {
    fn new(maker: &Maker, costs: &[Cost], size: f64) -> Row {
        Row { name: maker.name.clone(), spec: maker.spec.clone(), cost: measure::summary(costs), size }
    }
}

/// Rows in groups of one compression, btrfsimg first in each; ratios above 1 mean slower than btrfsimg.
fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| compression | maker | wall, s | ×btrfsimg | CPU, s | machine's CPU, s | ×btrfsimg | peak, MiB | image, MiB |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut groups: Vec<&str> = Vec::new();
    for row in rows {
        if !groups.contains(&row.spec.as_str()) {
            groups.push(&row.spec);
        }
    }
    for group in groups {
        let members = || rows.iter().filter(|r| r.spec == group);
        let ours = members().find(|r| r.name == makers::OURS).map(|r| r.cost);
        for row in members() {
            let ratio = |value: fn(&Cost) -> f64| match &ours {
                Some(ours) if value(ours) > 0.0 => format!("{:.2}", value(&row.cost) / value(ours)),
                _ => "–".to_owned(),
            };
            out += &format!(
                "| {} | {} | {:.2} | {} | {:.2} | {:.2} | {} | {:.0} | {:.1} |\n",
                row.spec,
                row.name,
                row.cost.wall,
                ratio(|c| c.wall),
                row.cost.cpu,
                row.cost.machine,
                ratio(|c| c.machine),
                row.cost.peak,
                row.size
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_within_their_compression() {
        let row = |name: &str, spec: &str, wall| Row {
            name: name.to_owned(),
            spec: spec.to_owned(),
            cost: Cost { wall, cpu: wall, machine: 2.0 * wall, peak: 10.0 },
            size: 5.0,
        };
        let rows = [
            row(makers::OURS, "none", 2.0),
            row(makers::OURS, "lzo", 4.0),
            row("other", "none", 3.0),
            row("other", "xz", 1.0),
        ];
        let table = table(&rows);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(lines[0], "| none | btrfsimg | 2.00 | 1.00 | 2.00 | 4.00 | 1.00 | 10 | 5.0 |");
        assert_eq!(lines[1], "| none | other | 3.00 | 1.50 | 3.00 | 6.00 | 1.50 | 10 | 5.0 |");
        assert_eq!(lines[2], "| lzo | btrfsimg | 4.00 | 1.00 | 4.00 | 8.00 | 1.00 | 10 | 5.0 |");
        assert_eq!(lines[3], "| xz | other | 1.00 | – | 1.00 | 2.00 | – | 10 | 5.0 |");
    }
}
