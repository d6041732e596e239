//! Opening what may be broken.

use std::sync::Arc;

use btrfsimg_ondisk::{BackupRoot, ParentExpectation, block_group_flags as bg, objectid};

use super::superblock::{check_devices, read_damaged_superblock};
use super::{BlockStore, backup_roots, chunk_root, root_at};
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
        for (at, expect) in [chunk_root(&superblock)].into_iter().chain(roots) {
            match store.read_block(at, &expect) {
                Ok(_) => {
                    store.load_chunk_tree((at, expect), &mut tolerate)?;
                    break;
                }
                Err(e) => tolerate(e)?,
            }
        }
        store.leave_out_other_devices();
        store.choose_tree_root(&backups, fault)?;
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

    /// Takes the newest root of the root tree that can be read as the one of the superblock: its own also where some
    /// items in it are bad, and where no other can be read also one of another generation.
    fn choose_tree_root(&mut self, backups: &[BackupRoot], fault: &mut dyn FnMut(Error)) -> Result<()> {
        let sb = &self.superblock;
        let (at, expect) = root_at(objectid::ROOT_TREE, sb.root.get(), sb.generation.get(), sb.root_level);
        let Err(first) = self.read_block(at, &expect) else { return Ok(()) };
        if self.framed(at, &expect).is_some() {
            fault(first);
            return Ok(());
        }
        for b in backups {
            let (root, generation) = (b.tree_root.get(), b.tree_root_gen.get());
            let (at, expect) = root_at(objectid::ROOT_TREE, root, generation, b.tree_root_level);
            if self.read_block(at, &expect).is_ok() {
                fault(first);
                self.superblock.root = b.tree_root;
                self.superblock.root_level = b.tree_root_level;
                self.superblock.generation = b.tree_root_gen;
                return Ok(());
            }
        }
        let any_generation = ParentExpectation { generation: None, ..expect };
        if self.framed(at, &any_generation).is_some() {
            fault(first);
            return Ok(());
        }
        Err(first)
    }
}
