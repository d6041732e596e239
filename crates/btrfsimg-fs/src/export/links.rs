//! Inodes of the image with several names, and where the host has their copies.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::host::{self, failed};
use super::paths::PathNode;
use crate::error::{Error, Result};
use crate::lookup::Place;

/// The copies of inodes with several names, so that the names that come later become names of them: for one command and one
/// image, whatever it copies to.
#[derive(Debug, Default)]
pub struct Links {
    copies: HashMap<Place, Linked>,
    /// The directory that was copied to last.
    target: Option<(PathBuf, Arc<OwnedFd>)>,
}

/// A copy, and how many names of it are to come.
#[derive(Debug)]
pub(super) struct Linked {
    top: Top,
    pub(super) node: Arc<PathNode>,
    pub(super) name: Vec<u8>,
    left: u32,
}

/// The top of a copy: a directory, or the one of that name in it.
#[derive(Clone, Debug)]
pub(super) struct Top {
    pub(super) target: Arc<OwnedFd>,
    pub(super) name: Option<Arc<[u8]>>,
}

impl Links {
    /// Opens the directory that is copied to: once, as each copy keeps it.
    pub(super) fn open_target(&mut self, dir: &Path) -> Result<Arc<OwnedFd>> {
        if let Some((known, fd)) = &self.target
            && known == dir
        {
            return Ok(fd.clone());
        }
        let fd = Arc::new(host::open_target(dir)?);
        self.target = Some((dir.to_owned(), fd.clone()));
        Ok(fd)
    }

    pub(super) fn get(&self, place: Place) -> Option<&Linked> {
        self.copies.get(&place)
    }

    /// Notes the first of `nlink` names.
    pub(super) fn note(&mut self, place: Place, nlink: u32, top: &Top, node: &Arc<PathNode>, name: &[u8]) {
        let left = nlink.saturating_sub(1);
        let linked = Linked { top: top.clone(), node: node.clone(), name: name.to_vec(), left };
        self.copies.insert(place, linked);
    }

    /// Counts one name more; behind the last one none is waited for.
    pub(super) fn count(&mut self, place: Place) {
        let Some(linked) = self.copies.get_mut(&place) else { return };
        linked.left = linked.left.saturating_sub(1);
        if linked.left == 0 {
            self.copies.remove(&place);
        }
    }
}

impl Linked {
    /// Opens the directory that the copy is in.
    pub(super) fn open_dir(&self) -> Result<OwnedFd> {
        let target = match &self.top.name {
            Some(name) => host::open_dir(&self.top.target, name).map_err(failed("open"))?,
            None => self.top.target.try_clone().map_err(Error::io("open the target"))?,
        };
        open_node(&target, &self.node)
    }
}

/// Opens a directory of the copy from its top, step by step.
pub(super) fn open_node(top: &OwnedFd, node: &Arc<PathNode>) -> Result<OwnedFd> {
    let mut at = top.try_clone().map_err(Error::io("open the target"))?;
    for part in node.names() {
        at = host::open_dir(&at, part.name()).map_err(failed("open"))?;
    }
    Ok(at)
}
