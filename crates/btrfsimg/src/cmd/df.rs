//! `df`: how full an image is.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use btrfsimg_fs::inspect::{SpaceUsage, space_usage};
use btrfsimg_ondisk::block_group_flags as bg;
use serde_json::{Value, json};

use crate::address::ImageArgs;
use crate::output::{Ui, about_image, pretty_size, print_json, stdout};

/// Show how full an image is
///
/// What of the device is allocated to block groups, and how much of each kind of them is used, as 'btrfs filesystem df'
/// and 'usage' have it. Used counts copies (DUP, RAID1); free is an estimate of what files may still take.
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg df out.img
  btrfsimg df -b --json out.img"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Print bytes instead of rounded sizes
    #[arg(short, long)]
    bytes: bool,
    /// Accepted for habit: without -b sizes are rounded in any case
    #[arg(short = 'h', long = "human-readable", conflicts_with = "bytes")]
    _human_readable: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The images
    #[arg(value_name = "IMAGE")]
    images: Vec<OsString>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let addresses = args.image.addresses(&args.images)?;
    let (mut documents, mut out) = (Vec::new(), stdout());
    args.image.for_each(&addresses, ui, |image, address| {
        let usage = space_usage(&image.fs)?;
        if args.json {
            documents.push(about_image(&address.image, document(&usage)));
            return Ok(());
        }
        if addresses.len() > 1 {
            writeln!(out, "{}:", address.image.display())?;
        }
        write(&mut out, &usage, args.bytes)
    })?;
    if args.json {
        return print_json(json!({ "images": documents }));
    }
    out.flush()?;
    Ok(())
}

fn write(out: &mut impl Write, usage: &SpaceUsage, bytes: bool) -> Result<()> {
    let size = |n: u64| if bytes { n.to_string() } else { pretty_size(n) };
    for (name, n) in [
        ("Device size", usage.device_size),
        ("Device allocated", usage.device_allocated),
        ("Device unallocated", usage.unallocated()),
        ("Used", usage.used()),
        ("Free (estimated)", usage.free_estimated()),
    ] {
        writeln!(out, "{:<20} {:>12}", format!("{name}:"), size(n))?;
    }
    for ((kind, profile), group) in &usage.groups {
        let (kind, profile) = (type_name(*kind), profile_name(*profile));
        writeln!(out, "{kind}, {profile}: total={}, used={}", size(group.total), size(group.used))?;
    }
    Ok(())
}

fn type_name(bits: u64) -> &'static str {
    match bits {
        bg::DATA => "Data",
        bg::SYSTEM => "System",
        bg::METADATA => "Metadata",
        both if both == bg::DATA | bg::METADATA => "Data+Metadata",
        _ => "unknown",
    }
}

fn profile_name(bits: u64) -> &'static str {
    match bits {
        0 => "single",
        bg::RAID0 => "RAID0",
        bg::RAID1 => "RAID1",
        bg::DUP => "DUP",
        bg::RAID10 => "RAID10",
        bg::RAID5 => "RAID5",
        bg::RAID6 => "RAID6",
        bg::RAID1C3 => "RAID1C3",
        bg::RAID1C4 => "RAID1C4",
        _ => "unknown",
    }
}

fn document(usage: &SpaceUsage) -> Value {
    let groups = usage.groups.iter().map(|((kind, profile), group)| {
        json!({
            "type": type_name(*kind),
            "profile": profile_name(*profile),
            "total": group.total,
            "used": group.used,
            "disk_total": group.disk_total,
            "disk_used": group.disk_used,
        })
    });
    json!({
        "device_size": usage.device_size,
        "device_allocated": usage.device_allocated,
        "device_unallocated": usage.unallocated(),
        "used": usage.used(),
        "free_estimated": usage.free_estimated(),
        "block_groups": groups.collect::<Vec<_>>(),
    })
}
