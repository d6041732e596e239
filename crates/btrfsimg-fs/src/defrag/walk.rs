//! Which file comes next.

use std::sync::Arc;

use btrfsimg_ondisk::FileType;

use super::file::FileCursor;
use super::{Defrag, Observer};
use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::txn::Transaction;
use crate::write::names::check_changeable;

/// A directory, and how many of its entries were met.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: Arc<[u8]>,
    entries: Arc<[(Vec<u8>, Place, bool)]>,
    met: usize,
}

impl Defrag {
    /// Makes the next file the current one. Says whether there is one.
    pub(super) fn next_file(&mut self, tx: &Transaction<'_>, observer: &mut dyn Observer) -> Result<bool> {
        while self.current.is_none() {
            let Some((path, place, is_dir)) = self.next_entry(tx, observer) else { return Ok(false) };
            if let Err(error) = self.enter(tx, &path, place, is_dir) {
                observer.failed(&path, error);
            }
        }
        Ok(true)
    }

    /// The next file or directory.
    fn next_entry(
        &mut self,
        tx: &Transaction<'_>,
        observer: &mut dyn Observer,
    ) -> Option<(Vec<u8>, Place, bool)> {
        while let Some(directory) = self.directories.last_mut() {
            match directory.entries.get(directory.met) {
                Some((name, place, is_dir)) => {
                    directory.met += 1;
                    let slash: &[u8] = if directory.path.ends_with(b"/") { b"" } else { b"/" };
                    return Some(([&directory.path, slash, name].concat(), *place, *is_dir));
                }
                None => _ = self.directories.pop(),
            }
        }
        let (path, place, recursive) = self.waiting.get(self.begun)?.clone();
        self.begun += 1;
        let is_dir = match lookup::inode(tx, place) {
            Ok(inode) => FileType::from_mode(inode.mode.get()) == Some(FileType::DIR),
            Err(_) => false,
        };
        if is_dir && !recursive {
            observer.failed(&path, Error::IsDirectory("what is in it goes with -r".to_owned()));
            return self.next_entry(tx, observer);
        }
        Some((path, place, is_dir))
    }

    fn enter(&mut self, tx: &Transaction<'_>, path: &[u8], place: Place, is_dir: bool) -> Result<()> {
        if is_dir {
            if self.visit(place) {
                let entries = entries_of(tx, place)?.into();
                self.directories.push(Directory { path: path.into(), entries, met: 0 });
            }
            return Ok(());
        }
        let inode = check_changeable(tx, place, &String::from_utf8_lossy(path), false)?;
        if FileType::from_mode(inode.mode.get()) != Some(FileType::REG_FILE) {
            return Err(Error::Invalid("not a regular file".to_owned()));
        }
        if inode.nlink.get() < 2 || self.visit(place) {
            self.current = Some(FileCursor::new(tx, path.to_vec(), place, &inode, &self.options)?);
        }
        Ok(())
    }
}

/// The files and directories in a directory that are in its subvolume, by name.
fn entries_of(tx: &Transaction<'_>, dir: Place) -> Result<Vec<(Vec<u8>, Place, bool)>> {
    let mut found = Vec::new();
    lookup::entries(tx, dir, |entry| {
        let (_, entry) = entry?;
        let is_dir = entry.file_type == FileType::DIR;
        let is_subvolume = lookup::Entry::of(&entry).is_subvolume();
        if !is_subvolume && (is_dir || entry.file_type == FileType::REG_FILE) {
            let place = Place { tree: dir.tree, ino: entry.location.objectid };
            found.push((entry.name.to_vec(), place, is_dir));
        }
        Ok(true)
    })?;
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}
