//! `prop list`.

use anyhow::Result;
use serde_json::json;
use std::io::Write as _;

use super::{ObjectArgs, Property, properties_of};
use crate::output::{Ui, print_json, stdout};

/// Print the properties that an object can have
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  btrfsimg prop list out.img:/data")]
pub(super) struct Args {
    #[command(flatten)]
    object: ObjectArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let address = args.object.image.address(&args.object.object)?;
    let image = args.object.image.open(&address.image, ui)?;
    let place = image.resolve(&address.path, true).map_err(|e| address.about(e.into()))?;
    let found = properties_of(&image.fs, place, args.object.object_type).map_err(|e| address.about(e))?;
    if args.json {
        let object = |p: &Property| json!({ "name": p.name(), "description": p.description() });
        return print_json(json!({ "properties": found.iter().map(object).collect::<Vec<_>>() }));
    }
    let mut out = stdout();
    for property in found {
        writeln!(out, "{:<20}{}", property.name(), property.description())?;
    }
    out.flush()?;
    Ok(())
}
