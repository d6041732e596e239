//! A chain of a million directories, each in the one before: whatever reads it ends in time and in bounded memory.

use crate::{
    images,
    measure::{self, Cost},
    trees::Tmpfs,
};
use anyhow::{Context as _, Result, ensure};
use btrfsimg_fs::{
    device::{Access, FileDevice},
    lookup::Place,
    txn::{Volume, VolumeOptions},
    write::{create::create, inode::Attributes},
};
use btrfsimg_ondisk::Timespec;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Instant,
};

/// Options of `cargo xtask deep`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directories in the chain
    #[arg(long, default_value_t = 1_000_000)]
    levels: u64,
    /// Most seconds that a command may take
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Most MiB that it may take
    #[arg(long, default_value_t = 512.0)]
    memory: f64,
    /// This binary instead of the release build
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Prints what each command costs; an error where one takes too much.
pub(crate) fn run(options: &Options) -> Result<()> {
    let binary = images::binary(options.binary.as_deref())?;
    let tmpfs = Tmpfs::mount(16 << 30)?;
    let (image, out) = (tmpfs.path().join("deep.img"), tmpfs.path().join("out"));
    let start = Instant::now();
    make(&binary, &image, options.levels)?;
    println!("a chain of {} directories, made in {:.1} s", options.levels, start.elapsed().as_secs_f64());
    let at = |path: &str| OsString::from(format!("{}:{path}", image.display()));
    let copy = |name: &str| out.with_extension(name).into_os_string();
    let mut too_much = Vec::new();
    for (name, args) in [
        ("verify", vec!["verify".into(), "--data".into(), image.clone().into()]),
        ("ls -R", vec!["ls".into(), "-R".into(), at("/")]),
        ("inspect tree", vec!["inspect".into(), "tree".into(), image.clone().into()]),
        ("cp -r", vec!["cp".into(), "-r".into(), at("/d"), copy("plain")]),
        ("cp -r --salvage", vec!["cp".into(), "-r".into(), "--salvage".into(), at("/"), copy("salvaged")]),
    ] {
        let Cost { wall, peak, .. } = measure(&binary, args).with_context(|| name.to_owned())?;
        println!("  {name:16} {wall:6.2} s {peak:6.0} MiB");
        if wall > options.seconds || peak > options.memory {
            too_much.push(name);
        }
    }
    ensure!(too_much.is_empty(), "more than {} s or {} MiB: {too_much:?}", options.seconds, options.memory);
    Ok(())
}

/// Runs the command; its codes 0 to 4 are answers.
fn measure(binary: &Path, args: Vec<OsString>) -> Result<Cost> {
    let answered = ["sh", "-c", r#"timeout -s KILL 120 "$@"; test $? -le 4"#, "sh"];
    let argv: Vec<OsString> =
        answered.into_iter().map(OsString::from).chain([binary.into()]).chain(args).collect();
    measure::run(&argv)
}

fn make(binary: &Path, image: &Path, levels: u64) -> Result<()> {
    let size = (levels * 2048 + (1 << 30)).to_string();
    let made = Command::new(binary).args(["mkfs", "-q", "-b", &size]).arg(image).status()?;
    ensure!(made.success(), "mkfs fails");
    let now = Timespec::new(1_700_000_000, 0);
    let device = Arc::new(FileDevice::open(image, Access::Write, 0)?);
    let options = VolumeOptions { no_sync: true, ..VolumeOptions::default() };
    let mut volume = Volume::open(device, options)?;
    let mut tx = volume.begin(now)?;
    let mut at = Place::TOP;
    for _ in 0..levels {
        at = create(&mut tx, at, b"d", Attributes::new(0o040_755, now), Vec::new())?;
    }
    create(&mut tx, at, b"bottom", Attributes::new(0o100_644, now), Vec::new())?;
    tx.commit()?;
    Ok(())
}
