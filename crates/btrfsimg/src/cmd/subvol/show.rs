//! `subvol show`: all that is said of a subvolume.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::Result;
use btrfsimg_fs::lookup::{self, subvolume_path};
use btrfsimg_ondisk::{Timespec, Uuid, objectid};
use serde_json::{Value, json};

use super::{list, no_subvolume, subvolume_at, uuid_of};
use crate::address::ImageArgs;
use crate::output::{Ui, print_json, put_bytes, second, shown, stdout};

/// Show what is said of a subvolume
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg subvol show out.img:/data
  btrfsimg subvol show -r 257 out.img")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// The subvolume with this id, whatever the path
    #[arg(short, long, value_name = "ID", conflicts_with = "uuid")]
    rootid: Option<u64>,
    /// The subvolume with this UUID, whatever the path
    #[arg(short, long)]
    uuid: Option<Uuid>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The subvolume, as IMAGE:/path; the image, with its id or UUID
    #[arg(value_name = "IMAGE:/PATH")]
    object: Option<OsString>,
}

pub(super) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let address = args.image.address_or_top(args.object.as_ref())?;
    let opened = args.image.open(&address.image, ui)?;
    let fs = &opened.fs;
    let all = lookup::subvolumes(fs)?;
    let mut there = all.iter().filter(|s| s.item.refs != 0);
    let this = match (args.rootid, args.uuid) {
        (Some(id), _) => there.find(|s| s.id == id).ok_or_else(|| format!("subvolume {id}")),
        (None, Some(uuid)) => {
            let found = there.find(|s| s.item.uuid == uuid.into_bytes());
            found.ok_or_else(|| format!("subvolume with the UUID {uuid}"))
        }
        (None, None) => {
            let place = opened.resolve(&address.path, true).map_err(|e| address.about(e.into()))?;
            let id = subvolume_at(fs, place, &address)?;
            there.find(|s| s.id == id).ok_or_else(|| format!("subvolume {id}"))
        }
    };
    let this = this.map_err(|what| no_subvolume(&address, &what))?;
    let id = this.id;
    let path = subvolume_path(fs, id).map_err(|e| address.about(e.into()))?;
    let uuid = this.item.uuid;
    let mut snapshots = Vec::new();
    for other in all.iter().filter(|s| s.item.parent_uuid == uuid && uuid != [0; 16] && s.item.refs != 0) {
        snapshots.push(subvolume_path(fs, other.id)?);
    }
    let parent = this.link.as_ref().map_or(0, |(dir, _)| dir.tree);
    if args.json {
        let mut object = list::fields(this);
        object.insert("parent".to_owned(), parent.into());
        put_bytes(&mut object, "path", &path);
        let item = &this.item;
        object.insert("stransid".to_owned(), item.stransid.get().into());
        object.insert("rtransid".to_owned(), item.rtransid.get().into());
        let paths = snapshots.iter().map(|path| {
            let mut snapshot = serde_json::Map::new();
            put_bytes(&mut snapshot, "path", path);
            Value::Object(snapshot)
        });
        object.insert("snapshots".to_owned(), json!(paths.collect::<Vec<_>>()));
        return print_json(Value::Object(object));
    }
    let top = id == objectid::FS_TREE;
    let name = this.link.as_ref().map_or_else(|| "<FS_TREE>".to_owned(), |(_, name)| shown(name));
    let item = &this.item;
    let uuid = |bytes| uuid_of(bytes).unwrap_or_else(|| "-".to_owned());
    let time = |t: Timespec| if t.sec.get() == 0 { "-".to_owned() } else { format!("{} +0000", second(t)) };
    let flags = if this.is_readonly() { "readonly" } else { "-" };
    let mut out = stdout();
    writeln!(out, "{}", if top { "/".to_owned() } else { shown(&path) })?;
    for (title, value) in [
        ("Name: \t\t", name),
        ("UUID: \t\t", uuid(item.uuid)),
        ("Parent UUID: \t", uuid(item.parent_uuid)),
        ("Received UUID: \t", uuid(item.received_uuid)),
        ("Creation time: \t", time(item.otime)),
        ("Subvolume ID: \t", id.to_string()),
        ("Generation: \t", item.generation.to_string()),
        ("Gen at creation: ", item.otransid.to_string()),
        ("Parent ID: \t", parent.to_string()),
        ("Top level ID: \t", parent.to_string()),
        ("Flags: \t\t", flags.to_owned()),
        ("Send transid: \t", item.stransid.to_string()),
        ("Send time: \t", time(item.stime)),
        ("Receive transid: ", item.rtransid.to_string()),
        ("Receive time: \t", time(item.rtime)),
    ] {
        writeln!(out, "\t{title}\t{value}")?;
    }
    writeln!(out, "\tSnapshot(s):")?;
    snapshots.iter().try_for_each(|path| writeln!(out, "\t\t\t\t{}", shown(path)))?;
    out.flush()?;
    Ok(())
}
