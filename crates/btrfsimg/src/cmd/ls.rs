//! `ls`: what is in a directory of an image.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write};

use anyhow::Result;
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::read::{Filesystem, Info};
use btrfsimg_ondisk::FileType;
use serde_json::{Map, Value, json};

use crate::address::{Address, ImageArgs, Opened};
use crate::exit::CORRUPT;
use crate::output::{Ui, list_time, mode_string, print_json, put_bytes, shown, stdout};

/// List directories of an image
///
/// All entries are listed, those that start with a dot too, sorted by the bytes of their names.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg ls out.img
  btrfsimg ls -l -R out.img:/etc
  btrfsimg ls --json out.img:/home")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Mode, links, owner, group, size, time (UTC), and target of symlinks
    #[arg(short)]
    long: bool,
    /// Subdirectories and subvolumes too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// A directory itself, not what it holds
    #[arg(short, long)]
    directory: bool,
    /// In the order of the directory (of creation) instead of sorted
    #[arg(short = 'U')]
    unsorted: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// What to list, as IMAGE:/path or IMAGE
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

/// An entry that is listed.
struct Listed {
    name: Vec<u8>,
    place: Place,
    file_type: FileType,
    is_subvolume: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let addresses = args.image.addresses(&args.paths)?;
    let mut printer = Printer::new(args, ui, addresses.len());
    args.image.for_each(&addresses, ui, |image, address| list(args, ui, image, address, &mut printer))?;
    printer.finish()
}

fn list(args: &Args, ui: &Ui, image: &Opened, address: &Address, printer: &mut Printer<'_>) -> Result<()> {
    let fs = &image.fs;
    let top = image.resolve(&address.path, !args.long && !args.directory)?;
    let info = fs.info(top)?;
    if !info.is_dir() || args.directory {
        let file_type = info.file_type().unwrap_or(FileType(0));
        let is_subvolume = top == Place::root(top.tree);
        return printer.entry(
            fs,
            None,
            &Listed { name: address.path.clone(), place: top, file_type, is_subvolume },
        );
    }
    // Directories to list, the next one last; no recursion, since an image may nest them without end.
    let mut pending = vec![(top, address.path.clone())];
    let mut listed = HashSet::new();
    while let Some((dir, path)) = pending.pop() {
        let shown_dir = Address { image: address.image.clone(), path: path.clone() };
        if !listed.insert(dir) && !dir.is_empty_dir() {
            ui.fail(&format!("{shown_dir}: a second name of a directory that was listed [LK-08]"), CORRUPT);
            continue;
        }
        let entries = match read_dir(fs, dir, |e| ui.fail_at(&shown_dir.to_string(), &e)) {
            Ok(entries) => entries,
            Err(e) => {
                ui.fail_at(&shown_dir.to_string(), &e);
                continue;
            }
        };
        let entries = if args.unsorted { entries } else { sorted(entries) };
        printer.directory(&path, args.recursive)?;
        for entry in &entries {
            printer.entry(fs, Some(&path), entry)?;
        }
        if args.recursive {
            let below = entries.iter().rev().filter(|e| e.file_type == FileType::DIR);
            pending.extend(below.map(|e| (e.place, join(&path, &e.name))));
        }
    }
    Ok(())
}

fn read_dir(
    fs: &Filesystem,
    dir: Place,
    fault: impl Fn(btrfsimg_fs::Error),
) -> btrfsimg_fs::Result<Vec<Listed>> {
    let mut out = Vec::new();
    lookup::entries(fs, dir, |entry| {
        let entry = match entry {
            Ok((_, entry)) => entry,
            Err(e) => {
                fault(e);
                return Ok(true);
            }
        };
        match lookup::target(fs, dir, entry.name, entry.location) {
            Ok(place) => out.push(Listed {
                name: entry.name.to_vec(),
                place,
                file_type: entry.file_type,
                is_subvolume: entry.is_subvolume(),
            }),
            Err(e) => fault(e),
        }
        Ok(true)
    })?;
    Ok(out)
}

fn sorted(mut entries: Vec<Listed>) -> Vec<Listed> {
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}

/// Prints entries as they come, or keeps them for the JSON document.
struct Printer<'a> {
    args: &'a Args,
    ui: &'a Ui,
    out: std::io::BufWriter<std::io::StdoutLock<'static>>,
    escape: bool,
    headings: bool,
    printed: bool,
    json: Vec<Value>,
}

impl<'a> Printer<'a> {
    fn new(args: &'a Args, ui: &'a Ui, operands: usize) -> Printer<'a> {
        Printer {
            args,
            ui,
            out: stdout(),
            escape: std::io::stdout().is_terminal() || args.long,
            headings: operands > 1,
            printed: false,
            json: Vec::new(),
        }
    }

    fn directory(&mut self, path: &[u8], recursive: bool) -> Result<()> {
        if !self.args.json && (recursive || self.headings) {
            if self.printed {
                writeln!(self.out)?;
            }
            writeln!(self.out, "{}:", shown(path))?;
            self.printed = true;
        }
        Ok(())
    }

    fn entry(&mut self, fs: &Filesystem, dir: Option<&[u8]>, entry: &Listed) -> Result<()> {
        if self.args.json {
            let value = self.json_entry(fs, dir, entry);
            self.json.push(value);
            return Ok(());
        }
        self.printed = true;
        if self.args.long {
            match fs.info(entry.place) {
                Ok(info) => write_long(&mut self.out, &info)?,
                Err(e) => {
                    self.ui.fail_at(&shown(&entry.name), &e);
                    write!(self.out, "?????????? ? ? ? ? ? ")?;
                }
            }
        }
        if self.escape {
            self.out.write_all(shown(&entry.name).as_bytes())?;
        } else {
            self.out.write_all(&entry.name)?;
        }
        if self.args.long && entry.file_type == FileType::SYMLINK {
            match lookup::symlink_target(fs, entry.place) {
                Ok(target) => write!(self.out, " -> {}", shown(&target))?,
                Err(e) => self.ui.fail_at(&shown(&entry.name), &e),
            }
        }
        writeln!(self.out)?;
        Ok(())
    }

    fn json_entry(&self, fs: &Filesystem, dir: Option<&[u8]>, entry: &Listed) -> Value {
        let mut object = Map::new();
        put_bytes(&mut object, "name", &entry.name);
        if let Some(dir) = dir {
            put_bytes(&mut object, "path", &join(dir, &entry.name));
        }
        object.insert("subvolume".to_owned(), entry.is_subvolume.into());
        match fs.info(entry.place) {
            Ok(info) => super::stat::put_info(&mut object, fs, &info),
            Err(e) => {
                self.ui.fail_at(&shown(&entry.name), &e);
                object.insert("error".to_owned(), e.to_string().into());
            }
        }
        if entry.file_type == FileType::SYMLINK
            && let Ok(target) = lookup::symlink_target(fs, entry.place)
        {
            put_bytes(&mut object, "target", &target);
        }
        Value::Object(object)
    }

    fn finish(mut self) -> Result<()> {
        if self.args.json {
            return print_json(json!({ "entries": self.json }));
        }
        self.out.flush()?;
        Ok(())
    }
}

fn write_long(out: &mut impl Write, info: &Info) -> Result<()> {
    let i = &info.item;
    let size = match info.device_number() {
        Some((major, minor)) => format!("{major}, {minor}"),
        None => i.size.to_string(),
    };
    let mode = mode_string(info.mode());
    write!(out, "{mode} {:>3} {:>5} {:>5} {size:>10} {} ", i.nlink, i.uid, i.gid, list_time(info.mtime()))?;
    Ok(())
}
