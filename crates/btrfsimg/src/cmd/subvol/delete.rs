//! `subvol delete`: subvolumes and all they hold.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{self, Place, resolve_parent};
use btrfsimg_fs::write::subvol::{DeleteOptions, delete_with};

use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};

/// Delete subvolumes, read-only ones too
///
/// The names go in one commit; what only these subvolumes use is freed in it, or, where that is much, in further ones.
/// When it is interrupted in between, the image is whole: 'subvol sync', the next 'subvol delete' or a kernel that
/// mounts the image goes on. Subvolumes with others in them are refused, as is the default one.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg subvol delete out.img:/data.1 out.img:/data.2
  btrfsimg subvol delete -R out.img:/containers
  btrfsimg subvol delete --subvolid 260 out.img")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// The subvolumes inside them as well
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Wait for the commit at the end, as always here: all names of one image go in one commit, which is durable
    #[arg(short = 'c', long)]
    commit_after: bool,
    /// As -c: with one commit, none is gone without the others
    #[arg(short = 'C', long, conflicts_with = "commit_after")]
    commit_each: bool,
    /// The subvolume with this id, wherever it is
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// The subvolumes, as IMAGE:/path; IMAGE alone with --subvolid
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        image.addresses(&self.paths)
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        cx.each(|cx, address| {
            let (dir, name, what) = match self.subvolid {
                Some(id) => by_id(cx, id, address)?,
                None => by_path(cx, address)?,
            };
            let mut gone = Vec::new();
            let deleted = &mut |shown: &str| gone.push(shown.to_owned());
            let mut options =
                DeleteOptions { shown: &what, recursive: self.recursive, drop_at_once: 8, deleted };
            delete_with(cx.tx, dir, &name, &mut options).map_err(|error| match error {
                Error::NotEmpty(_) => Error::Invalid(format!(
                    "{what}: directory not empty: there are subvolumes in it; delete them first, or with -R"
                )),
                error => error,
            })?;
            gone.iter().for_each(|shown| cx.say(|| format!("Delete subvolume '{shown}'")));
            Ok(())
        })?;
        cx.drop_deleted();
        Ok(())
    }
}

fn by_path(cx: &EditCx<'_, '_>, address: &Address) -> Result<(Place, Vec<u8>, String)> {
    let (dir, name) = resolve_parent(cx.tx, cx.start, &address.path)?;
    Ok((dir, name.to_vec(), address.to_string()))
}

fn by_id(cx: &EditCx<'_, '_>, id: u64, address: &Address) -> Result<(Place, Vec<u8>, String)> {
    let what = format!("{}: subvolume {id}", address.image.display());
    let link = match lookup::subvolume(cx.tx, id)? {
        Some(_) => lookup::subvolume_link(cx.tx, id)?,
        None => None,
    };
    let (dir, name) =
        link.ok_or_else(|| Error::Invalid(format!("{what}: no such subvolume below the top")))?;
    Ok((dir, name, what))
}
