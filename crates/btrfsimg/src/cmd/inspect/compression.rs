//! `inspect compression`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::inspect::{Amount, CompressionCount, CompressionUsage, Report, Storage};
use serde_json::{Map, Value, json};

use crate::address::{Address, ImageArgs};
use crate::output::{Ui, print_json, put_bytes, put_path, shown, stdout};

/// Show what compression saves, as compsize(8) does
///
/// For each way to store data: what it takes on disk, what that is uncompressed, and what files show of it. An
/// extent that several files share counts once under Disk Usage and Uncompressed, and for each file under
/// Referenced. Uncompressed may be more than Referenced: what was overwritten stays until the last part of its
/// extent is gone. Copies (DUP, RAID1) and metadata do not count. Several paths give one table over all of them.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg inspect compression out.img
  btrfsimg inspect compression -b out.img:/usr/lib
  btrfsimg inspect compression --depth 1 out.img:/usr")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Print bytes instead of rounded sizes
    #[arg(short, long)]
    bytes: bool,
    /// List directories down to this level too, each counted on its own
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files and directories, as IMAGE:/path or IMAGE
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(super) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let addresses = args.image.addresses(&args.paths)?;
    let (mut documents, mut listed) = (Vec::new(), false);
    // Extents are shared within an image.
    let mut counts: BTreeMap<(u64, u64), CompressionCount> = BTreeMap::new();
    args.image.for_each(&addresses, ui, |image, address| {
        let top = image.resolve(&address.path, true)?;
        // By whatever name it is given.
        let file = fs::metadata(&address.image).map_err(Error::io(address.image.display().to_string()))?;
        let count = counts.entry((file.dev(), file.ino())).or_default();
        let mut lister = Lister { args, ui, address, directories: Vec::new(), listed };
        let usage = count.add(&image.fs, top, args.depth, &mut lister)?;
        listed = lister.listed;
        if args.json {
            documents.push(document(address, &usage, lister.directories));
        }
        Ok(())
    })?;
    let mut all = CompressionUsage::default();
    counts.values().for_each(|count| all.add(count.usage()));
    if args.json {
        return print_json(json!({ "compression": documents, "all": amounts(&all) }));
    }
    if counts.is_empty() {
        return Ok(());
    }
    let mut out = stdout();
    if listed {
        writeln!(out)?;
    }
    write_table(&mut out, &all, args.bytes)?;
    out.flush()?;
    Ok(())
}

/// Lists directories as they are counted.
struct Lister<'a> {
    args: &'a Args,
    ui: &'a Ui,
    address: &'a Address,
    directories: Vec<Value>,
    /// Whether a line was printed.
    listed: bool,
}

impl Lister<'_> {
    fn path_of(&self, below: &[u8]) -> Vec<u8> {
        let top = self.address.path.strip_suffix(b"/").unwrap_or(&self.address.path);
        if below.is_empty() { self.address.path.clone() } else { [top, b"/", below].concat() }
    }
}

impl Report for Lister<'_> {
    fn directory(&mut self, path: &[u8], usage: &CompressionUsage) -> btrfsimg_fs::Result<()> {
        let path = self.path_of(path);
        if self.args.json {
            let mut object = amounts(usage);
            put_bytes(&mut object, "path", &path);
            self.directories.push(object.into());
            return Ok(());
        }
        let write = || {
            let mut out = stdout();
            if !self.listed {
                writeln!(out, "Perc     Disk Usage   Uncompressed Referenced   Path")?;
            }
            let total = row(&usage.total(), self.args.bytes);
            writeln!(out, "{total} {}", shown(&path))?;
            out.flush()
        };
        write().map_err(Error::io("standard output"))?;
        self.listed = true;
        Ok(())
    }

    fn fault(&mut self, path: &[u8], error: Error) {
        let place = Address { image: self.address.image.clone(), path: self.path_of(path) };
        self.ui.fail_at(&place.to_string(), &error);
    }
}

fn write_table(out: &mut impl Write, usage: &CompressionUsage, bytes: bool) -> Result<()> {
    let CompressionUsage { files, extents, refs, inline, .. } = usage;
    let s = if *files == 1 { "" } else { "s" };
    writeln!(out, "Processed {files} file{s}, {extents} regular extents ({refs} refs), {inline} inline.")?;
    writeln!(out, "Type       Perc     Disk Usage   Uncompressed Referenced")?;
    let rows = Storage::ALL.into_iter().map(|s| (s.name(), usage.amount(s)));
    for (name, amount) in [("TOTAL", usage.total())].into_iter().chain(rows) {
        if amount != Amount::default() || name == "TOTAL" {
            writeln!(out, "{name:<10} {}", row(&amount, bytes).trim_end())?;
        }
    }
    Ok(())
}

/// `Perc  Disk Usage  Uncompressed  Referenced`
fn row(amount: &Amount, bytes: bool) -> String {
    let size = |n: u64| if bytes { n.to_string() } else { short_size(n) };
    format!(
        "{:>3}%     {:<12} {:<12} {:<12}",
        percent(amount),
        size(amount.disk),
        size(amount.uncompressed),
        size(amount.referenced)
    )
}

fn percent(amount: &Amount) -> u128 {
    (u128::from(amount.disk) * 100).checked_div(u128::from(amount.uncompressed)).unwrap_or(100)
}

/// Two or more digits and a unit, cut and not rounded, as compsize prints them.
fn short_size(bytes: u64) -> String {
    let mut unit = 1;
    for letter in ["B", "K", "M", "G", "T", "P"] {
        let whole = bytes / unit;
        if whole < 1024 {
            let tenths = if letter == "B" || whole >= 10 { None } else { Some(bytes % unit * 10 / unit) };
            return match tenths {
                Some(tenths) => format!("{whole}.{tenths}{letter}"),
                None => format!("{whole}{letter}"),
            };
        }
        unit *= 1024;
    }
    format!("{}E", bytes / unit)
}

fn document(address: &Address, usage: &CompressionUsage, directories: Vec<Value>) -> Value {
    let mut object = amounts(usage);
    put_path(&mut object, "image", &address.image);
    put_bytes(&mut object, "path", &address.path);
    object.insert("directories".to_owned(), directories.into());
    object.into()
}

fn amounts(usage: &CompressionUsage) -> Map<String, Value> {
    let row = |name: &str, a: Amount| json!({ "type": name, "disk": a.disk, "uncompressed": a.uncompressed, "referenced": a.referenced });
    let rows = Storage::ALL.into_iter().map(|s| (s.name(), usage.amount(s)));
    let rows = rows.filter(|(_, a)| *a != Amount::default()).map(|(name, a)| row(name, a));
    let mut object = Map::new();
    object.insert("files".to_owned(), usage.files.into());
    object.insert("extents".to_owned(), usage.extents.into());
    object.insert("refs".to_owned(), usage.refs.into());
    object.insert("inline".to_owned(), usage.inline.into());
    object.insert("total".to_owned(), row("TOTAL", usage.total()));
    object.insert("types".to_owned(), rows.collect());
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_compsize_prints_them() {
        for (bytes, text) in [
            (0, "0B"),
            (19, "19B"),
            (1023, "1023B"),
            (1024, "1.0K"),
            (3000, "2.9K"),
            (10239, "9.9K"),
            (10240, "10K"),
            (303_108, "296K"),
            (1_400_855, "1.3M"),
            (1 << 30, "1.0G"),
            (u64::MAX, "15E"),
        ] {
            assert_eq!(short_size(bytes), text, "{bytes}");
        }
    }
}
