//! The walk over the image: makes directories, links and special files, and hands out regular files.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use btrfsimg_ondisk::{DirEntry, FileType, Timespec};
use rustix::fs::{AtFlags, FileType as HostType};
use rustix::io::Errno;

use super::attributes::{creation_mode, set_on_name};
use super::dirs::{Dir, Parked};
use super::feed::Feed;
use super::host::{self, failed};
use super::links::{Links, Top};
use super::paths::PathNode;
use super::{LeftOut, Options, Report, Shared, Summary};
use crate::error::{Error, Result};
use crate::existing::Existing;
use crate::lookup::{self, Place};
use crate::open_files;
use crate::read::{Info, Salvaged};

/// Directories of the walk that stay open, at most: the ones nearest to where it is.
const OPEN_LEVELS: usize = 48;

/// A directory that is being walked.
struct Frame {
    place: Place,
    entries: std::vec::IntoIter<Entry>,
    dir: FrameDir,
}

/// An entry of a directory: its name, its inode, and the type that it says the inode has.
type Entry = (Vec<u8>, Place, FileType);

/// When a file may be made. What the names of one file on the host become depends on the order in which they are met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// Whenever a worker has time.
    Any,
    /// Now: it takes the place of one name of a file, which still has others.
    AtOnce,
    /// Behind all before it, and before all behind it: it goes into a file that other names lead to.
    Alone,
}

enum FrameDir {
    Open(Dir),
    Parked(Parked),
    /// Between the two, or after an error.
    Lost,
}

pub(super) struct Walker<'a> {
    pub(super) shared: &'a Shared<'a>,
    feed: Feed<'a>,
    links: &'a mut Links,
    /// How many directories of the stack stay open.
    open_levels: usize,
    stack: Vec<Frame>,
    /// Directories that were walked: a second name of one would be a loop.
    pub(super) visited: HashSet<Place>,
    /// What else was met, to know what was not: only for a salvage.
    met: HashSet<Place>,
    /// Where the copies of directories are, for what is found of them later: only for a salvage.
    pub(super) nodes: HashMap<Place, Arc<PathNode>>,
    /// The directory whose copy, or the copy of whose contents, is at the top.
    pub(super) top_place: Option<Place>,
    top: Top,
    /// Its path in messages.
    pub(super) node: Arc<PathNode>,
    summary: Summary,
}

impl<'a> Walker<'a> {
    /// Copies below `target`; messages show its source as `path`.
    pub(super) fn new(
        shared: &'a Shared<'a>,
        target: Arc<OwnedFd>,
        path: &[u8],
        feed: Feed<'a>,
        links: &'a mut Links,
    ) -> Walker<'a> {
        Walker {
            shared,
            feed,
            links,
            open_levels: OPEN_LEVELS.min(open_files::limit() / 8).max(2),
            stack: Vec::new(),
            visited: HashSet::new(),
            met: HashSet::new(),
            nodes: HashMap::new(),
            top_place: None,
            top: Top { target, name: None },
            node: PathNode::top(path),
            summary: Summary::default(),
        }
    }

    /// Copies `info` to `name`, or what is in it when that is not given.
    pub(super) fn run(mut self, info: &Info, name: Option<&[u8]>) -> Result<Summary> {
        let clone = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(Error::io("open the target"));
        self.top_place = info.is_dir().then_some(info.place);
        match name {
            None => {
                let dir = Dir::existing(clone(self.top.target.as_fd())?, *info, self.node.clone());
                self.enter_top(dir, info)?;
            }
            Some(name) if info.is_dir() => {
                let dir = Dir::make(
                    &self.shared.options.preserve,
                    self.top.target.as_fd(),
                    name,
                    *info,
                    self.node.clone(),
                )?;
                self.top.name = Some(name.into());
                if self.shared.options.list {
                    (self.shared.report)(Report::Copying { path: self.node.name() });
                }
                self.summary.directories += 1;
                self.enter_top(dir, info)?;
            }
            Some(name) => {
                let top =
                    Dir::bystander(clone(self.top.target.as_fd())?, *info, PathNode::only(self.node.name()));
                if let Err(e) = self.leaf(&top, name, info) {
                    self.shared.fail(self.node.name(), e);
                }
            }
        }
        self.run_stack();
        if self.shared.options.salvage && info.is_dir() && info.place == Place::root(info.place.tree) {
            self.salvage_lost(info.place)?;
        }
        self.feed.flush();
        Ok(self.summary)
    }

    /// Copies what is left of the directories on the stack.
    pub(super) fn run_stack(&mut self) {
        while !self.stack.is_empty() {
            self.step();
        }
    }

    /// The directory that the copy goes to, or its own one.
    pub(super) fn top_fd(&self) -> &OwnedFd {
        self.shared.top.get().unwrap_or(&self.top.target)
    }

    /// Whether the walk came to this inode.
    pub(super) fn has_met(&self, place: Place) -> bool {
        self.visited.contains(&place) || self.met.contains(&place)
    }

    /// Enters the directory at the top.
    fn enter_top(&mut self, dir: Dir, info: &Info) -> Result<()> {
        let fd = dir.fd().try_clone_to_owned().map_err(Error::io("open the target"))?;
        self.shared.top.get_or_init(|| fd);
        self.enter(dir, info.place);
        Ok(())
    }

    /// Puts `dir` on the stack with its entries.
    fn enter(&mut self, dir: Dir, place: Place) {
        self.visited.insert(place);
        if self.shared.options.salvage {
            self.nodes.insert(place, dir.state.node.clone());
        }
        let entries = match self.read_dir(place, &dir.state.node) {
            Ok(entries) => entries,
            Err(e) => {
                self.shared.fail(&dir.state.node.path_of(b""), e);
                Vec::new()
            }
        };
        self.stack.push(Frame { place, entries: entries.into_iter(), dir: FrameDir::Open(dir) });
        if let Some(far) = self.stack.len().checked_sub(self.open_levels + 1) {
            self.stack[far].park(self.shared);
        }
    }

    fn read_dir(&self, dir: Place, node: &PathNode) -> Result<Vec<Entry>> {
        let (mut out, mut seen) = (Vec::new(), HashSet::new());
        let listed = lookup::entries(self.shared.fs, dir, |entry| {
            match entry.and_then(|(_, e)| self.found(dir, &e)) {
                Ok(found) if seen.insert(found.0.clone()) => out.push(found),
                // It would take the place of the first.
                Ok((name, ..)) => self.shared.fail(&node.path_of(&name), lookup::second_entry(dir, &name)),
                Err(e) => self.shared.fail(&node.path_of(b""), e),
            }
            Ok(true)
        });
        if self.shared.options.salvage {
            // Each name stands in two places: what is lost in one may be in the other.
            let by_hash = lookup::entries_by_hash(self.shared.fs, dir, |entry| {
                if let Ok(e) = entry
                    && seen.insert(e.name.to_vec())
                    && let Ok(found) = self.found(dir, &e)
                {
                    out.push(found);
                }
                Ok(true)
            });
            // What was found stays found, whatever ended the one walk or the other.
            if let Err(e) = listed.and(by_hash) {
                self.shared.fail(&node.path_of(b""), e);
            }
            return Ok(out);
        }
        listed.map(|()| out)
    }

    fn found(&self, dir: Place, e: &DirEntry<'_>) -> Result<Entry> {
        lookup::check_name(e.name)?;
        let target = match lookup::target(self.shared.fs, dir, e.name, e.location) {
            // What says that the subvolume is there cannot be read.
            Err(_) if self.shared.options.salvage => Place::root(e.location.objectid),
            target => target?,
        };
        Ok((e.name.to_vec(), target, e.file_type))
    }

    /// Copies the next entry, or leaves a directory that has no more.
    fn step(&mut self) {
        let Some(frame) = self.stack.last_mut() else { return };
        let next = frame.entries.next();
        if frame.entries.len() == 0 {
            // Of a deep tree, the lists of all directories above would else be kept.
            frame.entries = Vec::new().into_iter();
        }
        let FrameDir::Open(dir) = &frame.dir else {
            self.stack.pop();
            return;
        };
        match next {
            None => self.leave(),
            Some((name, place, file_type)) => {
                let (place_of_dir, dir) = (frame.place, dir.share());
                if let Err(e) = self.entry(&dir, place_of_dir, &name, place, file_type) {
                    self.shared.fail(&dir.state.node.path_of(&name), e);
                }
                dir.release(self.shared);
            }
        }
    }

    fn leave(&mut self) {
        let Some(Frame { dir: FrameDir::Open(dir), .. }) = self.stack.pop() else { return };
        if let Some(above) = self.stack.last_mut() {
            above.unpark(&dir, self.shared);
        }
        dir.release(self.shared);
    }

    fn entry(
        &mut self,
        dir: &Dir,
        parent: Place,
        name: &[u8],
        place: Place,
        file_type: FileType,
    ) -> Result<()> {
        let info = match self.shared.options.salvage {
            false => self.shared.fs.info(place)?,
            true => {
                let Salvaged { info, doubt } = self.shared.fs.salvage_info(place, file_type);
                self.shared.in_part(&dir.state.node.path_of(name), doubt);
                info
            }
        };
        if info.is_dir() && !place.is_empty_dir() && self.visited.contains(&place) {
            let reason = format!(
                "root={} inode {}: a second name of the directory {}",
                parent.tree, parent.ino, place.ino
            );
            return Err(Error::corrupt("LK-08", reason));
        }
        self.put(dir, name, info)
    }

    /// Copies an inode to `name` in `dir`; of a directory the entries come next.
    pub(super) fn put(&mut self, dir: &Dir, name: &[u8], info: Info) -> Result<()> {
        if !info.is_dir() {
            if self.shared.options.salvage {
                self.met.insert(info.place);
            }
            return self.leaf(dir, name, &info);
        }
        self.list(dir, name);
        let node = PathNode::below(&dir.state.node, name);
        let made = Dir::make(&self.shared.options.preserve, dir.fd(), name, info, node)?;
        self.summary.directories += 1;
        self.enter(made, info.place);
        Ok(())
    }

    fn list(&self, dir: &Dir, name: &[u8]) {
        if self.shared.options.list {
            (self.shared.report)(Report::Copying { path: &dir.state.node.path_of(name) });
        }
    }

    /// Whether what has this name already stays.
    fn stays(&self, dir: &Dir, name: &[u8], info: &Info) -> Result<bool> {
        let existing = self.shared.options.existing;
        if matches!(existing, Existing::Replace | Existing::Remove) {
            return Ok(false);
        }
        // A file goes to where a symlink leads.
        let follows = existing == Existing::Update && info.file_type() == Some(FileType::REG_FILE);
        let flags = if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match rustix::fs::statat(dir.fd(), name, flags) {
            Ok(there) => {
                let nsec = u32::try_from(there.st_mtime_nsec).unwrap_or(0);
                Ok(existing.stays(Timespec::new(there.st_mtime, nsec), info.mtime()))
            }
            Err(Errno::NOENT | Errno::LOOP) => Ok(false),
            Err(errno) => Err(failed("stat")(errno)),
        }
    }

    /// When a file may be made, by what has its name.
    fn turn_of(&self, dir: &Dir, name: &[u8], info: &Info) -> Result<Turn> {
        if !dir.was_there() || info.file_type() != Some(FileType::REG_FILE) {
            return Ok(Turn::Any);
        }
        let Options { existing, preserve, .. } = self.shared.options;
        match rustix::fs::statat(dir.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if HostType::from_raw_mode(there.st_mode) == HostType::Symlink => {
                Ok(if existing.follows_symlinks() { Turn::Alone } else { Turn::Any })
            }
            Ok(there) if there.st_nlink < 2 => Ok(Turn::Any),
            Ok(there) if preserve.writes_into(there.st_nlink, existing) => Ok(Turn::Alone),
            Ok(_) => Ok(Turn::AtOnce),
            Err(Errno::NOENT) => Ok(Turn::Any),
            Err(errno) => Err(failed("stat")(errno)),
        }
    }

    /// Copies what is no directory.
    fn leaf(&mut self, dir: &Dir, name: &[u8], info: &Info) -> Result<()> {
        let turn = self.turn_of(dir, name, info)?;
        if turn == Turn::Alone {
            self.feed.wait();
        }
        let done = self.leaf_in_turn(dir, name, info, turn);
        if turn == Turn::Alone {
            self.feed.wait();
        }
        done
    }

    fn leaf_in_turn(&mut self, dir: &Dir, name: &[u8], info: &Info, turn: Turn) -> Result<()> {
        let has_links = self.shared.options.preserve.links && info.item.nlink.get() > 1;
        if self.stays(dir, name, info)? {
            // As with cp(1) 9.1, what is newer gets the names that come later.
            if has_links && self.shared.options.existing == Existing::Update && !self.link(dir, name, info)? {
                self.links.note(info.place, info.item.nlink.get(), &self.top, &dir.state.node, name);
            }
            return Ok(());
        }
        self.list(dir, name);
        if has_links && self.link(dir, name, info)? {
            return Ok(());
        }
        if info.file_type() == Some(FileType::REG_FILE) {
            self.regular(dir, name, info, has_links || turn == Turn::AtOnce)?;
        } else {
            if !self.special(dir, name, info)? {
                return Ok(());
            }
            self.summary.others += 1;
        }
        if has_links {
            self.links.note(info.place, info.item.nlink.get(), &self.top, &dir.state.node, name);
        }
        Ok(())
    }

    /// Gives the copy of an inode one more name, if there is a copy.
    fn link(&mut self, dir: &Dir, name: &[u8], info: &Info) -> Result<bool> {
        let Some(linked) = self.links.get(info.place) else { return Ok(false) };
        let is_here = Arc::ptr_eq(&linked.node, &dir.state.node);
        let there = if is_here { None } else { Some(linked.open_dir()?) };
        let from = there.as_ref().map_or(dir.fd(), OwnedFd::as_fd);
        // It may be that name already: to replace it would take the only one away.
        let inode = |dir, name: &[u8]| {
            rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|s| (s.st_dev, s.st_ino))
        };
        let old = inode(dir.fd(), name);
        if old.is_none() || old != inode(from, &linked.name) {
            host::replacing(dir.fd(), name, "link", self.shared.options.image, |name| {
                rustix::fs::linkat(from, &linked.name[..], dir.fd(), name, AtFlags::empty())
            })?;
        }
        self.summary.links += 1;
        self.links.count(info.place);
        Ok(true)
    }

    /// Makes a symlink, fifo, socket or device. Says whether.
    fn special(&mut self, dir: &Dir, name: &[u8], info: &Info) -> Result<bool> {
        let path = dir.state.node.spot(name);
        let mode = creation_mode(&self.shared.options.preserve, info);
        let node = |kind, dev| {
            host::replacing(dir.fd(), name, "create", self.shared.options.image, |name| {
                rustix::fs::mknodat(dir.fd(), name, kind, mode, dev)
            })
        };
        match info.file_type() {
            Some(FileType::SYMLINK) => {
                let target = lookup::symlink_target(self.shared.fs, info.place)?;
                host::replacing(dir.fd(), name, "create", self.shared.options.image, |name| {
                    rustix::fs::symlinkat(&target[..], dir.fd(), name)
                })?;
            }
            Some(FileType::FIFO) => node(HostType::Fifo, 0)?,
            Some(FileType::SOCK) => node(HostType::Socket, 0)?,
            Some(kind @ (FileType::CHRDEV | FileType::BLKDEV)) => {
                let (major, minor) = info.device_number().unwrap_or_default();
                if !self.shared.options.devices {
                    self.shared.left_out(&path.path(), LeftOut::Device, format!("{major}:{minor}"));
                    return Ok(false);
                }
                let host_kind = match kind {
                    FileType::CHRDEV => HostType::CharacterDevice,
                    _ => HostType::BlockDevice,
                };
                node(host_kind, rustix::fs::makedev(major, minor))?;
            }
            _ => return Err(Error::Invalid(format!("mode {:o} is of no file type", info.mode()))),
        }
        set_on_name(self.shared, path, dir.fd(), name, info)?;
        Ok(true)
    }

    /// `at_once` it is made, as further names are linked to it.
    fn regular(&mut self, dir: &Dir, name: &[u8], info: &Info, at_once: bool) -> Result<()> {
        let made = match at_once {
            true => Some(host::create_file(self.shared, dir, name, info)?),
            false => None,
        };
        self.feed.file(dir, name, info, made);
        Ok(())
    }
}

impl Frame {
    fn park(&mut self, shared: &Shared<'_>) {
        self.dir = match std::mem::replace(&mut self.dir, FrameDir::Lost) {
            FrameDir::Open(dir) => {
                let path = dir.state.node.clone();
                match dir.park() {
                    Ok(parked) => FrameDir::Parked(parked),
                    Err(e) => {
                        shared.fail(&path.path_of(b""), e);
                        FrameDir::Lost
                    }
                }
            }
            other => other,
        };
    }

    fn unpark(&mut self, child: &Dir, shared: &Shared<'_>) {
        self.dir = match std::mem::replace(&mut self.dir, FrameDir::Lost) {
            FrameDir::Parked(parked) => match parked.reopen(child.fd()) {
                Ok(dir) => FrameDir::Open(dir),
                Err(e) => {
                    shared.fail(&child.state.node.path_of(b""), e);
                    FrameDir::Lost
                }
            },
            other => other,
        };
    }
}
