//! Devices that lose power or fail, and what an image is afterwards.
//!
//! # The model
//!
//! A device is bytes, a length, and a cache that loses its contents when the power goes. [`CrashDevice`] records
//! every write, hole (as a write of zeros), change of length and sync of a workload. What came before a sync that returned is durable, in its
//! order. What came after the last such sync is *pending*: at the moment of the cut each pending event may have
//! reached the medium or not, in any order, whole or in part ([`Fate`]). A unit of 4096 bytes, aligned, is the least
//! that a disk with 4 KiB sectors writes; one with 512-byte sectors may tear those as well. No byte is ever one that
//! was not written: a medium that invents bytes is for checksums to find, not for the order of a commit.
//!
//! Between two syncs of a recording lies a [`Window`]. Each number of its events is a cut, and the image at a cut
//! must be, whole, what it was at the sync before or what it is at the sync behind ([`trial`]): the second only
//! while the superblock is on its way.
//!
//! The superblock is one unit of 4096 bytes. A disk that tears it leaves an image whose first superblock is damaged,
//! as the kernel's own commits would; its copy at 64 MiB is then the old one. So with 512-byte tearing the image must
//! still read as the old or the new state, and the only thing that may be wrong with it is that superblock.
//!
//! [`FailingDevice`] fails instead: the n-th write, change of length or sync returns an error, once or from then on,
//! having written nothing or the first half. [`StoppingDevice`] has somebody ask to stop instead.

mod contents;
mod device;
pub mod device_space;
mod failing;
mod stopping;
pub mod trial;
pub mod workload;

pub use contents::{Contents, contents};
pub use device::{CrashDevice, Event, Fate, Recording, Window};
pub use failing::{Attempt, Failing, FailingDevice};
pub use stopping::StoppingDevice;
