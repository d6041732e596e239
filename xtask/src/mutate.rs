//! Random damage: whatever an image holds, reading and verifying it ends, in time, in bounded memory, without a panic;
//! and what verify calls sound, the kernel reads.

mod exercise;
mod mutation;
mod specimen;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use btrfsimg_testkit::{Mount, Oracle};
use exercise::Verdict;
use mutation::Mutant;
use specimen::Specimen;

/// Options of `cargo xtask mutate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Images to damage and read
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// The first seed; each image has its own, so that one of them can be made again
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// At most so many images that verify calls sound are mounted, one for each kind of change
    #[arg(long, default_value_t = 3000)]
    mounts: usize,
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Longest that one image may take, by far.
const LIMIT: Duration = Duration::from_secs(10);
/// Most memory that all of it may take.
const MEMORY_LIMIT: u64 = 1 << 30;

pub(crate) fn run(options: &Options) -> Result<()> {
    let start = Instant::now();
    let specimens = specimen::all()?;
    let tally = damage(&specimens, options)?;
    println!("{} images damaged and read in {:.0} s", options.count, start.elapsed().as_secs_f64());
    println!("  corrupt {}, unsupported or no btrfs {}, sound {}", tally.corrupt, tally.refused, tally.sound);
    println!("  slowest {} ms (seed {})", tally.slowest.0, tally.slowest.1);
    println!("  peak memory {} MiB", peak_memory()? >> 20);
    let mounted = mount_sound(&specimens, &tally, options.mounts)?;
    println!(
        "  {} kinds of sound change, {mounted} of them mounted and read by the kernel",
        tally.kinds.len()
    );
    Ok(())
}

/// What came of all images.
#[derive(Debug, Default)]
struct Tally {
    corrupt: u64,
    refused: u64,
    sound: u64,
    /// Milliseconds, and the seed.
    slowest: (u128, u64),
    /// A seed and the verdict of each kind of change that leaves the image sound.
    kinds: BTreeMap<String, (u64, Verdict)>,
}

/// Damages and reads `options.count` images.
fn damage(specimens: &[Specimen], options: &Options) -> Result<Tally> {
    let threads = options.threads.max(1);
    let tally = Mutex::new(Tally::default());
    let next = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    // What each thread is at: when it began, and its seed.
    let current: Vec<Mutex<Option<(Instant, u64)>>> = (0..threads).map(|_| Mutex::new(None)).collect();
    let failed = Mutex::new(None);
    std::panic::set_hook(Box::new(|_| ()));
    std::thread::scope(|scope| {
        let (tally, next, failed) = (&tally, &next, &failed);
        let workers: Vec<_> = current
            .iter()
            .map(|at| {
                scope.spawn(move || {
                    while let Some(seed) = take(next, options) {
                        *lock(at) = Some((Instant::now(), seed));
                        if let Err(error) = one(specimens, seed, tally) {
                            lock(failed).get_or_insert(error);
                            next.store(options.count, Ordering::Relaxed);
                        }
                    }
                    *lock(at) = None;
                })
            })
            .collect();
        scope.spawn(|| watch(&current, &done));
        workers.into_iter().for_each(|w| drop(w.join()));
        done.store(true, Ordering::Relaxed);
    });
    drop(std::panic::take_hook());
    if let Some(error) = lock(&failed).take() {
        return Err(error);
    }
    ensure!(peak_memory()? < MEMORY_LIMIT, "{} MiB of memory taken", peak_memory()? >> 20);
    Ok(tally.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn take(next: &AtomicU64, options: &Options) -> Option<u64> {
    let n = next.fetch_add(1, Ordering::Relaxed);
    (n < options.count).then(|| options.seed + n)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process when a thread hangs: it cannot be stopped otherwise.
fn watch(current: &[Mutex<Option<(Instant, u64)>>], done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        for at in current {
            if let Some((start, seed)) = *lock(at)
                && start.elapsed() > LIMIT
            {
                eprintln!("mutate: seed {seed} takes more than {} s", LIMIT.as_secs());
                std::process::exit(1);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Damages one image and reads it.
fn one(specimens: &[Specimen], seed: u64, tally: &Mutex<Tally>) -> Result<()> {
    let start = Instant::now();
    let mutant = Mutant::make(specimens, seed);
    let device = mutant.device(specimens)?;
    let read = std::panic::catch_unwind(AssertUnwindSafe(|| exercise::read_everything(&device)));
    let Ok(verdict) = read else { bail!("seed {seed} panics ({})", mutant.what) };
    let took = (start.elapsed().as_millis(), seed);
    let mut tally = lock(tally);
    tally.slowest = tally.slowest.max(took);
    match verdict {
        Verdict::Refused => tally.refused += 1,
        Verdict::Corrupt => tally.corrupt += 1,
        Verdict::Sound | Verdict::SoundWithLog => {
            tally.sound += 1;
            tally.kinds.entry(mutant.what).or_insert((seed, verdict));
        }
    }
    Ok(())
}

/// Has the kernel read one image of each kind of sound change.
fn mount_sound(specimens: &[Specimen], tally: &Tally, most: usize) -> Result<usize> {
    let oracle = Oracle::new();
    if !oracle.has_kernel() {
        return Ok(0);
    }
    let dir = tempfile::tempdir()?;
    let mut wrong = Vec::new();
    // Evenly over all kinds where there are more.
    let step = tally.kinds.len().div_ceil(most.max(1)).max(1);
    let chosen: Vec<_> = tally.kinds.iter().step_by(step).collect();
    for (what, (seed, verdict)) in &chosen {
        let image = dir.path().join("sound.img");
        Mutant::make(specimens, *seed).write(specimens, &image)?;
        if let Err(error) = kernel_reads(&image, *verdict) {
            wrong.push(format!("seed {seed} ({what}): {error:#}"));
        }
        std::fs::remove_file(&image)?;
    }
    ensure!(wrong.is_empty(), "verify calls sound what the kernel refuses:\n{}", wrong.join("\n"));
    Ok(chosen.len())
}

/// The kernel mounts the image and reads all of it.
fn kernel_reads(image: &Path, verdict: Verdict) -> Result<()> {
    let mount = Mount::open(image, if verdict == Verdict::SoundWithLog { "rw" } else { "ro" })?;
    read_tree(mount.path())
}

/// Reads everything below `top`, each directory once, as far as it may: an owner of 2^32-1 is nobody's, and then not
/// even root may read what the mode does not let all read.
fn read_tree(top: &Path) -> Result<()> {
    let mut met = HashSet::new();
    let mut pending = vec![top.to_owned()];
    while let Some(dir) = pending.pop() {
        let at = || dir.display().to_string();
        let Some(meta) = permitted(std::fs::metadata(&dir)).with_context(at)? else { continue };
        if !met.insert((meta.dev(), meta.ino())) {
            continue;
        }
        for entry in permitted(std::fs::read_dir(&dir)).with_context(at)?.into_iter().flatten() {
            let path = entry?.path();
            let at = || path.display().to_string();
            let Some(meta) = permitted(std::fs::symlink_metadata(&path)).with_context(at)? else { continue };
            if meta.is_symlink() {
                std::fs::read_link(&path).with_context(at)?;
            } else if meta.is_file() {
                let Some(file) = permitted(File::open(&path)).with_context(at)? else { continue };
                // A size may be anything; the data are at the start.
                file.take(8 << 20).read_to_end(&mut Vec::new()).with_context(at)?;
            } else if meta.is_dir() {
                pending.push(path);
            }
        }
    }
    Ok(())
}

/// Nothing where permission is refused.
fn permitted<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Ok(None),
        result => result.map(Some),
    }
}

/// The most memory that this process has had, in bytes.
fn peak_memory() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib << 10)
}

/// Writes `bytes` to a file, zeros as holes.
fn write_sparse(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(bytes.len() as u64)?;
    for (i, piece) in bytes.chunks(65536).enumerate() {
        if piece.iter().any(|&b| b != 0) {
            file.write_all_at(piece, i as u64 * 65536)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_images_end_and_sound_ones_mount() {
        let specimens = specimen::all().unwrap();
        let options = Options { count: 20_000, seed: 1 << 32, mounts: 60, threads: 2 };
        let tally = damage(&specimens, &options).unwrap();
        // The damage is neither always nor never seen.
        assert!(tally.corrupt > 10_000 && tally.sound > 200, "{tally:?}");
        mount_sound(&specimens, &tally, options.mounts).unwrap();
    }
}
