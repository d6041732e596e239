//! Subvolumes and snapshots in memory: random changes against a model, several in one transaction.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/writing.rs"]
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::Arc;

use btrfsimg_fs::Error;
use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::lookup::{self, Place, entries, find_entry, target};
use btrfsimg_fs::read::{FileReader, Filesystem};
use btrfsimg_fs::txn::{Transaction, TreeDrop};
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::names::{unlink, update_inode};
use btrfsimg_fs::write::subvol;
use btrfsimg_ondisk::{
    BackRef, CsumType, FileExtent, FileExtentKind, FileExtentRange, FileType, KeyType, objectid,
};
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::{Oracle, btrfs_progs};
use writing::{findings, new_file_system, now, open};

type Bytes = Vec<u8>;

/// A subvolume as it must be: its files are all in its root directory.
#[derive(Clone, Debug, Default, PartialEq)]
struct Volume {
    files: BTreeMap<Bytes, u8>,
    /// Subvolumes in it, by name.
    inside: BTreeMap<Bytes, u64>,
    /// Names of subvolumes that are not in this snapshot.
    absent: BTreeSet<Bytes>,
    readonly: bool,
}

#[derive(Clone, Debug)]
struct Model {
    volumes: BTreeMap<u64, Volume>,
}

/// Bytes of a file that holds `fill`: up to five extents, so that leaves hold many references.
fn sectors(fill: u8) -> u64 {
    u64::from(fill % 6)
}

/// A file of `sectors` extents of a sector each.
fn put_file(tx: &mut Transaction<'_>, dir: Place, name: &[u8], fill: u8) {
    let place = create(tx, dir, name, Attributes::new(0o100_644, now()), Vec::new()).unwrap();
    let len = 4096u64;
    for sector in 0..sectors(fill) {
        let at = tx.alloc_data(len).unwrap();
        let bytes = vec![fill; usize::try_from(len).unwrap()];
        tx.write_data(at, &bytes).unwrap();
        let offset = sector * len;
        let back = BackRef::Data { root: place.tree, objectid: place.ino, offset };
        let csum = CsumType::Crc32c.of(&bytes);
        tx.create_data_extent(at, len, back, &csum.0[..4]).unwrap();
        let range = FileExtentRange {
            disk_bytenr: at.0.into(),
            disk_num_bytes: len.into(),
            offset: 0.into(),
            num_bytes: len.into(),
        };
        let extent = FileExtent {
            generation: tx.transid(),
            ram_bytes: len,
            compression: 0,
            kind: FileExtentKind::Regular(range),
        };
        let mut data = Vec::new();
        extent.write(&mut data);
        tx.insert(place.tree, place.key(KeyType::EXTENT_DATA, offset), &data).unwrap();
    }
    let size = sectors(fill) * len;
    update_inode(tx, place, |inode| (inode.size, inode.nbytes) = (size.into(), size.into())).unwrap();
}

fn remove_file(tx: &mut Transaction<'_>, dir: Place, name: &[u8]) {
    let entry = find_entry(tx, dir, name).unwrap().unwrap();
    let place = target(tx, dir, name, entry.location).unwrap();
    unlink(tx, dir, name, place).unwrap();
}

fn directory() -> Attributes {
    Attributes::new(0o040_755, now())
}

impl Model {
    fn pick(&self, rng: &mut Rng) -> u64 {
        let ids: Vec<u64> = self.volumes.keys().copied().collect();
        ids[rng.index(ids.len())]
    }

    fn pick_writable(&self, rng: &mut Rng) -> u64 {
        let ids: Vec<u64> = self.volumes.iter().filter(|(_, v)| !v.readonly).map(|(id, _)| *id).collect();
        ids[rng.index(ids.len())]
    }

    /// Where a subvolume is.
    fn parent(&self, id: u64) -> (u64, Bytes) {
        let holds = |v: &Volume| v.inside.iter().find(|(_, inner)| **inner == id).map(|(n, _)| n.clone());
        self.volumes.iter().find_map(|(parent, v)| Some((*parent, holds(v)?))).unwrap()
    }

    fn change(&mut self, tx: &mut Transaction<'_>, rng: &mut Rng, serial: usize) {
        let id = self.pick_writable(rng);
        let dir = Place::root(id);
        let name =
            format!("a rather long name, so that leaves are soon full {:03}", rng.index(120)).into_bytes();
        let new_name = format!("subvolume {serial}").into_bytes();
        match rng.index(10) {
            0..=5 => {
                let fill = u8::try_from(rng.index(250)).unwrap();
                if self.volumes[&id].files.contains_key(&name) {
                    remove_file(tx, dir, &name);
                }
                put_file(tx, dir, &name, fill);
                self.volumes.get_mut(&id).unwrap().files.insert(name, fill);
            }
            6 => {
                if self.volumes.get_mut(&id).unwrap().files.remove(&name).is_some() {
                    remove_file(tx, dir, &name);
                }
            }
            7 => {
                let source = self.pick(rng);
                let readonly = rng.index(3) == 0;
                let tree = subvol::snapshot(tx, source, dir, &new_name, readonly).unwrap();
                let mut copy = Volume { readonly, ..self.volumes[&source].clone() };
                copy.absent.extend(std::mem::take(&mut copy.inside).into_keys());
                assert!(self.volumes.insert(tree, copy).is_none());
                self.volumes.get_mut(&id).unwrap().inside.insert(new_name, tree);
            }
            8 if self.volumes.len() < 12 => {
                let tree = subvol::create(tx, dir, &new_name, directory(), Vec::new()).unwrap();
                assert!(self.volumes.insert(tree, Volume::default()).is_none());
                self.volumes.get_mut(&id).unwrap().inside.insert(new_name, tree);
            }
            _ => {
                let doomed = self.pick(rng);
                if doomed != objectid::FS_TREE {
                    self.delete(tx, doomed);
                }
            }
        }
    }

    fn delete(&mut self, tx: &mut Transaction<'_>, doomed: u64) {
        let (parent, name) = self.parent(doomed);
        if self.volumes[&parent].readonly {
            return;
        }
        let deleted = subvol::delete(tx, Place::root(parent), &name);
        if self.volumes[&doomed].inside.is_empty() {
            assert_eq!(deleted.unwrap().tree, doomed);
            self.volumes.remove(&doomed);
            self.volumes.get_mut(&parent).unwrap().inside.remove(&name);
        } else {
            assert!(matches!(deleted, Err(Error::NotEmpty(_))), "{deleted:?}");
        }
    }
}

/// What is there, as a model.
fn read_back(fs: &Filesystem) -> Model {
    let mut model = Model { volumes: BTreeMap::new() };
    let mut todo = vec![objectid::FS_TREE];
    while let Some(id) = todo.pop() {
        let dir = Place::root(id);
        let mut volume =
            Volume { readonly: lookup::subvolume_is_readonly(fs, id).unwrap(), ..Volume::default() };
        let mut found = Vec::new();
        entries(fs, dir, |entry| {
            let (_, e) = entry?;
            found.push((e.name.to_vec(), e.location, e.file_type));
            Ok(true)
        })
        .unwrap();
        for (name, location, file_type) in found {
            let place = target(fs, dir, &name, location).unwrap();
            if file_type == FileType::DIR && place.is_empty_dir() {
                volume.absent.insert(name);
            } else if file_type == FileType::DIR {
                volume.inside.insert(name, place.tree);
                todo.push(place.tree);
            } else {
                volume.files.insert(name, fill_of(fs, place));
            }
        }
        model.volumes.insert(id, volume);
    }
    model
}

/// The byte that all of a file is; a file without bytes may be any without.
fn fill_of(fs: &Filesystem, place: Place) -> u8 {
    let info = fs.info(place).unwrap();
    let mut bytes = Vec::new();
    FileReader::new(fs, &info).unwrap().read_to_end(&mut bytes).unwrap();
    let fill = bytes.first().copied().unwrap_or_default();
    assert!(bytes.iter().all(|b| *b == fill));
    assert_eq!(bytes.len() as u64, sectors(fill) * 4096);
    fill
}

fn normal(model: &Model) -> Model {
    let mut model = model.clone();
    let empty = |fill: &u8| sectors(*fill) == 0;
    model.volumes.values_mut().flat_map(|v| v.files.values_mut()).filter(|f| empty(f)).for_each(|f| *f = 0);
    model
}

fn used(device: &Arc<MemDevice>) -> u64 {
    open(device).store().superblock().bytes_used.get()
}

/// But for a few blocks: the accounting trees, which now know a chunk for data, may be split in other places.
fn assert_free_again(used: u64, empty: u64) {
    assert!((empty..=empty + 6 * 4096).contains(&used), "{used} bytes are used, {empty} were at first");
}

#[test]
fn random_subvolumes_are_as_the_model_has_them() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let device = new_file_system(4096);
        let empty = used(&device);
        let mut model = Model { volumes: BTreeMap::from([(objectid::FS_TREE, Volume::default())]) };
        let mut serial = 0;
        for round in 0..60 {
            let mut volume = open(&device);
            let mut tx = volume.begin(now()).unwrap();
            for _ in 0..1 + rng.index(12) {
                model.change(&mut tx, &mut rng, serial);
                serial += 1;
            }
            tx.commit().unwrap();
            if rng.index(3) == 0 {
                subvol::drop_deleted(&mut volume, now(), &mut || false).unwrap();
            }
            assert_eq!(findings(&device, &[]), Vec::<String>::new(), "seed {seed} round {round}");
            let fs = Filesystem::open(device.clone()).unwrap();
            assert_eq!(read_back(&fs).volumes, normal(&model).volumes, "seed {seed} round {round}");
        }
        judge(&device);
        clear(&device, &mut model, &mut rng);
        assert_eq!(findings(&device, &[]), Vec::<String>::new());
        assert_free_again(used(&device), empty);
    }
}

/// Deletes all, the subvolumes in any order that there is.
fn clear(device: &Arc<MemDevice>, model: &mut Model, rng: &mut Rng) {
    let mut volume = open(device);
    let mut tx = volume.begin(now()).unwrap();
    for id in model.volumes.keys().copied().collect::<Vec<_>>() {
        subvol::set_readonly(&mut tx, id, false, false).unwrap();
        model.volumes.get_mut(&id).unwrap().readonly = false;
    }
    while model.volumes.len() > 1 {
        let doomed = model.pick(rng);
        if doomed != objectid::FS_TREE {
            model.delete(&mut tx, doomed);
        }
    }
    for name in model.volumes[&objectid::FS_TREE].files.keys() {
        remove_file(&mut tx, Place::TOP, name);
    }
    for name in &model.volumes[&objectid::FS_TREE].absent {
        subvol::remove_stand_in(&mut tx, Place::TOP, name).unwrap();
    }
    tx.commit().unwrap();
    subvol::drop_deleted(&mut volume, now(), &mut || false).unwrap();
    assert_eq!(lookup::deleted_subvolumes(volume.store()).unwrap(), Vec::<u64>::new());
}

/// By others: btrfs check and the kernel.
fn judge(device: &Arc<MemDevice>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), device.contents()).unwrap();
    let oracle = Oracle::new();
    if oracle.has_progs() {
        assert_eq!(btrfs_progs::check(file.path()).unwrap(), Vec::<String>::new());
    }
    oracle.judge(file.path(), None).unwrap().assert_ok();
}

/// What is dropped in steps ends as what is dropped at once, and each step leaves a whole image.
#[test]
fn a_drop_in_steps() {
    for (steps, shared) in [(1, true), (7, true), (40, false)] {
        let mut rng = Rng::new(steps as u64);
        let device = new_file_system(4096);
        let empty = used(&device);
        let mut volume = open(&device);
        let mut tx = volume.begin(now()).unwrap();
        let first = subvol::create(&mut tx, Place::TOP, b"first", directory(), Vec::new()).unwrap();
        for n in 0..150 {
            let name = format!("a rather long name, so that leaves are soon full {n:03}");
            put_file(&mut tx, Place::root(first), name.as_bytes(), u8::try_from(rng.index(250)).unwrap());
        }
        tx.commit().unwrap();
        let mut tx = volume.begin(now()).unwrap();
        if shared {
            subvol::snapshot(&mut tx, first, Place::TOP, b"second", false).unwrap();
            tx.commit().unwrap();
            tx = volume.begin(now()).unwrap();
            let name = format!("a rather long name, so that leaves are soon full {:03}", 70);
            remove_file(&mut tx, Place::root(first), name.as_bytes());
            tx.commit().unwrap();
            tx = volume.begin(now()).unwrap();
        }
        let tree = subvol::begin_delete(&mut tx, Place::TOP, b"first").unwrap();
        tx.commit().unwrap();
        let mut drop = TreeDrop::new(tree);
        let mut transactions = 0;
        loop {
            assert_eq!(findings(&device, &[]), Vec::<String>::new(), "after {transactions} steps");
            let mut tx = volume.begin(now()).unwrap();
            // As after a power cut, now and then.
            if rng.index(3) == 0 {
                drop = TreeDrop::new(tree);
            }
            let finished = subvol::finish(&mut tx, &mut drop, steps).unwrap();
            tx.commit().unwrap();
            transactions += 1;
            if finished {
                break;
            }
        }
        assert!(transactions > 3, "{transactions}");
        judge(&device);
        if shared {
            let mut tx = volume.begin(now()).unwrap();
            assert!(subvol::delete(&mut tx, Place::TOP, b"second").unwrap().finished);
            tx.commit().unwrap();
        }
        assert_eq!(findings(&device, &[]), Vec::<String>::new());
        assert_free_again(used(&device), empty);
    }
}
