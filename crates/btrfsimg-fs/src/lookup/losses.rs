//! What is lost of a broken file, and its segments without it.

use std::ops::Range;

use btrfsimg_ondisk::{FileExtent, FileExtentKind, KeyType};

use super::segments::{fault, segment};
use super::{Items, SegmentKind, Segments};
use crate::error::Error;

/// Bytes of a file that are not what was written, as far as can be told.
#[derive(Debug)]
pub struct Loss {
    /// Which, by offset in the file.
    pub range: Range<u64>,
    /// Why.
    pub error: Error,
    /// They are what is on disk, though a checksum says otherwise or there is none. Else they are zeros.
    pub kept: bool,
}

impl Loss {
    fn zeros(range: Range<u64>, error: Error) -> Loss {
        Loss { range, error, kept: false }
    }
}

/// The losses of a file, and what tells of extents that left no trace.
#[derive(Debug)]
pub struct Losses {
    found: Vec<Loss>,
    /// What its extents are to hold, in bytes, where that is known.
    nbytes: Option<u64>,
    /// A hole has an item of its own, so that where no item is, one is lost: images without NO_HOLES.
    holes_have_items: bool,
}

impl Losses {
    /// Of a file whose inode counts `nbytes`, if that is known.
    pub fn new(nbytes: Option<u64>, holes_have_items: bool) -> Losses {
        Losses { found: Vec::new(), nbytes, holes_have_items }
    }

    pub(super) fn take(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.found)
    }

    fn add(&mut self, range: Range<u64>, error: Error) {
        self.found.push(Loss::zeros(range, error));
    }
}

impl Segments {
    /// All segments at once, with holes where items cannot be read.
    pub(super) fn fill_from_broken(&mut self, items: &impl Items, losses: &mut Losses) {
        let (place, size) = (self.place, self.size);
        let sectorsize = items.context().sectorsize;
        let (mut open_fault, mut holes, mut nbytes) = (None, Holes::default(), 0_u64);
        let (first, last) = place.keys(KeyType::EXTENT_DATA);
        let walked = items.walk(place.tree, &first, &last, &mut |item| {
            let found = item.and_then(|item| {
                let extent = FileExtent::parse(item.data);
                let start = item.key.offset;
                Ok((start, extent.map_err(|v| fault(place, start, v.rule.0, v.reason.to_string()))?))
            });
            let (start, extent) = match found {
                Ok(found) => found,
                Err(e) => {
                    open_fault.get_or_insert(e);
                    return Ok(true);
                }
            };
            nbytes = nbytes.saturating_add(extent.nbytes());
            let from = start.max(self.next);
            let end = start.saturating_add(extent.covers(sectorsize)).min(size);
            if from >= end {
                return Ok(true);
            }
            if from > self.next {
                self.gap(from, open_fault.take(), &mut holes, losses);
            }
            match segment(place, start, from..end, &extent) {
                Ok(found) => {
                    if matches!(&extent.kind, FileExtentKind::Regular(r) if r.disk_bytenr.get() == 0) {
                        holes.add(from..end);
                    }
                    self.push(found.kind, end);
                }
                Err(e) => {
                    losses.add(from..end, e);
                    self.push(SegmentKind::Hole, end);
                }
            }
            Ok(true)
        });
        let fault = open_fault.or(walked.err());
        if self.next < size {
            self.gap(size, fault, &mut holes, losses);
        }
        // Extents that are gone without a trace, somewhere among the holes.
        let missing = losses.nbytes.map_or(0, |counted| counted.saturating_sub(nbytes));
        if let Some(range) = holes.0.filter(|_| missing > 0 && losses.found.is_empty()) {
            let reason = format!("{missing} bytes of extents are missing among the holes there");
            losses.add(range.clone(), self::fault(place, range.start, "LK-05", reason));
        }
    }

    /// No item up to `end`: a hole, if none was lost.
    fn gap(&mut self, end: u64, fault: Option<Error>, holes: &mut Holes, losses: &mut Losses) {
        let range = self.next..end;
        match fault {
            Some(e) => losses.add(range, e),
            None if losses.holes_have_items => {
                let reason = "no extent, and no hole either".to_owned();
                losses.add(range.clone(), self::fault(self.place, range.start, "FE-23", reason));
            }
            None => holes.add(range),
        }
        self.push(SegmentKind::Hole, end);
    }
}

/// From the first hole to the end of the last one.
#[derive(Default)]
struct Holes(Option<Range<u64>>);

impl Holes {
    fn add(&mut self, range: Range<u64>) {
        let start = self.0.as_ref().map_or(range.start, |r| r.start);
        self.0 = Some(start..range.end);
    }
}
