//! Directories that are being filled: they get their mode and times when the last entry is there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use btrfsimg_ondisk::{InodeItem, Timespec};
use rustix::fs::Mode;
use rustix::io::Errno;

use super::Shared;
use super::attributes::{self, creation_mode};
use super::host::{self, failed};
use super::paths::PathNode;
use crate::error::{Error, Result};
use crate::lookup::Place;
use crate::preserve::Preserve;
use crate::read::Info;

/// What a directory of the copy needs until it is done. Whoever lets go of it last finishes it: the walk, or a
/// file in it that is being written.
#[derive(Debug)]
pub(super) struct DirState {
    source: Source,
    /// Its path.
    pub(super) node: Arc<PathNode>,
    /// The mode that it gets back, where the owner's bits were added to fill it.
    narrow_mode: Option<u32>,
    origin: Origin,
}

/// What the copy of a directory gets of its source's item in the end. Of a deep tree, the items of all directories above
/// would else be kept.
#[derive(Debug)]
struct Source {
    place: Place,
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Timespec,
    mtime: Timespec,
}

impl Source {
    fn of(info: &Info) -> Source {
        let (uid, gid) = (info.item.uid.get(), info.item.gid.get());
        let (atime, mtime) = (info.item.atime, info.item.mtime);
        Source { place: info.place, mode: info.mode(), uid, gid, atime, mtime }
    }

    fn info(&self) -> Info {
        let item = InodeItem {
            mode: self.mode.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            atime: self.atime,
            mtime: self.mtime,
            ..InodeItem::zeroed()
        };
        Info { place: self.place, item }
    }
}

/// Where a directory comes from, and with that whether it gets the attributes of its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The copy made it: always.
    Made,
    /// It was there: when attributes are to be kept.
    Found,
    /// It has no source: never.
    Bystander,
}

/// A use of a directory that is being filled.
#[derive(Debug)]
pub(super) struct Dir {
    pub(super) state: Arc<DirState>,
    fd: Arc<OwnedFd>,
}

impl Dir {
    /// The directory `fd`, which the copy fills and did not make.
    pub(super) fn existing(fd: OwnedFd, info: Info, node: Arc<PathNode>) -> Dir {
        Dir::new(fd, info, node, None, Origin::Found)
    }

    /// The directory `fd`, which gets one new entry and else stays as it is.
    pub(super) fn bystander(fd: OwnedFd, info: Info, node: Arc<PathNode>) -> Dir {
        Dir::new(fd, info, node, None, Origin::Bystander)
    }

    /// The directory `fd`, which the copy made and left, and which gets one more entry.
    pub(super) fn again(fd: OwnedFd, info: Info, node: Arc<PathNode>) -> Result<Dir> {
        let mode = rustix::fs::fstat(&fd).map_err(failed("stat"))?.st_mode & 0o7777;
        let narrow_mode = (mode & 0o700 != 0o700).then_some(mode);
        if narrow_mode.is_some() {
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode | 0o700)).map_err(failed("set mode"))?;
        }
        Ok(Dir::new(fd, info, node, narrow_mode, Origin::Found))
    }

    fn new(fd: OwnedFd, info: Info, node: Arc<PathNode>, narrow_mode: Option<u32>, origin: Origin) -> Dir {
        let state = DirState { source: Source::of(&info), node, narrow_mode, origin };
        Dir { state: Arc::new(state), fd: Arc::new(fd) }
    }

    /// Makes the directory `name` in `parent`, or takes the one that is there.
    pub(super) fn make(
        preserve: &Preserve,
        parent: BorrowedFd<'_>,
        name: &[u8],
        info: Info,
        node: Arc<PathNode>,
    ) -> Result<Dir> {
        let is_new = match rustix::fs::mkdirat(parent, name, creation_mode(preserve, &info)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed("create")(errno)),
        };
        if !is_new {
            let fd = host::open_dir(parent, name).map_err(|errno| match errno {
                Errno::NOTDIR | Errno::LOOP => Error::Exists("the target is no directory".to_owned()),
                errno => failed("open")(errno),
            })?;
            return Ok(Dir::new(fd, info, node, None, Origin::Found));
        }
        let narrow_mode = widen(parent, name)?;
        let fd = host::open_dir(parent, name).map_err(failed("open"))?;
        Ok(Dir::new(fd, info, node, narrow_mode, Origin::Made))
    }

    /// The directory itself.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether there may be names in it that are not from the copy.
    pub(super) fn was_there(&self) -> bool {
        self.state.origin != Origin::Made
    }

    /// Another use of it.
    pub(super) fn share(&self) -> Dir {
        Dir { state: self.state.clone(), fd: self.fd.clone() }
    }

    /// Ends a use; the last one sets mode and times.
    pub(super) fn release(self, shared: &Shared<'_>) {
        let Some(state) = Arc::into_inner(self.state) else { return };
        if let Err(e) = state.finish(self.fd.as_fd(), shared) {
            shared.fail(&state.node.path_of(b""), e);
        }
    }

    /// Closes it for the time that the walk is far below; its use goes on. To be opened by [`Parked::reopen`].
    pub(super) fn park(self) -> Result<Parked> {
        let identity = host::identity(self.fd()).map_err(failed("stat"))?;
        Ok(Parked { state: self.state, identity })
    }
}

impl DirState {
    fn finish(&self, fd: BorrowedFd<'_>, shared: &Shared<'_>) -> Result<()> {
        let preserve = &shared.options.preserve;
        if let Some(mode) = self.narrow_mode.filter(|_| !preserve.keeps_mode()) {
            rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)).map_err(failed("set mode"))?;
        }
        if self.origin == Origin::Made {
            attributes::set_default_mode(shared, fd, &self.source.info())?;
        }
        let takes_attributes = match self.origin {
            Origin::Made => true,
            Origin::Found => preserve.changes_existing(),
            Origin::Bystander => false,
        };
        if takes_attributes {
            attributes::set_on_fd(shared, self.node.spot(b""), fd, &self.source.info())?;
        }
        Ok(())
    }
}

/// Makes a new directory one that its owner can fill. Gives its mode, where that was changed.
fn widen(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<u32>> {
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    let mode = rustix::fs::statat(parent, name, flags).map_err(failed("stat"))?.st_mode & 0o7777;
    if mode & 0o700 == 0o700 {
        return Ok(None);
    }
    // By the inode, not the name: chmod would follow a symlink put in its place.
    let path = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let handle = rustix::fs::openat(parent, name, path, Mode::empty()).map_err(failed("open"))?;
    let by_proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle));
    let wide = std::os::unix::fs::PermissionsExt::from_mode(mode | 0o700);
    std::fs::set_permissions(by_proc, wide).map_err(Error::io("set mode"))?;
    Ok(Some(mode))
}

/// A directory in use that is not open.
#[derive(Debug)]
pub(super) struct Parked {
    state: Arc<DirState>,
    identity: (u64, u64),
}

impl Parked {
    /// Opens it again, as the parent of `child`: the same directory, or an error.
    pub(super) fn reopen(self, child: BorrowedFd<'_>) -> Result<Dir> {
        let fd = host::open_dir(child, b"..").map_err(failed("open"))?;
        if host::identity(&fd).map_err(failed("stat"))? != self.identity {
            let path = self.state.node.path_of(b"");
            let path = String::from_utf8_lossy(&path);
            return Err(Error::Busy(format!("{path}: the target was moved while it was copied to")));
        }
        Ok(Dir { state: self.state, fd: Arc::new(fd) })
    }
}
