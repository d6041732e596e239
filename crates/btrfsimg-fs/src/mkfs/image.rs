//! A new file system in a file or on a block device: nothing is lost when it fails half-way.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use btrfsimg_ondisk::{Physical, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, Uuid};

use super::{Options, Size, finish_size, make};
use crate::device::{Access, Device, FileDevice};
use crate::error::{Error, Result};
use crate::lookup::Place;
use crate::txn::{Transaction, Volume, VolumeOptions};

/// Bytes at the start of a file in which known signatures stand.
const HEAD: u64 = 128 << 10;

/// Where a new image goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageOptions {
    /// Overwrite what holds a file system, an archive or the like.
    pub force: bool,
    /// Whether something will be put in: an image without content is 1 GiB, or as long as the file was.
    pub has_content: bool,
    /// Do not wait for durability.
    pub no_sync: bool,
}

/// A file of the host: (device major, minor) and inode number.
pub type HostFile = ((u32, u32), u64);

/// What was made.
#[derive(Clone, Copy, Debug)]
pub struct Made<T> {
    /// What filling it gave.
    pub filled: T,
    /// Bytes of the image.
    pub size: u64,
    /// The file system's UUID.
    pub fsid: Uuid,
}

/// Makes an image at `path`, and has `fill` put something into its root directory. `fill` is told which files of the
/// host the image itself is, so that it does not swallow its own tail.
///
/// A file is written beside its place and renamed when it is whole, so that until then an old file is as it was; a
/// symlink is followed. A block device is written in place: its old superblock goes first, the new one comes last.
///
/// # Errors
/// `Invalid` for what is neither file nor block device; `Exists` for a file with known contents without `force`;
/// `Busy`; `NoSpace` with the bytes needed for an exact size; what `fill` returns.
pub fn make_image<T>(
    path: &Path,
    options: &Options,
    image: &ImageOptions,
    fill: impl FnOnce(&mut Transaction<'_>, Place, &[HostFile]) -> Result<T>,
) -> Result<Made<T>> {
    let shown = path.display().to_string();
    let place = resolve(path).map_err(Error::io(&shown))?;
    match std::fs::metadata(&place) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => make_file(&place, None, options, image, fill),
        Err(e) => Err(Error::io(shown)(e)),
        Ok(meta) if meta.file_type().is_block_device() => make_on_device(&place, options, image, fill),
        Ok(meta) if meta.is_file() => make_file(&place, Some(&meta), options, image, fill),
        Ok(_) => Err(Error::Invalid(format!("{shown}: neither a regular file nor a block device"))),
    }
}

/// Where a file at `path` would really be: symlinks followed, also one that leads to nothing yet.
fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..40 {
        match std::fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(std::io::Error::other("too many levels of symbolic links"))
}

fn make_file<T>(
    path: &Path,
    old: Option<&std::fs::Metadata>,
    options: &Options,
    image: &ImageOptions,
    fill: impl FnOnce(&mut Transaction<'_>, Place, &[HostFile]) -> Result<T>,
) -> Result<Made<T>> {
    let shown = path.display().to_string();
    let mut options = options.clone();
    // The old file stays open and locked until the new one has taken its name.
    let old_device = match old {
        None => None,
        Some(meta) => {
            let device = FileDevice::open(path, Access::Write, 0)?;
            refuse_known(&device, &shown, image.force)?;
            if !image.has_content && meta.len() > 0 && matches!(options.size, Size::Auto(_)) {
                options.size = Size::Exact(meta.len());
            }
            Some(device)
        }
    };
    let temporary = Temporary::beside(path)?;
    let created =
        FileDevice::create(&temporary.path, if old.is_some() { 0o600 } else { 0o666 }).map_err(|e| match e {
            Error::Io { source, .. } => Error::Io { what: format!("cannot create {shown}"), source },
            other => other,
        });
    let device = Arc::new(created?.shown_as(&shown));
    if let Some(meta) = old {
        device.adopt(meta).map_err(Error::io(&shown))?;
    }
    let itself: Vec<HostFile> = [std::fs::metadata(&temporary.path).ok().as_ref(), old]
        .into_iter()
        .flatten()
        .map(host_file)
        .collect();
    let made = fill_volume(device.clone(), &options, image, &itself, fill)?;
    device.set_len(made.size).map_err(Error::io(&shown))?;
    temporary.rename_to(path, !image.no_sync).map_err(Error::io(&shown))?;
    drop(old_device);
    Ok(made)
}

fn make_on_device<T>(
    path: &Path,
    options: &Options,
    image: &ImageOptions,
    fill: impl FnOnce(&mut Transaction<'_>, Place, &[HostFile]) -> Result<T>,
) -> Result<Made<T>> {
    let shown = path.display().to_string();
    let device = Arc::new(FileDevice::open(path, Access::Write, 0)?);
    refuse_known(&device, &shown, image.force)?;
    let length = device.len().map_err(Error::io(&shown))?;
    let mut options = options.clone();
    if let Size::Exact(size) = options.size
        && size > length
    {
        return Err(Error::Invalid(format!("{shown}: size {size} is beyond the device's {length} bytes")));
    }
    if !matches!(options.size, Size::Exact(_)) {
        options.size = Size::Exact(length);
    }
    let zeros = [0; SUPERBLOCK_LEN];
    for at in SUPERBLOCK_OFFSETS.into_iter().filter(|at| at + (SUPERBLOCK_LEN as u64) <= length) {
        device.write_at(&zeros, Physical(at)).map_err(Error::io(&shown))?;
    }
    device.sync().map_err(Error::io(&shown))?;
    fill_volume(device, &options, image, &[], fill)
}

fn fill_volume<T>(
    device: Arc<dyn Device>,
    options: &Options,
    image: &ImageOptions,
    itself: &[HostFile],
    fill: impl FnOnce(&mut Transaction<'_>, Place, &[HostFile]) -> Result<T>,
) -> Result<Made<T>> {
    let volume_options = VolumeOptions { no_sync: image.no_sync, ..Default::default() };
    let mut volume = Volume::blank(device, &options.geometry()?, volume_options)?;
    let mut tx = volume.begin(options.now)?;
    make(&mut tx, options)?;
    let filled = fill(&mut tx, Place::TOP, itself)?;
    let fsid = Uuid::from_bytes(tx.superblock().fsid);
    let size = finish_size(&mut tx, options.size, image.has_content)?;
    tx.commit()?;
    Ok(Made { filled, size, fsid })
}

/// Refuses a file or device that holds something known, unless `force`.
fn refuse_known(device: &FileDevice, shown: &str, force: bool) -> Result<()> {
    if force {
        return Ok(());
    }
    let head = device.head(HEAD).map_err(Error::io(shown))?;
    let unknown = head.iter().any(|b| *b != 0).then_some("data");
    match known_contents(&head).or(unknown) {
        None => Ok(()),
        Some(what) => Err(Error::Invalid(format!("{shown}: holds {what}; overwrite it with -f"))),
    }
}

/// What a file's first bytes are the signature of.
fn known_contents(head: &[u8]) -> Option<&'static str> {
    const SIGNATURES: &[(usize, &[u8], &str)] = &[
        (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
        (0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (0, b"hsqs", "a squashfs file system"),
        (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS file system"),
        (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
        (0x8001, b"CD001", "an ISO 9660 file system"),
        (3, b"NTFS    ", "an NTFS file system"),
        (3, b"EXFAT   ", "an exFAT file system"),
        (0x36, b"FAT1", "a FAT file system"),
        (0x52, b"FAT32", "a FAT file system"),
        (512, b"EFI PART", "a GPT partition table"),
        (0, b"LUKS\xba\xbe", "an encrypted LUKS volume"),
        (536, b"LVM2 001", "an LVM physical volume"),
        (0, b"QFI\xfb", "a qcow2 image"),
        (4086, b"SWAPSPACE2", "swap space"),
        (257, b"ustar", "a tar archive"),
        (0, &[0x1f, 0x8b], "gzip data"),
        (0, &[0x28, 0xb5, 0x2f, 0xfd], "zstd data"),
        (0, b"\xfd7zXZ", "xz data"),
        (0, b"PK\x03\x04", "a zip archive"),
        (0, b"\x7fELF", "an ELF file"),
        (510, &[0x55, 0xaa], "an MBR partition table"),
    ];
    SIGNATURES.iter().find(|(at, magic, _)| head.get(*at..at + magic.len()) == Some(magic)).map(|s| s.2)
}

fn host_file(meta: &std::fs::Metadata) -> HostFile {
    let dev = meta.dev();
    ((rustix::fs::major(dev), rustix::fs::minor(dev)), meta.ino())
}

/// A file that goes when it is dropped, unless it was renamed.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    fn beside(path: &Path) -> Result<Temporary> {
        let name =
            path.file_name().ok_or_else(|| Error::Invalid(format!("{}: has no name", path.display())))?;
        // Short enough whatever the name, and unlike any other process's.
        let tag = uuid::Uuid::new_v4().simple().to_string();
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(String::from_utf8_lossy(name.as_encoded_bytes()).chars().take(40).collect::<String>());
        hidden.push(format!(".{}.tmp", &tag[..12]));
        Ok(Temporary { path: path.with_file_name(hidden), renamed: false })
    }

    fn rename_to(mut self, path: &Path, sync: bool) -> std::io::Result<()> {
        std::fs::rename(&self.path, path)?;
        self.renamed = true;
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if sync {
            // Where directories cannot be synced, the rename is as durable as that file system makes it.
            let _ = std::fs::File::open(dir).and_then(|d| d.sync_all());
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Already failing: there is nobody to tell.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
