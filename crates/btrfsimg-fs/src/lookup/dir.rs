//! Names in directories.

use btrfsimg_ondisk::{
    DirEntry, DirItems, FileType, Key, KeyType, NAME_LEN_MAX, RootRefHead, name_hash, objectid,
};
use zerocopy::FromBytes;

use super::{Items, Place, with_item};
use crate::error::{Error, Result};

/// What a name in a directory stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// `(inode, 1, 0)`, or `(subvolume, 132, …)`: see [`target`].
    pub location: Key,
    /// The type that the entry gives.
    pub file_type: FileType,
    /// Transaction that created it.
    pub transid: u64,
}

impl Entry {
    /// What an entry on disk says.
    pub fn of(entry: &DirEntry<'_>) -> Entry {
        Entry { location: entry.location, file_type: entry.file_type, transid: entry.transid }
    }

    /// Whether it names a subvolume, there or not.
    pub fn is_subvolume(&self) -> bool {
        self.location.key_type == KeyType::ROOT_ITEM
    }
}

/// The entry `name` of the directory `dir`, by the hash of the name.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn find_entry(items: &impl Items, dir: Place, name: &[u8]) -> Result<Option<Entry>> {
    if dir.is_empty_dir() {
        return Ok(None);
    }
    let key = dir.key(KeyType::DIR_ITEM, name_hash(name));
    let nodesize = items.context().nodesize;
    let found = with_item(items, dir.tree, &key, |data| {
        let entries = DirItems::parse(key, data, nodesize).map_err(|v| in_tree(dir, &v))?;
        Ok(entries.find(name).map(Entry::of))
    })?;
    Ok(found.flatten())
}

/// Calls `each` with the index and the entry of every name in `dir`, in the order of their indexes (the order of
/// creation), until it returns `false`. What cannot be read is an error in its place; `each` may go on behind it.
///
/// # Errors
/// `Corrupt`, `Io`, and what `each` returns.
pub fn entries(
    items: &impl Items,
    dir: Place,
    mut each: impl FnMut(Result<(u64, DirEntry<'_>)>) -> Result<bool>,
) -> Result<()> {
    in_directory(items, dir, KeyType::DIR_INDEX, &mut each)
}

fn in_directory(
    items: &impl Items,
    dir: Place,
    key_type: KeyType,
    mut each: impl FnMut(Result<(u64, DirEntry<'_>)>) -> Result<bool>,
) -> Result<()> {
    if dir.is_empty_dir() {
        return Ok(());
    }
    let (from, to) = dir.keys(key_type);
    let nodesize = items.context().nodesize;
    items.walk(dir.tree, &from, &to, &mut |item| {
        let item = match item {
            Ok(item) => item,
            Err(e) => return each(Err(e)),
        };
        match DirItems::parse(item.key, item.data, nodesize) {
            Ok(found) => {
                for entry in found {
                    if !each(Ok((item.key.offset, entry)))? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Err(v) => each(Err(in_tree(dir, &v))),
        }
    })
}

/// Calls `each` with the entry of every name in `dir`, in the order of their hashes, until it returns `false`: the
/// other place where each name stands. What cannot be read is an error in its place.
///
/// # Errors
/// `Corrupt`, `Io`, and what `each` returns.
pub fn entries_by_hash(
    items: &impl Items,
    dir: Place,
    mut each: impl FnMut(Result<DirEntry<'_>>) -> Result<bool>,
) -> Result<()> {
    in_directory(items, dir, KeyType::DIR_ITEM, |entry| each(entry.map(|(_, entry)| entry)))
}

/// The index that the next entry of `dir` gets: one above the highest, from 2.
///
/// # Errors
/// `Corrupt` when no index is left; `Io`.
pub fn next_dir_index(items: &impl Items, dir: Place) -> Result<u64> {
    let (from, to) = dir.keys(KeyType::DIR_INDEX);
    match items.last(dir.tree, &from, &to)? {
        None => Ok(2),
        Some((key, _)) => key
            .offset
            .checked_add(1)
            .map(|next| next.max(2))
            .ok_or_else(|| Error::corrupt("DIR-13", format!("key={key} directory index beyond 2^63"))),
    }
}

/// The inode that an entry `name` with `location` in `dir` leads to. That of a subvolume counts only where its
/// ROOT_REF says the same; else an empty directory stands there (`format/02 §2.12`).
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn target(items: &impl Items, dir: Place, name: &[u8], location: Key) -> Result<Place> {
    if location.key_type != KeyType::ROOT_ITEM {
        return Ok(Place { tree: dir.tree, ino: location.objectid });
    }
    let subvolume = location.objectid;
    let key = Key::new(dir.tree, KeyType::ROOT_REF, subvolume);
    let is_there = with_item(items, objectid::ROOT_TREE, &key, |data| {
        let Ok((head, rest)) = RootRefHead::read_from_prefix(data) else { return Ok(false) };
        let in_ref = rest.get(..usize::from(head.name_len.get()));
        Ok(head.dirid.get() == dir.ino && in_ref == Some(name))
    })?;
    Ok(if is_there == Some(true) { Place::root(subvolume) } else { Place::empty_dir(dir.tree) })
}

/// What is wrong with a second entry `name` of `dir`: copied, it would take the place of the first.
pub fn second_entry(dir: Place, name: &[u8]) -> Error {
    let (root, ino, name) = (dir.tree, dir.ino, String::from_utf8_lossy(name));
    let reason = format!("root={root} inode {ino}: a second entry of this name, '{name}', is not copied");
    Error::corrupt("DIR-12", reason)
}

/// Whether `name` may be given to a new entry: 1 to 255 bytes, no `/`, no NUL, not `.` or `..`.
///
/// # Errors
/// `Invalid`, with the rule that it breaks.
pub fn check_name(name: &[u8]) -> Result<()> {
    let shown = || String::from_utf8_lossy(name);
    let fault = if name.is_empty() {
        "an empty name".to_owned()
    } else if name.len() > NAME_LEN_MAX {
        format!("{}: file name too long: {} bytes, at most {NAME_LEN_MAX}", shown(), name.len())
    } else if name == b"." || name == b".." {
        format!("'{}' cannot be the name of an entry", shown())
    } else if name.contains(&b'/') || name.contains(&0) {
        format!("'{}': a name holds neither '/' nor NUL", shown().escape_debug())
    } else {
        return Ok(());
    };
    Err(Error::Invalid(fault))
}

/// A fault in an item of `dir`'s tree.
pub(super) fn in_tree(dir: Place, violation: &btrfsimg_ondisk::Violation) -> Error {
    Error::corrupt(violation.rule.0, format!("root={} inode {}: {}", dir.tree, dir.ino, violation.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_be_given() {
        let long = [b'x'; 256];
        let cases: [(&[u8], bool); 10] = [
            (b"a", true),
            (b"...", true),
            (b" \n\\:-\xff", true),
            (&long[..255], true),
            (&long, false),
            (b"", false),
            (b".", false),
            (b"..", false),
            (b"a/b", false),
            (b"a\0", false),
        ];
        for (name, good) in cases {
            assert_eq!(check_name(name).is_ok(), good, "{name:?}");
        }
    }
}
