//! Images that are filled, half emptied and filled again; ten rounds are `cargo xtask aged`.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use btrfsimg_compress::{Algorithm, CompressionSpec, Method, WorkspacePool};
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Place, resolve};
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use btrfsimg_fs::write::contents::{Codec, write_at};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::unlink_checked;
use btrfsimg_testkit::aged::{Files, Plan, Who, capacities, run};
use btrfsimg_testkit::crash::{trial, workload};
use btrfsimg_testkit::oracle::JudgeOptions;
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::{Oracle, btrfs_progs};

fn age(plan: &Plan) {
    let aged = run(plan).unwrap_or_else(|error| panic!("{plan:?}: {error:#}"));
    // Data alone may take all but the first MiB and the metadata, which mkfs gives a tenth at most.
    assert!(aged.capacity > plan.size / 100 * 70, "{aged:?}");
}

#[test]
fn an_aged_image_has_all_its_space() {
    age(&Plan {
        seed: 1,
        size: 160 << 20,
        nodesize: 16_384,
        rounds: 2,
        who: Who::Ours,
        files: Files::Mixed,
        compress: false,
    });
}

/// So large that btrfsimg has given all unallocated space to data when it is full, and the kernel, which finds half of it
/// deleted, needs metadata.
#[test]
fn an_image_aged_with_the_kernel_has_all_its_space() {
    age(&Plan {
        seed: 2,
        size: 512 << 20,
        nodesize: 16_384,
        rounds: 2,
        who: Who::InTurn,
        files: Files::Mixed,
        compress: false,
    });
}

/// What is kept from data, for metadata and for removing, is no more than the kernel keeps: also of small images, of which
/// it is a larger part.
#[test]
fn an_image_takes_as_much_as_by_the_kernel() {
    if !Oracle::new().has_kernel() || !Oracle::new().has_progs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (mib, mixed) in [(16, true), (64, false), (256, false)] {
        let (start, size) = (dir.path().join("start.img"), mib << 20);
        match mixed {
            true => btrfs_progs::mkfs(&start, size, &["-M"]).unwrap(),
            false => trial::save(&*workload::new_image(16_384, size, 1).unwrap(), &start).unwrap(),
        }
        let plan = Plan {
            seed: 1,
            size,
            nodesize: 16_384,
            rounds: 0,
            who: Who::Ours,
            files: Files::Equal,
            compress: false,
        };
        let [kernel, ours] = capacities(&plan, &start).unwrap();
        let shown = format!("{mib} MiB, mixed {mixed}: the kernel {kernel}, btrfsimg {ours}");
        println!("{shown}");
        assert!(ours * 100 >= kernel * 97, "{shown}");
    }
}

/// A compressed extent is in one piece. Where free space is in shorter ones, what it holds is stored as it is, as by the
/// kernel.
#[test]
fn compressed_data_go_into_short_free_runs() {
    const RUN: usize = 64 << 10;
    let device = workload::new_image(16_384, 64 << 20, 1).unwrap();
    let options = VolumeOptions { no_sync: true, ..VolumeOptions::default() };
    let mut volume = Volume::open(device.clone(), options).unwrap();
    let pool = WorkspacePool::new(1);
    let write = |volume: &mut Volume, name: &str, bytes: &[u8], request| {
        let mut tx = volume.begin(workload::now())?;
        let attributes = Attributes::new(0o100_644, workload::now());
        let place = create(&mut tx, Place::TOP, name.as_bytes(), attributes, Vec::new())?;
        let mut codec = Codec::new(&tx, &pool, CompressionPolicy { request, ..CompressionPolicy::default() });
        write_at(&mut tx, place, 0, bytes, &mut codec)?;
        tx.commit()
    };
    let mut count = 0;
    let full = loop {
        match write(&mut volume, &format!("f{count}"), &Rng::new(count).bytes(RUN), None) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::NoSpace { .. }) && count > 400, "{count} files: {full}");
    let mut tx = volume.begin(workload::now()).unwrap();
    for n in (0..count).step_by(2) {
        let name = format!("f{n}");
        let file = resolve(&tx, Place::TOP, name.as_bytes(), false).unwrap();
        unlink_checked(&mut tx, Place::TOP, name.as_bytes(), file, &name).unwrap();
    }
    tx.commit().unwrap();
    // Compressed, 128 KiB take a little more than such a run.
    let mut bytes = Rng::new(7).bytes(4 << 20);
    bytes.chunks_mut(4096).for_each(|sector| sector[..2048].fill(0));
    let zstd = CompressionSpec::Method(Method::with_default_level(Algorithm::Zstd));
    write(&mut volume, "compressed", &bytes, Some(zstd)).unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("pieces.img");
    trial::save(&*device, &image).unwrap();
    let judge = JudgeOptions { write_bytes: 0, ..JudgeOptions::default() };
    Oracle::new().judge_with(&image, &judge).unwrap().assert_ok();
    if let Some(mount) = Oracle::new().mount(&image, "ro").unwrap() {
        assert!(std::fs::read(mount.path().join("compressed")).unwrap() == bytes);
    }
}
