//! Images of others, broken in known ways and sound: what verify names first.
//!
//! They lie outside the project, where `BTRFSIMG_CORPUS` points (a directory with MANIFEST.tsv and one sparse tar
//! under xz per image). Each faulty image stands here with the rule that its manifest line breaks; where one fault
//! breaks several rules, or the line leaves it open which, with all of them.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use btrfsimg_fs::Error;
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::verify::{Options, verify};

/// Faulty images: the rules, one of which must be named first.
const FAULTY: &[(&str, &[&str])] = &[
    // A file extent that points nowhere: not aligned, or to no extent.
    ("001-bad-file-extent-bytenr__default_case", &["FE-24", "FE-11"]),
    ("003-shift-offsets__default_case", &["LEAF-04"]),
    ("004-no-dir-index__default_case", &["LK-02"]),
    ("005-bad-item-offset__default_case", &["LEAF-04"]),
    // Outdated root items point to blocks that were freed since, or written again.
    ("006-bad-root-items__skinny_case", &["XR-04", "BLK-07", "ROOT-08"]),
    ("007-bad-offset-snapshots__default_case", &["LEAF-04"]),
    ("008-bad-dir-index-name__default_case", &["LK-02"]),
    ("010-no-rootdir-inode-item__default_case", &["ROOT-12", "REF-01", "LK-09"]),
    ("011-no-inode-item__default_case", &["REF-01", "FE-02", "LK-09", "LK-02"]),
    ("016-wrong-inode-nbytes__default_case", &["LK-05"]),
    ("017-missing-all-file-extent__default_case", &["FE-23"]),
    ("018-leaf-crossing-stripes__default_case", &["XR-05", "XR-06"]),
    ("026-bad-dir-item-name__default_case", &["DIR-10"]),
    // The item is zeroed (dump-tree shows no flags either), and flags come before references.
    ("027-bad-extent-inline-ref-type__bad-extent-inline-ref-type", &["EX-11", "EX-06"]),
    ("028-unaligned-super-dev-sizes__dev_and_super_mismatch_unaligned", &["SB-20"]),
    ("034-bad-inode-flags__default_case", &["INO-12"]),
    ("035-inline-bad-ram-bytes__offset_by_one", &["FE-09"]),
    ("036-bad-dev-extents__over_dev_boundary", &["DE-10"]),
    ("038-missing-one-file-extent__default_case", &["FE-23"]),
    ("041-invalid-root-generation__default_case", &["ROOT-03"]),
    ("043-bad-inode-generation__bad_inode_geneartion", &["INO-04"]),
    ("043-bad-inode-generation__bad_inode_transid", &["INO-05"]),
    ("044-invalid-extent-item-generation__bad_extent_item_gen_for_data", &["EX-05"]),
    ("045-overlap-csum-item__overlap_csum_item", &["CS-04"]),
    ("050-invalid-block-group-used__default", &["BG-04"]),
    ("053-bad-metadata-level__default", &["EX-03"]),
    ("061-out-of-order-inline-backref__btrfs_image", &["EX-14"]),
    ("066-missing-root-orphan-item__default", &["ROOT-11"]),
    ("067-dupe-filename__default", &["DIR-12"]),
    ("068-orphan-dev-extent__default", &["DE-06"]),
    ("069-unknown-fs-tree-key__unknown_key_empty", &["LEAF-08"]),
    ("070-missing-inode-ref__default", &["LK-02"]),
    ("bad-superblock-1", &["SB-03"]),
    ("bad-superblock-2", &["SB-03"]),
    ("bko-104141-fsck-exception", &["SB-01", "SB-02", "SB-03"]),
    ("bko-153641-unaligned-tree-block-bytenr", &["NODE-03", "BLK-06", "BLK-07"]),
    ("bko-154021-invalid-drop-level", &["ROOT-03", "ROOT-04", "ROOT-05"]),
    ("bko-155151-bad-block-group-offset", &["BG-01", "BG-07"]),
    ("bko-155181-unaligned-extent-item", &["EX-02"]),
    ("bko-161821", &["BLK-06", "BLK-07", "NODE-03"]),
    ("bko-199833-reloc-recovery-crash", &["CH-10"]),
    ("bko-199839", &["CH-10"]),
    ("bko-200409", &["CH-10"]),
    ("bko-96971-btrfs-image", &["SB-03"]),
    ("bko-97031-invalid-stripe-len-sys-array", &["SB-15", "CH-09"]),
    ("bko-97041-invalid-sub-stripes-zero-FPE", &["CH-03"]),
    ("bko-97171-btrfs-image", &["BLK-07"]),
    ("bko-97271-btrfs-image", &["BLK-04"]),
    ("superblock-stripsize-bogus", &["SB-13"]),
    ("sys-array-num-stripes-0", &["CH-02"]),
    ("sys-chunk-stripe-len-bogus", &["CH-09"]),
    ("sys-chunk-type-bogus", &["CH-13"]),
    ("032-bad-item-ptr__bad_item_ptr", &["LEAF-04", "LEAF-05"]),
    ("049-btrfstune-transid-mismatch__default_case", &["BLK-07"]),
    ("069-btrfstune-resume-bgt__half-converted-bgt", &["BG-07"]),
];

/// Random damage all over the root tree, whose manifest line names what one program tripped over: any error will do.
const ANY_FAULT: &[&str] = &[
    "bko-156731",
    "bko-156811-bad-parent-ref-qgroup-verify",
    "bko-166361-blocksize-zero",
    "bko-167921",
    "bko-168301",
    "bko-169301-2-blocksize-zero",
    "bko-172811",
    "bko-172861",
    "bko-200403",
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
        "faulty" if ANY_FAULT.contains(&name) => assert!(first.is_some(), "{name}"),
        "faulty" => {
            let (_, rules) =
                FAULTY.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} has no entry"));
            assert!(first.is_some_and(|f| rules.contains(&f)), "{name}: {first:?} instead of {rules:?}");
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
    let mut judged = 0;
    for line in manifest.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let (name, kind, verdict_said) = (fields[0], fields[1], fields[2]);
        let dir = tempfile::tempdir().unwrap();
        let image = unpack(&corpus.join(format!("{kind}-{name}.tar.xz")), dir.path());
        check(name, verdict_said, &judge(&image));
        judged += 1;
    }
    assert!(judged > 0, "an empty corpus");
}
