//! Writing bytes at any offset.

use std::borrow::Cow;

use btrfsimg_compress::{Decision, Property, WorkspacePool};

use super::FILE_SIZE_MAX;
use super::file::{OpenFile, usize_of};
use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::txn::Transaction;
use crate::write::encode::{CompressionPolicy, EncodedData, EncodedExtent, Format, ParallelEncoder};
use crate::write::inode::COMPRESSION_XATTR;

/// Bytes that are encoded and placed together: who writes much gives so many at once, for all threads to have work.
pub const PIECE: u64 = 8 << 20;

/// Encodes what is written; its buffers serve one write after the other.
pub struct Codec<'p> {
    encoder: ParallelEncoder<'p>,
    policy: CompressionPolicy,
    data: EncodedData,
    extents: Vec<EncodedExtent>,
}

impl<'p> Codec<'p> {
    /// For files of the image that `tx` changes, with workspaces from `pool`, on as many threads as that is for.
    pub fn new(tx: &Transaction<'_>, pool: &'p WorkspacePool, policy: CompressionPolicy) -> Codec<'p> {
        Codec {
            encoder: ParallelEncoder::new(pool, Format::of(tx)),
            policy,
            data: EncodedData::default(),
            extents: Vec::new(),
        }
    }
}

/// Writes `bytes` at the byte `offset` of the regular file at `place`, as pwrite(2) does: the file grows where they
/// end beyond it, and what lies between its old end and `offset` becomes a hole. They are compressed as the policy of
/// `codec` and the inode's flags and property say. No bytes change nothing.
///
/// # Errors
/// `IsDirectory`, `Invalid` when it is no regular file or would be larger than [`FILE_SIZE_MAX`]; `Corrupt` when the
/// rest of a sector that is written in part cannot be read; `NoSpace`; `Io`.
pub fn write_at(
    tx: &mut Transaction<'_>,
    place: Place,
    offset: u64,
    bytes: &[u8],
    codec: &mut Codec<'_>,
) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
    let end = end.ok_or_else(|| {
        Error::Invalid(format!("file too large: {} bytes at {offset}, at most {FILE_SIZE_MAX}", bytes.len()))
    })?;
    let property = lookup::xattr(tx, place, COMPRESSION_XATTR)?;
    let property = property.as_deref().and_then(Property::from_stored);
    let mut file = OpenFile::open(tx, place)?;
    let decision = codec.policy.decision(file.flags, property.as_ref());
    if !file.write_inline(offset, bytes, end, decision, codec)? {
        file.extend(file.sector_of(offset))?;
        file.write_sectors(offset, bytes, decision, codec)?;
    }
    file.size = file.size.max(end);
    file.finish()
}

impl OpenFile<'_, '_> {
    /// Writes to a file that is at most a sector afterwards, if what comes out may be inline.
    fn write_inline(
        &mut self,
        offset: u64,
        bytes: &[u8],
        end: u64,
        decision: Decision,
        codec: &mut Codec<'_>,
    ) -> Result<bool> {
        let size = self.size.max(end);
        if size > self.sector || !self.is_one_sector()? {
            return Ok(false);
        }
        let mut whole = self.read(0..size)?;
        whole[usize_of(offset)?..usize_of(end)?].copy_from_slice(bytes);
        codec.data.clear();
        let Some(extent) = codec.encoder.encode_inline(&whole, decision, &mut codec.data) else {
            return Ok(false);
        };
        self.put(0..self.sector, &codec.data, &[extent])?;
        Ok(true)
    }

    /// Writes piece by piece, each with the rest of the sectors that it is in.
    fn write_sectors(
        &mut self,
        mut offset: u64,
        mut bytes: &[u8],
        decision: Decision,
        codec: &mut Codec<'_>,
    ) -> Result<()> {
        while !bytes.is_empty() {
            let start = self.sector_of(offset);
            let (now, rest) = bytes.split_at(bytes.len().min(usize_of(start + PIECE - offset)?));
            let whole = self.with_edges(offset, now)?;
            codec.data.clear();
            codec.extents.clear();
            codec.encoder.encode(start, &whole, decision, &mut codec.data, &mut codec.extents);
            let end = self.sector_end(start + whole.len() as u64);
            self.put(start..end, &codec.data, &codec.extents)?;
            offset += now.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// `bytes` with what the file has before them in their first sector, and behind them in their last.
    fn with_edges<'b>(&mut self, offset: u64, bytes: &'b [u8]) -> Result<Cow<'b, [u8]>> {
        let (start, end) = (self.sector_of(offset), offset + bytes.len() as u64);
        let stop = self.sector_end(end).min(self.size.max(end));
        if (start, stop) == (offset, end) {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut whole = self.read(start..offset)?;
        whole.extend_from_slice(bytes);
        whole.extend(self.read(end..stop)?);
        Ok(Cow::Owned(whole))
    }
}
