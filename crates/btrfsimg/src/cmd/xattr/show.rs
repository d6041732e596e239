//! `xattr get` and `xattr list`.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup;
use serde_json::{Map, Value, json};

use super::value;
use crate::address::ImageArgs;
use crate::output::{Ui, print_json, put_bytes, shown, stdout};

/// What both take.
#[derive(clap::Args, Debug)]
struct ObjectArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Of a symlink itself, not of what it leads to
    #[arg(short = 'h', long = "no-dereference")]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The file, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
}

/// Print an extended attribute's value, or all as name=value
///
/// Values that are no text are printed in base64, as 0s…: 'xattr set' takes them so.
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg xattr get out.img:/data
  btrfsimg xattr get out.img:/data user.origin
  btrfsimg xattr get --raw out.img:/bin/ping security.capability | xxd"
)]
pub(super) struct GetArgs {
    #[command(flatten)]
    object: ObjectArgs,
    /// Print the value's bytes as they are
    #[arg(long, conflicts_with = "json", requires = "name")]
    raw: bool,
    /// Only this one
    name: Option<OsString>,
}

/// Print the names of extended attributes
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg xattr list out.img:/bin/ping"
)]
pub(super) struct ListArgs {
    #[command(flatten)]
    object: ObjectArgs,
}

impl ObjectArgs {
    /// Names and values, sorted by name.
    fn read(&self, ui: &Ui, name: Option<&[u8]>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let address = self.image.address(&self.path)?;
        let image = self.image.open(&address.image, ui)?;
        let found = image
            .resolve(&address.path, !self.no_dereference)
            .and_then(|place| lookup::xattrs(&image.fs, place));
        let mut found = found.map_err(|e| address.about(e.into()))?;
        found.sort_unstable();
        if let Some(name) = name {
            found.retain(|(n, _)| n == name);
            if found.is_empty() {
                let what = format!("{address}: no data available: it has no xattr {}", shown(name));
                return Err(Error::Invalid(what).into());
            }
        }
        Ok(found)
    }
}

pub(super) fn get(args: &GetArgs, ui: &Ui) -> Result<()> {
    let name = args.name.as_ref().map(|name| name.as_bytes());
    let found = args.object.read(ui, name)?;
    if args.object.json {
        return print_all(&found, true);
    }
    let mut out = stdout();
    for (of, value) in &found {
        match name {
            Some(_) if args.raw => out.write_all(value)?,
            Some(_) => writeln!(out, "{}", value::shown(value))?,
            None => writeln!(out, "{}={}", shown(of), value::shown(value))?,
        }
    }
    out.flush()?;
    Ok(())
}

pub(super) fn list(args: &ListArgs, ui: &Ui) -> Result<()> {
    let found = args.object.read(ui, None)?;
    if args.object.json {
        return print_all(&found, false);
    }
    let mut out = stdout();
    for (name, _) in &found {
        writeln!(out, "{}", shown(name))?;
    }
    out.flush()?;
    Ok(())
}

fn print_all(found: &[(Vec<u8>, Vec<u8>)], values: bool) -> Result<()> {
    let object = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let mut object = Map::new();
        put_bytes(&mut object, "name", name);
        if values {
            put_bytes(&mut object, "value", value);
        }
        Value::Object(object)
    };
    print_json(json!({ "xattrs": found.iter().map(object).collect::<Vec<_>>() }))
}
