//! `mkdir`: directories in an image.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::lookup::{self, Place, find_entry, resolve_parent};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::attributes::chmod;
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::names::{check_changeable, refuse_existing};
use btrfsimg_ondisk::FileType;

use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::mode::ModeChange;

/// Make directories in an image
///
/// They belong to 0:0 with mode 0755, inherit the compression property of the directory that they are in, the group of a
/// setgid one, and a default ACL, which then decides the mode instead.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg mkdir out.img:/data
  btrfsimg mkdir -p out.img:/var/lib/app/cache
  btrfsimg mkdir -m 1777 out.img:/tmp")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Make parents as needed; what exists is no error
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, octal or as in 'u=rwx,go=rx'
    #[arg(short, long, value_parser = ModeChange::parse)]
    mode: Option<ModeChange>,
    /// The directories, as IMAGE:/path
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
            let mode = self.mode.as_ref();
            let made = if self.parents {
                make_all(cx.tx, cx.start, address, mode)?
            } else {
                make_one(cx.tx, cx.start, address, mode)?;
                vec![address.clone()]
            };
            made.iter().for_each(|a| cx.say(|| format!("created directory '{a}'")));
            Ok(())
        })
    }
}

fn make_one(
    tx: &mut Transaction<'_>,
    start: Place,
    address: &Address,
    mode: Option<&ModeChange>,
) -> Result<()> {
    let (dir, name) = resolve_parent(tx, start, &address.path)?;
    refuse_existing(tx, dir, name, &address.to_string())?;
    check_changeable(tx, dir, &address.to_string(), false)?;
    make(tx, dir, name, mode)?;
    Ok(())
}

fn make(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    mode: Option<&ModeChange>,
) -> btrfsimg_fs::Result<()> {
    let mut attributes = Attributes::new(0o040_777, tx.now());
    attributes.umask = 0o022;
    let place = create(tx, dir, name, attributes, Vec::new())?;
    let Some(mode) = mode else { return Ok(()) };
    // What is asked for goes above what was inherited; the setgid bit stays.
    let inherited = lookup::inode(tx, place)?.mode.get() & 0o2000;
    chmod(tx, place, mode.apply(0o777 | inherited, true))
}

/// Every component that is missing. Returns which they were.
pub(super) fn make_all(
    tx: &mut Transaction<'_>,
    start: Place,
    address: &Address,
    mode: Option<&ModeChange>,
) -> Result<Vec<Address>> {
    let mut made = Vec::new();
    let components: Vec<&[u8]> = address.path.split(|b| *b == b'/').filter(|c| !c.is_empty()).collect();
    for n in 1..=components.len() {
        let path = components[..n].join(&b'/');
        match lookup::resolve(tx, start, &path, true) {
            Ok(place) if is_directory(tx, place)? => {}
            Ok(_) => return Err(btrfsimg_fs::Error::NotDirectory(address.to_string()).into()),
            Err(btrfsimg_fs::Error::NotFound(_)) => {
                let (dir, name) = resolve_parent(tx, start, &path)?;
                if find_entry(tx, dir, name)?.is_some() {
                    // A symlink that leads to nothing.
                    return Err(btrfsimg_fs::Error::Exists(address.to_string()).into());
                }
                check_changeable(tx, dir, &address.to_string(), false)?;
                make(tx, dir, name, mode.filter(|_| n == components.len()))?;
                made.push(Address { image: address.image.clone(), path });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(made)
}

fn is_directory(tx: &Transaction<'_>, place: Place) -> btrfsimg_fs::Result<bool> {
    let inode = lookup::inode(tx, place)?;
    Ok(FileType::from_mode(inode.mode.get()) == Some(FileType::DIR))
}
