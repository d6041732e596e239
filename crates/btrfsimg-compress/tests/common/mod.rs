//! Inputs of every texture, and the methods to put them through.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses some of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use btrfsimg_compress::{CompressionSpec, Method};

/// A small, fixed generator (xorshift64*), so that failures repeat.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap() % n
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}

/// Bytes without redundancy.
pub fn random(len: usize, seed: u64) -> Vec<u8> {
    Rng(seed | 1).bytes(len)
}

/// Words of a small vocabulary.
pub fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    let words = ["extent ", "inode ", "static int ", "return ", "if (", ")\n\t", "leaf", "->", "struct "];
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        out.extend_from_slice(words[rng.below(words.len())].as_bytes());
        if rng.below(5) == 0 {
            out.extend_from_slice(rng.next().to_string().as_bytes());
        }
    }
    out.truncate(len);
    out
}

/// Opcodes, small displacements, runs of zeros and tables of ascending numbers: like machine code.
pub fn executable(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    let opcodes: [&[u8]; 6] =
        [&[0x48, 0x89, 0xe5], &[0xe8], &[0x0f, 0x1f, 0x44, 0x00, 0x00], &[0x48, 0x8b], &[0xc3], &[0x83]];
    let mut out = Vec::with_capacity(len + 64);
    while out.len() < len {
        match rng.below(8) {
            0 => out.resize(out.len() + rng.below(48), 0),
            1 => out.extend_from_slice(&u32::try_from(out.len() * 4).unwrap().to_le_bytes()),
            2 => out.extend_from_slice(&rng.next().to_le_bytes()[..3]),
            _ => out.extend_from_slice(opcodes[rng.below(opcodes.len())]),
        }
    }
    out.truncate(len);
    out
}

/// One input of each texture.
pub fn textures(len: usize) -> Vec<(&'static str, Vec<u8>)> {
    let seed = u64::try_from(len).unwrap() * 31 + 7;
    vec![
        ("zeros", vec![0; len]),
        ("random", random(len, seed)),
        ("text", text(len, seed)),
        ("executable", executable(len, seed)),
    ]
}

pub fn method(text: &str) -> Method {
    match text.parse().unwrap() {
        CompressionSpec::Method(method) => method,
        CompressionSpec::None => panic!("{text} is no method"),
    }
}

/// Every algorithm at every level.
pub fn all_methods() -> Vec<Method> {
    let zlib = (1..=9).map(|level| method(&format!("zlib:{level}")));
    let zstd = (-15..=15).filter(|&level| level != 0).map(|level| method(&format!("zstd:{level}")));
    zlib.chain(zstd).chain([Method::LZO]).collect()
}

/// One method per algorithm.
pub fn some_methods() -> Vec<Method> {
    ["zlib:3", "lzo", "zstd:3"].map(method).to_vec()
}
