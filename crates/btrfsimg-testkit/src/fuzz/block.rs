//! Target: one tree block.
//!
//! Input: the block, filled with zeros to 4096 bytes; what its parent and the superblock say of it is made to agree
//! with its header, so that the checks behind those are reached.

use btrfsimg_ondisk::{
    BlockContext, CsumType, DirItems, ExtentItemView, FileExtent, FramedBlock, Header, Judged, Key, KeyType,
    Logical, ParentExpectation, RootItem, inode_extrefs, inode_refs,
};
use zerocopy::FromBytes as _;

const NODESIZE: usize = 4096;

/// Runs the target `block`.
pub fn run(input: &[u8]) {
    let mut bytes = vec![0; NODESIZE];
    let len = input.len().min(NODESIZE);
    bytes[..len].copy_from_slice(&input[..len]);
    let Ok((header, _)) = Header::read_from_prefix(&bytes) else { return };
    let csum = CsumType::Crc32c;
    let sum = csum.of_block(&bytes);
    bytes[..csum.width()].copy_from_slice(&sum.0[..csum.width()]);
    let ctx = BlockContext {
        nodesize: NODESIZE,
        sectorsize: 4096,
        csum,
        fsid: header.fsid,
        generation: header.generation.get(),
        incompat: u64::MAX,
    };
    let logical = Logical(header.bytenr.get());
    let expect = ParentExpectation { tree: Some(header.owner.get()), ..ParentExpectation::default() };
    let mut faults = 0_usize;
    let block = FramedBlock::examine(bytes.into(), logical, &ctx, &expect, &mut |v| {
        assert!(!v.to_string().is_empty());
        faults += 1;
    });
    for slot in 0..block.slots() + 2 {
        let _ = block.key_ptr(slot);
        let (Some(key), Some(item)) = (block.key(slot), block.item(slot, &ctx)) else { continue };
        if let Ok(item) = item {
            read_item(key, item.data, &ctx);
        }
    }
    let clean = faults == 0;
    match block.judge(&ctx, true, &mut |_| {}) {
        Judged::Sound(block) => {
            assert!(clean, "a block with {faults} faults of its frame is sound");
            // What is sound can be searched, and each item is where its key is.
            for slot in 0..block.nritems() {
                assert_eq!(block.search(&block.key(slot)), Ok(slot));
            }
        }
        Judged::Faulty(block) => assert!(block.slots() <= NODESIZE / 25),
    }
}

/// Reads an item that passed its check, in every way that its bytes can be read.
fn read_item(key: Key, data: &[u8], ctx: &BlockContext) {
    match key.key_type {
        KeyType::DIR_ITEM | KeyType::DIR_INDEX | KeyType::XATTR_ITEM => {
            let entries = DirItems::parse(key, data, ctx.nodesize).expect("its check passed");
            for entry in entries {
                assert!(entry.name.len() <= 255, "a name of {} bytes", entry.name.len());
            }
        }
        KeyType::INODE_REF => _ = inode_refs(key, data),
        KeyType::INODE_EXTREF => _ = inode_extrefs(data),
        KeyType::EXTENT_DATA => {
            if let Ok(extent) = FileExtent::parse(data) {
                let _ = (extent.nbytes(), extent.covers(ctx.sectorsize), extent.disk_extent());
            }
        }
        KeyType::ROOT_ITEM => _ = RootItem::parse(data),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => {
            if let Ok(view) = ExtentItemView::parse(key, data) {
                assert!(view.inline.len() <= data.len(), "more references than bytes");
            }
        }
        _ => {}
    }
}
