//! An image that is filled, half emptied and filled again, round after round: nothing leaks, and what is free is
//! found.
//!
//! First the image is filled to the brim once: what fits then is its capacity. From there on it is filled to 95 % of
//! that, and a file that does not fit is a fault. Every file's contents are known.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use btrfsimg_compress::WorkspacePool;
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::lookup::{Place, find_entry};
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use btrfsimg_fs::write::contents::{Codec, write_at};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::unlink_checked;
use btrfsimg_fs::{Error, Result as FsResult};
use tempfile::TempDir;

use crate::btrfs_progs;
use crate::crash::{trial, workload};
use crate::differential::verify_clean;
use crate::mount::Mount;
use crate::oracle::Oracle;
use crate::rng::Rng;

/// How full it is kept, in percent of what fits into it when it is new.
const FULL: u64 = 95;
/// How full the kernel must be able to make it, in percent of that.
const KERNEL_FULL: u64 = 80;
/// Files of one transaction.
const BATCH: usize = 4;
const SECTOR: u64 = 4096;
/// Tree blocks by which an empty image may differ from a new one: block groups are more, and their items.
const SPARE_BLOCKS: u64 = 24;

/// How it is aged.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Where all that is random comes from.
    pub seed: u64,
    /// Bytes of the image.
    pub size: u64,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Rounds of deleting and filling.
    pub rounds: usize,
    /// Whether the kernel does every second round.
    pub in_turn: bool,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aged {
    /// Bytes of file contents that fit into the new image.
    pub capacity: u64,
    /// Files written.
    pub files: usize,
}

/// Ages an image.
///
/// # Errors
/// `NoSpace` where there must be space; a leak; whatever a judge finds.
pub fn run(plan: &Plan) -> Result<Aged> {
    let dir = TempDir::new()?;
    let image = dir.path().join("aged.img");
    trial::save(&*workload::new_image(plan.nodesize, plan.size, plan.seed)?, &image)?;
    let new = bytes_used(&image)?;
    let mut aging = Aging { image, rng: Rng::new(plan.seed), files: BTreeMap::new(), next: 0 };
    let capacity = aging.fill_to_the_brim()?;
    let goal = capacity / 100 * FULL;
    for round in 0..plan.rounds {
        let by_kernel = plan.in_turn && round % 2 == 1;
        let did = if by_kernel { aging.round_by_kernel(goal) } else { aging.round(goal) };
        did.with_context(|| format!("round {round}, by the kernel: {by_kernel}"))?;
        aging.judge().with_context(|| format!("after round {round}"))?;
    }
    aging.look_by_kernel()?;
    let all: Vec<u64> = aging.files.keys().copied().collect();
    aging.delete(&all)?;
    aging.judge().context("when it is empty again")?;
    let (old, nodesize) = (bytes_used(&aging.image)?, u64::from(plan.nodesize));
    ensure!(old <= new + SPARE_BLOCKS * nodesize, "an empty image uses {old} bytes, a new one {new}");
    Ok(Aged { capacity, files: usize::try_from(aging.next)? })
}

fn bytes_used(image: &Path) -> Result<u64> {
    let fs = Filesystem::open(Arc::new(FileDevice::open(image, Access::Read, 0)?))?;
    Ok(fs.superblock().bytes_used.get())
}

struct Aging {
    image: PathBuf,
    rng: Rng,
    /// Number and length of each file that is there; the number is its name and what its bytes are drawn from.
    files: BTreeMap<u64, usize>,
    next: u64,
}

fn name(number: u64) -> String {
    format!("file{number}")
}

fn bytes(number: u64, len: usize) -> Vec<u8> {
    Rng::new(number).bytes(len)
}

impl Aging {
    /// Small ones, and large ones that take most of the space.
    fn draw(&mut self) -> (u64, usize) {
        let len = match self.rng.index(4) {
            0 => 1 + self.rng.index(3000),
            1 => 1 + self.rng.index(60_000),
            _ => 1 + self.rng.index(1_500_000),
        };
        self.next += 1;
        (self.next, len)
    }

    fn payload(&self) -> u64 {
        self.files.values().map(|len| (*len as u64).next_multiple_of(SECTOR)).sum()
    }

    fn volume(&self) -> Result<Volume> {
        let device = Arc::new(FileDevice::open(&self.image, Access::Write, 0)?);
        Ok(Volume::open(device, VolumeOptions { no_sync: true, ..VolumeOptions::default() })?)
    }

    /// Until nothing more fits. Says how many bytes of contents that are.
    fn fill_to_the_brim(&mut self) -> Result<u64> {
        let mut volume = self.volume()?;
        loop {
            let batch: Vec<_> = (0..BATCH).map(|_| self.draw()).collect();
            match write(&mut volume, &batch) {
                Ok(()) => self.files.extend(batch),
                Err(Error::NoSpace { .. }) => return Ok(self.payload()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn half(&mut self) -> Vec<u64> {
        let rng = &mut self.rng;
        self.files.keys().copied().filter(|_| rng.index(2) == 0).collect()
    }

    fn round(&mut self, goal: u64) -> Result<()> {
        let doomed = self.half();
        self.delete(&doomed)?;
        let mut volume = self.volume()?;
        while self.payload() < goal {
            let batch: Vec<_> = (0..BATCH).map(|_| self.draw()).collect();
            let have = self.payload();
            write(&mut volume, &batch).with_context(|| format!("with {have} of {goal} bytes in it"))?;
            self.files.extend(batch);
        }
        Ok(())
    }

    fn delete(&mut self, doomed: &[u64]) -> Result<()> {
        let mut volume = self.volume()?;
        for batch in doomed.chunks(64) {
            let mut tx = volume.begin(workload::now())?;
            for number in batch {
                let name = name(*number);
                let entry = find_entry(&tx, Place::TOP, name.as_bytes())?;
                let Some(entry) = entry else { bail!("{name} is gone") };
                let place = Place { tree: Place::TOP.tree, ino: entry.location.objectid };
                unlink_checked(&mut tx, Place::TOP, name.as_bytes(), place, &name)?;
            }
            tx.commit()?;
        }
        self.files.retain(|number, _| !doomed.contains(number));
        Ok(())
    }

    fn round_by_kernel(&mut self, goal: u64) -> Result<()> {
        let doomed = self.half();
        let mount = Mount::open(&self.image, "rw")?;
        for number in &doomed {
            fs::remove_file(mount.path().join(name(*number)))?;
        }
        self.files.retain(|number, _| !doomed.contains(number));
        rustix::fs::syncfs(fs::File::open(mount.path())?)?;
        while self.payload() < goal {
            let (number, len) = self.draw();
            let path = mount.path().join(name(number));
            match fs::write(&path, bytes(number, len)) {
                Ok(()) => _ = self.files.insert(number, len),
                // The kernel keeps some space to itself. What it does with the rest is not for us to judge.
                Err(e) if e.kind() == ErrorKind::StorageFull && self.payload() > goal / 100 * KERNEL_FULL => {
                    fs::remove_file(&path)?;
                    break;
                }
                Err(e) => {
                    return Err(e).with_context(|| format!("with {} of {goal} bytes in it", self.payload()));
                }
            }
        }
        let said = mount.unmount()?;
        ensure!(said.is_empty(), "the kernel says {said:?}");
        Ok(())
    }

    fn judge(&self) -> Result<()> {
        verify_clean(&self.image)?;
        if Oracle::new().has_progs() {
            let faults = btrfs_progs::check(&self.image)?;
            ensure!(faults.is_empty(), "btrfs check: {faults:?}");
        }
        Ok(())
    }

    /// Every byte of every file, as the kernel reads it; and no other file.
    fn look_by_kernel(&self) -> Result<()> {
        let Some(mount) = Oracle::new().mount(&self.image, "ro")? else { return Ok(()) };
        for (number, len) in &self.files {
            let name = name(*number);
            ensure!(
                fs::read(mount.path().join(&name))? == bytes(*number, *len),
                "{name} is not what was written"
            );
        }
        ensure!(fs::read_dir(mount.path())?.count() == self.files.len(), "there are other files");
        let said = mount.unmount()?;
        ensure!(said.is_empty(), "the kernel says {said:?}");
        Ok(())
    }
}

/// Writes new files in one transaction.
fn write(volume: &mut Volume, files: &[(u64, usize)]) -> FsResult<()> {
    let now = workload::now();
    let pool = WorkspacePool::new(1);
    let mut tx = volume.begin(now)?;
    let mut codec = Codec::new(&tx, &pool, CompressionPolicy::default());
    for (number, len) in files {
        let attributes = Attributes::new(0o100_644, now);
        let place = create(&mut tx, Place::TOP, name(*number).as_bytes(), attributes, Vec::new())?;
        write_at(&mut tx, place, 0, &bytes(*number, *len), &mut codec)?;
    }
    tx.commit()
}
