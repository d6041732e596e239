//! Trees: entry by entry, directories after what is in them have their times.

use std::collections::{HashMap, HashSet};

use btrfsimg_compress::WorkspacePool;
use btrfsimg_ondisk::{FileType, InodeItem, Key, KeyType};

use super::file::{Fault, copy_contents as copy_file};
use super::source::Child;
use super::{Options, Report, Source};
use crate::error::{Error, Result};
use crate::existing::{Existing, Meeting};
use crate::lookup::{self, Place, file_beneath, find_entry};
use crate::posix_acl::{ACCESS_XATTR, DEFAULT_XATTR};
use crate::preserve::Modes;
use crate::txn::Transaction;
use crate::write::contents::truncate;
use crate::write::create::{create, symlink};
use crate::write::inode::{Attributes, COMPRESSION_XATTR, Xattr};
use crate::write::names::{add_entry, add_inode_ref, add_links, check_changeable, unlink, update_inode};
use crate::write::rename::is_at_or_below;
use crate::write::xattr::{remove_xattr, set_property_as_stored, set_xattr};

/// Copies the inode `from`, a directory with all below it or anything else, into the directory `dir` as `name`, as
/// cp(1) does: a file over a file gives that new contents, a directory over a directory is merged into it. Subvolumes
/// are copied as directories. `shown` is its path in messages and in the report.
///
/// # Errors
/// What ends the whole copy: `NoSpace`, `Io`, `Corrupt` of the image that is changed, `ReadOnly` of `dir`,
/// `Interrupted`; `Invalid` for a directory into itself. What one entry alone fails of is in the report.
pub fn copy_entry(
    tx: &mut Transaction<'_>,
    source: Source<'_>,
    from: Place,
    shown: &[u8],
    (dir, name): (Place, &[u8]),
    options: &Options<'_>,
    links: &mut Links,
) -> Result<Report> {
    check_changeable(tx, dir, &String::from_utf8_lossy(shown), false)?;
    refuse_into_itself(tx, source, from, dir)?;
    Copier::new(source, options, links).run(tx, shown, |copier, tx| copier.entry(tx, from, shown, dir, name))
}

/// As [`copy_entry`] within the image, but a subvolume in the tree is an error.
pub(super) fn copy_one_subvolume(
    tx: &mut Transaction<'_>,
    from: Place,
    shown: &[u8],
    dir: Place,
    name: &[u8],
    options: &Options<'_>,
) -> Result<Report> {
    refuse_into_itself(tx, Source::Here, from, dir)?;
    let mut links = Links::default();
    let copier = Copier { only: Some(from.tree), ..Copier::new(Source::Here, options, &mut links) };
    copier.run(tx, shown, |copier, tx| copier.entry(tx, from, shown, dir, name))
}

/// Copies what is in the directory `from` into the directory `to`, which takes its attributes as well where those are
/// kept.
///
/// # Errors
/// As [`copy_entry`].
pub fn copy_contents(
    tx: &mut Transaction<'_>,
    source: Source<'_>,
    from: Place,
    shown: &[u8],
    to: Place,
    options: &Options<'_>,
    links: &mut Links,
) -> Result<Report> {
    refuse_into_itself(tx, source, from, to)?;
    Copier::new(source, options, links).run(tx, shown, |copier, tx| {
        let inode = source.inode(tx, from).map_err(Fault::Source)?;
        copier.merge(tx, (from, &inode), shown, to)
    })
}

fn refuse_into_itself(tx: &Transaction<'_>, source: Source<'_>, from: Place, to: Place) -> Result<()> {
    if source.is_here() && !from.is_empty_dir() && is_at_or_below(tx, to, from)? {
        return Err(Error::Invalid("cannot copy a directory into itself".to_owned()));
    }
    Ok(())
}

/// The copies of inodes with several names, so that the names that come later become names of them: for one command and one
/// source, whatever it copies to.
#[derive(Debug, Default)]
pub struct Links {
    /// By subvolume and source: hard links do not leave a subvolume.
    copies: HashMap<(u64, Place), Place>,
}

/// A directory whose entries are to be copied.
struct Dir {
    from: Place,
    to: Place,
    shown: Vec<u8>,
}

/// A directory that gets its attributes when all is in it, its xattrs too: what is made in it has not its property.
struct Settle {
    place: Place,
    inode: InodeItem,
    xattrs: Vec<Xattr>,
    shown: Vec<u8>,
}

struct Copier<'c> {
    source: Source<'c>,
    options: &'c Options<'c>,
    /// The subvolume that the tree must not leave.
    only: Option<u64>,
    pool: WorkspacePool,
    todo: Vec<Dir>,
    /// Directories that were copied: in a sound image each has one name.
    visited: HashSet<Place>,
    settle: Vec<Settle>,
    links: &'c mut Links,
    /// The directory that all of it goes into, where that was there, and how much of what is shown is its own path.
    top: Option<(Place, usize)>,
    report: Report,
}

impl<'c> Copier<'c> {
    fn new(source: Source<'c>, options: &'c Options<'c>, links: &'c mut Links) -> Copier<'c> {
        Copier {
            source,
            options,
            only: None,
            pool: WorkspacePool::new(options.workers),
            todo: Vec::new(),
            visited: HashSet::new(),
            settle: Vec::new(),
            links,
            top: None,
            report: Report::default(),
        }
    }

    fn run(
        mut self,
        tx: &mut Transaction<'_>,
        shown: &[u8],
        first: impl FnOnce(&mut Self, &mut Transaction<'_>) -> Result<(), Fault>,
    ) -> Result<Report> {
        let done = first(&mut self, tx);
        self.note(done, shown)?;
        while let Some(dir) = self.todo.pop() {
            let done = self.directory(tx, &dir);
            self.note(done, &dir.shown)?;
        }
        for Settle { place, inode, xattrs, shown } in std::mem::take(&mut self.settle).into_iter().rev() {
            let done = self.put_xattrs(tx, place, &xattrs, &shown);
            self.note(done, &shown)?;
            self.settle_attributes(tx, place, &inode)?;
        }
        Ok(self.report)
    }

    /// What ends the copy is an error, what ends an entry is noted.
    fn note(&mut self, done: Result<(), Fault>, shown: &[u8]) -> Result<()> {
        match done {
            Err(Fault::Target(error) | Fault::Source(error @ Error::Interrupted)) => return Err(error),
            Err(Fault::Source(error)) => self.report.failures.push((shown.to_vec(), error)),
            Ok(()) => {}
        }
        Ok(())
    }

    fn directory(&mut self, tx: &mut Transaction<'_>, dir: &Dir) -> Result<(), Fault> {
        if !dir.from.is_empty_dir() && !self.visited.insert(dir.from) {
            let reason = format!("a second name of the directory {}", dir.from.ino);
            return Err(Fault::Source(Error::corrupt("LK-08", reason)));
        }
        for child in self.source.entries(tx, dir.from).map_err(Fault::Source)? {
            let Child { name, place } = match child {
                Ok(child) => child,
                Err(error) => {
                    self.note(Err(Fault::Source(error)), &dir.shown).map_err(Fault::Target)?;
                    continue;
                }
            };
            let shown = [dir.shown.as_slice(), b"/", &name].concat();
            if self.only.is_some_and(|tree| place.tree != tree || place.is_empty_dir()) {
                let shown = String::from_utf8_lossy(&shown);
                let why = format!("{shown}: is a subvolume; move it by itself first");
                return Err(Fault::Target(Error::Invalid(why)));
            }
            let done = self.entry(tx, place, &shown, dir.to, &name);
            self.note(done, &shown).map_err(Fault::Target)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        tx: &mut Transaction<'_>,
        from: Place,
        shown: &[u8],
        dir: Place,
        name: &[u8],
    ) -> Result<(), Fault> {
        self.options.check_cancelled().map_err(Fault::Target)?;
        let inode = self.source.inode(tx, from).map_err(Fault::Source)?;
        let Some(file_type) = FileType::from_mode(inode.mode.get()) else {
            let reason = format!("unknown file type 0{:o}", inode.mode.get());
            return Err(Fault::Source(Error::Invalid(reason)));
        };
        if let Some(entry) = find_entry(tx, dir, name).map_err(Fault::Target)? {
            let there = lookup::target(tx, dir, name, entry.location).map_err(Fault::Target)?;
            let (mut old, mut old_type) = (there, entry.file_type);
            let existing = self.options.existing;
            // What is not in a tree is named by the user, and was followed where it was read.
            if let Some((top, len)) = self.top
                && (old_type, file_type) == (FileType::SYMLINK, FileType::REG_FILE)
                && existing.follows_symlinks()
            {
                let file = file_beneath(tx, top, &shown[len..]).map_err(Fault::Target)?;
                old = file.map_err(|fault| Fault::Source(Error::Invalid(fault.to_string())))?;
                old_type = FileType::REG_FILE;
            }
            if self.source.is_here() && old == from {
                return refuse("source and target are the same file");
            }
            let item = lookup::inode(tx, old).map_err(Fault::Target)?;
            // One that is another name of what was copied becomes a name of the copy.
            let copy = self.links.copies.get(&(dir.tree, from)).copied();
            let meeting = existing.meeting((old_type, item.mtime), (file_type, inode.mtime));
            match meeting {
                Meeting::Merge => return self.merge(tx, (from, &inode), shown, old),
                Meeting::Refuse(reason) => return refuse(reason),
                Meeting::Stay if existing == Existing::Keep => return Ok(()),
                Meeting::Stay if copy.is_none() => {
                    self.note_links(from, &inode, old);
                    return Ok(());
                }
                Meeting::Contents | Meeting::Instead | Meeting::Stay if copy == Some(old) => return Ok(()),
                Meeting::Contents | Meeting::Instead | Meeting::Stay => changeable(tx, old, true)?,
            }
            let writes_into = || self.options.preserve.writes_into(item.nlink.get(), existing);
            if meeting == Meeting::Contents && copy.is_none() && writes_into() {
                return self.replace(tx, (from, &inode), shown, old);
            }
            unlink(tx, dir, name, there).map_err(Fault::Target)?;
        }
        self.list(shown);
        if self.link(tx, (from, &inode), dir, name, file_type).map_err(Fault::Target)? {
            return Ok(());
        }
        self.create(tx, (from, &inode), shown, dir, name, file_type)
    }

    fn list(&mut self, shown: &[u8]) {
        if self.options.list {
            self.report.copied.push(shown.to_vec());
        }
    }

    /// Another name of what was copied already.
    fn link(
        &mut self,
        tx: &mut Transaction<'_>,
        (from, inode): (Place, &InodeItem),
        dir: Place,
        name: &[u8],
        file_type: FileType,
    ) -> Result<bool> {
        if !self.options.preserve.links || inode.nlink.get() < 2 || file_type == FileType::DIR {
            return Ok(false);
        }
        let Some(copy) = self.links.copies.get(&(dir.tree, from)).copied() else { return Ok(false) };
        let index = add_entry(tx, dir, name, Key::new(copy.ino, KeyType::INODE_ITEM, 0), file_type)?;
        add_inode_ref(tx, copy, dir.ino, index, name)?;
        add_links(tx, copy, 1)?;
        Ok(true)
    }

    fn create(
        &mut self,
        tx: &mut Transaction<'_>,
        (from, inode): (Place, &InodeItem),
        shown: &[u8],
        dir: Place,
        name: &[u8],
        file_type: FileType,
    ) -> Result<(), Fault> {
        let xattrs = self.xattrs(tx, from)?;
        let attributes = self.attributes(tx, inode);
        let mode = attributes.mode;
        let made = match file_type {
            FileType::SYMLINK => {
                let target = self.source.symlink_target(tx, from).map_err(Fault::Source)?;
                symlink(tx, dir, name, attributes, &target)
            }
            _ => create(tx, dir, name, attributes, Vec::new()),
        };
        let place = match made {
            Err(error @ Error::Invalid(_)) => return Err(Fault::Source(error)),
            made => made.map_err(Fault::Target)?,
        };
        if self.options.preserve.mode == Modes::Default && file_type != FileType::SYMLINK {
            self.set_default_mode(tx, place, mode).map_err(Fault::Target)?;
        }
        self.note_links(from, inode, place);
        match file_type {
            FileType::REG_FILE => {
                let copied = self.contents(tx, (from, inode), shown, place, &xattrs);
                if let Err(Fault::Source(error)) = copied {
                    self.links.copies.remove(&(dir.tree, from));
                    unlink(tx, dir, name, place).map_err(Fault::Target)?;
                    return Err(Fault::Source(error));
                }
                copied
            }
            FileType::DIR => {
                self.descend((from, inode), shown, place, xattrs);
                Ok(())
            }
            _ => {
                self.put_xattrs(tx, place, &xattrs, shown)?;
                self.settle_attributes(tx, place, inode).map_err(Fault::Target)
            }
        }
    }

    /// The xattrs of the source that come along.
    fn xattrs(&self, tx: &Transaction<'_>, from: Place) -> Result<Vec<Xattr>, Fault> {
        let preserve = self.options.preserve;
        if !preserve.takes_xattrs() {
            return Ok(Vec::new());
        }
        let mut xattrs = self.source.xattrs(tx, from).map_err(Fault::Source)?;
        xattrs.retain(|(name, _)| preserve.takes_xattr(name));
        Ok(xattrs)
    }

    fn note_links(&mut self, from: Place, inode: &InodeItem, copy: Place) {
        if self.options.preserve.links && inode.nlink.get() > 1 {
            self.links.copies.insert((copy.tree, from), copy);
        }
    }

    /// Fills an empty file: the property first, which says how data are compressed, and the other xattrs last, as a
    /// change of the contents takes capabilities away.
    fn contents(
        &mut self,
        tx: &mut Transaction<'_>,
        (from, inode): (Place, &InodeItem),
        shown: &[u8],
        to: Place,
        xattrs: &[Xattr],
    ) -> Result<(), Fault> {
        let (property, others): (Vec<_>, Vec<_>) =
            xattrs.iter().cloned().partition(|(name, _)| name == COMPRESSION_XATTR);
        self.set_xattrs(tx, to, &property, shown)?;
        copy_file(tx, self.source, (from, inode), to, &self.pool, self.options)?;
        self.put_xattrs(tx, to, &others, shown)?;
        self.settle_attributes(tx, to, inode).map_err(Fault::Target)
    }

    /// Notes that what is in a directory is to be copied, and its attributes set behind it.
    fn descend(&mut self, (from, inode): (Place, &InodeItem), shown: &[u8], to: Place, xattrs: Vec<Xattr>) {
        self.settle.push(Settle { place: to, inode: *inode, xattrs, shown: shown.to_vec() });
        self.todo.push(Dir { from, to, shown: shown.to_vec() });
    }

    /// A directory into one that is there.
    fn merge(
        &mut self,
        tx: &mut Transaction<'_>,
        (from, inode): (Place, &InodeItem),
        shown: &[u8],
        to: Place,
    ) -> Result<(), Fault> {
        changeable(tx, to, false)?;
        self.top.get_or_insert((to, shown.len()));
        let xattrs = self.xattrs(tx, from)?;
        self.descend((from, inode), shown, to, xattrs);
        Ok(())
    }

    /// New contents for a file that is there.
    fn replace(
        &mut self,
        tx: &mut Transaction<'_>,
        (from, inode): (Place, &InodeItem),
        shown: &[u8],
        old: Place,
    ) -> Result<(), Fault> {
        self.list(shown);
        let xattrs = self.xattrs(tx, from)?;
        truncate(tx, old, 0).map_err(Fault::Target)?;
        self.note_links(from, inode, old);
        // Its old contents are gone: what of the new ones cannot be read must not take their place.
        self.contents(tx, (from, inode), shown, old, &xattrs).map_err(|fault| match fault {
            Fault::Source(error) | Fault::Target(error) => Fault::Target(error),
        })
    }

    /// What a new inode is like until it is settled. Flags are those of a new inode, as with cp(1).
    fn attributes(&self, tx: &Transaction<'_>, inode: &InodeItem) -> Attributes {
        let preserve = self.options.preserve;
        let mut a = Attributes::new(preserve.mode_of_new(inode.mode.get()), tx.now());
        a.rdev = inode.rdev.get();
        if preserve.owner {
            (a.uid, a.gid) = (inode.uid.get(), inode.gid.get());
        }
        a
    }

    /// Gives something new the mode of any new file: a default ACL of its directory says nothing of that.
    fn set_default_mode(&self, tx: &mut Transaction<'_>, place: Place, mode: u32) -> Result<()> {
        remove_xattr(tx, place, ACCESS_XATTR)?;
        update_inode(tx, place, |copy| copy.mode = (copy.mode.get() & !0o777 | mode & 0o777).into())
    }

    /// Owner, mode and times, as the last thing that is done to a copy.
    fn settle_attributes(&self, tx: &mut Transaction<'_>, place: Place, inode: &InodeItem) -> Result<()> {
        let preserve = self.options.preserve;
        if !preserve.changes_existing() {
            return Ok(());
        }
        let earlier = |time| match self.options.clamp {
            Some(clamp) if later(time, clamp) => clamp,
            _ => time,
        };
        update_inode(tx, place, |copy| {
            preserve.put_access(copy, (inode.mode.get(), inode.uid.get(), inode.gid.get()));
            if preserve.times {
                (copy.atime, copy.mtime) = (earlier(inode.atime), earlier(inode.mtime));
            }
        })
    }

    /// Sets the xattrs that come along. Where the mode is the source's, so is what says more than a mode.
    fn put_xattrs(
        &mut self,
        tx: &mut Transaction<'_>,
        place: Place,
        xattrs: &[Xattr],
        shown: &[u8],
    ) -> Result<(), Fault> {
        if self.options.preserve.keeps_mode() {
            for acl in [ACCESS_XATTR, DEFAULT_XATTR] {
                remove_xattr(tx, place, acl).map_err(Fault::Target)?;
            }
        }
        self.set_xattrs(tx, place, xattrs, shown)
    }

    /// Sets xattrs; those that no leaf holds are noted.
    fn set_xattrs(
        &mut self,
        tx: &mut Transaction<'_>,
        place: Place,
        xattrs: &[Xattr],
        shown: &[u8],
    ) -> Result<(), Fault> {
        for (name, value) in xattrs {
            let set = match name == COMPRESSION_XATTR {
                true => set_property_as_stored(tx, place, value),
                false => set_xattr(tx, place, name, value),
            };
            match set {
                Err(error @ Error::Invalid(_)) => self.report.failures.push((shown.to_vec(), error)),
                set => set.map_err(Fault::Target)?,
            }
        }
        Ok(())
    }
}

fn refuse(why: &str) -> Result<(), Fault> {
    Err(Fault::Source(Error::Invalid(why.to_owned())))
}

/// An inode that may not be changed is one entry's failure.
fn changeable(tx: &Transaction<'_>, place: Place, removing: bool) -> Result<(), Fault> {
    match check_changeable(tx, place, "target", removing) {
        Err(error @ Error::ReadOnly(_)) => Err(Fault::Source(error)),
        checked => checked.map(drop).map_err(Fault::Target),
    }
}

fn later(a: btrfsimg_ondisk::Timespec, b: btrfsimg_ondisk::Timespec) -> bool {
    (a.sec.get(), a.nsec.get()) > (b.sec.get(), b.nsec.get())
}
