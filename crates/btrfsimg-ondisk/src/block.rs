//! Tree blocks, in two steps of trust (`format/01 §1.5`, `format/06 §6.2`).
//!
//! bytes → [`FramedBlock`]: header, checksum, the parent's expectations and the item table were judged; each item
//! is reachable through its own check. → [`TreeBlock`]: the whole tree checker passed.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::check::{self, BlockContext, View, Violation};
use crate::items::disk_struct;
use crate::{
    DiskKey, HEADER_LEN, ITEM_HEADER_LEN, InodeItem, KEY_PTR_LEN, Key, KeyType, Logical, RootItem, objectid,
};

disk_struct! {
    /// Header of every tree block.
    #[doc(alias = "btrfs_header")]
    Header, 101 {
        /// Checksum of all that follows the field.
        0 csum: [u8; 32],
        /// The metadata fsid.
        32 fsid: [u8; 16],
        /// The block's own logical address.
        48 bytenr: U64,
        /// See [`header_flags`].
        56 flags: U64,
        /// The same in every block and device extent.
        64 chunk_tree_uuid: [u8; 16],
        /// Transaction that wrote it.
        80 generation: U64,
        /// Tree that allocated it.
        88 owner: U64,
        /// Items or key pointers.
        96 nritems: U32,
        /// 0 is a leaf.
        100 level: u8,
    }
}

/// Bits of [`Header::flags`].
pub mod header_flags {
    /// Set in every block on disk.
    pub const WRITTEN: u64 = 1;
    /// A balance relocated it; it is copied again before it changes.
    pub const RELOC: u64 = 2;
    /// The back reference revision in bits 56 to 63; always 1.
    pub const BACKREF_REV: u64 = 1 << 56;
}

disk_struct! {
    /// A leaf's item header.
    #[doc(alias = "btrfs_item")]
    crate ItemHeader, 25 {
        /// The item's key.
        0 key: DiskKey,
        /// Where its data start, from the end of the block's header.
        17 offset: U32,
        /// Bytes of its data.
        21 size: U32,
    }
}

disk_struct! {
    /// A node's key pointer on disk.
    #[doc(alias = "btrfs_key_ptr")]
    crate DiskKeyPtr, 33 {
        /// The child's first key.
        0 key: DiskKey,
        /// The child's logical address.
        17 blockptr: U64,
        /// The child's generation.
        25 generation: U64,
    }
}

/// A key pointer of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPtr {
    /// The child's first key.
    pub key: Key,
    /// The child's address.
    pub block: Logical,
    /// The child's generation.
    pub generation: u64,
}

/// An item of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Its key.
    pub key: Key,
    /// Its data.
    pub data: &'a [u8],
}

/// What the pointer to a block says of it. `None` is not compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParentExpectation {
    /// The block's level.
    pub level: Option<u8>,
    /// The block's generation.
    pub generation: Option<u64>,
    /// The block's first key.
    pub first_key: Option<Key>,
    /// The tree it is reached from.
    pub tree: Option<u64>,
}

impl ParentExpectation {
    /// Whether a block owned by `owner` may be reached from the tree: subvolumes share blocks among each other, log
    /// and relocation trees hold those of other trees, all others own theirs.
    pub fn admits_owner(&self, owner: u64) -> bool {
        match self.tree {
            None | Some(0 | objectid::TREE_LOG | objectid::TREE_RELOC) => true,
            Some(tree) if objectid::is_fs_tree(tree) => objectid::is_fs_tree(owner),
            Some(tree) => owner == tree,
        }
    }
}

/// Why bytes are not a sound block: the first violation in the kernel's order.
pub type BlockFault = Violation;

/// A block whose header and item table were judged, and whose items are reachable one by one.
#[derive(Clone, Debug)]
pub struct FramedBlock {
    bytes: Box<[u8]>,
    /// Items or pointers whose headers lie inside the block.
    slots: usize,
    /// No rule of the frame was broken.
    sound: bool,
}

/// A block after every check of one block, for readers that go on with a damaged one.
#[derive(Clone, Debug)]
pub enum Judged {
    /// Everything a kernel checks was found right.
    Sound(TreeBlock),
    /// Something is broken; each item is reachable through its own check.
    Faulty(FramedBlock),
}

impl Judged {
    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Judged::Sound(block) => &block.bytes,
            Judged::Faulty(block) => &block.bytes,
        }
    }

    /// The header.
    pub fn header(&self) -> Header {
        Header::read_from_prefix(self.bytes()).map(|(h, _)| h).unwrap_or_else(|_| Header::zeroed())
    }

    /// Whether nothing is broken.
    pub fn is_sound(&self) -> bool {
        matches!(self, Judged::Sound(_))
    }
}

impl FramedBlock {
    /// Judges header, checksum, the parent's expectations and the item table, and reports each violation to
    /// `sink`. Reading goes on whatever is found: slots whose header lies outside the block do not exist, and
    /// each access checks its bounds.
    ///
    /// `bytes` must be `ctx.nodesize` long (shorter: no slots).
    pub fn examine(
        bytes: Box<[u8]>,
        logical: Logical,
        ctx: &BlockContext,
        expect: &ParentExpectation,
        sink: &mut dyn FnMut(Violation),
    ) -> FramedBlock {
        let header = Header::read_from_prefix(&bytes).map(|(h, _)| h).unwrap_or_else(|_| Header::zeroed());
        let entry = if header.level == 0 { ITEM_HEADER_LEN } else { KEY_PTR_LEN };
        let room = bytes.len().saturating_sub(HEADER_LEN) / entry;
        let slots = usize::try_from(header.nritems.get()).unwrap_or(usize::MAX).min(room);
        let mut sound = true;
        check::block::check_frame(View::new(&bytes), logical, ctx, expect, &mut |violation| {
            sound = false;
            sink(violation);
        });
        FramedBlock { bytes, slots, sound }
    }

    /// The block, if its frame is sound; else the first violation.
    pub fn parse(
        bytes: Box<[u8]>,
        logical: Logical,
        ctx: &BlockContext,
        expect: &ParentExpectation,
    ) -> Result<FramedBlock, BlockFault> {
        let mut first = None;
        let block = FramedBlock::examine(bytes, logical, ctx, expect, &mut |v| {
            first.get_or_insert(v);
        });
        first.map_or(Ok(block), Err)
    }

    /// Judges every item (or key pointer), reports each violation to `sink`.
    pub fn check_items(&self, ctx: &BlockContext, sink: &mut dyn FnMut(Violation)) {
        check::check_items(self.view(), ctx, sink);
    }

    /// What the checks see.
    pub(crate) fn view(&self) -> View<'_> {
        View::new(&self.bytes)
    }

    /// The item at `slot` of a leaf after its own check, or the first violation in it.
    /// `None` when there is no such slot.
    pub fn item(&self, slot: usize, ctx: &BlockContext) -> Option<Result<Item<'_>, Violation>> {
        let item = self.raw_item(slot)?;
        Some(item.and_then(|item| check::check_item(self.view(), slot, ctx).map(|()| item)))
    }

    /// The ROOT_ITEM at `slot` of a leaf, whatever its own check says of it: for who shows damaged trees.
    pub fn root_item(&self, slot: usize) -> Option<RootItem> {
        let item = self.raw_item(slot)?.ok()?;
        (item.key.key_type == KeyType::ROOT_ITEM).then(|| RootItem::parse(item.data))?
    }

    /// The INODE_ITEM at `slot` of a leaf, whatever its own check says of it: for a salvage.
    pub fn inode_item(&self, slot: usize) -> Option<InodeItem> {
        let item = self.raw_item(slot)?.ok()?;
        (item.key.key_type == KeyType::INODE_ITEM).then(|| InodeItem::read_from_bytes(item.data).ok())?
    }

    /// Judges every item, by the kernel's rules and, if `strict`, by those of [`crate::check_strict`] too; reports
    /// each violation to `sink`.
    pub fn judge(self, ctx: &BlockContext, strict: bool, sink: &mut dyn FnMut(Violation)) -> Judged {
        let mut sound = self.sound;
        self.check_items(ctx, &mut |violation| {
            sound = false;
            sink(violation);
        });
        if strict {
            check::check_strict(&self, ctx, sink);
        }
        if sound { Judged::Sound(TreeBlock { bytes: self.bytes }) } else { Judged::Faulty(self) }
    }

    /// The whole tree checker: a [`TreeBlock`], or the first violation.
    ///
    /// Assumes that the frame was found sound ([`FramedBlock::parse`]).
    pub fn into_tree_block(self, ctx: &BlockContext) -> Result<TreeBlock, BlockFault> {
        let mut first = None;
        self.check_items(ctx, &mut |v| {
            first.get_or_insert(v);
        });
        first.map_or(Ok(TreeBlock { bytes: self.bytes }), Err)
    }

    /// The header.
    pub fn header(&self) -> Header {
        Header::read_from_prefix(&self.bytes).map(|(h, _)| h).unwrap_or_else(|_| Header::zeroed())
    }

    /// Slots inside the block; fewer than the header says when that is too many.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The key at `slot`.
    pub fn key(&self, slot: usize) -> Option<Key> {
        self.view().key(slot)
    }

    /// The key pointer at `slot` of a node.
    pub fn key_ptr(&self, slot: usize) -> Option<KeyPtr> {
        self.view().key_ptr(slot)
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The item before its check; an error where its data are not inside the block. For the checker alone.
    pub(crate) fn raw_item(&self, slot: usize) -> Option<Result<Item<'_>, Violation>> {
        let header = self.view().item_header(slot)?;
        let key = header.key.get();
        Some(match data_range(header).and_then(|r| self.bytes.get(r)) {
            Some(data) => Ok(Item { key, data }),
            None => Err(Violation::new("LEAF-05", "item data end beyond the block").at(slot, key)),
        })
    }
}

/// The header as it will be when the block is written.
fn sealed(header: &Header) -> Header {
    Header { flags: (header.flags.get() | header_flags::WRITTEN).into(), ..*header }
}

/// Where an item's data are in its block.
fn data_range(header: &ItemHeader) -> Option<Range<usize>> {
    let start = usize::try_from(header.offset.get()).ok()?.checked_add(HEADER_LEN)?;
    Some(start..start.checked_add(usize::try_from(header.size.get()).ok()?)?)
}

fn read_item_header(bytes: &[u8], slot: usize) -> Option<ItemHeader> {
    let at = HEADER_LEN + slot * ITEM_HEADER_LEN;
    ItemHeader::read_from_prefix(bytes.get(at..)?).ok().map(|(h, _)| h)
}

fn read_key_ptr(bytes: &[u8], slot: usize) -> Option<KeyPtr> {
    let at = HEADER_LEN + slot * KEY_PTR_LEN;
    let (p, _) = DiskKeyPtr::read_from_prefix(bytes.get(at..)?).ok()?;
    Some(KeyPtr { key: p.key.get(), block: Logical(p.blockptr.get()), generation: p.generation.get() })
}

/// A block that passed the whole tree checker, or is being built by a transaction (which checks it before it is
/// written). Its frame is sound: item data lie inside the block, packed and in key order.
#[derive(Clone)]
pub struct TreeBlock {
    pub(crate) bytes: Box<[u8]>,
}

impl TreeBlock {
    /// The block in `bytes` after every check of one block.
    pub fn parse(
        bytes: Box<[u8]>,
        logical: Logical,
        ctx: &BlockContext,
        expect: &ParentExpectation,
    ) -> Result<TreeBlock, BlockFault> {
        FramedBlock::parse(bytes, logical, ctx, expect)?.into_tree_block(ctx)
    }

    /// Judges the block as it is now, before it is written: the whole tree checker but for the checksum and the
    /// place, which whoever seals the block sets. Gives the first violation.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self, ctx: &BlockContext) -> Result<(), BlockFault> {
        let mut first = None;
        let mut sink = |v: Violation| {
            first.get_or_insert(v);
        };
        let view = View::new(&self.bytes);
        check::block::check_table(view, &sealed(self.header()), ctx, &mut sink);
        check::check_items(view, ctx, &mut sink);
        first.map_or(Ok(()), Err)
    }

    /// Judges the block by what a pointer says of it: level, generation, owner, first key. For a block that was parsed for
    /// another pointer, or is being built.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check_expected(&self, expect: &ParentExpectation) -> Result<(), BlockFault> {
        let mut first = None;
        let mut sink = |v: Violation| {
            first.get_or_insert(v);
        };
        check::block::check_expectation(View::new(&self.bytes), self.header(), expect, &mut sink);
        first.map_or(Ok(()), Err)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        Header::ref_from_prefix(&self.bytes).map(|(h, _)| h).expect("a block is longer than its header")
    }

    /// The level; 0 is a leaf.
    pub fn level(&self) -> u8 {
        self.header().level
    }

    /// Items of a leaf or pointers of a node.
    pub fn nritems(&self) -> usize {
        self.header().nritems.get() as usize
    }

    /// Whether this is a leaf.
    pub fn is_leaf(&self) -> bool {
        self.level() == 0
    }

    /// The key at `slot`.
    ///
    /// # Panics
    /// When `slot` is not below [`TreeBlock::nritems`].
    pub fn key(&self, slot: usize) -> Key {
        let entry = if self.is_leaf() { ITEM_HEADER_LEN } else { KEY_PTR_LEN };
        let at = HEADER_LEN + slot * entry;
        DiskKey::ref_from_bytes(&self.bytes[at..at + size_of::<DiskKey>()]).expect("17 bytes are a key").get()
    }

    /// The item at `slot` of a leaf.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn item(&self, slot: usize) -> Item<'_> {
        let header = self.item_header(slot);
        let range = data_range(&header).expect("the frame was checked");
        Item { key: header.key.get(), data: &self.bytes[range] }
    }

    /// The items of a leaf, in key order.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> + Clone {
        (0..self.nritems()).map(|slot| self.item(slot))
    }

    /// The key pointer at `slot` of a node.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn key_ptr(&self, slot: usize) -> KeyPtr {
        assert!(slot < self.nritems() && !self.is_leaf());
        read_key_ptr(&self.bytes, slot).expect("the frame was checked")
    }

    /// The slot with `key`, or where it would be inserted.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.nritems());
        while low < high {
            let mid = (low + high) / 2;
            match self.key(mid).cmp(key) {
                std::cmp::Ordering::Less => low = mid + 1,
                std::cmp::Ordering::Greater => high = mid,
                std::cmp::Ordering::Equal => return Ok(mid),
            }
        }
        Err(low)
    }

    /// The child of a node in which `key` is or would be: the last whose key is not greater, or the first.
    pub fn child_slot(&self, key: &Key) -> usize {
        self.search(key).unwrap_or_else(|slot| slot.saturating_sub(1))
    }

    /// All bytes, as on disk but for checksum and the WRITTEN flag of a block that is being built.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn item_header(&self, slot: usize) -> ItemHeader {
        assert!(slot < self.nritems() && self.is_leaf());
        read_item_header(&self.bytes, slot).expect("the frame was checked")
    }
}

impl std::fmt::Debug for TreeBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let h = self.header();
        write!(f, "TreeBlock(bytenr={} owner={} level={} nritems={})", h.bytenr, h.owner, h.level, h.nritems)
    }
}
