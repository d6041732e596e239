//! Commands that change an image: each is an [`Edit`], which `batch` can run together with others in one commit.

use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use btrfsimg_fs::Error;
use btrfsimg_fs::device::{Access, Device, FileDevice, OverlayDevice};
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::subvol;

use crate::address::{Address, ImageArgs, Word, by_image, holds_btrfs};
use crate::clock;
use crate::exit;
use crate::output::{Ui, stdout};

/// A subcommand that changes images: what it does inside one transaction, which it neither begins nor commits.
///
/// How a new command fits in: its `Args` flatten [`ImageArgs`] and [`EditArgs`] and implement this trait; it gets a
/// line in `cmd::Command` and one in `Command::edit`. Then it runs by itself, and in a `batch`.
///
/// - What can be judged without the image belongs into [`Edit::addresses`], as a usage error: in a batch it is called
///   for every line before the image is opened.
/// - [`Edit::apply`] may be called twice: again above the image in memory, when it is full, to say how large it
///   would have to be. So it touches nothing but the transaction, and says things through [`EditCx`], which prints
///   them after the commit.
/// - Where it returns an error nothing is committed. What it goes on behind is a [`EditCx::fail`]; in a batch that
///   counts as an error.
/// - Errors name the object: [`EditCx::each`] and [`EditCx::resolve`] see to it.
pub(crate) trait Edit {
    /// Its own options: which image, how it is opened.
    fn options(&self) -> (&ImageArgs, &EditArgs);

    /// The places that it changes, its words read as `image` says (not as its own options do: in a batch the image
    /// is the batch's). Where they are in several images, each image is changed by itself, in a commit of its own.
    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>>;

    /// Whether it reads standard input, which only one line of a batch can do, and none where the lines come from there.
    fn reads_stdin(&self) -> bool {
        false
    }

    /// Changes [`EditCx::addresses`], all of one image.
    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()>;
}

/// What an [`Edit`] works with.
pub(crate) struct EditCx<'a, 'v> {
    /// What it changes.
    pub(crate) tx: &'a mut Transaction<'v>,
    /// How words are read.
    pub(crate) image: &'a ImageArgs,
    /// The places that it changes: those of its addresses that are in this image.
    pub(crate) addresses: &'a [Address],
    /// Where paths start.
    pub(crate) start: Place,
    /// Only for progress: what is said goes through [`EditCx::say`] and [`EditCx::fail`].
    pub(crate) ui: &'a Ui,
    /// Whether `-v` was given.
    pub(crate) verbose: bool,
    /// Set when the user asks to stop: long work looks at it.
    pub(crate) stop: &'a AtomicBool,
    said: Said,
}

/// What is printed once a change is committed.
#[derive(Default)]
struct Said {
    lines: Vec<String>,
    warnings: Vec<String>,
    failures: Vec<(String, u8)>,
    /// Deleted subvolumes are to be dropped, in commits of their own.
    drop_deleted: bool,
}

impl<'a> EditCx<'a, '_> {
    /// Does `change` to each address; errors are about it.
    pub(crate) fn each(&mut self, mut change: impl FnMut(&mut Self, &Address) -> Result<()>) -> Result<()> {
        let addresses: &'a [Address] = self.addresses;
        addresses.iter().try_for_each(|a| change(self, a).map_err(|e| a.about(e)))
    }

    /// The inode at `address`, its last symlink followed or not.
    pub(crate) fn resolve(&self, address: &Address, follow: bool) -> Result<Place> {
        lookup::resolve(self.tx, self.start, &address.path, follow).map_err(|e| address.about(e.into()))
    }

    /// The inode of an option like `--reference IMAGE:/path`, which is in the image that is changed.
    pub(crate) fn reference(&self, word: &std::ffi::OsStr, follow: bool) -> Result<Place> {
        if self.image.image.is_none()
            && let Word::Host(path) = self.image.word(word)
            && !word.as_bytes().windows(2).any(|two| two == b":/")
            && !holds_btrfs(&path)
        {
            let path = path.display();
            let why = "a reference is a file of the image that is changed, as IMAGE:/path";
            return Err(exit::usage(format!(
                "{path}: {why}; what stat(1) says of this one is given as a value"
            )));
        }
        let address = self.image.address(word)?;
        if self.addresses.iter().any(|a| !a.is_in_image_of(&address)) {
            return Err(exit::usage(format!("{address}: the reference is in another image")));
        }
        self.resolve(&address, follow)
    }

    /// Makes a part of the change, a line of a batch: with these addresses, and `verbose` or not. What it would go on
    /// behind is an error.
    pub(crate) fn line(
        &mut self,
        addresses: &[Address],
        verbose: bool,
        change: impl FnOnce(&mut EditCx<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted.into());
        }
        let mut cx = EditCx {
            tx: self.tx,
            image: self.image,
            addresses,
            start: self.start,
            ui: self.ui,
            verbose: self.verbose || verbose,
            stop: self.stop,
            said: Said::default(),
        };
        change(&mut cx)?;
        let Said { lines, warnings, mut failures, drop_deleted } = cx.said;
        self.said.lines.extend(lines);
        self.said.warnings.extend(warnings);
        self.said.drop_deleted |= drop_deleted;
        match failures.pop() {
            Some((message, code)) => Err(exit::with_code(message, code)),
            None => Ok(()),
        }
    }

    /// Prints a line on standard output after the commit, with `-v`.
    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        if self.verbose {
            self.said.lines.push(line());
        }
    }

    /// Prints a line on standard output after the commit, but for `-q`.
    pub(crate) fn print(&mut self, line: String) {
        if !self.ui.is_quiet() {
            self.said.lines.push(line);
        }
    }

    /// Warns after the commit, but for `-q`: what was asked for is done, and may not be what was meant.
    pub(crate) fn warn(&mut self, message: String) {
        self.said.warnings.push(message);
    }

    /// Has what is left of deleted subvolumes dropped after the commit.
    pub(crate) fn drop_deleted(&mut self) {
        self.said.drop_deleted = true;
    }

    /// Reports a failure that does not stop the rest, after the commit; the exit code is then `code`.
    pub(crate) fn fail(&mut self, message: String, code: u8) {
        self.said.failures.push((message, code));
    }
}

/// Runs a command that changes images: those addresses that are in one image, whatever it is called, in one commit.
/// When one fails, nothing of its image is changed.
pub(crate) fn run(edit: &dyn Edit, ui: &Ui) -> Result<()> {
    let (image, options) = edit.options();
    let addresses = edit.addresses(image)?;
    for group in by_image(addresses) {
        let change = |cx: &mut EditCx<'_, '_>| edit.apply(cx);
        tolerate(ui, options.commit(image, &group[0].image, &group, ui, &mut { change }))?;
    }
    Ok(())
}

/// As [`Ui::tolerate`], for changes of one image after the other: one that was interrupted ends the command.
pub(crate) fn tolerate(ui: &Ui, result: Result<()>) -> Result<()> {
    if result.is_err() && stop_flag()?.load(Ordering::Relaxed) { result } else { ui.tolerate(result) }
}

/// The error of a command that is an [`Edit`], and was run otherwise.
pub(crate) fn not_run() -> anyhow::Error {
    anyhow::anyhow!("internal error: a change of an image was not made; please report this")
}

/// How commands that change an image do it.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct EditArgs {
    /// Let the image file grow when it is full
    #[arg(long)]
    pub(crate) grow: bool,
    /// Do not wait until the change is durable: a power cut soon after may destroy the image
    #[arg(long)]
    pub(crate) no_sync: bool,
    /// Wait for another program that uses the image, at most so long
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    pub(crate) wait: Option<Option<u64>>,
}

/// Set by INT and TERM: the change is given up, the image stays as it was. There is one in the process: what comes
/// after an interrupted change is interrupted as well.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    static STOP: LazyLock<io::Result<Arc<AtomicBool>>> = LazyLock::new(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // A second signal ends the process: nothing of the image that counts is being overwritten.
            signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(flag)
    });
    STOP.as_ref().cloned().map_err(|error| anyhow::anyhow!("signals: {error}"))
}

/// What an edit is made of: an [`Edit`], or the lines of a batch.
pub(crate) type Change<'c> = dyn FnMut(&mut EditCx<'_, '_>) -> Result<()> + 'c;

/// Between two looks at the lock of an image that is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl EditArgs {
    /// Whether no option was given.
    pub(crate) fn is_default(&self) -> bool {
        !self.grow && !self.no_sync && self.wait.is_none()
    }

    /// Changes the image at `path` in one commit; when `change` fails, nothing is committed. It is called again, for
    /// nothing, where the image is full: to say how large it would have to be.
    pub(crate) fn commit(
        &self,
        image: &ImageArgs,
        path: &Path,
        addresses: &[Address],
        ui: &Ui,
        change: &mut Change<'_>,
    ) -> Result<()> {
        let name = || path.display().to_string();
        let stop = stop_flag()?;
        self.check_growable(image, path)?;
        let device: Arc<dyn Device> = Arc::new(self.open(path, Access::Write, image.offset, &stop)?);
        let reproducible = clock::source_date_epoch()?.is_some();
        let options =
            VolumeOptions { grow: self.grow, no_sync: self.no_sync, reproducible, ..Default::default() };
        let edits = Edits { image, addresses, ui, stop: &stop, now: clock::now()? };
        let result = {
            let mut volume = Volume::open(device.clone(), options).with_context(name)?;
            let mut tx = volume.begin(edits.now)?;
            tx.stop_on(stop.clone());
            let done = edits.make(&mut tx, change).and_then(|said| {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted.into());
                }
                tx.commit().with_context(name)?;
                Ok(said)
            });
            // What fails from here on is no failure of the change: that is in the image.
            done.map(|said| {
                let dropped = match said.drop_deleted {
                    true => drop_deleted(&mut volume, edits.now, &stop, path).with_context(name),
                    false => Ok(()),
                };
                (said, dropped)
            })
        };
        let (said, dropped) = result.map_err(|error| match error.downcast_ref::<Error>() {
            Some(Error::NoSpace { what, needed: None }) => {
                let needed = edits.needed_size(&device, change).ok();
                let advice = if self.grow { "" } else { " (--grow lets the file grow)" };
                let full = Error::NoSpace { what: format!("{what}{advice}"), needed };
                // What was said of the place: the line of a batch.
                let places: Vec<String> =
                    error.chain().take_while(|e| !e.is::<Error>()).map(ToString::to_string).collect();
                let full = anyhow::Error::new(full).context(name());
                places.into_iter().rev().fold(full, anyhow::Error::context)
            }
            // Wherever it was: nothing is wrong there.
            Some(Error::Interrupted) => anyhow::Error::new(Error::Interrupted).context(name()),
            _ => error,
        })?;
        let mut out = stdout();
        said.lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        out.flush()?;
        said.warnings.iter().for_each(|message| ui.warn(message));
        said.failures.iter().for_each(|(message, code)| ui.fail(message, *code));
        dropped
    }

    /// A file system at an offset is in a partition, whose end no byte of it tells.
    fn check_growable(&self, image: &ImageArgs, path: &Path) -> Result<()> {
        if self.grow && image.offset != 0 {
            let reason = "--grow is not for a file system at an offset: it would leave its partition";
            return Err(Error::Invalid(format!("{}: {reason}", path.display())).into());
        }
        Ok(())
    }

    /// Opens the image for commands that commit in steps.
    pub(crate) fn volume(&self, image: &ImageArgs, path: &Path, stop: &AtomicBool) -> Result<Volume> {
        self.check_growable(image, path)?;
        let device: Arc<dyn Device> = Arc::new(self.open(path, Access::Write, image.offset, stop)?);
        let options = VolumeOptions { grow: self.grow, no_sync: self.no_sync, ..Default::default() };
        Volume::open(device, options).with_context(|| path.display().to_string())
    }

    /// Opens the image; waits for its lock if that was asked for.
    pub(crate) fn open(
        &self,
        path: &Path,
        access: Access,
        offset: u64,
        stop: &AtomicBool,
    ) -> Result<FileDevice> {
        let until = self.wait.map(|seconds| {
            seconds.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)))
        });
        let mut was_locked = false;
        let wait = || {
            was_locked = true;
            let Some(until) = until else { return false };
            let goes_on = !stop.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until);
            if goes_on {
                std::thread::sleep(LOOK_AGAIN);
            }
            goes_on
        };
        match FileDevice::open_waiting(path, access, offset, wait) {
            Err(Error::Busy(what)) if was_locked && self.wait.is_none() => {
                Err(Error::Busy(format!("{what}, or let this command wait with --wait")).into())
            }
            Err(_) if stop.load(Ordering::Relaxed) => Err(Error::Interrupted.into()),
            other => Ok(other?),
        }
    }
}

/// Drops what deleted subvolumes held, once their names are gone.
fn drop_deleted(
    volume: &mut Volume,
    now: btrfsimg_ondisk::Timespec,
    stop: &AtomicBool,
    image: &Path,
) -> Result<()> {
    let rest = || {
        let image = image.display();
        format!(
            "the subvolumes are deleted, but not all that they held; 'btrfsimg subvol sync {image}' drops the rest, \
             as does a kernel that mounts the image"
        )
    };
    match subvol::drop_deleted(volume, now, &mut || stop.load(Ordering::Relaxed)) {
        Ok(_) => Ok(()),
        // Its own words say that nothing was changed.
        Err(Error::Interrupted) => anyhow::bail!("interrupted: {}", rest()),
        Err(error) => Err(anyhow::Error::new(error).context(rest())),
    }
}

/// What makes the same change in a transaction, as often as asked.
struct Edits<'e> {
    image: &'e ImageArgs,
    addresses: &'e [Address],
    ui: &'e Ui,
    stop: &'e Arc<AtomicBool>,
    now: btrfsimg_ondisk::Timespec,
}

impl Edits<'_> {
    fn make(&self, tx: &mut Transaction<'_>, change: &mut Change<'_>) -> Result<Said> {
        let start = self.image.start_in(tx)?;
        let mut cx = EditCx {
            tx,
            image: self.image,
            addresses: self.addresses,
            start,
            ui: self.ui,
            verbose: self.ui.verbosity() > 0,
            stop: self.stop,
            said: Said::default(),
        };
        change(&mut cx)?;
        Ok(cx.said)
    }

    /// How large the image would have to be for a change: the change is made above it in memory, and dropped. First
    /// as if the device had no end, then at that size and a little more until it fits, as block groups of a small
    /// device are smaller and leave more behind.
    fn needed_size(&self, device: &Arc<dyn Device>, change: &mut Change<'_>) -> Result<u64> {
        let mut size = self.dry_run(device, None, change)?;
        for _ in 0..SIZE_TRIES {
            if self.dry_run(device, Some(size), change).is_ok() {
                return Ok(size);
            }
            size = (size + size / 64).next_multiple_of(1 << 16);
        }
        anyhow::bail!("no size found")
    }

    fn dry_run(
        &self,
        device: &Arc<dyn Device>,
        assumed_size: Option<u64>,
        change: &mut Change<'_>,
    ) -> Result<u64> {
        let options = VolumeOptions {
            grow: assumed_size.is_none(),
            no_sync: true,
            dry_run: true,
            assumed_size,
            ..VolumeOptions::default()
        };
        let mut volume = Volume::open(Arc::new(OverlayDevice::new(device.clone())?), options)?;
        let mut tx = volume.begin(self.now)?;
        tx.stop_on(self.stop.clone());
        self.make(&mut tx, change)?;
        Ok(tx.needed_size()?)
    }
}

/// Tries to find a size that will do.
const SIZE_TRIES: usize = 8;
