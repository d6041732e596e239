//! `IMAGE:/path`: which words of a command line are places in an image.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use btrfsimg_fs::Error;
use btrfsimg_fs::device::{Access, Device as _, FileDevice};
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::read::Filesystem;

use btrfsimg_ondisk::SUPERBLOCK_OFFSETS;

use crate::exit::usage;
use crate::output::{Ui, shown};

/// A place in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The file or block device.
    pub(crate) image: PathBuf,
    /// The path inside, as typed.
    pub(crate) path: Vec<u8>,
}

impl Address {
    /// What lies below, by the path `rest` from here.
    pub(crate) fn below(&self, rest: &[u8]) -> Address {
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        let slash: &[u8] = if rest.is_empty() || self.path.ends_with(b"/") { b"" } else { b"/" };
        Address { image: self.image.clone(), path: [&self.path, slash, rest].concat() }
    }

    /// Whether both are in one image, whatever it is called.
    pub(crate) fn is_in_image_of(&self, other: &Address) -> bool {
        self.image == other.image || ImageId::of(&self.image) == ImageId::of(&other.image)
    }
}

/// What tells images apart.
#[derive(PartialEq, Eq)]
enum ImageId {
    /// Device and inode of a file.
    File(u64, u64),
    /// The number of a block device.
    Device(u64),
    /// The name of what cannot be looked at.
    Name(PathBuf),
}

impl ImageId {
    fn of(image: &Path) -> ImageId {
        match fs::metadata(image) {
            Ok(meta) if meta.file_type().is_block_device() => ImageId::Device(meta.rdev()),
            Ok(meta) => ImageId::File(meta.dev(), meta.ino()),
            Err(_) => ImageId::Name(image.to_owned()),
        }
    }
}

/// The addresses of each image, whatever it is called: images in the order in which they are named first.
pub(crate) fn by_image(addresses: Vec<Address>) -> Vec<Vec<Address>> {
    let mut images: Vec<(ImageId, Vec<Address>)> = Vec::new();
    for address in addresses {
        let id = ImageId::of(&address.image);
        match images.iter_mut().find(|(other, _)| *other == id) {
            Some((_, group)) => group.push(address),
            None => images.push((id, vec![address])),
        }
    }
    images.into_iter().map(|(_, group)| group).collect()
}

/// What a word of a command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// A place in an image.
    Image(Address),
    /// A path of the host.
    Host(PathBuf),
}

/// Which image, for commands that read or change one.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct ImageArgs {
    /// The image; paths are then written without it
    #[arg(short, long, value_name = "FILE")]
    pub(crate) image: Option<PathBuf>,
    /// Where in the image file the file system starts, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = crate::size::parse_size)]
    pub(crate) offset: u64,
    /// Take paths from this subvolume (a path, or an id)
    #[arg(long, value_name = "SUBVOL")]
    pub(crate) subvol: Option<OsString>,
}

/// An image opened for reading, and where paths in it start.
pub(crate) struct Opened {
    pub(crate) fs: Filesystem,
    pub(crate) start: Place,
}

impl Opened {
    /// The inode that `path` names.
    pub(crate) fn resolve(&self, path: &[u8], follow_last: bool) -> btrfsimg_fs::Result<Place> {
        lookup::resolve(&self.fs, self.start, path, follow_last)
    }
}

impl ImageArgs {
    /// The address that `word` is: a path when `--image` names the image; else `IMAGE:/path`, or `IMAGE` alone for
    /// its top directory.
    pub(crate) fn address(&self, word: &OsStr) -> Result<Address> {
        if let Some(image) = &self.image {
            return Ok(Address { image: image.clone(), path: word.as_bytes().to_vec() });
        }
        if let Word::Image(address) = parse(word) {
            return Ok(address);
        }
        if is_image(Path::new(word)) {
            return Ok(Address { image: word.into(), path: b"/".to_vec() });
        }
        Err(no_address(word))
    }

    /// The addresses of `words`; the top directory of `--image` when there are none.
    pub(crate) fn addresses(&self, words: &[OsString]) -> Result<Vec<Address>> {
        if words.is_empty() {
            return Ok(vec![self.address_or_top(None)?]);
        }
        words.iter().map(|w| self.address(w)).collect()
    }

    /// The address that `word` is; the top directory of `--image` when there is none.
    pub(crate) fn address_or_top(&self, word: Option<&OsString>) -> Result<Address> {
        match (word, &self.image) {
            (Some(word), _) => self.address(word),
            (None, Some(image)) => Ok(Address { image: image.clone(), path: b"/".to_vec() }),
            (None, None) => Err(usage("no image given; write IMAGE:/path, or -i IMAGE")),
        }
    }

    /// What `word` of a cp is; with `--image`, `:/path` is inside.
    pub(crate) fn word(&self, word: &OsStr) -> Word {
        match (&self.image, word.as_bytes().strip_prefix(b":")) {
            (Some(image), Some(path)) if path.starts_with(b"/") => {
                Word::Image(Address { image: image.clone(), path: path.to_vec() })
            }
            (Some(_), _) => Word::Host(word.into()),
            (None, _) => parse(word),
        }
    }

    /// Opens an image for reading.
    pub(crate) fn open(&self, image: &Path, ui: &Ui) -> Result<Opened> {
        let name = || image.display().to_string();
        self.open_by(image, ui, |device| Filesystem::open(device).with_context(name))
    }

    /// Opens a broken image for reading: what is wrong with its trees is reported, and leads to the exit code that
    /// `code_of` gives.
    pub(crate) fn salvage(&self, image: &Path, ui: &Ui, code_of: impl Fn(&Error) -> u8) -> Result<Opened> {
        let name = || image.display().to_string();
        self.open_by(image, ui, |device| {
            let mut fault = |e: Error| ui.fail(&format!("{}: {e}", name()), code_of(&e));
            Filesystem::salvage(device, &mut fault).with_context(name)
        })
    }

    fn open_by(
        &self,
        image: &Path,
        ui: &Ui,
        open: impl FnOnce(Arc<FileDevice>) -> Result<Filesystem>,
    ) -> Result<Opened> {
        let name = || image.display().to_string();
        let device = FileDevice::open(image, Access::Read, self.offset)?;
        if let Some(attached) = device.attached_to() {
            ui.note(&format!(
                "{}: attached to {attached}; if it is mounted, what is shown may be old",
                name()
            ));
        }
        let device = Arc::new(device);
        let fs = open(device.clone())?;
        let sb = fs.superblock();
        if sb.bytenr.get() != SUPERBLOCK_OFFSETS[0] {
            ui.warn(&format!(
                "{}: the primary superblock is damaged; read by its copy at byte {}",
                name(),
                sb.bytenr
            ));
        }
        let (have, want) = (device.len()?, sb.dev_item.total_bytes.get());
        if have < want {
            ui.warn(&format!("{}: truncated: the file has {have} bytes, the file system {want}", name()));
        }
        if fs.has_log() {
            ui.note(&format!("{}: has a log to replay; what was synced last may look older", name()));
        }
        let start = self.start_in(&fs).with_context(name)?;
        Ok(Opened { fs, start })
    }

    /// Opens the image of each address once, in their order, and calls `each`. A failure of one address is
    /// reported, and the next one follows.
    pub(crate) fn for_each(
        &self,
        addresses: &[Address],
        ui: &Ui,
        each: impl FnMut(&Opened, &Address) -> Result<()>,
    ) -> Result<()> {
        self.for_each_opened(addresses, ui, |image| self.open(image, ui), each)
    }

    /// The same with a way to open.
    pub(crate) fn for_each_opened(
        &self,
        addresses: &[Address],
        ui: &Ui,
        open: impl Fn(&Path) -> Result<Opened>,
        mut each: impl FnMut(&Opened, &Address) -> Result<()>,
    ) -> Result<()> {
        let mut opened: Option<(PathBuf, Opened)> = None;
        for address in addresses {
            if opened.as_ref().is_none_or(|(image, _)| *image != address.image) {
                opened = Some((address.image.clone(), open(&address.image)?));
            }
            if let Some((_, open)) = &opened {
                ui.tolerate(each(open, address).map_err(|e| address.about(e)))?;
            }
        }
        Ok(())
    }

    /// Where paths start.
    pub(crate) fn start_in(&self, items: &impl lookup::Items) -> Result<Place> {
        let Some(subvol) = &self.subvol else { return Ok(Place::TOP) };
        let id = subvol.to_str().and_then(|s| s.parse::<u64>().ok());
        let place = match id {
            Some(id) => Place::root(id),
            None => lookup::resolve(items, Place::TOP, subvol.as_bytes(), true)?,
        };
        let is_subvolume =
            place == Place::root(place.tree) && lookup::subvolume(items, place.tree)?.is_some();
        if !is_subvolume {
            anyhow::bail!("{}: not a subvolume", shown(subvol.as_bytes()));
        }
        Ok(place)
    }
}

impl Address {
    /// An error about this place. One that says only what kind of thing is there is about the place as a whole, or
    /// about the directory on the way to it that it names.
    pub(crate) fn about(&self, error: anyhow::Error) -> anyhow::Error {
        let name = self.to_string();
        // One that names the image, or a place in it, already is about that.
        if error.to_string().starts_with(&format!("{}:", self.image.display())) {
            return error;
        }
        match error.downcast::<Error>() {
            Ok(Error::NotFound(what)) => Error::NotFound(self.on_the_way(&what).to_string()).into(),
            Ok(Error::NotDirectory(what)) => Error::NotDirectory(self.on_the_way(&what).to_string()).into(),
            Ok(Error::Exists(_)) => Error::Exists(name).into(),
            Ok(Error::IsDirectory(_)) => Error::IsDirectory(name).into(),
            Ok(error) => anyhow::Error::new(error).context(name),
            Err(error) => error.context(name),
        }
    }

    /// The directory above this place whose path is `what`; else this place itself.
    fn on_the_way(&self, what: &str) -> Address {
        let mut slashes = (0..self.path.len()).filter(|at| self.path[*at] == b'/');
        let end = slashes.find(|at| *at > 0 && String::from_utf8_lossy(&self.path[..*at]) == what);
        Address { image: self.image.clone(), path: self.path[..end.unwrap_or(self.path.len())].to_vec() }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slash = if self.path.starts_with(b"/") { "" } else { "/" };
        write!(f, "{}:{slash}{}", self.image.display(), shown(&self.path))
    }
}

/// What `word` names, by the rule of DESIGN 7.
pub(crate) fn parse(word: &OsStr) -> Word {
    let bytes = word.as_bytes();
    let host = || Word::Host(word.into());
    if bytes.starts_with(b"./") {
        return host();
    }
    let Some(colon) = bytes.windows(2).position(|pair| pair == b":/") else { return host() };
    let image = PathBuf::from(OsString::from_vec(bytes[..colon].to_vec()));
    if !is_image(&image) {
        return host();
    }
    Word::Image(Address { image, path: bytes[colon + 1..].to_vec() })
}

/// The image that `word` names as a whole: `IMAGE`, or `IMAGE:/`.
pub(crate) fn image_alone(word: &OsStr) -> Result<PathBuf> {
    match parse(word) {
        Word::Image(address) if address.path.iter().all(|b| *b == b'/') => Ok(address.image),
        Word::Image(address) => {
            let image = address.image.display();
            Err(usage(format!("{address}: this looks at a whole image; write {image}")))
        }
        Word::Host(path) if is_image(&path) => Ok(path),
        Word::Host(path) => {
            let image = shown(path.as_os_str().as_bytes());
            Err(usage(format!("{image}: no such image (a regular file or block device)")))
        }
    }
}

/// Whether there is a file that can be an image.
fn is_image(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() || m.file_type().is_block_device())
}

/// Whether there is a file with a btrfs file system at its start: for messages, which name the one that was meant.
pub(crate) fn holds_btrfs(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    let read = |file: fs::File| file.read_exact_at(&mut magic, SUPERBLOCK_OFFSETS[0] + MAGIC_OFFSET);
    is_image(path) && fs::File::open(path).and_then(read).is_ok() && magic == MAGIC
}

const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Of the magic in the superblock.
const MAGIC_OFFSET: u64 = 64;

/// Refuses a target on the host that is meant to be in an image which is not there: NAME:/path, with no directory `NAME:`.
pub(crate) fn check_host_target(word: &OsStr, path: &Path) -> Result<()> {
    let text = path.as_os_str().as_bytes();
    match text.windows(2).position(|two| two == b":/") {
        Some(colon) if colon > 0 && !text.starts_with(b"./") => {
            let dir = Path::new(OsStr::from_bytes(&text[..=colon]));
            if dir.exists() { Ok(()) } else { Err(no_address(word)) }
        }
        _ => Ok(()),
    }
}

/// Why `word` is no address.
fn no_address(word: &OsStr) -> anyhow::Error {
    let text = shown(word.as_bytes());
    match text.split_once(":/") {
        Some(_) if text.starts_with("./") => usage(format!(
            "{text}: './' makes this a path of the host; write it without './', or use -i IMAGE"
        )),
        Some((image, _)) => usage(format!("{image}: no such image (a regular file or block device)")),
        None => usage(format!("{text}: no such image; write IMAGE:/path, or -i IMAGE and the path")),
    }
}

/// The error of a cp that has no image on either side: it names the image that is not there.
pub(crate) fn no_image_in(words: &[OsString]) -> anyhow::Error {
    if let Some(word) = words.iter().find(|w| shown(w.as_bytes()).contains(":/")) {
        return no_address(word);
    }
    let file = words.iter().map(Path::new).find(|path| holds_btrfs(path));
    let hint = file.map(|file| shown(file.as_os_str().as_bytes()));
    let hint = hint.map_or(String::new(), |file| format!(": {file}:/ for what is in {file}"));
    usage(format!("neither side is in an image; write IMAGE:/path for the one that is{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a b.img");
        fs::write(&image, b"x").unwrap();
        let at = |suffix: &str| {
            let mut word = image.clone().into_os_string();
            word.push(suffix);
            word
        };
        let inside =
            |path: &str| Word::Image(Address { image: image.clone(), path: path.as_bytes().to_vec() });
        assert_eq!(parse(&at(":/x")), inside("/x"));
        assert_eq!(parse(&at(":/")), inside("/"));
        assert_eq!(parse(&at(":/x:/y")), inside("/x:/y"));
        assert_eq!(parse(&at("")), Word::Host(image.clone()));
        assert_eq!(parse(&at(":x")), Word::Host(at(":x").into()));
        let host = |word: &str| assert_eq!(parse(OsStr::new(word)), Word::Host(word.into()));
        host("./a:/b");
        host("no-such-image:/b");
        host("/:/b");
        let args = ImageArgs { image: Some(image.clone()), ..ImageArgs::default() };
        assert_eq!(args.word(OsStr::new(":/x")), inside("/x"));
        assert_eq!(args.word(OsStr::new("/x")), Word::Host("/x".into()));
        assert_eq!(args.address(OsStr::new("x/y")).unwrap().path, b"x/y");
    }

    #[test]
    fn errors_name_what_is_missing_on_the_way() {
        let said = |path: &str, what: &str| {
            let address = Address { image: "a.img".into(), path: path.as_bytes().to_vec() };
            address.about(Error::NotFound(what.to_owned()).into()).to_string()
        };
        for (path, what, object) in [
            ("/a/b/c", "/a/b/c", "a.img:/a/b/c"),
            ("/a/b/c", "/a", "a.img:/a"),
            ("/a/b/c", "/a/b", "a.img:/a/b"),
            ("a/b", "a", "a.img:/a"),
            // Not on the way, as the target of a symlink.
            ("/a/b/c", "b", "a.img:/a/b/c"),
            ("/", "", "a.img:/"),
        ] {
            assert_eq!(said(path, what), format!("{object}: no such file or directory"));
        }
    }
}
