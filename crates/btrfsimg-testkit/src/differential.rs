//! The same operations by the kernel on a mount and by the library on an image: are the trees equal?
//!
//! A [`Case`] is an image and phases of operations. The *reference* image goes through all phases by the kernel, the
//! *trial* image through each by whom the phase names. Whatever the phase, each operation must succeed or fail in
//! both, with the same class of error; at the end of each phase both images are mounted by the kernel and compared by
//! contents and metadata ([`compare`]), and the trial image must satisfy `btrfs check --check-data-csum` and
//! `btrfsimg verify --data`. In the end the kernel mounts it once more, scrubs it and goes on writing.
//!
//! All is drawn from a seed. A case that fails is made shorter, one operation after the other, as long as it fails.

pub mod compare;
mod generate;
mod kernel;
mod library;
mod op;
mod unloaded;

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use btrfsimg_compress::CompressionSpec;
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::mkfs::Features;
use btrfsimg_fs::verify;
use btrfsimg_fs::write::encode::CompressionPolicy;
use tempfile::TempDir;

pub use generate::Names;
pub use op::{Op, Path as OpPath, Pattern};

use crate::crash::{trial, workload};
use crate::mount::Mount;
use crate::oracle::{JudgeOptions, Oracle};
use crate::rng::Rng;
use crate::{btrfs_progs, sparse};

/// Bytes of the images.
const SIZE: u64 = 320 << 20;

/// Who does a phase on the trial image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Actor {
    /// The kernel, on a loop mount.
    Kernel,
    /// The library.
    Library,
}

/// Operations done by one of both.
#[derive(Clone, Debug)]
pub struct Phase {
    /// By whom, on the trial image.
    pub by: Actor,
    /// What.
    pub ops: Vec<Op>,
}

/// How the image is made.
#[derive(Clone, Debug)]
pub enum Maker {
    /// `mkfs.btrfs` with these options.
    Progs(Vec<&'static str>),
    /// btrfsimg, with this nodesize, and features that are on or off beside the default.
    Ours(u32, &'static str),
}

/// What is tried.
#[derive(Clone, Debug)]
pub struct Case {
    /// Where it was drawn from.
    pub seed: u64,
    /// How the image is made.
    pub maker: Maker,
    /// `compress` of the mount and of the library: `none`, or an algorithm.
    pub compress: &'static str,
    /// Whether every chunk is compressed, not only what looks compressible.
    pub force: bool,
    /// What is done, in order.
    pub phases: Vec<Phase>,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names of errno(3) say it")]
pub enum Outcome {
    Done,
    /// By a program, in words of its own: as good as any refusal.
    Refused,
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    /// EROFS, EPERM, EACCES.
    Forbidden,
    /// EINVAL and whatever else says that the argument is wrong: EXDEV, EMLINK, ENAMETOOLONG, ELOOP.
    Invalid,
    NoSpace,
    /// Anything else.
    Errno(i32),
}

impl Outcome {
    fn of(result: std::io::Result<()>) -> Outcome {
        match result {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::of_errno(error.raw_os_error().unwrap_or(0)),
        }
    }

    fn of_errno(errno: i32) -> Outcome {
        use rustix::io::Errno;
        let is = |all: &[Errno]| all.iter().any(|e| e.raw_os_error() == errno);
        match errno {
            _ if is(&[Errno::NOENT]) => Outcome::NotFound,
            _ if is(&[Errno::EXIST]) => Outcome::Exists,
            _ if is(&[Errno::NOTDIR]) => Outcome::NotDirectory,
            _ if is(&[Errno::ISDIR]) => Outcome::IsDirectory,
            _ if is(&[Errno::NOTEMPTY]) => Outcome::NotEmpty,
            _ if is(&[Errno::ROFS, Errno::PERM, Errno::ACCESS]) => Outcome::Forbidden,
            _ if is(&[Errno::NOSPC]) => Outcome::NoSpace,
            _ if is(&[
                Errno::INVAL,
                Errno::NODATA,
                Errno::XDEV,
                Errno::MLINK,
                Errno::NAMETOOLONG,
                Errno::LOOP,
                Errno::NXIO,
                Errno::NODEV,
            ]) =>
            {
                Outcome::Invalid
            }
            _ => Outcome::Errno(errno),
        }
    }

    /// By the kernel's words in what a program says.
    fn of_words(said: &str) -> Outcome {
        const WORDS: &[(&str, Outcome)] = &[
            ("No such file or directory", Outcome::NotFound),
            ("exists", Outcome::Exists),
            ("Not a directory", Outcome::NotDirectory),
            ("Directory not empty", Outcome::NotEmpty),
            ("Read-only file system", Outcome::Forbidden),
            ("Operation not permitted", Outcome::Forbidden),
            ("Permission denied", Outcome::Forbidden),
            ("Invalid argument", Outcome::Invalid),
            ("No space left on device", Outcome::NoSpace),
        ];
        let found = WORDS.iter().find(|(words, _)| said.contains(words));
        found.map_or(Outcome::Refused, |(_, outcome)| *outcome)
    }

    /// Whether both mean the same to a user.
    fn agrees(self, with: Outcome) -> bool {
        self == with || (self == Outcome::Refused && with != Outcome::Done)
    }
}

/// Draws a case: the library's `count` operations after some of the kernel's.
pub fn draw(seed: u64, count: usize) -> Case {
    let mut rng = Rng::new(seed);
    let mut case = draw_image(seed, &mut rng);
    let mut names = Names::new();
    let before = names.draw(&mut rng, count / 3, Actor::Kernel);
    case.phases.push(Phase { by: Actor::Kernel, ops: before });
    case.phases.push(Phase { by: Actor::Library, ops: names.draw(&mut rng, count, Actor::Library) });
    case
}

/// Draws a case in which both change the image in turn, `rounds` times.
pub fn draw_in_turn(seed: u64, rounds: usize, count: usize) -> Case {
    let mut rng = Rng::new(seed);
    let mut case = draw_image(seed, &mut rng);
    let mut names = Names::new();
    for round in 0..2 * rounds {
        let by = if round % 2 == 0 { Actor::Kernel } else { Actor::Library };
        case.phases.push(Phase { by, ops: names.draw(&mut rng, count, by) });
    }
    case
}

fn draw_image(seed: u64, rng: &mut Rng) -> Case {
    let nodesize = rng.index(4);
    let maker = if rng.index(2) == 0 {
        match rng.index(6) {
            0 => Maker::Ours(4096, "mixed-bg"),
            n => Maker::Ours(
                [16_384, 4096, 32_768, 65_536][nodesize],
                ["", "", "block-group-tree", "^no-holes", "^free-space-tree", "^skinny-metadata"][n],
            ),
        }
    } else {
        let mut options = vec!["-n", ["16k", "4k", "32k", "64k"][nodesize]];
        options.extend(["--csum", ["crc32c", "xxhash", "sha256", "blake2"][rng.index(4)]]);
        match rng.index(9) {
            0 => options.extend(["-R", "^free-space-tree"]),
            1 => options.extend(["-O", "^skinny-metadata"]),
            2 => options.extend(["-m", "single"]),
            3 => options.extend(["-O", "^no-holes"]),
            4 => options.extend(["-M", "-n", "4k"]),
            5 => options.extend(["-R", "quota"]),
            _ => {}
        }
        Maker::Progs(options)
    };
    let compress = ["none", "zlib", "lzo", "zstd"][rng.index(4)];
    Case { seed, maker, compress, force: rng.index(3) == 0, phases: Vec::new() }
}

impl Case {
    /// Tries it.
    ///
    /// # Errors
    /// The first difference or fault, with the phase.
    pub fn run(&self) -> Result<()> {
        let dir = TempDir::new()?;
        let (reference, trial) = (dir.path().join("kernel.img"), dir.path().join("trial.img"));
        self.make(&reference)?;
        sparse::copy(&reference, &trial)?;
        for (number, phase) in self.phases.iter().enumerate() {
            self.phase(number, &reference, &trial)
                .with_context(|| format!("phase {number}, by the {:?}", phase.by))?;
        }
        let judge = JudgeOptions { write_bytes: 1 << 20, ..JudgeOptions::default() };
        let mut verdict = Oracle::new().with_scratch(dir.path()).judge_with(&trial, &judge)?;
        verdict.faults.retain(|fault| !is_known(fault));
        ensure!(verdict.is_ok(), "{verdict}");
        Ok(())
    }

    fn make(&self, image: &Path) -> Result<()> {
        match &self.maker {
            Maker::Progs(options) => btrfs_progs::mkfs(image, SIZE, options),
            Maker::Ours(nodesize, changes) => {
                let mut features = Features::default();
                if !changes.is_empty() {
                    features.change(changes)?;
                }
                Ok(trial::save(&*workload::new_image_with(features, *nodesize, SIZE, self.seed)?, image)?)
            }
        }
    }

    fn phase(&self, number: usize, reference: &Path, trial: &Path) -> Result<()> {
        let phase = &self.phases[number];
        let expect = self.by_kernel(reference, &phase.ops)?;
        if number == 0 && phase.by == Actor::Kernel {
            // The same starting image for both.
            sparse::copy(reference, trial)?;
            return Ok(());
        }
        let found = match phase.by {
            Actor::Kernel => self.by_kernel(trial, &phase.ops)?,
            Actor::Library => library::apply(trial, &phase.ops, &self.policy()?, self.seed)?,
        };
        for (op, (expect, (found, said))) in phase.ops.iter().zip(expect.iter().zip(&found)) {
            ensure!(expect.0.agrees(*found), "{op:?}: kernel {:?}, library {found:?} ({said})", expect.0);
        }
        let kernel_on_both = self.phases[..=number].iter().skip(1).any(|phase| phase.by == Actor::Kernel);
        compare::images(reference, trial, kernel_on_both)?;
        let faults = kernel::check(trial)?;
        ensure!(faults.is_empty(), "btrfs check: {faults:?}");
        verify_clean(trial)
    }

    fn by_kernel(&self, image: &Path, ops: &[Op]) -> Result<Vec<(Outcome, String)>> {
        let unloaded = unloaded::directories(image)?;
        let mount = Mount::open(image, &self.mount_options())?;
        unloaded::load(mount.path(), &unloaded)?;
        let one = |op: &Op| {
            let outcome = kernel::apply(mount.path(), op)?;
            if let (Op::Snapshot { to, .. }, Outcome::Done) = (op, outcome) {
                // The inodes of a snapshot are read anew.
                kernel::apply(mount.path(), &Op::Commit)?;
                let snapshot = mount.path().join(std::ffi::OsStr::from_bytes(&to.0));
                unloaded::load(&snapshot, &unloaded::directories(image)?)?;
            }
            Ok((outcome, String::new()))
        };
        let outcomes: Result<Vec<_>> = ops.iter().map(one).collect();
        // It waits for the kernel's cleaner, up to 30 s; else what is left of deleted subvolumes stays for the next.
        if self.seed % 16 == 3 {
            kernel::settle(mount.path())?;
        }
        let mut said = mount.unmount()?;
        said.retain(|line| !is_known(line));
        ensure!(said.is_empty(), "the kernel says {said:?}");
        outcomes
    }

    fn mount_options(&self) -> String {
        match (self.compress, self.force) {
            ("none", _) => "rw".to_owned(),
            (algorithm, true) => format!("rw,compress-force={algorithm}"),
            (algorithm, false) => format!("rw,compress={algorithm}"),
        }
    }

    fn policy(&self) -> Result<CompressionPolicy> {
        let spec: CompressionSpec = self.compress.parse()?;
        let is_some = spec != CompressionSpec::None;
        Ok(CompressionPolicy {
            build_default: is_some.then_some(spec),
            force: self.force && is_some,
            ..CompressionPolicy::default()
        })
    }

    /// A shorter case that fails as well, after at most `tries` tries, and how it fails.
    pub fn shrink(&self, tries: usize) -> (Case, String) {
        let (mut best, mut left) = (self.clone(), tries);
        let fault = |case: &Case| case.run().err().map(|error| format!("{error:#}"));
        let Some(mut how) = fault(&best) else {
            return (best, "does not fail when it is tried again".to_owned());
        };
        // Not one fault in the place of another: the same judge must speak.
        let judge = judge_of(&how);
        let mut step = best.phases.iter().map(|phase| phase.ops.len()).max().unwrap_or(0).div_ceil(2);
        while step > 0 && left > 0 {
            let before = best.len();
            for phase in (0..best.phases.len()).rev() {
                let mut at = best.phases[phase].ops.len();
                while at > 0 && left > 0 {
                    let from = at.saturating_sub(step);
                    let mut shorter = best.clone();
                    shorter.phases[phase].ops.drain(from..at);
                    left -= 1;
                    if let Some(fault) = fault(&shorter).filter(|fault| judge_of(fault) == judge) {
                        (best, how) = (shorter, fault);
                    }
                    at = from;
                }
            }
            step = if step == 1 && best.len() < before { 1 } else { step / 2 };
        }
        (best, how)
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.phases.iter().map(|phase| phase.ops.len()).sum()
    }

    /// Whether nothing is done.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {:?}, compress {} (force {})",
            self.seed, self.maker, self.compress, self.force
        )?;
        for phase in &self.phases {
            writeln!(f, "by the {:?}:", phase.by)?;
            phase.ops.iter().try_for_each(|op| writeln!(f, "  {op:?}"))?;
        }
        Ok(())
    }
}

/// Who found a fault.
fn judge_of(fault: &str) -> Option<usize> {
    const JUDGES: &[&str] = &["differ:", "btrfs check", "verify:", ": kernel ", "the kernel says"];
    JUDGES.iter().position(|judge| fault.contains(judge))
}

/// What kernels say of images that are as they should be.
fn is_known(line: &str) -> bool {
    line.contains("space cache v1 is being deprecated")
}

/// `verify --data` finds nothing.
pub(crate) fn verify_clean(image: &Path) -> Result<()> {
    let device = FileDevice::open(image, Access::Read, 0)?;
    let mut findings = Vec::new();
    let options = verify::Options::new().with_data(true);
    verify::verify(&device, &options, &mut |finding| {
        // Images of mkfs.btrfs are odd as they are made.
        if finding.severity().is_error() {
            findings.push(format!("{} {finding}", finding.rule));
        }
    })?;
    ensure!(findings.is_empty(), "verify: {findings:?}");
    Ok(())
}

/// Tries the case; where it fails, shows the shortest that does.
///
/// # Errors
/// The fault, with the operations that lead to it.
pub fn run(case: &Case, tries: usize) -> Result<()> {
    let Err(error) = case.run() else { return Ok(()) };
    let (shortest, how) = case.shrink(tries);
    bail!("seed {}: {error:#}\nshortest: {how}\n{shortest}", case.seed)
}
