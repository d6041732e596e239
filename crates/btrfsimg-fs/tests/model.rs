//! Random changes of a file system in memory against a model of what a file system is.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

#[path = "common/writing.rs"]
mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;

use btrfsimg_compress::PropertyChange;
use btrfsimg_fs::device::MemDevice;
use btrfsimg_fs::lookup::{self, Place, entries, find_entry};
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::create::{create, symlink};
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::names::{add_entry, add_inode_ref, add_links, unlink};
use btrfsimg_fs::write::remove::remove_tree;
use btrfsimg_fs::write::xattr::{remove_xattr, set_compression, set_xattr};
use btrfsimg_ondisk::{FileType, Key, KeyType, inode_flags};
use btrfsimg_testkit::rng::Rng;
use btrfsimg_testkit::{Oracle, btrfs_progs};
use writing::{findings, new_file_system, now, open};

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFLNK: u32 = 0o120_000;

type Bytes = Vec<u8>;

/// An inode as it must be.
#[derive(Clone, Debug, Default, PartialEq)]
struct Inode {
    mode: u32,
    links: u32,
    /// Of a directory.
    entries: BTreeMap<Bytes, u64>,
    target: Bytes,
    /// COMPRESS or NOCOMPRESS.
    flag: u64,
    /// The compression property among them.
    xattrs: BTreeMap<Bytes, Bytes>,
}

impl Inode {
    fn is_dir(&self) -> bool {
        self.mode & S_IFDIR != 0
    }

    /// What btrfs counts as the size of a directory: each name twice.
    fn size(&self) -> u64 {
        match self.is_dir() {
            true => self.entries.keys().map(|name| 2 * name.len() as u64).sum(),
            false => self.target.len() as u64,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Model {
    inodes: BTreeMap<u64, Inode>,
}

const ROOT: u64 = 256;
const COMPRESSION: &[u8] = b"btrfs.compression";

fn place(ino: u64) -> Place {
    Place { tree: 5, ino }
}

/// Few enough that they meet again; some share a hash, some are as long as can be, some are no text.
fn name(rng: &mut Rng) -> Bytes {
    match rng.index(8) {
        0 => [&b"ue2r43xy"[..], b"c54cvxdh", b"qlvw434k", b"flotycs9"][rng.index(4)].to_vec(),
        1 => vec![b'a' + u8::try_from(rng.index(4)).unwrap(); 255],
        2 => vec![0xff, 0xfe, u8::try_from(1 + rng.index(40)).unwrap()],
        _ => format!("name{}", rng.index(60)).into_bytes(),
    }
}

impl Model {
    fn new() -> Model {
        Model {
            inodes: BTreeMap::from([(ROOT, Inode { mode: S_IFDIR | 0o755, links: 1, ..Inode::default() })]),
        }
    }

    fn pick(&self, rng: &mut Rng, wanted: impl Fn(&Inode) -> bool) -> Option<u64> {
        let found: Vec<u64> = self.inodes.iter().filter(|(_, i)| wanted(i)).map(|(ino, _)| *ino).collect();
        (!found.is_empty()).then(|| found[rng.index(found.len())])
    }

    /// A name in some directory and what it names.
    fn pick_entry(&self, rng: &mut Rng) -> Option<(u64, Bytes, u64)> {
        let dir = self.pick(rng, |i| i.is_dir() && !i.entries.is_empty())?;
        let entries = &self.inodes[&dir].entries;
        let (name, ino) = entries.iter().nth(rng.index(entries.len()))?;
        Some((dir, name.clone(), *ino))
    }

    fn forget(&mut self, dir: u64, name: &[u8]) {
        let ino = self.inodes.get_mut(&dir).unwrap().entries.remove(name).unwrap();
        for (name, _) in self.inodes[&ino].entries.clone() {
            self.forget(ino, &name);
        }
        let inode = self.inodes.get_mut(&ino).unwrap();
        inode.links -= 1;
        if inode.links == 0 {
            self.inodes.remove(&ino);
        }
    }

    fn create(&mut self, tx: &mut Transaction<'_>, rng: &mut Rng) {
        let dir = self.pick(rng, Inode::is_dir).unwrap();
        let name = name(rng);
        let kind = [S_IFDIR, S_IFREG, S_IFREG, S_IFIFO, S_IFLNK][rng.index(5)];
        let mode = kind | u32::try_from(rng.below(0o1000)).unwrap();
        // Either flag is inherited by everything, a property with an algorithm by files and directories.
        let mut inode = Inode { mode, links: 1, flag: self.inodes[&dir].flag, ..Inode::default() };
        let attributes = Attributes::new(mode, now());
        let made = if kind == S_IFLNK {
            let len = 1 + rng.index(3000);
            inode.target = rng.bytes(len).iter().map(|b| b | 1).collect();
            symlink(tx, place(dir), &name, attributes, &inode.target)
        } else {
            let inherited = self.inodes[&dir].xattrs.get(COMPRESSION).filter(|v| v.as_slice() != b"none");
            if let Some(value) = inherited.filter(|_| kind != S_IFIFO) {
                inode.xattrs.insert(COMPRESSION.to_vec(), value.clone());
            }
            create(tx, place(dir), &name, attributes, Vec::new())
        };
        if self.inodes[&dir].entries.contains_key(&name) {
            assert!(made.is_err(), "a second {name:?}");
            return;
        }
        let ino = made.unwrap().ino;
        assert!(self.inodes.insert(ino, inode).is_none(), "inode {ino} is in use");
        self.inodes.get_mut(&dir).unwrap().entries.insert(name, ino);
    }

    fn link(&mut self, tx: &mut Transaction<'_>, rng: &mut Rng) {
        let Some(ino) = self.pick(rng, |i| !i.is_dir()) else { return };
        let dir = self.pick(rng, Inode::is_dir).unwrap();
        let name = name(rng);
        if self.inodes[&dir].entries.contains_key(&name) {
            return;
        }
        let file_type = FileType::from_mode(self.inodes[&ino].mode).unwrap();
        let index =
            add_entry(tx, place(dir), &name, Key::new(ino, KeyType::INODE_ITEM, 0), file_type).unwrap();
        add_inode_ref(tx, place(ino), dir, index, &name).unwrap();
        add_links(tx, place(ino), 1).unwrap();
        self.inodes.get_mut(&ino).unwrap().links += 1;
        self.inodes.get_mut(&dir).unwrap().entries.insert(name, ino);
    }

    fn remove(&mut self, tx: &mut Transaction<'_>, rng: &mut Rng) {
        let Some((dir, name, ino)) = self.pick_entry(rng) else { return };
        if !self.inodes[&ino].is_dir() {
            unlink(tx, place(dir), &name, place(ino)).unwrap();
        } else if self.inodes[&ino].entries.len() < 30 || rng.index(10) == 0 {
            remove_tree(tx, place(dir), &name, place(ino), "tree").unwrap();
        } else {
            return;
        }
        self.forget(dir, &name);
    }

    fn xattr(&mut self, tx: &mut Transaction<'_>, rng: &mut Rng) {
        let ino = self.pick(rng, |_| true).unwrap();
        let name = [b"user.".to_vec(), name(rng)].concat();
        let name = name[..name.len().min(255)].to_vec();
        let xattrs = &mut self.inodes.get_mut(&ino).unwrap().xattrs;
        if rng.index(3) == 0 {
            assert_eq!(remove_xattr(tx, place(ino), &name).unwrap(), xattrs.remove(&name).is_some());
            return;
        }
        // Two of the longest do not fit one leaf of 4 KiB when they share a hash.
        let len = rng.index(1500);
        let value = rng.bytes(len);
        set_xattr(tx, place(ino), &name, &value).unwrap();
        xattrs.insert(name, value);
    }

    fn property(&mut self, tx: &mut Transaction<'_>, rng: &mut Rng) {
        let Some(ino) = self.pick(rng, |i| [S_IFDIR, S_IFREG].contains(&(i.mode & 0o170_000))) else {
            return;
        };
        let value = ["zstd:10", "zstd:-5", "lzo", "zlib:9", "none", ""][rng.index(6)];
        set_compression(tx, place(ino), &PropertyChange::parse_strict(value).unwrap(), "x").unwrap();
        let inode = self.inodes.get_mut(&ino).unwrap();
        inode.xattrs.remove(COMPRESSION);
        if !value.is_empty() {
            inode.xattrs.insert(COMPRESSION.to_vec(), value.into());
        }
        inode.flag = match value {
            "" => 0,
            "none" => inode_flags::NOCOMPRESS,
            _ => inode_flags::COMPRESS,
        };
    }

    fn change(&mut self, tx: &mut Transaction<'_>, rng: &mut Rng) {
        match rng.index(20) {
            0..9 => self.create(tx, rng),
            9..11 => self.link(tx, rng),
            11..15 => self.remove(tx, rng),
            15..18 => self.xattr(tx, rng),
            _ => self.property(tx, rng),
        }
    }
}

/// All that the image at rest holds, found by listing and again by looking each name up.
fn contents(device: &Arc<MemDevice>) -> Model {
    let fs = Filesystem::open(device.clone()).unwrap();
    let mut model = Model { inodes: BTreeMap::new() };
    let mut todo = vec![ROOT];
    while let Some(ino) = todo.pop() {
        let info = fs.info(place(ino)).unwrap();
        let mut inode = Inode { mode: info.mode(), links: info.item.nlink.get(), ..Inode::default() };
        inode.xattrs = lookup::xattrs(&fs, place(ino)).unwrap().into_iter().collect();
        if inode.is_dir() {
            entries(&fs, place(ino), |entry| {
                let (_, entry) = entry?;
                inode.entries.insert(entry.name.to_vec(), entry.location.objectid);
                Ok(true)
            })
            .unwrap();
            for (name, child) in &inode.entries {
                let found = find_entry(&fs, place(ino), name).unwrap().unwrap();
                assert_eq!(found.location.objectid, *child);
                let mode = fs.info(place(*child)).unwrap().mode();
                assert_eq!(FileType::from_mode(mode), Some(found.file_type));
                todo.push(*child);
            }
        } else if info.mode() & 0o170_000 == S_IFLNK {
            inode.target = lookup::symlink_target(&fs, place(ino)).unwrap();
        }
        assert_eq!(info.size(), inode.size(), "inode {ino}");
        inode.flag = info.item.flags.get() & (inode_flags::COMPRESS | inode_flags::NOCOMPRESS);
        model.inodes.insert(ino, inode);
    }
    model
}

#[test]
fn a_file_system_is_what_its_model_is() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let device = new_file_system([4096, 16_384, 65_536][usize::try_from(seed % 3).unwrap()]);
        let mut volume = open(&device);
        let mut model = Model::new();
        for round in 0..8 {
            let mut tx = volume.begin(now()).unwrap();
            for _ in 0..120 {
                model.change(&mut tx, &mut rng);
            }
            tx.commit().unwrap();
            let what = format!("seed {seed} round {round}");
            let have = contents(&device);
            for (ino, inode) in &model.inodes {
                assert_eq!(have.inodes.get(ino), Some(inode), "{what}: inode {ino}");
            }
            assert!(have == model, "{what}: more inodes than there should be");
            assert_eq!(findings(&device, &[]), [""; 0], "{what}");
            if round % 2 == 1 {
                volume = open(&device);
            }
        }
        assert!(model.inodes.len() > 50, "{}", model.inodes.len());
        if seed < 3 {
            judge(&device, &format!("seed {seed}"));
        }
    }
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
