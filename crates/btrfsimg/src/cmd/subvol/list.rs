//! `subvol list`: which subvolumes there are.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::Result;
use btrfsimg_fs::lookup::{self, Subvolume, subvolume_path};
use btrfsimg_ondisk::objectid;
use serde_json::{Map, Value, json};

use super::uuid_of;
use crate::address::ImageArgs;
use crate::output::{Ui, print_json, put_bytes, second, shown, stdout};

/// List the subvolumes of an image, but for the top-level one
///
/// Letters and columns are those of 'btrfs subvolume list' (but for -q, which is --parent-uuid here). Paths are from the top-level subvolume.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg subvol list out.img
  btrfsimg subvol list -t -s out.img
  btrfsimg subvol list -o out.img:/containers")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// As a table
    #[arg(short)]
    table: bool,
    /// Only read-only ones
    #[arg(short)]
    readonly: bool,
    /// Only snapshots, with the transaction and time of their creation
    #[arg(short)]
    snapshots: bool,
    /// Only those right in the subvolume that the path is in
    #[arg(short = 'o')]
    only_inside: bool,
    /// Put <FS_TREE>/ before the paths of those that are not right in the subvolume that the path is in
    #[arg(short = 'a', conflicts_with = "only_inside")]
    all: bool,
    /// Only those that are deleted, but of which not all is dropped ('subvol sync' drops it)
    #[arg(short, long)]
    deleted: bool,
    /// Show the id of the subvolume that each is in
    #[arg(short)]
    parent: bool,
    /// Show the transaction of creation
    #[arg(short)]
    creation: bool,
    /// Show the UUID
    #[arg(short)]
    uuid: bool,
    /// Show the UUID of what it is a snapshot of
    #[arg(long)]
    parent_uuid: bool,
    /// Show the UUID that it was received as
    #[arg(short = 'R')]
    received_uuid: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The image, or a path in it
    #[arg(value_name = "IMAGE")]
    object: Option<OsString>,
}

/// A subvolume with its path.
struct Row {
    subvolume: Subvolume,
    parent: u64,
    path: Vec<u8>,
}

pub(super) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let address = args.image.address_or_top(args.object.as_ref())?;
    let opened = args.image.open(&address.image, ui)?;
    let inside = opened.resolve(&address.path, true).map_err(|e| address.about(e.into()))?.tree;
    let mut rows = Vec::new();
    for subvolume in lookup::subvolumes(&opened.fs)? {
        let is_deleted = subvolume.item.refs == 0;
        if subvolume.id == objectid::FS_TREE || is_deleted != args.deleted {
            continue;
        }
        let parent = subvolume.link.as_ref().map_or(0, |(dir, _)| dir.tree);
        let path = match is_deleted {
            true => Ok(b"DELETED".to_vec()),
            false if args.all && parent != inside => {
                subvolume_path(&opened.fs, subvolume.id).map(|path| [b"<FS_TREE>/", &path[..]].concat())
            }
            false => subvolume_path(&opened.fs, subvolume.id),
        };
        match path {
            Ok(path) => rows.push(Row { subvolume, parent, path }),
            Err(error) => ui.tolerate(Err(address.about(error.into())))?,
        }
    }
    rows.retain(|row| {
        (!args.readonly || row.subvolume.is_readonly())
            && (!args.snapshots || row.subvolume.is_snapshot())
            && (!args.only_inside || row.parent == inside)
    });
    if args.json {
        return print_json(json!({ "subvolumes": rows.iter().map(Row::json).collect::<Vec<_>>() }));
    }
    let columns = columns(args);
    let mut out = stdout();
    if args.table {
        let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
        writeln!(out, "{}\t", heads.join("\t"))?;
        let lines: Vec<String> = heads.iter().map(|head| "-".repeat(head.len())).collect();
        writeln!(out, "{}\t", lines.join("\t"))?;
    }
    for row in &rows {
        let fields = columns.iter().map(|(head, value)| match (args.table, *head) {
            (true, "top level") => format!("{}\t", value(row)),
            (true, _) => value(row),
            (false, _) => format!("{head} {}", value(row)),
        });
        writeln!(out, "{}", fields.collect::<Vec<_>>().join(if args.table { "\t" } else { " " }))?;
    }
    out.flush()?;
    Ok(())
}

type Column = (&'static str, fn(&Row) -> String);

/// The columns, in the order of btrfs subvolume list.
fn columns(args: &Args) -> Vec<Column> {
    let all: [(bool, Column); 10] = [
        (true, ("ID", |row| row.subvolume.id.to_string())),
        (true, ("gen", |row| row.subvolume.item.generation.to_string())),
        (args.creation || args.snapshots, ("cgen", |row| row.subvolume.item.otransid.to_string())),
        (args.parent, ("parent", |row| row.parent.to_string())),
        (true, ("top level", |row| row.parent.to_string())),
        (args.snapshots, ("otime", |row| second(row.subvolume.item.otime))),
        (args.parent_uuid, ("parent_uuid", |row| padded(row.subvolume.item.parent_uuid))),
        (args.received_uuid, ("received_uuid", |row| padded(row.subvolume.item.received_uuid))),
        (args.uuid, ("uuid", |row| padded(row.subvolume.item.uuid))),
        (true, ("path", |row| shown(&row.path))),
    ];
    all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, column)| column).collect()
}

fn padded(uuid: [u8; 16]) -> String {
    format!("{:<36}", uuid_of(uuid).unwrap_or_else(|| "-".to_owned()))
}

impl Row {
    fn json(&self) -> Value {
        let mut object = fields(&self.subvolume);
        object.insert("parent".to_owned(), self.parent.into());
        put_bytes(&mut object, "path", &self.path);
        Value::Object(object)
    }
}

/// What a subvolume's ROOT_ITEM says of it.
pub(super) fn fields(subvolume: &Subvolume) -> Map<String, Value> {
    let item = &subvolume.item;
    let time = |t: btrfsimg_ondisk::Timespec| json!([t.sec.get(), t.nsec.get()]);
    let fields = json!({
        "id": subvolume.id,
        "generation": item.generation.get(),
        "otransid": item.otransid.get(),
        "ctransid": item.ctransid.get(),
        "otime": time(item.otime),
        "ctime": time(item.ctime),
        "uuid": uuid_of(item.uuid),
        "parent_uuid": uuid_of(item.parent_uuid),
        "received_uuid": uuid_of(item.received_uuid),
        "readonly": subvolume.is_readonly(),
        "snapshot": subvolume.is_snapshot(),
        "deleted": item.refs == 0,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
