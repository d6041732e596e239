//! The walk of a source tree: directories in the order of their inode numbers, names sorted, so that all items of
//! a new tree come in key order and numbers do not depend on the host.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use btrfsimg_ondisk::{FileType, Timespec, max_symlink_len};

use super::host::{self, Source, SourceDir, Stat};
use super::links::Links;
use super::listing::Listing;
use super::options::{Failure, Options};
use super::xattrs::SourceXattrs;
use crate::error::Result;
use crate::lookup::Place;
use crate::posix_acl::{ACCESS_XATTR, Acl};
use crate::preserve::Modes;
use crate::txn::Transaction;
use crate::write::inode::{Attributes, Inherited, Xattr};

/// What becomes of a source entry in the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A new inode.
    New,
    /// A directory that exists, empty, and takes the source's attributes: the root of a new file system.
    Adopt,
    /// A directory that exists; entries are added to it.
    Merge,
    /// A regular file that exists and gets new contents; its name and its inode stay.
    Replace,
}

/// A source entry on its way.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) dir: Arc<SourceDir>,
    /// Empty for the top.
    pub(super) name: CString,
    pub(super) stat: Stat,
    pub(super) ino: u64,
    pub(super) parent: u64,
    pub(super) index: u64,
    pub(super) role: Role,
    pub(super) property: Option<btrfsimg_compress::Property>,
    /// ACLs that it inherits.
    pub(super) acls: Vec<Xattr>,
    /// The ACL that its entries inherit.
    pub(super) default_acl: Option<Arc<Acl>>,
}

impl Node {
    /// Its path from the top.
    pub(super) fn relative(&self) -> Vec<u8> {
        if self.name.is_empty() { Vec::new() } else { self.dir.join(self.name.as_bytes()) }
    }
}

/// A name more of an inode that has one.
#[derive(Debug)]
pub(super) struct ExtraLink {
    pub(super) ino: u64,
    pub(super) parent: u64,
    pub(super) index: u64,
    pub(super) name: Vec<u8>,
}

/// An entry of the walk, with all but a regular file's contents.
pub(super) enum Ready {
    /// A new directory with its entries.
    Directory(Node, Listing, SourceXattrs),
    /// A symlink with its target.
    Symlink(Node, Vec<u8>, SourceXattrs),
    /// A fifo, socket or device.
    Special(Node, SourceXattrs),
    /// A regular file; [`Walker::dir_of`] has the directory that it is in.
    File(Node),
    /// A directory that existed: its entries were added.
    Merged,
    /// What could not be read, though its name is listed already.
    Lost(Node),
}

/// A directory that was there, and what it takes from the source's.
pub(super) struct Merged {
    /// Path of the source's from the top.
    pub(super) relative: Vec<u8>,
    pub(super) ino: u64,
    pub(super) attributes: Attributes,
    pub(super) xattrs: SourceXattrs,
}

/// The walk.
pub(super) struct Walker<'o> {
    pub(super) source: Source,
    pub(super) options: &'o Options<'o>,
    /// The directory of the image that all of it goes to, at its top or below.
    pub(super) top: Place,
    pub(super) queue: VecDeque<Node>,
    /// Inodes that are to get contents through a symlink, not through their own name.
    pub(super) through_symlinks: HashSet<u64>,
    /// When inodes that are to get contents will have been modified: with [`Existing::Update`](crate::Existing), which
    /// asks once more where they have several names.
    pub(super) replaced: HashMap<u64, Timespec>,
    next_ino: u64,
    links: &'o mut Links,
    /// Names in the image that differ from the source's, by inode.
    pub(super) renamed: HashMap<u64, Vec<u8>>,
    pub(super) extra_links: Vec<ExtraLink>,
    pub(super) failures: Vec<Failure>,
    pub(super) copied: Vec<PathBuf>,
    /// Directories that were there and take the attributes of the source's.
    pub(super) merged: Vec<Merged>,
    open: Option<(Arc<SourceDir>, Arc<OwnedFd>)>,
}

impl<'o> Walker<'o> {
    pub(super) fn new(
        source: Source,
        options: &'o Options<'o>,
        links: &'o mut Links,
        top: Place,
        next_ino: u64,
    ) -> Walker<'o> {
        Walker {
            source,
            options,
            top,
            queue: VecDeque::new(),
            through_symlinks: HashSet::new(),
            replaced: HashMap::new(),
            next_ino,
            links,
            renamed: HashMap::new(),
            extra_links: Vec::new(),
            failures: Vec::new(),
            copied: Vec::new(),
            merged: Vec::new(),
            open: None,
        }
    }

    /// Starts at the top, whose entries go into the directory of the image.
    pub(super) fn start(&mut self, role: Role, inherited: Inherited, tx: &Transaction<'_>) -> io::Result<()> {
        let dir = Arc::new(SourceDir { relative: Vec::new() });
        let fd = self.source.open_dir(&dir)?;
        let mut stat = host::stat(fd.as_fd(), c"")?;
        self.settle_attributes(&mut stat.attributes, tx);
        if role == Role::Merge {
            stat.attributes.pass_on(&inherited);
        }
        let default_acl = inherited.default_acl.clone().filter(|_| role == Role::Merge);
        let node = Node {
            dir,
            name: CString::default(),
            stat,
            ino: self.top.ino,
            parent: self.top.ino,
            index: 0,
            role,
            property: inherited.property,
            acls: Vec::new(),
            default_acl,
        };
        self.queue.push_back(node);
        Ok(())
    }

    /// A new inode's number.
    pub(super) fn take_ino(&mut self) -> u64 {
        self.next_ino += 1;
        self.next_ino - 1
    }

    /// Whether the next entry is a directory of the image into which others are merged.
    pub(super) fn next_changes_image(&self) -> bool {
        self.queue.front().is_some_and(|node| node.role == Role::Merge)
    }

    /// The next entry, in the order of inode numbers. An entry that cannot be read is noted and passed over.
    pub(super) fn next(&mut self, tx: &mut Transaction<'_>) -> Result<Option<Ready>> {
        while let Some(node) = self.queue.pop_front() {
            let ready = match self.dir_of(&node) {
                Err(error) => Err(error),
                Ok(fd) => self.read(node.clone(), fd, tx)?,
            };
            match ready {
                Ok(ready) => {
                    if node.role != Role::Merge {
                        self.note_copied(&node.relative());
                    }
                    return Ok(Some(ready));
                }
                Err(error) => {
                    self.fail(&node.relative(), &error.to_string());
                    if node.role == Role::New {
                        return Ok(Some(Ready::Lost(node)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The directory of the next entry.
    pub(super) fn next_dir(&self) -> Option<*const SourceDir> {
        self.queue.front().map(|node| Arc::as_ptr(&node.dir))
    }

    /// The directory that holds an entry. That of the last one that the walk gave is open.
    pub(super) fn dir_of(&mut self, node: &Node) -> io::Result<Arc<OwnedFd>> {
        if let Some((dir, fd)) = &self.open
            && Arc::ptr_eq(dir, &node.dir)
        {
            return Ok(fd.clone());
        }
        let fd = Arc::new(self.source.open_dir(&node.dir)?);
        self.open = Some((node.dir.clone(), fd.clone()));
        Ok(fd)
    }

    /// Reads what an entry is, but for a file's contents. The inner error is the source's.
    fn read(&mut self, node: Node, fd: Arc<OwnedFd>, tx: &mut Transaction<'_>) -> Result<io::Result<Ready>> {
        let preserve = &self.options.preserve;
        let entry_xattrs = |node: &Node| SourceXattrs::of_entry(fd.as_fd(), &node.name, preserve);
        Ok(match node.stat.attributes.file_type() {
            FileType::REG_FILE => Ok(Ready::File(node)),
            FileType::DIR => return self.read_directory(node, &fd, tx),
            FileType::SYMLINK => match (host::read_link(fd.as_fd(), &node.name), entry_xattrs(&node)) {
                (Ok(target), Ok(xattrs)) => Ok(Ready::Symlink(node, target, xattrs)),
                (Err(e), _) | (_, Err(e)) => Err(e),
            },
            _ => entry_xattrs(&node).map(|xattrs| Ready::Special(node, xattrs)),
        })
    }

    fn read_directory(
        &mut self,
        mut node: Node,
        parent: &OwnedFd,
        tx: &mut Transaction<'_>,
    ) -> Result<io::Result<Ready>> {
        let dir = Arc::new(SourceDir { relative: node.relative() });
        let fd = match node.name.is_empty() {
            true => self.source.open_dir(&dir),
            false => host::open_subdir(parent.as_fd(), &node.name),
        };
        // What a copy of its own finds when it is made: a directory gets flags and property of the source last.
        let inherited = self.inherited(&node);
        let opened = fd.and_then(|fd| {
            let xattrs = SourceXattrs::of(fd.as_fd(), &self.options.preserve)?;
            if self.options.preserve.flags {
                node.stat.attributes.flags |= host::flags_of(fd.as_fd(), true);
            }
            Ok((host::names(fd.as_fd())?, xattrs, fd))
        });
        let (names, xattrs, fd) = match opened {
            Ok(opened) => opened,
            // The directory itself comes along, empty.
            Err(error) if node.role != Role::Merge => {
                self.fail(&node.relative(), &format!("cannot read the directory: {error}"));
                return Ok(Ok(Ready::Directory(node, Listing::default(), SourceXattrs::default())));
            }
            Err(error) => return Ok(Err(error)),
        };
        let mut listing = Listing::default();
        for name in names {
            let stat = match host::stat(fd.as_fd(), &name) {
                Ok(stat) => stat,
                Err(error) => {
                    self.fail(&dir.join(name.as_bytes()), &error.to_string());
                    continue;
                }
            };
            if let Err(reason) = self.admit(&stat, tx) {
                if let Some(reason) = reason {
                    self.fail(&dir.join(name.as_bytes()), &reason);
                }
                continue;
            }
            match node.role {
                Role::Merge => {
                    let there = Place { ino: node.ino, ..self.top };
                    let entry = name.as_bytes().to_vec();
                    self.merge_entry((there, &entry), &dir, name, stat, &inherited, tx)?;
                }
                Role::New | Role::Adopt | Role::Replace => {
                    self.list_entry(&node, &dir, name, stat, &inherited, &mut listing, tx)
                }
            }
        }
        if node.role == Role::Merge {
            self.note_merged(&node, fd.as_fd(), &xattrs, tx);
        }
        // In a chain of directories the next entry is in this one: no need to walk there again.
        if self.queue.front().is_some_and(|next| Arc::ptr_eq(&next.dir, &dir)) {
            self.open = Some((dir, Arc::new(fd)));
        }
        Ok(Ok(match node.role {
            Role::Merge => Ready::Merged,
            Role::New | Role::Adopt | Role::Replace => Ready::Directory(node, listing, xattrs),
        }))
    }

    /// What the entries of a directory inherit: what it inherited, as cp(1) gives a directory the source's own flags and
    /// property when its entries are there, and as an entry of the source need not have them.
    fn inherited(&self, node: &Node) -> Inherited {
        let (flags, property) = (node.stat.attributes.flags, node.property.clone());
        let group = node.stat.attributes.group_for_entries().filter(|_| !self.options.preserve.owner);
        let default_acl = node.default_acl.clone().filter(|_| !self.options.preserve.keeps_mode());
        Inherited { flags, property, group, default_acl }
    }

    /// Whether an entry can come along; the error is the reason if one is to be told.
    fn admit(&self, stat: &Stat, tx: &Transaction<'_>) -> Result<(), Option<String>> {
        if self.options.exclude.contains(&(stat.device, stat.ino)) {
            return Err(None);
        }
        if FileType::from_mode(stat.attributes.mode).is_none() {
            return Err(Some(format!("unknown file type 0{:o}", stat.attributes.mode)));
        }
        let max = max_symlink_len(tx.sectorsize() as usize, tx.nodesize() as usize) as u64;
        if stat.attributes.file_type() == FileType::SYMLINK && stat.size > max {
            return Err(Some(format!("symlink target of {} bytes is too long, at most {max}", stat.size)));
        }
        Ok(())
    }

    /// An entry of a new directory.
    #[expect(clippy::too_many_arguments, reason = "what an entry is made of")]
    fn list_entry(
        &mut self,
        parent: &Node,
        dir: &Arc<SourceDir>,
        name: CString,
        stat: Stat,
        inherited: &Inherited,
        listing: &mut Listing,
        tx: &Transaction<'_>,
    ) {
        let (index, file_type) = (listing.next_index(), stat.attributes.file_type());
        if !listing.takes(name.as_bytes(), tx.nodesize()) {
            let reason = "too many names with its hash in one directory";
            return self.fail(&dir.join(name.as_bytes()), reason);
        }
        match self.link_of(&stat) {
            Some(Err(reason)) => self.fail(&dir.join(name.as_bytes()), &reason),
            Some(Ok(ino)) => {
                self.note_copied(&dir.join(name.as_bytes()));
                listing.push(name.as_bytes(), ino, file_type);
                self.extra_links.push(ExtraLink { ino, parent: parent.ino, index, name: name.into_bytes() });
            }
            None => {
                let ino = self.take_ino();
                listing.push(name.as_bytes(), ino, file_type);
                self.enqueue(parent.ino, index, dir, name, stat, ino, inherited, tx);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what an entry is made of")]
    pub(super) fn enqueue(
        &mut self,
        parent: u64,
        index: u64,
        dir: &Arc<SourceDir>,
        name: CString,
        mut stat: Stat,
        ino: u64,
        inherited: &Inherited,
        tx: &Transaction<'_>,
    ) {
        self.note_link(&stat, ino, 1);
        self.settle_attributes(&mut stat.attributes, tx);
        let acls = self.inherit_access(&mut stat.attributes, inherited);
        let property = stat.attributes.inherit(inherited);
        self.queue.push_back(Node {
            dir: dir.clone(),
            name,
            stat,
            ino,
            parent,
            index,
            role: Role::New,
            property,
            acls,
            default_acl: inherited.default_acl.clone(),
        });
    }

    /// What something new inherits of rights, as ACLs. Where it has the mode of any new file, a default ACL says nothing of
    /// that: cp(1) sets it in the end.
    fn inherit_access(&self, new: &mut Attributes, parent: &Inherited) -> Vec<Xattr> {
        let mode = new.mode;
        let mut acls = new.inherit_access(parent);
        if self.options.preserve.mode == Modes::Default {
            new.mode = new.mode & !0o777 | mode & 0o777;
            acls.retain(|(name, _)| name != ACCESS_XATTR);
        }
        acls
    }

    /// Notes that an entry is the inode `ino` in the image, which has `nlink` names there.
    pub(super) fn note_link(&mut self, stat: &Stat, ino: u64, nlink: u32) {
        if self.options.preserve.links {
            self.links.note(stat, Place { ino, ..self.top }, nlink);
        }
    }

    /// The inode that an entry is another name of.
    pub(super) fn link_of(&mut self, stat: &Stat) -> Option<Result<u64, String>> {
        if self.options.preserve.links { self.links.take(stat, self.top.tree) } else { None }
    }

    /// Has no more names given to inodes that are not in the image after all.
    pub(super) fn forget_links(&mut self, lost: &std::collections::HashSet<u64>) {
        let tree = self.top.tree;
        self.links.forget(|place| place.tree == tree && lost.contains(&place.ino));
    }

    /// Owner, mode and times by the options.
    pub(super) fn settle_attributes(&self, a: &mut Attributes, tx: &Transaction<'_>) {
        a.mode = self.options.preserve.mode_of_new(a.mode);
        if !self.options.preserve.owner {
            (a.uid, a.gid) = (0, 0);
        }
        if !self.options.preserve.times {
            let now = tx.now();
            (a.atime, a.ctime, a.mtime, a.otime) = (now, now, now, now);
        }
        if let Some(clamp) = self.options.clamp {
            let key = |t: &btrfsimg_ondisk::Timespec| (t.sec.get(), t.nsec.get());
            let mtime = if key(&a.mtime) > key(&clamp) { clamp } else { a.mtime };
            (a.atime, a.ctime, a.mtime, a.otime) = (mtime, mtime, mtime, mtime);
        }
    }

    /// Notes that an entry goes into the image.
    pub(super) fn note_copied(&mut self, relative: &[u8]) {
        if self.options.list {
            self.copied.push(std::ffi::OsStr::from_bytes(relative).into());
        }
    }

    pub(super) fn fail(&mut self, relative: &[u8], reason: &str) {
        let path = self.path_of(relative);
        self.failures.push(Failure { path, reason: reason.to_owned() });
    }

    /// The path of an entry as the user would name it.
    pub(super) fn path_of(&self, relative: &[u8]) -> PathBuf {
        if relative.is_empty() {
            return self.source.path.clone();
        }
        self.source.path.join(std::ffi::OsStr::from_bytes(relative))
    }
}
