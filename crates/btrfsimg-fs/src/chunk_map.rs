//! From logical addresses to places on devices (`format/01 §1.2`, `format/02 §2.6`).

use std::collections::BTreeMap;
use std::ops::Range;

use btrfsimg_ondisk::{
    ChunkItem, DevId, Item, Key, KeyType, Logical, Physical, STRIPE_LEN, Stripe, block_group_flags as bg,
    objectid,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};

/// Where one copy of a range is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The device.
    pub devid: DevId,
    /// The offset on it.
    pub physical: Physical,
}

/// A chunk: a logical range and the stripes that hold it.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Logical start.
    pub start: Logical,
    /// Logical bytes.
    pub length: u64,
    /// Type and profile bits.
    pub flags: u64,
    /// The stripes, as in the item.
    pub stripes: Vec<Stripe>,
    /// The item's fixed part.
    pub item: ChunkItem,
}

impl Chunk {
    /// The chunk in the CHUNK_ITEM `key` with `data`; `None` where the data are too short.
    pub fn parse(key: Key, data: &[u8]) -> Option<Chunk> {
        let (item, rest) = ChunkItem::read_from_prefix(data).ok()?;
        let (stripes, _) =
            <[Stripe]>::ref_from_prefix_with_elems(rest, usize::from(item.num_stripes.get())).ok()?;
        Some(Chunk::new(Logical(key.offset), item, stripes.to_vec()))
    }

    /// The chunk in a chunk tree's item, if it is a CHUNK_ITEM.
    pub fn parse_item(item: &Item<'_>) -> Option<Chunk> {
        (item.key.key_type == KeyType::CHUNK_ITEM).then(|| Chunk::parse(item.key, item.data))?
    }

    /// The chunk at `start`.
    pub fn new(start: Logical, item: ChunkItem, stripes: Vec<Stripe>) -> Chunk {
        Chunk { start, length: item.length.get(), flags: item.flags.get(), stripes, item }
    }

    /// Its key.
    pub fn key(&self) -> Key {
        Key::new(objectid::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, self.start.0)
    }

    /// The data of its item.
    pub fn item_data(&self) -> Vec<u8> {
        let mut data = self.item.as_bytes().to_vec();
        data.extend_from_slice(self.stripes.as_bytes());
        data
    }

    /// Its end, exclusive.
    pub fn end(&self) -> u64 {
        self.start.0.saturating_add(self.length)
    }

    /// Whether each stripe holds the whole chunk: SINGLE and DUP.
    pub fn is_linear(&self) -> bool {
        matches!(self.flags & bg::PROFILE_MASK, 0 | bg::DUP)
    }

    /// Every place of the byte at `logical`, which lies inside.
    ///
    /// # Errors
    /// `Unsupported` for profiles that spread a chunk over devices.
    pub fn places(&self, logical: Logical) -> Result<impl Iterator<Item = Place> + '_> {
        if !self.is_linear() {
            return Err(Error::Unsupported(format!(
                "block group profile {} (chunk {})",
                bg::describe(self.flags),
                self.start
            )));
        }
        let offset = logical.0 - self.start.0;
        Ok(self.stripes.iter().map(move |s| Place {
            devid: DevId(s.devid.get()),
            physical: Physical(s.offset.get().saturating_add(offset)),
        }))
    }

    /// The logical ranges inside that must never be allocated, as their first bytes: those whose copies lie on a
    /// superblock copy's stripe of 64 KiB (`format/01 §1.2`).
    pub fn superblock_windows(&self) -> Vec<std::ops::Range<u64>> {
        let mut windows = Vec::new();
        for stripe in &self.stripes {
            let (from, to) = (stripe.offset.get(), stripe.offset.get().saturating_add(self.length));
            for copy in btrfsimg_ondisk::SUPERBLOCK_OFFSETS {
                let (start, end) = (copy.max(from), (copy + STRIPE_LEN).min(to));
                if start < end {
                    windows.push(self.start.0 + (start - from)..self.start.0 + (end - from));
                }
            }
        }
        windows
    }
}

/// All chunks of a file system, by logical start.
#[derive(Clone, Debug, Default)]
pub struct ChunkMap {
    chunks: BTreeMap<u64, Chunk>,
}

impl ChunkMap {
    /// Adds a chunk, in place of one with the same start.
    ///
    /// # Errors
    /// CH-08, CH-17: it wraps around, or overlaps another.
    pub fn insert(&mut self, chunk: Chunk) -> Result<()> {
        let (start, end) = (chunk.start.0, chunk.start.0.checked_add(chunk.length));
        let Some(end) = end else {
            return Err(Error::corrupt(
                "CH-08",
                format!("chunk {start}: length {} wraps around", chunk.length),
            ));
        };
        let before = self.chunks.range(..start).next_back().filter(|(_, c)| c.end() > start);
        let after = self.chunks.range(start + 1..).next().filter(|(s, _)| **s < end);
        if let Some((other, _)) = before.or(after) {
            return Err(Error::corrupt("CH-17", format!("chunk {start} overlaps chunk {other}")));
        }
        self.chunks.insert(start, chunk);
        Ok(())
    }

    /// Removes the chunk that starts at `start`.
    pub fn remove(&mut self, start: Logical) -> Option<Chunk> {
        self.chunks.remove(&start.0)
    }

    /// The chunk that holds `logical`.
    pub fn lookup(&self, logical: Logical) -> Option<&Chunk> {
        let (_, chunk) = self.chunks.range(..=logical.0).next_back()?;
        (logical.0 < chunk.end()).then_some(chunk)
    }

    /// Every place of the `len` bytes at `logical`.
    ///
    /// # Errors
    /// BLK-01 when no chunk holds all of them; `Unsupported` by the profile's name.
    pub fn map(&self, logical: Logical, len: u64) -> Result<impl Iterator<Item = Place> + '_> {
        match self.lookup(logical) {
            Some(chunk) if logical.0.checked_add(len).is_some_and(|end| end <= chunk.end()) => {
                chunk.places(logical)
            }
            _ => Err(Error::corrupt(
                "BLK-01",
                format!("unable to find chunk map for logical {logical} length {len}"),
            )),
        }
    }

    /// The ranges of the device `devid`, whose end is `device_end`, that chunks are on: in order, none over another.
    ///
    /// # Errors
    /// What a kernel does not mount either: DEV-07, a stripe is on another device; DE-10, it ends behind the device's
    /// end; DE-04, two share a byte.
    #[doc(alias = "btrfs_verify_dev_extents")]
    pub fn device_extents(&self, devid: DevId, device_end: u64) -> Result<Vec<Range<u64>>> {
        let mut taken = Vec::with_capacity(self.chunks.len());
        for (chunk, stripe) in self.iter().flat_map(|c| c.stripes.iter().map(move |s| (c, s))) {
            let (start, of) = (stripe.offset.get(), stripe.devid.get());
            if of != devid.0 {
                let reason = format!("a stripe of chunk {} is on device {of}, not {devid}", chunk.start);
                return Err(Error::corrupt("DEV-07", reason));
            }
            match start.checked_add(chunk.length) {
                Some(end) if end <= device_end => taken.push(start..end),
                _ => {
                    let (at, len) = (chunk.start, chunk.length);
                    let reason = format!(
                        "chunk {at}: {len} bytes at byte {start} end behind the device, {device_end}"
                    );
                    return Err(Error::corrupt("DE-10", reason));
                }
            }
        }
        taken.sort_unstable_by_key(|range| range.start);
        match taken.windows(2).find(|pair| pair[0].end > pair[1].start) {
            Some(pair) => {
                let reason = format!("two stripes of chunks use byte {} of the device", pair[1].start);
                Err(Error::corrupt("DE-04", reason))
            }
            None => Ok(taken),
        }
    }

    /// The chunks, by logical start.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Chunk> {
        self.chunks.values()
    }

    /// The end of the last chunk: where the next one starts.
    pub fn logical_end(&self) -> Option<u64> {
        self.chunks.values().next_back().map(Chunk::end)
    }
}
