//! Files and directories inside a transaction: new inodes, names, xattrs, properties, contents.

pub mod attributes;
pub mod contents;
pub mod create;
pub mod data;
mod doomed;
pub mod encode;
pub mod flags;
pub mod inode;
pub mod link;
pub mod names;
pub mod remove;
pub mod rename;
pub mod setxattr;
pub mod subvol;
pub mod xattr;
