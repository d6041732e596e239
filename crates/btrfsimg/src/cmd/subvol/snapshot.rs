//! `subvol snapshot`: snapshots of subvolumes.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{self, Place, resolve_parent};
use btrfsimg_fs::write::names::{check_changeable, refuse_existing};
use btrfsimg_fs::write::subvol;
use btrfsimg_ondisk::FileType;

use super::subvolume_at;
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;

/// Make a snapshot of a subvolume, in the same image
///
/// It shares all that the source holds until one of the two changes it. Subvolumes inside the source are not in it:
/// empty directories stand there. Inside a directory that exists, it gets the name of the source.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg subvol snapshot out.img:/data out.img:/data.copy
  btrfsimg subvol snapshot -r out.img:/ out.img:/before-upgrade")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Read-only: with the property ro
    #[arg(short, long)]
    readonly: bool,
    /// The subvolume, as IMAGE:/path
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// The snapshot, or the directory that it is to be in, as IMAGE:/path
    #[arg(value_name = "DEST")]
    dest: OsString,
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        let both = image.addresses(&[self.source.clone(), self.dest.clone()])?;
        if both.iter().any(|a| !a.is_in_image_of(&both[0])) {
            return Err(usage("a snapshot is in the image of its source; copy to another image with cp"));
        }
        Ok(both)
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let [source, dest] = cx.addresses else {
            return Err(usage("a snapshot takes a source and a destination"));
        };
        let tree = subvolume_at(cx.tx, cx.resolve(source, true)?, source)?;
        let (dir, name) = destination(cx, source, dest).map_err(|e| dest.about(e))?;
        refuse_existing(cx.tx, dir, &name, &dest.to_string())?;
        check_changeable(cx.tx, dir, &dest.to_string(), false)?;
        subvol::snapshot(cx.tx, tree, dir, &name, self.readonly).map_err(|e| dest.about(e.into()))?;
        let kind = if self.readonly { "readonly snapshot" } else { "snapshot" };
        cx.say(|| format!("Create a {kind} of '{source}' in '{dest}'"));
        Ok(())
    }
}

/// The directory that the snapshot is put into, and its name there.
fn destination(cx: &EditCx<'_, '_>, source: &Address, dest: &Address) -> Result<(Place, Vec<u8>)> {
    match lookup::resolve(cx.tx, cx.start, &dest.path, true) {
        Ok(place) => {
            let mode = lookup::inode(cx.tx, place)?.mode.get();
            if FileType::from_mode(mode) != Some(FileType::DIR) {
                return Err(Error::Exists(dest.to_string()).into());
            }
            let name = source.path.split(|b| *b == b'/').rfind(|part| !part.is_empty() && *part != b".");
            let name = name.ok_or_else(|| Error::Exists(dest.to_string()))?;
            Ok((place, name.to_vec()))
        }
        Err(Error::NotFound(_)) => {
            let (dir, name) = resolve_parent(cx.tx, cx.start, &dest.path)?;
            Ok((dir, name.to_vec()))
        }
        Err(error) => Err(error.into()),
    }
}
