//! The free space tree against the gaps that the extents leave (FS-04 to FS-10).

use btrfsimg_ondisk::{BlockContext, FreeSpaceInfo, Item, KeyType};
use zerocopy::FromBytes;

use super::extents::Group;
use super::finding::{Findings, Place};
use super::image::Block;
use super::usage::Usage;

/// An item of the tree; a bitmap is its free runs.
enum Entry {
    Info { start: u64, length: u64, count: u32, bitmaps: bool },
    Extent { start: u64, end: u64 },
    Bitmap { start: u64, end: u64, free: Vec<(u64, u64)> },
}

impl Entry {
    fn start(&self) -> u64 {
        match *self {
            Entry::Info { start, .. } | Entry::Extent { start, .. } | Entry::Bitmap { start, .. } => start,
        }
    }
}

/// The items of a run of leaves.
#[derive(Default)]
pub(super) struct Run {
    entries: Vec<Entry>,
}

impl Run {
    pub(super) fn leaf(&mut self, block: &Block, ctx: &BlockContext) {
        block.for_each_item(ctx, |_, item| self.entries.extend(parse(&item, ctx.sectorsize)));
    }
}

fn parse(item: &Item<'_>, sectorsize: u64) -> Option<Entry> {
    let (start, length) = (item.key.objectid, item.key.offset);
    let end = start.checked_add(length)?;
    Some(match item.key.key_type {
        KeyType::FREE_SPACE_INFO => {
            let info = FreeSpaceInfo::read_from_bytes(item.data).ok()?;
            Entry::Info { start, length, count: info.extent_count.get(), bitmaps: info.flags.get() & 1 != 0 }
        }
        KeyType::FREE_SPACE_EXTENT => Entry::Extent { start, end },
        KeyType::FREE_SPACE_BITMAP => {
            let mut free = Vec::new();
            for i in 0..length / sectorsize {
                let byte = usize::try_from(i / 8).ok().and_then(|b| item.data.get(b))?;
                if byte >> (i % 8) & 1 != 0 {
                    push_run(&mut free, start + i * sectorsize, start + (i + 1) * sectorsize);
                }
            }
            Entry::Bitmap { start, end, free }
        }
        _ => return None,
    })
}

fn push_run(runs: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match runs.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => runs.push((start, end)),
    }
}

/// Judges the tree against block groups (sorted) and extents.
pub(super) fn judge(
    runs: Vec<Run>,
    groups: &[Group],
    usage: &Usage,
    sectorsize: u64,
    findings: &mut Findings,
) {
    let entries: Vec<Entry> = runs.into_iter().flat_map(|r| r.entries).collect();
    let mut at = 0;
    for group in groups {
        let from = at;
        while entries.get(at).is_some_and(|e| e.start() < group.start) {
            at += 1;
        }
        stale(&entries[from..at], findings);
        let from = at;
        while entries.get(at).is_some_and(|e| e.start() < group.end()) {
            at += 1;
        }
        judge_group(&entries[from..at], group, usage, sectorsize, findings);
    }
    stale(&entries[at..], findings);
}

/// FS-10, once for each info with what lies in its range, and for each item in none.
fn stale(entries: &[Entry], findings: &mut Findings) {
    let mut named_to = 0;
    for entry in entries.iter().filter(|e| e.start() < u64::MAX) {
        if entry.start() >= named_to {
            let reason = "free space item that belongs to no block group";
            findings.add("FS-10", Place::extent(entry.start()), reason);
        }
        if let Entry::Info { start, length, .. } = entry {
            named_to = start.saturating_add(*length);
        }
    }
}

fn judge_group(entries: &[Entry], group: &Group, usage: &Usage, sectorsize: u64, findings: &mut Findings) {
    let place = || Place::extent(group.start);
    let Some((Entry::Info { start, length, count, bitmaps }, rest)) = entries.split_first() else {
        return findings.add("FS-04", place(), "block group has no free space info");
    };
    if (*start, *length) != (group.start, group.length) {
        let reason = format!(
            "free space info differs from its block group, have length {length} expect {}",
            group.length
        );
        return findings.add("FS-04", place(), reason);
    }
    let mut free = Vec::new();
    let mut tiles_to = group.start;
    for entry in rest {
        match entry {
            Entry::Info { .. } => {
                findings.add("FS-04", place(), "a second free space info in the block group")
            }
            Entry::Extent { start, end } if !bitmaps => {
                if free.last().is_some_and(|r: &(u64, u64)| r.1 == *start) {
                    findings.add("FS-07", Place::extent(*start), "free extents touch");
                }
                push_run(&mut free, *start, *end);
            }
            Entry::Bitmap { start, end, free: runs } if *bitmaps => {
                let full = 256 * 8 * sectorsize;
                if *start != tiles_to || *end != start.saturating_add(full).min(group.end()) {
                    findings.add(
                        "FS-09",
                        Place::extent(*start),
                        format!("bitmap of {start} to {end}, expect from {tiles_to}"),
                    );
                }
                tiles_to = *end;
                runs.iter().for_each(|r| push_run(&mut free, r.0, r.1));
            }
            _ => findings.add(
                "FS-05",
                Place::extent(entry.start()),
                "free space item of the other form than its info says",
            ),
        }
    }
    if *bitmaps && tiles_to != group.end() {
        findings.add("FS-09", place(), format!("bitmaps end at {tiles_to}, expect {}", group.end()));
    }
    compare(&free, *count, group, usage, findings);
}

/// FS-06 and FS-08: the free runs are the gaps between extents.
fn compare(free: &[(u64, u64)], count: u32, group: &Group, usage: &Usage, findings: &mut Findings) {
    let mut gaps = Gaps::new(group, usage);
    let mut runs = 0u64;
    for run in free {
        runs += 1;
        let gap = gaps.next();
        if gap != Some(*run) {
            let expect = gap.map_or("none".to_owned(), |g| format!("{} to {}", g.0, g.1));
            let reason = format!("free space of {} to {}, expect {expect}", run.0, run.1);
            return findings.add("FS-08", Place::extent(run.0), reason);
        }
    }
    if let Some(gap) = gaps.next() {
        let reason = format!("free space of {} to {} is not in the tree", gap.0, gap.1);
        return findings.add("FS-08", Place::extent(gap.0), reason);
    }
    if u64::from(count) != runs {
        let reason = format!("free space info counts {count} extents, expect {runs}");
        findings.add("FS-06", Place::extent(group.start), reason);
    }
}

/// The gaps that extents leave in a block group.
struct Gaps<'a> {
    extents: std::slice::Iter<'a, super::usage::Extent>,
    at: u64,
    end: u64,
}

impl<'a> Gaps<'a> {
    fn new(group: &Group, usage: &'a Usage) -> Gaps<'a> {
        let first = usage.extents.partition_point(|e| e.end() <= group.start);
        Gaps { extents: usage.extents[first..].iter(), at: group.start, end: group.end() }
    }
}

impl Iterator for Gaps<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        while self.at < self.end {
            let gap_start = self.at;
            let Some(extent) = self.extents.as_slice().first().filter(|e| e.start < self.end) else {
                self.at = self.end;
                return Some((gap_start, self.end));
            };
            self.extents.next();
            self.at = extent.end().max(self.at);
            if extent.start > gap_start {
                return Some((gap_start, extent.start));
            }
        }
        None
    }
}
