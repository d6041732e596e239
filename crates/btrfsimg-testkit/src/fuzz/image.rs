//! Target: a small image with changed blocks whose checksums are right again.
//!
//! Input: changes of 16 bytes each: the block (2 bytes), what of it (1), the slot (1), where in that (2), how many bytes
//! (1), whether the checksum stays wrong (1), the value (8).

use std::collections::BTreeMap;
use std::sync::Arc;

use btrfsimg_fs::device::{Device as _, OverlayDevice};
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use btrfsimg_fs::verify;
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_ondisk::{HEADER_LEN, ITEM_HEADER_LEN, Timespec};

use super::base::{self, NODESIZE};

/// Runs the target `image`.
pub fn run(input: &[u8]) {
    let base = base::image();
    let overlay = Arc::new(OverlayDevice::new(base.device()).expect("memory has a length"));
    let mut changed: BTreeMap<usize, (Vec<u8>, bool)> = BTreeMap::new();
    for change in input.chunks_exact(16).take(32) {
        let number = usize::from(u16::from_le_bytes([change[0], change[1]])) % base.blocks.len();
        let (bytes, seal) = changed.entry(number).or_insert_with(|| (base.blocks[number].0.clone(), true));
        *seal &= change[7] != 0xff;
        let at = place(bytes, change);
        let width = (usize::from(change[6]) % 8 + 1).min(NODESIZE - at);
        bytes[at..at + width].copy_from_slice(&change[8..8 + width]);
    }
    for (number, (mut bytes, seal)) in changed {
        if seal {
            base::seal_superblock(&mut bytes);
        }
        for at in &base.blocks[number].1 {
            overlay.write_at(&bytes, *at).expect("memory takes writes");
        }
    }
    let sound = errors(&overlay) == Some(0);
    if let Ok(fs) = Filesystem::open(overlay.clone()) {
        base::read_all(&fs);
    }
    if let Ok(fs) = Filesystem::salvage(overlay.clone(), &mut |_| {}) {
        base::read_all(&fs);
    }
    let edited = edit(&overlay);
    if sound {
        edited.expect("what verify calls sound can be changed");
        assert_eq!(errors(&overlay), Some(0), "what was sound is not after a change");
    }
}

/// Where in a block a change goes.
fn place(block: &[u8], change: &[u8]) -> usize {
    let offset = usize::from(u16::from_le_bytes([change[4], change[5]]));
    let items = u32::from_le_bytes([block[96], block[97], block[98], block[99]]) as usize;
    let header = HEADER_LEN + usize::from(change[3]) % items.clamp(1, 100) * ITEM_HEADER_LEN;
    let field =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]) as usize;
    let at = match change[2] % 4 {
        0 => offset,
        1 => header + offset % ITEM_HEADER_LEN,
        2 => HEADER_LEN + field(header + 17) % NODESIZE + offset % field(header + 21).clamp(1, NODESIZE),
        _ => 48 + offset % (HEADER_LEN - 48),
    };
    at % NODESIZE
}

/// The errors that verify finds; `None` where it cannot judge.
fn errors(overlay: &OverlayDevice) -> Option<u64> {
    let options = verify::Options::new().with_data(true).with_threads(1);
    let verified = verify::verify(overlay, &options, &mut |finding| assert!(!finding.to_string().is_empty()));
    verified.ok().map(|summary| summary.errors)
}

/// A change that touches most trees.
fn edit(overlay: &Arc<OverlayDevice>) -> btrfsimg_fs::Result<()> {
    let now = Timespec::new(1_700_000_001, 0);
    let mut volume = Volume::open(overlay.clone(), VolumeOptions::default())?;
    let mut tx = volume.begin(now)?;
    create(&mut tx, Place::TOP, b"new directory", Attributes::new(0o040_755, now), Vec::new())?;
    tx.commit()
}
