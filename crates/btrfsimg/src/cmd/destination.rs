//! Where `cp`, `mv` and `ln` put things: the last word is a name, or a directory that takes them.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Place, resolve, resolve_parent};
use btrfsimg_ondisk::FileType;

use super::below::file_type;
use super::entries::join;
use crate::address::Address;
use crate::edit::EditCx;
use crate::exit::usage;

/// What the last word means.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct DestinationArgs {
    /// Into this directory; all words are sources then
    #[arg(short = 't', long, value_name = "DIR", conflicts_with = "no_target_directory")]
    target_directory: Option<OsString>,
    /// Take the last word as a name, never as a directory to put things into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

impl DestinationArgs {
    /// `-t`: where things go must be a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.target_directory.is_some()
    }

    /// `-T`: where things go is a name, whatever stands there.
    pub(crate) fn is_name(&self) -> bool {
        self.no_target_directory
    }

    /// Sources, and where to.
    pub(crate) fn split<'w>(&'w self, words: &'w [OsString]) -> Result<(&'w [OsString], &'w OsString)> {
        match (&self.target_directory, words.split_last()) {
            (Some(dir), _) => Ok((words, dir)),
            (None, Some((to, sources))) if !sources.is_empty() => Ok((sources, to)),
            _ => Err(usage("nothing to put there; write SOURCE and where to")),
        }
    }
}

/// Where things go.
pub(crate) enum Goal {
    /// Into this directory, under their own names.
    Into(Place, Address),
    /// As this entry.
    Entry(Place, Vec<u8>, Address),
}

impl Goal {
    /// What `to` means for that many things. `follow`: a symlink to a directory is that directory.
    pub(crate) fn find(
        cx: &EditCx<'_, '_>,
        to: &Address,
        args: &DestinationArgs,
        things: usize,
        follow: bool,
    ) -> Result<Goal> {
        if !args.no_target_directory {
            match resolve(cx.tx, cx.start, &to.path, follow) {
                Ok(place) if file_type(cx.tx, place)? == FileType::DIR => {
                    return Ok(Goal::Into(place, to.clone()));
                }
                Ok(_) | Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if args.target_directory.is_some() || things != 1 {
            return Err(Error::NotDirectory(to.to_string()).into());
        }
        let (dir, name) = resolve_parent(cx.tx, cx.start, &to.path)?;
        Ok(Goal::Entry(dir, name.to_vec(), to.clone()))
    }

    /// Directory, name and address of a thing that is called `base` where it comes from.
    pub(crate) fn entry(&self, base: &[u8]) -> Result<(Place, Vec<u8>, Address)> {
        match self {
            Goal::Entry(dir, name, address) => Ok((*dir, name.clone(), address.clone())),
            Goal::Into(dir, address) => {
                if base.is_empty() || base == b"." || base == b".." {
                    let base = crate::output::shown(base);
                    return Err(usage(format!("{address}: '{base}' is no name to put there; write one")));
                }
                let path = join(&address.path, base);
                Ok((*dir, base.to_vec(), Address { image: address.image.clone(), path }))
            }
        }
    }
}

/// Refuses the name of something new with a slash behind it, which only a directory may have, as the kernel does.
pub(crate) fn refuse_slash(to: &Address) -> Result<(), Error> {
    if to.path.ends_with(b"/") { Err(Error::NotFound(to.to_string())) } else { Ok(()) }
}

/// The last component of a path.
pub(crate) fn base_name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    &path[start..end]
}
