//! Images with very many files, whose items are made here: no tree of the host is read, and no data are written.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use btrfsimg_fs::device::FileDevice;
use btrfsimg_fs::mkfs::{Features, Options, Size, finish_size, make};
use btrfsimg_fs::txn::{ItemBatch, Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::inode::{Attributes, push_inode};
use btrfsimg_ondisk::{
    BackRef, CsumType, FileExtent, FileExtentKind, FileExtentRange, FileType, Key, KeyType, Logical,
    Timespec, Uuid, name_hash, objectid, write_dir_entry,
};
use zerocopy::IntoBytes as _;

/// Files in each directory.
const PER_DIRECTORY: u64 = 1000;
/// Bytes of each file: one sector, of zeros.
const FILE: u64 = 4096;
const TREE: u64 = objectid::FS_TREE;

/// Makes the image `path` of `size` bytes with so many files, a thousand in each directory: `/d0/f0` and so on.
///
/// # Errors
/// As making an image.
pub fn make_image(path: &Path, size: u64, files: u64) -> Result<()> {
    let now = Timespec::new(1_700_000_000, 0);
    let options = Options {
        sectorsize: 4096,
        nodesize: 16384,
        features: Features::default(),
        csum: CsumType::Crc32c,
        label: Vec::new(),
        fsid: Some(Uuid::from_u64_pair(files, 0x8000_0000_0000_0001)),
        reproducible: true,
        now,
        size: Size::Exact(size),
    };
    let device = Arc::new(FileDevice::create(path, 0o600)?);
    let no_sync = VolumeOptions { no_sync: true, ..VolumeOptions::default() };
    let mut volume = Volume::blank(device, &options.geometry()?, no_sync)?;
    let mut tx = volume.begin(now)?;
    make(&mut tx, &options)?;
    fill(&mut tx, files)?;
    finish_size(&mut tx, options.size, true)?;
    tx.commit()?;
    Ok(())
}

fn fill(tx: &mut Transaction<'_>, files: u64) -> Result<()> {
    let directories = files.div_ceil(PER_DIRECTORY);
    let first = objectid::FIRST_FREE + 1;
    let root = Directory { ino: objectid::FIRST_FREE, prefix: 'd', first, count: directories };
    let mut items = ItemBatch::new();
    root.push_entries(&mut items, FileType::DIR, tx.transid());
    tx.insert_batch(TREE, &items)?;
    let mut inode = btrfsimg_fs::lookup::inode(&*tx, btrfsimg_fs::lookup::Place::TOP)?;
    inode.size = root.size().into();
    tx.replace(TREE, Key::new(root.ino, KeyType::INODE_ITEM, 0), inode.as_bytes())?;
    items.clear();
    for n in 0..directories {
        let count = PER_DIRECTORY.min(files - n * PER_DIRECTORY);
        let first = first + directories + n * PER_DIRECTORY;
        let directory = Directory { ino: root.first + n, prefix: 'f', first, count };
        let attributes = Attributes::new(0o040_755, tx.now()).inode_item(tx.transid(), directory.size(), 0);
        push_inode(&mut items, directory.ino, &attributes, root.ino, 2 + n, root.name(n).as_bytes());
        directory.push_entries(&mut items, FileType::REG_FILE, tx.transid());
        tx.insert_batch(TREE, &items)?;
        items.clear();
    }
    for n in 0..directories {
        let count = PER_DIRECTORY.min(files - n * PER_DIRECTORY);
        let first = first + directories + n * PER_DIRECTORY;
        push_files(tx, &Directory { ino: root.first + n, prefix: 'f', first, count })?;
    }
    Ok(())
}

/// A directory whose entries have consecutive inode numbers.
struct Directory {
    ino: u64,
    prefix: char,
    first: u64,
    count: u64,
}

impl Directory {
    fn name(&self, n: u64) -> String {
        format!("{}{n}", self.prefix)
    }

    fn size(&self) -> u64 {
        (0..self.count).map(|n| 2 * self.name(n).len() as u64).sum()
    }

    fn push_entries(&self, items: &mut ItemBatch, kind: FileType, transid: u64) {
        let location = |n| Key::new(self.first + n, KeyType::INODE_ITEM, 0);
        let mut by_hash: Vec<(u64, u64)> =
            (0..self.count).map(|n| (name_hash(self.name(n).as_bytes()), n)).collect();
        by_hash.sort_unstable();
        for same in by_hash.chunk_by(|a, b| a.0 == b.0) {
            items.push_with(Key::new(self.ino, KeyType::DIR_ITEM, same[0].0), |out| {
                for &(_, n) in same {
                    write_dir_entry(out, location(n), transid, kind, self.name(n).as_bytes(), &[]);
                }
            });
        }
        for n in 0..self.count {
            items.push_with(Key::new(self.ino, KeyType::DIR_INDEX, 2 + n), |out| {
                write_dir_entry(out, location(n), transid, kind, self.name(n).as_bytes(), &[]);
            });
        }
    }
}

/// The inodes of a directory's files, each with one extent.
fn push_files(tx: &mut Transaction<'_>, directory: &Directory) -> Result<()> {
    let start = tx.alloc_data(directory.count * FILE)?;
    let csum = CsumType::Crc32c.of(&[0; 4096]).0;
    let inode = Attributes::new(0o100_644, tx.now()).inode_item(tx.transid(), FILE, FILE);
    let mut items = ItemBatch::new();
    for n in 0..directory.count {
        let (ino, at) = (directory.first + n, Logical(start.0 + n * FILE));
        push_inode(&mut items, ino, &inode, directory.ino, 2 + n, directory.name(n).as_bytes());
        let range = FileExtentRange {
            disk_bytenr: at.0.into(),
            disk_num_bytes: FILE.into(),
            offset: 0.into(),
            num_bytes: FILE.into(),
        };
        let extent = FileExtent {
            generation: tx.transid(),
            ram_bytes: FILE,
            compression: 0,
            kind: FileExtentKind::Regular(range),
        };
        items.push_with(Key::new(ino, KeyType::EXTENT_DATA, 0), |out| extent.write(out));
        let back = BackRef::Data { root: TREE, objectid: ino, offset: 0 };
        tx.create_data_extent(at, FILE, back, &csum[..4])?;
    }
    tx.insert_batch(TREE, &items)?;
    Ok(())
}
