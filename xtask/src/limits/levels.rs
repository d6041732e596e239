//! Bytes used at each level, by our superblock and by that of the kernel's image.

use super::Limits;
use crate::{speed::makers, speed::makers::OURS, trees};
use anyhow::{Context, Result};
use btrfsimg_ondisk::Superblock;
use std::{fs, os::unix::fs::FileExt as _, path::Path};
use zerocopy::FromBytes as _;

/// Where the first superblock is.
const SUPERBLOCK: u64 = 64 << 10;

impl Limits<'_> {
    pub(super) fn levels(&mut self) -> Result<()> {
        let mut place = makers::Place {
            tmpfs: self.tmpfs.path().to_owned(),
            source: self.source.clone(),
            bytes: self.bytes,
        };
        if let Some(sample) = &self.options.sample {
            place.source = self.tmpfs.path().join("sample");
            place.bytes = trees::size(sample)?;
            trees::copy(sample, &place.source)?;
        }
        let zlib = (1..=9).map(|level| format!("zlib:{level}"));
        let zstd = (-15..=15).filter(|level| *level != 0).map(|level| format!("zstd:{level}"));
        for spec in ["none".to_owned(), "lzo".to_owned()].into_iter().chain(zlib).chain(zstd) {
            let makers = makers::all(&self.binary, std::slice::from_ref(&spec), true);
            let used = |name: &str| -> Result<f64> {
                let maker = makers.iter().find(|m| m.name == name).context("a maker is missing")?;
                fs::remove_file(place.image()).ok();
                maker.run(&place)?;
                bytes_used(&place.image())
            };
            let (ours, kernel) = (used(OURS)?, used("kernel, cp -a")?);
            self.row(&format!("{spec}, MiB used against the kernel"), ours, kernel, 1.01);
        }
        fs::remove_file(place.image())?;
        Ok(())
    }
}

/// MiB that the superblock calls used.
fn bytes_used(image: &Path) -> Result<f64> {
    let mut bytes = [0; size_of::<Superblock>()];
    fs::File::open(image)?.read_exact_at(&mut bytes, SUPERBLOCK)?;
    let superblock = Superblock::read_from_bytes(&bytes).map_err(|e| anyhow::anyhow!("{e}"))?;
    Ok(superblock.bytes_used.get() as f64 / f64::from(1 << 20))
}
