//! `prop get`.

use anyhow::{Result, bail};
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::read::Filesystem;
use serde_json::{Map, Value, json};
use std::io::Write as _;

use super::{ObjectArgs, Property, properties_of};
use crate::output::{Ui, print_json, put_bytes, stdout};

/// Print the properties of an object as name=value
///
/// A property that is not set prints nothing.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg prop get out.img:/data compression
  btrfsimg prop get -t subvol out.img:/snap ro
  btrfsimg prop get out.img")]
pub(super) struct Args {
    #[command(flatten)]
    object: ObjectArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only this one
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

pub(super) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let property = args.name.as_deref().map(Property::parse).transpose()?;
    let address = args.object.image.address(&args.object.object)?;
    let image = args.object.image.open(&address.image, ui)?;
    let place = image.resolve(&address.path, true).map_err(|e| address.about(e.into()))?;
    let mut wanted =
        properties_of(&image.fs, place, args.object.object_type).map_err(|e| address.about(e))?;
    if let Some(property) = property {
        if !wanted.contains(&property) {
            bail!("{address}: object is not compatible with property: {}", property.name());
        }
        wanted = vec![property];
    }
    let mut found = Vec::new();
    for property in wanted {
        if let Some(value) = value(&image.fs, place, property).map_err(|e| address.about(e.into()))? {
            found.push((property, value));
        }
    }
    if args.json {
        let object = |(property, value): &(Property, Vec<u8>)| {
            let mut object = Map::new();
            object.insert("name".to_owned(), property.name().into());
            put_bytes(&mut object, "value", value);
            Value::Object(object)
        };
        return print_json(json!({ "properties": found.iter().map(object).collect::<Vec<_>>() }));
    }
    let mut out = stdout();
    for (property, value) in found {
        write!(out, "{}=", property.name())?;
        out.write_all(&value)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

fn value(fs: &Filesystem, place: Place, property: Property) -> btrfsimg_fs::Result<Option<Vec<u8>>> {
    Ok(match property {
        Property::Ro => Some(lookup::subvolume_is_readonly(fs, place.tree)?.to_string().into_bytes()),
        Property::Label => Some(fs.label().to_vec()),
        Property::Compression => fs.compression_property(place)?.map(|(stored, _)| stored),
    })
}
