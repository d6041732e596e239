//! The device that records, and the images that a power cut may leave of it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use btrfsimg_fs::device::{Device, MemDevice, OverlayDevice};
use btrfsimg_ondisk::Physical;

use crate::rng::Rng;

/// What was done to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes written at an offset.
    Write(u64, Vec<u8>),
    /// The length set.
    SetLen(u64),
    /// All before is durable.
    Sync,
}

/// A device in memory that records what is done to it. Reads see all writes at once, as through a page cache.
pub struct CrashDevice {
    start: Arc<MemDevice>,
    now: OverlayDevice,
    events: Mutex<Vec<Event>>,
    is_sparse: bool,
}

impl CrashDevice {
    /// A sparse device that holds `start`, durably.
    pub fn new(start: Vec<u8>) -> CrashDevice {
        let start = Arc::new(MemDevice::new(start));
        let now = OverlayDevice::new(start.clone()).expect("memory has a length");
        CrashDevice { start, now, events: Mutex::default(), is_sparse: true }
    }

    /// One that is not sparse, as a [`FailingDevice`](super::FailingDevice) is: nobody gives space back to it.
    pub fn without_holes(start: Vec<u8>) -> CrashDevice {
        CrashDevice { is_sparse: false, ..CrashDevice::new(start) }
    }

    /// All that was done so far.
    pub fn recording(&self) -> Recording {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Recording { start: self.start.contents(), events }
    }

    fn note(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

impl Device for CrashDevice {
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()> {
        self.now.read_at(buf, at)
    }

    fn write_at(&self, buf: &[u8], at: Physical) -> io::Result<()> {
        self.now.write_at(buf, at)?;
        self.note(Event::Write(at.0, buf.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.note(Event::Sync);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.now.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.now.set_len(len)?;
        self.note(Event::SetLen(len));
        Ok(())
    }

    /// A write of zeros over what is not zero, that may be lost, torn and reordered as any.
    fn punch(&self, at: Physical, len: u64) -> io::Result<()> {
        let end = at.0.checked_add(len).filter(|end| self.len().is_ok_and(|len| *end <= len));
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        let (mut here, mut buf) = (at.0, [0; 4096]);
        while here < end {
            let next = end.min((here / 4096 + 1) * 4096);
            let bytes = usize::try_from(next - here).map_err(|_| io::ErrorKind::InvalidInput)?;
            self.read_at(&mut buf[..bytes], Physical(here))?;
            if buf[..bytes].iter().any(|byte| *byte != 0) {
                self.write_at(&vec![0; bytes], Physical(here))?;
            }
            here = next;
        }
        Ok(())
    }

    fn is_sparse(&self) -> bool {
        self.is_sparse
    }
}

/// What a device held, and what was done to it.
#[derive(Clone)]
pub struct Recording {
    start: Vec<u8>,
    events: Vec<Event>,
}

impl Recording {
    /// The bytes before the first event.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// What was done, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Calls `each` with every window, in order: what is between two syncs, and what follows the last.
    ///
    /// # Errors
    /// What `each` returns.
    pub fn windows<E>(&self, mut each: impl FnMut(&Window<'_>) -> Result<(), E>) -> Result<(), E> {
        let durable = Arc::new(MemDevice::new(self.start.clone()));
        for (index, pending) in self.events.split(|e| *e == Event::Sync).enumerate() {
            each(&Window { index, durable: durable.clone(), pending })?;
            pending.iter().for_each(|event| event.apply(&*durable));
        }
        Ok(())
    }
}

/// The events between two syncs.
pub struct Window<'r> {
    /// How many syncs came before.
    pub index: usize,
    /// What was durable at its start.
    durable: Arc<MemDevice>,
    pending: &'r [Event],
}

/// What becomes of the pending events that came before a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// None has reached the medium.
    Dropped,
    /// All have.
    Kept,
    /// Each has or has not, in any order.
    Subset,
    /// Each aligned unit of this many bytes of each has or has not, in any order.
    Torn(u64),
}

impl Window<'_> {
    /// The cuts: before the first event, and behind each.
    pub fn cuts(&self) -> std::ops::RangeInclusive<usize> {
        0..=self.pending.len()
    }

    /// What is pending.
    pub fn pending(&self) -> &[Event] {
        self.pending
    }

    /// What the power cut behind the first `cut` events leaves.
    pub fn image(&self, cut: usize, fate: Fate, rng: &mut Rng) -> Arc<OverlayDevice> {
        let image = OverlayDevice::new(self.durable.clone()).expect("memory has a length");
        for event in survivors(&self.pending[..cut], fate, rng) {
            event.apply(&image);
        }
        Arc::new(image)
    }
}

/// The events that reach the medium, in the order in which they do.
fn survivors(pending: &[Event], fate: Fate, rng: &mut Rng) -> Vec<Event> {
    let mut kept: Vec<Event> = match fate {
        Fate::Dropped => return Vec::new(),
        Fate::Kept => return pending.to_vec(),
        Fate::Subset => pending.to_vec(),
        Fate::Torn(unit) => pending.iter().flat_map(|event| event.torn(unit)).collect(),
    };
    kept.retain(|_| rng.index(2) == 0);
    for last in (1..kept.len()).rev() {
        kept.swap(last, rng.index(last + 1));
    }
    kept
}

impl Event {
    fn apply(&self, device: &impl Device) {
        match self {
            Event::Write(at, bytes) => device.write_at(bytes, Physical(*at)),
            Event::SetLen(len) => device.set_len(*len),
            Event::Sync => Ok(()),
        }
        .expect("memory takes all");
    }

    /// A write cut at the multiples of `unit`.
    fn torn(&self, unit: u64) -> Vec<Event> {
        let Event::Write(at, bytes) = self else { return vec![self.clone()] };
        let (mut pieces, mut done) = (Vec::new(), 0);
        while done < bytes.len() {
            let here = at + done as u64;
            let room = usize::try_from(unit - here % unit).unwrap_or(usize::MAX);
            let end = bytes.len().min(done + room);
            pieces.push(Event::Write(here, bytes[done..end].to_vec()));
            done = end;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(device: &OverlayDevice) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(device.len().unwrap()).unwrap()];
        device.read_at(&mut bytes, Physical(0)).unwrap();
        bytes
    }

    /// Two writes, a sync, two writes over one another and a new length.
    fn recorded() -> Recording {
        let device = CrashDevice::new(vec![0; 4096]);
        device.write_at(&[1; 1024], Physical(0)).unwrap();
        device.write_at(&[2; 1024], Physical(1024)).unwrap();
        device.sync().unwrap();
        device.write_at(&[3; 2048], Physical(512)).unwrap();
        device.write_at(&[4; 512], Physical(1024)).unwrap();
        device.set_len(8192).unwrap();
        device.recording()
    }

    #[test]
    fn what_was_synced_stays_and_what_was_not_may_go() {
        let mut seen = std::collections::BTreeSet::new();
        recorded()
            .windows(|window| {
                for cut in window.cuts() {
                    let image = |fate, seed| bytes_of(&window.image(cut, fate, &mut Rng::new(seed)));
                    let dropped = image(Fate::Dropped, 0);
                    assert_eq!(
                        dropped[..2048],
                        [vec![window_byte(window, 1); 1024], vec![window_byte(window, 2); 1024]].concat()
                    );
                    for seed in 0..200 {
                        for fate in [Fate::Subset, Fate::Torn(512)] {
                            let bytes = image(fate, seed);
                            assert_eq!(bytes, image(fate, seed), "not the same from the same seed");
                            if window.index == 1 && cut == 3 {
                                seen.insert((bytes.len(), bytes[512], bytes[1024], bytes[2048]));
                            }
                        }
                    }
                }
                Ok::<(), ()>(())
            })
            .unwrap();
        // Length × first write's pieces × either write on top, or none: all happen.
        for len in [4096, 8192] {
            for (first, middle, last) in [(1, 2, 0), (3, 3, 3), (3, 4, 3), (1, 4, 0), (3, 2, 0), (1, 3, 3)] {
                assert!(
                    seen.contains(&(len, first, middle, last)),
                    "{len} {first} {middle} {last}: {seen:?}"
                );
            }
        }
    }

    fn window_byte(window: &Window<'_>, byte: u8) -> u8 {
        if window.index == 0 { 0 } else { byte }
    }
}
