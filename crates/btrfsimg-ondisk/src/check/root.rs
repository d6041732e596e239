//! Rules of ROOT_ITEM: ROOT-01 to ROOT-07 (`format/06 §6.8`).

use super::view::{ItemAt, is_aligned};
use super::{BlockContext, Checked, ensure};
use crate::{MAX_LEVEL, ROOT_ITEM_V0_LEN, RootItem, objectid, root_flags};

pub(super) fn check(item: &ItemAt<'_>, ctx: &BlockContext) -> Checked {
    let key = item.key;
    ensure!(key.objectid != 0, "ROOT-01", "invalid root id 0");
    // The data relocation tree is relocated too.
    ensure!(
        key.objectid != objectid::TREE_RELOC
            || objectid::is_fs_tree(key.offset)
            || key.offset == objectid::DATA_RELOC_TREE,
        "ROOT-01",
        "invalid key offset for reloc tree, have {} expect the id of a tree with inodes",
        objectid::Printed(key.offset)
    );
    let Some(root) = RootItem::parse(item.data) else {
        let have = item.data.len();
        ensure!(
            false,
            "ROOT-02",
            "invalid root item size, have {have} expect {} or {ROOT_ITEM_V0_LEN}",
            size_of::<RootItem>()
        );
        return Ok(());
    };
    check_generations(item, &root, ctx)?;
    ensure!(
        is_aligned(root.bytenr.get(), ctx.sectorsize),
        "ROOT-04",
        "invalid root bytenr, have {} expect to be aligned to {}",
        root.bytenr,
        ctx.sectorsize
    );
    ensure!(root.level < MAX_LEVEL, "ROOT-05", "invalid root level, have {} expect [0, 7]", root.level);
    ensure!(
        root.drop_level < MAX_LEVEL,
        "ROOT-05",
        "invalid root drop_level, have {} expect [0, 7]",
        root.drop_level
    );
    ensure!(
        root.drop_progress.objectid == 0 || root.drop_level > 0,
        "ROOT-06",
        "invalid root_drop_level 0 with non-zero drop_progress {}",
        root.drop_progress.get()
    );
    let known = root_flags::RDONLY | root_flags::DEAD;
    ensure!(
        root.flags.get() & !known == 0,
        "ROOT-07",
        "invalid root flags, have 0x{:x} expect mask 0x{known:x}",
        root.flags.get()
    );
    Ok(())
}

fn check_generations(item: &ItemAt<'_>, root: &RootItem, ctx: &BlockContext) -> Checked {
    let newest = ctx.generation.saturating_add(1);
    let v2 = item.data.get(ROOT_ITEM_V0_LEN..ROOT_ITEM_V0_LEN + 8).and_then(|b| b.try_into().ok());
    let fields = [
        ("generation", root.generation.get()),
        ("v2 generation", v2.map_or(0, u64::from_le_bytes)),
        ("last_snapshot", root.last_snapshot.get()),
    ];
    for (name, have) in fields {
        ensure!(have <= newest, "ROOT-03", "invalid root {name}, have {have} expect [0, {newest}]");
    }
    Ok(())
}
