//! From the host into an image.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::Args;
use crate::address::Address;
use crate::output::Ui;

/// Copies `from`, at least one path of the host (`-` is standard input), to `to`.
pub(super) fn copy_in(args: &Args, ui: &Ui, from: &[PathBuf], to: &Address) -> Result<()> {
    let _ = (args, ui, from);
    bail!("{to}: this version cannot copy into an image")
}
