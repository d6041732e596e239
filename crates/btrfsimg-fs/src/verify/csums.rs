//! The checksum tree: which data are covered (CS-04 to CS-08), and the data themselves (CS-09).

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use btrfsimg_ondisk::{BlockContext, Item, KeyType, Logical};

use super::finding::{Findings, Place};
use super::image::{Block, Image};
use super::usage::{Usage, bit};
use super::walk::{Tree, Walk};

/// Covered ranges of logical addresses, sorted, each as long as it can be.
#[derive(Default)]
pub(super) struct Csums {
    ranges: Vec<(u64, u64)>,
}

impl Csums {
    /// Takes in a leaf of the checksum tree.
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext) {
        each_item(block, ctx, |item, end| self.push(item.key.offset, end));
    }

    fn push(&mut self, start: u64, end: u64) {
        match self.ranges.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => self.ranges.push((start, end)),
        }
    }

    /// All of them from the runs of the tree in key order; CS-04 where two overlap.
    pub(super) fn gather(runs: Vec<Csums>, findings: &mut Findings) -> Csums {
        let mut all = Csums::default();
        for (start, end) in runs.into_iter().flat_map(|r| r.ranges) {
            if let Some(&(_, before)) = all.ranges.last()
                && before > start
            {
                let reason =
                    format!("csum range ending at {before} goes beyond the start of the next {start}");
                findings.add("CS-04", Place::extent(start), reason);
            }
            all.push(start.max(all.ranges.last().map_or(0, |r| r.1.min(end))), end);
        }
        all
    }

    /// Adds those of a run that follows.
    pub(super) fn append(&mut self, other: Csums) {
        other.ranges.into_iter().for_each(|(start, end)| self.push(start, end));
    }

    /// All that any of them covers, each in whatever order.
    pub(super) fn union<'c>(all: impl Iterator<Item = &'c Csums>) -> Csums {
        let mut ranges: Vec<(u64, u64)> = all.flat_map(|c| &c.ranges).copied().collect();
        ranges.sort_unstable();
        let mut union = Csums::default();
        for (start, end) in ranges {
            match union.ranges.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => union.ranges.push((start, end)),
            }
        }
        union
    }

    /// How many of the `len` bytes at `start` are covered.
    pub(super) fn covered(&self, start: u64, len: u64) -> u64 {
        let end = start.saturating_add(len);
        let first = self.ranges.partition_point(|r| r.1 <= start);
        let inside = self.ranges[first..].iter().take_while(|r| r.0 < end);
        inside.map(|r| r.1.min(end) - r.0.max(start)).sum()
    }

    /// CS-05: only data extents are covered. Items are named only where a range of several has a fault.
    pub(super) fn judge(&self, image: &Image<'_>, tree: Tree, usage: &Usage, findings: &mut Findings) {
        if self.ranges.iter().all(|&(start, end)| gaps(usage, start, end).next().is_none()) {
            return;
        }
        let blocks = AtomicU64::new(0);
        let walked = Walk::quiet(image, tree, &blocks).run(|found: &mut Findings, block, _, _| {
            each_item(block, &image.ctx, |item, end| {
                for gap in gaps(usage, item.key.offset, end) {
                    let place =
                        Place { tree: Some(tree.id), key: Some(item.key), ..Place::extent(gap.start) };
                    let reason =
                        format!("csums for {} to {}, but there is no data extent", gap.start, gap.end);
                    found.add("CS-05", place, reason);
                }
            });
        });
        walked.runs.into_iter().for_each(|found| findings.append(found));
    }
}

/// Calls `each` with each checksum item of a leaf, and where what it covers ends.
fn each_item(block: &Block, ctx: &BlockContext, mut each: impl FnMut(&Item<'_>, u64)) {
    block.for_each_item(ctx, |_, item| {
        if item.key.key_type == KeyType::EXTENT_CSUM {
            let bytes = (item.data.len() / ctx.csum.width()) as u64 * ctx.sectorsize;
            each(&item, item.key.offset.saturating_add(bytes));
        }
    });
}

/// The parts of `start` to `end` where no data extent is.
fn gaps(usage: &Usage, start: u64, end: u64) -> impl Iterator<Item = Range<u64>> {
    let first = usage.extents.partition_point(|e| e.end() <= start);
    let data = usage.extents[first..].iter().filter(|e| e.has(bit::DATA));
    let inside = data.map(|e| (e.start, e.end())).take_while(move |e| e.0 < end);
    let mut at = start;
    inside.chain([(end, end)]).filter_map(move |(from, to)| {
        let gap = at..from.min(end);
        at = at.max(to);
        (gap.start < gap.end).then_some(gap)
    })
}

/// Bytes of data read at once.
const PIECE: u64 = 1 << 20;

/// CS-09: compares the data that a leaf of the checksum tree covers, on every copy. Gives the bytes compared.
pub(super) fn judge_data(image: &Image<'_>, block: &Block, findings: &mut Findings) -> u64 {
    let mut bytes = 0;
    let (ctx, width) = (&image.ctx, image.ctx.csum.width());
    let per_piece = usize::try_from(PIECE / ctx.sectorsize).unwrap_or(1).max(1) * width;
    block.for_each_item(ctx, |_, item| {
        if item.key.key_type != KeyType::EXTENT_CSUM {
            return;
        }
        let mut at = item.key.offset;
        for csums in item.data.chunks(per_piece) {
            judge_piece(image, Logical(at), csums, &mut bytes, findings);
            at = at.saturating_add((csums.len() / width) as u64 * ctx.sectorsize);
        }
    });
    bytes
}

fn judge_piece(image: &Image<'_>, at: Logical, csums: &[u8], bytes: &mut u64, findings: &mut Findings) {
    let (sector, width) = (image.ctx.sectorsize, image.ctx.csum.width());
    let len = (csums.len() / width) as u64 * sector;
    let Ok(copies) = image.chunks.map(at, len) else {
        if len > sector {
            // The piece may lie across two chunks.
            for (i, csum) in csums.chunks_exact(width).enumerate() {
                // What wraps around is CS-05's.
                let Some(at) = at.0.checked_add(i as u64 * sector) else { return };
                judge_piece(image, Logical(at), csum, bytes, findings);
            }
        }
        return;
    };
    let Ok(size) = usize::try_from(len) else { return };
    let (mut data, mut sums) = (vec![0; size], Vec::with_capacity(csums.len()));
    for (mirror, stored) in copies.enumerate() {
        let place = |logical: u64, offset: u64| Place {
            mirror: Some(mirror),
            devid: Some(stored.devid),
            physical: stored.physical.checked_add(offset),
            ..Place::extent(logical)
        };
        if let Err(error) = image.device.read_at(&mut data, stored.physical) {
            findings.add("CS-09", place(at.0, 0), format!("cannot read {len} bytes of data: {error}"));
            continue;
        }
        *bytes += len;
        if mirror == 0 {
            image.progress.advance(len);
        }
        sums.clear();
        image.ctx.csum.append_sectors(&data, usize::try_from(sector).unwrap_or(4096), &mut sums);
        if sums == csums {
            continue;
        }
        for (i, (have, expect)) in sums.chunks_exact(width).zip(csums.chunks_exact(width)).enumerate() {
            if have != expect {
                let offset = i as u64 * sector;
                let reason = format!("data checksum mismatch, have 0x{} expect 0x{}", hex(have), hex(expect));
                findings.add("CS-09", place(at.0 + offset, offset), reason);
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
