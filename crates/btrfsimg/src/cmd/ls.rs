//! `ls`: what is in a directory of an image.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write};

use anyhow::Result;
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::read::{Filesystem, Info};
use btrfsimg_ondisk::FileType;
use serde_json::{Map, Value, json};

use super::entries::{Listed, join, read_dir, sorted};
use crate::address::{Address, ImageArgs, Opened};
use crate::exit::{CORRUPT, FAILED};
use crate::output::{Ui, human_size, iso_time, list_time, mode_string, print_json, put_bytes, shown, stdout};

/// List directories of an image
///
/// All entries are listed, those that start with a dot too, one a line, sorted by the bytes of their names
/// (-t: by time).
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg ls out.img
  btrfsimg ls -l -R out.img:/etc
  btrfsimg ls -lh -d out.img:/home
  btrfsimg ls --json out.img:/home"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Mode, links, owner, group (as numbers), size, time (UTC), and target of symlinks
    #[arg(short, visible_short_alias = 'n')]
    long: bool,
    /// With -l: sizes in K, M, G (1024), rounded up
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// As -l, with times to the nanosecond
    #[arg(long)]
    full_time: bool,
    /// Accepted for habit: names that start with a dot are listed in any case ('.' and '..' never)
    #[arg(short, long, visible_short_alias = 'A')]
    all: bool,
    /// Accepted for habit: entries are one a line in any case
    #[arg(short = '1')]
    one_a_line: bool,
    /// Subdirectories and subvolumes too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// A directory itself, not what it holds
    #[arg(short, long)]
    directory: bool,
    /// In the order of the directory (of creation) instead of sorted
    #[arg(short = 'U')]
    unsorted: bool,
    /// The newest first, by mtime
    #[arg(short = 't', conflicts_with = "unsorted")]
    by_time: bool,
    /// The other way round
    #[arg(short, long)]
    reverse: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// What to list, as IMAGE:/path or IMAGE
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Bytes of the longest path whose directory is listed, sixteen times what a kernel takes: below, the lines of a hostile
/// tree would grow without end.
const SHOWN_MAX: usize = 65536;

impl Args {
    fn is_long(&self) -> bool {
        self.long || self.full_time
    }

    fn in_order(&self, fs: &Filesystem, entries: Vec<Listed>) -> Vec<Listed> {
        let mut entries = if self.unsorted { entries } else { sorted(entries) };
        if self.by_time {
            // An inode that cannot be read has no time, and is reported where it is printed.
            entries.sort_by_cached_key(|e| {
                Reverse(fs.info(e.place).ok().map(|i| (i.mtime().sec.get(), i.mtime().nsec.get())))
            });
        }
        if self.reverse {
            entries.reverse();
        }
        entries
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let addresses = args.image.addresses(&args.paths)?;
    let mut printer = Printer::new(args, ui, addresses.len());
    args.image.for_each(&addresses, ui, |image, address| list(args, ui, image, address, &mut printer))?;
    printer.finish()
}

fn list(args: &Args, ui: &Ui, image: &Opened, address: &Address, printer: &mut Printer<'_>) -> Result<()> {
    let fs = &image.fs;
    let top = image.resolve(&address.path, !args.is_long() && !args.directory)?;
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
        let entries = args.in_order(fs, entries);
        printer.directory(&path, args.recursive)?;
        for entry in &entries {
            printer.entry(fs, Some(&path), entry)?;
        }
        if args.recursive {
            for below in entries.iter().rev().filter(|e| e.file_type == FileType::DIR) {
                let path = join(&path, &below.name);
                if path.len() <= SHOWN_MAX {
                    pending.push((below.place, path));
                    continue;
                }
                let shown = Address { image: address.image.clone(), path };
                ui.fail(&format!("{shown}: file name too long: not listed"), FAILED);
            }
        }
    }
    Ok(())
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
            escape: std::io::stdout().is_terminal() || args.is_long(),
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
        if self.args.is_long() {
            match fs.info(entry.place) {
                Ok(info) => self.write_long(&info)?,
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
        if self.args.is_long() && entry.file_type == FileType::SYMLINK {
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

    fn write_long(&mut self, info: &Info) -> Result<()> {
        let i = &info.item;
        let size = match info.device_number() {
            Some((major, minor)) => format!("{major}, {minor}"),
            None if self.args.human_readable => human_size(info.size()),
            None => i.size.to_string(),
        };
        let (mode, mtime) = (mode_string(info.mode()), info.mtime());
        let time = if self.args.full_time { iso_time(mtime) } else { list_time(mtime) };
        write!(self.out, "{mode} {:>3} {:>5} {:>5} {size:>10} {time} ", i.nlink, i.uid, i.gid)?;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if self.args.json {
            return print_json(json!({ "entries": self.json }));
        }
        self.out.flush()?;
        Ok(())
    }
}
