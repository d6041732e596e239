//! Every cut and every failure of a workload, each judged.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use btrfsimg_fs::Error;
use btrfsimg_fs::device::{Device, MemDevice, OverlayDevice};
use btrfsimg_fs::txn::Volume;
use btrfsimg_fs::verify;
use btrfsimg_ondisk::{Physical, SUPERBLOCK_OFFSETS};

use super::workload::{Workload, now};
use super::{Attempt, Contents, CrashDevice, Event, Failing, FailingDevice, Fate, StoppingDevice, contents};
use crate::command;
use crate::oracle::{JudgeOptions, Oracle};
use crate::rng::Rng;

/// Bytes of a disk's unit that never tears.
const UNIT: u64 = 4096;
/// Bytes of a unit of the worst of disks.
const SMALL_UNIT: u64 = 512;
/// A copy of the superblock that is one commit behind, until the commit's last step.
const LAGGING_COPY: &str = "SB-23";
/// What may be said of a torn superblock.
const ANY_SUPERBLOCK: &str = "SB-";
/// Syncs of one commit from its superblock on.
const SYNCS_OF_SUPERBLOCK: usize = 2;

/// Uses of the device by a commit that may not stop any more: superblock, its copies, and syncs; and one before.
const USES_OF_COMMIT: usize = 7;

/// How closely a workload is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Where all that is random comes from.
    pub seed: u64,
    /// At each cut, beside nothing and everything: images with a random part of the pending events, with events
    /// torn at 4096 bytes, and with events torn at 512 bytes; so many of each.
    pub random: usize,
    /// The random ones at each cut that is a multiple of this.
    pub random_every: usize,
    /// Images that the kernel and btrfs-progs judge, where they are there.
    pub samples: usize,
    /// Of a workload with more places than this, so many evenly, and the last of each window.
    pub most_cuts: usize,
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    /// Places at which the power was cut.
    pub cuts: usize,
    /// Places that there are.
    pub places: usize,
    /// Images that were looked at.
    pub images: usize,
    /// Those of them that were the state after.
    pub after: usize,
    /// Those that the kernel judged.
    pub samples: usize,
}

/// Cuts the power at every place of the workload, or at as many as the plan says.
///
/// # Errors
/// The first image that is not whole, with how it came about.
pub fn cut_everywhere(workload: &Workload, plan: &Plan) -> Result<Tried> {
    let device = Arc::new(CrashDevice::new(workload.start.clone()));
    run(workload, device.clone()).with_context(|| workload.name)?;
    let recording = device.recording();
    let mut states = Vec::new();
    recording.windows(|window| {
        states.push(contents(window.image(0, Fate::Dropped, &mut Rng::new(0)))?);
        Ok::<_, anyhow::Error>(())
    })?;
    states.push(contents(device)?);
    ensure!(states.iter().any(|state| *state != states[0]), "{}: changes nothing", workload.name);
    let events = recording.events().len();
    let (mut tried, mut rng) = (Tried::default(), Rng::new(plan.seed));
    let cut_every = events.div_ceil(plan.most_cuts.max(1)).max(1);
    let sample_every = (events / cut_every / plan.samples.max(1)).max(1);
    recording.windows(|window| {
        let (before, after) = (&states[window.index], &states[window.index + 1]);
        for cut in window.cuts() {
            tried.places += 1;
            if !tried.places.is_multiple_of(cut_every) && cut != window.pending().len() {
                continue;
            }
            let mut fates = vec![Fate::Dropped, Fate::Kept];
            if cut % plan.random_every == 0 || cut == window.pending().len() {
                let random = [Fate::Subset, Fate::Torn(UNIT), Fate::Torn(SMALL_UNIT)];
                fates.extend(random.iter().cycle().take(random.len() * plan.random));
            }
            let sampled = fates[rng.index(fates.len())];
            let kernel = plan.samples > 0 && rng.index(sample_every) == 0;
            for fate in fates {
                let image = window.image(cut, fate, &mut rng);
                let torn = fate == Fate::Torn(SMALL_UNIT) && writes_superblock(&window.pending()[..cut]);
                let judged =
                    judge(&image, &[before, after], if torn { ANY_SUPERBLOCK } else { LAGGING_COPY });
                let at = || format!("{}: window {}, cut {cut}, {fate:?}", workload.name, window.index);
                tried.after += usize::from(judged.with_context(at)? == 1 && before != after);
                tried.images += 1;
                if kernel && fate == sampled {
                    tried.samples += usize::from(ask_kernel(&*image, workload.room, torn).with_context(at)?);
                }
            }
            tried.cuts += 1;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(tried)
}

/// Lets every write, change of length and sync of the workload fail, in each way. Says how many those were.
///
/// # Errors
/// The first failure that does harm, or that nobody hears of.
pub fn fail_everywhere(workload: &Workload, stride: usize) -> Result<usize> {
    let start = Arc::new(MemDevice::new(workload.start.clone()));
    let (states, changes) = states_of(workload)?;
    // The last ones, from the superblock on, are the ones that matter most: none of them is left out.
    let few = changes.saturating_sub(12);
    for nth in (0..few).step_by(stride).chain(few..changes) {
        for (from_then_on, short) in [(false, false), (true, false), (false, true)] {
            let kind = if from_then_on { ErrorKind::StorageFull } else { ErrorKind::Other };
            let failing = Failing { nth, from_then_on, short, kind };
            let at = || format!("{}: {failing:?} of {changes}", workload.name);
            fail_once(workload, &start, &states, failing).with_context(at)?;
        }
    }
    Ok(changes)
}

/// Every state that the workload commits, the one before it first, and how many changes of the device it makes.
fn states_of(workload: &Workload) -> Result<(Vec<Contents>, usize)> {
    let device = Arc::new(CrashDevice::without_holes(workload.start.clone()));
    run(workload, device.clone())?;
    let mut states = Vec::new();
    device.recording().windows(|window| {
        states.push(contents(window.image(0, Fate::Dropped, &mut Rng::new(0)))?);
        Ok::<_, anyhow::Error>(())
    })?;
    states.push(contents(device.clone())?);
    Ok((states, device.recording().events().len()))
}

/// Asks the workload to stop at `places` of the reads, writes and syncs that it makes, the last of them all. It must end
/// there, and leave a state that was committed. Says in how many cases it did not come to its end.
///
/// # Errors
/// Where it goes on, or leaves something else.
pub fn stop_everywhere(workload: &Workload, places: usize) -> Result<usize> {
    let start = Arc::new(MemDevice::new(workload.start.clone()));
    let (states, _) = states_of(workload)?;
    let allowed: Vec<&Contents> = states.iter().collect();
    let stop_at = |nth: usize| -> Result<(bool, usize)> {
        let image = Arc::new(OverlayDevice::new(start.clone())?);
        let device = Arc::new(StoppingDevice::new(image.clone(), nth));
        let mut volume = Volume::open(device.clone(), workload.options)?;
        volume.begin(now())?.stop_on(device.flag());
        let result = (workload.change)(&mut volume);
        ensure!(matches!(result, Ok(()) | Err(Error::Interrupted)), "{result:?}");
        drop(volume);
        judge(&image, &allowed, "nothing")?;
        Ok((result.is_err(), device.uses()))
    };
    let (_, all) = stop_at(usize::MAX)?;
    let mut stopped = 0;
    for place in 0..places {
        let nth = all * place / places;
        let at = || format!("{}: asked to stop at {nth} of {all}", workload.name);
        let (interrupted, uses) = stop_at(nth).with_context(at)?;
        ensure!(uses <= nth + USES_OF_COMMIT, "{}: goes on to {uses}", at());
        stopped += usize::from(interrupted);
    }
    Ok(stopped)
}

fn fail_once(
    workload: &Workload,
    start: &Arc<MemDevice>,
    states: &[Contents],
    failing: Failing,
) -> Result<()> {
    let image = Arc::new(OverlayDevice::new(start.clone())?);
    let device = Arc::new(FailingDevice::new(image.clone(), failing));
    let mut volume = Volume::open(device.clone(), workload.options)?;
    let result = (workload.change)(&mut volume);
    ensure!(result.is_err(), "nobody heard of it");
    let attempts = device.attempts();
    let superblock = Attempt::Write(SUPERBLOCK_OFFSETS[0]);
    let begun = attempts.iter().rposition(|(attempt, _)| *attempt == superblock);
    let syncs = |from: usize| attempts[from..].iter().filter(|a| **a == (Attempt::Sync, true)).count();
    let poisoned = begun.is_some_and(|at| syncs(at) < SYNCS_OF_SUPERBLOCK);
    let refused = matches!(volume.begin(now()), Err(Error::Poisoned));
    ensure!(refused == poisoned, "poisoned: {refused}, superblock begun: {poisoned}");
    let torn = failing.short
        && matches!(attempts[failing.nth].0, Attempt::Write(at) if SUPERBLOCK_OFFSETS.contains(&at));
    let allowed: Vec<&Contents> = states.iter().collect();
    judge(&image, &allowed, if torn { ANY_SUPERBLOCK } else { LAGGING_COPY })?;
    if poisoned || failing.from_then_on {
        return Ok(());
    }
    (workload.change)(&mut volume).context("a second try with the same handle")?;
    judge(&image, &allowed[states.len() - 1..], "nothing")
        .context("after a second try with the same handle")?;
    Ok(())
}

fn run(workload: &Workload, device: Arc<dyn Device>) -> Result<()> {
    let mut volume = Volume::open(device, workload.options)?;
    (workload.change)(&mut volume)?;
    Ok(())
}

fn writes_superblock(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Write(at, _) if SUPERBLOCK_OFFSETS.contains(at)))
}

/// Which of the allowed states the image is, whole. Findings whose rules begin with `tolerated` do not count.
fn judge(image: &Arc<OverlayDevice>, allowed: &[&Contents], tolerated: &str) -> Result<usize> {
    let has_copy = image.len()? > SUPERBLOCK_OFFSETS[1];
    let found = match contents(image.clone()) {
        Ok(found) => found,
        // The only superblock is torn: no file system outlives that on such a disk.
        Err(_) if tolerated == ANY_SUPERBLOCK && !has_copy => return Ok(0),
        Err(error) => return Err(error.context("the image does not read")),
    };
    let Some(state) = allowed.iter().position(|state| **state == found) else {
        let unlike = |state: &&Contents| state.difference(&found).unwrap_or_default();
        bail!("neither state: {:?}", allowed.iter().map(unlike).collect::<Vec<_>>());
    };
    let mut findings = Vec::new();
    let options = verify::Options::new().with_data(true).with_threads(1);
    verify::verify(&**image, &options, &mut |finding| {
        let rule = finding.rule.to_string();
        if !rule.starts_with(tolerated) {
            findings.push(format!("{rule} {finding}"));
        }
    })?;
    ensure!(findings.is_empty(), "verify: {findings:?}");
    Ok(state)
}

/// Whether the kernel and btrfs-progs are there and find nothing.
fn ask_kernel(image: &dyn Device, room: usize, torn_superblock: bool) -> Result<bool> {
    let oracle = Oracle::new();
    if !oracle.has_kernel()
        || !oracle.has_progs()
        || (torn_superblock && image.len()? <= SUPERBLOCK_OFFSETS[1])
    {
        return Ok(false);
    }
    let file = tempfile::Builder::new().prefix("btrfsimg-cut-").suffix(".img").tempfile()?;
    save(image, file.path())?;
    if torn_superblock {
        command::ask("btrfs", ["rescue", "super-recover", "-y", &file.path().to_string_lossy()])?;
    }
    let options = JudgeOptions { write_bytes: room, ..JudgeOptions::default() };
    let verdict = oracle.judge_with(file.path(), &options)?.of_cut_off_writer();
    ensure!(verdict.is_ok(), "{verdict}");
    Ok(true)
}

/// Writes a device to a sparse file.
///
/// # Errors
/// As reading and writing.
pub fn save(image: &dyn Device, path: &Path) -> io::Result<()> {
    const PIECE: usize = 64 << 10;
    let file = File::create(path)?;
    let len = image.len()?;
    file.set_len(len)?;
    let (mut at, mut piece) = (0, vec![0; PIECE]);
    while at < len {
        let here = usize::try_from(len - at).unwrap_or(PIECE).min(PIECE);
        image.read_at(&mut piece[..here], Physical(at))?;
        if piece[..here].iter().any(|byte| *byte != 0) {
            file.write_all_at(&piece[..here], at)?;
        }
        at += here as u64;
    }
    Ok(())
}
