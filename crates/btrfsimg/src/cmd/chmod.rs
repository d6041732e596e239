//! `chmod`: permission bits.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::lookup;
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::attributes;
use btrfsimg_ondisk::FileType;

use super::below::{change_each, targets};
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::mode::ModeChange;
use crate::output::mode_string;

/// Change permission bits in an image
///
/// As chmod(1): an octal MODE leaves the setuid and setgid bits of directories alone unless it names them; symbolic
/// ones without u, g, o or a leave 022 alone. Symlinks are followed, but not below a directory. In an ACL the entries
/// that the bits stand for change with them.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg chmod 600 out.img:/etc/shadow
  btrfsimg chmod -R u=rwX,go=rX out.img:/usr
  btrfsimg chmod g+s out.img:/home/shared
  btrfsimg chmod --reference out.img:/etc/passwd out.img:/etc/group")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// All that is below directories, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// The bits of this file in the image; the first word is a path then
    #[arg(long, value_name = "IMAGE:/PATH")]
    reference: Option<OsString>,
    /// Octal, or as in 'u=rwx,go+rX,+t'
    #[arg(allow_hyphen_values = true)]
    mode: OsString,
    /// What to change, as IMAGE:/path
    #[arg(required_unless_present = "reference", value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        if self.reference.is_none() {
            self.mode()?;
        }
        targets(image, &self.mode, &self.paths, self.reference.is_some())
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let change = match &self.reference {
            Some(word) => ModeChange::exactly(lookup::inode(cx.tx, cx.reference(word, true)?)?.mode.get()),
            None => self.mode()?,
        };
        change_each(cx, self.recursive, true, |tx, found, verbose| match found.file_type {
            FileType::SYMLINK => Ok(None),
            _ => change_one(tx, found.place, &change, &found.shown, verbose),
        })
    }
}

impl Args {
    fn mode(&self) -> Result<ModeChange> {
        ModeChange::parse(&self.mode.to_string_lossy()).map_err(usage)
    }
}

/// Changes one inode, and says how if that is wanted.
fn change_one(
    tx: &mut Transaction<'_>,
    place: lookup::Place,
    change: &ModeChange,
    shown: &str,
    verbose: bool,
) -> Result<Option<String>> {
    let old = lookup::inode(tx, place)?.mode.get();
    let new = change.apply(old, FileType::from_mode(old) == Some(FileType::DIR));
    attributes::chmod(tx, place, new)?;
    let changed = new != old & 0o7777;
    Ok((changed && verbose).then(|| {
        let (from, to) = (mode_string(old), mode_string(old & !0o7777 | new));
        format!("mode of '{shown}' changed from {:04o} ({from}) to {new:04o} ({to})", old & 0o7777)
    }))
}
