//! Xattrs, symlink targets and file extents.

use btrfsimg_ondisk::{DirItems, FileExtent, FileExtentKind, KeyType, max_symlink_len, name_hash};

use super::dir::in_tree;
use super::{Items, Place, with_item};
use crate::error::{Error, Result};

/// The xattrs of an inode, names with their prefix, in the order of their names' hashes.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn xattrs(items: &impl Items, place: Place) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut out = Vec::new();
    if place.is_empty_dir() {
        return Ok(out);
    }
    let (from, to) = place.keys(KeyType::XATTR_ITEM);
    let nodesize = items.context().nodesize;
    items.walk(place.tree, &from, &to, &mut |item| {
        let item = item?;
        let found = DirItems::parse(item.key, item.data, nodesize).map_err(|v| in_tree(place, &v))?;
        out.extend(found.into_iter().map(|e| (e.name.to_vec(), e.data.to_vec())));
        Ok(true)
    })?;
    Ok(out)
}

/// The value of the xattr `name` (with its prefix), if the inode has it.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn xattr(items: &impl Items, place: Place, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if place.is_empty_dir() {
        return Ok(None);
    }
    let key = place.key(KeyType::XATTR_ITEM, name_hash(name));
    let nodesize = items.context().nodesize;
    let found = with_item(items, place.tree, &key, |data| {
        let entries = DirItems::parse(key, data, nodesize).map_err(|v| in_tree(place, &v))?;
        Ok(entries.find(name).map(|e| e.data.to_vec()))
    })?;
    Ok(found.flatten())
}

/// The target of the symlink at `place`.
///
/// # Errors
/// `Corrupt` when it has none, or one that kernels cannot have written; `Io`.
pub fn symlink_target(items: &impl Items, place: Place) -> Result<Vec<u8>> {
    let key = place.key(KeyType::EXTENT_DATA, 0);
    let ctx = items.context();
    let max = max_symlink_len(usize::try_from(ctx.sectorsize).unwrap_or(usize::MAX), ctx.nodesize);
    let target = with_item(items, place.tree, &key, |data| {
        let extent = FileExtent::parse(data).map_err(|v| in_tree(place, &v))?;
        Ok(match extent.kind {
            // btrfs-convert stores the zero byte behind it, too.
            FileExtentKind::Inline(stored) if extent.compression == 0 => {
                Some(stored.strip_suffix(&[0]).unwrap_or(stored).to_vec())
            }
            _ => None,
        })
    })?
    .flatten();
    match target {
        Some(target) if (1..=max).contains(&target.len()) && !target.contains(&0) => Ok(target),
        Some(_) => Err(fault(place, "symlink with an invalid target")),
        None => Err(fault(place, "symlink without an inline target")),
    }
}

/// Most bytes of a file, as on Linux.
#[doc(alias = "MAX_LFS_FILESIZE")]
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// Refuses a file that is larger than any can be: what is computed from its size would wrap around.
///
/// # Errors
/// INO-13.
pub fn check_size(place: Place, size: u64) -> Result<()> {
    if size <= FILE_SIZE_MAX {
        return Ok(());
    }
    let reason = format!("root={} inode {}: size {size}, at most {FILE_SIZE_MAX}", place.tree, place.ino);
    Err(Error::corrupt("INO-13", reason))
}

fn fault(place: Place, reason: &str) -> Error {
    Error::corrupt("FE-20", format!("root={} inode {}: {reason}", place.tree, place.ino))
}

/// Calls `each` with the file offset and every extent of the file that ends behind `from`, in order, until it
/// returns `false`. The first may start before `from`. Gaps are holes.
///
/// # Errors
/// `Corrupt`, `Io`, and what `each` returns.
pub fn file_extents(
    items: &impl Items,
    place: Place,
    from: u64,
    mut each: impl FnMut(u64, FileExtent<'_>) -> Result<bool>,
) -> Result<()> {
    let (first, last) = place.keys(KeyType::EXTENT_DATA);
    let mut start = place.key(KeyType::EXTENT_DATA, from);
    if from > 0
        && let Some((key, _)) = items.last(place.tree, &first, &start)?
    {
        start = key;
    }
    let sectorsize = items.context().sectorsize;
    items.walk(place.tree, &start, &last, &mut |item| {
        let item = item?;
        let extent = FileExtent::parse(item.data).map_err(|v| in_tree(place, &v))?;
        let end = item.key.offset.saturating_add(extent.covers(sectorsize));
        if end <= from {
            return Ok(true);
        }
        each(item.key.offset, extent)
    })
}
