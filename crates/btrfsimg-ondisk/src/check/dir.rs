//! Rules of DIR_ITEM, DIR_INDEX and XATTR_ITEM: DIR- (`format/06 §6.3`). DIR-02 to DIR-10 are
//! [`crate::DirItems`]'s own, since nothing may read a name without them.

use super::view::ItemAt;
use super::{BlockContext, Checked, ensure};
use crate::dir_items::{self, DirEntry, DirItemKind};
use crate::{Key, KeyType, objectid};

pub(super) fn check(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    ensure!(
        item.follows_its_inode(),
        "DIR-01",
        "no previous item of the same inode, have {} expect {}",
        item.before.map_or(0, |(k, _)| k.objectid),
        item.key.objectid
    );
    dir_items::walk(item.key, item.data, ctx.nodesize, |_| ())
}

/// What kernels do not check. Assumes that [`check`] passed.
pub(super) fn check_strict(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let Some(kind) = DirItemKind::of(item.key.key_type) else { return Ok(()) };
    let (mut count, mut first_fault) = (0usize, Ok(()));
    let mut several: Vec<&[u8]> = Vec::new();
    let mut one: Option<&[u8]> = None;
    dir_items::walk(item.key, item.data, ctx.nodesize, |entry| {
        count += 1;
        if first_fault.is_ok() {
            first_fault = check_entry(kind, item.key, &entry);
        }
        // A second entry in one item is rare: only then are the names kept.
        if let Some(name) = one.replace(entry.name) {
            several.push(name);
        }
    })?;
    first_fault?;
    let twice = one.is_some_and(|last| several.contains(&last))
        || (1..several.len()).any(|i| several[..i].contains(&several[i]));
    ensure!(!twice, "DIR-12", "same name twice in one hash bucket");
    ensure!(count > 0, "DIR-13", "dir item without an entry");
    if kind == DirItemKind::Index {
        ensure!(count == 1, "DIR-13", "dir index with several entries, have {count} expect 1");
        let index = item.key.offset;
        ensure!((2..1 << 63).contains(&index), "DIR-13", "invalid dir index, have {index} expect [2, 2^63)");
    }
    Ok(())
}

fn check_entry(kind: DirItemKind, key: Key, entry: &DirEntry<'_>) -> Checked {
    ensure!(
        !entry.is_encrypted,
        "DIR-16",
        "entry's type is {} with the bit of an encrypted name, expect it without",
        entry.file_type.0
    );
    if kind == DirItemKind::Xattr {
        ensure!(
            entry.location == Key::new(0, KeyType::UNTYPED, 0),
            "DIR-03",
            "invalid xattr location {}, expect all zero",
            entry.location
        );
        return check_xattr(entry);
    }
    ensure!(
        entry.location.key_type != KeyType::UNTYPED,
        "DIR-03",
        "invalid location key {}, expect an inode or a subvolume",
        entry.location
    );
    let name = entry.name;
    ensure!(!name.is_empty(), "DIR-11", "empty name");
    // The retired inode cache and the root tree's "default" are no exceptions: no such name is legal anywhere.
    ensure!(
        name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0),
        "DIR-11",
        "name cannot be a file name: '{}' in directory {}",
        name.escape_ascii(),
        objectid::Printed(key.objectid)
    );
    Ok(())
}

fn check_xattr(entry: &DirEntry<'_>) -> Checked {
    const PREFIXES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"btrfs."];
    let name = entry.name;
    ensure!(!name.is_empty(), "DIR-11", "empty xattr name");
    ensure!(
        PREFIXES.iter().any(|p| name.starts_with(p)),
        "DIR-14",
        "unknown xattr prefix in '{}'",
        name.escape_ascii()
    );
    if name == b"btrfs.compression" {
        // As kernels read it: a prefix, and what follows is a level or ignored.
        const METHODS: [&[u8]; 5] = [b"zlib", b"lzo", b"zstd", b"none", b"no"];
        ensure!(
            METHODS.iter().any(|m| entry.data.starts_with(m)),
            "DIR-14",
            "invalid compression property '{}'",
            entry.data.escape_ascii()
        );
    }
    Ok(())
}
