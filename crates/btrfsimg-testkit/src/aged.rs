//! An image that is filled, half emptied and filled again, round after round: nothing leaks, and what is free is
//! found.
//!
//! First the image is filled to the brim once: what fits then is its capacity. From there on it is filled to 95 % of
//! that (75 % where all files are inline), and a file that does not fit is a fault. Every file's contents are known.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use btrfsimg_compress::{Algorithm, CompressionSpec, Method, WorkspacePool};
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::inspect::space_usage;
use btrfsimg_fs::lookup::{Place, find_entry};
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use btrfsimg_fs::write::contents::{Codec, write_at};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::unlink_checked;
use btrfsimg_fs::{Error, Result as FsResult};
use btrfsimg_ondisk::block_group_flags;
use tempfile::TempDir;

use crate::btrfs_progs;
use crate::crash::{trial, workload};
use crate::differential::verify_clean;
use crate::mount::Mount;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::sparse;

/// How full it is kept, in percent of what fits into it when it is new.
const FULL: u64 = 95;
/// The same where all is in leaves: what is left in those of which half is removed is joined to two thirds and more, and a
/// new inode's items do not go between.
const INLINE_FULL: u64 = 75;
/// How full the kernel must be able to make it, in percent of that.
const KERNEL_FULL: u64 = 80;
const SECTOR: usize = 4096;
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
    /// Who ages it.
    pub who: Who,
    /// What is in it.
    pub files: Files,
    /// Whether files can be compressed, and are.
    pub compress: bool,
}

/// Who ages an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// btrfsimg alone.
    Ours,
    /// The kernel every second round.
    InTurn,
    /// The kernel alone, on an image by mkfs.btrfs: what the others are measured by.
    Kernel,
}

/// What files an image is filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Files {
    /// Small ones, and large ones that take most of the space.
    Mixed,
    /// All inside their leaves.
    Inline,
    /// Some MiB each.
    Large,
    /// 64 KiB each.
    Equal,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aged {
    /// Bytes of file contents that fit into the new image.
    pub capacity: u64,
    /// Files written.
    pub files: usize,
    /// How full the kernel made it where it got least into it, in percent of what btrfsimg makes of it.
    pub kernel_least: Option<u64>,
    /// How full btrfsimg made it where the kernel had left too little for that, in percent of that.
    pub left_by_kernel: Option<u64>,
}

/// Ages an image.
///
/// # Errors
/// `NoSpace` where there must be space; a leak; whatever a judge finds.
pub fn run(plan: &Plan) -> Result<Aged> {
    let dir = TempDir::new()?;
    let image = dir.path().join("aged.img");
    if plan.who == Who::Kernel {
        btrfs_progs::mkfs(&image, plan.size, &["-n", &plan.nodesize.to_string()])?;
    } else {
        trial::save(&*workload::new_image(plan.nodesize, plan.size, plan.seed)?, &image)?;
    }
    let new = bytes_used(&image)?;
    let mut aging = Aging::new(*plan, image);
    if plan.who == Who::Kernel {
        let mount = Mount::open(&aging.image, plan.mount_options())?;
        aging.fill_by_kernel(mount, u64::MAX)?;
    } else {
        aging.fill_to_the_brim()?;
    }
    let capacity = aging.payload();
    let goal = capacity / 100 * if plan.files == Files::Inline { INLINE_FULL } else { FULL };
    for round in 0..plan.rounds {
        let by_kernel = plan.who == Who::Kernel || plan.who == Who::InTurn && round % 2 == 1;
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
    let Aging { kernel_least, left_by_kernel, .. } = aging;
    Ok(Aged { capacity, files: usize::try_from(aging.next)?, kernel_least, left_by_kernel })
}

/// Bytes of file contents that the kernel gets into the image at `start`, and that btrfsimg gets into it.
///
/// # Errors
/// As reading and writing; whatever a judge finds.
pub fn capacities(plan: &Plan, start: &Path) -> Result<[u64; 2]> {
    let mut capacities = [0; 2];
    for (who, capacity) in [Who::Kernel, Who::Ours].into_iter().zip(&mut capacities) {
        let dir = TempDir::new()?;
        let image = dir.path().join("full.img");
        sparse::copy(start, &image)?;
        let mut aging = Aging::new(Plan { who, ..*plan }, image);
        match who {
            Who::Kernel => {
                _ = aging.fill_by_kernel(Mount::open(&aging.image, plan.mount_options())?, u64::MAX)?
            }
            _ => aging.fill_to_the_brim()?,
        }
        aging.judge()?;
        *capacity = aging.payload();
    }
    Ok(capacities)
}

fn bytes_used(image: &Path) -> Result<u64> {
    let fs = Filesystem::open(Arc::new(FileDevice::open(image, Access::Read, 0)?))?;
    Ok(fs.superblock().bytes_used.get())
}

struct Aging {
    plan: Plan,
    image: PathBuf,
    rng: Rng,
    /// Number and length of each file that is there; the number is its name and what its bytes are drawn from.
    files: BTreeMap<u64, usize>,
    next: u64,
    kernel_least: Option<u64>,
    left_by_kernel: Option<u64>,
}

fn percent(part: u64, whole: u64) -> Result<u64> {
    Ok(u64::try_from(u128::from(part) * 100 / u128::from(whole))?)
}

fn name(number: u64) -> String {
    format!("file{number}")
}

impl Plan {
    /// What is in a file: where it is compressed, half of each sector is random.
    fn bytes(&self, number: u64, len: usize) -> Vec<u8> {
        let mut bytes = Rng::new(number).bytes(len);
        if self.compress {
            for sector in bytes.chunks_mut(SECTOR) {
                let half = sector.len() / 2;
                sector[..half].fill(0);
            }
        }
        bytes
    }

    /// Files of one transaction.
    fn batch(&self) -> usize {
        match self.files {
            Files::Inline => 64,
            Files::Equal => 16,
            Files::Mixed | Files::Large => 4,
        }
    }

    fn mount_options(&self) -> &'static str {
        if self.compress { "rw,compress=zstd" } else { "rw" }
    }

    /// Writes new files in one transaction.
    fn write(&self, volume: &mut Volume, files: &[(u64, usize)]) -> FsResult<()> {
        let now = workload::now();
        let pool = WorkspacePool::new(1);
        let mut tx = volume.begin(now)?;
        let zstd = CompressionSpec::Method(Method::with_default_level(Algorithm::Zstd));
        let policy = CompressionPolicy {
            build_default: self.compress.then_some(zstd),
            ..CompressionPolicy::default()
        };
        let mut codec = Codec::new(&tx, &pool, policy);
        for (number, len) in files {
            let attributes = Attributes::new(0o100_644, now);
            let place = create(&mut tx, Place::TOP, name(*number).as_bytes(), attributes, Vec::new())?;
            write_at(&mut tx, place, 0, &self.bytes(*number, *len), &mut codec)?;
        }
        tx.commit()
    }
}

impl Aging {
    fn new(plan: Plan, image: PathBuf) -> Aging {
        let (rng, files) = (Rng::new(plan.seed), BTreeMap::new());
        Aging { plan, image, rng, files, next: 0, kernel_least: None, left_by_kernel: None }
    }

    fn draw(&mut self) -> (u64, usize) {
        let rng = &mut self.rng;
        let len = match (self.plan.files, rng.index(4)) {
            (Files::Inline, _) => 1 + rng.index(2000),
            (Files::Mixed, 0) => 1 + rng.index(3000),
            (Files::Mixed, 1) => 1 + rng.index(60_000),
            (Files::Mixed, _) => 1 + rng.index(1_500_000),
            (Files::Large, _) => 1_000_000 + rng.index(7_000_000),
            (Files::Equal, _) => 64 << 10,
        };
        self.next += 1;
        (self.next, len)
    }

    fn draw_batch(&mut self) -> Vec<(u64, usize)> {
        (0..self.plan.batch()).map(|_| self.draw()).collect()
    }

    fn payload(&self) -> u64 {
        let of =
            |len: &usize| if self.plan.files == Files::Inline { *len } else { len.next_multiple_of(SECTOR) };
        self.files.values().map(|len| of(len) as u64).sum()
    }

    fn volume(&self) -> Result<Volume> {
        let device = Arc::new(FileDevice::open(&self.image, Access::Write, 0)?);
        Ok(Volume::open(device, VolumeOptions { no_sync: true, ..VolumeOptions::default() })?)
    }

    /// Until nothing more fits.
    fn fill_to_the_brim(&mut self) -> Result<()> {
        let mut volume = self.volume()?;
        loop {
            let batch = self.draw_batch();
            match self.plan.write(&mut volume, &batch) {
                Ok(()) => self.files.extend(batch),
                Err(Error::NoSpace { .. }) => return self.fill_with(&mut volume, &batch),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The first of these files, one by one, as far as they fit.
    fn fill_with(&mut self, volume: &mut Volume, files: &[(u64, usize)]) -> Result<()> {
        for file in files {
            match self.plan.write(volume, std::slice::from_ref(file)) {
                Ok(()) => self.files.extend([*file]),
                Err(Error::NoSpace { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
            let batch = self.draw_batch();
            let have = self.payload();
            if let Err(error) = self.plan.write(&mut volume, &batch) {
                drop(volume);
                let is_full = matches!(error, Error::NoSpace { .. }) && self.has_left_little(&batch)?;
                if !is_full {
                    return Err(error).with_context(|| format!("with {have} of {goal} bytes in it"));
                }
                let full = percent(have, goal)?;
                ensure!(full >= KERNEL_FULL, "the kernel leaves room for {full} % only");
                self.left_by_kernel = Some(self.left_by_kernel.map_or(full, |least| least.min(full)));
                return Ok(());
            }
            self.files.extend(batch);
        }
        Ok(())
    }

    /// Whether all that is free for data is less than the files `batch` are long, and that is the kernel's doing: it takes
    /// device space for metadata that btrfsimg had for data, and stores raw what its heuristic finds hard to compress.
    fn has_left_little(&self, batch: &[(u64, usize)]) -> Result<bool> {
        if self.plan.who != Who::InTurn || self.plan.files == Files::Inline {
            return Ok(false);
        }
        let fs = Filesystem::open(Arc::new(FileDevice::open(&self.image, Access::Read, 0)?))?;
        let usage = space_usage(&fs)?;
        let for_data = usage.groups.iter().filter(|((kind, _), _)| kind & block_group_flags::DATA != 0);
        let free: u64 = for_data.map(|(_, group)| group.total.saturating_sub(group.used)).sum();
        Ok(free < batch.iter().map(|(_, len)| len.next_multiple_of(SECTOR) as u64).sum())
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
        let mount = Mount::open(&self.image, self.plan.mount_options())?;
        for number in &doomed {
            fs::remove_file(mount.path().join(name(*number)))?;
        }
        self.files.retain(|number, _| !doomed.contains(number));
        rustix::fs::syncfs(fs::File::open(mount.path())?)?;
        let full = self.fill_by_kernel(mount, goal)?;
        // The kernel keeps some space to itself. What it does with the rest is not for us to judge.
        ensure!(full >= KERNEL_FULL || self.plan.who == Who::Kernel, "the kernel fills it to {full} % only");
        self.kernel_least = Some(self.kernel_least.map_or(full, |least| least.min(full)));
        Ok(())
    }

    /// Has the kernel write files until there are so many bytes, or no more space. Says how much that is, in percent.
    fn fill_by_kernel(&mut self, mount: Mount, goal: u64) -> Result<u64> {
        while self.payload() < goal {
            let (number, len) = self.draw();
            let path = mount.path().join(name(number));
            let written = fs::write(&path, self.plan.bytes(number, len));
            match written {
                Ok(()) => _ = self.files.insert(number, len),
                Err(e) if e.kind() == ErrorKind::StorageFull => match fs::remove_file(&path) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context("removing"),
                    _ => break,
                },
                Err(e) => return Err(e.into()),
            }
        }
        let said = mount.unmount()?;
        ensure!(said.is_empty(), "the kernel says {said:?}");
        percent(self.payload(), goal)
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
                fs::read(mount.path().join(&name))? == self.plan.bytes(*number, *len),
                "{name} is not what was written"
            );
        }
        ensure!(fs::read_dir(mount.path())?.count() == self.files.len(), "there are other files");
        let said = mount.unmount()?;
        ensure!(said.is_empty(), "the kernel says {said:?}");
        Ok(())
    }
}
