//! Items of subvolumes and of the root tree.

use btrfsimg_ondisk::{
    BlockContext, COMPRESSION_LZO, COMPRESSION_NONE, COMPRESSION_ZLIB, COMPRESSION_ZSTD, DirItems,
    FileExtent, FileExtentKind, FileType, InodeItem, Item, KeyType, RootItem, RootRefHead, Timespec, Uuid,
    inode_extrefs, inode_flags, root_flags,
};
use zerocopy::FromBytes;

use super::item::{bytes, flags, quoted, u64_at};

fn time(t: Timespec) -> String {
    format!("{}.{:09}", t.sec, t.nsec)
}

pub(super) fn inode_item(data: &[u8]) -> Option<String> {
    let i = InodeItem::read_from_bytes(data).ok()?;
    let bits = i.flags.get();
    Some(format!(
        "generation {} transid {} size {} nbytes {} nlink {} uid {} gid {} mode {:o} rdev {} flags {} \
         sequence {} atime {} ctime {} mtime {} otime {}",
        i.generation,
        i.transid,
        i.size,
        i.nbytes,
        i.nlink,
        i.uid,
        i.gid,
        i.mode.get(),
        i.rdev,
        flags(bits, &inode_flags::names(bits)),
        i.sequence,
        time(i.atime),
        time(i.ctime),
        time(i.mtime),
        time(i.otime),
    ))
}

pub(super) fn inode_refs(item: &Item<'_>) -> Option<String> {
    let is_extended = item.key.key_type == KeyType::INODE_EXTREF;
    let refs = if is_extended {
        inode_extrefs(item.data).ok()?
    } else {
        btrfsimg_ondisk::inode_refs(item.key, item.data).ok()?
    };
    let one = |r: &btrfsimg_ondisk::InodeRef<'_>| {
        let parent = if is_extended { format!("parent {} ", r.parent) } else { String::new() };
        format!("{parent}index {} name {}", r.index, quoted(r.name))
    };
    Some(refs.iter().map(one).collect::<Vec<_>>().join("; "))
}

pub(super) fn dir_items(item: &Item<'_>, ctx: &BlockContext) -> Option<String> {
    let is_xattr = item.key.key_type == KeyType::XATTR_ITEM;
    let entries = DirItems::parse(item.key, item.data, ctx.nodesize).ok()?;
    let one = |e: &btrfsimg_ondisk::DirEntry<'_>| {
        if is_xattr {
            return format!("name {} value {}", quoted(e.name), quoted(e.data));
        }
        let kind = type_name(e.file_type);
        format!("location {} transid {} type {kind} name {}", e.location, e.transid, quoted(e.name))
    };
    Some(entries.iter().map(one).collect::<Vec<_>>().join("; "))
}

fn type_name(t: FileType) -> String {
    const NAMES: [&str; 9] = ["?", "FILE", "DIR", "CHRDEV", "BLKDEV", "FIFO", "SOCK", "SYMLINK", "XATTR"];
    NAMES.get(usize::from(t.0)).map_or_else(|| t.0.to_string(), |n| (*n).to_owned())
}

pub(super) fn file_extent(data: &[u8]) -> Option<String> {
    let e = FileExtent::parse(data).ok()?;
    let compression = match e.compression {
        COMPRESSION_NONE => "none".to_owned(),
        COMPRESSION_ZLIB => "zlib".to_owned(),
        COMPRESSION_LZO => "lzo".to_owned(),
        COMPRESSION_ZSTD => "zstd".to_owned(),
        code => code.to_string(),
    };
    let head = format!("generation {} ram_bytes {} compression {compression}", e.generation, e.ram_bytes);
    let (kind, r) = match &e.kind {
        FileExtentKind::Inline(stored) => return Some(format!("inline {head} stored {}", stored.len())),
        FileExtentKind::Regular(r) if r.disk_bytenr.get() == 0 => ("hole", r),
        FileExtentKind::Regular(r) => ("regular", r),
        FileExtentKind::Prealloc(r) => ("prealloc", r),
    };
    Some(format!(
        "{kind} {head} disk_bytenr {} disk_num_bytes {} offset {} num_bytes {}",
        r.disk_bytenr, r.disk_num_bytes, r.offset, r.num_bytes
    ))
}

fn uuid(bytes: [u8; 16]) -> String {
    if bytes == [0; 16] { "-".to_owned() } else { Uuid::from_bytes(bytes).to_string() }
}

pub(super) fn root_item(data: &[u8]) -> Option<String> {
    let r = RootItem::parse(data)?;
    let bits = r.flags.get();
    let mut names = Vec::new();
    if bits & root_flags::RDONLY != 0 {
        names.push("RDONLY");
    }
    if bits & root_flags::DEAD != 0 {
        names.push("DEAD");
    }
    Some(format!(
        "bytenr {} level {} generation {} root_dirid {} refs {} bytes_used {} last_snapshot {} flags {} \
         drop_progress {} drop_level {} uuid {} parent_uuid {} received_uuid {} ctransid {} otransid {} \
         stransid {} rtransid {} ctime {} otime {}",
        r.bytenr,
        r.level,
        r.generation,
        r.root_dirid,
        r.refs,
        r.bytes_used,
        r.last_snapshot,
        flags(bits, &names),
        r.drop_progress.get(),
        r.drop_level,
        uuid(r.uuid),
        uuid(r.parent_uuid),
        uuid(r.received_uuid),
        r.ctransid,
        r.otransid,
        r.stransid,
        r.rtransid,
        time(r.ctime),
        time(r.otime),
    ))
}

pub(super) fn root_ref(data: &[u8]) -> Option<String> {
    let (head, rest) = RootRefHead::read_from_prefix(data).ok()?;
    let name = rest.get(..usize::from(head.name_len.get()))?;
    Some(format!("dirid {} sequence {} name {}", head.dirid, head.sequence, quoted(name)))
}

pub(super) fn uuid_item(item: &Item<'_>) -> String {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&item.key.objectid.to_le_bytes());
    id[8..].copy_from_slice(&item.key.offset.to_le_bytes());
    let count = item.data.len() / 8;
    let ids: Option<Vec<String>> =
        (0..count).map(|i| u64_at(item.data, i * 8).map(|id| id.to_string())).collect();
    let ids = ids.filter(|_| item.data.len().is_multiple_of(8)).map(|ids| ids.join(" "));
    format!("uuid {} subvolumes {}", uuid(id), ids.unwrap_or_else(|| bytes(item.data)))
}
