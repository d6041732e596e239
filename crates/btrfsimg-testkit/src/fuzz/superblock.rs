//! Target: the superblock.
//!
//! Input: bytes of a superblock, as changes to the one of the base image: pairs of an offset (two bytes) and eight
//! bytes that are put there. Its checksum is made right.

use std::sync::Arc;

use btrfsimg_fs::device::{Device as _, OverlayDevice};
use btrfsimg_fs::inspect;
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::verify;
use btrfsimg_ondisk::{Physical, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, Superblock};
use zerocopy::FromBytes as _;

use super::base;

/// Runs the target `superblock`.
pub fn run(input: &[u8]) {
    let base = base::image();
    let mut bytes = base.superblock();
    for change in input.chunks_exact(10) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % (SUPERBLOCK_LEN - 8);
        bytes[at..at + 8].copy_from_slice(&change[2..]);
    }
    base::seal_superblock(&mut bytes);
    let overlay = Arc::new(OverlayDevice::new(base.device()).expect("memory has a length"));
    overlay.write_at(&bytes, Physical(SUPERBLOCK_OFFSETS[0])).expect("memory takes writes");
    // The copies go, so that nothing else is fallen back on.
    for at in base.superblock_copies() {
        overlay.write_at(&[0; SUPERBLOCK_LEN], at).expect("memory takes writes");
    }
    let _ = inspect::superblocks(&*overlay);
    let options = verify::Options::new().with_threads(1);
    let verified =
        verify::verify(&*overlay, &options, &mut |finding| assert!(!finding.to_string().is_empty()));
    if let Ok(fs) = Filesystem::open(overlay.clone()) {
        base::read_all(&fs);
    }
    if let Ok(fs) = Filesystem::salvage(overlay.clone(), &mut |_| {}) {
        base::read_all(&fs);
    }
    // What the copy says of itself is what is judged.
    if verified.is_ok_and(|summary| summary.errors == 0) {
        let superblock = Superblock::read_from_bytes(&bytes).expect("it has its length");
        assert_eq!(superblock.magic, Superblock::MAGIC, "sound without the magic");
        assert_eq!(superblock.bytenr.get(), SUPERBLOCK_OFFSETS[0], "sound at another place");
    }
}
