//! Sets of disjoint, merged ranges: free space.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of addresses, none touching another.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Runs {
    /// Start to end.
    runs: BTreeMap<u64, u64>,
    /// Sum of the lengths.
    total: u64,
}

impl Runs {
    /// One range.
    pub(super) fn one(range: Range<u64>) -> Runs {
        let mut runs = Runs::default();
        runs.insert(range);
        runs
    }

    /// Adds `range`, merged with what it touches.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.runs.range(..=start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
        }
        while let Some((&s, &e)) = self.runs.range(start..=end).next() {
            end = end.max(e);
            self.runs.remove(&s);
            self.total -= e - s;
        }
        self.runs.insert(start, end);
        self.total += end - start;
    }

    /// Takes `range` out, whatever of it is in.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&s, &e)) = self.runs.range(..range.end).next_back() {
            if e <= range.start {
                break;
            }
            self.runs.remove(&s);
            self.total -= e.min(range.end) - s.max(range.start);
            if e > range.end {
                self.runs.insert(range.end, e);
            }
            if s < range.start {
                self.runs.insert(s, range.start);
                break;
            }
        }
    }

    /// The ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(&s, &e)| s..e)
    }

    /// The ranges that begin or end in `range` or hold it, in order.
    pub(super) fn meeting(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.runs.range(..range.start).next_back().filter(|(_, e)| **e > range.start);
        before.into_iter().chain(self.runs.range(range.clone())).map(|(&s, &e)| s..e)
    }

    /// The length of the longest.
    pub(super) fn longest(&self) -> u64 {
        self.iter().map(|r| r.end - r.start).max().unwrap_or(0)
    }

    /// How many.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether all of `range` is in.
    pub(super) fn contains(&self, range: &Range<u64>) -> bool {
        self.runs.range(..=range.start).next_back().is_some_and(|(_, &e)| e >= range.end)
    }

    /// Whether any of `range` is in.
    pub(super) fn touches(&self, range: &Range<u64>) -> bool {
        self.runs.range(..range.end).next_back().is_some_and(|(_, &e)| e > range.start)
    }

    /// The first place for `len` bytes aligned to `align`, searched from `from` on, then from the start.
    pub(super) fn find(&self, len: u64, align: u64, from: u64) -> Option<u64> {
        let fits = |(&s, &e): (&u64, &u64), floor: u64| {
            let at = s.max(floor).checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= e).then_some(at)
        };
        let around = self.runs.range(..from).next_back().and_then(|run| fits(run, from));
        around
            .or_else(|| self.runs.range(from..).find_map(|run| fits(run, 0)))
            .or_else(|| self.runs.range(..from).find_map(|run| fits(run, 0)))
    }

    /// The last range.
    pub(super) fn last(&self) -> Option<Range<u64>> {
        self.runs.last_key_value().map(|(&s, &e)| s..e)
    }

    /// Sum of the lengths.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random inserts and removes against a bit vector.
    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "addresses below 200")]
    fn runs_are_a_set_of_addresses() {
        let (mut runs, mut model) = (Runs::default(), [false; 200]);
        let mut seed = 7u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for _ in 0..20_000 {
            let start = random(200);
            let range = start..(start + random(30)).min(200);
            let put = random(2) == 0;
            (range.start as usize..range.end as usize).for_each(|i| model[i] = put);
            if put {
                runs.insert(range)
            } else {
                runs.remove(range)
            }
            let mut expect: Vec<Range<u64>> = Vec::new();
            for (i, _) in model.iter().enumerate().filter(|(_, set)| **set) {
                let i = i as u64;
                match expect.last_mut() {
                    Some(last) if last.end == i => last.end += 1,
                    _ => expect.push(i..i + 1),
                }
            }
            assert_eq!(runs.iter().collect::<Vec<_>>(), expect);
            assert_eq!(runs.total(), expect.iter().map(|r| r.end - r.start).sum::<u64>());
            assert_eq!(runs.longest(), expect.iter().map(|r| r.end - r.start).max().unwrap_or(0));
            let window = start..start + 10;
            let meeting: Vec<_> = runs.meeting(&window).collect();
            expect.retain(|r| r.start < window.end && r.end > window.start);
            assert_eq!(meeting, expect, "{window:?}");
            let (len, align, from) = (1 + random(8), 1 << random(3), random(200));
            let place = |at: &u64| {
                at.is_multiple_of(align) && (*at..at + len).all(|i| model.get(i as usize) == Some(&true))
            };
            let first = (from..200).find(place).or_else(|| (0..200).find(place));
            let found = runs.find(len, align, from);
            assert_eq!(found.is_some(), first.is_some(), "find {len} {align} {from} in {runs:?}");
            assert!(found.is_none_or(|at| place(&at)));
        }
    }
}
