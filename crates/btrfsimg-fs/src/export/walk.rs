//! The walk over the image: makes directories, links and special files, and hands out regular files.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use btrfsimg_ondisk::{DirEntry, FileType, Timespec};
use crossbeam_channel::Sender;
use rustix::fs::{AtFlags, FileType as HostType};
use rustix::io::Errno;

use super::attributes::{creation_mode, set_on_name};
use super::dirs::{Dir, Parked};
use super::host::{self, failed};
use super::paths::{PathNode, Spot};
use super::workers::{FileJob, LargeFile, Part, Work};
use super::{LeftOut, Report, Shared, Summary};
use crate::error::{Error, Result};
use crate::existing::Existing;
use crate::lookup::{self, Place};
use crate::read::{Info, Segment, SegmentKind};

/// Files with more bytes than this are written in parts.
const LARGE: u64 = 8 << 20;
/// Bytes of a batch of small files, and of a part of a large one.
const BATCH_BYTES: u64 = 1 << 20;
/// Files of a batch.
const BATCH_FILES: usize = 64;
/// Open files of all batches together, at most: half of what `ulimit -n 256` lets a process open.
const BATCH_FDS: usize = 128;
/// Directories of the walk that stay open: the ones nearest to where it is.
const OPEN_LEVELS: usize = 48;

/// A directory that is being walked.
struct Frame {
    place: Place,
    entries: std::vec::IntoIter<Entry>,
    dir: FrameDir,
}

/// An entry of a directory: its name, its inode, and the type that it says the inode has.
type Entry = (Vec<u8>, Place, FileType);

enum FrameDir {
    Open(Dir),
    Parked(Parked),
    /// Between the two, or after an error.
    Lost,
}

/// Files that wait to be handed out.
#[derive(Default)]
struct Batch {
    jobs: Vec<FileJob>,
    bytes: u64,
    fds: usize,
}

/// An inode with more names, and where the copy has it.
struct Linked {
    node: Arc<PathNode>,
    name: Vec<u8>,
    left: u32,
}

pub(super) struct Walker<'a> {
    pub(super) shared: &'a Shared<'a>,
    work: Sender<Work>,
    workers: usize,
    stack: Vec<Frame>,
    batch: Batch,
    linked: HashMap<Place, Linked>,
    /// Directories that were walked: a second name of one would be a loop.
    pub(super) visited: HashSet<Place>,
    /// What else was met, to know what was not: only for a salvage.
    met: HashSet<Place>,
    /// Where the copies of directories are, for what is found of them later: only for a salvage.
    pub(super) nodes: HashMap<Place, Arc<PathNode>>,
    /// The directory whose copy, or the copy of whose contents, is at the top.
    pub(super) top_place: Option<Place>,
    pub(super) target: OwnedFd,
    pub(super) top: Arc<PathNode>,
    summary: Summary,
}

impl<'a> Walker<'a> {
    /// Copies below `target`; messages show its source as `path`.
    pub(super) fn new(
        shared: &'a Shared<'a>,
        target: OwnedFd,
        path: &[u8],
        work: Sender<Work>,
    ) -> Walker<'a> {
        Walker {
            shared,
            work,
            workers: shared.options.workers.max(1),
            stack: Vec::new(),
            batch: Batch::default(),
            linked: HashMap::new(),
            visited: HashSet::new(),
            met: HashSet::new(),
            nodes: HashMap::new(),
            top_place: None,
            target,
            top: PathNode::top(path),
            summary: Summary::default(),
        }
    }

    /// Copies `info` to `name`, or what is in it when that is not given.
    pub(super) fn run(mut self, info: &Info, name: Option<&[u8]>) -> Result<Summary> {
        let target = self.target.try_clone().map_err(Error::io("open the target"))?;
        self.top_place = info.is_dir().then_some(info.place);
        match name {
            None => self.enter(Dir::existing(target, *info, self.top.clone()), info.place),
            Some(name) if info.is_dir() => {
                let dir = Dir::make(self.target.as_fd(), name, *info, self.top.clone())?;
                self.target = dir.fd().try_clone_to_owned().map_err(Error::io("open the target"))?;
                self.summary.directories += 1;
                self.enter(dir, info.place);
            }
            Some(name) => {
                let top = Dir::bystander(target, *info, PathNode::only(self.top.name()));
                if let Err(e) = self.leaf(&top, name, info) {
                    self.shared.fail(self.top.name(), e);
                }
            }
        }
        self.run_stack();
        if self.shared.options.salvage && info.is_dir() && info.place == Place::root(info.place.tree) {
            self.salvage_lost(info.place)?;
        }
        self.flush();
        Ok(self.summary)
    }

    /// Copies what is left of the directories on the stack.
    pub(super) fn run_stack(&mut self) {
        while !self.stack.is_empty() {
            self.step();
        }
    }

    /// The directory that the copy goes to.
    pub(super) fn target_fd(&self) -> BorrowedFd<'_> {
        self.target.as_fd()
    }

    /// Whether the walk came to this inode.
    pub(super) fn has_met(&self, place: Place) -> bool {
        self.visited.contains(&place) || self.met.contains(&place)
    }

    /// Puts `dir` on the stack with its entries.
    fn enter(&mut self, dir: Dir, place: Place) {
        self.visited.insert(place);
        if self.shared.options.salvage {
            self.nodes.insert(place, dir.state.node.clone());
        }
        let entries = match self.read_dir(place, dir.state.node.spot(b"")) {
            Ok(entries) => entries,
            Err(e) => {
                self.shared.fail(&dir.state.node.path_of(b""), e);
                Vec::new()
            }
        };
        self.stack.push(Frame { place, entries: entries.into_iter(), dir: FrameDir::Open(dir) });
        if let Some(far) = self.stack.len().checked_sub(OPEN_LEVELS + 1) {
            self.stack[far].park(self.shared);
        }
    }

    fn read_dir(&self, dir: Place, path: Spot<'_>) -> Result<Vec<Entry>> {
        let mut out = Vec::new();
        let listed = lookup::entries(self.shared.fs, dir, |entry| {
            match entry.and_then(|(_, e)| self.found(dir, &e)) {
                Ok(found) => out.push(found),
                Err(e) => self.shared.fail(&path.path(), e),
            }
            Ok(true)
        });
        if self.shared.options.salvage {
            // Each name stands in two places: what is lost in one may be in the other.
            let names: HashSet<Vec<u8>> = out.iter().map(|(name, ..)| name.clone()).collect();
            let by_hash = lookup::entries_by_hash(self.shared.fs, dir, |entry| {
                out.extend(
                    entry.ok().filter(|e| !names.contains(e.name)).and_then(|e| self.found(dir, &e).ok()),
                );
                Ok(true)
            });
            // What was found stays found, whatever ended the one walk or the other.
            if let Err(e) = listed.and(by_hash) {
                self.shared.fail(&path.path(), e);
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
                let (info, fault) = self.shared.fs.salvage_info(place, file_type);
                if let Some(e) = fault {
                    self.shared.fail(&dir.state.node.path_of(name), e);
                }
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
        let made = Dir::make(dir.fd(), name, info, node)?;
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
        if existing == Existing::Replace {
            return Ok(false);
        }
        match rustix::fs::statat(dir.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => {
                let nsec = u32::try_from(there.st_mtime_nsec).unwrap_or(0);
                Ok(existing.stays(Timespec::new(there.st_mtime, nsec), info.mtime()))
            }
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("stat")(errno)),
        }
    }

    /// Copies what is no directory.
    fn leaf(&mut self, dir: &Dir, name: &[u8], info: &Info) -> Result<()> {
        if self.stays(dir, name, info)? {
            return Ok(());
        }
        self.list(dir, name);
        let has_links = self.shared.options.hard_links && info.item.nlink.get() > 1;
        if has_links && self.link(dir, name, info)? {
            return Ok(());
        }
        if info.file_type() == Some(FileType::REG_FILE) {
            self.regular(dir, name, info, has_links)?;
        } else {
            if !self.special(dir, name, info)? {
                return Ok(());
            }
            self.summary.others += 1;
        }
        if has_links {
            let left = info.item.nlink.get() - 1;
            let linked = Linked { node: dir.state.node.clone(), name: name.to_vec(), left };
            self.linked.insert(info.place, linked);
        }
        Ok(())
    }

    /// Gives the copy of an inode one more name, if there is a copy.
    fn link(&mut self, dir: &Dir, name: &[u8], info: &Info) -> Result<bool> {
        let Some(linked) = self.linked.get_mut(&info.place) else { return Ok(false) };
        let is_here = Arc::ptr_eq(&linked.node, &dir.state.node);
        let there = if is_here { None } else { Some(open_node(&self.target, &linked.node)?) };
        let from = there.as_ref().map_or(dir.fd(), OwnedFd::as_fd);
        host::replacing(dir.fd(), name, "link", self.shared.options.image, || {
            rustix::fs::linkat(from, &linked.name[..], dir.fd(), name, AtFlags::empty())
        })?;
        self.summary.links += 1;
        linked.left -= 1;
        if linked.left == 0 {
            self.linked.remove(&info.place);
        }
        Ok(true)
    }

    /// Makes a symlink, fifo, socket or device. Says whether.
    fn special(&mut self, dir: &Dir, name: &[u8], info: &Info) -> Result<bool> {
        let path = dir.state.node.spot(name);
        let node = |kind, dev| {
            host::replacing(dir.fd(), name, "create", self.shared.options.image, || {
                rustix::fs::mknodat(dir.fd(), name, kind, creation_mode(info), dev)
            })
        };
        match info.file_type() {
            Some(FileType::SYMLINK) => {
                let target = lookup::symlink_target(self.shared.fs, info.place)?;
                host::replacing(dir.fd(), name, "create", self.shared.options.image, || {
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

    fn regular(&mut self, dir: &Dir, name: &[u8], info: &Info, has_links: bool) -> Result<()> {
        // Further names are linked to it at once, so it must be there.
        let made = match has_links {
            true => Some(host::create_file(dir.fd(), name, creation_mode(info), self.shared.options.image)?),
            false => None,
        };
        let is_first = self.batch.jobs.last().is_none_or(|j| !Arc::ptr_eq(&j.dir.state, &dir.state));
        let job = FileJob { dir: dir.share(), name: name.to_vec(), info: *info, made };
        let stored = info.size().min(info.item.nbytes.get());
        if stored > LARGE {
            self.large(job);
            return Ok(());
        }
        self.batch.fds += usize::from(is_first) + usize::from(has_links);
        self.batch.bytes += stored;
        self.batch.jobs.push(job);
        // One batch is filled and one waits to be sent; for each worker one is in the queue and one with it.
        let fds = (BATCH_FDS / (2 * self.workers + 2)).max(2);
        if self.batch.bytes >= BATCH_BYTES || self.batch.jobs.len() >= BATCH_FILES || self.batch.fds >= fds {
            self.flush();
        }
        Ok(())
    }

    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if !batch.jobs.is_empty() {
            self.send(Work::Files(batch.jobs));
        }
    }

    fn send(&self, work: Work) {
        // The other side is gone only after a panic, which the scope passes on.
        let _ = self.work.send(work);
    }

    /// Hands out a large file in parts.
    fn large(&mut self, job: FileJob) {
        let info = job.info;
        let Some(file) = LargeFile::create(self.shared, job) else { return };
        let mut segments = self.shared.segments(&info);
        let (mut parts, mut bytes) = (Vec::new(), 0);
        loop {
            match segments.next(self.shared.fs) {
                Ok(Some(segment)) if matches!(segment.kind, SegmentKind::Hole) => {}
                Ok(Some(segment)) => self.cut(&file, &segment, &mut parts, &mut bytes),
                Ok(None) => {
                    file.add_losses(segments.take_losses());
                    break;
                }
                Err(e) => {
                    file.fail(self.shared, e);
                    break;
                }
            }
        }
        if !parts.is_empty() {
            self.send(Work::Parts(file.clone(), parts));
        }
        LargeFile::release(file, self.shared);
    }

    /// Adds a segment to `parts`, and sends those whenever they are enough.
    fn cut(&self, file: &Arc<LargeFile>, segment: &Segment, parts: &mut Vec<Part>, bytes: &mut u64) {
        let mut skip = 0;
        while skip < segment.len {
            let len = (segment.len - skip).min(BATCH_BYTES);
            parts.push(Part { segment: segment.clone(), skip, len });
            skip += len;
            *bytes += len;
            if *bytes >= BATCH_BYTES {
                self.send(Work::Parts(file.clone(), std::mem::take(parts)));
                *bytes = 0;
            }
        }
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

/// Opens a directory of the copy from its top, step by step.
pub(super) fn open_node(target: &OwnedFd, node: &Arc<PathNode>) -> Result<OwnedFd> {
    let mut at = target.try_clone().map_err(Error::io("open the target"))?;
    for part in node.names() {
        at = host::open_dir(&at, part.name()).map_err(failed("open"))?;
    }
    Ok(at)
}
