//! `inspect super`.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::inspect::{SuperCopy, superblocks};
use btrfsimg_ondisk::{
    BackupRoot, CsumType, Superblock, Uuid, block_group_flags, compat_ro_names, incompat_names, sys_chunks,
};
use serde_json::{Value, json};

use super::image_of;
use crate::address::ImageArgs;
use crate::exit::CORRUPT;
use crate::output::{Ui, print_json, put_bytes, shown, stdout};

/// Show the superblock
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg inspect super out.img
  btrfsimg inspect super -a -f --json out.img")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// All copies, not only the primary one
    #[arg(short, long)]
    all: bool,
    /// The backup roots and the system chunks too
    #[arg(short, long)]
    full: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image
    #[arg(value_name = "IMAGE")]
    file: Option<OsString>,
}

pub(super) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let path = image_of(&args.image, args.file.as_ref())?;
    let name = path.display().to_string();
    let device = FileDevice::open(&path, Access::Read, args.image.offset)?;
    let mut copies = superblocks(&device).with_context(|| name.clone())?;
    if !args.all {
        copies.truncate(1);
    }
    for copy in &copies {
        for fault in &copy.faults {
            ui.fail(&format!("{name}: superblock at byte {}: {fault}", copy.at), CORRUPT);
        }
    }
    if args.json {
        let copies: Vec<Value> = copies.iter().map(|c| json_copy(c, args.full)).collect();
        return print_json(json!({ "superblocks": copies }));
    }
    let mut out = stdout();
    for (i, copy) in copies.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        for (field, value) in fields(copy) {
            writeln!(out, "{field:<24}{value}")?;
        }
        if args.full {
            for line in extra(&copy.superblock) {
                writeln!(out, "{line}")?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

/// The fields in the order of the disk, as text.
fn fields(copy: &SuperCopy) -> Vec<(&'static str, String)> {
    let sb = &copy.superblock;
    let csum_type = sb.csum_kind();
    let width = csum_type.map_or(4, CsumType::width);
    let named = |bits: u64, names: Vec<String>| match names.is_empty() {
        true => format!("0x{bits:x}"),
        false => format!("0x{bits:x} ({})", names.join(" ")),
    };
    let csum_name = csum_type.map_or_else(|| sb.csum_type.to_string(), |c| format!("{} ({c})", sb.csum_type));
    let match_note = if copy.faults.iter().any(|f| f.rule.0 == "SB-03") { "DON'T MATCH" } else { "match" };
    let uuid = |bytes: [u8; 16]| Uuid::from_bytes(bytes).to_string();
    let dev = &sb.dev_item;
    vec![
        ("superblock", format!("bytenr={}", copy.at)),
        ("csum", format!("0x{} [{match_note}]", hex(&sb.csum[..width]))),
        ("fsid", uuid(sb.fsid)),
        ("bytenr", sb.bytenr.to_string()),
        ("flags", format!("0x{:x}", sb.flags.get())),
        ("magic", shown(&sb.magic)),
        ("generation", sb.generation.to_string()),
        ("root", sb.root.to_string()),
        ("chunk_root", sb.chunk_root.to_string()),
        ("log_root", sb.log_root.to_string()),
        ("total_bytes", sb.total_bytes.to_string()),
        ("bytes_used", sb.bytes_used.to_string()),
        ("root_dir", sb.root_dir_objectid.to_string()),
        ("num_devices", sb.num_devices.to_string()),
        ("sectorsize", sb.sectorsize.to_string()),
        ("nodesize", sb.nodesize.to_string()),
        ("leafsize", sb.leafsize.to_string()),
        ("stripesize", sb.stripesize.to_string()),
        ("sys_array_size", sb.sys_chunk_array_size.to_string()),
        ("chunk_root_generation", sb.chunk_root_generation.to_string()),
        ("compat_flags", format!("0x{:x}", sb.compat_flags.get())),
        ("compat_ro_flags", named(sb.compat_ro_flags.get(), compat_ro_names(sb.compat_ro_flags.get()))),
        ("incompat_flags", named(sb.incompat_flags.get(), incompat_names(sb.incompat_flags.get()))),
        ("csum_type", csum_name),
        ("root_level", sb.root_level.to_string()),
        ("chunk_root_level", sb.chunk_root_level.to_string()),
        ("log_root_level", sb.log_root_level.to_string()),
        ("label", shown(sb.label())),
        ("cache_generation", sb.cache_generation.to_string()),
        ("uuid_tree_generation", sb.uuid_tree_generation.to_string()),
        ("metadata_uuid", uuid(sb.metadata_uuid)),
        ("dev_item.devid", dev.devid.to_string()),
        ("dev_item.total_bytes", dev.total_bytes.to_string()),
        ("dev_item.bytes_used", dev.bytes_used.to_string()),
        ("dev_item.io_align", dev.io_align.to_string()),
        ("dev_item.io_width", dev.io_width.to_string()),
        ("dev_item.sector_size", dev.sector_size.to_string()),
        ("dev_item.type", dev.dev_type.to_string()),
        ("dev_item.generation", dev.generation.to_string()),
        ("dev_item.uuid", uuid(dev.uuid)),
        ("dev_item.fsid", uuid(dev.fsid)),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The backup roots and the system chunks, one a line.
fn extra(sb: &Superblock) -> Vec<String> {
    let backups = sb.super_roots.iter().enumerate().map(|(i, b)| format!("backup {i}: {}", backup(b)));
    let chunks = sys_chunks(sb).map(|chunk| match chunk {
        Ok(c) => {
            let kind = block_group_flags::describe(c.chunk.flags.get());
            let stripes: Vec<String> =
                c.stripes.iter().map(|s| format!("devid {} offset {}", s.devid, s.offset)).collect();
            format!("system chunk {}: length {} type {kind}; {}", c.key, c.chunk.length, stripes.join("; "))
        }
        Err(reason) => format!("system chunk: {reason}"),
    });
    backups.chain(chunks).collect()
}

fn backup(b: &BackupRoot) -> String {
    format!(
        "tree_root {} gen {} level {} chunk_root {} gen {} level {} extent_root {} gen {} level {} \
         fs_root {} gen {} level {} dev_root {} gen {} level {} csum_root {} gen {} level {} \
         total_bytes {} bytes_used {} num_devices {}",
        b.tree_root,
        b.tree_root_gen,
        b.tree_root_level,
        b.chunk_root,
        b.chunk_root_gen,
        b.chunk_root_level,
        b.extent_root,
        b.extent_root_gen,
        b.extent_root_level,
        b.fs_root,
        b.fs_root_gen,
        b.fs_root_level,
        b.dev_root,
        b.dev_root_gen,
        b.dev_root_level,
        b.csum_root,
        b.csum_root_gen,
        b.csum_root_level,
        b.total_bytes,
        b.bytes_used,
        b.num_devices,
    )
}

/// Numbers as numbers, everything else as the text has it.
fn json_copy(copy: &SuperCopy, full: bool) -> Value {
    let mut object = serde_json::Map::new();
    for (field, text) in fields(copy) {
        let value = text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from);
        object.insert(field.to_owned(), value);
    }
    put_bytes(&mut object, "label", copy.superblock.label());
    object.insert("superblock".to_owned(), copy.at.0.into());
    let sb = &copy.superblock;
    object.insert("incompat".to_owned(), incompat_names(sb.incompat_flags.get()).into());
    object.insert("compat_ro".to_owned(), compat_ro_names(sb.compat_ro_flags.get()).into());
    let faults: Vec<String> = copy.faults.iter().map(ToString::to_string).collect();
    object.insert("faults".to_owned(), faults.into());
    if full {
        object.insert("extra".to_owned(), extra(sb).into());
    }
    Value::Object(object)
}
