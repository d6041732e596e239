//! `mv`: other names.

use std::ffi::{OsStr, OsString};

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::Existing;
use btrfsimg_fs::copy::relocate;
use btrfsimg_fs::lookup::{Place, find_entry, inode, resolve_parent, stand_in_above, target};
use btrfsimg_fs::write::names::{check_attributes, check_changeable};
use btrfsimg_fs::write::rename::{refuse_into_itself, rename};
use btrfsimg_ondisk::FileType;

use super::destination::{DestinationArgs, Goal, base_name};
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;

/// Rename files, directories and subvolumes of an image
///
/// What has the new name already is replaced: a file by a file, an empty directory by a directory. A DST that is a
/// directory takes what is moved into it. Between subvolumes, files keep their extents and get new inodes, as with the
/// mv(1) of a mounted file system: with the property and flags that the new directory passes on, unless they have a
/// property of their own. A subvolume itself moves as it is.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "btrfsimg mv [OPTIONS] <IMAGE:/SRC>... <IMAGE:/DST>",
    after_help = "\
Examples:
  btrfsimg mv out.img:/etc/fstab.new out.img:/etc/fstab
  btrfsimg mv out.img:/a out.img:/b out.img:/dir/
  btrfsimg mv -T out.img:/new out.img:/current
  btrfsimg mv -i out.img /home /var/home"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    destination: DestinationArgs,
    /// Replace what has the name (that is what is done anyway)
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
    /// Replace only what is older
    #[arg(short, long, conflicts_with = "no_clobber")]
    update: bool,
    /// Replace nothing
    #[arg(short, long)]
    no_clobber: bool,
    /// What to move, and last where to
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    words: Vec<OsString>,
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        let (sources, to) = self.destination.split(&self.words)?;
        let to = image.address(to)?;
        for word in sources {
            let address = image.address(word)?;
            if !address.is_in_image_of(&to) {
                return Err(usage(format!("{address}: not in {}; copy it with cp", to.image.display())));
            }
        }
        Ok(vec![to])
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let (sources, _) = self.destination.split(&self.words)?;
        cx.each(|cx, to| {
            let goal = Goal::find(cx, to, &self.destination, sources.len(), true)?;
            sources.iter().try_for_each(|word| self.move_one(cx, word, &goal))
        })
    }
}

/// An entry that is to move.
struct Source {
    at: Address,
    dir: Place,
    name: Vec<u8>,
    place: Place,
    is_dir: bool,
    is_subvolume: bool,
}

impl Source {
    fn find(cx: &EditCx<'_, '_>, word: &OsStr) -> Result<Source> {
        let at = cx.image.address(word)?;
        let find = || -> btrfsimg_fs::Result<Source> {
            let (dir, name) = resolve_parent(cx.tx, cx.start, &at.path)?;
            let entry = find_entry(cx.tx, dir, name)?.ok_or_else(|| Error::NotFound(at.to_string()))?;
            let is_dir = entry.file_type == FileType::DIR;
            if at.path.ends_with(b"/") && !is_dir {
                return Err(Error::NotDirectory(at.to_string()));
            }
            let place = target(cx.tx, dir, name, entry.location)?;
            let is_subvolume = entry.is_subvolume();
            Ok(Source { at: at.clone(), dir, name: name.to_vec(), place, is_dir, is_subvolume })
        };
        find().map_err(|e| at.about(e.into()))
    }
}

impl Args {
    fn move_one(&self, cx: &mut EditCx<'_, '_>, word: &OsStr, goal: &Goal) -> Result<()> {
        let source = Source::find(cx, word)?;
        let (dir, name, at) = goal.entry(base_name(&source.at.path))?;
        if at.path.ends_with(b"/") && !source.is_dir {
            return Err(Error::NotDirectory(at.to_string()).into());
        }
        let old = match find_entry(cx.tx, dir, &name)? {
            Some(_) if self.no_clobber => return Ok(()),
            Some(entry) => {
                let old = target(cx.tx, dir, &name, entry.location)?;
                let mtime = |place| inode(cx.tx, place).map(|inode| inode.mtime);
                if self.update && !source.is_dir && Existing::Update.stays(mtime(old)?, mtime(source.place)?)
                {
                    return Ok(());
                }
                Some(old)
            }
            None => None,
        };
        let one_name = (dir, &name) == (source.dir, &source.name);
        if one_name || (old == Some(source.place) && !source.place.is_empty_dir()) {
            return Err(Error::Invalid(format!("{}: and {at} are the same file", source.at)).into());
        }
        if let Some((above, stand_in)) = stand_in_above(cx.tx, cx.start, &at.path)? {
            refuse_into_itself(cx.tx, source.dir, &source.name, (above, &stand_in))
                .map_err(|e| source.at.about(e.into()))?;
        }
        // Here, as the address is known: it is another's than the source's.
        check_changeable(cx.tx, source.dir, &source.at.to_string(), true)?;
        check_changeable(cx.tx, dir, &at.to_string(), old.is_some())?;
        if let Some(old) = old.filter(|old| old.tree == dir.tree && !old.is_empty_dir()) {
            check_attributes(cx.tx, old, &at.to_string())?;
        }
        let moved = if dir.tree != source.dir.tree && !source.is_subvolume {
            relocate(cx.tx, source.dir, &source.name, dir, &name)
        } else {
            rename(cx.tx, source.dir, &source.name, dir, &name)
        };
        moved.map_err(|error| match error {
            Error::NotDirectory(_) | Error::IsDirectory(_) | Error::Exists(_) => at.about(error.into()),
            // A source that is not empty moves, unless it stands for a subvolume.
            Error::NotEmpty(_) if !source.place.is_empty_dir() => at.about(error.into()),
            error => source.at.about(error.into()),
        })?;
        cx.say(|| format!("renamed '{}' -> '{at}'", source.at));
        Ok(())
    }
}
