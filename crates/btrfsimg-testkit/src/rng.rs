//! Numbers that look random and are the same in every run.

/// xorshift64*: small, fast, and good enough for test data.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Any seed will do; 0 is replaced.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound` (0 when that is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// A length or index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// `len` bytes that no codec makes smaller.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_bytes_and_all_values_occur() {
        assert_eq!(Rng::new(7).bytes(1000), Rng::new(7).bytes(1000));
        assert_ne!(Rng::new(7).bytes(1000), Rng::new(8).bytes(1000));
        let mut seen = [0_u32; 256];
        for byte in Rng::new(0).bytes(1 << 16) {
            seen[usize::from(byte)] += 1;
        }
        // 256 occurrences expected of each: a generator that is stuck or biased shows at once.
        assert!(seen.iter().all(|n| (150..400).contains(n)), "{seen:?}");
    }
}
