//! What is in a directory of an image, for commands that list it.

use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::{Error, Result};
use btrfsimg_ondisk::FileType;

/// An entry that is listed.
pub(super) struct Listed {
    pub(super) name: Vec<u8>,
    pub(super) place: Place,
    pub(super) file_type: FileType,
    pub(super) is_subvolume: bool,
}

/// The entries of a directory in its order; `fault` is told of those that cannot be read.
pub(super) fn read_dir(fs: &Filesystem, dir: Place, fault: impl Fn(Error)) -> Result<Vec<Listed>> {
    let mut out = Vec::new();
    lookup::entries(fs, dir, |entry| {
        let entry = match entry {
            Ok((_, entry)) => entry,
            Err(e) => {
                fault(e);
                return Ok(true);
            }
        };
        match lookup::target(fs, dir, entry.name, entry.location) {
            Ok(place) => out.push(Listed {
                name: entry.name.to_vec(),
                place,
                file_type: entry.file_type,
                is_subvolume: entry.is_subvolume(),
            }),
            Err(e) => fault(e),
        }
        Ok(true)
    })?;
    Ok(out)
}

/// The same by the bytes of their names.
pub(super) fn sorted(mut entries: Vec<Listed>) -> Vec<Listed> {
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

/// The path of the entry `name` of `dir`.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}
