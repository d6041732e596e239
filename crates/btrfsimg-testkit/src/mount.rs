//! An image mounted by the kernel, until the guard is dropped.

use crate::{
    btrfs_progs, command,
    kernel_log::{self, KernelLog},
    loop_device::LoopDevice,
};
use anyhow::{Context, Result, bail};
use std::{ffi::OsStr, path::Path, thread, time::Duration};
use tempfile::TempDir;

/// A mounted image. Dropping it unmounts and detaches on every path, a panic's too.
///
/// The image's loop device is its own, so the lines of the kernel's log that belong to this image are told
/// apart from those of images that other tests have mounted at the same time.
#[derive(Debug)]
pub struct Mount {
    /// `None` once unmounted.
    dir: Option<TempDir>,
    device: LoopDevice,
    log: KernelLog,
    log_faults: Vec<String>,
}

impl Mount {
    /// Mounts `image` with the options of mount(8), for example `ro` or `rw,compress-force=zstd:3`.
    /// With `ro` the loop device is read-only too.
    ///
    /// Fails with the kernel's own words when the kernel refuses the image.
    pub fn open(image: &Path, options: &str) -> Result<Mount> {
        let read_only = options.split(',').any(|o| o == "ro");
        let device = LoopDevice::attach(image, read_only)?;
        let mut log = KernelLog::mark()?;
        let dir = tempfile::Builder::new().prefix("btrfsimg-mnt-").tempdir().context("no mount point")?;
        let args = ["-t", "btrfs", "-o", options].map(OsStr::new);
        let said = command::ask(
            "mount",
            args.into_iter().chain([device.node().as_os_str(), dir.path().as_os_str()]),
        )?;
        if !said.success {
            let kernel = accusations(&mut log, &device)?;
            bail!("the kernel does not mount {}: {} {kernel:?}", image.display(), said.stderr.trim());
        }
        Ok(Mount { dir: Some(dir), device, log, log_faults: Vec::new() })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.dir.as_ref().map_or(Path::new(""), TempDir::path)
    }

    /// The block device that carries the image.
    pub fn device(&self) -> &LoopDevice {
        &self.device
    }

    /// All errors and warnings in the kernel's log about this image since it was mounted.
    pub fn log_faults(&mut self) -> Result<&[String]> {
        let new = accusations(&mut self.log, &self.device)?;
        self.log_faults.extend(new);
        Ok(&self.log_faults)
    }

    /// Unmounts, and gives what the kernel found wrong with this image: the errors and warnings in its log, and
    /// the device's error counters.
    ///
    /// The counters matter because the log has a rate limit (about ten lines of a kind in 5 s, on the whole
    /// machine): another test's broken image may use it up.
    pub fn unmount(mut self) -> Result<Vec<String>> {
        let counters = btrfs_progs::device_errors(self.path());
        self.release()?;
        self.log_faults()?;
        let mut faults = std::mem::take(&mut self.log_faults);
        faults.extend(counters?);
        Ok(faults)
    }

    fn release(&mut self) -> Result<()> {
        let Some(dir) = self.dir.take() else { return Ok(()) };
        if let Err(e) = unmount(dir.path()) {
            // Deleting the directory would delete what is mounted on it.
            let path = dir.keep();
            return Err(e.context(format!("{} is left behind", path.display())));
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(e) = self.release() {
            eprintln!("testkit: {e:#}");
        }
    }
}

fn accusations(log: &mut KernelLog, device: &LoopDevice) -> Result<Vec<String>> {
    let name = device.name();
    Ok(log.new_messages()?.into_iter().filter(|line| kernel_log::accuses(line, &name)).collect())
}

/// A process that another thread has forked holds our descriptors until it executes, so "busy" passes.
fn unmount(path: &Path) -> Result<()> {
    for _ in 0..50 {
        if command::ask("umount", [path])?.success {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    command::run("umount", [OsStr::new("-l"), path.as_os_str()]).context("cannot unmount")?;
    bail!("{} stayed busy for 5 s and was detached lazily", path.display())
}
