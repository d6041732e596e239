//! `subvol sync`: what is left of deleted subvolumes goes.

use std::ffi::OsString;

use anyhow::Result;

use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};

/// Drop what is left of deleted subvolumes
///
/// A kernel frees what a deleted subvolume held in the background, and an image taken before it is done holds the rest
/// (see 'subvol list -d'). This does in a few commits what the kernel would do after the next mount.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg subvol sync out.img")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// The image
    #[arg(value_name = "IMAGE")]
    object: Option<OsString>,
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        Ok(vec![image.address_or_top(self.object.as_ref())?])
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        cx.drop_deleted();
        Ok(())
    }
}
