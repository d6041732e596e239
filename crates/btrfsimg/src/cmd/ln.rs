//! `ln`: hard links and symlinks.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Place, find_entry, resolve_parent, target};
use btrfsimg_fs::write::create::symlink;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::link::link;
use btrfsimg_fs::write::names::{check_changeable, refuse_existing};
use btrfsimg_fs::write::remove::unlink_checked;
use btrfsimg_ondisk::FileType;

use super::destination::{DestinationArgs, Goal, base_name, refuse_slash};
use crate::address::{self, Address, ImageArgs, Word};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::output::shown;

/// Give files of an image more names, or make symlinks
///
/// TARGET of a symlink is what it holds, any text; that of a hard link is a file in the image, in the subvolume of the
/// new name. A LINK that is a directory takes links with the names of the targets.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "btrfsimg ln [OPTIONS] <TARGET>... <IMAGE:/LINK>",
    after_help = "\
Examples:
  btrfsimg ln out.img:/bin/sh out.img:/bin/ash
  btrfsimg ln -s ../usr/lib/os-release out.img:/etc/os-release
  btrfsimg ln -sfn /usr/bin out.img:/bin"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    destination: DestinationArgs,
    /// Symlinks
    #[arg(short, long)]
    symbolic: bool,
    /// Replace what has the name
    #[arg(short, long)]
    force: bool,
    /// Take a LINK that is a symlink to a directory as a name, not as the directory
    #[arg(short, long)]
    no_dereference: bool,
    /// The targets, and last the link
    #[arg(required = true, value_name = "PATH")]
    words: Vec<OsString>,
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        let (targets, to) = self.destination.split(&self.words)?;
        let to = image.address(to)?;
        if !self.symbolic {
            for word in targets {
                let address = image.address(word)?;
                if !address.is_in_image_of(&to) {
                    let why = "a hard link is in the same image as its target; copy it with cp";
                    return Err(usage(format!("{address}: {why}")));
                }
            }
        }
        Ok(vec![to])
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let (targets, _) = self.destination.split(&self.words)?;
        cx.each(|cx, to| {
            let goal = Goal::find(cx, to, &self.destination, targets.len(), !self.no_dereference)?;
            if matches!(goal, Goal::Entry(..)) {
                refuse_slash(to)?;
            }
            targets.iter().try_for_each(|word| self.make(cx, word, &goal))
        })
    }
}

impl Args {
    fn make(&self, cx: &mut EditCx<'_, '_>, word: &OsStr, goal: &Goal) -> Result<()> {
        if self.symbolic {
            let (dir, name, at) = goal.entry(base_name(word.as_bytes()))?;
            self.make_room(cx, dir, &name, &at)?;
            check_changeable(cx.tx, dir, &at.to_string(), false)?;
            let attributes = Attributes::new(0o120_777, cx.tx.now());
            symlink(cx.tx, dir, &name, attributes, word.as_bytes()).map_err(|e| at.about(e.into()))?;
            if let Word::Image(target) = address::parse(word) {
                let (target, path) = (target.to_string(), shown(&target.path));
                cx.warn(format!(
                    "{at}: leads to '{target}' as it is written; for the place in the image write {path}"
                ));
            }
            cx.say(|| format!("'{at}' -> '{}'", shown(word.as_bytes())));
            return Ok(());
        }
        let from = cx.image.address(word)?;
        let place = cx.resolve(&from, false)?;
        let (dir, name, at) = goal.entry(base_name(&from.path))?;
        if self.force && is_name_of(cx, dir, &name, place)? {
            // As with ln(1), another name of the target is what was asked for.
            let is_itself = resolve_parent(cx.tx, cx.start, &from.path)? == (dir, &name[..]);
            return match is_itself {
                true => Err(Error::Invalid(format!("{at}: is the target itself already")).into()),
                false => Ok(()),
            };
        }
        self.make_room(cx, dir, &name, &at)?;
        link(cx.tx, place, dir, &name).map_err(|e| at.about(e.into()))?;
        cx.say(|| format!("'{at}' => '{from}'"));
        Ok(())
    }

    /// With `--force`, takes away what has the name already, but no directory.
    fn make_room(&self, cx: &mut EditCx<'_, '_>, dir: Place, name: &[u8], at: &Address) -> Result<()> {
        let shown = at.to_string();
        if !self.force {
            return Ok(refuse_existing(cx.tx, dir, name, &shown)?);
        }
        let Some(entry) = find_entry(cx.tx, dir, name)? else { return Ok(()) };
        if entry.file_type == FileType::DIR {
            return Err(Error::IsDirectory(format!("{shown}: cannot overwrite it")).into());
        }
        let old = target(cx.tx, dir, name, entry.location)?;
        check_changeable(cx.tx, dir, &shown, true)?;
        Ok(unlink_checked(cx.tx, dir, name, old, &shown)?)
    }
}

/// Whether `name` is one of the inode at `place`.
fn is_name_of(cx: &EditCx<'_, '_>, dir: Place, name: &[u8], place: Place) -> btrfsimg_fs::Result<bool> {
    let Some(entry) = find_entry(cx.tx, dir, name)? else { return Ok(false) };
    Ok(target(cx.tx, dir, name, entry.location)? == place)
}
