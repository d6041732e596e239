//! What the kernel is made to do on a copy of an image, so that the image's free space, reference counts and
//! trees are not only looked at but relied on.

use crate::rng::Rng;
use anyhow::{Context, Result, ensure};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, symlink},
    path::Path,
};

const SMALL_FILES: usize = 40;

/// Creates, overwrites, renames, links, truncates and deletes below `top`, syncing in between, and reads back.
/// About `bytes` bytes are written, half of them incompressible. Some of the result stays.
pub(crate) fn write(top: &Path, bytes: usize) -> Result<()> {
    let dir = top.join(".oracle.d");
    let mut rng = Rng::new(1);
    let random = rng.bytes(bytes / 2);
    let text = b"all work and no play\n".iter().copied().cycle().take(bytes / 2).collect::<Vec<u8>>();
    create(&dir, &random, &text).context("creating")?;
    sync(top).context("first sync")?;
    let kept = change(&dir, random).context("changing")?;
    sync(top).context("second sync")?;
    let back = fs::read(dir.join("sub/moved")).context("reading back")?;
    ensure!(back == kept, "a file that the kernel wrote reads back differently");
    Ok(())
}

fn create(dir: &Path, random: &[u8], text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(dir.join("sub/empty"))?;
    fs::write(dir.join("random"), random)?;
    fs::write(dir.join("text"), text)?;
    for i in 0..SMALL_FILES {
        fs::write(dir.join(format!("small{i}")), &random[..random.len().min(i * 70)])?;
    }
    symlink("random", dir.join("symlink"))
}

/// The contents that `sub/moved` must have at the end.
fn change(dir: &Path, mut random: Vec<u8>) -> io::Result<Vec<u8>> {
    let moved = dir.join("sub/moved");
    fs::rename(dir.join("random"), &moved)?;
    let patch = b"overwritten in the middle";
    let middle = random.len() / 2;
    if middle > patch.len() {
        File::options().write(true).open(&moved)?.write_all_at(patch, middle as u64)?;
        random[middle..middle + patch.len()].copy_from_slice(patch);
    }
    fs::hard_link(&moved, dir.join("link"))?;
    File::options().write(true).open(dir.join("text"))?.set_len(5000)?;
    for i in (0..SMALL_FILES).step_by(2) {
        fs::remove_file(dir.join(format!("small{i}")))?;
    }
    fs::remove_dir(dir.join("sub/empty"))?;
    fs::remove_file(dir.join("symlink"))?;
    Ok(random)
}

fn sync(top: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(top)?)?)
}
