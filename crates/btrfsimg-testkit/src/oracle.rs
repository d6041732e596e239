//! The verdict of the kernel and of btrfs-progs on an image.

use crate::{
    btrfs_progs,
    mount::Mount,
    rw_trial, sparse,
    treediff::{self, DiffOptions},
};
use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    env, fmt,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

/// When set to 1, a missing judge fails the test instead of being skipped.
pub const REQUIRE_ENV: &str = "BTRFSIMG_REQUIRE_ORACLES";

/// The judges that this machine and this user have.
///
/// A missing one is announced on the terminal (`oracle skipped: kernel mount (not root)`), past the test
/// harness's capture, and is a panic where [`REQUIRE_ENV`] is 1.
#[derive(Debug, Clone)]
pub struct Oracle {
    kernel: Result<(), String>,
    progs: Result<(), String>,
    scratch: Option<PathBuf>,
}

/// How an image is judged.
#[derive(Debug, Clone)]
pub struct JudgeOptions<'a> {
    /// The tree that the image must hold, no more and no less.
    pub source: Option<&'a Path>,
    /// How the trees are compared.
    pub diff: DiffOptions,
    /// Let the kernel write this many bytes to a copy, then check again; 0 for scrubbing only.
    pub write_bytes: usize,
    /// Mount and scrub a copy read-write at all.
    pub read_write: bool,
}

impl Default for JudgeOptions<'_> {
    fn default() -> Self {
        JudgeOptions { source: None, diff: DiffOptions::default(), write_bytes: 4 << 20, read_write: true }
    }
}

/// What the judges said.
#[derive(Debug, Clone, Default)]
#[must_use = "a judgement that nobody looks at judges nothing"]
pub struct Judgement {
    /// One line for each fault; none means that the image is good.
    pub faults: Vec<String>,
    /// The judges that were not there.
    pub skipped: Vec<&'static str>,
    /// Entries compared with the source tree, where there was one.
    pub compared: Option<usize>,
}

impl Judgement {
    /// Whether no judge that was there found a fault.
    pub fn is_ok(&self) -> bool {
        self.faults.is_empty()
    }

    /// Panics with all faults unless the image is good.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "the image is at fault:\n{self}");
    }

    /// That of an image whose writer was cut off: the copies of the superblock are written last and may lag, which a
    /// scrub counts.
    pub fn of_cut_off_writer(mut self) -> Judgement {
        self.faults.retain(|fault| !fault.ends_with("super=1") && !fault.contains("scrub: super block at"));
        self
    }

    fn add(&mut self, judge: &str, faults: impl IntoIterator<Item = String>) {
        self.faults.extend(faults.into_iter().map(|f| format!("{judge}: {f}")));
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ok() {
            f.write_str("ok")?;
        }
        f.write_str(&self.faults.join("\n"))?;
        if !self.skipped.is_empty() {
            write!(f, " (skipped: {})", self.skipped.join(", "))?;
        }
        Ok(())
    }
}

impl Oracle {
    /// Looks (once in a process) for what this machine has.
    #[expect(clippy::new_without_default, reason = "it probes the machine, which a default should not")]
    pub fn new() -> Oracle {
        static FOUND: OnceLock<Oracle> = OnceLock::new();
        let probe = || {
            let progs = btrfs_progs::available().map_err(|e| format!("{e:#}"));
            let kernel = probe_kernel(progs.is_ok()).map_err(|e| format!("{e:#}"));
            Oracle { kernel, progs, scratch: None }
        };
        FOUND.get_or_init(probe).clone()
    }

    /// The copy for the read-write trial is made in `dir`, not in the directory for temporary files.
    pub fn with_scratch(mut self, dir: &Path) -> Oracle {
        self.scratch = Some(dir.to_owned());
        self
    }

    /// Whether images can be mounted; says so (or panics, see [`REQUIRE_ENV`]) where not.
    pub fn has_kernel(&self) -> bool {
        present("kernel mount", &self.kernel)
    }

    /// Whether btrfs-progs are there; says so (or panics, see [`REQUIRE_ENV`]) where not.
    pub fn has_progs(&self) -> bool {
        present("btrfs-progs", &self.progs)
    }

    /// Mounts an image for a test's own use; `None`, with a skip line, where that is impossible.
    pub fn mount(&self, image: &Path, options: &str) -> Result<Option<Mount>> {
        if self.has_kernel() { Mount::open(image, options).map(Some) } else { Ok(None) }
    }

    /// Judges by every judge there is: checks, mounts, reads all, compares with `source`, scrubs and writes.
    /// The image itself is never written.
    pub fn judge(&self, image: &Path, source: Option<&Path>) -> Result<Judgement> {
        self.judge_with(image, &JudgeOptions { source, ..JudgeOptions::default() })
    }

    /// As [`Oracle::judge`], with a say in how.
    ///
    /// An error means that judging failed; a bad image is a [`Judgement`] with faults.
    pub fn judge_with(&self, image: &Path, options: &JudgeOptions<'_>) -> Result<Judgement> {
        let mut verdict = Judgement::default();
        if self.has_progs() {
            verdict.add("btrfs check", btrfs_progs::check(image)?);
        } else {
            verdict.skipped.push("btrfs-progs");
        }
        if !self.has_kernel() {
            verdict.skipped.push("kernel mount");
            return Ok(verdict);
        }
        read_only_trial(image, options, &mut verdict)?;
        if options.read_write {
            self.read_write_trial(image, options, &mut verdict)?;
        }
        Ok(verdict)
    }

    fn read_write_trial(
        &self,
        image: &Path,
        options: &JudgeOptions<'_>,
        verdict: &mut Judgement,
    ) -> Result<()> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("btrfsimg-copy-").suffix(".img");
        let scratch = self.scratch.clone().unwrap_or_else(env::temp_dir);
        let copy = builder.tempfile_in(scratch).context("no place for a copy")?.into_temp_path();
        sparse::copy(image, &copy)?;
        let mount = match Mount::open(&copy, "rw") {
            Ok(mount) => mount,
            Err(e) => {
                verdict.add("read-write mount", [format!("{e:#}")]);
                return Ok(());
            }
        };
        let progs = self.progs.is_ok();
        if progs {
            verdict.add("scrub", btrfs_progs::scrub(mount.path())?);
        }
        if options.write_bytes > 0
            && let Err(e) = rw_trial::write(mount.path(), options.write_bytes)
        {
            verdict.add("writing", [format!("{e:#}")]);
        }
        verdict.add("kernel (read-write)", mount.unmount()?);
        if progs {
            verdict.add("btrfs check after writing", btrfs_progs::check(&copy)?);
        }
        Ok(())
    }
}

fn read_only_trial(image: &Path, options: &JudgeOptions<'_>, verdict: &mut Judgement) -> Result<()> {
    let mount = match Mount::open(image, "ro") {
        Ok(mount) => mount,
        Err(e) => {
            verdict.add("read-only mount", [format!("{e:#}")]);
            return Ok(());
        }
    };
    if let Some(source) = options.source {
        let report = treediff::diff(source, mount.path(), &options.diff)?;
        verdict.compared = Some(report.entries);
        verdict.add("source tree", report.differences.iter().map(ToString::to_string));
    } else {
        read_all(mount.path(), &mut |fault| verdict.add("reading", [fault]));
    }
    verdict.add("kernel (read-only)", mount.unmount()?);
    Ok(())
}

/// Reads every byte that is not in a hole, and every link target; `say` gets what fails.
fn read_all(dir: &Path, say: &mut dyn FnMut(String)) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) => return say(format!("{}: {e}", dir.display())),
    };
    for entry in entries {
        let read = entry.and_then(|entry| {
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                read_all(&path, say);
            } else if kind.is_symlink() {
                fs::read_link(&path)?;
            } else if kind.is_file() {
                let file = File::open(&path)?;
                for range in sparse::data_ranges(&file, file.metadata()?.len())? {
                    sparse::read_range(&file, range, |_, _| Ok(()))?;
                }
            }
            Ok(())
        });
        if let Err(e) = read {
            say(format!("{}: {e}", dir.display()));
        }
    }
}

fn present(judge: &'static str, found: &Result<(), String>) -> bool {
    static SAID: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let Err(why) = found else { return true };
    let required = env::var_os(REQUIRE_ENV).is_some_and(|v| v == "1");
    assert!(!required, "{REQUIRE_ENV}=1, but there is no {judge}: {why}");
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(judge) {
        // Not eprintln: the harness hides what that prints in a test that passes.
        writeln!(std::io::stderr(), "oracle skipped: {judge} ({why})").ok();
    }
    false
}

/// Mounting works, or the reason why not.
fn probe_kernel(progs: bool) -> Result<()> {
    anyhow::ensure!(rustix::process::geteuid().is_root(), "not root");
    anyhow::ensure!(progs, "btrfs-progs are needed to try it");
    // The driver may be a module that nobody has loaded yet; mounting would load it, but may not say so.
    let probe = tempfile::Builder::new().prefix("btrfsimg-probe-").suffix(".img").tempfile()?;
    btrfs_progs::mkfs(probe.path(), 128 << 20, &[])?;
    Mount::open(probe.path(), "ro")?.unmount()?;
    Ok(())
}
