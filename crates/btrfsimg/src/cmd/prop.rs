//! `prop`: properties, as `btrfs property` has them.

mod get;
mod list;
mod set;

use std::ffi::OsString;

use anyhow::{Result, bail};
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::read::Filesystem;

use crate::address::ImageArgs;
use crate::edit::{self, Edit};
use crate::output::Ui;

/// Show and change properties: compression of files and directories, ro of subvolumes, label of the file system
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg prop set out.img:/data compression zstd:3
  btrfsimg prop get out.img:/data
  btrfsimg prop list out.img:/data")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: PropCommand,
}

#[derive(clap::Subcommand, Debug)]
enum PropCommand {
    Get(get::Args),
    Set(set::Args),
    List(list::Args),
}

impl Args {
    /// What changes an image.
    pub(crate) fn edit(&self) -> Option<&dyn Edit> {
        match &self.command {
            PropCommand::Set(args) => Some(args),
            PropCommand::Get(_) | PropCommand::List(_) => None,
        }
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    match &args.command {
        PropCommand::Get(args) => get::run(args, ui),
        PropCommand::Set(args) => edit::run(args, ui),
        PropCommand::List(args) => list::run(args, ui),
    }
}

/// What get, set and list are about.
#[derive(clap::Args, Debug)]
struct ObjectArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Take the object as this: inode, subvol or filesystem (i, s, f)
    #[arg(short = 't', long = "type", value_name = "TYPE", value_parser = parse_type)]
    object_type: Option<ObjectType>,
    /// A file, directory or subvolume as IMAGE:/path; IMAGE alone is the file system
    object: OsString,
}

/// What a property belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ObjectType {
    Inode,
    Subvol,
    Filesystem,
}

impl ObjectType {
    fn name(self) -> &'static str {
        match self {
            ObjectType::Inode => "inode",
            ObjectType::Subvol => "subvol",
            ObjectType::Filesystem => "filesystem",
        }
    }
}

fn parse_type(text: &str) -> Result<ObjectType, String> {
    match text {
        "i" | "inode" => Ok(ObjectType::Inode),
        "s" | "subvol" => Ok(ObjectType::Subvol),
        "f" | "filesystem" => Ok(ObjectType::Filesystem),
        _ => Err(format!("invalid object type: {text}; valid are inode, subvol, filesystem")),
    }
}

/// A property, in the order in which they are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Property {
    Ro,
    Label,
    Compression,
}

impl Property {
    const ALL: [Property; 3] = [Property::Ro, Property::Label, Property::Compression];

    fn name(self) -> &'static str {
        match self {
            Property::Ro => "ro",
            Property::Label => "label",
            Property::Compression => "compression",
        }
    }

    fn parse(name: &str) -> Result<Property> {
        match Property::ALL.into_iter().find(|p| p.name() == name) {
            Some(property) => Ok(property),
            None => bail!("unknown property: {name}; there are ro, label, compression"),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Property::Ro => "read-only status of a subvolume",
            Property::Label => "label of the filesystem",
            Property::Compression => "compression algorithm for the file or directory",
        }
    }

    /// What it belongs to.
    fn object_type(self) -> ObjectType {
        match self {
            Property::Ro => ObjectType::Subvol,
            Property::Label => ObjectType::Filesystem,
            Property::Compression => ObjectType::Inode,
        }
    }
}

/// The properties of the object at `place`: of one type, or of all that it is.
fn properties_of(fs: &Filesystem, place: Place, wanted: Option<ObjectType>) -> Result<Vec<Property>> {
    let is_subvolume = place == Place::root(place.tree);
    let mut types = vec![];
    let info = fs.info(place)?;
    if info.is_dir() || info.file_type() == Some(btrfsimg_ondisk::FileType::REG_FILE) {
        types.push(ObjectType::Inode);
    }
    if is_subvolume {
        types.push(ObjectType::Subvol);
    }
    if place == Place::TOP {
        types.push(ObjectType::Filesystem);
    }
    if let Some(wanted) = wanted {
        if !types.contains(&wanted) && wanted != ObjectType::Inode {
            bail!("object is not compatible with type: {}", wanted.name());
        }
        types.retain(|t| *t == wanted);
    }
    Ok(Property::ALL.into_iter().filter(|p| types.contains(&p.object_type())).collect())
}
