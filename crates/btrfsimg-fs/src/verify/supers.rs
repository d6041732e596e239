//! The superblock's copies: which one to go by, and what is wrong with each.

use btrfsimg_ondisk::{
    COMPAT_RO_KNOWN, Physical, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, Superblock, Violation, check_superblock,
    check_superblock_strict, compat_ro_names, incompat, incompat_names,
};
use zerocopy::FromBytes;

use super::finding::{Finding, Findings, Place};
use crate::device::Device;
use crate::error::{Error, Result};

/// Incompat features that verify understands. The reader in `block_store` has an equal list, and on purpose its own:
/// what one of the two learns, the other does not know by that.
const SUPPORTED: u64 = incompat::MIXED_BACKREF
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

/// A copy after its check.
struct Copied {
    at: Physical,
    superblock: Superblock,
    violations: Vec<Violation>,
}

impl Copied {
    fn is_sound(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether it is a superblock whose trees can be looked for.
    fn is_usable(&self) -> bool {
        const HOPELESS: [&str; 5] = ["SB-01", "SB-02", "SB-03", "SB-07", "SB-08"];
        !self.violations.iter().any(|v| HOPELESS.contains(&v.rule.0))
    }
}

/// Judges every copy; gives the one to go by, if any is of use.
///
/// # Errors
/// `NotBtrfs` when nothing looks like a superblock; `Unsupported` for features.
pub(super) fn read(
    device: &dyn Device,
    device_len: u64,
    findings: &mut Findings,
) -> Result<Option<Superblock>> {
    let copies = read_copies(device, device_len)?;
    let named = |c: &&Copied| c.superblock.magic == Superblock::MAGIC;
    if !copies.iter().any(|c| named(&c)) {
        return Err(Error::NotBtrfs("no superblock at 64 KiB, 64 MiB or 256 GiB".to_owned()));
    }
    let best = copies.iter().filter(|c| c.is_usable()).max_by_key(|c| {
        // Kernels go by the first, whatever the others say.
        let is_first = c.is_sound() && c.at.0 == SUPERBLOCK_OFFSETS[0];
        (is_first, c.is_sound(), c.superblock.generation.get(), std::cmp::Reverse(c.at))
    });
    for copy in &copies {
        judge(copy, best, findings);
    }
    let Some(best) = best else { return Ok(None) };
    refuse_unsupported(&best.superblock)?;
    check_superblock_strict(&best.superblock, &mut |v| findings.push(Finding::of(v, &place(best))));
    Ok(Some(best.superblock))
}

/// Every copy that the device has room for. The first is read even when the device ends inside it, as if zeros
/// followed.
fn read_copies(device: &dyn Device, device_len: u64) -> Result<Vec<Copied>> {
    let mut copies = Vec::new();
    for at in SUPERBLOCK_OFFSETS {
        let mut bytes = [0; SUPERBLOCK_LEN];
        let here = usize::try_from(device_len.saturating_sub(at)).unwrap_or(usize::MAX).min(SUPERBLOCK_LEN);
        if here == 0 || (here < SUPERBLOCK_LEN && at != SUPERBLOCK_OFFSETS[0]) {
            break;
        }
        let read = device.read_at(&mut bytes[..here], Physical(at));
        read.map_err(Error::io(format!("superblock at {at}")))?;
        let Ok(superblock) = Superblock::read_from_bytes(&bytes) else { break };
        let mut violations = Vec::new();
        check_superblock(&superblock, Physical(at), &mut |v| violations.push(v));
        copies.push(Copied { at: Physical(at), superblock, violations });
    }
    Ok(copies)
}

fn place(copy: &Copied) -> Place {
    Place {
        physical: Some(copy.at),
        devid: Some(copy.superblock.dev_item.devid.get().into()),
        ..Place::default()
    }
}

/// The first copy is the one that kernels go by: its faults are errors, those of the others SB-23.
fn judge(copy: &Copied, best: Option<&Copied>, findings: &mut Findings) {
    let primary = copy.at.0 == SUPERBLOCK_OFFSETS[0];
    if primary || best.is_none() {
        copy.violations.iter().for_each(|v| findings.push(Finding::of(v.clone(), &place(copy))));
        return;
    }
    let best_sb = best.map(|b| &b.superblock);
    let belongs = best_sb.is_none_or(|b| copy.at.0 + (SUPERBLOCK_LEN as u64) < b.dev_item.total_bytes.get());
    if !belongs {
        return;
    }
    if let Some(violation) = copy.violations.first() {
        findings.add("SB-23", place(copy), format!("superblock copy: {}", violation.reason));
    } else if best_sb.is_some_and(|b| b.fsid != copy.superblock.fsid) {
        findings.add("SB-23", place(copy), "superblock copy of another file system");
    } else if let Some(b) = best_sb.filter(|b| b.generation != copy.superblock.generation) {
        let (have, expect) = (copy.superblock.generation, b.generation);
        findings.add(
            "SB-23",
            place(copy),
            format!("superblock copy generation, have {have} expect {expect}"),
        );
    } else if best_sb.is_some_and(|b| comparable(b) != comparable(&copy.superblock)) {
        findings.add("SB-23", place(copy), "superblock copy differs from the first at the same generation");
    }
}

/// What is the same in all copies: all but the place, its checksum, and the log, which fsync notes in the first alone.
fn comparable(sb: &Superblock) -> Superblock {
    let (none, zero) = ([0; 32], 0u64);
    Superblock { csum: none, bytenr: zero.into(), log_root: zero.into(), log_root_level: 0, ..*sb }
}

fn refuse_unsupported(sb: &Superblock) -> Result<()> {
    let unknown = sb.incompat_flags.get() & !SUPPORTED;
    if unknown != 0 {
        let names = incompat_names(unknown).join(", ");
        return Err(Error::Unsupported(format!("incompatible feature {names} (SB-16)")));
    }
    // What such a feature adds may use space in a way that would look like a fault here.
    let unknown = sb.compat_ro_flags.get() & !COMPAT_RO_KNOWN;
    if unknown != 0 {
        let names = compat_ro_names(unknown).join(", ");
        return Err(Error::Unsupported(format!("read-only compatible feature {names} (SB-16)")));
    }
    // More than there can be is SB-27's: kernels go by the device items.
    if (2..=1 << 31).contains(&sb.num_devices.get()) {
        return Err(Error::Unsupported(format!("file system on {} devices", sb.num_devices)));
    }
    Ok(())
}
