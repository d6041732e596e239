//! `prop set`: sets a property.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use anyhow::{Result, bail};
use btrfsimg_compress::PropertyChange;
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::mkfs::check_label;
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::names::check_changeable;
use btrfsimg_fs::write::xattr::{is_never_compressed, set_compression};
use btrfsimg_ondisk::FileType;

use super::{ObjectArgs, Property};
use crate::address::{Address, ImageArgs, Word, holds_btrfs, parse};
use crate::cmd::below::change_each;
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::output::shown;

/// Set a property of an object
///
/// compression (files and directories): zlib[:1-9], lzo, zstd[:-15..15], none, or '' to reset it. What is written
/// or made there later is compressed so; data that are there stay as they are, until 'defrag' makes them anew.
/// ro (subvolumes): true or false. label (the file system): up to 255 bytes.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg prop set out.img:/data compression zstd:3
  btrfsimg prop set -r out.img:/data compression zlib:9 && btrfsimg defrag -r out.img:/data
  btrfsimg prop set out.img:/data compression ''
  btrfsimg prop set out.img:/snapshot ro true
  btrfsimg prop set out.img label root")]
pub(super) struct Args {
    #[command(flatten)]
    object: ObjectArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// The property
    name: String,
    /// Its value
    value: OsString,
    /// compression: of all files and directories below too, but of those whose data are never compressed
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Also where that breaks an incremental receive
    #[arg(short, long)]
    force: bool,
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.object.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        self.change()?;
        Ok(vec![image.address(&self.object.object)?])
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let change = self.change()?;
        let value = shown(self.value.as_bytes());
        let mut left_out = Vec::new();
        change_each(cx, self.recursive, true, |tx, found, verbose| {
            if self.recursive && !matches!(found.file_type, FileType::DIR | FileType::REG_FILE) {
                return Ok(None);
            }
            if self.recursive && is_never_compressed(&lookup::inode(tx, found.place)?) {
                left_out.push(format!("{}: left out: it is nodatacow or nodatasum", found.shown));
                return Ok(None);
            }
            apply(tx, found.place, &change, &found.shown, self.force)?;
            Ok(verbose.then(|| format!("set {}={value} of '{}'", self.name, found.shown)))
        })?;
        left_out.into_iter().for_each(|what| cx.warn(what));
        Ok(())
    }
}

impl Args {
    fn change(&self) -> Result<Change> {
        self.check_order()?;
        let property = Property::parse(&self.name)?;
        if self.object.object_type.is_some_and(|t| t != property.object_type()) {
            bail!("object is not compatible with property: {}", self.name);
        }
        if self.recursive && property != Property::Compression {
            return Err(usage(format!("-r is for compression; {} belongs to one object", self.name)));
        }
        Change::parse(property, &self.value)
    }
}

impl Args {
    /// Words in another order: says the right one.
    fn check_order(&self) -> Result<()> {
        let (object, value) = (&self.object.object, &self.value);
        let is_property = |word: &OsString| word.to_str().is_some_and(|w| Property::parse(w).is_ok());
        let is_object = |word: &OsString| matches!(parse(word), Word::Image(_)) || holds_btrfs(word.as_ref());
        let [object, name, value] = if is_property(object) && is_object(value) {
            [value.display(), object.display(), OsStr::new(&self.name).display()]
        } else if !is_property(&self.name.clone().into()) && is_property(value) {
            [object.display(), value.display(), OsStr::new(&self.name).display()]
        } else {
            return Ok(());
        };
        Err(usage(format!("the words are OBJECT NAME VALUE: btrfsimg prop set {object} {name} {value}")))
    }
}

/// A property with its value, as far as that can be judged without the image.
enum Change {
    Compression(PropertyChange),
    Ro(bool),
    Label(Vec<u8>),
}

impl Change {
    fn parse(property: Property, value: &OsString) -> Result<Change> {
        let text = || value.to_str().ok_or_else(|| usage("the value is not valid UTF-8"));
        Ok(match property {
            Property::Compression => Change::Compression(
                PropertyChange::parse_strict(text()?).map_err(|e| usage(format!("compression: {e}")))?,
            ),
            Property::Ro => match text()? {
                "true" => Change::Ro(true),
                "false" => Change::Ro(false),
                other => {
                    return Err(usage(format!(
                        "invalid value for property ro: {other}; valid are true, false"
                    )));
                }
            },
            Property::Label => {
                let label = value.clone().into_vec();
                check_label(value.as_bytes()).map_err(|e| usage(e.to_string()))?;
                Change::Label(label)
            }
        })
    }
}

fn apply(tx: &mut Transaction<'_>, place: Place, change: &Change, shown: &str, force: bool) -> Result<()> {
    let is_root = place == Place::root(place.tree);
    match change {
        Change::Compression(change) => {
            check_changeable(tx, place, shown, true)?;
            Ok(set_compression(tx, place, change, shown)?)
        }
        Change::Ro(_) if !is_root => {
            bail!("{shown}: object is not compatible with property: ro (not a subvolume)")
        }
        Change::Ro(ro) => Ok(btrfsimg_fs::write::subvol::set_readonly(tx, place.tree, *ro, force)?),
        Change::Label(_) if place != Place::TOP => {
            bail!("{shown}: object is not compatible with property: label (the file system is IMAGE alone)")
        }
        Change::Label(label) => {
            let field = &mut tx.superblock_mut().label;
            field.fill(0);
            field[..label.len()].copy_from_slice(label);
            Ok(())
        }
    }
}
