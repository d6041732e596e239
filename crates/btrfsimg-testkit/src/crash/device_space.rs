//! Workloads that move device space: it grows, changes its kind, is freed step by step, or is given back.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, ensure};
use btrfsimg_compress::WorkspacePool;
use btrfsimg_fs::block_store::BlockStore;
use btrfsimg_fs::defrag::{self, Counts, Defrag, Observer};
use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::lookup::{Place, find_entry};
use btrfsimg_fs::trim::{Method, trim};
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::contents::{self, Codec};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::{remove_tree, unlink_checked};
use btrfsimg_fs::{Error, Result as FsResult};
use btrfsimg_ondisk::block_group_flags as bg;
use tempfile::TempDir;

use super::workload::{SIZE, SMALL, Workload, child, filled, import, now, source_tree};
use crate::rng::Rng;

/// More than fits, into a file that may become longer; not so long that there would be a second superblock, which an image
/// whose first one is torn then would lack.
///
/// # Errors
/// When the image before cannot be made.
pub fn image_grown() -> Result<Workload> {
    let before = source_tree(20, 8)?;
    let start = filled(16_384, SMALL, |tx| import(tx, before.path()))?;
    let source = TempDir::new()?;
    for n in 0..6 {
        fs::write(source.path().join(format!("large{n}")), Rng::new(n).bytes(4 << 20))?;
    }
    Ok(Workload {
        name: "an image that grows",
        start,
        room: 0,
        punches: false,
        options: VolumeOptions { grow: true, ..VolumeOptions::default() },
        change: Box::new(move |volume| {
            let before = volume.store().superblock().total_bytes.get();
            let mut tx = volume.begin(now())?;
            import(&mut tx, source.path())?;
            tx.commit()?;
            match volume.store().superblock().total_bytes.get() > before {
                true => Ok(()),
                false => Err(Error::Invalid("24 MiB more fit into 40 MiB".to_owned())),
            }
        }),
    })
}

/// A new chunk for data where an empty block group of metadata was: the one commit after which device space is of
/// another chunk.
///
/// # Errors
/// When the image before cannot be made, or has no such block group.
pub fn group_given_away() -> Result<Workload> {
    let (start, count) = with_group_to_give_away()?;
    Ok(Workload {
        name: "a block group given away",
        start,
        room: 0,
        punches: false,
        options: VolumeOptions::default(),
        change: Box::new(move |volume| write_data(volume, count)?.commit()),
    })
}

/// The same, but the transaction is given up once it has written there, and what it wrote is made holes; then another
/// one is committed.
///
/// # Errors
/// As [`group_given_away`].
pub fn group_taken_back() -> Result<Workload> {
    let (start, count) = with_group_to_give_away()?;
    Ok(Workload {
        name: "a block group given away and taken back",
        start,
        room: 0,
        punches: false,
        options: VolumeOptions::default(),
        change: Box::new(move |volume| {
            drop(write_data(volume, count)?);
            let mut tx = volume.begin(now())?;
            let attributes = Attributes::new(0o100_644, now());
            create(&mut tx, Place::TOP, b"after", attributes, Vec::new())?;
            tx.commit()
        }),
    })
}

/// An image with an empty block group of metadata, and how many MiB of data take its device space.
fn with_group_to_give_away() -> Result<(Vec<u8>, u64)> {
    let start = with_empty_metadata()?;
    let before = metadata_chunks(&BlockStore::open(Arc::new(MemDevice::new(start.clone())))?);
    ensure!(before.len() > 1, "there is one block group of metadata");
    // As much as it takes.
    let mut count = 1;
    loop {
        let mut volume = Volume::open(Arc::new(MemDevice::new(start.clone())), VolumeOptions::default())?;
        write_data(&mut volume, count)
            .and_then(Transaction::commit)
            .context("no block group was given away")?;
        let after = metadata_chunks(volume.store());
        if before.iter().any(|chunk| !after.contains(chunk)) {
            return Ok((start, count));
        }
        count += 1;
    }
}

/// Writes `count` files of a MiB.
fn write_data(volume: &mut Volume, count: u64) -> FsResult<Transaction<'_>> {
    let (mut tx, pool) = (volume.begin(now())?, WorkspacePool::new(1));
    let mut codec = Codec::new(&tx, &pool, CompressionPolicy::default());
    for n in 0..count {
        let name = format!("data{n}");
        let attributes = Attributes::new(0o100_644, now());
        let file = create(&mut tx, Place::TOP, name.as_bytes(), attributes, Vec::new())?;
        contents::write_at(&mut tx, file, 0, &Rng::new(n).bytes(1 << 20), &mut codec)?;
    }
    Ok(tx)
}

fn metadata_chunks(store: &BlockStore) -> Vec<u64> {
    store.chunks().iter().filter(|c| c.flags & bg::METADATA != 0).map(|c| c.start.0).collect()
}

/// An image whose metadata have taken all the device, and are gone but for a little.
fn with_empty_metadata() -> Result<Vec<u8>> {
    let device = super::workload::new_image(16_384, SMALL, 9)?;
    let mut volume = Volume::open(device.clone(), VolumeOptions::default())?;
    let mut tx = volume.begin(now())?;
    let dir = create(&mut tx, Place::TOP, b"full", Attributes::new(0o040_755, now()), Vec::new())?;
    tx.commit()?;
    let large = vec![b'x'; 12_000];
    let mut n = 0;
    loop {
        let mut tx = volume.begin(now())?;
        let filled = (0..100).try_for_each(|_| {
            n += 1;
            let xattrs = vec![(b"user.large".to_vec(), large.clone())];
            let attributes = Attributes::new(0o100_644, now());
            create(&mut tx, dir, format!("f{n}").as_bytes(), attributes, xattrs).map(drop)
        });
        match filled {
            Ok(()) => tx.commit()?,
            Err(Error::NoSpace { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut tx = volume.begin(now())?;
    remove_tree(&mut tx, Place::TOP, b"full", dir, "/full")?;
    tx.commit()?;
    Ok(device.contents())
}

/// Files in small pieces, made anew in steps.
///
/// # Errors
/// When the image before cannot be made.
pub fn files_defragmented(scale: usize) -> Result<Workload> {
    let start = filled(4096, SIZE, |tx| {
        let pool = WorkspacePool::new(1);
        let mut codec = Codec::new(tx, &pool, CompressionPolicy::default());
        let mut files = Vec::new();
        for n in 0..3 * scale {
            let attributes = Attributes::new(0o100_644, now());
            files.push(create(tx, Place::TOP, format!("f{n}").as_bytes(), attributes, Vec::new())?);
        }
        let mut rng = Rng::new(10);
        for piece in 0..24 {
            for file in &files {
                contents::write_at(tx, *file, piece * 8192, &rng.bytes(8192), &mut codec)?;
            }
        }
        Ok(())
    })?;
    Ok(Workload {
        name: "files defragmented",
        start,
        room: 1 << 20,
        punches: false,
        options: VolumeOptions::default(),
        change: Box::new(move |volume| {
            let (pool, stop) = (WorkspacePool::new(1), AtomicBool::new(false));
            let target = defrag::DEFAULT_TARGET;
            let options =
                defrag::Options { request: "zlib".parse().ok(), recompress: false, target, unshare: false };
            let mut defrag = Defrag::new(options);
            defrag.add(b"/".to_vec(), Place::TOP, true);
            loop {
                let mut tx = volume.begin(now())?;
                let more = defrag.step(&mut tx, 128 << 10, &pool, &stop, &mut Nobody)?;
                tx.commit()?;
                if !more {
                    break;
                }
            }
            // What is the same to read is to differ in something.
            let mut tx = volume.begin(now())?;
            if find_entry(&tx, Place::TOP, b"done")?.is_none() {
                create(&mut tx, Place::TOP, b"done", Attributes::new(0o100_644, now()), Vec::new())?;
            }
            tx.commit()
        }),
    })
}

struct Nobody;

impl Observer for Nobody {
    fn file(&mut self, _: &[u8], _: &Counts) {}

    fn failed(&mut self, _: &[u8], _: Error) {}
}

/// A file removed, what it had given back as holes or zeros, and another one made.
///
/// # Errors
/// When the image before cannot be made.
pub fn space_trimmed(method: Method) -> Result<Workload> {
    let before = source_tree(12, 11)?;
    let start = filled(16_384, SIZE, |tx| {
        import(tx, before.path())?;
        create(tx, Place::TOP, b"old", Attributes::new(0o100_644, now()), Vec::new()).map(|file| {
            let pool = WorkspacePool::new(1);
            let mut codec = Codec::new(tx, &pool, CompressionPolicy::default());
            contents::write_at(tx, file, 0, &Rng::new(12).bytes(1 << 20), &mut codec)
        })?
    })?;
    let step = |volume: &mut Volume, change: &dyn Fn(&mut Transaction<'_>) -> FsResult<()>| {
        let mut tx = volume.begin(now())?;
        change(&mut tx)?;
        tx.commit()
    };
    Ok(Workload {
        name: if method == Method::Zeros { "free space overwritten" } else { "free space punched" },
        start,
        room: 1 << 20,
        punches: method == Method::Holes,
        options: VolumeOptions::default(),
        change: Box::new(move |volume| {
            // Each goes on from where it was when the power went.
            step(volume, &|tx| match find_entry(tx, Place::TOP, b"old")? {
                Some(_) => {
                    let file = child(tx, Place::TOP, b"old")?;
                    unlink_checked(tx, Place::TOP, b"old", file, "/old")
                }
                None => Ok(()),
            })?;
            trim(volume.store(), method)?;
            step(volume, &|tx| match find_entry(tx, Place::TOP, b"new")? {
                Some(_) => Ok(()),
                None => {
                    create(tx, Place::TOP, b"new", Attributes::new(0o100_644, now()), Vec::new()).map(drop)
                }
            })
        }),
    })
}
