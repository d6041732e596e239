//! INO-: inode items.

use btrfsimg_ondisk::{Key, KeyType, inode_flags, objectid};

use super::{S_IFDIR, S_IFLNK, S_IFREG, edit_inode, inode, kind, some};

super::table! {
    "inode-number": "INO-01", kernel refuses, check names,
    "adds an inode whose number is beyond the last", needs "room in the last leaf of a subvolume",
    |image, _| {
        let spot = some!(inode(image, &Default::default(), |_| true)?);
        let data = image.item(&spot)?;
        let key = Key::new(objectid::LAST_FREE + 1, KeyType::INODE_ITEM, 0);
        image.append(spot.tree, |_| key, &data).map(|s| s.map(drop))
    };
    "inode-key-offset": "INO-02", kernel refuses, check misses,
    "gives an inode item's key an offset", needs "an inode",
    |image, target| {
        let spot = some!(inode(image, target, |_| true)?);
        image.rekey(&spot, Key { offset: 1, ..spot.key })
    };
    "inode-size": "INO-03", kernel refuses, check misses,
    "cuts the last byte of an inode item", needs "an inode",
    |image, target| {
        let spot = some!(inode(image, target, |_| true)?);
        image.edit_bytes(&spot, |data| data.truncate(159))
    };
    "inode-generation": "INO-04", kernel refuses, check names,
    "makes an inode be created in the future", needs "an inode",
    |image, target| {
        let future = image.ctx().generation + 1000;
        edit_inode(image, target, |_| true, |i| i.generation = future.into())
    };
    "inode-transid": "INO-05", kernel refuses, check names,
    "makes an inode be changed in the future", needs "an inode",
    |image, target| {
        let future = image.ctx().generation + 1000;
        edit_inode(image, target, |_| true, |i| i.transid = future.into())
    };
    "inode-mode-bits": "INO-06", kernel refuses, check names,
    "sets a bit of a mode that means nothing", needs "an inode",
    |image, target| edit_inode(image, target, |_| true, |i| i.mode |= 1 << 20);
    "inode-mode-no-type": "INO-07", kernel refuses, check names,
    "takes the file type from an inode's mode", needs "an inode",
    |image, target| edit_inode(image, target, |_| true, |i| i.mode &= 0o7777);
    "inode-dir-nlink": "INO-08", kernel refuses, check names,
    "gives a directory two links", needs "a directory below the root",
    |image, target| edit_inode(image, target, |i| kind(i) == S_IFDIR, |i| i.nlink = 2.into());
    "inode-flags": "INO-09", kernel refuses, check misses,
    "sets an inode flag that nothing knows", needs "an inode",
    |image, target| edit_inode(image, target, |_| true, |i| i.flags |= 1 << 20);
    "inode-flags-ro-compat": "INO-10", kernel reads, check misses,
    "sets a read-only compatible inode flag that nothing knows", needs "an inode",
    |image, target| edit_inode(image, target, |_| true, |i| i.flags |= 1 << 40);
    "inode-nodatacow-with-sums": "INO-11", kernel reads, check misses,
    "turns copy-on-write off for a file that has checksums", needs "a regular file with checksums",
    |image, target| edit_inode(
        image,
        target,
        |i| kind(i) == S_IFREG && i.flags & inode_flags::NODATASUM == 0,
        |i| i.flags |= inode_flags::NODATACOW,
    );
    "inode-symlink-immutable": "INO-12", kernel reads, check names,
    "makes a symlink immutable", needs "a symlink",
    |image, target| edit_inode(image, target, |i| kind(i) == S_IFLNK, |i| i.flags |= inode_flags::IMMUTABLE);
    "inode-size-large": "INO-13", kernel reads, check misses,
    "makes a file end almost where 64 bits end", needs "a regular file",
    |image, target| edit_inode(image, target, |i| kind(i) == S_IFREG, |i| i.size = (u64::MAX - 4094).into());
}
