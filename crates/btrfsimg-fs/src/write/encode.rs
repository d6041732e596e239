//! File bytes to stored bytes with checksums: what the workers of the data path do. No tree, no device.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use btrfsimg_compress::{
    CompressionSpec, DEFAULT_MAX_INLINE, Decision, Encoded, EncodedInline, MAX_CHUNK, Property, Situation,
    WorkspacePool, decide, encode_extent, encode_inline, heuristic,
};
use btrfsimg_ondisk::{CsumType, inode_flags, max_symlink_len};

use crate::txn::Transaction;

/// What a build or a command says about compression (DESIGN 5).
#[derive(Clone, Copy, Debug, Default)]
pub struct CompressionPolicy {
    /// `cp --compress`: for this command only, above any property.
    pub request: Option<CompressionSpec>,
    /// `mkfs --compress`: twin of the mount option.
    pub build_default: Option<CompressionSpec>,
    /// `mkfs --compress-force`: the build's default, without the heuristic.
    pub force: bool,
}

impl CompressionPolicy {
    /// What is done with the data of an inode that has `flags` and `property`.
    pub fn decision(&self, flags: u64, property: Option<&Property>) -> Decision {
        decide(&Situation {
            nodatacow_or_nodatasum: flags & (inode_flags::NODATACOW | inode_flags::NODATASUM) != 0,
            request: self.request,
            property: property.map(Property::spec),
            nocompress: flags & inode_flags::NOCOMPRESS != 0,
            compress: flags & inode_flags::COMPRESS != 0,
            build_default: self.build_default,
            force: self.force,
        })
    }
}

/// How bytes are stored in the image at hand.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bytes of a sector.
    pub sectorsize: usize,
    /// Bytes of a tree block.
    pub nodesize: usize,
    /// Checksum of data.
    pub csum: CsumType,
}

impl Format {
    /// That of the image that `tx` changes.
    pub fn of(tx: &Transaction<'_>) -> Format {
        Format {
            sectorsize: tx.sectorsize() as usize,
            nodesize: tx.nodesize() as usize,
            csum: tx.csum_type(),
        }
    }

    /// Whether a whole file of `len` bytes may be inline as it is.
    pub fn fits_inline_raw(&self, len: usize) -> bool {
        len > 0 && len <= self.max_inline() && len < self.sectorsize
    }

    /// Most stored bytes of an inline extent.
    fn max_inline(&self) -> usize {
        DEFAULT_MAX_INLINE.min(max_symlink_len(self.sectorsize, self.nodesize))
    }
}

/// An extent that is ready to be placed.
#[derive(Clone, Debug)]
pub struct EncodedExtent {
    /// Where in the file, in bytes.
    pub file_offset: u64,
    /// File bytes that it covers: whole sectors, but exact when inline.
    pub num_bytes: u64,
    /// The code of `file_extent.compression`.
    pub compression: u8,
    /// Whether it goes into the tree.
    pub inline: bool,
    /// Its stored bytes, in [`EncodedData::data`]; of an inline one in [`EncodedData::inline`].
    pub stored: Range<usize>,
}

/// Stored bytes of one or more files, and the checksums of those that are not inline.
#[derive(Clone, Debug, Default)]
pub struct EncodedData {
    /// Stored bytes of extents: whole sectors.
    pub data: Vec<u8>,
    /// Checksums of `data`, sector by sector.
    pub csums: Vec<u8>,
    /// Stored bytes of inline extents.
    pub inline: Vec<u8>,
}

impl EncodedData {
    /// `bytes`, padded with zeros to whole sectors, as one raw extent at `file_offset`.
    pub fn raw(file_offset: u64, bytes: &[u8], format: &Format) -> (EncodedData, EncodedExtent) {
        let mut data = EncodedData { data: bytes.to_vec(), ..EncodedData::default() };
        data.data.resize(bytes.len().next_multiple_of(format.sectorsize), 0);
        format.csum.append_sectors(&data.data, format.sectorsize, &mut data.csums);
        let (num_bytes, stored) = (data.data.len() as u64, 0..data.data.len());
        (data, EncodedExtent { file_offset, num_bytes, compression: 0, inline: false, stored })
    }

    /// Adds what another encoder made of the bytes that follow; checksums included. Neighbours that are stored raw
    /// become one extent, as if one encoder had made both.
    pub fn append(
        &mut self,
        extents: &mut Vec<EncodedExtent>,
        next: &EncodedData,
        next_extents: impl IntoIterator<Item = EncodedExtent>,
    ) {
        let start = self.data.len();
        self.data.extend_from_slice(&next.data);
        self.csums.extend_from_slice(&next.csums);
        for mut extent in next_extents {
            extent.stored = extent.stored.start + start..extent.stored.end + start;
            match extents.last_mut().filter(|last| {
                (last.compression, extent.compression) == (0, 0)
                    && last.file_offset + last.num_bytes == extent.file_offset
            }) {
                Some(raw) => {
                    raw.num_bytes += extent.num_bytes;
                    raw.stored.end = extent.stored.end;
                }
                None => extents.push(extent),
            }
        }
    }

    /// Forgets all, keeps the buffers.
    pub fn clear(&mut self) {
        self.data.clear();
        self.csums.clear();
        self.inline.clear();
    }
}

/// Encodes file data; one for each worker.
pub struct Encoder<'p> {
    pool: &'p WorkspacePool,
    format: Format,
    scratch: Vec<u8>,
}

impl<'p> Encoder<'p> {
    /// An encoder with workspaces from `pool`.
    pub fn new(pool: &'p WorkspacePool, format: Format) -> Encoder<'p> {
        Encoder { pool, format, scratch: Vec::new() }
    }

    /// Encodes a whole file of at most a sector as an inline extent, if it may be one.
    pub fn encode_inline(
        &mut self,
        bytes: &[u8],
        decision: Decision,
        out: &mut EncodedData,
    ) -> Option<EncodedExtent> {
        if bytes.is_empty() || bytes.len() > self.format.sectorsize {
            return None;
        }
        let max_inline = self.format.max_inline();
        let compression = match decision {
            Decision::Try { method, heuristic } if !heuristic || heuristic::is_compressible(bytes) => {
                let sectorsize = self.sectorsize_u32();
                let mut workspace = self.pool.get(method);
                match encode_inline(&mut workspace, bytes, sectorsize, max_inline, &mut self.scratch) {
                    EncodedInline::Compressed { algorithm, .. } => algorithm.code(),
                    EncodedInline::Raw => 0,
                    EncodedInline::NotInline => return None,
                }
            }
            _ if self.format.fits_inline_raw(bytes.len()) => 0,
            _ => return None,
        };
        let start = out.inline.len();
        out.inline.extend_from_slice(if compression == 0 { bytes } else { &self.scratch });
        Some(EncodedExtent {
            file_offset: 0,
            num_bytes: bytes.len() as u64,
            compression,
            inline: true,
            stored: start..out.inline.len(),
        })
    }

    /// Encodes `bytes`, which stand at `file_offset` (a multiple of the sector), chunk by chunk, each judged on its
    /// own. Neighbouring chunks that are stored raw become one extent.
    pub fn encode(
        &mut self,
        file_offset: u64,
        bytes: &[u8],
        decision: Decision,
        out: &mut EncodedData,
        extents: &mut Vec<EncodedExtent>,
    ) {
        let first = extents.len();
        for (i, chunk) in bytes.chunks(MAX_CHUNK).enumerate() {
            let offset = file_offset + (i * MAX_CHUNK) as u64;
            let start = out.data.len();
            let compression = self.encode_chunk(chunk, decision, out);
            let num_bytes = chunk.len().next_multiple_of(self.format.sectorsize) as u64;
            let last = extents.get_mut(first..).and_then(<[_]>::last_mut);
            match last
                .filter(|e| compression == 0 && e.compression == 0 && e.file_offset + e.num_bytes == offset)
            {
                Some(raw) => {
                    raw.num_bytes += num_bytes;
                    raw.stored.end = out.data.len();
                }
                None => extents.push(EncodedExtent {
                    file_offset: offset,
                    num_bytes,
                    compression,
                    inline: false,
                    stored: start..out.data.len(),
                }),
            }
        }
    }

    /// Has `read` put up to `len` bytes of the file, which stand at `file_offset`, where they are stored raw. Says how
    /// many there were.
    ///
    /// # Errors
    /// What `read` returns; `out` is then as before.
    pub fn read_raw<E>(
        &self,
        file_offset: u64,
        len: usize,
        out: &mut EncodedData,
        extents: &mut Vec<EncodedExtent>,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let start = out.data.len();
        out.data.resize(start + len.next_multiple_of(self.format.sectorsize), 0);
        let got = read(&mut out.data[start..start + len]).inspect_err(|_| out.data.truncate(start))?;
        let padded = got.next_multiple_of(self.format.sectorsize);
        out.data.truncate(start + padded);
        out.data[start + got..].fill(0);
        if got > 0 {
            let stored = start..start + padded;
            extents.push(EncodedExtent {
                file_offset,
                num_bytes: padded as u64,
                compression: 0,
                inline: false,
                stored,
            });
        }
        Ok(got)
    }

    /// Appends the stored bytes of a chunk. Says its compression code.
    fn encode_chunk(&mut self, chunk: &[u8], decision: Decision, out: &mut EncodedData) -> u8 {
        // What is no more than a sector cannot take less.
        if let Decision::Try { method, heuristic } = decision
            && chunk.len() > self.format.sectorsize
            && (!heuristic || heuristic::is_compressible(chunk))
        {
            let sectorsize = self.sectorsize_u32();
            let mut workspace = self.pool.get(method);
            if let Encoded::Kept { algorithm, .. } =
                encode_extent(&mut workspace, chunk, sectorsize, &mut self.scratch)
            {
                out.data.extend_from_slice(&self.scratch);
                return algorithm.code();
            }
        }
        out.data.extend_from_slice(chunk);
        out.data.resize(out.data.len().next_multiple_of(self.format.sectorsize), 0);
        0
    }

    /// Computes the checksums of all data that `out` holds.
    pub fn checksum(&self, out: &mut EncodedData) {
        out.csums.clear();
        self.format.csum.append_sectors(&out.data, self.format.sectorsize, &mut out.csums);
    }

    fn sectorsize_u32(&self) -> u32 {
        u32::try_from(self.format.sectorsize).expect("at most 64 KiB")
    }
}

/// Bytes that one thread encodes at a time: whole chunks, so that the number of threads changes nothing.
const PART: usize = 8 * MAX_CHUNK;

/// Encodes pieces of one file on as many threads as its pool is for.
pub struct ParallelEncoder<'p> {
    /// For what one thread does alone; its buffers serve one piece after the other.
    own: PartEncoder<'p>,
}

/// Encodes one part after the other, with their checksums.
struct PartEncoder<'p> {
    encoder: Encoder<'p>,
    data: EncodedData,
    extents: Vec<EncodedExtent>,
}

impl<'p> PartEncoder<'p> {
    fn new(pool: &'p WorkspacePool, format: Format) -> PartEncoder<'p> {
        PartEncoder { encoder: Encoder::new(pool, format), data: EncodedData::default(), extents: Vec::new() }
    }

    fn encode(&mut self, file_offset: u64, part: &[u8], decision: Decision) {
        self.data.clear();
        self.extents.clear();
        self.encoder.encode(file_offset, part, decision, &mut self.data, &mut self.extents);
        self.encoder.checksum(&mut self.data);
    }
}

impl<'p> ParallelEncoder<'p> {
    /// An encoder with workspaces from `pool`.
    pub fn new(pool: &'p WorkspacePool, format: Format) -> ParallelEncoder<'p> {
        ParallelEncoder { own: PartEncoder::new(pool, format) }
    }

    /// As [`Encoder::encode_inline`].
    pub fn encode_inline(
        &mut self,
        bytes: &[u8],
        decision: Decision,
        out: &mut EncodedData,
    ) -> Option<EncodedExtent> {
        self.own.encoder.encode_inline(bytes, decision, out)
    }

    /// As [`Encoder::encode`], with the checksums of what it adds to `out`. Raw neighbours become one extent, those of
    /// what `out` and `extents` held before as well.
    pub fn encode(
        &mut self,
        file_offset: u64,
        bytes: &[u8],
        decision: Decision,
        out: &mut EncodedData,
        extents: &mut Vec<EncodedExtent>,
    ) {
        let (pool, format) = (self.own.encoder.pool, self.own.encoder.format);
        let parts = || (file_offset..).step_by(PART).zip(bytes.chunks(PART));
        let threads = pool.workers().min(bytes.len().div_ceil(PART));
        if threads <= 1 {
            for (offset, part) in parts() {
                self.own.encode(offset, part, decision);
                out.append(extents, &self.own.data, self.own.extents.drain(..));
            }
            return;
        }
        let todo = Mutex::new(parts());
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let next = todo.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((offset, part)) = next else { return };
                        let mut encoded = PartEncoder::new(pool, format);
                        encoded.encode(offset, part, decision);
                        let (data, extents) = (encoded.data, encoded.extents);
                        done.lock().unwrap_or_else(PoisonError::into_inner).push((offset, data, extents));
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable_by_key(|(offset, ..)| *offset);
        for (_, data, part_extents) in done {
            out.append(extents, &data, part_extents);
        }
    }
}
