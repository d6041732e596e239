//! The four checksum algorithms of blocks, superblocks and data sectors (`format/03 §3.2`).

use std::fmt;

/// Bytes of the checksum field at the start of a superblock and of a tree block.
#[doc(alias = "BTRFS_CSUM_SIZE")]
pub const CSUM_FIELD_LEN: usize = 32;

/// A checksum as stored: [`CsumType::width`] bytes, the rest of the field zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Csum(pub [u8; CSUM_FIELD_LEN]);

/// A known checksum algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CsumType {
    /// crc32c (Castagnoli), 4 bytes.
    #[default]
    Crc32c,
    /// xxhash64 with seed 0, 8 bytes.
    XxHash64,
    /// SHA-256, 32 bytes.
    Sha256,
    /// BLAKE2b with a digest length of 32 bytes.
    Blake2b,
}

impl CsumType {
    /// All of them, in the order of their codes.
    pub const ALL: [CsumType; 4] =
        [CsumType::Crc32c, CsumType::XxHash64, CsumType::Sha256, CsumType::Blake2b];

    /// The algorithm with this `csum_type` code of the superblock, if known.
    pub fn from_code(code: u16) -> Option<CsumType> {
        CsumType::ALL.get(usize::from(code)).copied()
    }

    /// The code in the superblock's `csum_type`.
    pub fn code(self) -> u16 {
        match self {
            CsumType::Crc32c => 0,
            CsumType::XxHash64 => 1,
            CsumType::Sha256 => 2,
            CsumType::Blake2b => 3,
        }
    }

    /// The name that `mkfs.btrfs --csum` takes.
    pub fn name(self) -> &'static str {
        match self {
            CsumType::Crc32c => "crc32c",
            CsumType::XxHash64 => "xxhash64",
            CsumType::Sha256 => "sha256",
            CsumType::Blake2b => "blake2b",
        }
    }

    /// Bytes of one checksum in a csum item.
    pub fn width(self) -> usize {
        match self {
            CsumType::Crc32c => 4,
            CsumType::XxHash64 => 8,
            CsumType::Sha256 | CsumType::Blake2b => 32,
        }
    }

    /// The checksum of `bytes`.
    pub fn of(self, bytes: &[u8]) -> Csum {
        let mut field = [0; CSUM_FIELD_LEN];
        match self {
            CsumType::Crc32c => field[..4].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes()),
            CsumType::XxHash64 => {
                field[..8].copy_from_slice(&xxhash_rust::xxh64::xxh64(bytes, 0).to_le_bytes());
            }
            CsumType::Sha256 => {
                use sha2::Digest as _;
                field.copy_from_slice(&sha2::Sha256::digest(bytes));
            }
            CsumType::Blake2b => {
                let digest = blake2b_simd::Params::new().hash_length(32).hash(bytes);
                field.copy_from_slice(digest.as_bytes());
            }
        }
        Csum(field)
    }

    /// The checksum of a superblock or tree block: of all that follows its checksum field.
    ///
    /// # Panics
    /// When `block` is shorter than the field.
    pub fn of_block(self, block: &[u8]) -> Csum {
        self.of(&block[CSUM_FIELD_LEN..])
    }

    /// Appends the checksums of each sector of `data`, [`CsumType::width`] bytes each.
    pub fn append_sectors(self, data: &[u8], sectorsize: usize, out: &mut Vec<u8>) {
        if self == CsumType::Blake2b {
            return append_blake2b(data, sectorsize, out);
        }
        for sector in data.chunks(sectorsize) {
            out.extend_from_slice(&self.of(sector).0[..self.width()]);
        }
    }

    /// Whether the checksum field at the start of `block` is right. Only the algorithm's width is compared.
    pub fn verify_block(self, block: &[u8]) -> bool {
        block.len() > CSUM_FIELD_LEN && self.of_block(block).0[..self.width()] == block[..self.width()]
    }
}

/// BLAKE2b of many equal sectors at once, twice the speed of one at a time.
fn append_blake2b(data: &[u8], sectorsize: usize, out: &mut Vec<u8>) {
    let mut params = blake2b_simd::Params::new();
    params.hash_length(32);
    let mut jobs: Vec<_> =
        data.chunks(sectorsize).map(|s| blake2b_simd::many::HashManyJob::new(&params, s)).collect();
    blake2b_simd::many::hash_many(jobs.iter_mut());
    for job in &jobs {
        out.extend_from_slice(job.to_hash().as_bytes());
    }
}

impl fmt::Display for CsumType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for CsumType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        CsumType::ALL
            .into_iter()
            .find(|t| t.name() == name || (name == "xxhash" && t.name() == "xxhash64"))
            .ok_or_else(|| {
                format!("unknown checksum '{name}', valid: crc32c, xxhash64 (or xxhash), sha256, blake2b")
            })
    }
}

impl fmt::Debug for Csum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// `format/03 §3.3`, the stored byte order.
    #[test]
    fn sectors_checksum_as_on_real_images() {
        let zero = vec![0u8; 4096];
        let ramp: Vec<u8> = (0..=255u8).cycle().take(4096).collect();
        let vectors = [
            (CsumType::Crc32c, &zero, "8941f998"),
            (CsumType::Crc32c, &ramp, "32fe719c"),
            (CsumType::XxHash64, &zero, "dbbbd8326f9b86ac"),
            (CsumType::XxHash64, &ramp, "a4f66a18be646e0f"),
            (CsumType::Sha256, &zero, "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7"),
            (CsumType::Sha256, &ramp, "c8f5d0341d54d951a71b136e6e2afcb14d11ed8489a7ae126a8fee0df6ecf193"),
            (CsumType::Blake2b, &zero, "686ede9288c391e7e05026e56f2f91bfd879987a040ea98445dabc76f55b8e5f"),
            (CsumType::Blake2b, &ramp, "81baab4ea5d75a0aa53b8780ae5dbd7c8dac7f07e7c103644399492bb9ea6f87"),
        ];
        for (kind, sector, want) in vectors {
            assert_eq!(hex(&kind.of(sector).0[..kind.width()]), want, "{kind}");
            let mut many = Vec::new();
            kind.append_sectors(&[&sector[..], &sector[..]].concat(), 4096, &mut many);
            assert_eq!(hex(&many), want.repeat(2), "{kind} of two sectors");
        }
    }
}
