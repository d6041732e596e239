//! `du`: what files take.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufWriter, StdoutLock, Write as _};

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::read::Info;
use btrfsimg_ondisk::FileType;
use serde_json::{Map, Value, json};

use super::entries::{Listed, read_dir, sorted};
use crate::address::{Address, ImageArgs, Opened};
use crate::output::{Ui, human_size, print_json, put_bytes, shown, stdout};

/// Sum up what files take, directory by directory
///
/// As du(1) in a mounted file system: whole sectors, without holes, before compression, a file with several names once;
/// in units of 1024 bytes. Subvolumes count as well. 'inspect compression' says what compression and shared extents
/// save, 'df' how full the image is.
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg du -sh out.img:/usr
  btrfsimg du -h -d 1 out.img
  btrfsimg du -a --json out.img:/etc"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Only the sum of each PATH
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,
    /// Files too, not only directories
    #[arg(short, long)]
    all: bool,
    /// Only what is at most so many levels below PATH
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Sizes in K, M, G (1024), rounded up
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// The sum of all PATHs at the end
    #[arg(short = 'c', long)]
    total: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Files and directories, as IMAGE:/path or IMAGE
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let addresses = args.image.addresses(&args.paths)?;
    let mut teller = Teller { args, out: stdout(), documents: Vec::new() };
    // Files with several names that were counted, by image: numbers of another one are other files.
    let (mut counted, mut image_of_counted) = (HashSet::new(), None);
    let mut total = 0_u64;
    args.image.for_each(&addresses, ui, |image, address| {
        if image_of_counted.as_ref() != Some(&address.image) {
            counted.clear();
            image_of_counted = Some(address.image.clone());
        }
        let count = Count {
            ui,
            image,
            address,
            counted: &mut counted,
            visited: HashSet::new(),
            path: Vec::new(),
            levels: Vec::new(),
        };
        let sum = count.below(&mut teller)?;
        total = total.saturating_add(sum);
        Ok(())
    })?;
    if args.json {
        return print_json(json!({ "usage": teller.documents, "total": total }));
    }
    if args.total {
        teller.say(total, b"total", 0, true)?;
    }
    teller.out.flush()?;
    Ok(())
}

/// Prints what was counted, or keeps it for the JSON document.
struct Teller<'a> {
    args: &'a Args,
    out: BufWriter<StdoutLock<'static>>,
    documents: Vec<Value>,
}

impl Teller<'_> {
    fn say(&mut self, bytes: u64, path: &[u8], depth: usize, is_dir: bool) -> Result<()> {
        let max = if self.args.summarize { Some(0) } else { self.args.max_depth };
        if max.is_some_and(|max| depth > max) || !(is_dir || self.args.all || depth == 0) {
            return Ok(());
        }
        if self.args.json {
            let mut object = Map::new();
            put_bytes(&mut object, "path", path);
            object.insert("bytes".to_owned(), bytes.into());
            self.documents.push(object.into());
            return Ok(());
        }
        let size = match self.args.human_readable {
            true => human_size(bytes),
            false => bytes.div_ceil(1024).to_string(),
        };
        Ok(writeln!(self.out, "{size}\t{}", shown(path))?)
    }
}

/// A count below one path.
struct Count<'a> {
    ui: &'a Ui,
    image: &'a Opened,
    address: &'a Address,
    counted: &'a mut HashSet<Place>,
    /// Directories that were entered: in a sound image each has one name.
    visited: HashSet<Place>,
    /// Where it is.
    path: Vec<u8>,
    levels: Vec<Level>,
}

/// A directory on the way down.
struct Level {
    /// Bytes of the path of the directory above.
    above: usize,
    /// The last one is next.
    left: Vec<Listed>,
    bytes: u64,
}

impl Count<'_> {
    /// Counts all, and tells of directories when all below them is counted. Not recursive: trees may be deep.
    fn below(mut self, teller: &mut Teller<'_>) -> Result<u64> {
        let top = self.image.resolve(&self.address.path, false)?;
        let info = self.image.fs.info(top)?;
        self.path = self.address.path.clone();
        let Some(own) = self.own(&info) else { return Ok(0) };
        if !info.is_dir() {
            teller.say(own, &self.path, 0, false)?;
            return Ok(own);
        }
        self.visited.insert(top);
        self.enter(top, 0, own);
        let mut sum = 0;
        while let Some(level) = self.levels.last_mut() {
            match level.left.pop() {
                Some(entry) => self.entry(&entry, teller)?,
                None => sum = self.leave(teller)?,
            }
        }
        Ok(sum)
    }

    fn entry(&mut self, entry: &Listed, teller: &mut Teller<'_>) -> Result<()> {
        let above = self.path.len();
        if !self.path.ends_with(b"/") {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&entry.name);
        match self.image.fs.info(entry.place).map(|info| self.own(&info)) {
            Err(error) => self.fail(&error),
            Ok(None) => {}
            Ok(Some(own)) if entry.file_type != FileType::DIR => {
                let depth = self.levels.len();
                self.levels.last_mut().into_iter().for_each(|dir| dir.bytes = dir.bytes.saturating_add(own));
                teller.say(own, &self.path, depth, false)?;
            }
            Ok(Some(own)) if entry.place.is_empty_dir() || self.visited.insert(entry.place) => {
                self.enter(entry.place, above, own);
                return Ok(());
            }
            Ok(Some(_)) => self.fail(&Error::corrupt("LK-08", "a second name of a directory")),
        }
        self.path.truncate(above);
        Ok(())
    }

    fn enter(&mut self, dir: Place, above: usize, bytes: u64) {
        let entries = read_dir(&self.image.fs, dir, |error| self.fail(&error)).unwrap_or_else(|error| {
            self.fail(&error);
            Vec::new()
        });
        let mut left = sorted(entries);
        left.reverse();
        self.levels.push(Level { above, left, bytes });
    }

    fn leave(&mut self, teller: &mut Teller<'_>) -> Result<u64> {
        let Some(Level { above, bytes, .. }) = self.levels.pop() else { return Ok(0) };
        teller.say(bytes, &self.path, self.levels.len(), true)?;
        self.path.truncate(above);
        self.levels.last_mut().into_iter().for_each(|dir| dir.bytes = dir.bytes.saturating_add(bytes));
        Ok(bytes)
    }

    /// What an inode takes, unless it was counted by another name.
    fn own(&mut self, info: &Info) -> Option<u64> {
        let again = info.item.nlink.get() > 1 && !info.is_dir() && !self.counted.insert(info.place);
        let sectorsize = self.image.fs.superblock().sectorsize.get();
        (!again).then(|| info.blocks(sectorsize).saturating_mul(512))
    }

    fn fail(&self, error: &Error) {
        let at = Address { image: self.address.image.clone(), path: self.path.clone() };
        self.ui.fail_at(&at.to_string(), error);
    }
}
