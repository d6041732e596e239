//! Random changes of a file system in memory against a model of what a file system is.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/writing.rs"]
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::Arc;

use btrfsimg_compress::{PropertyChange, WorkspacePool};
use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::lookup::{self, Place, entries, find_entry, target};
use btrfsimg_fs::read::{FileReader, Filesystem};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::attributes::{chmod, chown, set_times};
use btrfsimg_fs::write::contents::{self, Codec};
use btrfsimg_fs::write::create::{create, symlink};
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::link::link;
use btrfsimg_fs::write::remove::{remove_tree, rmdir, unlink_checked};
use btrfsimg_fs::write::rename::rename;
use btrfsimg_fs::write::subvol;
use btrfsimg_fs::write::xattr::{remove_xattr, set_compression, set_xattr};
use btrfsimg_ondisk::{FileType, Timespec, inode_flags};
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::{Oracle, btrfs_progs};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use writing::{findings, new_file_system, now, open};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFLNK: u32 = 0o120_000;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// Sequences, and most operations of each: 10,000 in all.
const CASES: u32 = 72;
const OPS: usize = 220;
/// Sequences that are judged by btrfs-progs and the kernel as well.
const JUDGED: usize = 3;
const SECTOR: usize = 4096;
const COMPRESSION: &[u8] = b"btrfs.compression";

type Bytes = Vec<u8>;

/// What is done. The numbers of an [`Op`] pick where and how, among what is there.
#[derive(Clone, Copy, Debug)]
enum What {
    Create,
    Link,
    Unlink,
    Rmdir,
    RemoveTree,
    Rename,
    SetXattr,
    RemoveXattr,
    Property,
    Write,
    Truncate,
    Punch,
    Clone,
    Chmod,
    Chown,
    SetTimes,
    CreateSubvolume,
    Snapshot,
    DeleteSubvolume,
    SetReadonly,
    Commit,
    Reopen,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    what: What,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
}

fn any_op() -> impl Strategy<Value = Op> {
    let what = prop_oneof![
        18 => Just(What::Create),
        5 => Just(What::Link),
        6 => Just(What::Unlink),
        2 => Just(What::Rmdir),
        1 => Just(What::RemoveTree),
        7 => Just(What::Rename),
        5 => Just(What::SetXattr),
        2 => Just(What::RemoveXattr),
        4 => Just(What::Property),
        18 => Just(What::Write),
        6 => Just(What::Truncate),
        5 => Just(What::Punch),
        8 => Just(What::Clone),
        2 => Just(What::Chmod),
        2 => Just(What::Chown),
        2 => Just(What::SetTimes),
        1 => Just(What::CreateSubvolume),
        2 => Just(What::Snapshot),
        1 => Just(What::DeleteSubvolume),
        1 => Just(What::SetReadonly),
        3 => Just(What::Commit),
        1 => Just(What::Reopen),
    ];
    let number = 0..1_000_000_usize;
    (what, number.clone(), number.clone(), number.clone(), number).prop_map(|(what, a, b, c, d)| Op {
        what,
        a,
        b,
        c,
        d,
    })
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Child {
    Inode(u64),
    Subvolume(u64),
    /// In a snapshot, in the place of a subvolume.
    Stub,
}

/// An inode as it must be.
#[derive(Clone, Debug, Default, PartialEq)]
struct Inode {
    mode: u32,
    owner: (u32, u32),
    links: u32,
    /// Of a directory.
    entries: BTreeMap<Bytes, Child>,
    target: Bytes,
    data: Bytes,
    /// Seconds; that of a file with a hole punched where there was one may stay.
    mtime: Option<i64>,
    /// COMPRESS or NOCOMPRESS.
    flag: u64,
    /// The compression property among them.
    xattrs: BTreeMap<Bytes, Bytes>,
}

impl Inode {
    fn new(mode: u32) -> Inode {
        Inode { mode, links: 1, mtime: Some(now_seconds()), ..Inode::default() }
    }

    fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// What btrfs counts as the size of a directory: each name twice.
    fn size(&self) -> u64 {
        match self.kind() {
            S_IFDIR => self.entries.keys().map(|name| 2 * name.len() as u64).sum(),
            S_IFREG => self.data.len() as u64,
            _ => self.target.len() as u64,
        }
    }
}

fn now_seconds() -> i64 {
    now().sec.get()
}

/// Few enough that they meet again; some share a hash, some are as long as can be, some are no text.
fn name(pick: usize) -> Bytes {
    let within = pick / 8;
    match pick % 8 {
        0 => [&b"ue2r43xy"[..], b"c54cvxdh", b"qlvw434k", b"flotycs9"][within % 4].to_vec(),
        1 => vec![b'a' + u8::try_from(within % 4).unwrap(); 255],
        2 => vec![0xff, 0xfe, u8::try_from(1 + within % 40).unwrap()],
        _ => format!("name{}", within % 40).into_bytes(),
    }
}

/// Compressible or not.
fn some_bytes(len: usize, seed: usize) -> Bytes {
    match seed % 3 {
        0 => Rng::new(seed as u64).bytes(len),
        1 => format!("text {seed} ").into_bytes().into_iter().cycle().take(len).collect(),
        _ => vec![u8::try_from(seed % 256).unwrap(); len],
    }
}

/// Lengths and offsets around the limits: inline, sector, compressed chunk.
fn some_len(pick: usize) -> usize {
    let within = pick / 8;
    match pick % 8 {
        0 => within % 100,
        1 => within % 2100,
        2 => 4090 + within % 12,
        3 => SECTOR * (within % 20),
        4 => 131_060 + within % 30,
        5 => within % 70_000,
        _ => within % 9000,
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Model {
    inodes: BTreeMap<Place, Inode>,
    readonly: BTreeSet<u64>,
}

impl Model {
    fn new() -> Model {
        Model {
            inodes: BTreeMap::from([(Place::TOP, Inode::new(S_IFDIR | 0o755))]),
            readonly: BTreeSet::new(),
        }
    }

    /// An inode that may be changed.
    fn pick(&self, pick: usize, wanted: impl Fn(&Inode) -> bool) -> Option<Place> {
        let writable = |place: &Place| !self.readonly.contains(&place.tree);
        let found: Vec<Place> = self
            .inodes
            .iter()
            .filter(|(place, i)| writable(place) && wanted(i))
            .map(|(place, _)| *place)
            .collect();
        (!found.is_empty()).then(|| found[pick % found.len()])
    }

    fn dir(&self, pick: usize) -> Option<Place> {
        self.pick(pick, Inode::is_dir)
    }

    fn file(&self, pick: usize) -> Option<Place> {
        self.pick(pick, |i| i.kind() == S_IFREG)
    }

    /// A name in some directory and what it names.
    fn entry(&self, pick: usize) -> Option<(Place, Bytes, Child)> {
        let dir = self.pick(pick, |i| i.is_dir() && !i.entries.is_empty())?;
        let entries = &self.inodes[&dir].entries;
        let (name, child) = entries.iter().nth(pick / 7 % entries.len())?;
        Some((dir, name.clone(), *child))
    }

    /// The same, of what is no subvolume.
    fn inode_entry(&self, pick: usize) -> Option<(Place, Bytes, Place)> {
        let (dir, name, child) = self.entry(pick)?;
        let Child::Inode(ino) = child else { return None };
        Some((dir, name, Place { tree: dir.tree, ino }))
    }

    fn at(&mut self, place: Place) -> &mut Inode {
        self.inodes.get_mut(&place).unwrap()
    }

    fn put_entry(&mut self, dir: Place, name: Bytes, child: Child) {
        let dir = self.at(dir);
        dir.mtime = Some(now_seconds());
        assert!(dir.entries.insert(name, child).is_none());
    }

    fn take_entry(&mut self, dir: Place, name: &[u8]) -> Child {
        let dir = self.at(dir);
        dir.mtime = Some(now_seconds());
        dir.entries.remove(name).unwrap()
    }

    fn has(&self, dir: Place, name: &[u8]) -> bool {
        self.inodes[&dir].entries.contains_key(name)
    }

    /// Takes a name away, with all below it.
    fn forget(&mut self, dir: Place, name: &[u8]) {
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
    fn below(&self, top: Place) -> (BTreeSet<Place>, bool) {
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

    fn create(&mut self, tx: &mut Transaction<'_>, op: Op) -> Option<()> {
        let (dir, name) = (self.dir(op.a)?, name(op.b));
        let kind = [S_IFDIR, S_IFREG, S_IFREG, S_IFREG, S_IFIFO, S_IFLNK][op.c % 6];
        let mode = kind | u32::try_from(op.d % 0o1000).unwrap();
        let above = &self.inodes[&dir];
        // Either flag is inherited by everything, a property with an algorithm by files and directories.
        let mut inode = Inode { flag: above.flag, ..Inode::new(mode) };
        if above.mode & SETGID != 0 {
            inode.owner.1 = above.owner.1;
            inode.mode |= if kind == S_IFDIR { SETGID } else { 0 };
        }
        let attributes = Attributes::new(mode, now());
        let made = if kind == S_IFLNK {
            inode.target = Rng::new(op.d as u64).bytes(1 + op.d % 3000).iter().map(|b| b | 1).collect();
            symlink(tx, dir, &name, attributes, &inode.target)
        } else {
            let inherited = above.xattrs.get(COMPRESSION).filter(|v| v.as_slice() != b"none");
            if let Some(value) = inherited.filter(|_| kind != S_IFIFO) {
                inode.xattrs.insert(COMPRESSION.to_vec(), value.clone());
            }
            create(tx, dir, &name, attributes, Vec::new())
        };
        if self.has(dir, &name) {
            assert!(made.is_err(), "a second {name:?}");
            return None;
        }
        let place = made.unwrap();
        assert!(self.inodes.insert(place, inode).is_none(), "{place:?} is in use");
        self.put_entry(dir, name, Child::Inode(place.ino));
        Some(())
    }

    fn link(&mut self, tx: &mut Transaction<'_>, op: Op) -> Option<()> {
        let (place, dir, name) = (self.pick(op.a, |_| true)?, self.dir(op.b)?, name(op.c));
        let linked = link(tx, place, dir, &name);
        if self.inodes[&place].is_dir() || dir.tree != place.tree || self.has(dir, &name) {
            assert!(linked.is_err());
            return None;
        }
        linked.unwrap();
        self.at(place).links += 1;
        self.put_entry(dir, name, Child::Inode(place.ino));
        Some(())
    }

    fn remove(&mut self, tx: &mut Transaction<'_>, op: Op) -> Option<()> {
        let (dir, name, place) = self.inode_entry(op.a)?;
        let inode = &self.inodes[&place];
        match op.what {
            What::Unlink if !inode.is_dir() => unlink_checked(tx, dir, &name, place, "x").unwrap(),
            What::Rmdir => {
                let removed = rmdir(tx, dir, &name, "x");
                if !inode.is_dir() || !inode.entries.is_empty() {
                    assert!(removed.is_err());
                    return None;
                }
                removed.unwrap();
            }
            What::RemoveTree if inode.is_dir() && !self.below(place).1 => {
                remove_tree(tx, dir, &name, place, "x").unwrap();
            }
            _ => return None,
        }
        self.forget(dir, &name);
        Some(())
    }

    fn rename(&mut self, tx: &mut Transaction<'_>, op: Op) -> Option<()> {
        let (dir, old_name, place) = self.inode_entry(op.a)?;
        let (to_dir, new_name) = match self.inode_entry(op.b) {
            Some((dir, name, _)) if op.c.is_multiple_of(3) => (dir, name),
            _ => (self.dir(op.b)?, name(op.c)),
        };
        let there = self.inodes[&to_dir].entries.get(&new_name).copied();
        let replaced = match there {
            Some(Child::Inode(ino)) => Some(Place { tree: to_dir.tree, ino }),
            None => None,
            _ => return None,
        };
        let is_dir = self.inodes[&place].is_dir();
        let renamed = rename(tx, dir, &old_name, to_dir, &new_name);
        if replaced == Some(place) {
            renamed.unwrap();
            return None;
        }
        let into_itself = is_dir && self.below(place).0.contains(&to_dir);
        let in_the_way = replaced.is_some_and(|old| {
            let old = &self.inodes[&old];
            old.is_dir() != is_dir || !old.entries.is_empty()
        });
        if dir.tree != to_dir.tree || into_itself || in_the_way {
            assert!(renamed.is_err(), "{old_name:?} over {replaced:?}");
            return None;
        }
        renamed.unwrap();
        if replaced.is_some() {
            self.forget(to_dir, &new_name);
        }
        let child = self.take_entry(dir, &old_name);
        self.put_entry(to_dir, new_name, child);
        Some(())
    }

    fn xattr(&mut self, tx: &mut Transaction<'_>, op: Op) -> Option<()> {
        let place = self.pick(op.a, |_| true)?;
        let name = [b"user.".to_vec(), name(op.b)].concat();
        let name = name[..name.len().min(255)].to_vec();
        let xattrs = &mut self.at(place).xattrs;
        if matches!(op.what, What::RemoveXattr) {
            assert_eq!(remove_xattr(tx, place, &name).unwrap(), xattrs.remove(&name).is_some());
            return Some(());
        }
        // Two of the longest do not fit one leaf of 4 KiB when they share a hash.
        let value = some_bytes(op.c % 1500, op.d);
        set_xattr(tx, place, &name, &value).unwrap();
        xattrs.insert(name, value);
        Some(())
    }

    fn property(&mut self, tx: &mut Transaction<'_>, op: Op) -> Option<()> {
        let place = self.pick(op.a, |i| [S_IFDIR, S_IFREG].contains(&i.kind()))?;
        let value = ["zstd:10", "zstd:-5", "lzo", "zlib:9", "none", ""][op.b % 6];
        set_compression(tx, place, &PropertyChange::parse_strict(value).unwrap(), "x").unwrap();
        let inode = self.at(place);
        inode.xattrs.remove(COMPRESSION);
        if !value.is_empty() {
            inode.xattrs.insert(COMPRESSION.to_vec(), value.into());
        }
        inode.flag = match value {
            "" => 0,
            "none" => inode_flags::NOCOMPRESS,
            _ => inode_flags::COMPRESS,
        };
        Some(())
    }

    fn contents(&mut self, tx: &mut Transaction<'_>, codec: &mut Codec<'_>, op: Op) -> Option<()> {
        let place = self.file(op.a)?;
        let (first, second) = (some_len(op.b), some_len(op.c));
        match op.what {
            What::Write => {
                let bytes = some_bytes(second, op.d);
                contents::write_at(tx, place, first as u64, &bytes, codec).unwrap();
                if !bytes.is_empty() {
                    overwrite(&mut self.at(place).data, first, &bytes);
                    self.at(place).mtime = Some(now_seconds());
                }
            }
            What::Truncate => {
                contents::truncate(tx, place, first as u64).unwrap();
                self.at(place).data.resize(first, 0);
                self.at(place).mtime = Some(now_seconds());
            }
            What::Punch => {
                contents::punch_hole(tx, place, first as u64..(first + second) as u64).unwrap();
                let inode = self.at(place);
                let end = inode.data.len().min(first + second);
                inode.data[first.min(end)..end].fill(0);
                inode.mtime = None;
            }
            _ => return self.clone_range(tx, place, op),
        }
        Some(())
    }

    fn clone_range(&mut self, tx: &mut Transaction<'_>, to: Place, op: Op) -> Option<()> {
        let files: Vec<Place> =
            self.inodes.iter().filter(|(_, i)| i.kind() == S_IFREG).map(|(place, _)| *place).collect();
        let from = files[op.d % files.len()];
        let source = self.inodes[&from].data.clone();
        let start = SECTOR * (op.b % 12);
        let end = (start + SECTOR * (1 + op.b / 12 % 20)).min(source.len());
        let at = SECTOR * (op.c % 30);
        if start >= end {
            return None;
        }
        let (len, size) = (end - start, self.inodes[&to].data.len());
        let cloned = contents::clone_range(tx, from, start as u64..end as u64, to, at as u64);
        let overlap = from == to && start < at + len && at < end;
        if overlap || (!end.is_multiple_of(SECTOR) && at + len < size) {
            assert!(cloned.is_err(), "{start}..{end} of {} to {at} of {size}", source.len());
            return None;
        }
        cloned.unwrap();
        overwrite(&mut self.at(to).data, at, &source[start..end]);
        self.at(to).mtime = Some(now_seconds());
        Some(())
    }

    fn attributes(&mut self, tx: &mut Transaction<'_>, op: Op) -> Option<()> {
        let place = self.pick(op.a, |i| i.kind() != S_IFLNK)?;
        let inode = self.at(place);
        match op.what {
            What::Chmod => {
                let mode = u32::try_from(op.b % 0o10000).unwrap();
                chmod(tx, place, mode).unwrap();
                inode.mode = inode.kind() | mode;
            }
            What::Chown => {
                let (uid, gid) = ([None, Some(0), Some(1000)][op.b % 3], [None, Some(7)][op.c % 2]);
                chown(tx, place, uid, gid).unwrap();
                inode.owner = (uid.unwrap_or(inode.owner.0), gid.unwrap_or(inode.owner.1));
                if !inode.is_dir() {
                    inode.mode &= !(SETUID | if inode.mode & 0o010 != 0 { SETGID } else { 0 });
                }
            }
            _ => {
                let time = i64::try_from(op.b).unwrap();
                set_times(tx, place, None, Some(Timespec::new(time, 1))).unwrap();
                inode.mtime = Some(time);
            }
        }
        Some(())
    }

    fn subvolumes(&self) -> Vec<(Place, Bytes, u64)> {
        let named = |(place, inode): (&Place, &Inode)| {
            let place = *place;
            let subvolume = move |(name, child): (&Bytes, &Child)| match child {
                Child::Subvolume(tree) => Some((place, name.clone(), *tree)),
                _ => None,
            };
            inode.entries.iter().filter_map(subvolume).collect::<Vec<_>>()
        };
        self.inodes.iter().flat_map(named).collect()
    }

    fn subvolume(&mut self, tx: &mut Transaction<'_>, op: Op) -> Option<()> {
        let (dir, name) = (self.dir(op.a)?, name(op.b));
        let all = self.subvolumes();
        match op.what {
            What::CreateSubvolume => {
                let attributes = Attributes::new(S_IFDIR | 0o755, now());
                let made = subvol::create(tx, dir, &name, attributes, Vec::new());
                if self.has(dir, &name) {
                    assert!(made.is_err());
                    return None;
                }
                let mut inode = Inode::new(S_IFDIR | 0o755);
                let above = &self.inodes[&Place::root(dir.tree)];
                if let Some(value) = above.xattrs.get(COMPRESSION).filter(|v| v.as_slice() != b"none") {
                    inode.xattrs.insert(COMPRESSION.to_vec(), value.clone());
                    inode.flag = inode_flags::COMPRESS;
                }
                let tree = made.unwrap();
                assert!(self.inodes.insert(Place::root(tree), inode).is_none());
                self.put_entry(dir, name, Child::Subvolume(tree));
            }
            What::Snapshot => {
                let source = if all.is_empty() { 5 } else { [5, all[op.c % all.len()].2][op.c % 2] };
                let made = subvol::snapshot(tx, source, dir, &name, op.d.is_multiple_of(3));
                if self.has(dir, &name) {
                    assert!(made.is_err());
                    return None;
                }
                let tree = made.unwrap();
                self.snapshot(source, tree);
                if op.d.is_multiple_of(3) {
                    self.readonly.insert(tree);
                }
                self.put_entry(dir, name, Child::Subvolume(tree));
            }
            What::DeleteSubvolume => {
                let (dir, name, tree) = all.get(op.c % all.len().max(1))?.clone();
                if self.readonly.contains(&dir.tree) {
                    return None;
                }
                let deleted = subvol::delete(tx, dir, &name);
                if all.iter().any(|(other, ..)| other.tree == tree) {
                    assert!(deleted.is_err(), "there are subvolumes in it");
                    return None;
                }
                assert!(deleted.unwrap().finished);
                self.take_entry(dir, &name);
                self.inodes.retain(|place, _| place.tree != tree);
                self.readonly.remove(&tree);
            }
            _ => {
                let tree = all.get(op.c % all.len().max(1))?.2;
                subvol::set_readonly(tx, tree, op.d.is_multiple_of(2), false).unwrap();
                if op.d.is_multiple_of(2) {
                    self.readonly.insert(tree)
                } else {
                    self.readonly.remove(&tree)
                };
            }
        }
        Some(())
    }

    fn snapshot(&mut self, source: u64, tree: u64) {
        let copied: Vec<_> = self
            .inodes
            .iter()
            .filter(|(place, _)| place.tree == source)
            .map(|(p, i)| (*p, i.clone()))
            .collect();
        for (place, mut inode) in copied {
            for child in inode.entries.values_mut().filter(|child| matches!(child, Child::Subvolume(_))) {
                *child = Child::Stub;
            }
            assert!(self.inodes.insert(Place { tree, ..place }, inode).is_none());
        }
    }

    fn change(&mut self, tx: &mut Transaction<'_>, codec: &mut Codec<'_>, op: Op) {
        // Nothing in it fits: that is as good as done.
        let _ = match op.what {
            What::Create => self.create(tx, op),
            What::Link => self.link(tx, op),
            What::Unlink | What::Rmdir | What::RemoveTree => self.remove(tx, op),
            What::Rename => self.rename(tx, op),
            What::SetXattr | What::RemoveXattr => self.xattr(tx, op),
            What::Property => self.property(tx, op),
            What::Write | What::Truncate | What::Punch | What::Clone => self.contents(tx, codec, op),
            What::Chmod | What::Chown | What::SetTimes => self.attributes(tx, op),
            What::CreateSubvolume | What::Snapshot | What::DeleteSubvolume | What::SetReadonly => {
                self.subvolume(tx, op)
            }
            What::Commit | What::Reopen => None,
        };
    }

    /// Fails unless the image at rest holds this.
    fn compare(&self, device: &Arc<MemDevice>) {
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

fn overwrite(data: &mut Bytes, at: usize, bytes: &[u8]) {
    data.resize(data.len().max(at + bytes.len()), 0);
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

/// All that the image at rest holds, found by listing and again by looking each name up.
fn contents_of(device: &Arc<MemDevice>) -> Model {
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

/// Does all operations, and looks at the image after each commit.
fn try_case(nodesize: u32, compress: &str, ops: &[Op]) -> Arc<MemDevice> {
    let device = new_file_system(nodesize);
    let (mut volume, mut model) = (open(&device), Model::new());
    let pool = WorkspacePool::new(1);
    let policy = CompressionPolicy { build_default: compress.parse().ok(), ..CompressionPolicy::default() };
    let is_last = |op: &Op| matches!(op.what, What::Commit | What::Reopen);
    for (round, ops) in ops.split_inclusive(is_last).enumerate() {
        let mut tx = volume.begin(now()).unwrap();
        let mut codec = Codec::new(&tx, &pool, policy);
        ops.iter().for_each(|op| model.change(&mut tx, &mut codec, *op));
        tx.commit().unwrap();
        model.compare(&device);
        if round % 4 == 3 {
            assert_eq!(findings(&device, &[]), [""; 0]);
        }
        if matches!(ops.last().map(|op| op.what), Some(What::Reopen)) {
            volume = open(&device);
        }
    }
    assert_eq!(findings(&device, &[]), [""; 0]);
    device
}

#[test]
fn a_file_system_is_what_its_model_is() {
    let config =
        Config { cases: CASES, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let case = (0..3_usize, 0..4_usize, vec(any_op(), OPS / 2..OPS));
    let done = std::cell::Cell::new((0, 0));
    let tried = runner.run(&case, |(nodesize, compress, ops)| {
        let device =
            try_case([4096, 16_384, 65_536][nodesize], ["none", "zlib", "lzo", "zstd"][compress], &ops);
        let (cases, operations) = done.get();
        if cases < JUDGED {
            judge(&device, &format!("{ops:?}"));
        }
        done.set((cases + 1, operations + ops.len()));
        Ok(())
    });
    tried.unwrap_or_else(|failed| panic!("{failed}"));
    assert!(done.get().1 >= 10_000, "only {} operations", done.get().1);
}

fn judge(device: &MemDevice, what: &str) {
    let oracle = Oracle::new();
    let image = tempfile::Builder::new().suffix(".img").tempfile().unwrap();
    std::fs::write(image.path(), device.contents()).unwrap();
    if oracle.has_progs() {
        assert_eq!(btrfs_progs::check(image.path()).unwrap(), [""; 0], "{what}");
    }
    if let Some(mount) = oracle.mount(image.path(), "ro").unwrap() {
        // Every name and xattr, as the kernel finds them.
        let mut getfattr = std::process::Command::new("getfattr");
        let listed =
            getfattr.args(["-R", "-h", "-d", "-m", "-", "--absolute-names"]).arg(mount.path()).output();
        assert!(listed.is_ok_and(|l| l.status.success()), "{what}");
        assert_eq!(mount.unmount().unwrap(), [""; 0], "{what}");
    }
}
