//! All that a file system holds, to be compared with what it held.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context, Result};
use btrfsimg_fs::device::Device;
use btrfsimg_fs::lookup::{self, Place, entries, target};
use btrfsimg_fs::read::{FileReader, Filesystem, Part};
use btrfsimg_ondisk::{CsumType, FileType};

/// Every path with all that its inode has, file contents as a digest.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Contents(BTreeMap<Vec<u8>, String>);

impl Contents {
    /// The first path that is not the same in both, with what each has there.
    pub fn difference(&self, other: &Contents) -> Option<String> {
        let paths = self.0.keys().chain(other.0.keys().filter(|p| !self.0.contains_key(*p)));
        let path = paths.into_iter().find(|path| self.0.get(*path) != other.0.get(*path))?;
        let shown = String::from_utf8_lossy(path);
        Some(format!("{shown}: {:?} and {:?}", self.0.get(path), other.0.get(path)))
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is not even a root directory.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads all that the committed state on `device` holds, every byte, across subvolumes.
///
/// # Errors
/// When the image does not open, or anything in it cannot be read.
pub fn contents(device: Arc<dyn Device>) -> Result<Contents> {
    let fs = Filesystem::open(device)?;
    let mut found = Contents::default();
    let label = String::from_utf8_lossy(fs.label()).into_owned();
    found.0.insert(Vec::new(), format!("label {label:?} default {}", lookup::default_subvolume(&fs)?));
    let mut todo = vec![(b"/".to_vec(), Place::TOP)];
    while let Some((path, place)) = todo.pop() {
        let said = describe(&fs, place, &path, &mut todo);
        let said = said.with_context(|| String::from_utf8_lossy(&path).into_owned())?;
        found.0.insert(path, said);
    }
    Ok(found)
}

/// Everything about one inode as text; what a directory holds goes to `todo`.
fn describe(fs: &Filesystem, place: Place, path: &[u8], todo: &mut Vec<(Vec<u8>, Place)>) -> Result<String> {
    let info = fs.info(place)?;
    let (item, mtime) = (&info.item, info.mtime());
    let mut said = format!(
        "{}/{} mode {:o} links {} owner {}:{} size {} flags {:x} device {:?} mtime {}.{:09}",
        place.tree,
        place.ino,
        info.mode(),
        item.nlink,
        item.uid,
        item.gid,
        info.size(),
        item.flags,
        info.device_number(),
        mtime.sec,
        mtime.nsec
    );
    if place == Place::root(place.tree) {
        write!(said, " readonly {}", lookup::subvolume_is_readonly(fs, place.tree)?)?;
    }
    let mut xattrs = lookup::xattrs(fs, place)?;
    xattrs.sort();
    for (name, value) in xattrs {
        write!(said, " {}={value:02x?}", String::from_utf8_lossy(&name))?;
    }
    match info.file_type() {
        Some(FileType::DIR) => {
            let mut below = Vec::new();
            entries(fs, place, |entry| {
                let (_, entry) = entry?;
                below.push((entry.name.to_vec(), entry.location));
                Ok(true)
            })?;
            for (name, location) in below {
                let child = target(fs, place, &name, location)?;
                todo.push(([path, if path == b"/" { b"" } else { b"/" }, &name].concat(), child));
            }
        }
        Some(FileType::SYMLINK) => {
            write!(said, " -> {:?}", String::from_utf8_lossy(&lookup::symlink_target(fs, place)?))?;
        }
        Some(FileType::REG_FILE) => {
            let mut reader = FileReader::new(fs, &info)?;
            let mut bytes = Vec::new();
            while let Some(part) = reader.next_part(&mut bytes)? {
                let (offset, sum) = match part {
                    Part::Hole { offset, len } => (offset, format!("{len} zeros")),
                    Part::Data { offset } => {
                        (offset, format!("{:02x?}", &CsumType::XxHash64.of(&bytes).0[..8]))
                    }
                };
                write!(said, " {offset}:{sum}")?;
            }
        }
        _ => {}
    }
    Ok(said)
}
