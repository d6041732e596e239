//! `trim`: what an image does not use goes back to the host.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use btrfsimg_fs::block_store::BlockStore;
use btrfsimg_fs::device::{Access, Device as _};
use btrfsimg_fs::trim::{Method, trim};
use btrfsimg_fs::txn::{Volume, VolumeOptions};
use serde_json::json;

use crate::address::ImageArgs;
use crate::edit::EditArgs;
use crate::output::{Ui, about_image, print_json};

/// Give back what an image does not use
///
/// Punches holes into the file wherever the file system has free space, so that the image takes no more room on the
/// host than its contents, and nothing that was deleted is left in it. (On a block device, discards.) What of deleted
/// subvolumes is not dropped yet is in use; see 'subvol sync'. Older states (mount -o usebackuproot) go as well.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg trim out.img
  btrfsimg trim -n out.img
  btrfsimg trim --wait=60 out.img
  btrfsimg trim --zero=always out.img")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Overwrite with zeros where the host cannot make holes; with 'always', everywhere
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto"
    )]
    zero: Option<Zero>,
    /// Change nothing, only say what is free
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not wait until it is durable
    #[arg(long)]
    no_sync: bool,
    /// Wait for another program that uses the image, at most so long
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<u64>>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The image
    #[arg(value_name = "IMAGE")]
    object: Option<OsString>,
}

/// When zeros are written.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Zero {
    /// Where holes cannot be made.
    Auto,
    /// Everywhere.
    Always,
}

pub(crate) fn run(args: &Args, _ui: &Ui) -> Result<()> {
    let path = args.image.address_or_top(args.object.as_ref())?.image;
    let name = || path.display().to_string();
    let method = match (args.dry_run, args.zero) {
        (true, _) => Method::Count,
        (false, None) => Method::Holes,
        (false, Some(Zero::Auto)) => Method::HolesOrZeros,
        (false, Some(Zero::Always)) => Method::Zeros,
    };
    let access = if args.dry_run { Access::Read } else { Access::Write };
    // A signal ends the process.
    let edit = EditArgs { wait: args.wait, ..EditArgs::default() };
    let device = Arc::new(edit.open(&path, access, args.image.offset, &AtomicBool::new(false))?);
    // Blocks of 512 bytes that the file takes.
    let taken = || std::fs::metadata(&path).map(|meta| meta.blocks().saturating_mul(512)).with_context(name);
    let before = taken()?;
    let trimmed = if args.dry_run {
        trim(&BlockStore::open(device.clone()).with_context(name)?, method).with_context(name)?
    } else {
        // As any writer: not where something is not understood.
        let volume = Volume::open(device.clone(), VolumeOptions::default()).with_context(name)?;
        trim(volume.store(), method).with_context(name)?
    };
    if !args.dry_run && !args.no_sync {
        device.sync().with_context(name)?;
    }
    let given_back = before.saturating_sub(taken()?);
    if args.json {
        let fields = json!({
            "dry_run": args.dry_run,
            "free": trimmed.total(),
            "free_in_block_groups": trimmed.in_groups,
            "free_unallocated": trimmed.unallocated,
            "given_back": given_back,
            "taken": before - given_back,
        });
        return print_json(about_image(&path, fields));
    }
    let free = format!("{}: {} bytes are not used", name(), trimmed.total());
    crate::output::print_line(&match (args.dry_run, method) {
        (true, _) => format!("{free}; the file takes {before}"),
        (_, Method::Zeros) => format!("{free}, and zero now"),
        _ => format!("{free}, {given_back} given back; the file takes {}", before - given_back),
    })
}
