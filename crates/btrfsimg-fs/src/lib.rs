//! Make, fill, read, change and verify btrfs images in user space, without root and without mounting.
//!
//! Layers, each using only those below it:
//!
//! | module | what |
//! |---|---|
//! | [`mkfs`], [`import`], [`export`] | whole trees in and out |
//! | [`copy`](mod@copy) | trees within an image and between two |
//! | [`defrag`] | extents made anew in place |
//! | [`write`](mod@write) | directory operations inside a transaction |
//! | [`read`] | files, directories, xattrs, subvolumes |
//! | [`txn`] | copy-on-write B-trees, allocation, references, commit; knows no names |
//! | [`lookup`] | inodes, names, xattrs, file extents by key, committed or inside a transaction |
//! | [`tree`] | search and walk |
//! | [`block_store`] | blocks by logical address, from whichever copy is sound |
//! | [`chunk_map`], [`device`] | logical → physical; bytes |
//! | [`verify`] | judges an image on its own: shares only [`device`] and [`chunk_map`] |

pub mod block_store;
pub mod chunk_map;
pub mod copy;
pub mod defrag;
pub mod device;
mod error;
mod existing;
pub mod export;
pub mod import;
pub mod inspect;
pub mod lookup;
pub mod mkfs;
mod open_files;
pub mod posix_acl;
mod preserve;
pub mod read;
pub mod tree;
pub mod trim;
pub mod txn;
pub mod verify;
pub mod write;

pub use error::{Corrupt, CorruptBlock, Error, Result};
pub use existing::Existing;
pub use preserve::{Modes, Preserve};
