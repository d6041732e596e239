//! The entries of a directory that is made.

use std::collections::HashMap;

use btrfsimg_ondisk::{DIR_ITEM_HEAD_LEN, FileType, Key, KeyType, max_item_size, name_hash};

use crate::error::Result;

/// The index of the first entry of a directory.
const FIRST_INDEX: u64 = 2;

/// The entries of a new directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    entries: Vec<Listed>,
    names: Vec<u8>,
    /// Bytes of each hash bucket's item.
    buckets: HashMap<u64, usize>,
}

#[derive(Debug)]
struct Listed {
    hash: u64,
    ino: u64,
    file_type: FileType,
    name: std::ops::Range<usize>,
}

impl Listing {
    /// Whether the item of the name's hash has room for it.
    pub(super) fn takes(&mut self, name: &[u8], nodesize: u32) -> bool {
        let bytes = self.buckets.entry(name_hash(name)).or_default();
        *bytes += DIR_ITEM_HEAD_LEN + name.len();
        let fits = *bytes <= max_item_size(nodesize as usize);
        if !fits {
            *bytes -= DIR_ITEM_HEAD_LEN + name.len();
        }
        fits
    }

    pub(super) fn push(&mut self, name: &[u8], ino: u64, file_type: FileType) {
        let start = self.names.len();
        self.names.extend_from_slice(name);
        self.entries.push(Listed { hash: name_hash(name), ino, file_type, name: start..self.names.len() });
    }

    pub(super) fn next_index(&self) -> u64 {
        FIRST_INDEX + self.entries.len() as u64
    }

    /// `i_size` of the directory.
    pub(super) fn size(&self) -> u64 {
        2 * self.names.len() as u64
    }

    /// Calls `each` with the data of every DIR_ITEM, then of every DIR_INDEX, in key order.
    pub(super) fn items(
        &self,
        ino: u64,
        transid: u64,
        mut each: impl FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut by_hash: Vec<&Listed> = self.entries.iter().collect();
        by_hash.sort_by_key(|e| e.hash);
        let mut data = Vec::new();
        let write = |data: &mut Vec<u8>, e: &Listed| {
            let location = Key::new(e.ino, KeyType::INODE_ITEM, 0);
            btrfsimg_ondisk::write_dir_entry(
                data,
                location,
                transid,
                e.file_type,
                &self.names[e.name.clone()],
                &[],
            );
        };
        for bucket in by_hash.chunk_by(|a, b| a.hash == b.hash) {
            data.clear();
            bucket.iter().for_each(|e| write(&mut data, e));
            each(Key::new(ino, KeyType::DIR_ITEM, bucket[0].hash), &data)?;
        }
        for (e, index) in self.entries.iter().zip(FIRST_INDEX..) {
            data.clear();
            write(&mut data, e);
            each(Key::new(ino, KeyType::DIR_INDEX, index), &data)?;
        }
        Ok(())
    }
}
