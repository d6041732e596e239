//! The operations, each made in a transaction and in the model.

use btrfsimg_compress::PropertyChange;
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::attributes::{chmod, chown, set_times};
use btrfsimg_fs::write::contents::{self, Codec};
use btrfsimg_fs::write::create::{create, symlink};
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::link::link;
use btrfsimg_fs::write::remove::{remove_tree, rmdir, unlink_checked};
use btrfsimg_fs::write::rename::rename;
use btrfsimg_fs::write::subvol;
use btrfsimg_fs::write::xattr::{remove_xattr, set_compression, set_xattr};
use btrfsimg_ondisk::{Timespec, inode_flags};
use btrfsimg_testkit::rng::Rng;

use crate::op::{Op, What, name, some_bytes, some_len};
use crate::state::{
    Bytes, COMPRESSION, Child, Inode, Model, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, SECTOR, SETGID, SETUID,
    now_seconds, overwrite,
};
use crate::writing::now;

impl Model {
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

    pub(crate) fn change(&mut self, tx: &mut Transaction<'_>, codec: &mut Codec<'_>, op: Op) {
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
}
