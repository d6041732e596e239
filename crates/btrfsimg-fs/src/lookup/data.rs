//! Bytes of data extents, checked sector by sector, from whichever copy is right.

use btrfsimg_compress::Decoder;
use btrfsimg_ondisk::{Key, KeyType, Logical, inode_flags, objectid};

use super::segments::fault;
use super::{Items, Place, Segment, SegmentKind};
use crate::block_store::BlockStore;
use crate::error::{Error, Result};

/// A view of items whose file data can be read as well.
pub trait Contents: Items {
    /// Where the bytes of extents are.
    fn store(&self) -> &BlockStore;
}

/// What reading needs and reuses: one per thread.
#[derive(Debug, Default)]
pub struct Scratch {
    decoder: Decoder,
    /// Compressed bytes.
    stored: Vec<u8>,
    /// Decoded bytes of an extent of which only a part is wanted.
    whole: Vec<u8>,
    /// Checksums as stored, and as they are.
    expected: Vec<u8>,
    actual: Vec<u8>,
}

impl Scratch {
    /// Whether data are decoded that no kernel has room to decode: for a salvage.
    pub fn decode_any(&mut self, any: bool) {
        self.decoder.read_any_window(any);
    }
}

/// Where data belong, for messages, and whether they have checksums.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    place: Place,
    has_csums: bool,
}

impl Owner {
    /// The inode at `place` with these flags.
    pub fn new(place: Place, flags: u64) -> Owner {
        Owner { place, has_csums: flags & inode_flags::NODATASUM == 0 }
    }

    /// The same, with checksums left aside.
    pub fn unchecked(place: Place) -> Owner {
        Owner { place, has_csums: false }
    }
}

/// Fills `out` with the bytes of `segment`, which is one of `owner`, from `skip` on. They all lie inside it.
///
/// # Errors
/// `Corrupt` with inode and offset (checksum mismatch on every copy, bytes that do not decode), `Io`.
pub fn read_segment(
    view: &impl Contents,
    owner: Owner,
    segment: &Segment,
    skip: u64,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<()> {
    Reader(view).read_segment(owner, segment, skip, out, scratch)
}

struct Reader<'v, V>(&'v V);

impl<V: Contents> Reader<'_, V> {
    fn read_segment(
        &self,
        owner: Owner,
        segment: &Segment,
        skip: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        match &segment.kind {
            SegmentKind::Hole => out.fill(0),
            SegmentKind::Raw { disk } => {
                let at = Logical(disk.0.saturating_add(skip));
                return self.read_raw(owner, at, segment.offset.saturating_add(skip), out, scratch);
            }
            SegmentKind::Compressed { .. } | SegmentKind::Inline { .. } => {
                return self.read_encoded(owner, segment, skip, out, scratch);
            }
        }
        Ok(())
    }

    /// Reads raw bytes; widened to whole sectors where checksums ask for it.
    fn read_raw(
        &self,
        owner: Owner,
        at: Logical,
        file_offset: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let sector = self.0.store().ctx().sectorsize;
        let head = at.0 % sector;
        let len = out.len() as u64;
        if head == 0 && len.is_multiple_of(sector) {
            return self.read_checked(owner, at, file_offset, out, scratch);
        }
        let widened = head.checked_add(len).and_then(|n| n.checked_next_multiple_of(sector));
        let widened = widened.and_then(|n| usize::try_from(n).ok());
        let (Some(widened), Ok(head_len)) = (widened, usize::try_from(head)) else {
            return Err(fault(owner.place, file_offset, "FE-11", "range wraps around".to_owned()));
        };
        let mut whole = std::mem::take(&mut scratch.whole);
        whole.resize(widened, 0);
        let start = Logical(at.0 - head);
        let read = self.read_checked(owner, start, file_offset.saturating_sub(head), &mut whole, scratch);
        if read.is_ok() {
            out.copy_from_slice(&whole[head_len..head_len + out.len()]);
        }
        scratch.whole = whole;
        read
    }

    fn read_encoded(
        &self,
        owner: Owner,
        segment: &Segment,
        skip: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let (ram_bytes, from) = match &segment.kind {
            SegmentKind::Compressed { ram_bytes, skip: inner, .. }
            | SegmentKind::Inline { ram_bytes, skip: inner, .. } => (*ram_bytes, skip.saturating_add(*inner)),
            _ => return Ok(()),
        };
        if from == 0 && out.len() >= ram_bytes {
            let (decoded, zeros) = out.split_at_mut(ram_bytes);
            zeros.fill(0);
            return self.decode(owner, segment, decoded, scratch);
        }
        let mut whole = std::mem::take(&mut scratch.whole);
        whole.resize(ram_bytes, 0);
        let result = self.decode(owner, segment, &mut whole, scratch);
        if result.is_ok() {
            let wanted = whole.get(from..).unwrap_or_default();
            let n = wanted.len().min(out.len());
            out[..n].copy_from_slice(&wanted[..n]);
            out[n..].fill(0);
        }
        scratch.whole = whole;
        result
    }

    /// Decodes all of the segment's extent into `out`, `ram_bytes` long.
    fn decode(&self, owner: Owner, segment: &Segment, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let sectorsize = self.0.store().superblock().sectorsize.get();
        let place = owner.place;
        let decoded = match &segment.kind {
            SegmentKind::Inline { stored, algorithm: None, .. } => {
                let n = stored.len().min(out.len());
                out[..n].copy_from_slice(&stored[..n]);
                out[n..].fill(0);
                return Ok(());
            }
            SegmentKind::Inline { stored, algorithm: Some(algorithm), .. } => {
                scratch.decoder.decode_inline(*algorithm, stored, sectorsize, out)
            }
            SegmentKind::Compressed { disk, disk_len, algorithm, .. } => {
                let mut stored = std::mem::take(&mut scratch.stored);
                stored.resize(*disk_len, 0);
                let read = self.read_checked(owner, *disk, segment.offset, &mut stored, scratch);
                let decoded =
                    read.map(|()| scratch.decoder.decode_extent(*algorithm, &stored, sectorsize, out));
                scratch.stored = stored;
                decoded?
            }
            _ => return Ok(()),
        };
        decoded.map(drop).map_err(|e| fault(place, segment.offset, "FE-25", e.to_string()))
    }

    /// Fills `buf` with whole sectors of the data at `at`; each is checked where the owner has checksums.
    fn read_checked(
        &self,
        owner: Owner,
        at: Logical,
        file_offset: u64,
        buf: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let first = self.0.store().read_data(at, buf, 0);
        if !owner.has_csums {
            return self.or_other_copy(at, buf, first);
        }
        let ctx = *self.0.store().ctx();
        let sector = usize::try_from(ctx.sectorsize).unwrap_or(usize::MAX);
        let missing = self.csums(at, buf.len() / sector, &mut scratch.expected)?;
        if let Some(sector_no) = missing {
            let offset = file_offset.saturating_add(sector_no as u64 * ctx.sectorsize);
            let logical = at.0.saturating_add(sector_no as u64 * ctx.sectorsize);
            return Err(fault(
                owner.place,
                offset,
                "CS-06",
                format!("no checksum for the data at {logical}"),
            ));
        }
        let width = ctx.csum.width();
        let first_failed = !matches!(first, Ok(true));
        scratch.actual.clear();
        if !first_failed {
            ctx.csum.append_sectors(buf, sector, &mut scratch.actual);
            if scratch.actual == scratch.expected {
                return Ok(());
            }
        }
        for (i, bytes) in buf.chunks_mut(sector).enumerate() {
            let expected = &scratch.expected[i * width..(i + 1) * width];
            if scratch.actual.get(i * width..(i + 1) * width) == Some(expected) {
                continue;
            }
            let delta = (i as u64) * ctx.sectorsize;
            let logical = Logical(at.0.saturating_add(delta));
            if !self.repair_sector(logical, bytes, expected, usize::from(!first_failed))? {
                let offset = file_offset.saturating_add(delta);
                let have = scratch.actual.get(i * width..(i + 1) * width);
                return Err(mismatch(owner.place, offset, logical, have, expected));
            }
        }
        Ok(())
    }

    /// Fills `bytes` with the sector at `logical` from the first copy, from `copy` on, that has this checksum.
    fn repair_sector(
        &self,
        logical: Logical,
        bytes: &mut [u8],
        expected: &[u8],
        copy: usize,
    ) -> Result<bool> {
        let csum = self.0.store().ctx().csum;
        for copy in copy.. {
            match self.0.store().read_data(logical, bytes, copy) {
                Ok(true) if csum.of(bytes).0[..csum.width()] == *expected => return Ok(true),
                Ok(true) => {}
                Ok(false) => break,
                // A copy that cannot be read may be the last one: a next one says so.
                Err(Error::Io { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    /// What the first copy gave, or else the first other copy that can be read.
    fn or_other_copy(&self, at: Logical, buf: &mut [u8], first: Result<bool>) -> Result<()> {
        let fault = match first {
            Ok(true) => return Ok(()),
            Ok(false) => Error::corrupt("CH-02", format!("chunk of {at} has no stripes")),
            Err(e) => e,
        };
        for copy in 1.. {
            match self.0.store().read_data(at, buf, copy) {
                Ok(true) => return Ok(()),
                Ok(false) => break,
                Err(Error::Io { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Err(fault)
    }

    /// Puts the checksums of `sectors` sectors from `at` on into `out`. Gives the first that has none.
    fn csums(&self, at: Logical, sectors: usize, out: &mut Vec<u8>) -> Result<Option<usize>> {
        let ctx = self.0.store().ctx();
        let (width, sector) = (ctx.csum.width(), ctx.sectorsize);
        out.clear();
        let key = |logical| Key::new(objectid::EXTENT_CSUM, KeyType::EXTENT_CSUM, logical);
        let want = sectors * width;
        let take = |item: btrfsimg_ondisk::Item<'_>, out: &mut Vec<u8>| {
            let next = at.0.saturating_add((out.len() / width) as u64 * sector);
            let Some(skip) = next.checked_sub(item.key.offset).map(|d| d / sector) else { return false };
            let skip = usize::try_from(skip).unwrap_or(usize::MAX).saturating_mul(width);
            let rest = item.data.get(skip..).unwrap_or_default();
            out.extend_from_slice(&rest[..rest.len().min(want - out.len())]);
            !rest.is_empty() && out.len() < want
        };
        self.0.with_last(objectid::CSUM_TREE, &key(0), &key(at.0), &mut |item| {
            take(item, out);
            Ok(())
        })?;
        if out.len() < want && !(out.is_empty() && sectors == 0) {
            let next = at.0.saturating_add((out.len() / width) as u64 * sector);
            self.0.walk(objectid::CSUM_TREE, &key(next), &key(u64::MAX), &mut |item| Ok(take(item?, out)))?;
        }
        Ok((out.len() < want).then_some(out.len() / width))
    }
}

fn mismatch(place: Place, offset: u64, logical: Logical, have: Option<&[u8]>, expected: &[u8]) -> Error {
    let have = have.map_or_else(|| "nothing readable".to_owned(), hex);
    let expected = hex(expected);
    let reason = format!("checksum mismatch of the data at {logical}, have {have} expect {expected}");
    fault(place, offset, "CS-09", reason)
}

/// A checksum as its bytes stand on disk, as kernels print it.
fn hex(csum: &[u8]) -> String {
    csum.iter().fold("0x".to_owned(), |digits, byte| digits + &format!("{byte:02x}"))
}
