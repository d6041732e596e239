//! Directory entries and xattrs: DIR_ITEM, DIR_INDEX and XATTR_ITEM (`format/06 §6.3`).
//!
//! A name is reachable only through [`DirItems::parse`], which checks each entry whole before it yields it: the
//! rule that the kernel keeps (verify a dir_item before its name is read), as a property of the types.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::check::Violation;
use crate::items::disk_struct;
use crate::{DIR_ITEM_HEAD_LEN, DiskKey, Key, KeyType, NAME_LEN_MAX, max_xattr_size, name_hash, objectid};

disk_struct! {
    /// Head of an entry. Private to this module: a name behind it must be checked first.
    crate DirItemHead, 30 {
        0 location: DiskKey,
        17 transid: U64,
        25 data_len: U16,
        27 name_len: U16,
        29 kind: u8,
    }
}

/// The type of an entry. A newtype: 1 to 8 are valid on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileType(pub u8);

#[allow(missing_docs, reason = "the kernel's names; format/02 §2.7")]
impl FileType {
    pub const REG_FILE: FileType = FileType(1);
    pub const DIR: FileType = FileType(2);
    pub const CHRDEV: FileType = FileType(3);
    pub const BLKDEV: FileType = FileType(4);
    pub const FIFO: FileType = FileType(5);
    pub const SOCK: FileType = FileType(6);
    pub const SYMLINK: FileType = FileType(7);
    pub const XATTR: FileType = FileType(8);

    /// The type of an inode with this `st_mode`, if it is one.
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & 0o170_000 {
            0o100_000 => FileType::REG_FILE,
            0o040_000 => FileType::DIR,
            0o020_000 => FileType::CHRDEV,
            0o060_000 => FileType::BLKDEV,
            0o010_000 => FileType::FIFO,
            0o140_000 => FileType::SOCK,
            0o120_000 => FileType::SYMLINK,
            _ => return None,
        })
    }
}

/// The bit of an entry's type that marks an encrypted name.
const ENCRYPTED: u8 = 0x80;

/// Which of the three item types the entries are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirItemKind {
    /// DIR_ITEM: entries of a directory by the hash of their name.
    Item,
    /// DIR_INDEX: one entry of a directory by its index.
    Index,
    /// XATTR_ITEM: xattrs by the hash of their name.
    Xattr,
}

impl DirItemKind {
    /// The kind of item with this key type, if it holds entries.
    pub fn of(key_type: KeyType) -> Option<DirItemKind> {
        Some(match key_type {
            KeyType::DIR_ITEM => DirItemKind::Item,
            KeyType::DIR_INDEX => DirItemKind::Index,
            KeyType::XATTR_ITEM => DirItemKind::Xattr,
            _ => return None,
        })
    }
}

/// One entry after its check.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// What it names: `(inode, 1, 0)` or `(subvolume, 132, …)`; all zero for an xattr.
    pub location: Key,
    /// Transaction that created it.
    pub transid: u64,
    /// The type, without the encryption bit.
    pub file_type: FileType,
    /// The encryption bit: kernels pass over it, as nothing encrypts names.
    pub is_encrypted: bool,
    /// The name, 0 to 255 bytes. May be hostile (`..`, `a/b`): who extracts checks that (DIR-11).
    pub name: &'a [u8],
    /// An xattr's value; empty for directory entries.
    pub data: &'a [u8],
}

impl DirEntry<'_> {
    /// Whether it names a subvolume.
    pub fn is_subvolume(&self) -> bool {
        self.location.key_type == KeyType::ROOT_ITEM
    }
}

/// The entries of one item, each checked.
#[derive(Clone, Debug)]
pub struct DirItems<'a> {
    entries: Vec<DirEntry<'a>>,
}

impl<'a> DirItems<'a> {
    /// The entries of the item `key` with `data`. Fails with the first rule (DIR-02 to DIR-10) that does not hold.
    ///
    /// # Errors
    /// When `key` is of no such type, or an entry breaks a rule.
    pub fn parse(key: Key, data: &'a [u8], nodesize: usize) -> Result<DirItems<'a>, Violation> {
        let mut entries = Vec::with_capacity(1);
        match walk(key, data, nodesize, |entry| entries.push(entry)) {
            Ok(()) => Ok(DirItems { entries }),
            Err(violation) => Err(violation),
        }
    }

    /// The entries before the first bad one, and the violation, when there is one.
    pub fn parse_good(key: Key, data: &'a [u8], nodesize: usize) -> (DirItems<'a>, Option<Violation>) {
        let mut entries = Vec::with_capacity(1);
        let violation = walk(key, data, nodesize, |entry| entries.push(entry)).err();
        (DirItems { entries }, violation)
    }

    /// The entries, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &DirEntry<'a>> {
        self.entries.iter()
    }

    /// The entry with this name.
    pub fn find(&self, name: &[u8]) -> Option<&DirEntry<'a>> {
        self.entries.iter().find(|e| e.name == name)
    }
}

impl<'a> IntoIterator for DirItems<'a> {
    type Item = DirEntry<'a>;
    type IntoIter = std::vec::IntoIter<DirEntry<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// Checks each entry of an item, and gives each good one to `each`, up to the first bad one.
pub(crate) fn walk<'a>(
    key: Key,
    data: &'a [u8],
    nodesize: usize,
    mut each: impl FnMut(DirEntry<'a>),
) -> Result<(), Violation> {
    let kind = DirItemKind::of(key.key_type)
        .ok_or_else(|| Violation::new("DIR-05", format!("{} holds no entries", key.key_type)))?;
    let mut rest = data;
    while !rest.is_empty() {
        let (entry, tail) = take_entry(key, kind, rest, nodesize)?;
        each(entry);
        rest = tail;
    }
    Ok(())
}

/// Checks the entry at the front of `rest`, in the kernel's order, then reads its name.
fn take_entry<'a>(
    key: Key,
    kind: DirItemKind,
    rest: &'a [u8],
    nodesize: usize,
) -> Result<(DirEntry<'a>, &'a [u8]), Violation> {
    let fault = |rule, reason: String| Err(Violation::new(rule, reason));
    let Ok((head, behind)) = DirItemHead::read_from_prefix(rest) else {
        return fault(
            "DIR-02",
            format!("dir item header crosses item boundary, have {} expect {DIR_ITEM_HEAD_LEN}", rest.len()),
        );
    };
    check_location(kind, head.location.get())?;
    let (file_type, is_encrypted) = (FileType(head.kind & !ENCRYPTED), head.kind & ENCRYPTED != 0);
    if !(1..=8).contains(&file_type.0) {
        return fault("DIR-04", format!("invalid dir item type, have {} expect [1, 9)", file_type.0));
    }
    if (kind == DirItemKind::Xattr) != (file_type == FileType::XATTR) {
        return fault("DIR-05", format!("dir item type {} in a {}", file_type.0, key.key_type));
    }
    let (name_len, data_len) = (usize::from(head.name_len.get()), usize::from(head.data_len.get()));
    if name_len > NAME_LEN_MAX {
        return fault("DIR-06", format!("dir item name len too long, have {name_len} max {NAME_LEN_MAX}"));
    }
    let max = max_xattr_size(nodesize);
    if name_len + data_len > max {
        return fault(
            "DIR-07",
            format!("dir item name and data len too long, have {} max {max}", name_len + data_len),
        );
    }
    if data_len != 0 && file_type != FileType::XATTR {
        return fault("DIR-08", format!("dir item with invalid data len, have {data_len} expect 0"));
    }
    let Some((body, tail)) = behind.split_at_checked(name_len + data_len) else {
        return fault(
            "DIR-09",
            format!(
                "dir item data crosses item boundary, have {} expect at most {}",
                name_len + data_len,
                behind.len()
            ),
        );
    };
    let (name, value) = body.split_at(name_len);
    if kind != DirItemKind::Index && key.offset != name_hash(name) {
        return fault(
            "DIR-10",
            format!(
                "name hash mismatch with key, have 0x{:016x} expect 0x{:016x}",
                name_hash(name),
                key.offset
            ),
        );
    }
    let (location, transid) = (head.location.get(), head.transid.get());
    Ok((DirEntry { location, transid, file_type, is_encrypted, name, data: value }, tail))
}

/// DIR-03: what an entry may point to, as kernels have it: an xattr with a subvolume's location passes, and so
/// does an entry whose location has type 0; `check_strict` names both.
fn check_location(kind: DirItemKind, location: Key) -> Result<(), Violation> {
    let fault = |reason: String| Err(Violation::new("DIR-03", reason));
    match location.key_type {
        KeyType::ROOT_ITEM if objectid::is_fs_tree(location.objectid) => Ok(()),
        KeyType::INODE_ITEM | KeyType::UNTYPED if kind == DirItemKind::Xattr => {
            if location == Key::new(0, KeyType::UNTYPED, 0) {
                return Ok(());
            }
            fault(format!("invalid xattr location {location}, expect all zero"))
        }
        KeyType::INODE_ITEM | KeyType::UNTYPED if location.offset != 0 => {
            fault(format!("invalid location key offset, have {} expect 0", location.offset))
        }
        KeyType::INODE_ITEM | KeyType::UNTYPED
            if objectid::is_inode(location.objectid)
                || [objectid::ROOT_TREE_DIR, objectid::FREE_INO].contains(&location.objectid) =>
        {
            Ok(())
        }
        _ => fault(format!("invalid location key {location}")),
    }
}

/// Appends an entry's bytes to `out`: what [`DirItems::parse`] reads.
///
/// # Panics
/// When name or value are longer than a u16: callers check the limits first.
pub fn write_dir_entry(
    out: &mut Vec<u8>,
    location: Key,
    transid: u64,
    file_type: FileType,
    name: &[u8],
    data: &[u8],
) {
    let len = |n: usize| U16::new(u16::try_from(n).expect("limits are checked before"));
    let head = DirItemHead {
        location: location.into(),
        transid: transid.into(),
        data_len: len(data.len()),
        name_len: len(name.len()),
        kind: file_type.0,
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(name);
    out.extend_from_slice(data);
}
