//! Opening what may be broken.

use std::sync::Arc;

use btrfsimg_ondisk::{block_group_flags as bg, objectid};

use super::page::Salvage;
use super::superblock::{check_devices, read_damaged_superblock};
use super::{BlockStore, Root, backup_roots, chunk_root, root_at};
use crate::chunk_map::Chunk;
use crate::device::Device;
use crate::error::{Error, Result};

impl BlockStore {
    /// Opens what may be broken: faults go to `fault`, and what cannot be read is left out. Where the chunk tree or the
    /// root tree cannot be read from its root, the newest backup root that can be takes its place. Of several devices
    /// only the given one is read: what it holds whole is there.
    ///
    /// # Errors
    /// As [`BlockStore::open`], where no copy of the superblock can be worked by, or no root tree can be read.
    pub fn open_damaged(device: Arc<dyn Device>, fault: &mut dyn FnMut(Error)) -> Result<BlockStore> {
        let superblock = read_damaged_superblock(&*device, fault)?;
        let mut store = BlockStore::blank(device, superblock)?;
        store.salvage = Some(Salvage::default());
        let mut tolerate = |e| {
            fault(e);
            Ok(())
        };
        check_devices(&superblock).or_else(&mut tolerate)?;
        store.load_system_chunks(&mut tolerate)?;
        store.leave_out_other_devices();
        let backups = backup_roots(&superblock);
        let roots = backups.iter().map(|b| {
            let (at, generation) = (b.chunk_root.get(), b.chunk_root_gen.get());
            root_at(objectid::CHUNK_TREE, at, generation, b.chunk_root_level)
        });
        let own = chunk_root(&superblock);
        let chosen = store.choose_root(Ok(own), roots, &mut |e| _ = tolerate(e));
        chosen.and_then(|root| store.load_chunk_tree(root, &mut tolerate)).or_else(&mut tolerate)?;
        store.leave_out_other_devices();
        let roots = backups.iter().map(|b| {
            let (at, generation) = (b.tree_root.get(), b.tree_root_gen.get());
            root_at(objectid::ROOT_TREE, at, generation, b.tree_root_level)
        });
        let own = root_at(
            objectid::ROOT_TREE,
            superblock.root.get(),
            superblock.generation.get(),
            superblock.root_level,
        );
        let chosen = store.choose_root(Ok(own), roots, fault)?;
        if let Some(used) = backups.iter().find(|b| chosen.0 != own.0 && b.tree_root.get() == chosen.0.0) {
            store.superblock.root = used.tree_root;
            store.superblock.root_level = used.tree_root_level;
            store.superblock.generation = used.tree_root_gen;
        }
        Ok(store)
    }

    /// Makes mirrored chunks, of which each stripe holds all, chunks of the stripes on this device.
    fn leave_out_other_devices(&mut self) {
        const MIRRORED: u64 = bg::RAID1 | bg::RAID1C3 | bg::RAID1C4;
        let own = self.superblock.dev_item.devid;
        let shared = |c: &&Chunk| c.stripes.iter().any(|s| s.devid != own);
        let mut chunks: Vec<Chunk> = self.chunks.iter().filter(shared).cloned().collect();
        for chunk in &mut chunks {
            chunk.stripes.retain(|s| s.devid == own);
            chunk.flags &= !MIRRORED;
            // It takes the place of the one that was there.
            let _ = self.chunks.insert(chunk.clone());
        }
    }

    /// The root by which a tree is read best: its own as far as it can be read, else the first of `older` that is sound,
    /// else its own of another generation. What is wrong with its own goes to `fault`.
    ///
    /// # Errors
    /// What is wrong with its own, where none can be read.
    pub fn choose_root(
        &self,
        own: Result<Root>,
        mut older: impl Iterator<Item = Root>,
        fault: &mut dyn FnMut(Error),
    ) -> Result<Root> {
        let own = own.and_then(|own| Ok((own, self.page(own.0, &own.1)?)));
        if let Ok((root, page)) = &own
            && page.is_of_generation()
        {
            // What makes all of it doubtful is told of with the other blocks.
            page.fault().filter(|_| page.doubt().is_none()).into_iter().for_each(|e| fault(e.again()));
            return Ok(*root);
        }
        let Some(older) = older.find(|(at, expect)| self.read_block(*at, expect).is_ok()) else {
            return own.map(|(root, _)| root);
        };
        let error = own.map_or_else(Some, |(root, page)| {
            self.forget_doubt(root.0);
            page.fault().map(Error::again)
        });
        if let Some(error) = error {
            fault(error.read_by(older.1.generation));
        }
        Ok(older)
    }
}
