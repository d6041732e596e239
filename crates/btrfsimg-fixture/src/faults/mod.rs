//! The table of faults, by what they break.

mod blocks;
mod chunks;
mod codecs;
mod csums;
mod devices;
mod dir_items;
mod extents;
mod file_extents;
mod free_space;
mod inodes;
mod links;
mod logs;
mod quota;
mod refs;
mod roots;
mod superblock;

use btrfsimg_ondisk::{InodeItem, KeyType, objectid};
use zerocopy::FromBytes;

use crate::error::{Found, some};
use crate::fault::{Fault, Kernel};
use crate::image::Image;
use crate::place::{Seen, Spot, Target, Trees};

/// Every fault, in the order of `format/06`.
pub fn faults() -> impl Iterator<Item = &'static Fault> {
    [
        superblock::FAULTS,
        blocks::FAULTS,
        roots::FAULTS,
        logs::FAULTS,
        quota::FAULTS,
        dir_items::FAULTS,
        inodes::FAULTS,
        refs::FAULTS,
        file_extents::FAULTS,
        codecs::FAULTS,
        csums::FAULTS,
        links::FAULTS,
        chunks::FAULTS,
        devices::FAULTS,
        extents::FAULTS,
        free_space::FAULTS,
    ]
    .into_iter()
    .flatten()
}

/// The fault of this name.
pub fn find(name: &str) -> Option<&'static Fault> {
    faults().find(|f| f.name == name)
}

/// A table of faults: name, rule with its twins, what a kernel does, whether `btrfs check` names it, what it does,
/// what it needs, how.
macro_rules! table {
    ($($name:literal: $rule:literal $(or $twin:literal)*, kernel $kernel:ident, check $check:ident,
       $does:literal, needs $needs:literal, $apply:expr;)*) => {
        pub(super) const FAULTS: &[super::Fault] = &[$(super::Fault {
            name: $name,
            rule: $rule,
            twins: &[$($twin),*],
            kernel: super::table!(@$kernel),
            check: super::table!(@$check),
            does: $does,
            needs: $needs,
            apply: $apply,
        }),*];
    };
    (@refuses) => { super::Kernel::Refuses };
    (@reads) => { super::Kernel::Reads };
    (@loops) => { super::Kernel::Loops };
    (@names) => { true };
    (@misses) => { false };
}
use table;

/// An item of this type in a subvolume, for which `wanted` holds.
fn in_subvolumes(
    image: &Image,
    target: &Target,
    key_type: KeyType,
    wanted: impl Fn(&Seen<'_>) -> bool,
) -> Found<Spot> {
    image.find(target, Trees::Subvolumes, |i| i.is(key_type) && wanted(i))
}

/// An item of this type in `tree`, for which `wanted` holds.
fn in_tree(
    image: &Image,
    target: &Target,
    (tree, key_type): (u64, KeyType),
    wanted: impl Fn(&Seen<'_>) -> bool,
) -> Found<Spot> {
    image.find(target, Trees::One(tree), |i| i.is(key_type) && wanted(i))
}

/// An inode for which `wanted` holds, never a root directory.
fn inode(image: &Image, target: &Target, wanted: impl Fn(&InodeItem) -> bool) -> Found<Spot> {
    in_subvolumes(image, target, KeyType::INODE_ITEM, |i| {
        i.key.objectid != objectid::FIRST_FREE && InodeItem::ref_from_bytes(i.data).is_ok_and(&wanted)
    })
}

/// Changes an inode for which `wanted` holds.
fn edit_inode(
    image: &mut Image,
    target: &Target,
    wanted: impl Fn(&InodeItem) -> bool,
    edit: impl FnOnce(&mut InodeItem),
) -> Found<()> {
    let spot = some!(inode(image, target, wanted)?);
    image.edit(&spot, edit)
}

/// The type bits of an inode's mode.
fn kind(inode: &InodeItem) -> u32 {
    inode.mode.get() & S_IFMT
}

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
