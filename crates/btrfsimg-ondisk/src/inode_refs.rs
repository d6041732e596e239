//! INODE_REF and INODE_EXTREF: the names of an inode, from its side (`format/02 §2.7`, REF-02 to REF-05).

use fields::{u16_at, u64_at};

use crate::check::Violation;
use crate::{Key, KeyType, NAME_LEN_MAX};

/// One name of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRef<'a> {
    /// The directory.
    pub parent: u64,
    /// The offset of the DIR_INDEX there.
    pub index: u64,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
}

/// Reads of little-endian fields at an offset; `None` beyond the end.
mod fields {
    pub(super) fn u64_at(b: &[u8], at: usize) -> Option<u64> {
        b.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
    }

    pub(super) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
        b.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
    }
}

/// The names in an INODE_REF item; the parent is the key's offset.
///
/// # Errors
/// The first rule that an entry breaks; no later entry is read.
pub fn inode_refs(key: Key, data: &[u8]) -> Result<Vec<InodeRef<'_>>, Violation> {
    let mut refs = Vec::with_capacity(1);
    walk_refs(key, data, |r| refs.push(r))?;
    Ok(refs)
}

/// The names in an INODE_EXTREF item.
///
/// # Errors
/// As [`inode_refs`].
pub fn inode_extrefs(data: &[u8]) -> Result<Vec<InodeRef<'_>>, Violation> {
    let mut refs = Vec::with_capacity(1);
    walk_extrefs(data, |r| refs.push(r))?;
    Ok(refs)
}

/// Checks each name of an INODE_REF or INODE_EXTREF, and gives each good one to `each`, up to the first bad one.
pub(crate) fn walk<'a>(key: Key, data: &'a [u8], each: impl FnMut(InodeRef<'a>)) -> Result<(), Violation> {
    if key.key_type == KeyType::INODE_EXTREF { walk_extrefs(data, each) } else { walk_refs(key, data, each) }
}

fn walk_refs<'a>(key: Key, data: &'a [u8], each: impl FnMut(InodeRef<'a>)) -> Result<(), Violation> {
    entries(data, 10, |b| Some((key.offset, u64_at(b, 0)?, u16_at(b, 8)?)), each)
}

fn walk_extrefs<'a>(data: &'a [u8], each: impl FnMut(InodeRef<'a>)) -> Result<(), Violation> {
    entries(data, 18, |b| Some((u64_at(b, 0)?, u64_at(b, 8)?, u16_at(b, 16)?)), each)
}

fn entries<'a>(
    data: &'a [u8],
    head_len: usize,
    head: impl Fn(&[u8]) -> Option<(u64, u64, u16)>,
    mut each: impl FnMut(InodeRef<'a>),
) -> Result<(), Violation> {
    let fault = |rule, reason: String| Err(Violation::new(rule, reason));
    if data.len() <= head_len {
        return fault("REF-02", format!("invalid item size, have {} expect over {head_len}", data.len()));
    }
    let mut rest = data;
    while !rest.is_empty() {
        let Some((parent, index, name_len)) = head(rest) else {
            return fault(
                "REF-03",
                format!("inode ref overflow, have {} expect at least {head_len}", rest.len()),
            );
        };
        let name_len = usize::from(name_len);
        // In the kernel's order.
        if name_len == 0 || name_len > NAME_LEN_MAX {
            return fault(
                "REF-05",
                format!("invalid inode ref name len, have {name_len} expect [1, {NAME_LEN_MAX}]"),
            );
        }
        let Some((name, tail)) = rest[head_len..].split_at_checked(name_len) else {
            let room = rest.len() - head_len;
            return fault(
                "REF-04",
                format!("inode ref name overflow, have {name_len} expect at most {room}"),
            );
        };
        each(InodeRef { parent, index, name });
        rest = tail;
    }
    Ok(())
}

/// Appends an INODE_REF entry.
///
/// # Panics
/// When the name is longer than a u16: callers check the limit first.
pub fn write_inode_ref(out: &mut Vec<u8>, index: u64, name: &[u8]) {
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&u16::try_from(name.len()).expect("limits are checked before").to_le_bytes());
    out.extend_from_slice(name);
}

/// Appends an INODE_EXTREF entry.
///
/// # Panics
/// As [`write_inode_ref`].
pub fn write_inode_extref(out: &mut Vec<u8>, parent: u64, index: u64, name: &[u8]) {
    out.extend_from_slice(&parent.to_le_bytes());
    write_inode_ref(out, index, name);
}
