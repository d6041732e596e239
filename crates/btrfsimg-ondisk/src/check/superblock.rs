//! Rules of a superblock copy: SB-, and CH- for its chunks (`format/06 §6.1`).

use zerocopy::IntoBytes;

use super::view::is_aligned;
use super::{Violation, chunk};
use crate::superblock::super_flags;
use crate::{
    KeyType, MAX_LEVEL, Physical, Superblock, block_group_flags, compat_ro, incompat, objectid, sys_chunks,
};

/// Bytes of a chunk entry with one stripe, the least that the array can hold.
const SYS_CHUNK_MIN: u32 = 97;

/// Judges a superblock copy, read at `at` of its device, by the kernel's rules in the kernel's order, with its
/// system chunks. Each violation goes to `sink`; after SB-01 and SB-02, which say that this is no readable
/// superblock, nothing else is judged.
///
/// Features are not judged here: an image with a feature that a tool does not know is unsupported, not corrupt
/// ([`crate::INCOMPAT_KNOWN`]; SB-25 for a conversion under way).
pub fn check_superblock(sb: &Superblock, at: Physical, sink: &mut dyn FnMut(Violation)) {
    if sb.magic != Superblock::MAGIC {
        let have = sb.magic.escape_ascii();
        return sink(Violation::new(
            "SB-01",
            format!("bad superblock magic, have '{have}' expect '_BHRfS_M'"),
        ));
    }
    let Some(csum) = sb.csum_kind() else {
        return sink(Violation::new(
            "SB-02",
            format!("unsupported checksum algorithm, have {}", sb.csum_type),
        ));
    };
    if !csum.verify_block(sb.as_bytes()) {
        sink(Violation::new("SB-03", format!("superblock checksum mismatch ({csum})")));
    }
    if sb.bytenr != at.0 {
        sink(Violation::new("SB-04", format!("bad superblock bytenr, have {} expect {at}", sb.bytenr)));
    }
    check_geometry(sb, sink);
    check_ids_and_sums(sb, sink);
    check_features(sb, sink);
    check_sys_chunk_array(sb, sink);
}

fn check_geometry(sb: &Superblock, sink: &mut dyn FnMut(Violation)) {
    let mut rule = |holds: bool, rule, reason: &dyn Fn() -> String| {
        if !holds {
            sink(Violation::new(rule, reason()));
        }
    };
    let unknown = sb.flags.get() & !(super_flags::KNOWN | super_flags::CHANGING);
    rule(unknown == 0, "SB-05", &|| format!("unrecognized super flag, have 0x{unknown:x}"));
    for (name, level) in
        [("tree_root", sb.root_level), ("chunk_root", sb.chunk_root_level), ("log_root", sb.log_root_level)]
    {
        rule(level < MAX_LEVEL, "SB-06", &|| format!("{name} level too big, have {level} expect below 8"));
    }
    let (sector, node) = (sb.sectorsize.get(), sb.nodesize.get());
    let sector_fits = sector.is_power_of_two() && (4096..=65536).contains(&sector);
    rule(sector_fits, "SB-07", &|| format!("invalid sectorsize, have {sector}"));
    rule(node.is_power_of_two() && (sector.max(4096)..=65536).contains(&node), "SB-08", &|| {
        format!("invalid nodesize, have {node} expect [{sector}, 65536]")
    });
    rule(sb.leafsize == node, "SB-09", &|| format!("invalid leafsize, have {} expect {node}", sb.leafsize));
    let unit = if sector_fits { u64::from(sector) } else { 4096 };
    for (name, root) in [("tree_root", sb.root), ("chunk_root", sb.chunk_root), ("log_root", sb.log_root)] {
        rule(is_aligned(root.get(), unit), "SB-10", &|| {
            format!("{name} block unaligned, have {root} should be aligned to {unit}")
        });
    }
}

fn check_ids_and_sums(sb: &Superblock, sink: &mut dyn FnMut(Violation)) {
    let mut rule = |holds: bool, rule, reason: &dyn Fn() -> String| {
        if !holds {
            sink(Violation::new(rule, reason()));
        }
    };
    rule(sb.dev_item.fsid == sb.metadata_fsid(), "SB-11", &|| {
        let (have, expect) = (sb.dev_item.fsid, sb.metadata_fsid());
        let uuid = uuid::Uuid::from_bytes;
        format!("dev_item fsid does not match the metadata fsid, have {} expect {}", uuid(have), uuid(expect))
    });
    let least = 6 * u64::from(sb.nodesize.get());
    rule(sb.bytes_used.get() >= least, "SB-12", &|| {
        format!("bytes_used is too small, have {} expect at least {least}", sb.bytes_used)
    });
    rule(sb.stripesize.get().is_power_of_two(), "SB-13", &|| {
        format!("invalid stripesize, have {} expect a power of two", sb.stripesize)
    });
    rule(sb.num_devices != 0, "SB-14", &|| "number of devices is 0".to_owned());
}

fn check_features(sb: &Superblock, sink: &mut dyn FnMut(Violation)) {
    if sb.has_incompat(incompat::MIXED_GROUPS) && sb.nodesize != sb.sectorsize {
        let (node, sector) = (sb.nodesize, sb.sectorsize);
        let reason =
            format!("unequal nodesize/sectorsize for mixed block groups, have {node} expect {sector}");
        sink(Violation::new("SB-17", reason));
    }
    let free_space_tree = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
    if sb.has_compat_ro(compat_ro::BLOCK_GROUP_TREE)
        && !(sb.has_compat_ro(free_space_tree) && sb.has_incompat(incompat::NO_HOLES))
    {
        let reason = "block-group-tree feature requires free-space-tree and no-holes";
        sink(Violation::new("SB-18", reason));
    }
}

/// Judges the system chunks of a superblock: SB-15, and CH- of each.
pub fn check_sys_chunk_array(sb: &Superblock, sink: &mut dyn FnMut(Violation)) {
    let (size, max) = (sb.sys_chunk_array_size.get(), sb.sys_chunk_array.len());
    if size < SYS_CHUNK_MIN || size as usize > max {
        let reason = format!("invalid system chunk array size, have {size} expect [{SYS_CHUNK_MIN}, {max}]");
        return sink(Violation::new("SB-15", reason));
    }
    for entry in sys_chunks(sb) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(reason) => return sink(Violation::new("SB-15", format!("system chunk array: {reason}"))),
        };
        let key = entry.key;
        let fault = |v: Violation| Violation { key: Some(key), ..v };
        if key.key_type != KeyType::CHUNK_ITEM || key.objectid != objectid::FIRST_CHUNK_TREE {
            sink(fault(Violation::new("SB-15", format!("unexpected key in system chunk array, have {key}"))));
            continue;
        }
        let sector = u64::from(sb.sectorsize.get());
        let judged = chunk::check_chunk(key.offset, &entry.chunk, sector, sb.incompat_flags.get());
        let bad = judged.is_err();
        if let Err(violation) = judged {
            sink(fault(violation));
        }
        let flags = entry.chunk.flags.get();
        if flags & block_group_flags::SYSTEM == 0 && !bad {
            let reason = format!(
                "chunk in system chunk array is not SYSTEM, have {}",
                block_group_flags::describe(flags)
            );
            sink(fault(Violation::new("SB-15", reason)));
        }
    }
}

/// Judges a superblock copy by the rules that no kernel keeps: those of severity C and W.
pub fn check_superblock_strict(sb: &Superblock, sink: &mut dyn FnMut(Violation)) {
    let mut rule = |holds: bool, rule, reason: &dyn Fn() -> String| {
        if !holds {
            sink(Violation::new(rule, reason()));
        }
    };
    // btrfs-convert puts the fsid there.
    let unused = sb.metadata_uuid == [0; 16] || sb.metadata_uuid == sb.fsid;
    rule(sb.has_incompat(incompat::METADATA_UUID) || unused, "SB-26", &|| {
        format!("metadata_uuid without its feature, have {}", uuid::Uuid::from_bytes(sb.metadata_uuid))
    });
    rule(sb.stripesize == 4096 || sb.stripesize == sb.sectorsize, "SB-13", &|| {
        format!("invalid stripesize, have {} expect {}", sb.stripesize, sb.sectorsize)
    });
    rule(sb.chunk_root_generation.get() <= sb.generation.get(), "SB-19", &|| {
        format!("chunk root is newer, have {} expect at most {}", sb.chunk_root_generation, sb.generation)
    });
    let cache = sb.cache_generation.get();
    rule(cache <= sb.generation.get() || cache == u64::MAX, "SB-19", &|| {
        format!("space cache is newer, have {cache} expect at most {} or -1", sb.generation)
    });
    rule(sb.total_bytes != 0, "SB-20", &|| "total_bytes is 0".to_owned());
    let zero = sb.reserved.iter().chain(&sb.padding).all(|&b| b == 0);
    rule(zero && sb.log_root_transid == 0, "SB-24", &|| "reserved bytes are not zero".to_owned());
    rule(sb.num_devices.get() <= 1 << 31, "SB-27", &|| {
        format!("suspicious number of devices, have {} expect at most {}", sb.num_devices, 1u64 << 31)
    });
    let changing = sb.flags.get() & super_flags::CHANGING;
    rule(changing == 0, "SB-25", &|| format!("a conversion is under way, have super flags 0x{changing:x}"));
}
