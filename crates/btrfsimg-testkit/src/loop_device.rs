//! A file as a block device, until the guard is dropped.

use crate::command;
use anyhow::{Context, Result, ensure};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// An attached loop device; dropping it detaches.
#[derive(Debug)]
pub struct LoopDevice {
    node: PathBuf,
}

impl LoopDevice {
    /// Attaches `image` to a free device. A read-only device guards the image from the driver too: a mount
    /// with `ro` may still replay a log.
    pub fn attach(image: &Path, read_only: bool) -> Result<LoopDevice> {
        let flags: &[&str] = if read_only { &["-r"] } else { &[] };
        let args = flags.iter().map(OsStr::new).chain(["--find", "--show"].map(OsStr::new));
        let out = command::run("losetup", args.chain([image.as_os_str()]))
            .with_context(|| format!("no loop device for {}", image.display()))?;
        let node = PathBuf::from(out.trim());
        ensure!(node.starts_with("/dev"), "losetup names no device: {out:?}");
        Ok(LoopDevice { node })
    }

    /// `/dev/loop3`
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Where someone else has the device open, it is detached when they close it.
    fn wait_until_gone(&self) {
        let backing = Path::new("/sys/block").join(self.name()).join("loop/backing_file");
        for _ in 0..100 {
            if !backing.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// `loop3`, as the kernel's log has it.
    pub fn name(&self) -> String {
        self.node.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        for _ in 0..20 {
            if command::ask("losetup", [OsStr::new("-d"), self.node.as_os_str()]).is_ok_and(|s| s.success) {
                return self.wait_until_gone();
            }
            thread::sleep(Duration::from_millis(50));
        }
        eprintln!("testkit: {} stays attached", self.node.display());
    }
}
