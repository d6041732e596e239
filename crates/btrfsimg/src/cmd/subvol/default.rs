//! `subvol get-default`, `subvol set-default`: the subvolume that is mounted when none is named.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::Result;
use btrfsimg_fs::lookup::{self, subvolume_path};
use btrfsimg_fs::write::subvol::set_default;
use btrfsimg_ondisk::objectid;
use serde_json::{Map, Value};

use super::{no_subvolume, subvolume_at};
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::output::{Ui, print_json, put_bytes, shown, stdout};

/// Show the default subvolume
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg subvol get-default out.img")]
pub(super) struct GetArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The image
    #[arg(value_name = "IMAGE")]
    object: Option<OsString>,
}

pub(super) fn get(args: &GetArgs, ui: &Ui) -> Result<()> {
    let address = args.image.address_or_top(args.object.as_ref())?;
    let opened = args.image.open(&address.image, ui)?;
    let id = lookup::default_subvolume(&opened.fs)?;
    let path = subvolume_path(&opened.fs, id)?;
    if args.json {
        let mut object = Map::new();
        object.insert("id".to_owned(), id.into());
        put_bytes(&mut object, "path", &path);
        return print_json(Value::Object(object));
    }
    let mut out = stdout();
    match lookup::subvolume(&opened.fs, id)? {
        Some((_, item)) if id != objectid::FS_TREE => {
            let (gen_, top) = (item.generation, lookup::subvolume_link(&opened.fs, id)?);
            let top = top.map_or(0, |(dir, _)| dir.tree);
            writeln!(out, "ID {id} gen {gen_} top level {top} path {}", shown(&path))?;
        }
        _ => writeln!(out, "ID {id} (FS_TREE)")?,
    }
    out.flush()?;
    Ok(())
}

/// Set the default subvolume: the one that is mounted when none is named
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg subvol set-default out.img:/@rootfs
  btrfsimg subvol set-default 5 out.img")]
pub(super) struct SetArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// The subvolume, as IMAGE:/path; or its id, before the image
    #[arg(value_name = "SUBVOLUME")]
    subvolume: OsString,
    /// The image, after an id
    #[arg(value_name = "IMAGE")]
    object: Option<OsString>,
}

impl SetArgs {
    /// The id, if one was given.
    fn id(&self) -> Result<Option<u64>> {
        if self.object.is_none() {
            return Ok(None);
        }
        let id = self.subvolume.to_str().and_then(|text| text.parse().ok());
        id.map(Some).ok_or_else(|| usage("before an image, the id of a subvolume is wanted"))
    }
}

impl Edit for SetArgs {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        self.id()?;
        Ok(vec![image.address(self.object.as_ref().unwrap_or(&self.subvolume))?])
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let id = self.id()?;
        cx.each(|cx, address| {
            let tree = match id {
                // As btrfs subvolume: 0 is the top-level one.
                Some(0) => objectid::FS_TREE,
                Some(id) => id,
                None => subvolume_at(cx.tx, cx.resolve(address, true)?, address)?,
            };
            if lookup::subvolume(cx.tx, tree)?.is_none() {
                return Err(no_subvolume(address, &format!("subvolume {tree}")).into());
            }
            set_default(cx.tx, tree)?;
            cx.say(|| format!("Set subvolume {tree} as the default of '{}'", address.image.display()));
            Ok(())
        })
    }
}
