//! Contents of regular files inside a transaction: written, cut, punched, shared.
//!
//! Bytes are never overwritten where they are: what changes goes into new extents, whatever the inode's flags, and
//! the old ones lose a reference. Every change keeps size, `nbytes` and the times exact, and takes
//! `security.capability` away, as a kernel does. Without NO_HOLES, what no extent covers gets explicit hole items.

mod clone;
mod drop;
mod file;
mod replace;
mod truncate;
mod write;

pub(crate) use clone::check_source;
pub use clone::clone_range;
pub use drop::drop_range;
pub(crate) use file::read_stored;
pub use replace::replace_extents;
pub use truncate::{punch_hole, truncate};
pub use write::{Codec, PIECE, write_at};

pub use crate::lookup::FILE_SIZE_MAX;
