//! An image file or a block device.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use btrfsimg_ondisk::Physical;
use rustix::fs::{FallocateFlags, FlockOperation};

use super::Device;
use crate::error::{Error, Result};

/// How an image is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Shared with other readers.
    Read,
    /// Alone.
    Write,
}

/// An image file or a block device, locked while it is open: readers share, a writer is alone.
pub struct FileDevice {
    file: File,
    path: PathBuf,
    /// The image's name in messages.
    shown: String,
    base: u64,
    is_block_device: bool,
}

impl FileDevice {
    /// Opens the image at `path`, whose file system starts `base` bytes into it.
    ///
    /// # Errors
    /// `Io` when it cannot be opened; `Busy` when another process writes it (or, for a writer, reads it), or when
    /// it is mounted or attached to a loop device and `access` is to write.
    pub fn open(path: &Path, access: Access, base: u64) -> Result<FileDevice> {
        Self::open_waiting(path, access, base, || false)
    }

    /// The same, but where another process has it locked, tries again as long as `wait` (which takes its time)
    /// says so.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_waiting(
        path: &Path,
        access: Access,
        base: u64,
        mut wait: impl FnMut() -> bool,
    ) -> Result<FileDevice> {
        loop {
            match Self::try_open(path, access, base)? {
                Ok(device) => return Ok(device),
                Err(_) if wait() => {}
                Err(busy) => return Err(busy),
            }
        }
    }

    /// The device, or why it is worth to try again.
    fn try_open(path: &Path, access: Access, base: u64) -> Result<Result<FileDevice>> {
        let name = path.display().to_string();
        let meta = std::fs::metadata(path).map_err(Error::io(&name))?;
        let is_block_device = meta.file_type().is_block_device();
        if !is_block_device && !meta.is_file() {
            return Err(Error::Invalid(format!("{name}: neither a regular file nor a block device")));
        }
        if access == Access::Write {
            refuse_attached(path, &meta)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write);
        if access == Access::Write && is_block_device {
            options.custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
        }
        let file = options.open(path).map_err(|e| open_error(&name, e))?;
        if let Err(error) = lock(&file, &name, access) {
            return if matches!(error, Error::Busy(_)) { Ok(Err(error)) } else { Err(error) };
        }
        // Between opening and locking, another tool may have put a new file in its place.
        let (ours, there) =
            (file.metadata().map_err(Error::io(&name))?, std::fs::metadata(path).map_err(Error::io(&name))?);
        if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
            return Ok(Err(Error::Busy(format!("{name}: was replaced while it was opened; try again"))));
        }
        Ok(Ok(FileDevice { file, path: path.to_owned(), shown: name, base, is_block_device }))
    }

    /// Creates an empty file at `path`, which must not exist, with `mode`, and locks it.
    ///
    /// # Errors
    /// `Io` when it cannot be created.
    pub fn create(path: &Path, mode: u32) -> Result<FileDevice> {
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)
            .map_err(Error::io(&name))?;
        lock(&file, &name, Access::Write)?;
        Ok(FileDevice { file, path: path.to_owned(), shown: name, base: 0, is_block_device: false })
    }

    /// Gives the file the owner and mode of an old one that it will replace. An owner that is not ours to give stays,
    /// as with any editor that renames.
    ///
    /// # Errors
    /// `Io` when the mode cannot be set.
    pub fn adopt(&self, old: &std::fs::Metadata) -> io::Result<()> {
        let new = self.file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            let _ = std::os::unix::fs::fchown(&self.file, Some(old.uid()), Some(old.gid()));
        }
        self.file.set_permissions(old.permissions())
    }

    /// Its name in messages, where that is not its path: a file that is still to be renamed.
    pub fn shown_as(self, name: &str) -> FileDevice {
        FileDevice { shown: name.to_owned(), ..self }
    }

    /// Names the image where the disk under it is full: the image itself may have room.
    fn explain(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let fix = "free some space on it";
                io::Error::new(
                    error.kind(),
                    format!("{error}: the disk that holds {} is full; {fix}", self.shown),
                )
            }
            _ => error,
        }
    }

    /// Where in the file the byte `at` of the device is: no file has one behind `i64::MAX`.
    fn place(&self, at: u64) -> io::Result<u64> {
        let place = self.base.checked_add(at).filter(|place| i64::try_from(*place).is_ok());
        place.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, format!("no file has a byte {at}")))
    }

    /// The loop device that the file backs, if any: what is read may be older than what a mount of it shows.
    pub fn attached_to(&self) -> Option<String> {
        attached_loop_device(&self.file.metadata().ok()?)
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a block device, whose length is fixed.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }
}

fn open_error(name: &str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::ResourceBusy {
        return Error::Busy(format!("{name}: in use (mounted, or opened by another tool); unmount it first"));
    }
    Error::io(name)(error)
}

/// A program that starts another one shares its locks with it for a moment, between fork and exec: one that was let go
/// may still be held then, and is asked for again.
const LOCK_TRIES: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

fn lock(file: &File, name: &str, access: Access) -> Result<()> {
    let operation = match access {
        Access::Read => FlockOperation::NonBlockingLockShared,
        Access::Write => FlockOperation::NonBlockingLockExclusive,
    };
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, operation) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            // A file system without locks (some network ones): go on, as other image tools do.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOLCK) => return Ok(()),
            Err(e) => return Err(Error::io(format!("{name}: lock"))(e.into())),
        }
    }
    Err(Error::Busy(format!("{name}: locked by another process; wait until it ends")))
}

/// Refuses a file that a loop device is backed by: the kernel may hold it mounted.
fn refuse_attached(path: &Path, meta: &std::fs::Metadata) -> Result<()> {
    match attached_loop_device(meta) {
        None => Ok(()),
        Some(device) => Err(Error::Busy(format!(
            "{}: attached to {device}, so it may be mounted; unmount it, or detach it with 'losetup -d {device}'",
            path.display()
        ))),
    }
}

/// The loop device that the file with `meta` backs, if any (`/sys/block/loopN/loop/backing_file`).
fn attached_loop_device(meta: &std::fs::Metadata) -> Option<String> {
    for entry in std::fs::read_dir("/sys/block").ok()?.flatten() {
        let Ok(backing) = std::fs::read(entry.path().join("loop/backing_file")) else { continue };
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let Ok(other) = std::fs::metadata(OsStr::from_bytes(backing)) else { continue };
        if (other.dev(), other.ino()) == (meta.dev(), meta.ino()) {
            return Some(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    None
}

impl Device for FileDevice {
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()> {
        self.file.read_exact_at(buf, self.place(at.0)?)
    }

    fn write_at(&self, buf: &[u8], at: Physical) -> io::Result<()> {
        self.file.write_all_at(buf, self.place(at.0)?).map_err(|error| self.explain(error))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data().map_err(|error| self.explain(error))
    }

    fn len(&self) -> io::Result<u64> {
        let end = if self.is_block_device {
            (&self.file).seek(SeekFrom::End(0))?
        } else {
            self.file.metadata()?.len()
        };
        Ok(end.saturating_sub(self.base))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.is_block_device {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a block device has a fixed length"));
        }
        self.file.set_len(self.place(len)?).map_err(|error| self.explain(error))
    }

    fn punch(&self, at: Physical, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, self.place(at.0)?, len)?)
    }

    fn is_sparse(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.is_file() && meta.blocks() < meta.len() / 512)
    }
}

impl FileDevice {
    /// The bytes at the start of the file, up to `n`: to see what was there before.
    ///
    /// # Errors
    /// `Io` when they cannot be read.
    pub fn head(&self, n: u64) -> io::Result<Vec<u8>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.base))?;
        let mut bytes = Vec::new();
        file.take(n).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
