//! A host directory into an image, with a parallel data path (DESIGN 5).
//!
//! One thread walks, places data and builds the trees; workers read, compress and checksum. The walk numbers
//! inodes in the order in which it meets them, so that a new tree's items come in key order and every leaf is
//! filled once. Results are taken in the order of the walk, whatever the order in which workers finish.

mod clash;
mod emit;
mod host;
mod links;
mod listing;
mod merged;
mod options;
mod walk;
mod worker;
mod xattrs;

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfsimg_compress::{Decision, Property, WorkspacePool};
use btrfsimg_ondisk::inode_flags;
use crossbeam_channel::{Receiver, Sender, bounded};

pub use links::Links;
pub use options::{Failure, Options, Report, Sparse};

use crate::error::{Error, Result};
use crate::lookup::{Place, highest_inode};
use crate::txn::{ItemBatch, Transaction};
use crate::write::encode::{CompressionPolicy, Format};
use crate::write::inode::{COMPRESSION_XATTR, Inherited};
use crate::write::xattr::inherited_from;
use host::{Source, SourceFile};
use walk::{Node, Ready, Role, Walker};
use worker::{Done, Job, Shared, SmallFile, ZERO_BLOCK};
use xattrs::SourceXattrs;

/// Files up to this many bytes are read whole by one worker; larger ones go in pieces of this size.
const PIECE: u64 = 1 << 20;
/// Files of one job, at most.
const JOB_FILES: usize = 128;
/// Entries that wait behind one job, at most.
const JOB_NODES: usize = 1024;
/// Directories of one job, at most: each is open until all its files are read.
const JOB_DIRS: usize = 16;

/// The directory of an image into which a source goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The empty root directory of a new file system: takes the source's attributes as well.
    NewRoot(Place),
    /// An existing directory: entries are added, files of the same name replaced, directories merged.
    Into(Place),
}

/// Imports the entries of the host directory `source` into `target`. Names of inodes that are in `links` become names of
/// their copies, where links are kept.
///
/// What cannot be read is in the report, and the rest is in the image.
///
/// # Errors
/// `Io` when the source itself cannot be read; `NoSpace`, `Corrupt`, `Io` of the image; `Interrupted`.
pub fn import_tree(
    tx: &mut Transaction<'_>,
    source: &Path,
    target: Target,
    options: &Options<'_>,
    links: &mut Links,
) -> Result<Report> {
    let name = source.display().to_string();
    let (place, role) = match target {
        Target::NewRoot(place) => (place, Role::Adopt),
        Target::Into(place) => (place, Role::Merge),
    };
    let source = Source::open(source.to_owned()).map_err(Error::io(&name))?;
    let inherited = if role == Role::Merge { inherited_from(tx, place)? } else { Inherited::default() };
    let next_ino = highest_inode(tx, place.tree)? + 1;
    let mut walker = Walker::new(source, options, links, place, next_ino);
    walker.start(role, inherited, tx).map_err(Error::io(&name))?;
    run(tx, walker, options)
}

/// Imports the one entry `source` of the host, a directory with all below it or anything else, into the directory
/// `dir` as `name`. What has that name there gets its contents, gives way or stays as it would within a tree.
///
/// # Errors
/// As [`import_tree`].
pub fn import_entry(
    tx: &mut Transaction<'_>,
    source: &Path,
    (dir, name): (Place, &[u8]),
    follow: bool,
    options: &Options<'_>,
    links: &mut Links,
) -> Result<Report> {
    let shown = source.display().to_string();
    let resolved =
        if follow { std::fs::canonicalize(source).map_err(Error::io(&shown))? } else { source.to_owned() };
    let (parent, file) =
        split_path(&resolved).ok_or_else(|| Error::Invalid(format!("{shown}: has no name")))?;
    let opened = Source::open(parent).map_err(Error::io(&shown))?;
    let next_ino = highest_inode(tx, dir.tree)? + 1;
    let mut walker = Walker::new(opened, options, links, dir, next_ino);
    let (top, fd) = walk_top(&walker).map_err(Error::io(&shown))?;
    let stat = host::stat(fd.as_fd(), &file).map_err(Error::io(&shown))?;
    let mut inherited = inherited_from(tx, dir)?;
    inherited.group = inherited.group.filter(|_| !options.preserve.owner);
    inherited.default_acl = inherited.default_acl.filter(|_| !options.preserve.keeps_mode());
    walker.merge_entry((dir, name), &top, file, stat, &inherited, tx)?;
    let mut report = run(tx, walker, options)?;
    for copied in &mut report.copied {
        *copied = copied.components().skip(1).collect();
    }
    Ok(report)
}

fn walk_top(walker: &Walker<'_>) -> std::io::Result<(Arc<host::SourceDir>, std::os::fd::OwnedFd)> {
    let dir = Arc::new(host::SourceDir { relative: Vec::new() });
    let fd = walker.source.open_dir(&dir)?;
    Ok((dir, fd))
}

/// A path's directory and last component.
fn split_path(path: &Path) -> Option<(PathBuf, CString)> {
    use std::os::unix::ffi::OsStrExt as _;
    let file = CString::new(path.file_name()?.as_bytes()).ok()?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((parent.to_owned(), file))
}

/// How an inode's data are compressed: by its own property if the source gave it one, else by what it inherited, or had.
fn decision(
    policy: &CompressionPolicy,
    flags: u64,
    property: Option<&Property>,
    xattrs: &SourceXattrs,
) -> Decision {
    let (flags, property) = own_property(flags, property, xattrs);
    policy.decision(flags, property.as_ref())
}

/// Flags and property of an inode whose source has `xattrs`: the source's own property goes above what it inherits.
fn own_property(flags: u64, inherited: Option<&Property>, xattrs: &SourceXattrs) -> (u64, Option<Property>) {
    // Neither can be together with the other: such data are never compressed.
    if flags & (inode_flags::NODATACOW | inode_flags::NODATASUM) != 0 {
        return (flags & !inode_flags::COMPRESS, None);
    }
    let Some(own) = xattrs.get(COMPRESSION_XATTR).and_then(Property::from_stored) else {
        return (flags, inherited.cloned());
    };
    let rest = flags & !(inode_flags::COMPRESS | inode_flags::NOCOMPRESS);
    let flag = if own.algorithm().is_some() { inode_flags::COMPRESS } else { inode_flags::NOCOMPRESS };
    (rest | flag, Some(own))
}

fn run(tx: &mut Transaction<'_>, walker: Walker<'_>, options: &Options<'_>) -> Result<Report> {
    let pool = WorkspacePool::new(options.workers);
    let format = Format::of(tx);
    let shared = Shared { pool: &pool, format, sparse: options.sparse, policy: &options.compression };
    let limit = options.workers.max(1) * 3;
    let report: Result<Report> = std::thread::scope(|scope| {
        // Made in here, so that they go when this closure ends, however it ends: then the workers end.
        let (jobs, job_queue) = bounded(limit);
        let (results, done) = bounded(limit);
        let (placed, used) = bounded(limit);
        for _ in 0..options.workers.max(1) {
            let (job_queue, results, used) = (job_queue.clone(), results.clone(), used.clone());
            let shared = &shared;
            scope.spawn(move || worker::run(shared, &job_queue, &results, &used));
        }
        drop((job_queue, results));
        let mut importer = Importer {
            tx,
            tree: walker.top.tree,
            walker,
            options,
            items: ItemBatch::new(),
            placed,
            pending: VecDeque::new(),
            arrived: HashMap::new(),
            next_job: 0,
            limit,
            open_files: crate::open_files::limit() / 2,
            large: None,
            walked: false,
            lost: Vec::new(),
            report: Report::default(),
        };
        importer.drive(&jobs, &done)?;
        importer.finish()
    });
    Ok(Report { workspaces: pool.stats(), ..report? })
}

/// What waits for its turn to go into the image, in the order of the walk.
enum Pending {
    /// Entries, with the job that reads the regular files among them and keeps so many directories open.
    Nodes { job: Option<u64>, nodes: Vec<Ready>, dirs: usize },
    /// A large file begins.
    LargeStart { node: Box<Node>, xattrs: SourceXattrs },
    /// A piece of it, whose bytes are expected to reach `end`.
    LargePiece { job: u64, end: u64 },
    /// It ends; it has this many bytes now.
    LargeEnd { size: u64 },
}

impl Pending {
    /// What its job has open at most.
    fn open_files(&self) -> usize {
        match self {
            Pending::Nodes { dirs, .. } => dirs + 1,
            Pending::LargePiece { .. } => 1,
            Pending::LargeStart { .. } | Pending::LargeEnd { .. } => 0,
        }
    }
}

/// A large file whose pieces are being handed out.
struct LargeFile {
    file: SourceFile,
    size: u64,
    next: u64,
    decision: Decision,
}

impl LargeFile {
    /// Where the next bytes are that must be read.
    fn next_start(&self, sparse: Sparse) -> Option<u64> {
        let rest = (self.next < self.size).then_some(self.next)?;
        if sparse == Sparse::Never {
            return Some(rest);
        }
        match self.file.next_data(rest, self.size) {
            Ok(Some(data)) => Some(data.start),
            // Zeros at the end that fill no block are no hole where holes come from contents.
            Ok(None) if sparse == Sparse::Always && !self.size.is_multiple_of(ZERO_BLOCK as u64) => {
                Some(rest.max((self.size - 1) / PIECE * PIECE))
            }
            Ok(None) => None,
            // A file that cannot be sought is read, and tells then.
            Err(_) => Some(rest),
        }
    }
}

struct Importer<'i, 'v> {
    tx: &'i mut Transaction<'v>,
    tree: u64,
    walker: Walker<'i>,
    options: &'i Options<'i>,
    items: ItemBatch,
    /// Takes buffers back to the workers.
    placed: Sender<crate::write::encode::EncodedData>,
    pending: VecDeque<Pending>,
    arrived: HashMap<u64, Done>,
    next_job: u64,
    /// Most that is pending: with it the memory of results is bounded, which wait while the first is slow.
    limit: usize,
    /// Files and directories of the source that what is pending may keep open. Where jobs end does not depend on it, as
    /// the image does not.
    open_files: usize,
    large: Option<LargeFile>,
    walked: bool,
    /// Regular files that could not be read: the names of new ones go again.
    lost: Vec<Node>,
    report: Report,
}

impl Importer<'_, '_> {
    fn drive(&mut self, jobs: &Sender<(u64, Job)>, done: &Receiver<Done>) -> Result<()> {
        let mut current = None;
        loop {
            if self.options.cancel.is_some_and(|c| c.load(Ordering::Relaxed)) {
                return Err(Error::Interrupted);
            }
            if self.may_schedule() {
                self.schedule(jobs)?;
            }
            while let Ok(result) = done.try_recv() {
                self.arrive(result);
            }
            self.emit_arrived(&mut current)?;
            match self.pending.front() {
                None if self.walked => return self.flush_items(),
                None => {}
                Some(_) if self.may_schedule() => {}
                Some(_) => match done.recv() {
                    Ok(result) => self.arrive(result),
                    Err(_) => return Err(Error::Invalid("a worker thread ended early".to_owned())),
                },
            }
        }
    }

    /// Whether the walk may go on. Where it changes the image itself, all before it must be in: else the order, and
    /// with it the image, would depend on when workers finish.
    fn may_schedule(&self) -> bool {
        let changes_image = self.large.is_none() && self.walker.next_changes_image();
        let has_room = || {
            let open: usize = self.pending.iter().map(Pending::open_files).sum();
            self.pending.len() < self.limit && open + JOB_DIRS < self.open_files && !changes_image
        };
        !self.walked && (self.pending.is_empty() || has_room())
    }

    fn arrive(&mut self, result: Done) {
        self.arrived.insert(result.id, result);
    }

    fn send(&mut self, jobs: &Sender<(u64, Job)>, job: Job) -> Result<u64> {
        let id = self.next_job;
        self.next_job += 1;
        jobs.send((id, job)).map_err(|_| Error::Invalid("the worker threads ended early".to_owned()))?;
        Ok(id)
    }

    /// Hands out one job more: the next piece of a large file, or the next entries of the walk.
    fn schedule(&mut self, jobs: &Sender<(u64, Job)>) -> Result<()> {
        if self.large.is_some() {
            return self.schedule_piece(jobs);
        }
        let (mut nodes, mut files, mut bytes) = (Vec::new(), Vec::new(), 0);
        let (mut dirs, mut dir) = (0, None);
        let mut large = None;
        while files.len() < JOB_FILES && nodes.len() < JOB_NODES && bytes < PIECE {
            if !nodes.is_empty() && self.walker.next_changes_image() {
                break;
            }
            if dirs == JOB_DIRS && self.walker.next_dir().is_some_and(|next| Some(next) != dir) {
                break;
            }
            let Some(ready) = self.walker.next(self.tx)? else {
                self.walked = true;
                break;
            };
            if let Ready::File(node) = &ready {
                if node.stat.size > PIECE {
                    large = Some(ready);
                    break;
                }
                bytes += node.stat.size;
                files.push(self.small_file(node)?);
                let this = Some(Arc::as_ptr(&node.dir));
                dirs += usize::from(this != dir);
                dir = this;
            }
            nodes.push(ready);
        }
        if !nodes.is_empty() {
            let job = if files.is_empty() { None } else { Some(self.send(jobs, Job::Files(files))?) };
            self.pending.push_back(Pending::Nodes { job, nodes, dirs });
        }
        match large {
            Some(Ready::File(node)) => self.start_large(node),
            _ => Ok(()),
        }
    }

    fn small_file(&mut self, node: &Node) -> Result<SmallFile> {
        let dir = self.walker.dir_of(node).map_err(Error::io("open a directory"))?;
        Ok(SmallFile {
            dir,
            name: node.name.clone(),
            size: node.stat.size,
            may_have_holes: node.stat.allocated < node.stat.size,
            preserve: self.options.preserve,
            flags: node.stat.attributes.flags,
            property: node.property.clone(),
        })
    }

    fn start_large(&mut self, mut node: Node) -> Result<()> {
        let dir = self.walker.dir_of(&node);
        let opened = dir.and_then(|dir| host::open_file(dir.as_fd(), &node.name)).and_then(|file| {
            let xattrs = SourceXattrs::of(file.as_fd(), &self.options.preserve)?;
            if self.options.preserve.flags {
                node.stat.attributes.flags |= host::flags_of(file.as_fd(), false);
            }
            Ok((SourceFile::new(file), xattrs))
        });
        let (file, xattrs) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.walker.fail(&node.relative(), &error.to_string());
                self.lost.push(node);
                return Ok(());
            }
        };
        let flags = node.stat.attributes.flags;
        let decision = decision(&self.options.compression, flags, node.property.as_ref(), &xattrs);
        self.large = Some(LargeFile { file, size: node.stat.size, next: 0, decision });
        self.pending.push_back(Pending::LargeStart { node: Box::new(node), xattrs });
        Ok(())
    }

    fn schedule_piece(&mut self, jobs: &Sender<(u64, Job)>) -> Result<()> {
        let Some(large) = &mut self.large else { return Ok(()) };
        let Some(start) = large.next_start(self.options.sparse) else {
            let size = large.file.size().unwrap_or(large.size).min(large.size);
            self.large = None;
            self.pending.push_back(Pending::LargeEnd { size });
            return Ok(());
        };
        // Pieces begin at multiples of their size, wherever the source has holes.
        let piece = start / PIECE * PIECE;
        let range = piece.max(large.next)..(piece + PIECE).min(large.size);
        large.next = range.end;
        let (file, decision, end) = (large.file.clone(), large.decision, range.end);
        let job = self.send(jobs, Job::Piece { file, range, decision })?;
        self.pending.push_back(Pending::LargePiece { job, end });
        Ok(())
    }
}

/// Refuses a target directory that may not be changed.
///
/// # Errors
/// `NotDirectory`, `ReadOnly`.
pub fn check_target(tx: &Transaction<'_>, place: Place, shown: &str) -> Result<()> {
    let inode = crate::write::names::check_changeable(tx, place, shown, false)?;
    match btrfsimg_ondisk::FileType::from_mode(inode.mode.get()) {
        Some(btrfsimg_ondisk::FileType::DIR) => Ok(()),
        _ => Err(Error::NotDirectory(shown.to_owned())),
    }
}
