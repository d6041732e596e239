//! Images of others, broken in known ways and sound: what verify names first.
//!
//! They lie outside the project, where `BTRFSIMG_CORPUS` points (a directory with MANIFEST.tsv and one sparse tar
//! under xz per image). Each faulty image stands here with the one rule that names its fault. Where its manifest line
//! leaves open which (random damage, or what one program tripped over), that is what a look at the bytes shows, and
//! what Linux 6.18 complains of first when it is to mount the image: its words stand beside it.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use btrfsimg_fs::Error;
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::verify::{Options, verify};

/// Faulty images, and the rule that must be named first.
const FAULTY: &[(&str, &str)] = &[
    // "invalid disk_bytenr for file extent, have 755944791, should be aligned"; so it is no extent's either (FE-24).
    ("001-bad-file-extent-bytenr__default_case", "FE-11"),
    ("003-shift-offsets__default_case", "LEAF-04"),
    ("004-no-dir-index__default_case", "LK-02"),
    ("005-bad-item-offset__default_case", "LEAF-04"),
    // The root item of tree 270 points to a block that was freed.
    ("006-bad-root-items__skinny_case", "XR-04"),
    ("007-bad-offset-snapshots__default_case", "LEAF-04"),
    ("008-bad-dir-index-name__default_case", "LK-02"),
    ("010-no-rootdir-inode-item__default_case", "ROOT-12"),
    // "invalid previous key objectid, have 256 expect 257": the names are there, their INODE_ITEM is not (LK-09 follows).
    ("011-no-inode-item__default_case", "REF-01"),
    ("016-wrong-inode-nbytes__default_case", "LK-05"),
    ("017-missing-all-file-extent__default_case", "FE-23"),
    // Data in a block group for metadata; the crossing itself is a warning (XR-08).
    ("018-leaf-crossing-stripes__default_case", "XR-05"),
    ("026-bad-dir-item-name__default_case", "DIR-10"),
    // The item is zeroed from its flags on: "invalid extent flag, have 0x0 expect 1 bit set"; the type of the
    // reference behind them (EX-11) is 0 as well.
    ("027-bad-extent-inline-ref-type__bad-extent-inline-ref-type", "EX-06"),
    ("028-unaligned-super-dev-sizes__dev_and_super_mismatch_unaligned", "SB-20"),
    ("034-bad-inode-flags__default_case", "INO-12"),
    ("035-inline-bad-ram-bytes__offset_by_one", "FE-09"),
    ("036-bad-dev-extents__over_dev_boundary", "DE-10"),
    ("038-missing-one-file-extent__default_case", "FE-23"),
    ("041-invalid-root-generation__default_case", "ROOT-03"),
    ("043-bad-inode-generation__bad_inode_geneartion", "INO-04"),
    ("043-bad-inode-generation__bad_inode_transid", "INO-05"),
    ("044-invalid-extent-item-generation__bad_extent_item_gen_for_data", "EX-05"),
    ("045-overlap-csum-item__overlap_csum_item", "CS-04"),
    ("050-invalid-block-group-used__default", "BG-04"),
    ("053-bad-metadata-level__default", "EX-03"),
    ("061-out-of-order-inline-backref__btrfs_image", "EX-14"),
    ("066-missing-root-orphan-item__default", "ROOT-11"),
    ("067-dupe-filename__default", "DIR-12"),
    ("068-orphan-dev-extent__default", "DE-06"),
    ("069-unknown-fs-tree-key__unknown_key_empty", "LEAF-08"),
    ("070-missing-inode-ref__default", "LK-02"),
    ("bad-superblock-1", "SB-03"),
    ("bad-superblock-2", "SB-03"),
    // The magic is there, all else is text: checksum algorithm 12336.
    ("bko-104141-fsck-exception", "SB-02"),
    // "level verify failed on logical 4198400 mirror 1 wanted 0 found 6": the header of a leaf is damaged, so that what
    // are items is read as pointers (NODE-03).
    ("bko-153641-unaligned-tree-block-bytenr", "BLK-06"),
    // "invalid root last_snapshot, have 1471811089 expect (0, 6]": the drop level lies behind it in the same item.
    ("bko-154021-invalid-drop-level", "ROOT-03"),
    // "invalid block group size 0"
    ("bko-155151-bad-block-group-offset", "BG-01"),
    ("bko-155181-unaligned-extent-item", "EX-02"),
    // "invalid root v2 generation, have 3472328296227680304 expect (0, 6]": half of the root tree's leaf is text.
    ("bko-156731", "ROOT-03"),
    // "invalid flag for leaf, WRITTEN not set": text in the header of the root tree's leaf, here and in the next two.
    ("bko-156811-bad-parent-ref-qgroup-verify", "BLK-11"),
    ("bko-166361-blocksize-zero", "BLK-11"),
    ("bko-169301-2-blocksize-zero", "BLK-11"),
    // "level verify failed on logical 4198400 mirror 1 wanted 0 found 2"
    ("bko-161821", "BLK-06"),
    // "invalid root drop_level 0 with non-zero drop_progress objectid 16877"
    ("bko-167921", "ROOT-06"),
    // "ino=6, invalid key offset: has 24 expect 0"
    ("bko-168301", "INO-02"),
    // "invalid root generation, have 65305493131755520 expect (0, 16]"
    ("bko-172811", "ROOT-03"),
    // "invalid inode ref name length, has 11897 expect [1, 255]"
    ("bko-172861", "REF-05"),
    ("bko-199833-reloc-recovery-crash", "CH-10"),
    ("bko-199839", "CH-10"),
    // "dev extent physical offset 12582912 devid 1 has no corresponding chunk" (of the chunk's stripes, none is there)
    ("bko-200403", "DE-08"),
    ("bko-200409", "CH-10"),
    ("bko-96971-btrfs-image", "SB-03"),
    // "super block sys chunk array short read, cur=17 sys_array_size=225"
    ("bko-97031-invalid-stripe-len-sys-array", "SB-15"),
    // "invalid chunk num_stripes < ncopies, have 1 < 2"
    ("bko-97041-invalid-sub-stripes-zero-FPE", "CH-03"),
    // "parent transid verify failed on logical 4194304 mirror 1 wanted 143 found 15"
    ("bko-97171-btrfs-image", "BLK-07"),
    ("bko-97271-btrfs-image", "BLK-04"),
    ("superblock-stripsize-bogus", "SB-13"),
    ("sys-array-num-stripes-0", "CH-02"),
    ("sys-chunk-stripe-len-bogus", "CH-09"),
    ("sys-chunk-type-bogus", "CH-13"),
    // "unexpected item end, have 133141 expect 3995"
    ("032-bad-item-ptr__bad_item_ptr", "LEAF-04"),
    ("049-btrfstune-transid-mismatch__default_case", "BLK-07"),
    ("069-btrfstune-resume-bgt__half-converted-bgt", "BG-07"),
];

/// Images with a warning of their own kind.
const WARNED: &[(&str, &str)] = &[
    ("058-bad-free-space-tree-entry__corrupt-free-space-tree2", "FS-10"),
    ("062-noncompressed-ram-bytes-mismatch__default", "FS-10"),
    ("064-deprecated-inode-cache__4k_nodesize", "LEAF-09"),
    ("051-warning-rw-subvol-received-uuid__subvol-rw-recv", "ROOT-15"),
    ("060-ino-cache-clean__ino-cache-enabled", "LEAF-09"),
];

/// What verify said of an image.
struct Verdict {
    first_error: Option<String>,
    warnings: Vec<String>,
    unsupported: bool,
}

fn judge(image: &Path) -> Verdict {
    let device = FileDevice::open(image, Access::Read, 0).unwrap();
    let (mut first_error, mut warnings) = (None, Vec::new());
    let start = Instant::now();
    let outcome = verify(&device, &Options::new(), &mut |finding| {
        if !finding.severity().is_error() {
            warnings.push(finding.rule.to_string());
        } else if !finding.consequence {
            first_error.get_or_insert(finding.rule.to_string());
        }
    });
    assert!(start.elapsed() < Duration::from_secs(10), "{}: too slow", image.display());
    let unsupported = match outcome {
        Ok(summary) => {
            assert_eq!(summary.is_sound(), first_error.is_none(), "{}", image.display());
            false
        }
        Err(Error::Unsupported(_)) => true,
        Err(error) => panic!("{}: {error}", image.display()),
    };
    Verdict { first_error, warnings, unsupported }
}

/// Unpacks an image's archive; gives the file in it.
fn unpack(archive: &Path, into: &Path) -> PathBuf {
    let done = Command::new("tar").arg("-xSJf").arg(archive).arg("-C").arg(into).status().unwrap();
    assert!(done.success(), "tar -xSJf {}", archive.display());
    let files = std::fs::read_dir(into).unwrap().map(|e| e.unwrap().path());
    files.into_iter().find(|p| p.is_file()).unwrap()
}

fn check(name: &str, verdict_said: &str, verdict: &Verdict) {
    let first = verdict.first_error.as_deref();
    match verdict_said {
        "sound" => assert_eq!((first, verdict.unsupported), (None, false), "{name}"),
        "warning" => {
            let (_, rule) = WARNED.iter().find(|(n, _)| *n == name).unwrap();
            assert_eq!(first, None, "{name}");
            assert!(verdict.warnings.iter().any(|w| w == rule), "{name}: {:?}", verdict.warnings);
        }
        "partial" => assert_eq!(first, None, "{name}"),
        "faulty" => {
            let entry = FAULTY.iter().find(|(n, _)| *n == name);
            let (_, rule) = entry.unwrap_or_else(|| panic!("{name} has no entry"));
            assert_eq!(first, Some(*rule), "{name}");
        }
        other => panic!("{name}: unknown verdict {other}"),
    }
}

#[test]
fn images_of_others() {
    let Some(corpus) = std::env::var_os("BTRFSIMG_CORPUS").map(PathBuf::from) else {
        println!("skipped: BTRFSIMG_CORPUS is not set");
        return;
    };
    let manifest = std::fs::read_to_string(corpus.join("MANIFEST.tsv")).unwrap();
    let mut faulty = 0;
    for line in manifest.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let (name, kind, verdict_said) = (fields[0], fields[1], fields[2]);
        let dir = tempfile::tempdir().unwrap();
        let image = unpack(&corpus.join(format!("{kind}-{name}.tar.xz")), dir.path());
        check(name, verdict_said, &judge(&image));
        faulty += usize::from(verdict_said == "faulty");
    }
    assert_eq!(faulty, FAULTY.len(), "each row of the table is of an image");
}
