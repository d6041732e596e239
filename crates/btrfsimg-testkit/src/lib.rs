//! Judges and inputs for the tests of the workspace and for `cargo xtask`; never part of a release.
//!
//! - [`oracle`]: the verdict of btrfs-progs and of the kernel's own driver on an image.
//! - [`mount`]: a loop mount that is gone when its guard is.
//! - [`btrfs_progs`]: `mkfs.btrfs`, `btrfs check`, `dump-tree`, `scrub` and `restore`.
//! - [`life`]: images that the kernel has used for a while.
//! - [`treediff`]: are two host trees equal?
//! - [`fuzz`]: targets that must stand any bytes, and a driver for the stable toolchain.
//! - [`oddtree`]: a host tree that holds everything a tree can hold.
//! - [`cost`]: what small changes read and write.
//! - [`synthetic`]: images with as many files as one likes, made in memory.
//! - [`crash`]: devices that lose power or fail at any write, and what an image is afterwards.
//! - [`hostile`]: images that lie.
//! - [`differential`]: the same operations by the kernel and by the library.
//! - [`aged`]: an image that is filled and half emptied, round after round.
//!
//! **Architecture Invariant:** no judge uses the code it judges: btrfs is known here only through the kernel and
//! btrfs-progs. What drives the library ([`crash`], [`differential`], [`aged`]) ends at those judges too.

pub mod aged;
pub mod btrfs_progs;
pub mod cost;
pub mod crash;
pub mod differential;
pub mod fuzz;
pub mod hostile;
pub mod kernel_log;
pub mod life;
pub mod loop_device;
pub mod mount;
pub mod oddtree;
pub mod oracle;
pub mod rng;
pub mod sparse;
pub mod synthetic;
pub mod treediff;

mod command;
mod rw_trial;

pub use mount::Mount;
pub use oddtree::OddTree;
pub use oracle::{JudgeOptions, Judgement, Oracle};
