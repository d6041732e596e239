//! From a path to an inode.

use btrfsimg_ondisk::FileType;

use super::{Items, Place, check_name, find_entry, inode, lookup_inode, symlink_target, target};
use crate::error::{Error, Result};
use crate::existing::SymlinkFault;

/// Symlinks that one path may lead through, as in Linux.
pub const SYMLINKS_MAX: usize = 40;

/// The inode that `path` names, seen from the directory `start`, which is also where absolute targets of symlinks
/// start and what `..` does not leave. Crosses into subvolumes. The last component, when it is a symlink, is
/// followed if `follow_last` says so or a slash follows it.
///
/// # Errors
/// `NotFound` and `NotDirectory` with the path as given; `Invalid` after [`SYMLINKS_MAX`] symlinks; `Corrupt`, `Io`.
pub fn resolve(items: &impl Items, start: Place, path: &[u8], follow_last: bool) -> Result<Place> {
    let mut walk = Walk::new(start, path);
    let must_be_dir = path.ends_with(b"/") || path.ends_with(b"/.");
    while let Some(name) = walk.pending.pop() {
        walk.step(items, &name, follow_last || must_be_dir)?;
    }
    if must_be_dir && !walk.at_dir() {
        return Err(Error::NotDirectory(walk.shown()));
    }
    Ok(walk.at().0)
}

/// The regular file that a copy to `path`, at which a symlink stands, writes to: seen from `top`, which no part of the way
/// leaves.
///
/// # Errors
/// As [`resolve`] but for what is a [`SymlinkFault`].
pub(crate) fn file_beneath(
    items: &impl Items,
    top: Place,
    path: &[u8],
) -> Result<Result<Place, SymlinkFault>> {
    let mut walk = Walk { stays_beneath: true, ..Walk::new(top, path) };
    while let Some(name) = walk.pending.pop() {
        match walk.step(items, &name, true) {
            Ok(()) => {}
            Err(Error::NotFound(_) | Error::NotDirectory(_)) => return Ok(Err(SymlinkFault::Dangling)),
            Err(Error::Invalid(_)) if walk.symlinks > SYMLINKS_MAX => return Ok(Err(SymlinkFault::Dangling)),
            Err(Error::Invalid(_)) => return Ok(Err(SymlinkFault::LeadsOut)),
            Err(error) => return Err(error),
        }
    }
    let (place, file_type) = walk.at();
    Ok(if file_type == FileType::REG_FILE { Ok(place) } else { Err(SymlinkFault::NoFile) })
}

/// The directory that holds, or would hold, what `path` names, and the name in it.
///
/// # Errors
/// As [`resolve`], but `NotFound` and `NotDirectory` name the directory above that is missing, or is none; `Invalid`
/// when the last component cannot be the name of an entry ([`check_name`]).
pub fn resolve_parent<'p>(items: &impl Items, start: Place, path: &'p [u8]) -> Result<(Place, &'p [u8])> {
    let (walk, name) = walk_to_parent(items, start, path)?;
    Ok((walk.at().0, name))
}

/// Where that directory is a stand-in ([`Place::empty_dir`]), which does not say itself where it is: the directory that
/// it is in, and its name there.
///
/// # Errors
/// As [`resolve_parent`].
pub fn stand_in_above(items: &impl Items, start: Place, path: &[u8]) -> Result<Option<(Place, Vec<u8>)>> {
    let (mut walk, _) = walk_to_parent(items, start, path)?;
    if !walk.at().0.is_empty_dir() {
        return Ok(None);
    }
    let last = walk.above.pop();
    Ok(last.map(|last| (walk.at().0, last.name)))
}

fn walk_to_parent<'p>(items: &impl Items, start: Place, path: &'p [u8]) -> Result<(Walk<'p>, &'p [u8])> {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
    let trimmed = &path[..end];
    let cut = trimmed.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
    let (parent, name) = trimmed.split_at(cut);
    if name.is_empty() {
        return Err(Error::Invalid(format!("{}: is the top directory", String::from_utf8_lossy(path))));
    }
    check_name(name)?;
    let mut walk = Walk::new(start, parent);
    walk.path = path;
    let mut left = walk.pending.len();
    while let Some(name) = walk.pending.pop() {
        // What a symlink on the way puts in between belongs to the component that it stands for.
        left = left.min(walk.pending.len());
        walk.step(items, &name, true).map_err(|error| match error {
            Error::NotFound(_) => Error::NotFound(shown_without_last(parent, left)),
            Error::NotDirectory(_) => Error::NotDirectory(shown_without_last(parent, left + 1)),
            error => error,
        })?;
    }
    if !walk.at_dir() {
        return Err(Error::NotDirectory(shown_without_last(parent, 0)));
    }
    Ok((walk, name))
}

/// `path` without its last `count` components, and without a slash at its end.
fn shown_without_last(path: &[u8], count: usize) -> String {
    let is_end = |at: &usize| {
        let (before, after) = (at.checked_sub(1).map(|b| path[b]), path.get(*at));
        before.is_some_and(|b| b != b'/') && matches!(after, None | Some(b'/'))
    };
    // "." is no component that a walk sees, and stays where it is.
    let counts = |at: &usize| !(path[..*at].ends_with(b"/.") || path[..*at] == *b".");
    let end = (0..=path.len()).rev().filter(is_end).filter(counts).nth(count);
    String::from_utf8_lossy(&path[..end.unwrap_or(0)]).into_owned()
}

struct Walk<'p> {
    /// As typed, for messages.
    path: &'p [u8],
    start: (Place, FileType),
    /// Components to go, the next one last.
    pending: Vec<Vec<u8>>,
    /// From below `start` down to where the walk is.
    above: Vec<Step>,
    symlinks: usize,
    /// What leads above `start`, or is absolute, is an error, and so is a name of what has no inode (yet).
    stays_beneath: bool,
}

/// An inode on the way, and the name by which it was met.
struct Step {
    place: Place,
    file_type: FileType,
    name: Vec<u8>,
}

impl<'p> Walk<'p> {
    fn new(start: Place, path: &'p [u8]) -> Walk<'p> {
        let mut walk = Walk {
            path,
            start: (start, FileType::DIR),
            pending: Vec::new(),
            above: Vec::new(),
            symlinks: 0,
            stays_beneath: false,
        };
        walk.push(path);
        walk
    }

    /// Puts the components of `path` before those to go.
    fn push(&mut self, path: &[u8]) {
        let parts = path.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".");
        let at = self.pending.len();
        self.pending.extend(parts.map(<[u8]>::to_vec));
        self.pending[at..].reverse();
    }

    fn at(&self) -> (Place, FileType) {
        self.above.last().map_or(self.start, |step| (step.place, step.file_type))
    }

    fn at_dir(&self) -> bool {
        self.at().1 == FileType::DIR
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(self.path).into_owned()
    }

    fn step(&mut self, items: &impl Items, name: &[u8], follow_last: bool) -> Result<()> {
        if !self.at_dir() {
            return Err(Error::NotDirectory(self.shown()));
        }
        if name == b".." {
            return match self.above.pop() {
                None if self.stays_beneath => Err(self.leads_out()),
                _ => Ok(()),
            };
        }
        let (dir, _) = self.at();
        let Some(entry) = find_entry(items, dir, name)? else { return Err(Error::NotFound(self.shown())) };
        let place = target(items, dir, name, entry.location)?;
        if self.stays_beneath && !place.is_empty_dir() && lookup_inode(items, place)?.is_none() {
            return Err(Error::NotFound(self.shown()));
        }
        let file_type = self.type_of(items, place, entry.file_type)?;
        if file_type == FileType::SYMLINK && (follow_last || !self.pending.is_empty()) {
            return self.follow(&symlink_target(items, place)?);
        }
        self.above.push(Step { place, file_type, name: name.to_vec() });
        Ok(())
    }

    /// The inode's own type, which is what counts where the entry lies; the entry's when there is no inode.
    fn type_of(&self, items: &impl Items, place: Place, said: FileType) -> Result<FileType> {
        if said == FileType::DIR && place.is_empty_dir() {
            return Ok(said);
        }
        let mode = inode(items, place)?.mode.get();
        Ok(FileType::from_mode(mode).unwrap_or(said))
    }

    fn follow(&mut self, link: &[u8]) -> Result<()> {
        self.symlinks += 1;
        if self.symlinks > SYMLINKS_MAX {
            return Err(Error::Invalid(format!("{}: too many levels of symbolic links", self.shown())));
        }
        if link.starts_with(b"/") {
            if self.stays_beneath {
                return Err(self.leads_out());
            }
            self.above.clear();
        }
        self.push(link);
        Ok(())
    }

    fn leads_out(&self) -> Error {
        Error::Invalid(format!("{}: leads out of the directory", self.shown()))
    }
}
