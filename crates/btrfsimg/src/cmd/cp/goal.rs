//! Where in an image a copy goes, by the rules of cp(1).

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Place, SYMLINKS_MAX, find_entry, inode, resolve, resolve_parent, symlink_target};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_ondisk::FileType;

use super::{Args, Words};
use crate::address::Address;
use crate::cmd::entries::join;
use crate::cmd::open_file::dangling;
use crate::edit::EditCx;
use crate::exit::usage;

/// Where one source goes.
pub(super) enum Goal {
    /// All that is in it, into this directory.
    Contents(Place),
    /// As this name of this directory.
    Entry(Place, Vec<u8>),
}

/// DST of a copy.
pub(super) struct Target<'t> {
    pub(super) to: &'t Address,
    /// The directory that it is, if it is one.
    dir: Option<Place>,
    /// What goes there goes as it, and not into it (`-T`).
    is_name: bool,
}

impl<'t> Target<'t> {
    /// Looks what stands at `to`, and whether the sources can go there.
    pub(super) fn find(
        args: &Args,
        cx: &EditCx<'_, '_>,
        words: &Words,
        to: &'t Address,
    ) -> Result<Target<'t>> {
        let dir = match resolve(cx.tx, cx.start, &to.path, true) {
            Ok(place) => Some(place).filter(|_| is_dir(cx.tx, place).unwrap_or(false)),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let several = words.inside.len() + words.outside.len() > 1;
        if dir.is_none() && (several || args.destination.is_directory()) {
            return Err(Error::NotDirectory(to.to_string()).into());
        }
        Ok(Target { to, dir, is_name: args.destination.is_name() })
    }

    /// Where a source goes that is called `name`, as messages have it.
    pub(super) fn address_of(&self, name: Option<&[u8]>) -> Address {
        let path = match (self.dir, name) {
            (Some(_), Some(name)) if !self.is_name => join(&self.to.path, name),
            _ => self.to.path.clone(),
        };
        Address { image: self.to.image.clone(), path }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.dir.is_some()
    }

    /// Where a source goes whose last component is `name`; `None` for one like SRC/. of which only what is in it goes.
    /// `follows`: to where a symlink that stands there leads.
    pub(super) fn goal(
        &self,
        cx: &EditCx<'_, '_>,
        name: Option<&[u8]>,
        is_dir: bool,
        follows: bool,
    ) -> Result<Goal> {
        // A directory may become DST, and then DST/ as well.
        if self.dir.is_none() && self.to.path.ends_with(b"/") && !is_dir {
            return Err(Error::NotDirectory(self.to.to_string()).into());
        }
        let name = name.filter(|_| !self.is_name);
        let (dir, name) = match (self.dir, name) {
            (Some(dir), None) if is_dir => return Ok(Goal::Contents(dir)),
            (_, name) if follows => self.file(cx, name)?,
            (Some(dir), Some(name)) => (dir, name.to_vec()),
            (Some(_), None) if self.is_name => {
                return Err(Error::IsDirectory(format!("{}: cannot overwrite it", self.to)).into());
            }
            (Some(_), None) => return Err(usage("a source without a name")),
            (None, _) => {
                let (dir, name) = resolve_parent(cx.tx, cx.start, &self.to.path)?;
                (dir, name.to_vec())
            }
        };
        Ok(Goal::Entry(dir, name))
    }

    /// The directory and name of the file that one called `name` becomes: through symlinks, as cp(1) writes.
    pub(super) fn file(&self, cx: &EditCx<'_, '_>, name: Option<&[u8]>) -> Result<(Place, Vec<u8>)> {
        through_symlinks(cx.tx, cx.start, self.address_of(name).path)
    }
}

fn is_dir(tx: &Transaction<'_>, place: Place) -> Result<bool> {
    Ok(FileType::from_mode(inode(tx, place)?.mode.get()) == Some(FileType::DIR))
}

/// The directory and name that `path` leads to when its last component is followed as long as it is a symlink. One that
/// leads to nothing is an error.
fn through_symlinks(tx: &Transaction<'_>, start: Place, mut path: Vec<u8>) -> Result<(Place, Vec<u8>)> {
    for followed in 0..=SYMLINKS_MAX {
        let (dir, name) = resolve_parent(tx, start, &path)?;
        let entry = match find_entry(tx, dir, name)? {
            None if followed > 0 => return Err(dangling().into()),
            Some(entry) if entry.file_type == FileType::SYMLINK => entry,
            _ => return Ok((dir, name.to_vec())),
        };
        let link = Place { tree: dir.tree, ino: entry.location.objectid };
        let target = symlink_target(tx, link)?;
        if target.starts_with(b"/") {
            path = target;
        } else {
            let trimmed = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
            let parent = path[..trimmed].iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
            path.truncate(parent);
            path.extend(target);
        }
    }
    Err(Error::Invalid("too many levels of symbolic links".to_owned()).into())
}
