//! Rules of chunks, in CHUNK_ITEMs and in the superblock: CH-01 to CH-16 (`format/06 §6.9`).

use zerocopy::FromBytes;

use super::view::{ItemAt, is_aligned};
use super::{BlockContext, Checked, ensure};
use crate::block_group_flags as bg;
use crate::{ChunkItem, STRIPE_LEN, incompat};

pub(super) fn check_item(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let len = item.data.len();
    ensure!(len >= 80, "CH-01", "invalid chunk item size, have {len} expect at least 80");
    let Ok((chunk, _)) = ChunkItem::ref_from_prefix(item.data) else { return Ok(()) };
    let expect = 48 + 32 * usize::from(chunk.num_stripes.get());
    ensure!(
        chunk.num_stripes == 0 || len == expect,
        "CH-01",
        "invalid chunk item size, have {len} expect {expect}"
    );
    check_chunk(item.key.offset, chunk, ctx.sectorsize, ctx.incompat)
}

/// Judges a chunk at `logical`, in the kernel's order.
#[doc(alias = "btrfs_check_chunk_valid")]
pub(super) fn check_chunk(logical: u64, chunk: &ChunkItem, sectorsize: u64, features: u64) -> Checked {
    let (stripes, flags) = (chunk.num_stripes.get(), chunk.flags.get());
    ensure!(stripes > 0, "CH-02", "invalid chunk num_stripes, have 0");
    let copies = copies(flags);
    ensure!(stripes >= copies, "CH-03", "invalid chunk num_stripes < ncopies, have {stripes} < {copies}");
    let parity = parity(flags);
    ensure!(
        parity == 0 || stripes != parity,
        "CH-04",
        "invalid chunk num_stripes == nparity, have {stripes} == {parity}"
    );
    check_range(logical, chunk, sectorsize)?;
    check_type(flags, features)?;
    check_profile(flags, stripes, chunk.sub_stripes.get())
}

fn check_range(logical: u64, chunk: &ChunkItem, sectorsize: u64) -> Checked {
    let length = chunk.length.get();
    ensure!(
        is_aligned(logical, sectorsize),
        "CH-05",
        "invalid chunk logical, have {logical} should be aligned to {sectorsize}"
    );
    ensure!(
        u64::from(chunk.sector_size.get()) == sectorsize,
        "CH-06",
        "invalid chunk sectorsize, have {} expect {sectorsize}",
        chunk.sector_size
    );
    ensure!(
        length > 0 && is_aligned(length, sectorsize),
        "CH-07",
        "invalid chunk length, have {length} should be aligned to {sectorsize}, not 0"
    );
    ensure!(
        logical.checked_add(length).is_some(),
        "CH-08",
        "invalid chunk logical start and length, have logical start {logical} length {length}"
    );
    ensure!(
        chunk.stripe_len.get() == STRIPE_LEN,
        "CH-09",
        "invalid chunk stripe length, have {} expect {STRIPE_LEN}",
        chunk.stripe_len
    );
    let max = u64::from(u32::MAX) * STRIPE_LEN;
    ensure!(length < max, "CH-10", "chunk length too large, have {length} limit {max}");
    Ok(())
}

fn check_type(flags: u64, features: u64) -> Checked {
    let unknown = flags & !(bg::TYPE_MASK | bg::PROFILE_MASK);
    ensure!(unknown == 0, "CH-11", "unrecognized chunk type, have 0x{unknown:x} expect 0");
    let profile = flags & bg::PROFILE_MASK;
    ensure!(
        profile.count_ones() <= 1,
        "CH-12",
        "invalid chunk profile flag, have 0x{profile:x} expect no bit or 1 bit"
    );
    let kind = flags & bg::TYPE_MASK;
    ensure!(
        kind != 0,
        "CH-13",
        "missing chunk type flag, have 0x{flags:x} expect a bit of 0x{:x}",
        bg::TYPE_MASK
    );
    ensure!(
        kind & bg::SYSTEM == 0 || kind == bg::SYSTEM,
        "CH-14",
        "conflicting chunk type, have 0x{flags:x}"
    );
    ensure!(
        kind != bg::DATA | bg::METADATA || features & incompat::MIXED_GROUPS != 0,
        "CH-15",
        "mixed chunk type in non-mixed mode, have 0x{flags:x}"
    );
    Ok(())
}

fn check_profile(flags: u64, stripes: u16, sub_stripes: u16) -> Checked {
    let fits = match flags & bg::PROFILE_MASK {
        0 => stripes == 1,
        bg::RAID0 => stripes >= 1,
        bg::RAID1 | bg::DUP => stripes == 2,
        bg::RAID1C3 => stripes == 3,
        bg::RAID1C4 => stripes == 4,
        bg::RAID10 => sub_stripes == 2,
        bg::RAID5 => stripes >= 2,
        bg::RAID6 => stripes >= 3,
        _ => false,
    };
    ensure!(
        fits,
        "CH-16",
        "invalid num_stripes:sub_stripes {stripes}:{sub_stripes} for profile {}",
        bg::describe(flags)
    );
    Ok(())
}

/// Copies of each byte.
fn copies(flags: u64) -> u16 {
    match flags & bg::PROFILE_MASK {
        bg::RAID1 | bg::DUP | bg::RAID10 => 2,
        bg::RAID1C3 => 3,
        bg::RAID1C4 => 4,
        _ => 1,
    }
}

fn parity(flags: u64) -> u16 {
    match flags & bg::PROFILE_MASK {
        bg::RAID5 => 1,
        bg::RAID6 => 2,
        _ => 0,
    }
}
