//! `rmdir`: empty directories out of an image.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{find_entry, resolve_parent, target};
use btrfsimg_fs::write::names::check_changeable;
use btrfsimg_fs::write::remove::{has_entries, rmdir};
use btrfsimg_fs::write::subvol;

use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};

/// Remove empty directories from an image
///
/// As in a mounted file system, an empty subvolume goes as well, unless it is read-only or the default one.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg rmdir out.img:/mnt
  btrfsimg rmdir -p out.img:/old/empty/tree
  btrfsimg rmdir --ignore-fail-on-non-empty out.img:/opt out.img:/srv")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// The directories above as well: 'rmdir -p a/b' is 'rmdir a/b a'
    #[arg(short, long)]
    parents: bool,
    /// One that is not empty stays, and is no error
    #[arg(long)]
    ignore_fail_on_non_empty: bool,
    /// The directories, as IMAGE:/path
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
            let mut next = Some(address.clone());
            while let Some(address) = next {
                match remove(cx, &address).map_err(|e| address.about(e)) {
                    Err(error) if self.ignore_fail_on_non_empty && is_not_empty(&error) => return Ok(()),
                    result => result?,
                }
                cx.say(|| format!("removed directory '{address}'"));
                next = if self.parents { above(&address) } else { None };
            }
            Ok(())
        })
    }
}

fn is_not_empty(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::NotEmpty(_)))
}

/// The directory that is written before the last component, if there is one.
fn above(address: &Address) -> Option<Address> {
    let trimmed = |path: &[u8]| path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let name = &address.path[..trimmed(&address.path)];
    let dir = &name[..name.iter().rposition(|b| *b == b'/').unwrap_or(0)];
    let dir = &dir[..trimmed(dir)];
    (!dir.is_empty()).then(|| Address { image: address.image.clone(), path: dir.to_vec() })
}

fn remove(cx: &mut EditCx<'_, '_>, address: &Address) -> Result<()> {
    let shown = address.to_string();
    let (dir, name) = resolve_parent(cx.tx, cx.start, &address.path)?;
    let entry = find_entry(cx.tx, dir, name)?.ok_or_else(|| Error::NotFound(shown.clone()))?;
    let place = target(cx.tx, dir, name, entry.location)?;
    if !entry.is_subvolume() || place.is_empty_dir() {
        return Ok(rmdir(cx.tx, dir, name, &shown)?);
    }
    check_changeable(cx.tx, dir, &shown, true)?;
    check_changeable(cx.tx, place, &shown, true)?;
    if has_entries(cx.tx, place)? {
        return Err(Error::NotEmpty(shown).into());
    }
    subvol::delete(cx.tx, dir, name).map_err(|e| address.about(e.into()))?;
    cx.drop_deleted();
    Ok(())
}
