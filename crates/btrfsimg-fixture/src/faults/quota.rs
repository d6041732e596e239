//! QG-: quota groups.

use btrfsimg_ondisk::{Key, KeyType, QgroupInfo, QgroupLimit, QgroupStatus, objectid};
use zerocopy::IntoBytes;

use super::{in_tree, some};
use crate::error::Found;
use crate::image::Image;
use crate::place::{Spot, Target};

/// The lowest bit of a group's level.
const LEVEL: u64 = 1 << 48;
const INFO: (u64, KeyType) = (objectid::QUOTA_TREE, KeyType::QGROUP_INFO);

super::table! {
    "qgroup-rfer": "QG-01", kernel reads, check names,
    "makes a quota group refer to a sector more than it does", needs "quotas",
    |image, target| {
        let spot = some!(in_tree(image, target, INFO, |_| true)?);
        image.edit::<QgroupInfo>(&spot, |q| {
            q.rfer += 4096;
            q.rfer_cmpr += 4096;
        })
    };
    "qgroup-excl": "QG-01", kernel reads, check names,
    "makes a quota group own nothing by itself", needs "quotas, with data in a subvolume",
    |image, target| {
        let spot = some!(in_tree(image, target, INFO, |i| i.data[24..32] != [0; 8])?);
        image.edit::<QgroupInfo>(&spot, |q| (q.excl, q.excl_cmpr) = (0.into(), 0.into()))
    };
    "qgroup-relation-one-side": "QG-02", kernel reads, check misses,
    "puts a quota group into another by the member's item alone", needs "quotas",
    |image, target| {
        let spot = some!(of_subvolume(image, target)?);
        let info: QgroupInfo = some!(image.get(&spot, 0)?);
        let group = LEVEL + spot.key.offset;
        some!(add_group(image, group, info)?);
        relate(image, spot.key.offset, group)
    };
    "qgroup-relation-group-missing": "QG-03", kernel reads, check names,
    "puts a quota group into one that does not exist", needs "quotas",
    |image, target| {
        let spot = some!(of_subvolume(image, target)?);
        let group = LEVEL + spot.key.offset;
        relate_both(image, spot.key.offset, group)
    };
    "qgroup-relation-level": "QG-03", kernel reads, check misses,
    "puts a quota group into another of its level", needs "quotas",
    |image, target| {
        let spot = some!(of_subvolume(image, target)?);
        let info: QgroupInfo = some!(image.get(&spot, 0)?);
        let (inner, outer) = (LEVEL + spot.key.offset, LEVEL + spot.key.offset + 1);
        for group in [inner, outer] {
            some!(add_group(image, group, info)?);
        }
        some!(relate_both(image, spot.key.offset, inner)?);
        relate_both(image, inner, outer)
    };
    "qgroup-missing": "QG-04", kernel reads, check misses,
    "removes the quota group of a subvolume", needs "quotas",
    |image, target| {
        let spot = some!(of_subvolume(image, target)?);
        some!(image.remove(&spot)?);
        image.remove_key(objectid::QUOTA_TREE, Key { key_type: KeyType::QGROUP_LIMIT, ..spot.key })
    };
    "qgroup-without-subvolume": "QG-01", kernel reads, check names,
    "adds a quota group of a subvolume that does not exist, with bytes", needs "quotas",
    |image, target| {
        let spot = some!(of_subvolume(image, target)?);
        let info: QgroupInfo = some!(image.get(&spot, 0)?);
        add_group(image, 70_000, info)
    };
    "qgroup-status-version": "QG-05", kernel reads, check misses,
    "gives the quota status another version", needs "quotas",
    |image, target| {
        let status = (objectid::QUOTA_TREE, KeyType::QGROUP_STATUS);
        let spot = some!(in_tree(image, target, status, |_| true)?);
        image.edit::<QgroupStatus>(&spot, |s| s.version = 2.into())
    };
}

/// The numbers of a subvolume's group, which are not all zero.
fn of_subvolume(image: &Image, target: &Target) -> Found<Spot> {
    in_tree(image, target, INFO, |i| i.key.offset < LEVEL && i.data[8..16] != [0; 8])
}

/// Adds a group with these numbers, and no limit.
fn add_group(image: &mut Image, group: u64, info: QgroupInfo) -> Found<()> {
    let key = Key::new(0, KeyType::QGROUP_INFO, group);
    some!(image.insert(objectid::QUOTA_TREE, key, info.as_bytes())?);
    let (key, limit) = (Key { key_type: KeyType::QGROUP_LIMIT, ..key }, QgroupLimit::zeroed());
    image.insert(objectid::QUOTA_TREE, key, limit.as_bytes()).map(|s| s.map(drop))
}

/// One of the two items of a relation.
fn relate(image: &mut Image, from: u64, to: u64) -> Found<()> {
    let key = Key::new(from, KeyType::QGROUP_RELATION, to);
    image.insert(objectid::QUOTA_TREE, key, &[]).map(|s| s.map(drop))
}

fn relate_both(image: &mut Image, member: u64, group: u64) -> Found<()> {
    some!(relate(image, member, group)?);
    relate(image, group, member)
}
