//! `subvol delete`: subvolumes and all they hold.

use std::collections::BTreeMap;
use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{self, Place, find_entry, resolve_parent, target};
use btrfsimg_fs::write::names::check_changeable;
use btrfsimg_fs::write::subvol;

use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::output::shown;

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
            if self.recursive {
                let entry = find_entry(cx.tx, dir, &name)?.ok_or_else(|| Error::NotFound(what.clone()))?;
                delete_inside(cx, target(cx.tx, dir, &name, entry.location)?.tree)?;
            }
            delete(cx, dir, &name, &what)
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

/// Deletes the subvolumes inside `top`, the innermost first.
fn delete_inside(cx: &mut EditCx<'_, '_>, top: u64) -> Result<()> {
    let mut inside: BTreeMap<u64, Vec<(u64, Place, Vec<u8>)>> = BTreeMap::new();
    for subvolume in lookup::subvolumes(cx.tx)? {
        if let Some((dir, name)) = subvolume.link {
            inside.entry(dir.tree).or_default().push((subvolume.id, dir, name));
        }
    }
    let mut order = Vec::new();
    let mut todo = vec![top];
    while let Some(tree) = todo.pop() {
        // Taken out, so that subvolumes that hold each other end.
        for (id, dir, name) in inside.remove(&tree).unwrap_or_default() {
            todo.push(id);
            order.push((dir, name));
        }
    }
    order.into_iter().rev().try_for_each(|(dir, name)| {
        let what = format!("subvolume '{}' in subvolume {}", shown(&name), dir.tree);
        delete(cx, dir, &name, &what)
    })
}

fn delete(cx: &mut EditCx<'_, '_>, dir: Place, name: &[u8], what: &str) -> Result<()> {
    check_changeable(cx.tx, dir, what, true)?;
    subvol::delete(cx.tx, dir, name).map_err(|error| match error {
        Error::NotFound(_) => Error::NotFound(what.to_owned()),
        Error::NotEmpty(_) => Error::Invalid(format!(
            "{what}: directory not empty: there are subvolumes in it; delete them first, or with -R"
        )),
        error => error,
    })?;
    cx.say(|| format!("Delete subvolume '{what}'"));
    Ok(())
}
