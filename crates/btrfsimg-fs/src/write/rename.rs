//! Renames.

use btrfsimg_ondisk::{FileType, Key, KeyType, RootRefHead, inode_refs, name_hash, objectid};
use zerocopy::FromBytes;

use super::names::{
    add_entry_at, add_inode_ref, check_bucket, check_changeable, check_immutable, entry_len, in_item,
    remove_entry, remove_inode_ref, unlink, update_inode,
};
use super::remove::has_entries;
use super::subvol::{links, remove_stand_in};
use crate::error::{Error, Result};
use crate::lookup::{self, Entry, Place, check_name, find_entry, next_dir_index};
use crate::tree::Cursor;
use crate::txn::Transaction;

/// Makes the entry `name` of `from_dir` the entry `new_name` of `to_dir`. What has that name already goes, as in the
/// kernel: a file for anything but a directory, an empty directory for a directory. Where both names are of one inode
/// nothing is done. Both directories are of one subvolume, but for a subvolume, whose entry may go anywhere.
///
/// # Errors
/// `NotFound`; `ReadOnly` for what may not be changed; `NotDirectory`, `IsDirectory`, `NotEmpty` for what is there already
/// and cannot go; `Invalid` for a directory that would be in itself, another subvolume's directory, and names that cannot
/// be; as any change of a tree. The checks come first.
pub fn rename(
    tx: &mut Transaction<'_>,
    from_dir: Place,
    name: &[u8],
    to_dir: Place,
    new_name: &[u8],
) -> Result<()> {
    let change = Rename::find(tx, from_dir, name, to_dir, new_name)?;
    let Rename { source, target, .. } = &change;
    if source.is_dir() && !source.place.is_empty_dir() && is_at_or_below(tx, to_dir, source.place)? {
        return Err(into_itself(name));
    }
    if let Some(target) = target.as_ref().filter(|target| target.is_dir())
        && is_at_or_below(tx, from_dir, target.place)?
    {
        return Err(Error::NotEmpty(shown(new_name)));
    }
    if target.as_ref().is_some_and(|target| target.is_same(source)) {
        return Ok(());
    }
    change.check_names(tx)?;
    let is_subvolume = source.entry.is_subvolume() && !source.place.is_empty_dir();
    if !is_subvolume && from_dir.tree != to_dir.tree {
        let why = "it is in another subvolume than the directory";
        return Err(Error::Invalid(format!("{}: invalid cross-device link: {why}", shown(name))));
    }
    change.check_inodes(tx)?;
    let index = next_dir_index(tx, to_dir)?;
    change.remove_target(tx)?;
    let old_index = match is_subvolume {
        true => links::remove(tx, source.place.tree, from_dir.tree)?,
        false => remove_inode_ref(tx, source.place, from_dir.ino, name)?,
    };
    remove_entry(tx, from_dir, name, old_index)?;
    add_entry_at(tx, to_dir, new_name, source.entry.location, source.entry.file_type, index)?;
    if is_subvolume {
        return links::add(tx, source.place.tree, to_dir, index, new_name);
    }
    add_inode_ref(tx, source.place, to_dir.ino, index, new_name)?;
    let now = tx.now();
    update_inode(tx, source.place, |inode| inode.ctime = now)
}

/// For a rename into a stand-in, which is refused in any case: refuses it as one of a directory into itself where it is
/// that, as kernels look at this first. A [`Place`] does not say where a stand-in is: `stand_in` is its directory and its
/// name ([`lookup::stand_in_above`]).
///
/// # Errors
/// `NotFound`, `Invalid`; `Corrupt`, `Io`.
pub fn refuse_into_itself(
    tx: &Transaction<'_>,
    from_dir: Place,
    name: &[u8],
    stand_in: (Place, &[u8]),
) -> Result<()> {
    let source = Named::find(tx, from_dir, name)?.ok_or_else(|| Error::NotFound(shown(name)))?;
    let is_above = !source.place.is_empty_dir() && is_at_or_below(tx, stand_in.0, source.place)?;
    match source.is_dir() && (is_above || (from_dir, name) == stand_in) {
        true => Err(into_itself(name)),
        false => Ok(()),
    }
}

fn into_itself(name: &[u8]) -> Error {
    let why = "a directory cannot be moved into itself";
    Error::Invalid(format!("{}: invalid argument: {why}", shown(name)))
}

/// An entry, its name and its inode.
pub(crate) struct Named<'n> {
    dir: Place,
    name: &'n [u8],
    entry: Entry,
    pub(crate) place: Place,
}

impl<'n> Named<'n> {
    fn find(tx: &Transaction<'_>, dir: Place, name: &'n [u8]) -> Result<Option<Named<'n>>> {
        let Some(entry) = find_entry(tx, dir, name)? else { return Ok(None) };
        let place = lookup::target(tx, dir, name, entry.location)?;
        Ok(Some(Named { dir, name, entry, place }))
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.entry.file_type == FileType::DIR
    }

    /// Whether both are one inode. Each stand-in for a subvolume is one of its own.
    fn is_same(&self, other: &Named<'_>) -> bool {
        let one_name = (self.dir, self.name) == (other.dir, other.name);
        one_name || (self.place == other.place && !self.place.is_empty_dir())
    }

    /// Whether the name may go.
    fn check_removable(&self, tx: &Transaction<'_>) -> Result<()> {
        check_changeable(tx, self.dir, &shown(self.name), true)?;
        check_immutable(&lookup::inode(tx, self.place)?, &shown(self.name), true)
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// An entry that is to get another name, and what has that now.
pub(crate) struct Rename<'n> {
    pub(crate) source: Named<'n>,
    to_dir: Place,
    new_name: &'n [u8],
    target: Option<Named<'n>>,
}

impl<'n> Rename<'n> {
    /// # Errors
    /// `NotFound` where there is no source; `Invalid` for a name that cannot be; `Corrupt`, `Io`.
    pub(crate) fn find(
        tx: &Transaction<'_>,
        from_dir: Place,
        name: &'n [u8],
        to_dir: Place,
        new_name: &'n [u8],
    ) -> Result<Rename<'n>> {
        check_name(new_name)?;
        let source = Named::find(tx, from_dir, name)?.ok_or_else(|| Error::NotFound(shown(name)))?;
        Ok(Rename { source, to_dir, new_name, target: Named::find(tx, to_dir, new_name)? })
    }

    /// What the kernel checks, in its order.
    pub(crate) fn check(&self, tx: &Transaction<'_>) -> Result<()> {
        self.check_names(tx)?;
        self.check_inodes(tx)
    }

    /// The part that is the same for all file systems.
    fn check_names(&self, tx: &Transaction<'_>) -> Result<()> {
        let Rename { source, to_dir, new_name, target } = self;
        source.check_removable(tx)?;
        match target {
            None => _ = check_changeable(tx, *to_dir, &shown(new_name), false)?,
            Some(target) => {
                target.check_removable(tx)?;
                match (source.is_dir(), target.is_dir()) {
                    (true, false) => return Err(Error::NotDirectory(shown(new_name))),
                    (false, true) => return Err(Error::IsDirectory(shown(new_name))),
                    _ => {}
                }
            }
        }
        if source.is_dir() && source.dir != *to_dir && !source.place.is_empty_dir() {
            check_changeable(tx, source.place, &shown(source.name), false)?;
        }
        Ok(())
    }

    /// The part that is btrfs's own.
    fn check_inodes(&self, tx: &Transaction<'_>) -> Result<()> {
        let Rename { source, to_dir, new_name, target } = self;
        if source.place.is_empty_dir() {
            let why = "stands for a subvolume that is elsewhere";
            return Err(Error::NotEmpty(format!("{}: {why}", shown(source.name))));
        }
        match target {
            Some(target) if target.entry.is_subvolume() && !target.place.is_empty_dir() => {
                Err(Error::NotEmpty(format!("{}: is a subvolume", shown(new_name))))
            }
            Some(target) if target.is_dir() && has_entries(tx, target.place)? => {
                Err(Error::NotEmpty(shown(new_name)))
            }
            Some(_) => Ok(()),
            None => {
                let key = to_dir.key(KeyType::DIR_ITEM, name_hash(new_name));
                check_bucket(tx, *to_dir, key, new_name, entry_len(new_name))
            }
        }
    }

    /// Takes away what has the new name.
    pub(crate) fn remove_target(&self, tx: &mut Transaction<'_>) -> Result<()> {
        match &self.target {
            Some(old) if old.place.is_empty_dir() => remove_stand_in(tx, self.to_dir, self.new_name),
            Some(old) => unlink(tx, self.to_dir, self.new_name, old.place),
            None => Ok(()),
        }
    }
}

/// Whether the directory `place` is `top` or somewhere below it, across subvolumes.
pub(crate) fn is_at_or_below(tx: &Transaction<'_>, mut place: Place, top: Place) -> Result<bool> {
    let mut seen = std::collections::HashSet::new();
    loop {
        if place == top {
            return Ok(true);
        }
        if !seen.insert(place) {
            return Err(Error::corrupt("LK-08", format!("inode {} is in itself", place.ino)));
        }
        match parent(tx, place)? {
            Some(parent) => place = parent,
            None => return Ok(false),
        }
    }
}

/// The directory that holds a directory; none for the top one and what is nowhere.
fn parent(tx: &Transaction<'_>, place: Place) -> Result<Option<Place>> {
    if place.ino != objectid::FIRST_FREE {
        let Some((key, data)) = first_item(tx, place.tree, place.ino, KeyType::INODE_REF)? else {
            return Ok(None);
        };
        inode_refs(key, &data).map_err(|v| in_item(key, &v))?;
        return Ok(Some(Place { tree: place.tree, ino: key.offset }));
    }
    let Some((key, data)) = first_item(tx, objectid::ROOT_TREE, place.tree, KeyType::ROOT_BACKREF)? else {
        return Ok(None);
    };
    let head = RootRefHead::read_from_prefix(&data).ok().map(|(head, _)| head.dirid.get());
    Ok(head.map(|dirid| Place { tree: key.offset, ino: dirid }))
}

fn first_item(
    tx: &Transaction<'_>,
    tree: u64,
    objectid: u64,
    key_type: KeyType,
) -> Result<Option<(Key, Vec<u8>)>> {
    let cursor = Cursor::at_or_after(tx, tree, &Key::new(objectid, key_type, 0))?;
    Ok(cursor.and_then(|cursor| {
        let item = cursor.item();
        let is_it = (item.key.objectid, item.key.key_type) == (objectid, key_type);
        is_it.then(|| (item.key, item.data.to_vec()))
    }))
}
