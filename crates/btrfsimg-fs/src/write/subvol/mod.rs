//! Subvolumes as a whole: made, snapshotted, deleted, and what is said of each in the root tree and the UUID tree
//! (`format/08 §8.3, 8.7, 8.9`).

mod create;
mod default;
mod delete;
pub(super) mod links;
mod readonly;
mod uuids;

pub use create::{create, snapshot};
pub use default::set_default;
pub use delete::{
    DROP_STEP, DeleteOptions, Deleted, begin_delete, delete, delete_with, drop_deleted, finish,
    remove_stand_in,
};
pub use readonly::set_readonly;
