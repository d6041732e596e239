//! The segments of a file that is read, and their bytes.

use btrfsimg_ondisk::incompat;

use super::salvage::UNKNOWN_NBYTES;
use super::{Filesystem, Info, Segment, Segments};
use crate::block_store::BlockStore;
use crate::error::Result;
use crate::lookup::{Contents, Losses, Owner, Scratch, read_segment};

impl Segments {
    /// The segments of the regular file `info`.
    pub fn new(info: &Info) -> Segments {
        Segments::between(info, 0, info.size())
    }

    /// The segments of a broken file: what cannot be read of it is a hole, and a loss.
    pub fn salvage(fs: &Filesystem, info: &Info) -> Segments {
        let nbytes = Some(info.item.nbytes.get()).filter(|n| *n != UNKNOWN_NBYTES);
        let holes_have_items = !fs.superblock().has_incompat(incompat::NO_HOLES);
        Segments::new(info).with_losses(Losses::new(nbytes, holes_have_items))
    }

    /// The segments of its bytes in `from..to`, cut at its size.
    pub fn between(info: &Info, from: u64, to: u64) -> Segments {
        Segments::of(info.place, from..to.min(info.size()))
    }
}

/// Reads segments of files in any order, with contexts and buffers that it reuses: one per thread.
#[derive(Debug, Default)]
pub struct SegmentReader {
    pub(super) scratch: Scratch,
}

impl SegmentReader {
    /// Fills `out` with the bytes of a segment of the file `info` from `skip` on. They must all lie inside it.
    ///
    /// # Errors
    /// `Corrupt` with inode and offset (checksum mismatch on every copy, bytes that do not decode), `Io`.
    pub fn read(
        &mut self,
        fs: &Filesystem,
        info: &Info,
        segment: &Segment,
        skip: u64,
        out: &mut [u8],
    ) -> Result<()> {
        read_segment(fs, owner_of(info), segment, skip, out, &mut self.scratch)
    }
}

/// Whose data the segments of `info` are.
pub(super) fn owner_of(info: &Info) -> Owner {
    Owner::new(info.place, info.item.flags.get())
}

impl Contents for Filesystem {
    fn store(&self) -> &BlockStore {
        &self.store
    }
}
