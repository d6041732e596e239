//! Changing items, keys, headers and data.

use btrfsimg_fs::{Error, Result};
use btrfsimg_ondisk::{Header, ITEM_HEADER_LEN, Key, KeyType, Logical, ParentExpectation, objectid};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Found;
use crate::image::{Change, Image};
use crate::place::{Spot, Target, Trees};

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a != b).or((a.len() != b.len()).then_some(a.len().min(b.len())))
}

impl Spot {
    fn change(&self, what: &str) -> Change {
        Change {
            tree: Some(self.tree),
            logical: Some(self.block.0),
            slot: Some(self.slot),
            key: Some(self.key),
            ..Change::new(what)
        }
    }
}

impl Image {
    /// The bytes of an item.
    pub(crate) fn item(&self, spot: &Spot) -> Result<Vec<u8>> {
        Ok(self.block(spot.block, &ParentExpectation::default())?.item(spot.slot).data.to_vec())
    }

    /// The item as a struct.
    pub(crate) fn get<T: FromBytes + KnownLayout + Immutable>(&self, spot: &Spot, at: usize) -> Found<T> {
        let data = self.item(spot)?;
        Ok(data.get(at..).and_then(|d| T::read_from_prefix(d).ok()).map(|(value, _)| value))
    }

    /// Changes the bytes of an item; `None` where the leaf has no room for what it grows by.
    pub(crate) fn edit_bytes(&mut self, spot: &Spot, edit: impl FnOnce(&mut Vec<u8>)) -> Found<()> {
        let before = self.item(spot)?;
        let mut after = before.clone();
        edit(&mut after);
        let leaf = self.block_mut(spot.block)?;
        if after.len() > before.len() + leaf.leaf_free() {
            return Ok(None);
        }
        leaf.replace_item(spot.slot, &after);
        let offset = first_difference(&before, &after);
        self.changed(Change { offset, ..spot.change("item changed") });
        Ok(Some(()))
    }

    /// Changes the struct that the item begins with.
    pub(crate) fn edit<T>(&mut self, spot: &Spot, edit: impl FnOnce(&mut T)) -> Found<()>
    where
        T: FromBytes + IntoBytes + KnownLayout,
    {
        self.edit_at(spot, 0, edit)
    }

    /// Changes the struct at byte `at` of the item; `None` where the item is shorter.
    pub(crate) fn edit_at<T>(&mut self, spot: &Spot, at: usize, edit: impl FnOnce(&mut T)) -> Found<()>
    where
        T: FromBytes + IntoBytes + KnownLayout,
    {
        if self.item(spot)?.len() < at + size_of::<T>() {
            return Ok(None);
        }
        self.edit_bytes(spot, |data| {
            if let Some((value, _)) = data.get_mut(at..).and_then(|d| T::mut_from_prefix(d).ok()) {
                edit(value);
            }
        })
    }

    /// Gives the item another key in its slot, and the nodes above what they must say.
    pub(crate) fn rekey(&mut self, spot: &Spot, key: Key) -> Found<()> {
        self.block_mut(spot.block)?.set_item_key(spot.slot, key);
        self.changed(spot.change(&format!("key changed to {key}")));
        self.lift_first_key(spot)?;
        Ok(Some(()))
    }

    /// Takes the item out and puts it in again as `key` with `data`, where that belongs.
    pub(crate) fn replace(&mut self, spot: &Spot, key: Key, data: &[u8]) -> Found<()> {
        if self.remove(spot)?.is_none() {
            return Ok(None);
        }
        self.insert(spot.tree, key, data).map(|s| s.map(drop))
    }

    /// Puts in an item; `None` where its leaf has no room.
    pub(crate) fn insert(&mut self, tree: u64, key: Key, data: &[u8]) -> Found<Spot> {
        // The leaf of the last key below, or the first leaf.
        let mut place: Option<Spot> = None;
        self.walk(tree, &mut |above, at, block| {
            if block.is_leaf() && block.nritems() > 0 && (place.is_none() || block.key(0) <= key) {
                let slot = block.search(&key).unwrap_or_else(|slot| slot);
                place = Some(Spot { tree, block: at, slot, key, above: above.to_vec() });
            }
            std::ops::ControlFlow::Continue(())
        })?;
        let Some(spot) = place else { return Ok(None) };
        let leaf = self.block_mut(spot.block)?;
        if leaf.leaf_free() < data.len() + ITEM_HEADER_LEN {
            return Ok(None);
        }
        leaf.insert_items(spot.slot, std::iter::once((key, data)));
        self.changed(spot.change("item inserted"));
        self.lift_first_key(&spot)?;
        Ok(Some(spot))
    }

    /// Puts in an item behind the last of a tree, at `key(last key)`.
    pub(crate) fn append(&mut self, tree: u64, key: impl FnOnce(Key) -> Key, data: &[u8]) -> Found<Spot> {
        let Some(last) = self.last(tree)? else { return Ok(None) };
        self.insert(tree, key(last.key), data)
    }

    /// Takes out an item; `None` where its leaf would be empty.
    pub(crate) fn remove(&mut self, spot: &Spot) -> Found<()> {
        let leaf = self.block_mut(spot.block)?;
        if leaf.nritems() == 1 {
            return Ok(None);
        }
        leaf.remove_items(spot.slot..spot.slot + 1);
        self.changed(spot.change("item removed"));
        self.lift_first_key(spot)?;
        Ok(Some(()))
    }

    /// Takes out the item with `key`.
    pub(crate) fn remove_key(&mut self, tree: u64, key: Key) -> Found<()> {
        match self.find_key(tree, key)? {
            Some(spot) => self.remove(&spot),
            None => Ok(None),
        }
    }

    /// Makes the pointers above say the first key of the leaf.
    fn lift_first_key(&mut self, spot: &Spot) -> Result<()> {
        if spot.slot != 0 {
            return Ok(());
        }
        let key = self.block(spot.block, &ParentExpectation::default())?.key(0);
        for (node, slot) in spot.above.iter().rev() {
            let block = self.block_mut(*node)?;
            let pointer = block.key_ptr(*slot);
            block.set_key_ptr(*slot, btrfsimg_ondisk::KeyPtr { key, ..pointer });
            if *slot != 0 {
                break;
            }
        }
        Ok(())
    }

    /// Changes the header of the block that `spot` is in.
    pub(crate) fn edit_header(&mut self, spot: &Spot, edit: impl FnOnce(&mut Header)) -> Found<()> {
        let header = self.block_mut(spot.block)?.header_mut();
        let before = *header;
        edit(header);
        let offset = first_difference(before.as_bytes(), header.as_bytes());
        let change = Change { tree: Some(spot.tree), logical: Some(spot.block.0), offset, ..Change::new("") };
        self.changed(Change { what: "header changed".to_owned(), ..change });
        Ok(Some(()))
    }

    /// Changes raw bytes of the block that `spot` is in.
    pub(crate) fn edit_block(&mut self, spot: &Spot, edit: impl FnOnce(&mut [u8])) -> Found<()> {
        let bytes = self.block_mut(spot.block)?.bytes_mut();
        let before = bytes.to_vec();
        edit(bytes);
        let offset = first_difference(&before, bytes);
        let change = Change { tree: Some(spot.tree), logical: Some(spot.block.0), offset, ..Change::new("") };
        self.changed(Change { what: "block changed".to_owned(), ..change });
        Ok(Some(()))
    }

    /// Data at a logical address, from the first copy.
    pub(crate) fn read_data(&self, at: Logical, len: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; len];
        let place = self.copies(at, len as u64)?.first().copied();
        let place = place.ok_or_else(|| Error::corrupt("BLK-01", format!("no copy of {at}")))?;
        self.device().read_at(&mut data, place).map_err(Error::io(format!("data at {at}")))?;
        Ok(data)
    }

    /// Writes data to every copy; checksums are left as they are.
    pub(crate) fn write_data(&mut self, at: Logical, data: &[u8]) -> Result<()> {
        for place in self.copies(at, data.len() as u64)? {
            self.write_physical(place, data.to_vec());
            self.changed(Change {
                logical: Some(at.0),
                physical: Some(place.0),
                ..Change::new("data changed")
            });
        }
        Ok(())
    }

    /// Writes whole sectors of data to every copy, and their checksums.
    pub(crate) fn write_checked_data(&mut self, at: Logical, data: &[u8]) -> Found<()> {
        let sector = usize::try_from(self.sector()).unwrap_or(4096);
        let csum = self.ctx().csum;
        let mut address = at.0;
        for piece in data.chunks(sector) {
            let sums = (csum.width(), self.sector());
            let covering = self.find(&Target::Any, Trees::One(objectid::CSUM_TREE), |i| {
                let end = (i.data.len() / sums.0) as u64 * sums.1;
                i.is(KeyType::EXTENT_CSUM) && i.key.offset <= address && address - i.key.offset < end
            })?;
            let Some(spot) = covering else { return Ok(None) };
            let index = usize::try_from((address - spot.key.offset) / self.sector()).unwrap_or(0) * sums.0;
            let sum = csum.of(piece).0;
            self.edit_bytes(&spot, |item| item[index..index + sums.0].copy_from_slice(&sum[..sums.0]))?;
            address += piece.len() as u64;
        }
        self.write_data(at, data)?;
        Ok(Some(()))
    }
}
