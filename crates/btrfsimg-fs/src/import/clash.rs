//! What stands in the image already where an entry goes, and what becomes of the two, as cp(1) has it.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use btrfsimg_ondisk::{FileType, Key, KeyType, Timespec};

use super::host::{self, SourceDir, Stat};
use super::walk::{ExtraLink, Merged, Node, Role, Walker};
use super::xattrs::SourceXattrs;
use crate::error::{Error, Result};
use crate::existing::{Existing, Meeting, SymlinkFault};
use crate::lookup::{Place, file_beneath, find_entry};
use crate::txn::Transaction;
use crate::write::inode::{Attributes, Inherited};
use crate::write::names;

/// What an existing entry means for one of its name.
enum Clash {
    /// There is none.
    Nothing,
    /// A directory takes the new one's entries.
    Merge(Place),
    /// A file takes the new one's contents: that which stands there, or that to which the symlink there leads.
    Replace { file: Place, there: Place },
    /// It goes, and the new one comes.
    GiveWay(Place),
    /// It stays, and the new one does not come.
    Refuse(String),
    /// The same, as was asked for: the file there, or that to which the symlink there leads.
    Stay { file: Place, there: Place },
}

/// What the entry `name` of `dir`, if there is one, means for a new one, as cp(1) has it. It is `path` below `top`. Files in
/// `replaced` will have been modified then.
fn clash(
    tx: &Transaction<'_>,
    (dir, name): (Place, &[u8]),
    (top, path): (Place, &[u8]),
    new: &Attributes,
    existing: Existing,
    replaced: &HashMap<u64, Timespec>,
) -> Result<Clash> {
    let Some(old) = find_entry(tx, dir, name)? else { return Ok(Clash::Nothing) };
    let there = Place { tree: dir.tree, ino: old.location.objectid };
    if old.is_subvolume() {
        return Ok(Clash::Refuse(
            "the image has a subvolume of that name; copy into it by its own path".to_owned(),
        ));
    }
    let (new_type, mut old_type, mut file) = (new.file_type(), old.file_type, there);
    if old_type == FileType::SYMLINK && new_type == FileType::REG_FILE && existing.follows_symlinks() {
        match file_beneath(tx, top, path)? {
            Ok(found) if found.tree == dir.tree => (old_type, file) = (FileType::REG_FILE, found),
            Ok(_) => return Ok(Clash::Refuse(SymlinkFault::LeadsOut.to_string())),
            Err(fault) => return Ok(Clash::Refuse(fault.to_string())),
        }
    }
    let modified = match replaced.get(&file.ino) {
        Some(time) => *time,
        None => crate::lookup::inode(tx, file)?.mtime,
    };
    let meeting = existing.meeting((old_type, modified), (new_type, new.mtime));
    if matches!(meeting, Meeting::Merge | Meeting::Contents | Meeting::Instead)
        && let Some(reason) = protected(tx, file, name, old_type != FileType::DIR)?
    {
        return Ok(Clash::Refuse(reason));
    }
    Ok(match meeting {
        Meeting::Merge => Clash::Merge(there),
        Meeting::Contents => Clash::Replace { file, there },
        Meeting::Instead => Clash::GiveWay(there),
        Meeting::Stay => Clash::Stay { file, there },
        Meeting::Refuse(reason) => Clash::Refuse(reason.to_owned()),
    })
}

/// Why an inode may not be changed, or removed, if it may not.
fn protected(tx: &Transaction<'_>, place: Place, name: &[u8], removing: bool) -> Result<Option<String>> {
    match names::check_changeable(tx, place, &String::from_utf8_lossy(name), removing) {
        Err(Error::ReadOnly(reason)) => Ok(Some(reason)),
        other => other.map(|_| None),
    }
}

impl Walker<'_> {
    /// An entry that goes into a directory that exists and may have its name there.
    pub(super) fn merge_entry(
        &mut self,
        (parent, there): (Place, &[u8]),
        dir: &Arc<SourceDir>,
        name: CString,
        mut stat: Stat,
        inherited: &Inherited,
        tx: &mut Transaction<'_>,
    ) -> Result<()> {
        let file_type = stat.attributes.file_type();
        let clash = clash(
            tx,
            (parent, there),
            (self.top, &dir.join(there)),
            &stat.attributes,
            self.options.existing,
            &self.replaced,
        )?;
        let link = match &clash {
            Clash::Merge(_) | Clash::Refuse(_) => None,
            Clash::Stay { .. } if self.options.existing == Existing::Keep => return Ok(()),
            Clash::Nothing | Clash::Replace { .. } | Clash::GiveWay(_) | Clash::Stay { .. } => {
                match self.link_of(&stat) {
                    Some(Err(reason)) => {
                        self.fail(&dir.join(name.as_bytes()), &reason);
                        return Ok(());
                    }
                    Some(Ok(ino)) => Some(ino),
                    None => None,
                }
            }
        };
        match clash {
            Clash::Nothing => {}
            Clash::Refuse(reason) => {
                self.fail(&dir.join(name.as_bytes()), &reason);
                return Ok(());
            }
            Clash::Merge(old) => {
                let found = crate::write::xattr::inherited_from(tx, old)?;
                stat.attributes.pass_on(&found);
                self.queue.push_back(Node {
                    dir: dir.clone(),
                    name,
                    stat,
                    ino: old.ino,
                    parent: old.ino,
                    index: 0,
                    role: Role::Merge,
                    property: found.property,
                    acls: Vec::new(),
                    default_acl: found.default_acl,
                });
                return Ok(());
            }
            Clash::Stay { file, .. } if link.is_none() => {
                // Its other names become names of what stays.
                let nlink = crate::lookup::inode(tx, file)?.nlink.get();
                self.note_link(&stat, file.ino, nlink);
                return Ok(());
            }
            Clash::Replace { file, there } if link.is_none() && self.writes_into(file, tx)? => {
                self.note_link(&stat, file.ino, 1);
                if file != there {
                    self.through_symlinks.insert(file.ino);
                }
                return self.start_replacing(file, dir.clone(), name, stat, tx);
            }
            // It is that name already.
            Clash::Stay { there: old, .. } | Clash::Replace { file: old, .. } | Clash::GiveWay(old)
                if link == Some(old.ino) =>
            {
                return Ok(());
            }
            Clash::Stay { there: old, .. } | Clash::Replace { there: old, .. } | Clash::GiveWay(old) => {
                if let Some(reason) = protected(tx, old, there, true)? {
                    self.fail(&dir.join(name.as_bytes()), &reason);
                    return Ok(());
                }
                let is_last = crate::lookup::inode(tx, old)?.nlink.get() == 1;
                names::unlink(tx, parent, there, old)?;
                if is_last && self.through_symlinks.remove(&old.ino) {
                    self.drop_replacing(old.ino);
                }
            }
        }
        let ino = link.unwrap_or_else(|| self.take_ino());
        let location = Key::new(ino, KeyType::INODE_ITEM, 0);
        let index = names::add_entry(tx, parent, there, location, file_type)?;
        if link.is_some() {
            self.note_copied(&dir.join(name.as_bytes()));
            self.extra_links.push(ExtraLink { ino, parent: parent.ino, index, name: there.to_vec() });
        } else {
            if name.as_bytes() != there {
                self.renamed.insert(ino, there.to_vec());
            }
            self.enqueue(parent.ino, index, dir, name, stat, ino, inherited, tx);
        }
        Ok(())
    }

    /// As [`Preserve::writes_into`](crate::Preserve) says of what is there.
    fn writes_into(&self, existing: Place, tx: &Transaction<'_>) -> Result<bool> {
        let nlink = crate::lookup::inode(tx, existing)?.nlink.get();
        Ok(self.options.preserve.writes_into(nlink, self.options.existing))
    }

    /// What was to get contents through a symlink lost its name before its turn came: they would be gone with it.
    fn drop_replacing(&mut self, ino: u64) {
        self.queue.retain(|node| node.role != Role::Replace || node.ino != ino);
        self.forget_links(&std::collections::HashSet::from([ino]));
    }

    /// A regular file whose contents go into one that exists.
    fn start_replacing(
        &mut self,
        existing: Place,
        dir: Arc<SourceDir>,
        name: CString,
        mut stat: Stat,
        tx: &Transaction<'_>,
    ) -> Result<()> {
        self.settle_attributes(&mut stat.attributes, tx);
        if self.options.existing == Existing::Update {
            self.replaced.insert(existing.ino, stat.attributes.mtime);
        }
        let own = crate::write::xattr::inherited_from(tx, existing)?;
        stat.attributes.flags = own.flags;
        self.queue.push_back(Node {
            dir,
            name,
            stat,
            ino: existing.ino,
            parent: existing.ino,
            index: 0,
            role: Role::Replace,
            property: own.property,
            acls: Vec::new(),
            default_acl: None,
        });
        Ok(())
    }

    /// Notes what a directory that was there takes from the source's, where attributes are kept.
    pub(super) fn note_merged(
        &mut self,
        node: &Node,
        source: BorrowedFd<'_>,
        xattrs: &SourceXattrs,
        tx: &Transaction<'_>,
    ) {
        if !self.options.preserve.changes_existing() {
            return;
        }
        if let Ok(stat) = host::stat(source, c"") {
            let mut attributes = stat.attributes;
            self.settle_attributes(&mut attributes, tx);
            let (relative, ino) = (node.relative(), node.ino);
            self.merged.push(Merged { relative, ino, attributes, xattrs: xattrs.clone() });
        }
    }
}
