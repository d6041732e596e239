//! `subvol create`: new subvolumes.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::lookup::resolve_parent;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::names::{check_changeable, refuse_existing};
use btrfsimg_fs::write::subvol;

use crate::address::{Address, ImageArgs};
use crate::cmd::mkdir;
use crate::edit::{Edit, EditArgs, EditCx};

/// Make subvolumes in an image
///
/// They belong to 0:0 with mode 0755, and inherit the compression property of the subvolume that they are in (that of
/// its root directory, whatever the directory has).
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg subvol create out.img:/data
  btrfsimg subvol create -p out.img:/var/lib/machines")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Make the directories above as needed
    #[arg(short, long)]
    parents: bool,
    /// The subvolumes, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        image.addresses(&self.paths)
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        cx.each(|cx, address| {
            if self.parents {
                let end = address.path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
                let cut = address.path[..end].iter().rposition(|b| *b == b'/').unwrap_or(0);
                let above = Address { image: address.image.clone(), path: address.path[..cut].to_vec() };
                mkdir::make_all(cx.tx, cx.start, &above, None)?;
            }
            let (dir, name) = resolve_parent(cx.tx, cx.start, &address.path)?;
            refuse_existing(cx.tx, dir, name, &address.to_string())?;
            check_changeable(cx.tx, dir, &address.to_string(), false)?;
            let attributes = Attributes::new(0o040_755, cx.tx.now());
            subvol::create(cx.tx, dir, name, attributes, Vec::new())?;
            cx.say(|| format!("Create subvolume '{address}'"));
            Ok(())
        })
    }
}
