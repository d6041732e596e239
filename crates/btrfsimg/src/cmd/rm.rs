//! `rm`: names out of an image.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Entry, Place, find_entry, resolve_parent, target};
use btrfsimg_fs::write::names::check_changeable;
use btrfsimg_fs::write::remove::{RemoveOptions, remove_tree_with, rmdir, unlink_checked};
use btrfsimg_fs::write::subvol::{DeleteOptions, delete_with};
use btrfsimg_ondisk::FileType;

use super::renamed::{Rename, Renamed};
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::output::shown;

/// Remove files and directories from an image
///
/// A tree with a subvolume in it is refused as a whole, unless --subvol says that those go, too. Here that takes no
/// value: the subvolume that paths are taken from is --from-subvol. With -i, paths beside --subvol begin with '/', so
/// that neither is taken for the other.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg rm out.img:/etc/machine-id
  btrfsimg rm -r out.img:/usr/share/doc out.img:/usr/share/man
  btrfsimg rm -r --subvol out.img:/snapshots
  btrfsimg rm -f out.img:/maybe/there")]
pub(crate) struct Args {
    #[command(flatten)]
    image: Renamed<SubvolFlag>,
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
    /// With -r: subvolumes, too (takes no value, see --from-subvol)
    #[arg(id = "subvolumes", long = "subvol", requires = "recursive")]
    subvolumes: bool,
    /// What to remove, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// `--subvol` takes no value: where paths start is `--from-subvol`.
#[derive(Debug)]
enum SubvolFlag {}

impl Rename for SubvolFlag {
    fn rename(command: clap::Command) -> clap::Command {
        command.mut_arg("subvol", |arg| arg.long("from-subvol"))
    }
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image.0, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        if self.subvolumes && image.image.is_some() {
            let relative = self.paths.iter().find(|path| !path.as_encoded_bytes().starts_with(b"/"));
            if let Some(path) = relative.map(|path| shown(path.as_encoded_bytes())) {
                return Err(usage(format!(
                    "{path}: --subvol of rm removes subvolumes, too, and takes no value: to remove this write /{path}; \
                     to take paths from that subvolume, --from-subvol {path}"
                )));
            }
        }
        image.addresses(&self.paths)
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        cx.each(|cx, address| match find(cx, address) {
            Err(Error::NotFound(_) | Error::NotDirectory(_)) if self.force => Ok(()),
            found => Ok(self.remove(cx, address, found?)?),
        })
    }
}

/// What is to be removed: its directory, name and entry.
type Found<'n> = (Place, &'n [u8], Entry);

fn find<'n>(cx: &EditCx<'_, '_>, address: &'n Address) -> btrfsimg_fs::Result<Found<'n>> {
    let (dir, name) = resolve_parent(cx.tx, cx.start, &address.path)?;
    let entry = find_entry(cx.tx, dir, name)?.ok_or_else(|| Error::NotFound(address.to_string()))?;
    if address.path.ends_with(b"/") && entry.file_type != FileType::DIR {
        return Err(Error::NotDirectory(address.to_string()));
    }
    Ok((dir, name, entry))
}

impl Args {
    fn remove(
        &self,
        cx: &mut EditCx<'_, '_>,
        address: &Address,
        (dir, name, entry): Found<'_>,
    ) -> btrfsimg_fs::Result<()> {
        let shown = address.to_string();
        check_changeable(cx.tx, dir, &shown, true)?;
        if self.subvolumes {
            cx.drop_deleted();
        }
        let place = target(cx.tx, dir, name, entry.location)?;
        if entry.file_type != FileType::DIR {
            unlink_checked(cx.tx, dir, name, place, &shown)?;
            cx.say(|| format!("removed '{shown}'"));
            return Ok(());
        }
        if !self.recursive && !self.dir {
            return Err(Error::Invalid(format!("{shown}: is a directory; remove it with -r")));
        }
        if entry.is_subvolume() && !place.is_empty_dir() {
            if !self.subvolumes {
                let fix = "'rm -r --subvol' and 'subvol delete' do";
                return Err(Error::Invalid(format!(
                    "{shown}: is a subvolume, which rm does not remove; {fix}"
                )));
            }
            let mut options =
                DeleteOptions { shown: &shown, recursive: true, drop_at_once: 0, deleted: &mut |_| {} };
            delete_with(cx.tx, dir, name, &mut options)?;
        } else if self.recursive && !place.is_empty_dir() {
            let (mut removed, verbose) = (Vec::new(), cx.verbose);
            let mut tell = |shown: &str, is_dir: bool| {
                if verbose {
                    removed.push((shown.to_owned(), is_dir));
                }
            };
            let mut options = RemoveOptions { subvolumes: self.subvolumes, removed: &mut tell };
            remove_tree_with(cx.tx, dir, name, place, &shown, &mut options)?;
            for (shown, is_dir) in removed.into_iter().rev() {
                cx.say(|| format!("removed {}'{shown}'", if is_dir { "directory " } else { "" }));
            }
            return Ok(());
        } else {
            rmdir(cx.tx, dir, name, &shown)?;
        }
        cx.say(|| format!("removed directory '{shown}'"));
        Ok(())
    }
}
