//! Files and directories inside a transaction: new inodes, names, xattrs, properties, contents.

pub mod contents;
pub mod create;
pub mod data;
mod doomed;
pub mod encode;
pub mod existing;
pub mod inode;
pub mod names;
pub mod remove;
pub mod subvol;
pub mod xattr;
