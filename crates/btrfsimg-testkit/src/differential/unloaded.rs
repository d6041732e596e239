//! Directories whose property a kernel does not load (docs/format-notes.md), and loading it by hand.
//!
//! A kernel reads the properties of an inode with its item, from the same leaf or the beginning of the next. Where they
//! are elsewhere, what it makes in a directory does not inherit the property that the directory has. Where a leaf ends is
//! chance, and no fault of an image; so before the kernel changes one, it is given those properties once more.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;

use crate::btrfs_progs;

const PROPERTY: &str = "btrfs.compression";
/// Bytes of the longest value.
const VALUE_MAX: usize = 64;
/// Items behind an inode's own that a kernel looks at in its leaf.
const SCANNED_MAX: usize = 8;

/// An item of a subvolume's tree, as btrfs-progs show it.
struct Item {
    inode: u64,
    kind: String,
    leaf: usize,
    is_dir: bool,
    has_property: bool,
}

/// The inode numbers of directories in the image whose property a kernel does not load.
///
/// # Errors
/// When btrfs-progs fail.
pub(super) fn directories(image: &Path) -> Result<BTreeSet<u64>> {
    let (mut found, mut items) = (BTreeSet::new(), Vec::new());
    let mut leaf = 0;
    for line in btrfs_progs::dump_tree(image, &[])?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [.., "tree", "key", _, "ROOT_ITEM", _] => {
                found.extend(unloaded(&items));
                items.clear();
            }
            ["leaf", ..] => leaf += 1,
            ["item", _, "key", inode, kind, ..] => {
                let inode = inode.trim_start_matches('(').parse().unwrap_or(0);
                items.push(Item { inode, kind: kind.to_owned(), leaf, is_dir: false, has_property: false });
            }
            [.., "mode", mode, "links", _, "uid", _, "gid", _, "rdev", _] => {
                if let Some(item) = items.last_mut() {
                    item.is_dir = mode.starts_with("40");
                }
            }
            ["name:", PROPERTY] => {
                if let Some(item) = items.last_mut() {
                    item.has_property = true;
                }
            }
            _ => {}
        }
    }
    found.extend(unloaded(&items));
    Ok(found)
}

/// Those of one tree.
fn unloaded(items: &[Item]) -> impl Iterator<Item = u64> + '_ {
    let is_dir = |item: &Item| item.kind == "INODE_ITEM" && item.is_dir;
    items.iter().enumerate().filter(move |(_, item)| is_dir(item)).filter_map(|(at, item)| {
        let own = items[at..].iter().take_while(|other| other.inode == item.inode);
        let has_property = own.clone().any(|other| other.has_property);
        // What lies in the leaf behind the item and its first name.
        let in_leaf = own.clone().skip(2).take_while(|other| other.leaf == item.leaf);
        let names = in_leaf.take(SCANNED_MAX).take_while(|other| other.kind != "XATTR_ITEM").count();
        let in_leaf = own.clone().take_while(|other| other.leaf == item.leaf).count();
        let next = if in_leaf < 2 { 1 } else { 2 + names };
        let loads = own.clone().nth(next).is_some_and(|other| other.kind == "XATTR_ITEM");
        (has_property && !loads).then_some(item.inode)
    })
}

/// Gives the directories below `top` with these inode numbers the property that they have.
///
/// # Errors
/// As reading directories and writing xattrs.
pub(super) fn load(top: &Path, inodes: &BTreeSet<u64>) -> Result<()> {
    if inodes.is_empty() {
        return Ok(());
    }
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        if inodes.contains(&fs::symlink_metadata(&dir)?.ino()) {
            let mut value = Vec::with_capacity(VALUE_MAX);
            match lgetxattr(&dir, PROPERTY, spare_capacity(&mut value)) {
                // In a read-only subvolume nothing is made.
                Ok(_) => match lsetxattr(&dir, PROPERTY, &value, XattrFlags::empty()) {
                    Ok(()) | Err(Errno::ROFS) => {}
                    Err(error) => return Err(error.into()),
                },
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    Ok(())
}
