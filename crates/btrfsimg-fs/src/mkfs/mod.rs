//! A new file system (`format/07`).
//!
//! The first transaction starts from nothing: two chunks and empty trees in memory, then a few items. What else an
//! image holds goes in through the same transaction, and its one commit writes the first superblock.

mod features;
mod image;

pub use features::Features;
pub use image::{HostFile, ImageOptions, Made, make_image};

use btrfsimg_ondisk::{
    CsumType, InodeItem, Key, KeyType, RootItem, STRIPE_LEN, Timespec, Uuid, block_group_flags as bg,
    compat_ro, inode_flags, objectid, write_dir_entry, write_inode_ref,
};
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::txn::{Geometry, ItemBatch, SpaceKind, Transaction, derived_uuid, device_key};

const MIB: u64 = 1 << 20;
/// Bytes of each copy of the first SYSTEM chunk.
const SYSTEM_CHUNK: u64 = 2 * MIB;
/// Bytes of the first METADATA chunk above what every image keeps free of it. Small, so that little of a small
/// image is left as a hole before its data.
const METADATA_CHUNK: u64 = MIB;
/// Bytes of a chunk, below which an image's size does not decide over it.
const LEAST_CHUNK: u64 = 16 * MIB;
/// Free metadata that a writable mount wants before it lets a file be made, in tree blocks (`format/07 §7.4`; on
/// Linux 6.18 a file can be made with 600, and not with 580).
const METADATA_RESERVE_NODES: u64 = 640;
/// The same with room for what wants more, as renaming a directory does (about 860): where the size is ours to choose.
const METADATA_COMFORT_NODES: u64 = 1024;
/// Free data space in every new image: room for a file of 1 MiB, and for what the kernel reserves beside it.
const DATA_RESERVE: u64 = MIB + (128 << 10);
/// The same where the size is ours to choose. A kernel that scrubs a small image takes most of what is unallocated for
/// chunks of its own; this stays for files.
const DATA_COMFORT: u64 = 8 * MIB;
/// Unallocated bytes of an image with content, at least.
const SLACK_MIN: u64 = 16 * MIB;
/// Bytes of an image without content.
const EMPTY_SIZE: u64 = 1024 * MIB;

/// What a new file system is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a sector: a power of two from 4096 to 65536.
    pub sectorsize: u32,
    /// Bytes of a tree block: a power of two from the sectorsize to 65536.
    pub nodesize: u32,
    /// Features.
    pub features: Features,
    /// Checksum of blocks and data.
    pub csum: CsumType,
    /// At most 255 bytes, no NUL.
    pub label: Vec<u8>,
    /// The file system's UUID; random when absent.
    pub fsid: Option<Uuid>,
    /// Draw every other UUID from the fsid, for equal images.
    pub reproducible: bool,
    /// When everything happens.
    pub now: Timespec,
    /// How large the image becomes.
    pub size: Size,
}

/// How large an image becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Without content 1 GiB, with content what is needed and some slack.
    Auto(Slack),
    /// The smallest that mounts read-write and takes a file of 1 MiB.
    Min,
    /// This many bytes, never more.
    Exact(u64),
}

/// Unallocated space of an image whose size is [`Size::Auto`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slack {
    /// A share of the used physical bytes, in percent, but at least 16 MiB.
    Percent(u64),
    /// This many bytes.
    Bytes(u64),
}

impl Default for Slack {
    fn default() -> Self {
        Slack::Percent(10)
    }
}

impl Options {
    /// The geometry that a volume for these options starts from. Draws the random UUIDs.
    ///
    /// # Errors
    /// `Invalid` for sizes, features or a label that cannot be.
    pub fn geometry(&self) -> Result<Geometry> {
        self.features.check(self.sectorsize, self.nodesize)?;
        check_label(&self.label)?;
        let fsid = self.fsid.unwrap_or_else(Uuid::new_v4);
        Ok(Geometry {
            sectorsize: self.sectorsize,
            nodesize: self.nodesize,
            csum: self.csum,
            incompat: self.features.incompat,
            compat_ro: self.features.compat_ro,
            fsid,
            device_uuid: self.uuid(fsid, "device", 1),
            chunk_tree_uuid: self.uuid(fsid, "chunk tree", 0),
        })
    }

    /// A UUID: drawn from (fsid, purpose, id) when the image is to be reproducible, else random.
    fn uuid(&self, fsid: Uuid, purpose: &str, id: u64) -> Uuid {
        if !self.reproducible {
            return Uuid::new_v4();
        }
        derived_uuid(fsid, purpose, id)
    }
}

/// Judges a label as the kernel does.
///
/// # Errors
/// `Invalid`: longer than 255 bytes, or with NUL or newline.
pub fn check_label(label: &[u8]) -> Result<()> {
    if label.len() > 255 {
        return Err(Error::Invalid(format!("label of {} bytes: at most 255", label.len())));
    }
    if label.iter().any(|b| [0, b'\n'].contains(b)) {
        return Err(Error::Invalid("label: must not contain NUL or newline".to_owned()));
    }
    Ok(())
}

/// Fills a blank volume's first transaction with what every file system holds.
///
/// # Errors
/// None in practice: the space is there.
pub fn make(tx: &mut Transaction<'_>, options: &Options) -> Result<()> {
    let fsid = Uuid::from_bytes(tx.superblock().fsid);
    tx.superblock_mut().label[..options.label.len()].copy_from_slice(&options.label);
    let least = least_chunk(options.size);
    tx.set_least_chunk(least);
    let length = (METADATA_CHUNK + metadata_reserve(tx)).max(least);
    if tx.is_mixed() {
        // One copy of everything, as mkfs.btrfs has it.
        tx.add_chunk(SpaceKind::System, bg::SYSTEM, SYSTEM_CHUNK, &[MIB])?;
        let place = MIB + SYSTEM_CHUNK;
        tx.add_chunk(SpaceKind::Mixed, bg::DATA | bg::METADATA, length, &[place])?;
    } else {
        let places = [MIB, MIB + SYSTEM_CHUNK];
        tx.add_chunk(SpaceKind::System, bg::SYSTEM | bg::DUP, SYSTEM_CHUNK, &places)?;
        let metadata = MIB + 2 * SYSTEM_CHUNK;
        let places = [metadata, metadata + length];
        tx.add_chunk(SpaceKind::Metadata, bg::METADATA | bg::DUP, length, &places)?;
    }

    tx.create_tree(objectid::ROOT_TREE, None)?;
    tx.create_tree(objectid::CHUNK_TREE, None)?;
    let mut plain = vec![objectid::EXTENT_TREE, objectid::DEV_TREE, objectid::CSUM_TREE, objectid::UUID_TREE];
    let has = |bit| options.features.compat_ro & bit != 0;
    plain.extend(has(compat_ro::FREE_SPACE_TREE).then_some(objectid::FREE_SPACE_TREE));
    plain.extend(has(compat_ro::BLOCK_GROUP_TREE).then_some(objectid::BLOCK_GROUP_TREE));
    for tree in plain {
        tx.create_tree(tree, Some((root_key(tree), root_item())))?;
    }
    let top_uuid = options.uuid(fsid, "subvolume", objectid::FS_TREE);
    for tree in [objectid::FS_TREE, objectid::DATA_RELOC_TREE] {
        let mut item = subvolume_root_item(tx.transid(), options.now);
        if tree == objectid::FS_TREE {
            item.uuid = top_uuid.into_bytes();
        }
        tx.create_tree(tree, Some((root_key(tree), item)))?;
        tx.insert_batch(tree, &root_directory(tx.transid(), options.now))?;
    }
    tx.insert(objectid::UUID_TREE, uuid_key(top_uuid), &objectid::FS_TREE.to_le_bytes())?;
    tx.superblock_mut().uuid_tree_generation = tx.transid().into();
    tx.insert_batch(objectid::ROOT_TREE, &root_tree_directory(tx, options.now))?;
    let device = tx.superblock().dev_item;
    tx.insert(objectid::CHUNK_TREE, device_key(device.devid.get()), device.as_bytes())
}

/// Large images whose size is known have large chunks from the beginning, as the kernel makes them, so that later changes
/// meet few block groups. A hundredth: what is trimmed of a last one leaves a small hole.
fn least_chunk(size: Size) -> u64 {
    let Size::Exact(bytes) = size else { return 0 };
    let share = (bytes / 100).min(1024 * MIB) / STRIPE_LEN * STRIPE_LEN;
    if share < LEAST_CHUNK { 0 } else { share }
}

fn metadata_reserve(tx: &Transaction<'_>) -> u64 {
    METADATA_RESERVE_NODES * u64::from(tx.nodesize())
}

/// What kernels hold back on top, for the trees that every commit changes: their size.
fn global_reserve(tx: &Transaction<'_>) -> u64 {
    let trees = [objectid::EXTENT_TREE, objectid::CSUM_TREE, objectid::FREE_SPACE_TREE];
    trees.into_iter().map(|tree| tx.tree_bytes(tree)).sum()
}

fn root_key(tree: u64) -> Key {
    Key::new(tree, KeyType::ROOT_ITEM, 0)
}

/// The key of a subvolume's UUID item (`format/02 §2.8`).
fn uuid_key(uuid: Uuid) -> Key {
    let (low, high) = uuid.as_u64_pair();
    Key::new(low.swap_bytes(), KeyType::UUID_SUBVOL, high.swap_bytes())
}

fn root_item() -> RootItem {
    let mut item = RootItem::zeroed();
    item.inode.generation = 1.into();
    item.inode.size = 3.into();
    item.inode.nlink = 1.into();
    item.inode.mode = 0o40755.into();
    item.refs = 1.into();
    item
}

fn subvolume_root_item(transid: u64, now: Timespec) -> RootItem {
    let mut item = root_item();
    item.inode.flags = inode_flags::ROOT_ITEM_INIT.into();
    item.root_dirid = objectid::FIRST_FREE.into();
    item.ctransid = transid.into();
    item.otransid = transid.into();
    (item.ctime, item.otime) = (now, now);
    item
}

fn directory_inode(transid: u64, now: Timespec) -> InodeItem {
    let mut inode = InodeItem::zeroed();
    inode.generation = transid.into();
    inode.transid = transid.into();
    inode.nlink = 1.into();
    inode.mode = 0o40755.into();
    (inode.atime, inode.ctime, inode.mtime, inode.otime) = (now, now, now, now);
    inode
}

/// Inode 256 of a subvolume and its "..".
fn root_directory(transid: u64, now: Timespec) -> ItemBatch {
    let ino = objectid::FIRST_FREE;
    let mut items = ItemBatch::new();
    items.push(Key::new(ino, KeyType::INODE_ITEM, 0), directory_inode(transid, now).as_bytes());
    items.push_with(Key::new(ino, KeyType::INODE_REF, ino), |out| write_inode_ref(out, 0, b".."));
    items
}

/// Directory 6 of the root tree with its entry "default", the top-level subvolume.
fn root_tree_directory(tx: &Transaction<'_>, now: Timespec) -> ItemBatch {
    let dir = objectid::ROOT_TREE_DIR;
    let mut inode = directory_inode(tx.transid(), now);
    (inode.transid, inode.nbytes) = (0.into(), u64::from(tx.nodesize()).into());
    let top = Key::new(objectid::FS_TREE, KeyType::ROOT_ITEM, u64::MAX);
    let mut items = ItemBatch::new();
    items.push_with(Key::new(objectid::FS_TREE, KeyType::INODE_REF, dir), |out| {
        write_inode_ref(out, 0, b"default")
    });
    items.push(Key::new(dir, KeyType::INODE_ITEM, 0), inode.as_bytes());
    items.push_with(Key::new(dir, KeyType::INODE_REF, dir), |out| write_inode_ref(out, 0, b".."));
    let hash = btrfsimg_ondisk::name_hash(b"default");
    items.push_with(Key::new(dir, KeyType::DIR_ITEM, hash), |out| {
        write_dir_entry(out, top, 0, btrfsimg_ondisk::FileType::DIR, b"default", &[]);
    });
    items
}

/// Decides the size of a new file system when all content is in: trims the last chunks, sets the device's size.
/// Says the size in bytes.
///
/// # Errors
/// `NoSpace` with the bytes needed when an exact size is too small.
pub fn finish_size(tx: &mut Transaction<'_>, size: Size, has_content: bool) -> Result<u64> {
    tx.flush_refs()?;
    let (data, nodes) = match size {
        Size::Auto(_) => (DATA_COMFORT, METADATA_COMFORT_NODES),
        Size::Min | Size::Exact(_) => (DATA_RESERVE, METADATA_RESERVE_NODES),
    };
    let reserve = nodes * u64::from(tx.nodesize()) + global_reserve(tx);
    tx.settle_spares(data, reserve)?;
    let allocated = MIB + tx.device_bytes_used();
    let wanted = match size {
        Size::Auto(_) if !has_content => EMPTY_SIZE,
        Size::Auto(Slack::Bytes(slack)) => allocated + slack,
        Size::Auto(Slack::Percent(percent)) => allocated + (allocated / 100 * percent).max(SLACK_MIN),
        Size::Min => allocated,
        Size::Exact(bytes) => bytes,
    };
    if tx.device_extents_end() > wanted {
        tx.close_device_holes()?;
    }
    let end = tx.device_extents_end();
    let sectorsize = u64::from(tx.sectorsize());
    let total = if let Size::Exact(bytes) = size {
        bytes / sectorsize * sectorsize
    } else {
        wanted.max(end).next_multiple_of(sectorsize)
    };
    if end > total {
        let what = format!("the content does not fit into {wanted} bytes");
        return Err(Error::NoSpace { what, needed: Some(end) });
    }
    tx.set_device_size(total);
    Ok(total)
}
