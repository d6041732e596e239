//! What a file system is: a model, and how an image is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::Arc;

use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::lookup::{self, Place, entries, find_entry, target};
use btrfsimg_fs::read::{FileReader, Filesystem};
use btrfsimg_ondisk::{FileType, inode_flags};

use crate::writing::now;

pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFIFO: u32 = 0o010_000;
pub(crate) const S_IFLNK: u32 = 0o120_000;
pub(crate) const SETUID: u32 = 0o4000;
pub(crate) const SETGID: u32 = 0o2000;
pub(crate) const SECTOR: usize = 4096;
pub(crate) const COMPRESSION: &[u8] = b"btrfs.compression";

pub(crate) type Bytes = Vec<u8>;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Child {
    Inode(u64),
    Subvolume(u64),
    /// In a snapshot, in the place of a subvolume.
    Stub,
}

/// An inode as it must be.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Inode {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) links: u32,
    /// Of a directory.
    pub(crate) entries: BTreeMap<Bytes, Child>,
    pub(crate) target: Bytes,
    pub(crate) data: Bytes,
    /// Seconds; that of a file with a hole punched where there was one may stay.
    pub(crate) mtime: Option<i64>,
    /// COMPRESS or NOCOMPRESS.
    pub(crate) flag: u64,
    /// The compression property among them.
    pub(crate) xattrs: BTreeMap<Bytes, Bytes>,
}

impl Inode {
    pub(crate) fn new(mode: u32) -> Inode {
        Inode { mode, links: 1, mtime: Some(now_seconds()), ..Inode::default() }
    }

    pub(crate) fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// What btrfs counts as the size of a directory: each name twice.
    pub(crate) fn size(&self) -> u64 {
        match self.kind() {
            S_IFDIR => self.entries.keys().map(|name| 2 * name.len() as u64).sum(),
            S_IFREG => self.data.len() as u64,
            _ => self.target.len() as u64,
        }
    }
}

pub(crate) fn now_seconds() -> i64 {
    now().sec.get()
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Model {
    pub(crate) inodes: BTreeMap<Place, Inode>,
    pub(crate) readonly: BTreeSet<u64>,
}

impl Model {
    pub(crate) fn new() -> Model {
        Model {
            inodes: BTreeMap::from([(Place::TOP, Inode::new(S_IFDIR | 0o755))]),
            readonly: BTreeSet::new(),
        }
    }

    /// An inode that may be changed.
    pub(crate) fn pick(&self, pick: usize, wanted: impl Fn(&Inode) -> bool) -> Option<Place> {
        let writable = |place: &Place| !self.readonly.contains(&place.tree);
        let found: Vec<Place> = self
            .inodes
            .iter()
            .filter(|(place, i)| writable(place) && wanted(i))
            .map(|(place, _)| *place)
            .collect();
        (!found.is_empty()).then(|| found[pick % found.len()])
    }

    pub(crate) fn dir(&self, pick: usize) -> Option<Place> {
        self.pick(pick, Inode::is_dir)
    }

    pub(crate) fn file(&self, pick: usize) -> Option<Place> {
        self.pick(pick, |i| i.kind() == S_IFREG)
    }

    /// A name in some directory and what it names.
    pub(crate) fn entry(&self, pick: usize) -> Option<(Place, Bytes, Child)> {
        let dir = self.pick(pick, |i| i.is_dir() && !i.entries.is_empty())?;
        let entries = &self.inodes[&dir].entries;
        let (name, child) = entries.iter().nth(pick / 7 % entries.len())?;
        Some((dir, name.clone(), *child))
    }

    /// The same, of what is no subvolume.
    pub(crate) fn inode_entry(&self, pick: usize) -> Option<(Place, Bytes, Place)> {
        let (dir, name, child) = self.entry(pick)?;
        let Child::Inode(ino) = child else { return None };
        Some((dir, name, Place { tree: dir.tree, ino }))
    }

    pub(crate) fn at(&mut self, place: Place) -> &mut Inode {
        self.inodes.get_mut(&place).unwrap()
    }

    pub(crate) fn put_entry(&mut self, dir: Place, name: Bytes, child: Child) {
        let dir = self.at(dir);
        dir.mtime = Some(now_seconds());
        assert!(dir.entries.insert(name, child).is_none());
    }

    pub(crate) fn take_entry(&mut self, dir: Place, name: &[u8]) -> Child {
        let dir = self.at(dir);
        dir.mtime = Some(now_seconds());
        dir.entries.remove(name).unwrap()
    }

    pub(crate) fn has(&self, dir: Place, name: &[u8]) -> bool {
        self.inodes[&dir].entries.contains_key(name)
    }

    /// Takes a name away, with all below it.
    pub(crate) fn forget(&mut self, dir: Place, name: &[u8]) {
        let Child::Inode(ino) = self.take_entry(dir, name) else { return };
        let place = Place { tree: dir.tree, ino };
        for (name, _) in self.inodes[&place].entries.clone() {
            self.forget(place, &name);
        }
        let inode = self.at(place);
        inode.links -= 1;
        if inode.links == 0 {
            self.inodes.remove(&place);
        }
    }

    /// The places at or below a directory, and whether a subvolume is among them.
    pub(crate) fn below(&self, top: Place) -> (BTreeSet<Place>, bool) {
        let (mut found, mut todo, mut subvolumes) = (BTreeSet::new(), vec![top], false);
        while let Some(place) = todo.pop() {
            found.insert(place);
            for child in self.inodes[&place].entries.values() {
                match child {
                    Child::Inode(ino) => todo.push(Place { tree: place.tree, ino: *ino }),
                    Child::Subvolume(_) | Child::Stub => subvolumes = true,
                }
            }
        }
        (found, subvolumes)
    }

    /// Fails unless the image at rest holds this.
    pub(crate) fn compare(&self, device: &Arc<MemDevice>) {
        let have = contents_of(device);
        for (place, inode) in &self.inodes {
            let mut found =
                have.inodes.get(place).unwrap_or_else(|| panic!("{place:?} is not there")).clone();
            if inode.mtime.is_none() {
                found.mtime = None;
            }
            let same = found.data == inode.data;
            assert!(same, "{place:?}: {} and {} bytes that differ", found.data.len(), inode.data.len());
            (found.data, found.target) = (inode.data.clone(), found.target);
            assert_eq!(
                Inode { data: Vec::new(), ..found },
                Inode { data: Vec::new(), ..inode.clone() },
                "{place:?}"
            );
        }
        assert_eq!(have.inodes.len(), self.inodes.len(), "more inodes than there should be");
        assert_eq!(have.readonly, self.readonly);
    }
}

pub(crate) fn overwrite(data: &mut Bytes, at: usize, bytes: &[u8]) {
    data.resize(data.len().max(at + bytes.len()), 0);
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

/// All that the image at rest holds, found by listing and again by looking each name up.
pub(crate) fn contents_of(device: &Arc<MemDevice>) -> Model {
    let fs = Filesystem::open(device.clone()).unwrap();
    let mut model = Model { inodes: BTreeMap::new(), readonly: BTreeSet::new() };
    let mut todo = vec![Place::TOP];
    while let Some(place) = todo.pop() {
        let info = fs.info(place).unwrap();
        let mut inode = Inode { mode: info.mode(), links: info.item.nlink.get(), ..Inode::default() };
        inode.owner = (info.item.uid.get(), info.item.gid.get());
        inode.mtime = Some(info.mtime().sec.get());
        inode.xattrs = lookup::xattrs(&fs, place).unwrap().into_iter().collect();
        match inode.kind() {
            S_IFDIR => {
                let mut listed = Vec::new();
                entries(&fs, place, |entry| {
                    let (_, entry) = entry?;
                    listed.push((entry.name.to_vec(), entry.location));
                    Ok(true)
                })
                .unwrap();
                for (name, location) in listed {
                    let found = find_entry(&fs, place, &name).unwrap().unwrap();
                    assert_eq!(found.location, location);
                    let at = target(&fs, place, &name, location).unwrap();
                    let child = match (found.is_subvolume(), at.is_empty_dir()) {
                        (false, _) => Child::Inode(at.ino),
                        (true, false) => Child::Subvolume(at.tree),
                        (true, true) => Child::Stub,
                    };
                    if child != Child::Stub {
                        let mode = fs.info(at).unwrap().mode();
                        assert_eq!(FileType::from_mode(mode), Some(found.file_type));
                        todo.push(at);
                    }
                    inode.entries.insert(name, child);
                }
            }
            S_IFREG => _ = FileReader::new(&fs, &info).unwrap().read_to_end(&mut inode.data).unwrap(),
            S_IFLNK => inode.target = lookup::symlink_target(&fs, place).unwrap(),
            _ => {}
        }
        assert_eq!(info.size(), inode.size(), "{place:?}");
        inode.flag = info.item.flags.get() & (inode_flags::COMPRESS | inode_flags::NOCOMPRESS);
        if place == Place::root(place.tree) && lookup::subvolume_is_readonly(&fs, place.tree).unwrap() {
            model.readonly.insert(place.tree);
        }
        model.inodes.insert(place, inode);
    }
    model
}
