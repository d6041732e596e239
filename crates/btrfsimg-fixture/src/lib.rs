//! Named faults: typed mutations of an image, each of which breaks one rule of the format and nothing else.
//!
//! Checksums are made right again, on every copy, so that what finds the fault is the check that is meant and not the
//! checksum before it. [`faults`] is the table; `btrfsimg fixture` and the tests of `verify` work from it.
//!
//! ```no_run
//! # use std::{path::Path, sync::Arc};
//! # use btrfsimg_fs::device::{Access, FileDevice};
//! # use btrfsimg_fixture::{Image, Target, find};
//! # fn main() -> Result<(), btrfsimg_fixture::Error> {
//! let device = FileDevice::open(Path::new("broken.img"), Access::Write, 0)?;
//! let fault = find("dir-item-name-hash").expect("it is in the table");
//! let changes = fault.apply(Arc::new(device), &Target::Any)?;
//! # Ok(()) }
//! ```

mod edit;
mod error;
mod fault;
mod faults;
mod image;
mod place;
mod space;

pub use error::{Error, Result};
pub use fault::{Fault, Kernel};
pub use faults::{faults, find};
pub use image::{Change, Image};
pub use place::{Spot, Target};
