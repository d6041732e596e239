//! Mutations of bytes.

use crate::rng::Rng;

/// Values at the edges of what fields hold.
const EDGES: [u64; 14] =
    [0, 1, 2, 16, 255, 256, 4095, 4096, 16384, 65535, 1 << 20, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// Changes `bytes` in one to eight ways; never longer than `max`. `other` is another input to take parts from.
pub(super) fn mutate(bytes: &mut Vec<u8>, other: &[u8], max: usize, rng: &mut Rng) {
    for _ in 0..1 << rng.below(4) {
        once(bytes, other, rng);
    }
    bytes.truncate(max);
}

fn once(bytes: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    if bytes.is_empty() {
        bytes.extend_from_slice(&other[..other.len().min(64)]);
        bytes.push(0);
        return;
    }
    let at = rng.index(bytes.len());
    match rng.below(10) {
        0 | 1 => bytes[at] ^= 1 << rng.below(8),
        2 => bytes[at] = rng.next_u64().to_le_bytes()[0],
        3 | 4 => put(bytes, at, EDGES[rng.index(EDGES.len())], 1 << rng.below(4)),
        5 => {
            // A number near the one that is there.
            let width = 1 << rng.below(4);
            let mut now = [0; 8];
            let n = bytes.len().saturating_sub(at).min(width);
            now[..n].copy_from_slice(&bytes[at..at + n]);
            let near = u64::from_le_bytes(now).wrapping_add(rng.below(17)).wrapping_sub(8);
            put(bytes, at, near, width);
        }
        6 => {
            let len = 1 + rng.index(32.min(bytes.len() - at));
            bytes.drain(at..at + len);
        }
        7 => {
            let len = rng.index(16);
            let new = rng.bytes(len);
            bytes.splice(at..at, new);
        }
        8 => {
            let from = rng.index(bytes.len());
            let len = rng.index(64).min(bytes.len() - from).min(bytes.len() - at);
            bytes.copy_within(from..from + len, at);
        }
        _ => {
            if !other.is_empty() {
                let from = rng.index(other.len());
                let len = rng.index(64).min(other.len() - from).min(bytes.len() - at);
                bytes[at..at + len].copy_from_slice(&other[from..from + len]);
            }
        }
    }
}

fn put(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    let n = bytes.len().saturating_sub(at).min(width);
    bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
}
