//! What the tests of the command share: running it, images made by the kernel, and damage.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use btrfsimg_ondisk::CsumType;
use btrfsimg_testkit::btrfs_progs;
use btrfsimg_testkit::oracle::Oracle;
use tempfile::TempDir;

/// What the command did.
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    /// Standard output as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// Fails the test unless it ended with `code`.
    #[track_caller]
    pub fn expect(self, code: i32) -> Ran {
        assert_eq!(
            self.code,
            code,
            "stdout: {}\nstderr: {}",
            String::from_utf8_lossy(&self.stdout),
            self.stderr
        );
        self
    }
}

/// Runs the command.
pub fn run<S: AsRef<OsStr>>(args: &[S]) -> Ran {
    let Output { status, stdout, stderr } = command(args).stdin(Stdio::null()).output().unwrap();
    let code = status.code().unwrap_or_else(|| panic!("died of {status}"));
    Ran { code, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
}

/// The command with these arguments.
pub fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_btrfsimg"));
    command.args(args);
    command
}

/// Seconds that a command may take, and its address space in KiB.
const SECONDS: u64 = 10;
const KIB: u64 = 512 << 10;

/// Runs the command under these limits. Codes 0 to 5 are answers; 101 is a panic, none a signal.
#[track_caller]
pub fn limited(args: &[&str]) -> (i32, Output) {
    let script = format!("ulimit -v {KIB}; exec timeout -s KILL {SECONDS} \"$@\"");
    let start = Instant::now();
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_btrfsimg")]).args(args);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let code = output.status.code().unwrap_or(-1);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!((0..=5).contains(&code), "{args:?}: {}: {said}", output.status);
    assert!(start.elapsed() < Duration::from_secs(SECONDS), "{args:?}");
    (code, output)
}

/// A directory for one test, and an image in it.
pub struct Lab {
    pub dir: TempDir,
    pub image: PathBuf,
}

impl Lab {
    /// An image of 512 MiB made by mkfs.btrfs with `mkfs_args`, mounted with `options`, and filled by `fill`.
    /// `None` where this machine cannot.
    pub fn kernel_made(mkfs_args: &[&str], options: &str, fill: impl FnOnce(&Path)) -> Option<Lab> {
        let oracle = Oracle::new();
        if !oracle.has_progs() || !oracle.has_kernel() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("k.img");
        btrfs_progs::mkfs(&image, 512 << 20, mkfs_args).unwrap();
        let mount = oracle.mount(&image, options).unwrap()?;
        fill(mount.path());
        assert_eq!(mount.unmount().unwrap(), [""; 0]);
        Some(Lab { dir, image })
    }

    /// The address of a path in the image.
    pub fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.image.display())
    }

    /// A path beside the image.
    pub fn host(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Mounts the image read-only and calls `look` with the mount point.
    pub fn mounted(&self, look: impl FnOnce(&Path)) {
        let mount = Oracle::new().mount(&self.image, "ro").unwrap().unwrap();
        look(mount.path());
    }
}

/// Runs a shell script in `dir`; it must succeed.
#[track_caller]
pub fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("bash").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const NODESIZE: usize = 16384;

/// Replaces `from` with `to`, of the same length, in every tree block that holds it, and makes those blocks'
/// checksums right again. Gives how many blocks that were.
pub fn patch_blocks(image: &Path, from: &[u8], to: &[u8]) -> usize {
    assert_eq!(from.len(), to.len());
    edit_blocks(image, |block| {
        let mut hits = block.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(at, _)| at);
        let found: Vec<usize> = hits.by_ref().collect();
        found.iter().for_each(|at| block[*at..at + to.len()].copy_from_slice(to));
        !found.is_empty()
    })
}

/// Calls `edit` with every tree block of the image that is in use or was; seals those that it changed.
pub fn edit_blocks(image: &Path, mut edit: impl FnMut(&mut [u8]) -> bool) -> usize {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut superblock = [0; 4096];
    file.read_exact_at(&mut superblock, 65536).unwrap();
    let fsid: [u8; 16] = superblock[32..48].try_into().unwrap();
    let len = fs::metadata(image).unwrap().len();
    let (mut at, mut edited, mut block) = (0, 0, vec![0; NODESIZE]);
    while at + NODESIZE as u64 <= len {
        file.read_exact_at(&mut block, at).unwrap();
        if block[32..48] == fsid && edit(&mut block) {
            let csum = CsumType::Crc32c.of_block(&block);
            block[..32].copy_from_slice(&csum.0);
            file.write_all_at(&block, at).unwrap();
            edited += 1;
        }
        at += 4096;
    }
    edited
}

/// The key types in a leaf.
pub fn item_types(block: &[u8]) -> Vec<u8> {
    let count = u32::from_le_bytes(block[96..100].try_into().unwrap()) as usize;
    (0..count.min(600)).map(|slot| block[101 + slot * 25 + 8]).collect()
}

/// Calls `edit` with the type and the bytes of every item; the blocks of those that it changes are sealed again.
pub fn edit_items(image: &Path, mut edit: impl FnMut(u8, &mut [u8]) -> bool) -> usize {
    edit_blocks(image, |block| {
        let types = if block[100] == 0 { item_types(block) } else { Vec::new() };
        let mut changed = false;
        for (slot, key_type) in types.into_iter().enumerate() {
            let head = 101 + slot * 25;
            let number = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap()) as usize;
            let (offset, size) = (number(head + 17), number(head + 21));
            if let Some(item) = block.get_mut(101 + offset..101 + offset + size) {
                changed |= edit(key_type, item);
            }
        }
        changed
    })
}

const DIR_INDEX: u8 = 96;

/// Calls `edit` with every DIR_INDEX item that has `name`; the blocks are sealed again. In an item: location (17),
/// transid (8), data_len (2), name_len (2), type (1), name.
pub fn edit_index(image: &Path, name: &str, mut edit: impl FnMut(&mut [u8])) {
    let mut edited = 0;
    edit_blocks(image, |block| {
        let count = u32::from_le_bytes(block[96..100].try_into().unwrap()) as usize;
        let mut changed = false;
        for slot in 0..count.min(600) {
            let at = 101 + slot * 25;
            let number = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap()) as usize;
            let (offset, size) = (number(at + 17), number(at + 21));
            if block[100] != 0 || block[at + 8] != DIR_INDEX || size != 30 + name.len() {
                continue;
            }
            let item = block.get_mut(101 + offset..101 + offset + size);
            if let Some(item) = item.filter(|item| &item[30..] == name.as_bytes()) {
                edit(item);
                changed = true;
            }
        }
        edited += usize::from(changed);
        changed
    });
    assert!(edited > 0, "no index holds {name}");
}

/// The offsets in the image file of all places that hold `bytes`, aligned to sectors.
pub fn find_sectors(image: &Path, bytes: &[u8]) -> Vec<u64> {
    let file = File::open(image).unwrap();
    let len = fs::metadata(image).unwrap().len();
    let mut buf = vec![0; bytes.len()];
    (0..len / 4096)
        .map(|sector| sector * 4096)
        .filter(|at| file.read_exact_at(&mut buf, *at).is_ok() && buf == bytes)
        .collect()
}

/// Overwrites bytes of the image file.
pub fn overwrite(image: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(image).unwrap().write_all_at(bytes, at).unwrap();
}
