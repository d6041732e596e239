//! Whether a chunk looks compressible, by the kernel's rule (`format/04 §4.7`).

use crate::MAX_CHUNK;

/// Bytes read at each sampled place, and the distance between places.
const SAMPLE_READ: usize = 16;
const SAMPLE_STRIDE: usize = 256;
const MAX_SAMPLE: usize = MAX_CHUNK / SAMPLE_STRIDE * SAMPLE_READ;

/// Fewer distinct byte values than this: text-like.
const FEW_VALUES: usize = 64;
/// Where the core set is small enough for "yes", and too large, hence "no".
const CORE_SET_LOW: usize = 64;
const CORE_SET_HIGH: usize = 200;
/// Entropy in percent from which the answer is "no".
const ENTROPY_HIGH: u64 = 80;

/// Whether the kernel would try to compress this chunk. `chunk` starts sector aligned in its file; at most its
/// first [`MAX_CHUNK`] bytes are looked at. Costs one pass over a sixteenth of them.
///
/// The kernel asks once for a whole dirty range; asking per chunk is finer and needs no memory of ranges.
pub fn is_compressible(chunk: &[u8]) -> bool {
    let mut buffer = [0u8; MAX_SAMPLE];
    let sample = collect_sample(chunk, &mut buffer);
    let half = sample.len() / 2;
    // An empty sample counts as repeating: tiny files are always tried.
    if sample[..half] == sample[half..half * 2] {
        return true;
    }
    let mut counts = count_values(sample);
    if counts.iter().filter(|&&count| count > 0).count() < FEW_VALUES {
        return true;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    match core_set(&counts, sample.len()) {
        0..=CORE_SET_LOW => true,
        CORE_SET_HIGH.. => false,
        _ => entropy_percent(&counts, sample.len()) < ENTROPY_HIGH,
    }
}

fn collect_sample<'a>(chunk: &[u8], buffer: &'a mut [u8; MAX_SAMPLE]) -> &'a [u8] {
    let chunk = &chunk[..chunk.len().min(MAX_CHUNK)];
    let mut len = 0;
    for place in chunk.chunks(SAMPLE_STRIDE) {
        let Some(bytes) = place.first_chunk::<SAMPLE_READ>() else { break };
        buffer[len..len + SAMPLE_READ].copy_from_slice(bytes);
        len += SAMPLE_READ;
    }
    &buffer[..len]
}

/// Two tables in turn, so that runs of one value do not wait for their own counter.
fn count_values(sample: &[u8]) -> [u32; 256] {
    let (mut even, mut odd) = ([0u32; 256], [0u32; 256]);
    for pair in sample.chunks_exact(2) {
        even[usize::from(pair[0])] += 1;
        odd[usize::from(pair[1])] += 1;
    }
    for (total, more) in even.iter_mut().zip(odd) {
        *total += more;
    }
    even
}

/// The kernel's core set size: how many of the most frequent values it takes to pass 90 % of the sample, as it
/// counts them. Its count stands at [`CORE_SET_LOW`] when the first 64 or 65 suffice, and reaches
/// [`CORE_SET_HIGH`] only when 200 do not.
fn core_set(descending: &[u32; 256], sample_len: usize) -> usize {
    let threshold = sample_len * 90 / 100;
    let mut sum: usize = descending[..CORE_SET_LOW].iter().map(|&count| count as usize).sum();
    let mut size = CORE_SET_LOW;
    while sum <= threshold && size < CORE_SET_HIGH {
        sum += descending[size] as usize;
        if sum > threshold {
            break;
        }
        size += 1;
    }
    size
}

/// Shannon entropy in percent of 8 bits per byte, in the kernel's integer arithmetic.
fn entropy_percent(counts: &[u32; 256], sample_len: usize) -> u64 {
    let total = sample_len as u64;
    let sum: u64 = counts
        .iter()
        .map(|&count| u64::from(count))
        .filter(|&count| count > 0)
        .map(|count| count * (log2_times_4(total) - log2_times_4(count)))
        .sum();
    sum / total * 100 / (8 * log2_times_4(2))
}

/// `floor(log2(n^4))`; n is at most 8192, so that the power fits.
fn log2_times_4(n: u64) -> u64 {
    u64::from(n.pow(4).ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk whose sample is `sample`, with other bytes between.
    fn chunk_of(sample: &[u8]) -> Vec<u8> {
        let mut chunk = vec![0xee; MAX_CHUNK];
        for (place, bytes) in chunk.chunks_mut(SAMPLE_STRIDE).zip(sample.chunks(SAMPLE_READ)) {
            place[..SAMPLE_READ].copy_from_slice(bytes);
        }
        chunk
    }

    /// A full sample in which value v occurs `weights[v]` times, spread by a fixed permutation so that its
    /// halves differ.
    fn sample_of(weights: &[(u8, usize)]) -> Vec<u8> {
        let flat: Vec<u8> = weights.iter().flat_map(|&(v, n)| std::iter::repeat_n(v, n)).collect();
        assert_eq!(flat.len(), MAX_SAMPLE);
        (0..MAX_SAMPLE).map(|i| flat[i * 3111 % MAX_SAMPLE]).collect()
    }

    /// `n` values of equal weight, what is left to value 255 … down.
    fn flat(n: usize) -> Vec<(u8, usize)> {
        (0..=255u8)
            .take(n)
            .map(|v| (v, MAX_SAMPLE / n + usize::from(usize::from(v) < MAX_SAMPLE % n)))
            .collect()
    }

    #[test]
    fn tiny_and_repeating_chunks_are_tried() {
        assert!(is_compressible(b""));
        assert!(is_compressible(b"abc"));
        assert!(is_compressible(&[0; 4096]));
        assert!(is_compressible(&vec![0; MAX_CHUNK]));
        // All 256 values, in two equal halves.
        let half: Vec<u8> = (0..=255u8).cycle().step_by(7).take(MAX_SAMPLE / 2).collect();
        assert!(is_compressible(&chunk_of(&[half.clone(), half].concat())));
    }

    #[test]
    fn few_distinct_values_are_tried() {
        assert!(is_compressible(&chunk_of(&sample_of(&flat(63)))));
    }

    #[test]
    fn core_set_boundaries() {
        // Equal weights: 90 % of 8192 is 7372 whole bytes; of 71 values 64 pass it, of 72 it takes 65.
        for n in [71, 72] {
            assert!(is_compressible(&chunk_of(&sample_of(&flat(n)))), "{n}");
        }
        // 222 values need 200 for 90 %; 224 need more than 201. With so flat a distribution entropy says no in
        // both; the count is what is looked at.
        let counts = |n| {
            let mut c = count_values(&sample_of(&flat(n)));
            c.sort_unstable_by(|a, b| b.cmp(a));
            core_set(&c, MAX_SAMPLE)
        };
        assert_eq!(counts(71), CORE_SET_LOW);
        assert_eq!(counts(72), CORE_SET_LOW);
        assert!(counts(80) > CORE_SET_LOW);
        assert!(counts(220) < CORE_SET_HIGH);
        assert_eq!(counts(256), CORE_SET_HIGH);
    }

    #[test]
    fn entropy_by_hand() {
        // Two values of 4096: w(8192) = 52, w(4096) = 48, S = 4, E = 400/32 = 12 (in integers).
        let mut counts = [0u32; 256];
        counts[0] = 4096;
        counts[1] = 4096;
        assert_eq!(entropy_percent(&counts, 8192), 12);
        // 256 values of 32: w(32) = 20, S = 32, E = 100.
        assert_eq!(entropy_percent(&[32; 256], 8192), 100);
        // 128 values of 64: w(64) = 24, S = 28, E = 2800/32 = 87.
        let mut counts = [0u32; 256];
        counts[..128].fill(64);
        assert_eq!(entropy_percent(&counts, 8192), 87);
    }

    #[test]
    fn middling_entropy_is_tried_and_high_is_not() {
        // Half the sample in 32 values, the rest in 150: core set between 64 and 200.
        let mut weights: Vec<(u8, usize)> = (0..32).map(|v| (v, 192)).collect();
        weights.extend((32..=159).map(|v| (v, 16)));
        assert!(is_compressible(&chunk_of(&sample_of(&weights))));
        assert!(!is_compressible(&chunk_of(&sample_of(&flat(150)))));
        assert!(!is_compressible(&chunk_of(&sample_of(&flat(256)))));
    }

    #[test]
    fn only_sampled_places_count_and_a_short_tail_is_not_read() {
        // 15 bytes at the last place are not a sample: zeros and noise in the tail give one answer.
        let mut chunk = chunk_of(&sample_of(&flat(256)));
        chunk.truncate(MAX_CHUNK - SAMPLE_STRIDE + SAMPLE_READ - 1);
        let mut other = chunk.clone();
        let end = other.len() - (SAMPLE_READ - 1);
        other[end..].fill(0);
        let (mut a, mut b) = ([0; MAX_SAMPLE], [0; MAX_SAMPLE]);
        assert_eq!(collect_sample(&chunk, &mut a), collect_sample(&other, &mut b));
        assert_eq!(collect_sample(&chunk, &mut a).len(), MAX_SAMPLE - SAMPLE_READ);
    }
}
