//! `rm`: names out of an image.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Place, find_entry, resolve_parent, target};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::names::check_changeable;
use btrfsimg_fs::write::remove::{is_empty_dir, remove_tree, unlink_checked};
use btrfsimg_ondisk::FileType;

use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};

/// Remove files and directories from an image
///
/// A tree with a subvolume in it is refused as a whole.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg rm out.img:/etc/machine-id
  btrfsimg rm -r out.img:/usr/share/doc out.img:/usr/share/man
  btrfsimg rm -f out.img:/maybe/there")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Directories and all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Empty directories
    #[arg(short, long)]
    dir: bool,
    /// What is not there is no error
    #[arg(short, long)]
    force: bool,
    /// What to remove, as IMAGE:/path
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
        cx.each(|cx, address| match remove(cx.tx, cx.start, address, self) {
            Err(Error::NotFound(_)) if self.force => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => {
                cx.say(|| format!("removed '{address}'"));
                Ok(())
            }
        })
    }
}

fn remove(tx: &mut Transaction<'_>, start: Place, address: &Address, args: &Args) -> btrfsimg_fs::Result<()> {
    let shown = address.to_string();
    let (dir, name) = resolve_parent(tx, start, &address.path)?;
    let entry = find_entry(tx, dir, name)?.ok_or_else(|| Error::NotFound(shown.clone()))?;
    if address.path.ends_with(b"/") && entry.file_type != FileType::DIR {
        return Err(Error::NotDirectory(shown));
    }
    check_changeable(tx, dir, &shown, true)?;
    if entry.is_subvolume() {
        let what = format!("{shown}: is a subvolume, which rm does not remove");
        return Err(Error::Invalid(what));
    }
    let place = target(tx, dir, name, entry.location)?;
    if entry.file_type != FileType::DIR {
        return unlink_checked(tx, dir, name, place, &shown);
    }
    if args.recursive {
        return remove_tree(tx, dir, name, place, &shown);
    }
    if !args.dir {
        return Err(Error::Invalid(format!("{shown}: is a directory; remove it with -r")));
    }
    if !is_empty_dir(tx, place)? {
        return Err(Error::NotEmpty(shown));
    }
    unlink_checked(tx, dir, name, place, &shown)
}
