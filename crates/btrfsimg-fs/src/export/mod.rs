//! A tree of an image to a directory of the host.
//!
//! One thread walks the image and makes directories, links and special files; others create, decode and write
//! regular files, small ones in batches, large ones in parts. What fails is reported, and the rest goes on.
//!
//! **Architecture invariants.** Nothing is created outside the target: every step is relative to an open
//! directory, follows no symlink (but one that stands where a file goes, as far as the top of the tree), and takes a name
//! only after [`check_name`](crate::lookup::check_name). Neither
//! the depth of a tree nor the size of a file is bounded by recursion, open files or memory.

mod attributes;
mod dirs;
mod feed;
mod host;
mod links;
mod lost;
mod paths;
mod walk;
mod workers;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use btrfsimg_ondisk::FileType;
use crossbeam_channel::bounded;

use crate::error::{Error, Result};
use crate::existing::Existing;
use crate::lookup::Place;
use crate::preserve::{Modes, Preserve};
use crate::read::{Filesystem, Info, Loss, Salvaged, Segments};

use feed::Feed;
pub use links::Links;
use walk::Walker;
use workers::Todo;

/// What is copied, and what of it is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Directories and what is in them. Without it a directory is an error.
    pub recursive: bool,
    /// What comes along with type and contents. Modes that are not kept are as the umask leaves them, for what is new; the
    /// compression property goes where the host takes it.
    pub preserve: Preserve,
    /// Block and character devices; else they are left out.
    pub devices: bool,
    /// Setuid and setgid bits; else they are cleared with a warning.
    pub setuid: bool,
    /// Goes on behind faults as far as it can: bytes that fail their check are copied as they are, those that cannot
    /// be read as zeros; both are reported. Inodes that no name leads to go where they say that they
    /// were, or to `lost+found`.
    pub salvage: bool,
    /// What happens to what is there already and is no directory.
    pub existing: Existing,
    /// Report what is copied.
    pub list: bool,
    /// Threads that read, decode and write.
    pub workers: usize,
    /// The image itself, by device and inode: it is never written to nor replaced, whatever name leads to it.
    pub image: Option<(u64, u64)>,
}

/// Where a copy goes.
#[derive(Clone, Copy, Debug)]
pub enum Destination<'a> {
    /// To `name` in the directory `dir`, which exists.
    Entry {
        /// The directory.
        dir: &'a Path,
        /// The new name in it.
        name: &'a OsStr,
    },
    /// What is in the source, a directory, goes into `dir`, which exists.
    Contents {
        /// The directory.
        dir: &'a Path,
    },
}

/// What a copy has to say of one path of the image.
#[derive(Debug)]
pub enum Report<'a> {
    /// It is being copied: with [`Options::list`].
    Copying {
        /// In the image.
        path: &'a [u8],
    },
    /// It, or a part of it, was not copied.
    Failed {
        /// In the image.
        path: &'a [u8],
        /// Why.
        error: Error,
    },
    /// It was copied, but bytes of it are not what they were.
    Damaged {
        /// In the image.
        path: &'a [u8],
        /// Which.
        loss: Loss,
    },
    /// No name leads to this inode any more: its copy has this path.
    Nameless {
        /// Of the copy, below what is copied.
        path: &'a [u8],
        /// Which inode.
        place: Place,
        /// Whether the path is the one that the inode itself says it has; else it is one in `lost+found`.
        is_home: bool,
    },
    /// It was copied as far as it is known: what says what it is cannot be read, or not be trusted.
    InPart {
        /// In the image.
        path: &'a [u8],
        /// Why.
        error: Error,
    },
    /// A tree block breaks rules, or is older or newer than the rest; what is in it was read as it is.
    Block {
        /// What is wrong with it.
        error: Error,
    },
    /// Something of it was left out that this user cannot make, or did not ask for.
    LeftOut {
        /// In the image.
        path: &'a [u8],
        /// What.
        what: LeftOut,
        /// Why.
        reason: String,
    },
}

/// What is left out without being a failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LeftOut {
    /// The owner: only root may give files away.
    Owner,
    /// An xattr that the host refuses.
    Xattr,
    /// An xattr that only btrfs understands.
    BtrfsXattr,
    /// An ACL that the host does not take: the mode has no more rights than it gave.
    Acl,
    /// A device.
    Device,
    /// The setuid and setgid bits.
    Setuid,
}

/// What was copied.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symlinks, fifos, sockets and devices.
    pub others: u64,
    /// Names given to inodes that were there already.
    pub links: u64,
    /// Bytes of regular files that were written.
    pub bytes: u64,
    /// Failures that were reported.
    pub failed: u64,
    /// Files with damage, and inodes without a name, that were reported.
    pub damaged: u64,
}

/// What all threads of a copy share.
struct Shared<'a> {
    fs: &'a Filesystem,
    options: Options,
    report: &'a (dyn Fn(Report<'_>) + Sync),
    /// The top of the tree that is copied to: what symlinks that stand in it may not lead out of. None for a single file.
    top: OnceLock<OwnedFd>,
    umask: u32,
    files: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    damaged: AtomicU64,
}

impl Shared<'_> {
    /// The segments of a file, of a broken one as far as they can be read.
    fn segments(&self, info: &Info) -> Segments {
        if self.options.salvage { Segments::salvage(self.fs, info) } else { Segments::new(info) }
    }

    /// The permissions of what is new, where they are those of any new file.
    fn default_mode(&self, info: &Info) -> Option<u32> {
        let preserve = &self.options.preserve;
        (preserve.mode == Modes::Default).then(|| preserve.creation_mode(info.mode()) & !self.umask)
    }

    fn fail(&self, path: &[u8], error: Error) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        (self.report)(Report::Failed { path, error });
    }

    fn count_damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports what makes a copy doubtful, if anything does.
    fn in_part(&self, path: &[u8], doubt: Option<Error>) {
        if let Some(error) = doubt {
            self.count_damaged();
            (self.report)(Report::InPart { path, error });
        }
    }

    /// Reports what is wrong with one file.
    fn damaged(&self, path: &[u8], losses: Vec<Loss>) {
        if losses.is_empty() {
            return;
        }
        self.count_damaged();
        for loss in losses {
            (self.report)(Report::Damaged { path, loss });
        }
    }

    fn left_out(&self, path: &[u8], what: LeftOut, reason: impl Into<String>) {
        (self.report)(Report::LeftOut { path, what, reason: reason.into() });
    }
}

/// Copies `source`, whose path in messages is `path`, to `destination`. Names of inodes that are in `links` become names of
/// their copies, where links are kept. Failures go to `report`, from any thread,
/// and the rest is copied.
///
/// # Errors
/// What makes all of it impossible: `Io` when the destination cannot be opened, `IsDirectory` for a directory
/// without `recursive`, `Corrupt`.
pub fn copy_out(
    fs: &Filesystem,
    source: Place,
    path: &[u8],
    destination: Destination<'_>,
    options: Options,
    links: &mut Links,
    report: &(dyn Fn(Report<'_>) + Sync),
) -> Result<Summary> {
    let Salvaged { info, doubt } = match options.salvage {
        true => fs.salvage_info(source, FileType::DIR),
        false => Salvaged { info: fs.info(source)?, doubt: None },
    };
    let shown = String::from_utf8_lossy(path);
    if info.is_dir() && !options.recursive {
        return Err(Error::IsDirectory(format!("{shown}: not copied without -r")));
    }
    let (dir, name) = match destination {
        Destination::Entry { dir, name } => (dir, Some(name.as_bytes())),
        Destination::Contents { dir } if info.is_dir() => (dir, None),
        Destination::Contents { .. } => return Err(Error::NotDirectory(shown.into_owned())),
    };
    let target = links.open_target(dir)?;
    let shared = Shared {
        fs,
        options,
        report,
        top: OnceLock::new(),
        umask: host::umask(),
        files: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        damaged: AtomicU64::new(0),
    };
    shared.in_part(path, doubt);
    let workers = feed::workers(options.workers);
    let mut summary = thread::scope(|scope| {
        let (work, to_do) = bounded::<Todo>(workers);
        for _ in 0..workers {
            let (to_do, shared) = (to_do.clone(), &shared);
            scope.spawn(move || workers::run(shared, &to_do));
        }
        drop(to_do);
        Walker::new(&shared, target, path, Feed::new(&shared, work, workers), links).run(&info, name)
    })?;
    for error in fs.store().take_doubtful() {
        shared.failed.fetch_add(1, Ordering::Relaxed);
        report(Report::Block { error });
    }
    summary.files = shared.files.into_inner();
    summary.bytes = shared.bytes.into_inner();
    summary.failed = shared.failed.into_inner();
    summary.damaged = shared.damaged.into_inner();
    Ok(summary)
}
