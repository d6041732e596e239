//! ROOT_REF and ROOT_BACKREF: where in which subvolume a subvolume is (`format/02 §2.12`).

use btrfsimg_ondisk::{Key, KeyType, RootRefHead, objectid};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::lookup::Place;
use crate::tree::lookup;
use crate::txn::Transaction;

/// Both keys of the link from `parent` to `child`.
fn keys(parent: u64, child: u64) -> [Key; 2] {
    [Key::new(parent, KeyType::ROOT_REF, child), Key::new(child, KeyType::ROOT_BACKREF, parent)]
}

/// Notes that the subvolume `child` is the entry `name` of `dir`, with this index there.
pub(in crate::write) fn add(
    tx: &mut Transaction<'_>,
    child: u64,
    dir: Place,
    index: u64,
    name: &[u8],
) -> Result<()> {
    let mut head = RootRefHead::zeroed();
    head.dirid = dir.ino.into();
    head.sequence = index.into();
    let length = u16::try_from(name.len());
    head.name_len = length.map_err(|_| Error::Invalid("a name is at most 255 bytes".to_owned()))?.into();
    let data = [head.as_bytes(), name].concat();
    keys(dir.tree, child).into_iter().try_for_each(|key| tx.insert(objectid::ROOT_TREE, key, &data))
}

/// Removes what [`add`] notes. Says the index.
pub(in crate::write) fn remove(tx: &mut Transaction<'_>, child: u64, parent: u64) -> Result<u64> {
    let [forward, back] = keys(parent, child);
    let broken = |what: &str| Error::corrupt("ROOT-10", format!("subvolume {child} has no sound {what}"));
    let data = lookup(tx, objectid::ROOT_TREE, &forward)?.ok_or_else(|| broken("ROOT_REF"))?;
    let (head, _) = RootRefHead::read_from_prefix(&data).map_err(|_| broken("ROOT_REF"))?;
    tx.remove(objectid::ROOT_TREE, forward)?;
    tx.remove(objectid::ROOT_TREE, back)?;
    Ok(head.sequence.get())
}
