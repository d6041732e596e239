//! Every extent, and whether its references and its users are the same.
//!
//! Each extent keeps one number: the sum of a hash of each reference that the extent tree lists, less that of each
//! user that the trees show. It is zero at the end when both are the same multiset (but for one chance in 2^64), so
//! nothing else about references needs memory. A second pass names the difference where it is not zero.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use btrfsimg_ondisk::{BackRef, FileExtent, Item};
use rustc_hash::FxHashSet;

use super::image::Block;

/// What the extent tree says of an extent, and what the walk has seen of it.
#[derive(Debug, Default)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) len: u64,
    /// The sum of hashes; see the module.
    balance: AtomicU64,
    flags: AtomicU8,
    /// References that its item counts less those listed, inline or keyed.
    pub(super) unlisted: u64,
    /// Of a tree block.
    pub(super) level: u8,
}

/// Bits of an extent.
pub(super) mod bit {
    pub(crate) const DATA: u8 = 1;
    pub(crate) const FULL_BACKREF: u8 = 2;
    /// A tree block that was read.
    pub(crate) const VISITED: u8 = 4;
    /// Something uses it.
    pub(crate) const USED: u8 = 8;
    /// A file uses it, and not as preallocated.
    pub(crate) const REGULAR: u8 = 16;
    /// It counts more than one reference.
    pub(crate) const SHARED: u8 = 32;
    /// A block of the chunk tree.
    pub(crate) const CHUNK_TREE: u8 = 64;
}

impl Extent {
    pub(super) fn new(start: u64, len: u64, flags: u8, level: u8) -> Extent {
        Extent { start, len, level, flags: AtomicU8::new(flags), ..Extent::default() }
    }

    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    pub(super) fn has(&self, bits: u8) -> bool {
        self.flags.load(Ordering::Relaxed) & bits == bits
    }

    /// Sets bits; says whether all were set before.
    pub(super) fn set(&self, bits: u8) -> bool {
        self.flags.fetch_or(bits, Ordering::Relaxed) & bits == bits
    }

    pub(super) fn is_balanced(&self) -> bool {
        self.balance.load(Ordering::Relaxed) == 0
    }

    /// Notes `count` listed references with this hash.
    pub(super) fn list(&mut self, hash: u64, count: u32) {
        let balance = self.balance.get_mut();
        *balance = balance.wrapping_add(hash.wrapping_mul(u64::from(count)));
        self.unlisted = self.unlisted.wrapping_sub(u64::from(count));
    }
}

/// A user of an extent: a pointer to a block, or a file extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) extent: u64,
    pub(super) back: BackRef,
}

/// All extents by address.
pub(super) struct Usage {
    pub(super) extents: Vec<Extent>,
    pub(super) hasher: Hasher,
    /// Whether all of the extent tree could be read.
    pub(super) whole: bool,
    /// Whether a balance is under way.
    pub(super) relocating: bool,
    /// Subvolumes that are being deleted.
    pub(super) dead: Vec<u64>,
    /// Blocks that were read but have no extent.
    strays: Mutex<FxHashSet<u64>>,
}

impl Usage {
    pub(super) fn new(mut extents: Vec<Extent>, hasher: Hasher, whole: bool) -> Usage {
        if !extents.is_sorted_by_key(|e| e.start) {
            extents.sort_by_key(|e| e.start);
        }
        Usage { extents, hasher, whole, relocating: false, dead: Vec::new(), strays: Mutex::default() }
    }

    /// Where the extent that starts at `start` is in the list.
    pub(super) fn index(&self, start: u64) -> Option<usize> {
        self.extents.binary_search_by_key(&start, |e| e.start).ok()
    }

    /// The extent that starts at `start`.
    pub(super) fn find(&self, start: u64) -> Option<&Extent> {
        self.index(start).map(|i| &self.extents[i])
    }

    /// The same, to change.
    pub(super) fn find_mut(&mut self, start: u64) -> Option<&mut Extent> {
        self.index(start).map(|i| &mut self.extents[i])
    }

    /// Notes a user; gives its extent, if the extent tree has it.
    pub(super) fn add(&self, user: User) -> Option<&Extent> {
        let extent = self.find(user.extent)?;
        let hash = self.hasher.of(&user.back);
        extent.balance.fetch_sub(hash, Ordering::Relaxed);
        extent.set(bit::USED);
        Some(extent)
    }

    /// Notes that the block at `at` is read; says whether it is for the first time.
    pub(super) fn visit(&self, at: u64) -> bool {
        match self.find(at) {
            Some(extent) => !extent.set(bit::VISITED),
            None => self.strays.lock().unwrap_or_else(PoisonError::into_inner).insert(at),
        }
    }

    /// Whether more than one tree may lead to the block at `at`: it counts more references, or was met before.
    pub(super) fn may_be_shared(&self, at: u64) -> bool {
        match self.find(at) {
            Some(extent) => extent.has(bit::SHARED) || extent.has(bit::VISITED),
            None => self.strays.lock().unwrap_or_else(PoisonError::into_inner).contains(&at),
        }
    }

    /// How the block at `at`, owned by `owner`, refers to a child.
    pub(super) fn block_ref(&self, at: u64, owner: u64) -> BackRef {
        if self.is_full(at) {
            BackRef::SharedBlock { parent: at }
        } else {
            BackRef::TreeBlock { root: owner }
        }
    }

    /// How a leaf refers to the data of one of its file extents.
    pub(super) fn data_ref(&self, block: &Block, item: &Item<'_>, extent: &FileExtent<'_>) -> BackRef {
        if self.is_full(block.logical.0) {
            return BackRef::SharedData { parent: block.logical.0 };
        }
        let offset = extent.range().map_or(0, |r| r.offset.get());
        BackRef::Data {
            root: block.owner,
            objectid: item.key.objectid,
            offset: item.key.offset.wrapping_sub(offset),
        }
    }

    /// Whether the block at `at` refers by its address.
    pub(super) fn is_full(&self, at: u64) -> bool {
        self.find(at).is_some_and(|e| e.has(bit::FULL_BACKREF))
    }
}

/// Hashes references with a seed of this run, so that no image is made to balance.
#[derive(Clone, Copy)]
pub(super) struct Hasher(u64);

impl Hasher {
    pub(super) fn new() -> Hasher {
        Hasher(RandomState::new().hash_one(0u8) | 1)
    }

    pub(super) fn of(self, back: &BackRef) -> u64 {
        match *back {
            BackRef::TreeBlock { root } => self.words(&[1, root]),
            BackRef::SharedBlock { parent } => self.words(&[2, parent]),
            BackRef::Data { root, objectid, offset } => self.words(&[3, root, objectid, offset]),
            BackRef::SharedData { parent } => self.words(&[4, parent]),
        }
    }

    pub(super) fn words(self, words: &[u64]) -> u64 {
        words.iter().fold(self.0, |h, w| fold(h ^ w, 0x9e37_79b9_7f4a_7c15 ^ self.0.rotate_left(17)))
    }

    /// Of a name, after `seed`.
    pub(super) fn name(self, seed: u64, name: &[u8]) -> u64 {
        let mut hash = fold(seed ^ name.len() as u64, self.0);
        let (words, rest) = name.as_chunks::<8>();
        for word in words {
            hash = fold(hash ^ u64::from_le_bytes(*word), 0xa076_1d64_78bd_642f ^ self.0);
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        fold(hash ^ u64::from_le_bytes(last), 0xe703_7ed1_a0b4_28db ^ self.0)
    }
}

/// Both halves of the product, folded: every bit of the result depends on every bit of `a`.
#[expect(clippy::cast_possible_truncation, reason = "the two halves are taken one by one")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x2d35_8dcc_aa6c_78a5) * u128::from(b | 1);
    (product as u64) ^ ((product >> 64) as u64)
}
