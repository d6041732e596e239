//! Of which file extent what is wrong with compressed data is said, whichever worker decodes them.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod damage;

use btrfsimg_fs::verify::Options;
use btrfsimg_ondisk::{KeyType, Logical};
use btrfsimg_testkit::{Oracle, btrfs_progs};
use damage::{Base, first};

/// Compressed files in many leaves. `None` where this machine cannot make it.
fn compressed() -> Option<Base> {
    let oracle = Oracle::new();
    if !oracle.has_progs() || !oracle.has_kernel() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    btrfs_progs::mkfs(&image, 160 << 20, &["-n", "4096"]).unwrap();
    let mount = oracle.mount(&image, "rw,compress-force=zstd:3").unwrap()?;
    let words = |seed: u32| format!("the words of {seed} ").repeat(131_072).into_bytes()[..131_072].to_vec();
    std::fs::write(mount.path().join("first"), words(1)).unwrap();
    for i in 0..60 {
        std::fs::write(mount.path().join(format!("between{i:02}")), words(100 + i)).unwrap();
    }
    std::fs::write(mount.path().join("last"), words(2)).unwrap();
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    Some(Base::of(&image))
}

type Patches = Vec<(u64, Vec<u8>)>;

/// The item of a file's extent, changed; how long it is in memory stands at 8, how it is compressed at 16, its address at 21.
fn extent(base: &Base, name: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Patches {
    let (mut leaf, slot) = base.find(5, first(base.ino(name), KeyType::EXTENT_DATA));
    let mut data = leaf.item(slot).data.to_vec();
    change(&mut data);
    leaf.replace_item(slot, &data);
    base.places(leaf)
}

/// The bytes at the address of the extent of `first`, in memory at most `ram_bytes` long.
fn stored(base: &Base, bytes: Vec<u8>) -> (Vec<u8>, Patches) {
    let (leaf, slot) = base.find(5, first(base.ino(b"first"), KeyType::EXTENT_DATA));
    let range = leaf.item(slot).data[21..37].to_vec();
    let at = Logical(u64::from_le_bytes(*range.first_chunk().unwrap()));
    let physical = base.store.chunks().map(at, 4096).unwrap().next().unwrap().physical.0;
    (range, vec![(physical, bytes)])
}

/// The names of the files of which FE-25 and FE-27 are said, with the reasons; the same with every number of threads.
fn said(base: &Base, patches: &Patches) -> Vec<(String, String)> {
    let findings = |threads| {
        let options = Options::new().with_decode(true).with_threads(threads);
        let (findings, summary) = base.findings(patches.clone(), &options);
        let codec = findings.into_iter().filter(|f| ["FE-25", "FE-27"].contains(&f.rule.0));
        let said = codec.map(|f| {
            let place = f.place;
            assert_eq!(place.key.map(|key| Some(key.objectid)), Some(place.inode), "{place}");
            (String::from_utf8(place.path.unwrap()).unwrap(), format!("{} {}", f.rule, f.reason))
        });
        (said.collect::<Vec<_>>(), summary.decoded_extents)
    };
    let alone = findings(1);
    for round in 0..24 {
        assert_eq!(findings(2 + round % 7), alone, "round {round}");
    }
    alone.0
}

/// A zstd frame with a window of 128 KiB, of four blocks of 128 KiB of one byte each; the last is marked.
fn half_a_mebibyte() -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    for at in 0u32..4 {
        frame.extend_from_slice(&((128 << 10 << 3) | (1 << 1) | u32::from(at == 3)).to_le_bytes()[..3]);
        frame.push(b'x');
    }
    frame.resize(4096, 0);
    frame
}

#[test]
fn each_file_extent_is_held_against_what_comes_out() {
    let Some(base) = compressed() else { return };
    assert_eq!(said(&base, &Vec::new()), []);
    let (range, stream) = stored(&base, half_a_mebibyte());
    let show = |name: &[u8], ram_bytes: u64, compression: u8| {
        extent(&base, name, |data| {
            data[8..16].copy_from_slice(&ram_bytes.to_le_bytes());
            data[16] = compression;
            data[21..37].copy_from_slice(&range);
        })
    };
    let path = |list: &[(String, String)]| list.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
    // What is longer in memory than one file extent says is so of that one, the first or the last.
    let (long, short) = (512 << 10, 128 << 10);
    let found = said(&base, &[stream.clone(), show(b"first", long, 3), show(b"last", short, 3)].concat());
    assert_eq!(path(&found), ["/last"], "{found:?}");
    let found = said(&base, &[stream.clone(), show(b"first", short, 3), show(b"last", long, 3)].concat());
    assert_eq!(path(&found), ["/first"], "{found:?}");
    // One that is said to be compressed in another way is what does not decode.
    let found = said(&base, &[stream.clone(), show(b"first", long, 3), show(b"last", long, 1)].concat());
    assert_eq!(path(&found), ["/last"], "{found:?}");
    let found = said(&base, &[stream, show(b"first", long, 1), show(b"last", long, 3)].concat());
    assert_eq!(path(&found), ["/first"], "{found:?}");
}

#[test]
fn what_is_wrong_with_a_stream_is_said_where_it_is_first_shown() {
    let Some(base) = compressed() else { return };
    let (range, bad) = stored(&base, vec![0xff; 64]);
    let show = |name: &[u8]| extent(&base, name, |data| data[21..37].copy_from_slice(&range));
    let found = said(&base, &[bad, show(b"last")].concat());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0 == "/first" && found[0].1.starts_with("FE-25 zstd extent "), "{found:?}");
    let mut padded = half_a_mebibyte();
    padded[4095] = 1;
    let (_, padded) = stored(&base, padded);
    let long = |name: &[u8]| {
        extent(&base, name, |data| {
            data[8..16].copy_from_slice(&(512u64 << 10).to_le_bytes());
            data[21..37].copy_from_slice(&range);
        })
    };
    let found = said(&base, &[padded, long(b"first"), long(b"last")].concat());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0 == "/first" && found[0].1.starts_with("FE-27 "), "{found:?}");
}
