//! `chown`: owner and group.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::lookup;
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::attributes;

use super::below::{change_each, targets};
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;

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
  btrfsimg chown -h :100 out.img:/link
  btrfsimg chown --reference out.img:/home/ann out.img:/home/ann.old"
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
    /// Owner and group of this file in the image; the first word is a path then
    #[arg(long, value_name = "IMAGE:/PATH")]
    reference: Option<OsString>,
    /// UID, UID:GID, or :GID
    #[arg(value_name = "UID[:GID]")]
    owner: OsString,
    /// What to change, as IMAGE:/path
    #[arg(required_unless_present = "reference", value_name = "IMAGE:/PATH")]
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
        if owner.uid.is_some() && text.ends_with(':') {
            return Err(format!(
                "'{text}' is the user's login group, which is not known here; write {text}GID"
            ));
        }
        if owner.uid.is_none() && owner.gid.is_none() {
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
        if self.reference.is_none() {
            self.owner()?;
        }
        targets(image, &self.owner, &self.paths, self.reference.is_some())
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let owner = match &self.reference {
            Some(word) => {
                let inode = lookup::inode(cx.tx, cx.reference(word, true)?)?;
                Owner { uid: Some(inode.uid.get()), gid: Some(inode.gid.get()) }
            }
            None => self.owner()?,
        };
        let follow = !self.no_dereference && !self.recursive;
        change_each(cx, self.recursive, follow, |tx, found, verbose| {
            change_one(tx, found.place, owner, &found.shown, verbose)
        })
    }
}

impl Args {
    fn owner(&self) -> Result<Owner> {
        Owner::parse(&self.owner.to_string_lossy()).map_err(usage)
    }
}

/// Changes one inode, and says how if that is wanted.
fn change_one(
    tx: &mut Transaction<'_>,
    place: lookup::Place,
    owner: Owner,
    shown: &str,
    verbose: bool,
) -> Result<Option<String>> {
    let old = lookup::inode(tx, place)?;
    attributes::chown(tx, place, owner.uid, owner.gid)?;
    let (uid, gid) = (old.uid.get(), old.gid.get());
    let (new_uid, new_gid) = (owner.uid.unwrap_or(uid), owner.gid.unwrap_or(gid));
    let changed = (uid, gid) != (new_uid, new_gid);
    Ok((changed && verbose)
        .then(|| format!("ownership of '{shown}' changed from {uid}:{gid} to {new_uid}:{new_gid}")))
}
