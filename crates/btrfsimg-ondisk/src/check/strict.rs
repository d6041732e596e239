//! What kernels do not refuse and a verifier must name: the single-block rules of severity C and W.

use super::view::ItemAt;
use super::{BlockContext, Checked, Violation, csum, device, dir, extent, file_extent, inode, misc};
use crate::block::header_flags;
use crate::{FramedBlock, KeyType};

/// Judges a block by the rules that no kernel keeps when it reads one: those of severity C and W.
///
/// Items that break one of the kernel's rules are left out, since what those report comes first.
pub fn check_strict(block: &FramedBlock, ctx: &BlockContext, sink: &mut dyn FnMut(Violation)) {
    let view = block.view();
    let revision = view.header().map_or(1, |h| h.flags.get() >> 56);
    if revision != header_flags::BACKREF_REV >> 56 {
        let (rule, age) = if revision == 0 { ("BLK-14", "old") } else { ("BLK-15", "unknown") };
        sink(Violation::new(rule, format!("{age} back reference revision, have {revision} expect 1")));
    }
    for item in view.items() {
        for check in [misc::check_place, misc::check_length] {
            if let Err(violation) = check(&item) {
                sink(violation.at(item.slot, item.key));
            }
        }
        if let Err(violation) = check_item(&item, ctx)
            && super::check_leaf_item(&item, ctx).is_ok()
        {
            sink(violation.at(item.slot, item.key));
        }
    }
}

fn check_item(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    match item.key.key_type {
        KeyType::EXTENT_DATA => file_extent::check_strict(item, ctx),
        KeyType::EXTENT_CSUM => csum::check_strict(item),
        KeyType::DIR_ITEM | KeyType::DIR_INDEX | KeyType::XATTR_ITEM => dir::check_strict(item, ctx),
        KeyType::INODE_ITEM => inode::check_strict(item),
        KeyType::INODE_EXTREF => inode::check_ref_strict(item),
        KeyType::DEV_EXTENT => device::check_dev_extent_strict(item),
        KeyType::TREE_BLOCK_REF
        | KeyType::SHARED_BLOCK_REF
        | KeyType::EXTENT_DATA_REF
        | KeyType::SHARED_DATA_REF => extent::check_keyed_strict(item),
        _ => Ok(()),
    }
}
