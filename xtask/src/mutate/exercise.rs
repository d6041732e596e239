//! All that the library does with an image without writing.

use std::collections::HashSet;
use std::sync::Arc;

use btrfsimg_fs::device::Device;
use btrfsimg_fs::inspect::{describe, superblocks, tree_roots, walk_tree};
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::read::{FileReader, Filesystem, Part};
use btrfsimg_fs::verify::{Options, verify};
use btrfsimg_ondisk::FileType;

/// What verify says of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// No btrfs, nothing that this version understands, or a conversion that kernels refuse until it is done (SB-25, a
    /// warning).
    Refused,
    Corrupt,
    Sound,
    /// With a log to replay, which a kernel does at a mount for writing only.
    SoundWithLog,
}

/// Verifies the image and reads it. What fails, fails with an error, and that is all that is asked here.
pub(super) fn read_everything<D: Device + 'static>(device: &Arc<D>) -> Verdict {
    let options = Options::new().with_data(true).with_decode(true).with_threads(1);
    let (mut text, mut log, mut converting) = (0, false, false);
    let verdict = verify(&**device, &options, &mut |finding| {
        text += finding.to_string().len();
        log |= finding.rule.0 == "LOG-01";
        converting |= finding.rule.0 == "SB-25";
    });
    let _ = superblocks(&**device);
    if let Ok(fs) = Filesystem::open(device.clone()) {
        read_trees(&fs);
        read_files(&fs);
    }
    match verdict {
        Err(_) => Verdict::Refused,
        Ok(summary) if !summary.is_sound() => Verdict::Corrupt,
        Ok(_) if converting => Verdict::Refused,
        Ok(_) if log => Verdict::SoundWithLog,
        Ok(_) => Verdict::Sound,
    }
}

/// Describes every item that can be reached.
fn read_trees(fs: &Filesystem) {
    let ctx = fs.store().ctx();
    let Ok(roots) = tree_roots(fs) else { return };
    for root in roots.into_iter().flatten() {
        let _ = walk_tree(fs, &root, &mut |view| {
            if let Ok(view) = view {
                for slot in 0..view.block.slots() {
                    if let Some(Ok(item)) = view.block.item(slot, ctx) {
                        std::hint::black_box(describe(&item, ctx));
                    }
                }
            }
            Ok(())
        });
    }
}

/// Walks all directories and reads what is in them.
fn read_files(fs: &Filesystem) {
    let mut pending = vec![Place::TOP];
    let mut met: HashSet<(u64, u64)> = HashSet::new();
    while let Some(dir) = pending.pop() {
        if !met.insert((dir.tree, dir.ino)) {
            continue;
        }
        let mut names = Vec::new();
        let _ = lookup::entries(fs, dir, |entry| {
            if let Ok((_, entry)) = entry {
                names.push((entry.name.to_vec(), entry.location));
            }
            Ok(true)
        });
        for (name, location) in names {
            let _ = lookup::find_entry(fs, dir, &name);
            if let Ok(place) = lookup::target(fs, dir, &name, location) {
                read_inode(fs, place, &mut pending);
            }
        }
    }
}

fn read_inode(fs: &Filesystem, place: Place, pending: &mut Vec<Place>) {
    let _ = lookup::xattrs(fs, place);
    let _ = fs.compression_property(place);
    let Ok(info) = fs.info(place) else { return };
    match info.file_type() {
        Some(FileType::DIR) => pending.push(place),
        Some(FileType::SYMLINK) => drop(lookup::symlink_target(fs, place)),
        Some(FileType::REG_FILE) => {
            let Ok(mut reader) = FileReader::new(fs, &info) else { return };
            let mut bytes = Vec::new();
            while let Ok(Some(part)) = reader.next_part(&mut bytes) {
                if let Part::Hole { len, .. } = part {
                    std::hint::black_box(len);
                }
            }
        }
        _ => {}
    }
}
