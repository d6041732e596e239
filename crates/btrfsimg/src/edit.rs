//! One change of an image: open for writing, change, commit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use btrfsimg_fs::Error;
use btrfsimg_fs::device::{Access, FileDevice};
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
    /// is committed.
    pub(crate) fn run<T>(
        &self,
        image: &ImageArgs,
        path: &Path,
        change: impl FnOnce(&mut Transaction<'_>, Place) -> Result<T>,
    ) -> Result<T> {
        let name = || path.display().to_string();
        let stop = stop_flag()?;
        let device = FileDevice::open(path, Access::Write, image.offset)?;
        let options = VolumeOptions { grow: self.grow, no_sync: self.no_sync };
        let mut volume = Volume::open(Arc::new(device), options).with_context(name)?;
        let mut tx = volume.begin(clock::now()?)?;
        let start = image.start_in(&tx).with_context(name)?;
        let result = change(&mut tx, start)?;
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::Interrupted.into());
        }
        tx.commit().with_context(name)?;
        Ok(result)
    }
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
