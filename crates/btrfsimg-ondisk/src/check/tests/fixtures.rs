//! Sound leaves of each tree, small and whole.

use zerocopy::IntoBytes;

use super::super::BlockContext;
use crate::block::header_flags;
use crate::block_group_flags as bg;
use crate::{
    BackRef, BlockGroupItem, ChunkItem, CsumType, DevExtent, DevItem, ExtentItem, FileExtent, FileExtentKind,
    FileExtentRange, FileType, FreeSpaceInfo, InlineRef, InodeItem, Key, KeyType, Logical, RootItem, Stripe,
    TreeBlock, extref_hash, incompat, name_hash, objectid, write_dir_entry, write_extent_item,
    write_inode_extref, write_inode_ref,
};

pub(super) const LOGICAL: Logical = Logical(1 << 20);
pub(super) const GENERATION: u64 = 10;
const FSID: [u8; 16] = [7; 16];

pub(super) fn ctx() -> BlockContext {
    BlockContext {
        nodesize: 16384,
        sectorsize: 4096,
        csum: CsumType::Crc32c,
        fsid: FSID,
        generation: GENERATION,
        incompat: incompat::SKINNY_METADATA | incompat::NO_HOLES,
    }
}

/// The bytes as written: flag and checksum made right.
pub(super) fn seal(mut block: TreeBlock) -> Box<[u8]> {
    let header = block.header_mut();
    header.flags = (header.flags.get() | header_flags::WRITTEN).into();
    let csum = ctx().csum.of_block(block.bytes());
    block.header_mut().csum = csum.0;
    block.bytes().into()
}

pub(super) fn empty(owner: u64, level: u8) -> TreeBlock {
    let header = TreeBlock::new_header(LOGICAL, level, owner, GENERATION, FSID, [8; 16]);
    TreeBlock::empty(16384, &header)
}

pub(super) type Items = Vec<(Key, Vec<u8>)>;

pub(super) fn leaf(owner: u64, items: &Items) -> TreeBlock {
    let mut block = empty(owner, 0);
    block.insert_items(0, items.iter().map(|(k, d)| (*k, &d[..])));
    block
}

pub(super) fn inode(mode: u32) -> Vec<u8> {
    let mut item = InodeItem::zeroed();
    (item.generation, item.transid) = (GENERATION.into(), GENERATION.into());
    (item.mode, item.nlink) = (mode.into(), 1.into());
    item.as_bytes().to_vec()
}

pub(super) fn entry(target: Key, kind: FileType, name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_dir_entry(&mut out, target, GENERATION, kind, name, data);
    out
}

fn refs(index: u64, name: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_inode_ref(&mut out, index, name);
    out
}

pub(super) fn extent(kind: FileExtentKind<'_>, ram_bytes: u64, compression: u8) -> Vec<u8> {
    let mut out = Vec::new();
    FileExtent { generation: GENERATION, ram_bytes, compression, kind }.write(&mut out);
    out
}

pub(super) fn range(bytenr: u64, disk: u64, offset: u64, num: u64) -> FileExtentRange {
    FileExtentRange {
        disk_bytenr: bytenr.into(),
        disk_num_bytes: disk.into(),
        offset: offset.into(),
        num_bytes: num.into(),
    }
}

fn key(objectid: u64, key_type: KeyType, offset: u64) -> Key {
    Key::new(objectid, key_type, offset)
}

/// A subvolume: its root directory with the file `name`, and the file with an xattr, an extended reference, a
/// regular, a compressed and a preallocated extent; a small file; a symlink.
pub(super) fn fs_leaf() -> TreeBlock {
    let zero = key(0, KeyType::UNTYPED, 0);
    let file = key(257, KeyType::INODE_ITEM, 0);
    let mut extref = Vec::new();
    write_inode_extref(&mut extref, 256, 3, b"link");
    let regular = FileExtentKind::Regular;
    leaf(
        5,
        &vec![
            (key(256, KeyType::INODE_ITEM, 0), inode(0o040_755)),
            (key(256, KeyType::INODE_REF, 256), refs(0, b"..")),
            (key(256, KeyType::DIR_ITEM, name_hash(b"name")), entry(file, FileType::REG_FILE, b"name", b"")),
            (key(256, KeyType::DIR_INDEX, 2), entry(file, FileType::REG_FILE, b"name", b"")),
            (key(257, KeyType::INODE_ITEM, 0), inode(0o100_644)),
            (key(257, KeyType::INODE_REF, 256), refs(2, b"name")),
            (key(257, KeyType::INODE_EXTREF, extref_hash(256, b"link")), extref),
            (
                key(257, KeyType::XATTR_ITEM, name_hash(b"user.a")),
                entry(zero, FileType::XATTR, b"user.a", b"value"),
            ),
            (key(257, KeyType::EXTENT_DATA, 0), extent(regular(range(1 << 24, 8192, 0, 8192)), 8192, 0)),
            (key(257, KeyType::EXTENT_DATA, 8192), extent(regular(range(2 << 24, 4096, 0, 12288)), 12288, 3)),
            (
                key(257, KeyType::EXTENT_DATA, 20480),
                extent(FileExtentKind::Prealloc(range(3 << 24, 8192, 4096, 4096)), 8192, 0),
            ),
            (key(258, KeyType::INODE_ITEM, 0), inode(0o100_644)),
            (key(258, KeyType::EXTENT_DATA, 0), extent(FileExtentKind::Inline(b"hello"), 5, 0)),
            (key(259, KeyType::INODE_ITEM, 0), inode(0o120_777)),
        ],
    )
}

/// Slots of [`fs_leaf`].
pub(super) mod slot {
    pub(crate) const DIR_INODE: usize = 0;
    pub(crate) const DIR_ITEM: usize = 2;
    pub(crate) const DIR_INDEX: usize = 3;
    pub(crate) const INODE: usize = 4;
    pub(crate) const INODE_REF: usize = 5;
    pub(crate) const EXTREF: usize = 6;
    pub(crate) const XATTR: usize = 7;
    pub(crate) const REGULAR: usize = 8;
    pub(crate) const COMPRESSED: usize = 9;
    pub(crate) const PREALLOC: usize = 10;
    pub(crate) const INLINE: usize = 12;
    pub(crate) const SYMLINK_INODE: usize = 13;
}

fn extent_head(flags: u64, refs: u64) -> ExtentItem {
    ExtentItem { refs: refs.into(), generation: GENERATION.into(), flags: flags.into() }
}

pub(super) fn data_ref(root: u64) -> BackRef {
    BackRef::Data { root, objectid: 257, offset: 0 }
}

pub(super) fn extent_item(flags: u64, refs: u64, inline: &[InlineRef]) -> Vec<u8> {
    let mut out = Vec::new();
    write_extent_item(&mut out, &extent_head(flags, refs), None, inline);
    out
}

/// The extent tree: a data extent with inline and keyed references, a tree block, a block group.
pub(super) fn extent_leaf() -> TreeBlock {
    let mut inline = [5u64, 256].map(|root| InlineRef::Ref(data_ref(root), 1)).to_vec();
    inline.sort_by_key(|r| match r {
        InlineRef::Ref(back, _) => std::cmp::Reverse(back.sequence()),
        InlineRef::Owner(_) => unreachable!("not among them"),
    });
    inline.push(InlineRef::Ref(BackRef::SharedData { parent: 1 << 30 }, 2));
    let keyed = data_ref(300);
    let block_ref = InlineRef::Ref(BackRef::TreeBlock { root: 5 }, 1);
    let shared_block = InlineRef::Ref(BackRef::SharedBlock { parent: 1 << 30 }, 1);
    let at = 1u64 << 24;
    leaf(
        2,
        &vec![
            (key(at, KeyType::EXTENT_ITEM, 8192), extent_item(1, 8, &inline)),
            (key(at, KeyType::EXTENT_DATA_REF, keyed.sequence()), keyed.keyed_data(1)),
            (key(at, KeyType::SHARED_DATA_REF, 2 << 30), vec![3, 0, 0, 0]),
            (key(at, KeyType::BLOCK_GROUP_ITEM, 8 << 20), group(12288, bg::DATA)),
            (key(at + 8192, KeyType::METADATA_ITEM, 0), extent_item(2, 3, &[block_ref, shared_block])),
            (key(at + 8192, KeyType::SHARED_BLOCK_REF, 2 << 30), vec![]),
        ],
    )
}

pub(super) fn group(used: u64, flags: u64) -> Vec<u8> {
    let item = BlockGroupItem { used: used.into(), chunk_objectid: 256.into(), flags: flags.into() };
    item.as_bytes().to_vec()
}

pub(super) fn chunk(flags: u64, stripes: u16) -> (ChunkItem, Vec<Stripe>) {
    let chunk = ChunkItem {
        length: (8u64 << 20).into(),
        owner: 2.into(),
        stripe_len: 65536.into(),
        flags: flags.into(),
        io_align: 65536.into(),
        io_width: 65536.into(),
        sector_size: 4096.into(),
        num_stripes: stripes.into(),
        sub_stripes: 1.into(),
    };
    let stripe =
        |n: u16| Stripe { devid: 1.into(), offset: ((1 + 8 * u64::from(n)) << 20).into(), dev_uuid: [9; 16] };
    (chunk, (0..stripes).map(stripe).collect())
}

/// The chunk tree: a device and a DUP chunk.
pub(super) fn chunk_leaf() -> TreeBlock {
    let mut device = DevItem::zeroed();
    (device.devid, device.total_bytes, device.bytes_used) =
        (1.into(), (1u64 << 30).into(), (1u64 << 24).into());
    let (item, stripes) = chunk(bg::METADATA | bg::DUP, 2);
    let items = vec![
        (key(1, KeyType::DEV_ITEM, 1), device.as_bytes().to_vec()),
        (key(256, KeyType::CHUNK_ITEM, 1 << 24), [item.as_bytes(), stripes.as_bytes()].concat()),
    ];
    leaf(3, &items)
}

/// The device tree: two device extents.
pub(super) fn dev_leaf() -> TreeBlock {
    let extent = |at: u64| DevExtent {
        chunk_tree: 3.into(),
        chunk_objectid: 256.into(),
        chunk_offset: at.into(),
        length: (8u64 << 20).into(),
        chunk_tree_uuid: [8; 16],
    };
    let items =
        [1u64, 9].map(|mib| (key(1, KeyType::DEV_EXTENT, mib << 20), extent(1 << 24).as_bytes().to_vec()));
    leaf(4, &items.into())
}

/// The root tree: the top-level subvolume's root, and a subvolume's references.
pub(super) fn root_leaf() -> TreeBlock {
    let mut root = RootItem::zeroed();
    (root.generation, root.generation_v2) = (GENERATION.into(), GENERATION.into());
    (root.bytenr, root.refs) = ((1u64 << 24).into(), 1.into());
    let items = vec![
        (key(5, KeyType::ROOT_ITEM, 0), root.as_bytes().to_vec()),
        (key(256, KeyType::ROOT_ITEM, 0), root.as_bytes().to_vec()),
        (key(objectid::TREE_RELOC, KeyType::ROOT_ITEM, objectid::DATA_RELOC_TREE), root.as_bytes().to_vec()),
    ];
    leaf(1, &items)
}

/// The checksum tree: two items that touch.
pub(super) fn csum_leaf() -> TreeBlock {
    let items = [1u64 << 24, (1 << 24) + 8192]
        .map(|at| (key(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, at), vec![1; 8]));
    leaf(7, &items.into())
}

/// The free space tree: a group with extents and one with a bitmap.
pub(super) fn free_space_leaf() -> TreeBlock {
    let info = |flags: u32| FreeSpaceInfo { extent_count: 1.into(), flags: flags.into() }.as_bytes().to_vec();
    let (a, b, mib) = (1u64 << 24, 2u64 << 24, 1u64 << 20);
    leaf(
        10,
        &vec![
            (key(a, KeyType::FREE_SPACE_INFO, mib), info(0)),
            (key(a + 4096, KeyType::FREE_SPACE_EXTENT, 8192), vec![]),
            (key(b, KeyType::FREE_SPACE_INFO, mib), info(1)),
            (key(b, KeyType::FREE_SPACE_BITMAP, mib), vec![255; 32]),
        ],
    )
}
