//! One random change of a sound image, all of it from a seed.

use std::path::Path;
use std::sync::Arc;

use super::specimen::Specimen;
use anyhow::Result;
use btrfsimg_fs::device::{Device as _, OverlayDevice};
use btrfsimg_ondisk::{
    HEADER_LEN, ITEM_HEADER_LEN, Key, KeyType, ParentExpectation, Physical, SUPERBLOCK_OFFSETS, Superblock,
    TreeBlock, objectid,
};
use btrfsimg_testkit::rng::Rng;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// A damaged image.
pub(super) struct Mutant {
    /// What kind of change it is.
    pub(super) what: String,
    specimen: usize,
    patches: Vec<(Physical, Vec<u8>)>,
}

impl Mutant {
    /// The image of this seed.
    pub(super) fn make(specimens: &[Specimen], seed: u64) -> Mutant {
        let mut rng = Rng::new(seed);
        // The first few of a small seed are alike.
        (0..8).for_each(|_| _ = rng.next_u64());
        let index = rng.index(specimens.len());
        let specimen = &specimens[index];
        let mut mutant = Mutant { what: specimen.name.to_owned(), specimen: index, patches: Vec::new() };
        // Mostly one change, so that what is found of it is about it.
        for _ in 0..if rng.below(4) == 0 { 3 } else { 1 } {
            let what = match rng.below(20) {
                0 => mutant.raw(specimen, &mut rng),
                1 | 2 => mutant.superblock(specimen, &mut rng),
                _ => mutant.block(specimen, &mut rng),
            };
            mutant.what.push(' ');
            mutant.what.push_str(&what);
        }
        mutant
    }

    pub(super) fn device(&self, specimens: &[Specimen]) -> Result<Arc<OverlayDevice>> {
        let device = OverlayDevice::new(specimens[self.specimen].device.clone())?;
        for (at, bytes) in &self.patches {
            device.write_at(bytes, *at)?;
        }
        Ok(Arc::new(device))
    }

    pub(super) fn write(&self, specimens: &[Specimen], image: &Path) -> Result<()> {
        let mut bytes = specimens[self.specimen].device.contents();
        for (at, patch) in &self.patches {
            let at = usize::try_from(at.0)?;
            bytes[at..at + patch.len()].copy_from_slice(patch);
        }
        super::write_sparse(image, &bytes)
    }

    /// The bytes at `at`, earlier changes included.
    fn read(&self, specimen: &Specimen, at: Physical, len: usize) -> Vec<u8> {
        let earlier = self.patches.iter().rev().find(|(p, b)| *p == at && b.len() == len);
        earlier.map_or_else(
            || {
                let mut bytes = vec![0; len];
                // A specimen is whole; what lies beyond its end is zeros.
                let _ = specimen.device.read_at(&mut bytes, at);
                bytes
            },
            |(_, b)| b.clone(),
        )
    }

    /// Bytes changed without making checksums right.
    fn raw(&mut self, specimen: &Specimen, rng: &mut Rng) -> String {
        let range = &specimen.used[rng.index(specimen.used.len())];
        let at = Physical(range.start + rng.below(range.end - range.start));
        let byte = self.read(specimen, at, 1)[0];
        self.patches.push((at, vec![byte ^ random_bits(rng)]));
        "raw".to_owned()
    }

    /// A field of the superblock, in all copies.
    fn superblock(&mut self, specimen: &Specimen, rng: &mut Rng) -> String {
        // Not in the label, which may be anything, nor in the second half, which is mostly zeros.
        let at = if rng.below(4) == 0 { rng.index(4096) } else { 32 + rng.index(267) };
        let edit = Edit::random(rng);
        let len = specimen.device.len().unwrap_or(0);
        for offset in SUPERBLOCK_OFFSETS.into_iter().filter(|o| o + 4096 < len) {
            let mut bytes = self.read(specimen, Physical(offset), 4096);
            edit.apply(&mut bytes[32..], at.saturating_sub(32));
            if let Ok(superblock) = Superblock::read_from_bytes(&bytes) {
                let mut sealed = superblock;
                sealed.csum = [0; 32];
                sealed.csum = specimen.ctx.csum.of_block(sealed.as_bytes()).0;
                self.patches.push((Physical(offset), sealed.as_bytes().to_vec()));
            }
        }
        format!("superblock+{at}")
    }

    /// A change of a tree block, its checksum made right.
    fn block(&mut self, specimen: &Specimen, rng: &mut Rng) -> String {
        let (logical, copies) = &specimen.blocks[rng.index(specimen.blocks.len())];
        let mut bytes = self.read(specimen, copies[0], specimen.ctx.nodesize);
        let parsed = TreeBlock::parse(
            bytes.clone().into_boxed_slice(),
            *logical,
            &specimen.ctx,
            &ParentExpectation::default(),
        );
        let what = match (parsed, rng.below(16)) {
            (_, 0) => {
                let at = 32 + rng.index(HEADER_LEN - 32);
                Edit::random(rng).apply(&mut bytes, at);
                format!("header+{at}")
            }
            (_, 1) | (Err(_), _) => {
                let at = 32 + rng.index(bytes.len() - 32);
                bytes[at] ^= random_bits(rng);
                format!("block {logical} byte {at}")
            }
            (Ok(block), n) => {
                let (changed, what) = change_block(block, n, specimen, rng);
                bytes = changed;
                what
            }
        };
        let sum = specimen.ctx.csum.of_block(&bytes).0;
        bytes[..32].copy_from_slice(&sum);
        let one = copies.len() > 1 && rng.below(12) == 0;
        for copy in copies.iter().skip(usize::from(one)) {
            self.patches.push((*copy, bytes.clone()));
        }
        what
    }
}

/// A change of the items or pointers of a sound block; says what kind it is.
fn change_block(mut block: TreeBlock, n: u64, specimen: &Specimen, rng: &mut Rng) -> (Vec<u8>, String) {
    let tree = objectid::Printed(block.header().owner.get()).to_string();
    let slots = block.nritems();
    let done = |block: TreeBlock, what: String| (block.bytes().to_vec(), what);
    if slots == 0 || !block.is_leaf() {
        let at = HEADER_LEN + rng.index(33 * slots.max(1));
        Edit::random(rng).apply(block.bytes_mut(), at);
        return done(block, format!("node of {tree}"));
    }
    let slot = rng.index(slots);
    let key = block.key(slot);
    let name = format!("{tree} {}", key.key_type);
    match n {
        2 => {
            let at = HEADER_LEN + slot * ITEM_HEADER_LEN + rng.index(ITEM_HEADER_LEN);
            Edit::random(rng).apply(block.bytes_mut(), at);
            done(block, format!("{name} header"))
        }
        3 if slots > 1 => {
            block.remove_items(slot..slot + 1);
            done(block, format!("{name} removed"))
        }
        4 => {
            let other = some_item(specimen, rng).unwrap_or((key, Vec::new()));
            if block.leaf_free() >= other.1.len() + ITEM_HEADER_LEN {
                let key = if rng.below(2) == 0 { other.0 } else { Key { offset: key.offset + 1, ..key } };
                let at = block.search(&key).unwrap_or_else(|s| s);
                block.insert_items(at, std::iter::once((key, &other.1[..])));
            }
            done(block, format!("{} inserted in {tree}", other.0.key_type))
        }
        5 => {
            let mut data = block.item(slot).data.to_vec();
            let len = rng.index(2 * data.len() + 2);
            if len <= data.len() + block.leaf_free() {
                data.resize(len, 0);
                block.replace_item(slot, &data);
            }
            done(block, format!("{name} resized"))
        }
        6 => {
            let edit = Edit::random(rng);
            let mut raw = [0; 17];
            raw[..8].copy_from_slice(&key.objectid.to_le_bytes());
            raw[8] = key.key_type.0;
            raw[9..].copy_from_slice(&key.offset.to_le_bytes());
            edit.apply(&mut raw, if rng.below(2) == 0 { 9 } else { rng.index(17) });
            let number =
                |from: usize| raw[from..from + 8].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
            block.set_item_key(slot, Key::new(number(0), KeyType(raw[8]), number(9)));
            done(block, format!("{name} key"))
        }
        _ => {
            let mut data = block.item(slot).data.to_vec();
            if data.is_empty() {
                return done(block, format!("{name} empty"));
            }
            let at = rng.index(data.len().min(512));
            Edit::random(rng).apply(&mut data, at);
            block.replace_item(slot, &data);
            done(block, format!("{name}+{at}"))
        }
    }
}

/// An item of some leaf.
fn some_item(specimen: &Specimen, rng: &mut Rng) -> Option<(Key, Vec<u8>)> {
    let (logical, copies) = &specimen.blocks[rng.index(specimen.blocks.len())];
    let mut bytes = vec![0; specimen.ctx.nodesize];
    specimen.device.read_at(&mut bytes, copies[0]).ok()?;
    let expect = ParentExpectation::default();
    let block = TreeBlock::parse(bytes.into_boxed_slice(), *logical, &specimen.ctx, &expect).ok()?;
    let slot = rng.index(block.nritems());
    (block.is_leaf() && block.nritems() > 0).then(|| (block.key(slot), block.item(slot).data.to_vec()))
}

fn random_bits(rng: &mut Rng) -> u8 {
    match rng.below(3) {
        0 => 1 << rng.below(8),
        _ => rng.below(255).to_le_bytes()[0] + 1,
    }
}

/// What is done to a field, whichever it is.
#[derive(Clone, Copy)]
enum Edit {
    Xor(u8),
    Set(u64, usize),
    Add(u64, usize),
}

impl Edit {
    fn random(rng: &mut Rng) -> Edit {
        const VALUES: [u64; 14] = [
            0,
            1,
            2,
            5,
            255,
            256,
            4096,
            65535,
            65536,
            u32::MAX as u64,
            1 << 40,
            1 << 63,
            u64::MAX - 255,
            u64::MAX,
        ];
        const STEPS: [u64; 8] =
            [1, u64::MAX, 4096, 0u64.wrapping_sub(4096), 65536, 512, 1 << 32, 0u64.wrapping_sub(65536)];
        let width = 1 << rng.index(4);
        match rng.below(3) {
            0 => Edit::Xor(random_bits(rng)),
            1 => Edit::Set(VALUES[rng.index(VALUES.len())], width),
            _ => Edit::Add(STEPS[rng.index(STEPS.len())], width),
        }
    }

    /// Changes the field of `bytes` that begins at `at`, as far as it is inside.
    fn apply(self, bytes: &mut [u8], at: usize) {
        let Some(field) = bytes.get_mut(at..) else { return };
        let (width, new): (usize, u64) = match self {
            Edit::Xor(bits) => {
                if let Some(byte) = field.first_mut() {
                    *byte ^= bits;
                }
                return;
            }
            Edit::Set(value, width) => (width, value),
            Edit::Add(step, width) => {
                let old = field.iter().take(8).rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
                (width, old.wrapping_add(step))
            }
        };
        for (byte, value) in field.iter_mut().zip(new.to_le_bytes()).take(width) {
            *byte = value;
        }
    }
}
