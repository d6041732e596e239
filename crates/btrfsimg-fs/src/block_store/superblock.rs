//! The superblock that a reader works by.

use btrfsimg_ondisk::{
    BackupRoot, Physical, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, Superblock, check_superblock, incompat,
    incompat_names,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::device::Device;
use crate::error::{Error, Result};

/// Incompat features that a reader here understands. `verify::supers` has an equal list, and on purpose its own.
const READABLE: u64 = incompat::MIXED_BACKREF
    | incompat::DEFAULT_SUBVOL
    | incompat::MIXED_GROUPS
    | incompat::COMPRESS_LZO
    | incompat::COMPRESS_ZSTD
    | incompat::BIG_METADATA
    | incompat::EXTENDED_IREF
    | incompat::RAID56
    | incompat::SKINNY_METADATA
    | incompat::NO_HOLES
    | incompat::METADATA_UUID
    | incompat::RAID1C34
    | incompat::SIMPLE_QUOTA;

/// The backup roots of a superblock that were written, newest first (`format/01 §1.8`).
pub fn backup_roots(sb: &Superblock) -> Vec<BackupRoot> {
    let mut backups: Vec<_> = sb.super_roots.iter().copied().filter(|b| b.tree_root.get() != 0).collect();
    backups.sort_by_key(|b| std::cmp::Reverse(b.tree_root_gen.get()));
    backups
}

/// The superblock, checked; refuses what a reader here does not understand. A reader takes the newest sound copy
/// where the primary one is damaged, and says so through its `bytenr`.
pub(super) fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let primary = read_superblock_copy(device, Physical(SUPERBLOCK_OFFSETS[0]));
    let Err(error) = primary else { return primary };
    if matches!(error, Error::Unsupported(_) | Error::Io { .. }) {
        return Err(error);
    }
    let copies =
        SUPERBLOCK_OFFSETS[1..].iter().filter_map(|&at| read_superblock_copy(device, Physical(at)).ok());
    copies.max_by_key(|sb| sb.generation.get()).ok_or(error)
}

/// The same; where no copy is sound, the first of those that say what it takes to read the rest.
pub(super) fn read_damaged_superblock(
    device: &dyn Device,
    fault: &mut dyn FnMut(Error),
) -> Result<Superblock> {
    let error = match read_superblock(device) {
        Err(error @ Error::Corrupt(_)) => error,
        sound => return sound,
    };
    let is_size = |n: u32| n.is_power_of_two() && (4096..=65536).contains(&n);
    let usable = |sb: &Superblock| {
        sb.csum_kind().is_some()
            && is_size(sb.sectorsize.get())
            && is_size(sb.nodesize.get())
            && check_features(sb).is_ok()
    };
    let copies = SUPERBLOCK_OFFSETS.iter().filter_map(|&at| superblock_bytes(device, Physical(at)).ok());
    let Some(superblock) = copies.into_iter().find(usable) else { return Err(error) };
    fault(error);
    Ok(superblock)
}

/// A copy of the superblock as it is: only the magic is right.
fn superblock_bytes(device: &dyn Device, at: Physical) -> Result<Superblock> {
    let mut bytes = [0u8; SUPERBLOCK_LEN];
    match device.read_at(&mut bytes, at) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            return Err(Error::NotBtrfs("shorter than a superblock at 64 KiB".to_owned()));
        }
        Err(e) => return Err(Error::io(format!("read the superblock at byte {at}"))(e)),
    }
    let sb = Superblock::read_from_bytes(&bytes).map_err(|_| Error::NotBtrfs("no superblock".to_owned()))?;
    if sb.magic != Superblock::MAGIC {
        let hint = "in a partition? --offset says where it starts";
        return Err(Error::NotBtrfs(format!("no btrfs magic at 64 KiB ({hint})")));
    }
    Ok(sb)
}

fn read_superblock_copy(device: &dyn Device, at: Physical) -> Result<Superblock> {
    let sb = superblock_bytes(device, at)?;
    let csum = sb
        .csum_kind()
        .ok_or_else(|| Error::Unsupported(format!("checksum type {} of the superblock", sb.csum_type)))?;
    if !csum.verify_block(sb.as_bytes()) {
        return Err(Error::corrupt("SB-03", "superblock checksum mismatch"));
    }
    check_features(&sb)?;
    // Before anything is divided by a sector or allocated by a node.
    let mut first = None;
    check_superblock(&sb, at, &mut |violation| {
        first.get_or_insert(violation);
    });
    match first {
        None => Ok(sb),
        Some(v) => Err(Error::corrupt(v.rule.0, format!("superblock: {}", v.reason))),
    }
}

fn check_features(sb: &Superblock) -> Result<()> {
    let unknown = sb.incompat_flags.get() & !READABLE;
    if unknown != 0 {
        return Err(Error::Unsupported(format!(
            "incompatible feature {}",
            incompat_names(unknown).join(", ")
        )));
    }
    Ok(())
}

pub(super) fn check_devices(sb: &Superblock) -> Result<()> {
    if sb.num_devices.get() > 1 {
        return Err(Error::Unsupported(format!("a file system of {} devices", sb.num_devices)));
    }
    Ok(())
}
