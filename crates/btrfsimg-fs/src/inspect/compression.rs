//! What compression saves: the table of compsize(8), from the image.

use std::collections::HashSet;

use btrfsimg_compress::Algorithm;
use btrfsimg_ondisk::{FileExtent, FileExtentKind, FileType};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::lookup::{self, Place};
use crate::read::Filesystem;

/// How the bytes of an extent are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Storage {
    /// As they are.
    Raw,
    /// Compressed.
    Compressed(Algorithm),
    /// Preallocated: room for bytes that read as zeros.
    Prealloc,
}

impl Storage {
    /// All, in the order of the table.
    pub const ALL: [Storage; 5] = [
        Storage::Raw,
        Storage::Compressed(Algorithm::Zlib),
        Storage::Compressed(Algorithm::Lzo),
        Storage::Compressed(Algorithm::Zstd),
        Storage::Prealloc,
    ];

    /// Its name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Storage::Raw => "none",
            Storage::Compressed(algorithm) => algorithm.name(),
            Storage::Prealloc => "prealloc",
        }
    }

    const fn row(self) -> usize {
        match self {
            Storage::Raw => 0,
            Storage::Compressed(algorithm) => algorithm.code() as usize,
            Storage::Prealloc => 4,
        }
    }
}

/// A row of the table, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// On disk, each extent once; profiles that store copies do not count.
    pub disk: u64,
    /// The same extents when decoded, what no file refers to any more included.
    pub uncompressed: u64,
    /// What files show of them, without holes; a shared extent counts for each file.
    pub referenced: u64,
}

impl Amount {
    fn add(&mut self, other: Amount) {
        self.disk = self.disk.saturating_add(other.disk);
        self.uncompressed = self.uncompressed.saturating_add(other.uncompressed);
        self.referenced = self.referenced.saturating_add(other.referenced);
    }
}

/// The extents of a file or of all files below a directory, counted as compsize counts them: a file with two names
/// counts for each, and an inline extent is always its own.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CompressionUsage {
    /// Names of regular files.
    pub files: u64,
    /// Extents outside the tree, each once.
    pub extents: u64,
    /// What refers to them.
    pub refs: u64,
    /// Extents inside the tree.
    pub inline: u64,
    rows: [Amount; 5],
}

impl CompressionUsage {
    /// The bytes stored in one way.
    pub fn amount(&self, storage: Storage) -> Amount {
        self.rows[storage.row()]
    }

    /// Adds what was counted in another image, which shares nothing with this one.
    pub fn add(&mut self, other: &CompressionUsage) {
        self.files += other.files;
        self.extents += other.extents;
        self.refs += other.refs;
        self.inline += other.inline;
        self.rows.iter_mut().zip(other.rows).for_each(|(row, more)| row.add(more));
    }

    /// All bytes.
    pub fn total(&self) -> Amount {
        let mut total = Amount::default();
        self.rows.iter().for_each(|row| total.add(*row));
        total
    }
}

/// Sectors by number, a bit each: at most the 30,000th part of an image, however many extents it has.
#[derive(Default)]
struct Sectors(FxHashMap<u64, [u64; 16]>);

impl Sectors {
    /// Says whether `sector` is new.
    fn insert(&mut self, sector: u64) -> bool {
        let words = self.0.entry(sector >> 10).or_default();
        let word = &mut words[usize::try_from(sector >> 6 & 15).unwrap_or(0)];
        let is_new = *word >> (sector & 63) & 1 == 0;
        *word |= 1 << (sector & 63);
        is_new
    }
}

/// What was counted below a directory so far.
#[derive(Default)]
struct Count {
    seen: Sectors,
    usage: CompressionUsage,
}

impl Count {
    fn extent(&mut self, storage: Storage, extent: &FileExtent<'_>, sectorsize: u64) {
        let row = &mut self.usage.rows[storage.row()];
        match &extent.kind {
            FileExtentKind::Inline(stored) => {
                self.usage.inline += 1;
                let ram = extent.ram_bytes;
                row.add(Amount { disk: stored.len() as u64, uncompressed: ram, referenced: ram });
            }
            FileExtentKind::Regular(r) | FileExtentKind::Prealloc(r) => {
                self.usage.refs += 1;
                row.add(Amount { referenced: r.num_bytes.get(), ..Amount::default() });
                if self.seen.insert(r.disk_bytenr.get() / sectorsize) {
                    self.usage.extents += 1;
                    let (disk, uncompressed) = (r.disk_num_bytes.get(), extent.ram_bytes);
                    row.add(Amount { disk, uncompressed, referenced: 0 });
                }
            }
        }
    }
}

/// A directory on the way down, with its subdirectories still to visit.
struct Level {
    path: Vec<u8>,
    below: Vec<(Vec<u8>, Place)>,
}

/// Who is told of what.
pub trait Report {
    /// All below the directory at `path` (from where the count started, without a leading slash) was counted.
    ///
    /// # Errors
    /// End the count.
    fn directory(&mut self, path: &[u8], usage: &CompressionUsage) -> Result<()>;

    /// What is at `path` cannot be read, and is not counted.
    fn fault(&mut self, path: &[u8], error: Error);
}

/// The extents of several files and directories of one image, those that they share once.
#[derive(Default)]
pub struct CompressionCount {
    all: Count,
}

impl CompressionCount {
    /// What was added so far.
    pub const fn usage(&self) -> &CompressionUsage {
        &self.all.usage
    }

    /// Adds the extents of the file `top`, or of all files below the directory `top`, subvolumes included, and gives what
    /// these alone are. `report` is told of every directory at most `depth` levels below `top`, subdirectories first: each
    /// is counted as if it alone had been asked for. What is added twice is read and counted twice, but for its extents.
    ///
    /// Memory: two bits for each sector in use, and one for each level of `depth`; a name for each subdirectory of the
    /// directories that lead to where the count is; a number for each directory.
    ///
    /// # Errors
    /// `Corrupt`, `Io` where `top` itself cannot be read, and what `report` returns.
    pub fn add(
        &mut self,
        fs: &Filesystem,
        top: Place,
        depth: usize,
        report: &mut dyn Report,
    ) -> Result<CompressionUsage> {
        let mut counts = vec![std::mem::take(&mut self.all), Count::default()];
        let result = count_below(fs, top, depth, &mut counts, report);
        counts.truncate(2);
        let alone = counts.pop().unwrap_or_default();
        self.all = counts.pop().unwrap_or_default();
        result.map(|()| alone.usage)
    }
}

/// Counts in each of `counts`, which gets one more for each directory down to `depth` on the way.
fn count_below(
    fs: &Filesystem,
    top: Place,
    depth: usize,
    counts: &mut Vec<Count>,
    report: &mut dyn Report,
) -> Result<()> {
    if !fs.info(top)?.is_dir() {
        return count_file(fs, top, counts);
    }
    let mut visited = HashSet::from([top]);
    let first = counts.len();
    let mut levels = vec![Level { path: Vec::new(), below: Vec::new() }];
    levels[0].below = count_entries(fs, top, b"", counts, report)?;
    // The first `depth` levels below the top have counts of their own.
    while let Some(at) = levels.len().checked_sub(1) {
        let level = &mut levels[at];
        let Some((name, place)) = level.below.pop() else {
            if at > 0 && first + at - 1 < counts.len() {
                let done = counts.pop().unwrap_or_default();
                report.directory(&level.path, &done.usage)?;
            }
            levels.pop();
            continue;
        };
        let path = join(&level.path, &name);
        if !place.is_empty_dir() && !visited.insert(place) {
            report.fault(&path, Error::corrupt("LK-08", "a second name of a directory"));
            continue;
        }
        if at < depth {
            counts.push(Count::default());
        }
        let below = count_entries(fs, place, &path, counts, report).unwrap_or_else(|error| {
            report.fault(&path, error);
            Vec::new()
        });
        levels.push(Level { path, below });
    }
    Ok(())
}

/// Counts the files in a directory. Gives its subdirectories, the last name first.
fn count_entries(
    fs: &Filesystem,
    dir: Place,
    path: &[u8],
    counts: &mut [Count],
    report: &mut dyn Report,
) -> Result<Vec<(Vec<u8>, Place)>> {
    let mut below = Vec::new();
    lookup::entries(fs, dir, |entry| {
        let entry = match entry {
            Ok((_, entry)) => entry,
            Err(error) => {
                report.fault(path, error);
                return Ok(true);
            }
        };
        let result = match entry.file_type {
            FileType::REG_FILE => {
                count_file(fs, Place { tree: dir.tree, ino: entry.location.objectid }, counts)
            }
            FileType::DIR => lookup::target(fs, dir, entry.name, entry.location)
                .map(|place| below.push((entry.name.to_vec(), place))),
            _ => Ok(()),
        };
        if let Err(error) = result {
            report.fault(&join(path, entry.name), error);
        }
        Ok(true)
    })?;
    below.sort_by(|a, b| b.0.cmp(&a.0));
    Ok(below)
}

fn count_file(fs: &Filesystem, file: Place, counts: &mut [Count]) -> Result<()> {
    let sectorsize = fs.store().ctx().sectorsize;
    counts.iter_mut().for_each(|c| c.usage.files += 1);
    lookup::file_extents(fs, file, 0, |offset, extent| {
        let storage = match (&extent.kind, Algorithm::from_code(extent.compression)) {
            (FileExtentKind::Regular(r) | FileExtentKind::Prealloc(r), _) if r.disk_bytenr.get() == 0 => {
                return Ok(true);
            }
            (FileExtentKind::Prealloc(_), _) => Storage::Prealloc,
            (_, Some(algorithm)) => Storage::Compressed(algorithm),
            (_, None) if extent.compression == 0 => Storage::Raw,
            _ => {
                let place = format!("root={} inode {} offset {offset}", file.tree, file.ino);
                let code = extent.compression;
                let reason = format!("{place}: invalid compression, have {code} expect [0, 3]");
                return Err(Error::corrupt("FE-05", reason));
            }
        };
        counts.iter_mut().for_each(|c| c.extent(storage, &extent, sectorsize));
        Ok(true)
    })
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_told_apart() {
        let mut sectors = Sectors::default();
        let numbers = [0, 1, 63, 64, 1023, 1024, 1025, u64::MAX, u64::MAX - 1, 1 << 40];
        for number in numbers {
            assert!(sectors.insert(number), "{number}");
        }
        for number in numbers {
            assert!(!sectors.insert(number), "{number}");
        }
    }
}
