//! EXTENT_ITEM and METADATA_ITEM with their inline references (`format/02 §2.9`).

use zerocopy::{FromBytes, IntoBytes};

use crate::check::Violation;
use crate::{ExtentDataRef, ExtentItem, Key, KeyType, TreeBlockInfo, data_ref_hash, extent_flags};

/// One reference to an extent, whether inline or keyed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BackRef {
    /// The tree that owns the block's parent (or whose root it is).
    TreeBlock {
        /// Tree id.
        root: u64,
    },
    /// The block that points to it.
    SharedBlock {
        /// Logical address.
        parent: u64,
    },
    /// File extents of one inode.
    Data {
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
        /// File offset less extent offset (wraps).
        offset: u64,
    },
    /// File extents in one leaf.
    SharedData {
        /// Logical address of the leaf.
        parent: u64,
    },
}

impl BackRef {
    /// The type of its inline or keyed item.
    pub fn key_type(&self) -> KeyType {
        match self {
            BackRef::TreeBlock { .. } => KeyType::TREE_BLOCK_REF,
            BackRef::SharedBlock { .. } => KeyType::SHARED_BLOCK_REF,
            BackRef::Data { .. } => KeyType::EXTENT_DATA_REF,
            BackRef::SharedData { .. } => KeyType::SHARED_DATA_REF,
        }
    }

    /// The offset of its keyed item, and its sequence among inline ones of its type.
    pub fn sequence(&self) -> u64 {
        match *self {
            BackRef::TreeBlock { root } => root,
            BackRef::SharedBlock { parent } | BackRef::SharedData { parent } => parent,
            BackRef::Data { root, objectid, offset } => data_ref_hash(root, objectid, offset),
        }
    }

    /// Order of inline references: ascending type, then descending sequence.
    pub fn inline_order(&self, other: &BackRef) -> std::cmp::Ordering {
        (self.key_type().cmp(&other.key_type())).then(other.sequence().cmp(&self.sequence()))
    }

    /// Bytes of its inline form.
    pub fn inline_len(&self) -> usize {
        match self {
            BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } => 9,
            BackRef::Data { .. } => 29,
            BackRef::SharedData { .. } => 13,
        }
    }

    /// The data of its keyed item.
    pub fn keyed_data(&self, count: u32) -> Vec<u8> {
        match *self {
            BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } => Vec::new(),
            BackRef::Data { root, objectid, offset } => {
                data_ref(root, objectid, offset, count).as_bytes().to_vec()
            }
            BackRef::SharedData { .. } => count.to_le_bytes().to_vec(),
        }
    }

    /// The reference and its count in a keyed item; `None` when it is not one or has a wrong length.
    pub fn parse_keyed(key: Key, data: &[u8]) -> Option<(BackRef, u32)> {
        Some(match key.key_type {
            KeyType::TREE_BLOCK_REF if data.is_empty() => (BackRef::TreeBlock { root: key.offset }, 1),
            KeyType::SHARED_BLOCK_REF if data.is_empty() => (BackRef::SharedBlock { parent: key.offset }, 1),
            KeyType::EXTENT_DATA_REF => from_data_ref(&ExtentDataRef::read_from_bytes(data).ok()?),
            KeyType::SHARED_DATA_REF => {
                (BackRef::SharedData { parent: key.offset }, u32::from_le_bytes(data.try_into().ok()?))
            }
            _ => return None,
        })
    }

    fn write_inline(&self, count: u32, out: &mut Vec<u8>) {
        out.push(self.key_type().0);
        match *self {
            BackRef::Data { root, objectid, offset } => {
                out.extend_from_slice(data_ref(root, objectid, offset, count).as_bytes());
            }
            BackRef::SharedData { parent } => {
                out.extend_from_slice(&parent.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }
            BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } => {
                out.extend_from_slice(&self.sequence().to_le_bytes());
            }
        }
    }
}

fn data_ref(root: u64, objectid: u64, offset: u64, count: u32) -> ExtentDataRef {
    ExtentDataRef { root: root.into(), objectid: objectid.into(), offset: offset.into(), count: count.into() }
}

fn from_data_ref(r: &ExtentDataRef) -> (BackRef, u32) {
    let back = BackRef::Data { root: r.root.get(), objectid: r.objectid.get(), offset: r.offset.get() };
    (back, r.count.get())
}

/// An inline reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InlineRef {
    /// A reference and how often.
    Ref(BackRef, u32),
    /// Simple quotas: the tree that allocated it. Counts nothing.
    Owner(u64),
}

/// An extent item, parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtentItemView {
    /// References, generation, flags.
    pub head: ExtentItem,
    /// First key and level of a tree block without SKINNY_METADATA.
    pub tree_block_info: Option<TreeBlockInfo>,
    /// The inline references, in their order.
    pub inline: Vec<InlineRef>,
}

impl ExtentItemView {
    /// The item `key` (EXTENT_ITEM or METADATA_ITEM) with `data`.
    ///
    /// # Errors
    /// EX-04, EX-09, EX-10, EX-11: what does not fit or is of an unknown type.
    pub fn parse(key: Key, data: &[u8]) -> Result<ExtentItemView, Violation> {
        let Ok((head, mut rest)) = ExtentItem::read_from_prefix(data) else {
            return Err(Violation::new(
                "EX-04",
                format!("invalid item size, have {} expect at least 24", data.len()),
            ));
        };
        let mut tree_block_info = None;
        if key.key_type == KeyType::EXTENT_ITEM && head.flags.get() & extent_flags::TREE_BLOCK != 0 {
            let Ok((info, tail)) = TreeBlockInfo::read_from_prefix(rest) else {
                return Err(Violation::new("EX-09", "tree block info crosses item end"));
            };
            (tree_block_info, rest) = (Some(info), tail);
        }
        let mut inline = Vec::with_capacity(1);
        while !rest.is_empty() {
            let (r, tail) = take_inline(rest)?;
            inline.push(r);
            rest = tail;
        }
        Ok(ExtentItemView { head, tree_block_info, inline })
    }
}

/// The inline reference at the front of `bytes`, and what follows it.
pub(crate) fn take_inline(bytes: &[u8]) -> Result<(InlineRef, &[u8]), Violation> {
    let short =
        || Violation::new("EX-10", format!("inline ref crosses item end, have {} bytes", bytes.len()));
    let (&kind, rest) = bytes.split_first().ok_or_else(short)?;
    let u64_of = |b: &[u8]| Some(u64::from_le_bytes(b.get(..8)?.try_into().ok()?));
    let word = u64_of(rest).ok_or_else(short)?;
    Ok(match KeyType(kind) {
        KeyType::EXTENT_OWNER_REF => (InlineRef::Owner(word), &rest[8..]),
        KeyType::TREE_BLOCK_REF => (InlineRef::Ref(BackRef::TreeBlock { root: word }, 1), &rest[8..]),
        KeyType::SHARED_BLOCK_REF => (InlineRef::Ref(BackRef::SharedBlock { parent: word }, 1), &rest[8..]),
        KeyType::SHARED_DATA_REF => {
            let count =
                rest.get(8..12).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).ok_or_else(short)?;
            (InlineRef::Ref(BackRef::SharedData { parent: word }, count), &rest[12..])
        }
        KeyType::EXTENT_DATA_REF => {
            let (r, tail) = ExtentDataRef::read_from_prefix(rest).map_err(|_| short())?;
            let (back, count) = from_data_ref(&r);
            (InlineRef::Ref(back, count), tail)
        }
        KeyType(k) => return Err(Violation::new("EX-11", format!("unknown inline ref type {k}"))),
    })
}

/// Appends the bytes of an extent item: head, tree block info, inline references in the order given.
pub fn write_extent_item(
    out: &mut Vec<u8>,
    head: &ExtentItem,
    info: Option<&TreeBlockInfo>,
    inline: &[InlineRef],
) {
    out.extend_from_slice(head.as_bytes());
    if let Some(info) = info {
        out.extend_from_slice(info.as_bytes());
    }
    for r in inline {
        match r {
            InlineRef::Ref(back, count) => back.write_inline(*count, out),
            InlineRef::Owner(root) => {
                out.push(KeyType::EXTENT_OWNER_REF.0);
                out.extend_from_slice(&root.to_le_bytes());
            }
        }
    }
}
