//! One change of an image: open for writing, change, commit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use btrfsimg_fs::Error;
use btrfsimg_fs::device::{Access, Device, FileDevice, OverlayDevice};
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};

use crate::address::{Address, ImageArgs};
use crate::clock;
use crate::output::Ui;

/// How commands that change an image do it.
#[derive(clap::Args, Debug, Clone, Copy, Default)]
pub(crate) struct EditArgs {
    /// Let the image file grow when it is full
    #[arg(long)]
    pub(crate) grow: bool,
    /// Do not wait until the change is durable
    #[arg(long)]
    pub(crate) no_sync: bool,
}

/// Set by INT and TERM: the change is given up, the image stays as it was.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the process: nothing of the image that counts is being overwritten.
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

impl EditArgs {
    /// Changes `image` in one commit. `change` gets the transaction and where paths start; when it fails, nothing
    /// is committed. It is called again, for nothing, where the image is full: to say how large it would have to be.
    pub(crate) fn run<T>(
        &self,
        image: &ImageArgs,
        path: &Path,
        mut change: impl FnMut(&mut Transaction<'_>, Place) -> Result<T>,
    ) -> Result<T> {
        let name = || path.display().to_string();
        let stop = stop_flag()?;
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, Access::Write, image.offset)?);
        let options = VolumeOptions { grow: self.grow, no_sync: self.no_sync, ..Default::default() };
        let now = clock::now()?;
        let result = {
            let mut volume = Volume::open(device.clone(), options).with_context(name)?;
            let mut tx = volume.begin(now)?;
            let start = image.start_in(&tx).with_context(name)?;
            change(&mut tx, start).and_then(|result| {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted.into());
                }
                tx.commit().with_context(name)?;
                Ok(result)
            })
        };
        result.map_err(|error| match error.downcast_ref::<Error>() {
            Some(Error::NoSpace { what, needed: None }) => {
                let needed = needed_size(&device, image, now, &mut change).ok();
                let advice = if self.grow { "" } else { " (--grow lets the file grow)" };
                let what = format!("{what}{advice}");
                anyhow::Error::new(Error::NoSpace { what, needed }).context(name())
            }
            _ => error,
        })
    }
}

/// How large the image would have to be for a change: the change is made above it in memory, and dropped. First as if
/// the device had no end, then at that size and a little more until it fits, as block groups of a small device are
/// smaller and leave more behind.
fn needed_size<T>(
    device: &Arc<dyn Device>,
    image: &ImageArgs,
    now: btrfsimg_ondisk::Timespec,
    change: &mut impl FnMut(&mut Transaction<'_>, Place) -> Result<T>,
) -> Result<u64> {
    let mut size = dry_run(device, image, now, None, change)?;
    for _ in 0..SIZE_TRIES {
        if dry_run(device, image, now, Some(size), change).is_ok() {
            return Ok(size);
        }
        size = (size + size / 64).next_multiple_of(1 << 16);
    }
    anyhow::bail!("no size found")
}

/// Tries to find a size that will do.
const SIZE_TRIES: usize = 8;

fn dry_run<T>(
    device: &Arc<dyn Device>,
    image: &ImageArgs,
    now: btrfsimg_ondisk::Timespec,
    assumed_size: Option<u64>,
    change: &mut impl FnMut(&mut Transaction<'_>, Place) -> Result<T>,
) -> Result<u64> {
    let options = VolumeOptions { grow: assumed_size.is_none(), no_sync: true, dry_run: true, assumed_size };
    let mut volume = Volume::open(Arc::new(OverlayDevice::new(device.clone())?), options)?;
    let mut tx = volume.begin(now)?;
    let start = image.start_in(&tx)?;
    change(&mut tx, start)?;
    Ok(tx.needed_size()?)
}

impl EditArgs {
    /// Changes each address, those of one image in one commit. When one fails, nothing of its image is changed.
    pub(crate) fn run_each(
        &self,
        image: &ImageArgs,
        addresses: &[Address],
        ui: &Ui,
        mut each: impl FnMut(&mut Transaction<'_>, Place, &Address) -> Result<()>,
    ) -> Result<()> {
        for group in addresses.chunk_by(|a, b| a.image == b.image) {
            let result = self.run(image, &group[0].image, |tx, start| {
                group.iter().try_for_each(|a| each(tx, start, a).map_err(|e| a.about(e)))
            });
            ui.tolerate(result)?;
        }
        Ok(())
    }
}

/// The inode at `path`, its last symlink followed or not.
pub(crate) fn resolve(
    tx: &Transaction<'_>,
    start: Place,
    path: &[u8],
    follow: bool,
) -> btrfsimg_fs::Result<Place> {
    lookup::resolve(tx, start, path, follow)
}
