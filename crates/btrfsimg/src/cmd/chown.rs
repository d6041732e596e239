//! `chown`: owner and group.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::lookup;
use btrfsimg_fs::write::attributes;

use super::below::change_each;
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};

/// Change owner and group in an image
///
/// By number: names are those of the system in the image. As in the kernel, files lose their setuid bit, their setgid
/// bit where the group may execute them, and their capabilities.
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg chown 1000:1000 out.img:/home/ann
  btrfsimg chown -R 33:33 out.img:/var/www
  btrfsimg chown -h :100 out.img:/link"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// All that is below directories, too; symlinks themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Symlinks themselves, not what they lead to
    #[arg(short = 'h', long = "no-dereference")]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// UID, UID:GID, or :GID
    #[arg(value_parser = Owner::parse, value_name = "UID[:GID]")]
    owner: Owner,
    /// What to change, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Owner {
    fn parse(text: &str) -> Result<Owner, String> {
        let number = |text: &str| match text {
            "" => Ok(None),
            _ => text.parse::<u32>().ok().filter(|id| *id != u32::MAX).map(Some).ok_or_else(|| {
                format!("'{text}' is no number from 0 to 4294967294 (names are those of the image's system)")
            }),
        };
        let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
        let owner = Owner { uid: number(uid)?, gid: number(gid)? };
        if owner.uid.is_none() && owner.gid.is_none() || text.ends_with(':') {
            return Err(format!("'{text}' is not UID, UID:GID or :GID"));
        }
        Ok(owner)
    }
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        image.addresses(&self.paths)
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let follow = !self.no_dereference && !self.recursive;
        change_each(cx, self.recursive, follow, |tx, found, verbose| {
            self.change(tx, found.place, &found.shown, verbose)
        })
    }
}

impl Args {
    /// Changes one inode, and says how if that is wanted.
    fn change(
        &self,
        tx: &mut btrfsimg_fs::txn::Transaction<'_>,
        place: lookup::Place,
        shown: &str,
        verbose: bool,
    ) -> Result<Option<String>> {
        let old = lookup::inode(tx, place)?;
        attributes::chown(tx, place, self.owner.uid, self.owner.gid)?;
        let (uid, gid) = (old.uid.get(), old.gid.get());
        let (new_uid, new_gid) = (self.owner.uid.unwrap_or(uid), self.owner.gid.unwrap_or(gid));
        let changed = (uid, gid) != (new_uid, new_gid);
        Ok((changed && verbose)
            .then(|| format!("ownership of '{shown}' changed from {uid}:{gid} to {new_uid}:{new_gid}")))
    }
}
