//! `lsattr`: inode flags of an image.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::Result;
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::read::Filesystem;
use btrfsimg_ondisk::FileType;
use serde_json::{Map, Value, json};

use super::chattr::letters;
use super::entries::{join, read_dir, sorted};
use crate::address::{Address, ImageArgs, Opened};
use crate::output::{Ui, print_json, put_bytes, shown, stdout};

/// Show inode flags
///
/// The letters are those of 'chattr', and V for fs-verity; of a directory, those of its entries.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg lsattr out.img:/etc
  btrfsimg lsattr -d out.img:/var/lib/libvirt/images")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Directories themselves, not what they hold
    #[arg(short, long)]
    directory: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files and directories, as IMAGE:/path or IMAGE
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let addresses = args.image.addresses(&args.paths)?;
    let mut rows = Vec::new();
    args.image.for_each(&addresses, ui, |image, address| list(args, ui, image, address, &mut rows))?;
    if args.json {
        let object = |(path, flags): &(Vec<u8>, String)| {
            let mut object = Map::new();
            put_bytes(&mut object, "path", path);
            object.insert("flags".to_owned(), flags.clone().into());
            Value::Object(object)
        };
        return print_json(json!({ "files": rows.iter().map(object).collect::<Vec<_>>() }));
    }
    let mut out = stdout();
    for (path, flags) in rows {
        writeln!(out, "{flags:-<10} {}", shown(&path))?;
    }
    out.flush()?;
    Ok(())
}

fn list(
    args: &Args,
    ui: &Ui,
    image: &Opened,
    address: &Address,
    rows: &mut Vec<(Vec<u8>, String)>,
) -> Result<()> {
    let fs = &image.fs;
    let top = image.resolve(&address.path, true)?;
    if args.directory || !fs.info(top)?.is_dir() {
        rows.push((address.path.clone(), flags_of(fs, top)?));
        return Ok(());
    }
    for entry in sorted(read_dir(fs, top, |e| ui.fail_at(&address.to_string(), &e))?) {
        // Others have no such flags.
        if !matches!(entry.file_type, FileType::REG_FILE | FileType::DIR) {
            continue;
        }
        let path = join(&address.path, &entry.name);
        match flags_of(fs, entry.place) {
            Ok(flags) => rows.push((path, flags)),
            Err(error) => {
                let at = Address { image: address.image.clone(), path };
                ui.fail_at(&at.to_string(), &error);
            }
        }
    }
    Ok(())
}

fn flags_of(fs: &Filesystem, place: Place) -> btrfsimg_fs::Result<String> {
    Ok(letters(fs.info(place)?.item.flags.get()))
}
