//! Target: operations on a file system whose device fails.
//!
//! Input: two bytes that say at which change the device fails, one that says how; then operations of four bytes each:
//! what, in which directory, by which name, with what. Every eighth operation ends a transaction.

use std::sync::Arc;

use btrfsimg_fs::device::OverlayDevice;
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::create::{create, symlink};
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::remove::{remove_tree, unlink_checked};
use btrfsimg_fs::write::xattr::{remove_xattr, set_xattr};
use btrfsimg_fs::{Error, Result, verify};
use btrfsimg_ondisk::{FileType, Timespec};

use super::base;
use crate::crash::{Failing, FailingDevice};

/// Operations of a transaction.
const BATCH: usize = 8;

/// Runs the target `operations`.
pub fn run(input: &[u8]) {
    let Some((&[low, high, how], rest)) = input.split_first_chunk::<3>() else { return };
    let below = Arc::new(OverlayDevice::new(base::image().device()).expect("memory has a length"));
    let failing = Failing {
        nth: usize::from(u16::from_le_bytes([low, high]) % 512),
        from_then_on: how & 1 != 0,
        short: how & 2 != 0,
        kind: if how & 4 == 0 { std::io::ErrorKind::Other } else { std::io::ErrorKind::StorageFull },
    };
    let device = Arc::new(FailingDevice::new(below.clone(), failing));
    let now = Timespec::new(1_700_000_002, 0);
    'transactions: for batch in rest.chunks(4 * BATCH).take(16) {
        let Ok(mut volume) = Volume::open(device.clone(), VolumeOptions::default()) else { break };
        let mut tx = volume.begin(now).expect("a new handle can begin");
        for op in batch.chunks_exact(4) {
            match operation(&mut tx, op) {
                Ok(()) => {}
                Err(e @ (Error::Corrupt(_) | Error::Unsupported(_))) => panic!("on a sound image: {e}"),
                // Whoever uses the library drops the transaction then.
                Err(_) => continue 'transactions,
            }
        }
        match tx.commit() {
            Ok(()) | Err(Error::Io { .. } | Error::NoSpace { .. }) => {}
            Err(e) => panic!("a commit to a sound image: {e}"),
        }
    }
    let mut first = None;
    let options = verify::Options::new().with_data(true).with_threads(1);
    verify::verify(&*below, &options, &mut |finding| {
        // Half a superblock is none: the copy has the old state.
        let torn = failing.short && finding.rule.to_string() == "SB-03";
        if finding.severity().is_error() && !torn {
            first.get_or_insert_with(|| finding.to_string());
        }
    })
    .expect("it can be judged");
    assert_eq!(first, None, "neither the old state nor the new one");
}

fn operation(tx: &mut Transaction<'_>, op: &[u8]) -> Result<()> {
    let dir = directory(tx, op[1])?;
    let name = [&[b'a' + op[2] % 24][..], &b"name"[..usize::from(op[2] % 5)]].concat();
    let now = tx.now();
    let attributes = |mode| Attributes::new(mode, now);
    let at_name = lookup::find_entry(tx, dir, &name)?;
    let place = at_name.map(|e| Place { tree: dir.tree, ino: e.location.objectid });
    match (op[0] % 8, place) {
        (0..=2, Some(_)) => Ok(()),
        (0, _) => create(tx, dir, &name, attributes(0o040_755), Vec::new()).map(drop),
        (1, _) => create(tx, dir, &name, attributes(0o100_644), Vec::new()).map(drop),
        (2, _) => {
            symlink(tx, dir, &name, attributes(0o120_777), &vec![b't'; usize::from(op[3]) * 8]).map(drop)
        }
        (3, _) => set_xattr(tx, dir, &[b"user.", &name[..]].concat(), &vec![op[3]; usize::from(op[3]) * 8]),
        (4, _) => remove_xattr(tx, dir, &[b"user.", &name[..]].concat()).map(drop),
        (5 | 6, Some(place)) if at_name.is_some_and(|e| e.file_type != FileType::DIR) => {
            unlink_checked(tx, dir, &name, place, "entry")
        }
        (5, Some(place)) => remove_tree(tx, dir, &name, place, "directory"),
        _ => Ok(()),
    }
}

/// The top directory, or one of those in it.
fn directory(tx: &Transaction<'_>, choice: u8) -> Result<Place> {
    let mut dirs = vec![Place::TOP];
    lookup::entries(tx, Place::TOP, |entry| {
        let (_, e) = entry?;
        if e.file_type == FileType::DIR {
            dirs.push(Place { tree: Place::TOP.tree, ino: e.location.objectid });
        }
        Ok(dirs.len() < 8)
    })?;
    Ok(dirs[usize::from(choice) % dirs.len()])
}
