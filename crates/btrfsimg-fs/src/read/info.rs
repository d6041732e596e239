//! What `stat` shows of an inode.

use btrfsimg_compress::Property;
use btrfsimg_ondisk::{FileType, InodeItem, Timespec};

use super::Filesystem;
use crate::error::Result;
use crate::lookup::{self, Place};

/// The name of the xattr that holds the property `compression`.
pub const COMPRESSION_XATTR: &[u8] = b"btrfs.compression";

/// An inode, with its fields as `stat` has them.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Which inode.
    pub place: Place,
    /// Its item.
    pub item: InodeItem,
}

impl Info {
    /// The file type; `None` only where the mode is hostile.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode())
    }

    /// Type and permission bits.
    pub fn mode(&self) -> u32 {
        self.item.mode.get()
    }

    /// Bytes of a file or a symlink's target.
    pub fn size(&self) -> u64 {
        self.item.size.get()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == Some(FileType::DIR)
    }

    /// Major and minor number of a device, from `(major << 20) | minor`; `None` for what is no device.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        let is_device = matches!(self.file_type(), Some(FileType::CHRDEV | FileType::BLKDEV));
        let rdev = self.item.rdev.get();
        let major = u32::try_from(rdev >> 20).unwrap_or(u32::MAX);
        let minor = u32::try_from(rdev & 0xf_ffff).unwrap_or(0);
        is_device.then_some((major, minor))
    }

    /// Blocks of 512 bytes, as `stat` counts them: uncompressed bytes, in whole sectors of `sectorsize`.
    pub fn blocks(&self, sectorsize: u32) -> u64 {
        let sectorsize = u64::from(sectorsize.max(1));
        self.item.nbytes.get().div_ceil(sectorsize).saturating_mul(sectorsize) / 512
    }

    /// Last change of the contents.
    pub fn mtime(&self) -> Timespec {
        self.item.mtime
    }
}

impl Filesystem {
    /// The inode at `place`.
    ///
    /// # Errors
    /// LK-09 when it is missing; `Corrupt`, `Io`.
    pub fn info(&self, place: Place) -> Result<Info> {
        Ok(Info { place, item: lookup::inode(self, place)? })
    }

    /// The property `compression` of an inode as stored, and its meaning where kernels see one.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn compression_property(&self, place: Place) -> Result<Option<(Vec<u8>, Option<Property>)>> {
        let stored = lookup::xattr(self, place, COMPRESSION_XATTR)?;
        Ok(stored.map(|value| {
            let property = Property::from_stored(&value);
            (value, property)
        }))
    }
}
