//! Target: compressed extents.
//!
//! Input: a byte that chooses algorithm and form, two bytes of the length that the extent claims to have, the stored
//! bytes.

use std::cell::RefCell;

use btrfsimg_compress::{Algorithm, Decoder, MAX_CHUNK};

thread_local! {
    static DECODER: RefCell<Decoder> = RefCell::new(Decoder::new());
}

/// Runs the target `frames`.
pub fn run(input: &[u8]) {
    let Some((&[choice, low, high], stored)) = input.split_first_chunk::<3>() else { return };
    let algorithm = [Algorithm::Zlib, Algorithm::Lzo, Algorithm::Zstd][usize::from(choice & 3) % 3];
    let sectorsize = if choice & 16 == 0 { 4096 } else { 65536 };
    let ram_bytes = (usize::from(u16::from_le_bytes([low, high])) * 4).min(MAX_CHUNK);
    let mut out = vec![0xa5; ram_bytes];
    DECODER.with_borrow_mut(|decoder| {
        let decoded = match choice & 8 {
            0 => decoder.decode_extent(algorithm, stored, sectorsize, &mut out),
            _ => decoder.decode_inline(algorithm, stored, sectorsize, &mut out),
        };
        if let Ok(n) = decoded {
            assert!(n <= ram_bytes, "{n} bytes decoded into {ram_bytes}");
            assert!(out[n..].iter().all(|b| *b == 0), "what the stream does not give is not zero");
            // A context that was used decodes as a new one does.
            let mut again = vec![0x5a; ram_bytes];
            let mut fresh = Decoder::new();
            let second = match choice & 8 {
                0 => fresh.decode_extent(algorithm, stored, sectorsize, &mut again),
                _ => fresh.decode_inline(algorithm, stored, sectorsize, &mut again),
            };
            assert_eq!(second.ok(), Some(n));
            assert!(out == again, "a used context decodes to other bytes");
        }
    });
}
