//! Images broken in known ways, for the tests of verify.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use btrfsimg_fs::block_store::{BlockStore, child_expectation};
use btrfsimg_fs::device::{Device, MemDevice};
use btrfsimg_fs::tree::Cursor;
use btrfsimg_fs::verify::{Finding, Options, Summary, verify};
use btrfsimg_ondisk::{
    CsumType, Key, KeyType, Logical, ParentExpectation, Physical, RootItem, TreeBlock, objectid,
};

/// The image, and how to find things in it.
pub struct Base {
    pub bytes: Vec<u8>,
    pub store: BlockStore,
}

/// The image with some bytes replaced.
struct Patched<'a> {
    base: &'a [u8],
    patches: Vec<(u64, Vec<u8>)>,
    reads: AtomicU64,
}

impl Device for Patched<'_> {
    fn read_at(&self, buf: &mut [u8], at: Physical) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let start = usize::try_from(at.0).map_err(io::Error::other)?;
        let end = start.checked_add(buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(self.base.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        for (place, bytes) in &self.patches {
            let place = usize::try_from(*place).map_err(io::Error::other)?;
            for (i, byte) in bytes.iter().enumerate() {
                if (start..end).contains(&(place + i)) {
                    buf[place + i - start] = *byte;
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: Physical) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.base.len() as u64)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl Base {
    /// A small tree by `mkfs.btrfs --rootdir`; `None` without it.
    pub fn make() -> Option<Base> {
        Base::with_nodes_of("4096")
    }

    /// The same, with another node size.
    pub fn with_nodes_of(nodesize: &str) -> Option<Base> {
        let dir = tempfile::tempdir().unwrap();
        let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
        std::fs::create_dir_all(tree.join("sub")).unwrap();
        std::fs::write(tree.join("big"), vec![7; 300_000]).unwrap();
        std::fs::write(tree.join("small"), "hello").unwrap();
        std::fs::write(tree.join("sub/file"), vec![9; 5000]).unwrap();
        for i in 0..200 {
            std::fs::write(tree.join(format!("many{i:03}")), "x").unwrap();
        }
        std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let made = Command::new("mkfs.btrfs")
            .args(["-q", "-n", nodesize, "--rootdir"])
            .arg(&tree)
            .arg(&image)
            .output();
        if !made.is_ok_and(|o| o.status.success()) {
            assert!(std::env::var_os("BTRFSIMG_REQUIRE_ORACLES").is_none(), "mkfs.btrfs is missing");
            println!("skipped: no mkfs.btrfs --rootdir");
            return None;
        }
        Some(Base::of(&image))
    }

    /// The image in a file.
    pub fn of(image: &Path) -> Base {
        let bytes = std::fs::read(image).unwrap();
        let store = BlockStore::open(Arc::new(MemDevice::new(bytes.clone()))).unwrap();
        Base { bytes, store }
    }

    /// The leaf of `tree` in which the first key from `from` on is, and its slot.
    pub fn find(&self, tree: u64, from: Key) -> (TreeBlock, usize) {
        let sb = self.store.superblock();
        let (mut at, level) = match tree {
            objectid::CHUNK_TREE => (Logical(sb.chunk_root.get()), sb.chunk_root_level),
            objectid::ROOT_TREE => (Logical(sb.root.get()), sb.root_level),
            _ => {
                let (leaf, slot) = self.find(objectid::ROOT_TREE, Key::new(tree, KeyType::ROOT_ITEM, 0));
                let root = RootItem::parse(leaf.item(slot).data).unwrap();
                (Logical(root.bytenr.get()), root.level)
            }
        };
        let mut expect = ParentExpectation { level: Some(level), ..ParentExpectation::default() };
        loop {
            let block = self.store.read_block(at, &expect).unwrap();
            if block.is_leaf() {
                let slot = block.search(&from).unwrap_or_else(|slot| slot);
                if slot == block.nritems() {
                    // It is the first of the next leaf.
                    let next = Cursor::at_or_after(&self.store, tree, &from).unwrap();
                    return self.find(tree, next.unwrap_or_else(|| panic!("no {from}")).key());
                }
                return ((*block).clone(), slot);
            }
            (at, expect) = child_expectation(&block, block.child_slot(&from), tree);
        }
    }

    /// The block's bytes with a right checksum, at each of its places.
    pub fn places(&self, mut block: TreeBlock) -> Vec<(u64, Vec<u8>)> {
        let csum = CsumType::Crc32c.of_block(block.bytes());
        block.header_mut().csum = csum.0;
        let at = Logical(block.header().bytenr.get());
        let nodesize = block.bytes().len() as u64;
        let places = self.store.chunks().map(at, nodesize).unwrap();
        places.map(|p| (p.physical.0, block.bytes().to_vec())).collect()
    }

    /// The rules broken with these patches, without consequences: those that are errors, and the others.
    pub fn judge(&self, patches: Vec<(u64, Vec<u8>)>) -> (Vec<String>, Vec<String>) {
        let (findings, summary) = self.findings(patches, &Options::new().with_data(true));
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for f in findings {
            match f.severity().is_error() {
                true if !f.consequence => errors.push(f.rule.to_string()),
                // Some versions of mkfs leave such items.
                false if f.rule.0 != "FS-10" => warnings.push(f.rule.to_string()),
                _ => {}
            }
        }
        assert_eq!(summary.is_sound(), errors.is_empty());
        (errors, warnings)
    }

    /// All that verify says with these patches.
    pub fn findings(&self, patches: Vec<(u64, Vec<u8>)>, options: &Options) -> (Vec<Finding>, Summary) {
        let device = Patched { base: &self.bytes, patches, reads: AtomicU64::new(0) };
        let mut findings = Vec::new();
        let summary = verify(&device, options, &mut |f| findings.push(f.clone())).unwrap();
        (findings, summary)
    }

    /// How many reads one thread of verify did when the first finding of `rule` came, and in all.
    pub fn reads_before(&self, rule: &str, patches: Vec<(u64, Vec<u8>)>, options: &Options) -> (u64, u64) {
        let device = Patched { base: &self.bytes, patches, reads: AtomicU64::new(0) };
        let mut first = None;
        let mut sink = |f: &Finding| {
            if f.rule.0 == rule {
                first.get_or_insert(device.reads.load(Ordering::Relaxed));
            }
        };
        verify(&device, &options.with_threads(1), &mut sink).unwrap();
        (first.unwrap(), device.reads.into_inner())
    }

    /// Whether verify calls the image unsupported with these patches.
    pub fn refuses(&self, patches: Vec<(u64, Vec<u8>)>) -> bool {
        let device = Patched { base: &self.bytes, patches, reads: AtomicU64::new(0) };
        matches!(verify(&device, &Options::new(), &mut |_| {}), Err(btrfsimg_fs::Error::Unsupported(_)))
    }

    /// How many reads verify takes, and of how many distinct tree blocks.
    pub fn reads(&self) -> (u64, u64) {
        self.reads_with(Vec::new())
    }

    /// The same, with these patches.
    pub fn reads_with(&self, patches: Vec<(u64, Vec<u8>)>) -> (u64, u64) {
        let device = Patched { base: &self.bytes, patches, reads: AtomicU64::new(0) };
        let summary = verify(&device, &Options::new(), &mut |_| {}).unwrap();
        (device.reads.into_inner(), summary.tree_blocks)
    }

    /// Those that are errors.
    pub fn rules(&self, patches: Vec<(u64, Vec<u8>)>) -> Vec<String> {
        self.judge(patches).0
    }

    /// Breaks the item from `from` on in `tree` and expects `rule` first.
    pub fn check(&self, rule: &str, tree: u64, from: Key, break_it: impl FnOnce(&mut TreeBlock, usize)) {
        let (mut leaf, slot) = self.find(tree, from);
        break_it(&mut leaf, slot);
        let rules = self.rules(self.places(leaf));
        assert_eq!(rules.first().map(String::as_str), Some(rule), "{rules:?}");
    }

    /// [`Base::check`], by adding to the u64 at byte `at` of the item.
    pub fn check_add(&self, rule: &str, tree: u64, from: Key, at: usize, add: u64) {
        self.check(rule, tree, from, |leaf, slot| {
            let mut data = leaf.item(slot).data.to_vec();
            let value = u64::from_le_bytes(data[at..at + 8].try_into().unwrap()).wrapping_add(add);
            data[at..at + 8].copy_from_slice(&value.to_le_bytes());
            leaf.replace_item(slot, &data);
        });
    }

    /// The number of the inode that `name` in the root directory names.
    pub fn ino(&self, name: &[u8]) -> u64 {
        let hash = btrfsimg_ondisk::name_hash(name);
        let (leaf, slot) = self.find(5, Key::new(256, KeyType::DIR_ITEM, hash));
        u64::from_le_bytes(leaf.item(slot).data[..8].try_into().unwrap())
    }
}

pub fn first(objectid: u64, key_type: KeyType) -> Key {
    Key::new(objectid, key_type, 0)
}
