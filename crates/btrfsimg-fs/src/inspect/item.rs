//! One line for each item.

use btrfsimg_ondisk::{BlockContext, Item, KeyType};

use super::{files, space};

/// What an item that passed its check says, in one line: names and values escaped, numbers decimal.
///
/// What the check of its type leaves open and does not parse is shown as its size and first bytes.
pub fn describe(item: &Item<'_>, ctx: &BlockContext) -> String {
    let data = item.data;
    let text = match item.key.key_type {
        KeyType::INODE_ITEM => files::inode_item(data),
        KeyType::INODE_REF | KeyType::INODE_EXTREF => files::inode_refs(item),
        KeyType::DIR_ITEM | KeyType::DIR_INDEX | KeyType::XATTR_ITEM => files::dir_items(item, ctx),
        KeyType::EXTENT_DATA => files::file_extent(data),
        KeyType::ROOT_ITEM => files::root_item(data),
        KeyType::ROOT_REF | KeyType::ROOT_BACKREF => files::root_ref(data),
        KeyType::VERITY_DESC_ITEM | KeyType::VERITY_MERKLE_ITEM => Some(format!("verity {}", bytes(data))),
        KeyType::DIR_LOG_INDEX => u64_at(data, 0).map(|last| format!("complete to index {last}")),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => space::extent_item(item),
        KeyType::TREE_BLOCK_REF
        | KeyType::SHARED_BLOCK_REF
        | KeyType::EXTENT_DATA_REF
        | KeyType::SHARED_DATA_REF => space::keyed_ref(item),
        KeyType::EXTENT_CSUM => Some(space::csums(item, ctx)),
        KeyType::BLOCK_GROUP_ITEM => space::block_group(data),
        KeyType::CHUNK_ITEM => space::chunk(item),
        KeyType::DEV_ITEM => space::dev_item(data),
        KeyType::DEV_EXTENT => space::dev_extent(data),
        KeyType::FREE_SPACE_INFO => space::free_space_info(data),
        KeyType::FREE_SPACE_BITMAP => Some(space::free_space_bitmap(item, ctx)),
        KeyType::RAID_STRIPE => space::raid_stripe(data),
        KeyType::QGROUP_STATUS => space::qgroup_status(data),
        KeyType::QGROUP_INFO => space::qgroup_info(data),
        KeyType::QGROUP_LIMIT => space::qgroup_limit(data),
        KeyType::PERSISTENT_ITEM => space::dev_stats(data),
        KeyType::DEV_REPLACE => space::dev_replace(data),
        KeyType::TEMPORARY_ITEM => u64_at(data, 0).map(|flags| format!("balance flags 0x{flags:x}")),
        KeyType::UUID_SUBVOL | KeyType::UUID_RECEIVED_SUBVOL => Some(files::uuid_item(item)),
        KeyType::UNTYPED => space::free_space_header(data),
        KeyType::ORPHAN_ITEM | KeyType::FREE_SPACE_EXTENT | KeyType::QGROUP_RELATION if data.is_empty() => {
            Some(String::new())
        }
        _ => None,
    };
    text.unwrap_or_else(|| bytes(data))
}

/// Bytes that have no other form.
pub(super) fn bytes(data: &[u8]) -> String {
    const SHOWN: usize = 32;
    let digits: String = data.iter().take(SHOWN).map(|b| format!("{b:02x}")).collect();
    let more = if data.len() > SHOWN { "..." } else { "" };
    format!("{} bytes {digits}{more}", data.len())
}

/// A name or value: in quotes, on one line, each different one different.
pub(super) fn quoted(name: &[u8]) -> String {
    format!("\"{}\"", name.escape_ascii())
}

/// The little-endian number at `at`.
pub(super) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// A list in parentheses after a hexadecimal number.
pub(super) fn flags(bits: u64, names: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { format!("0x{bits:x}") } else { format!("0x{bits:x}({})", names.join("|")) }
}
