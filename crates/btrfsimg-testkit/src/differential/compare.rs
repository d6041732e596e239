//! What the kernel shows of two images, compared. One is mounted after the other, as both have one UUID.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use btrfsimg_ondisk::CsumType;
use rustix::buffer::spare_capacity;
use rustix::fs::{IFlags, ioctl_getflags, lgetxattr, llistxattr};
use rustix::io::Errno;

use super::kernel;
use crate::mount::Mount;

/// Times before this were set by an operation; later ones are of the moment.
const LONG_AGO: i64 = 1_500_000_000;
const XATTR_MAX: usize = 64 << 10;
/// FS_NOCOMP_FL.
pub(super) const NOCOMPRESS: u32 = 0x400;
const SUBVOLUME_ROOT: u64 = 256;

/// What is compared of one name.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    device: u64,
    mtime: Option<(i64, i64)>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// COMPRESS, IMMUTABLE and the like; not NOCOMPRESS.
    flags: u32,
    nocompress: bool,
    /// Digest of the contents, or a symlink's target.
    contents: String,
    is_subvolume: bool,
    /// The first name of the same file.
    link_of: Option<Vec<u8>>,
}

/// What the kernel shows of an image.
#[derive(Default)]
struct Shown {
    entries: BTreeMap<Vec<u8>, Entry>,
    readonly: Vec<String>,
}

/// Mounts both, compares all. `kernel_on_both`: the kernel has changed the trial image as well.
///
/// # Errors
/// The differences; what cannot be mounted or read.
pub fn images(reference: &Path, trial: &Path, kernel_on_both: bool) -> Result<()> {
    let expect = shown(reference).context("the kernel's image")?;
    let found = shown(trial).context("the trial image")?;
    let mut differences = Vec::new();
    for (path, entry) in &expect.entries {
        match found.entries.get(path) {
            None => differences.push(format!("{}: missing", path.escape_ascii())),
            Some(other) => entry.differences(other, path, kernel_on_both, &mut differences),
        }
    }
    for path in found.entries.keys().filter(|path| !expect.entries.contains_key(*path)) {
        differences.push(format!("{}: should not be there", path.escape_ascii()));
    }
    if expect.readonly != found.readonly {
        differences.push(format!("read-only subvolumes: {:?} and {:?}", expect.readonly, found.readonly));
    }
    differences.truncate(12);
    ensure!(differences.is_empty(), "kernel and library differ:\n  {}", differences.join("\n  "));
    Ok(())
}

impl Entry {
    fn differences(&self, other: &Entry, path: &[u8], kernel_on_both: bool, out: &mut Vec<String>) {
        let mut differ = |what: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
            let (a, b) = (format!("{a:?}"), format!("{b:?}"));
            if a != b {
                out.push(format!("{}: {what} {a:.300} and {b:.300}", path.escape_ascii()));
            }
        };
        differ("mode", &self.mode, &other.mode);
        differ("owner", &self.owner, &other.owner);
        differ("links", &self.links, &other.links);
        differ("size", &self.size, &other.size);
        differ("device", &self.device, &other.device);
        differ("mtime", &self.mtime, &other.mtime);
        differ("xattrs", &self.xattrs, &other.xattrs);
        differ("contents", &self.contents, &other.contents);
        differ("subvolume", &self.is_subvolume, &other.is_subvolume);
        differ("link of", &self.link_of, &other.link_of);
        // The kernel sets NOCOMPRESS by itself, and shows COMPRESS no more then. Whether it does so for an image depends on
        // what is in memory.
        let by_itself = self.nocompress && !other.nocompress;
        let on_the_other = kernel_on_both && other.nocompress && !self.nocompress;
        if !(by_itself || on_the_other) {
            differ("NOCOMPRESS", &self.nocompress, &other.nocompress);
            differ("flags", &self.flags, &other.flags);
        }
    }
}

fn shown(image: &Path) -> Result<Shown> {
    let mount = Mount::open(image, "ro")?;
    let mut shown = Shown { readonly: kernel::readonly_subvolumes(mount.path())?, ..Shown::default() };
    let mut links = BTreeMap::new();
    let top = fs::symlink_metadata(mount.path())?;
    let entry = describe(mount.path(), b"", &top, &mut links)?;
    shown.entries.insert(Vec::new(), entry);
    walk(mount.path(), b"", &mut shown, &mut links)?;
    let mut said = mount.unmount()?;
    said.retain(|line| !super::is_known(line));
    ensure!(said.is_empty(), "the kernel says {said:?}");
    Ok(shown)
}

type Links = BTreeMap<(u64, u64), Vec<u8>>;

fn walk(dir: &Path, at: &[u8], shown: &mut Shown, links: &mut Links) -> Result<()> {
    let mut names: Vec<_> =
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    names.sort();
    for name in names {
        let (path, host) = ([at, b"/", name.as_bytes()].concat(), dir.join(&name));
        let shown_path = || path.escape_ascii().to_string();
        let meta = fs::symlink_metadata(&host).with_context(shown_path)?;
        let entry = describe(&host, &path, &meta, links).with_context(shown_path)?;
        shown.entries.insert(path.clone(), entry);
        if meta.is_dir() {
            walk(&host, &path, shown, links)?;
        }
    }
    Ok(())
}

fn describe(host: &Path, path: &[u8], meta: &Metadata, links: &mut Links) -> Result<Entry> {
    let kind = meta.file_type();
    // A stand-in for a subvolume has the times of the moment, and nothing else.
    let (flags, nocompress) = if kind.is_file() || kind.is_dir() { flags_of(host)? } else { (0, false) };
    let contents = if kind.is_file() {
        let bytes = fs::read(host)?;
        format!("{:02x?}", &CsumType::Sha256.of(&bytes).0)
    } else if kind.is_symlink() {
        fs::read_link(host)?.as_os_str().as_bytes().escape_ascii().to_string()
    } else {
        String::new()
    };
    let first = links.entry((meta.dev(), meta.ino())).or_insert_with(|| path.to_vec());
    let mtime = Some((meta.mtime(), meta.mtime_nsec()))
        .filter(|(sec, _)| *sec < LONG_AGO && meta.ino() >= SUBVOLUME_ROOT);
    Ok(Entry {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        links: meta.nlink(),
        size: meta.len(),
        device: if kind.is_char_device() || kind.is_block_device() { meta.rdev() } else { 0 },
        mtime,
        xattrs: xattrs(host)?,
        flags,
        nocompress,
        contents,
        is_subvolume: kind.is_dir() && meta.ino() == SUBVOLUME_ROOT,
        link_of: (first != path && !kind.is_dir()).then(|| first.clone()),
    })
}

fn flags_of(host: &Path) -> Result<(u32, bool)> {
    let flags = match fs::File::open(host).map(ioctl_getflags) {
        Ok(Ok(flags)) => flags,
        // The stand-in for a subvolume has none.
        Ok(Err(Errno::NOTTY | Errno::OPNOTSUPP)) => IFlags::empty(),
        Ok(Err(error)) => return Err(error.into()),
        Err(error) => return Err(error.into()),
    };
    Ok((flags.bits() & !NOCOMPRESS, flags.bits() & NOCOMPRESS != 0))
}

fn xattrs(host: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut list = Vec::with_capacity(XATTR_MAX);
    match llistxattr(host, spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
    }
    let mut found = BTreeMap::new();
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::with_capacity(XATTR_MAX);
        lgetxattr(host, name, spare_capacity(&mut value))?;
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}
