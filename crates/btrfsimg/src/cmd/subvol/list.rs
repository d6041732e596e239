//! `subvol list`: which subvolumes there are.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::Write as _;
use std::ops::RangeInclusive;

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
  btrfsimg subvol list -G +100 --sort=-gen,path out.img
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
    /// Only those last changed in this transaction; with + before the number, in it or later, with - in it or before
    #[arg(short = 'G', value_name = "[+-]GEN", allow_hyphen_values = true, value_parser = parse_generations)]
    generation: Option<RangeInclusive<u64>>,
    /// The same of the transaction of creation
    #[arg(short = 'C', value_name = "[+-]GEN", allow_hyphen_values = true, value_parser = parse_generations)]
    created: Option<RangeInclusive<u64>>,
    /// Show the transaction of the last change (that is done anyway)
    #[arg(short = 'g')]
    _generation: bool,
    /// Sort by gen, ogen (the transaction of creation), rootid or path; with - before it downwards
    #[arg(long, value_name = "[+-]KEY,...", value_delimiter = ',', allow_hyphen_values = true, value_parser = parse_sort)]
    sort: Vec<Sort>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The image, or a path in it
    #[arg(value_name = "IMAGE")]
    object: Option<OsString>,
}

/// What the rows are sorted by.
#[derive(Clone, Copy, Debug)]
struct Sort {
    by: fn(&Row, &Row) -> Ordering,
    downwards: bool,
}

/// `+` or `-` before something, and that.
fn parse_sign(text: &str) -> (Option<char>, &str) {
    match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.chars().next(), rest),
        None => (None, text),
    }
}

fn parse_generations(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (sign, number) = parse_sign(text);
    let number: u64 = number.parse().map_err(|_| "valid are 7, +7 (7 or more), -7 (7 or less)".to_owned())?;
    Ok(match sign {
        Some('+') => number..=u64::MAX,
        Some(_) => 0..=number,
        None => number..=number,
    })
}

fn parse_sort(text: &str) -> Result<Sort, String> {
    let (sign, key) = parse_sign(text);
    let by: fn(&Row, &Row) -> Ordering = match key {
        "gen" => |a, b| a.generation().cmp(&b.generation()),
        "ogen" => |a, b| a.created().cmp(&b.created()),
        "rootid" => |a, b| a.subvolume.id.cmp(&b.subvolume.id),
        "path" => |a, b| a.path.cmp(&b.path),
        _ => return Err("valid are gen, ogen, rootid, path".to_owned()),
    };
    Ok(Sort { by, downwards: sign == Some('-') })
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
            && args.generation.as_ref().is_none_or(|wanted| wanted.contains(&row.generation()))
            && args.created.as_ref().is_none_or(|wanted| wanted.contains(&row.created()))
    });
    // The first key counts most: it comes last, as the sorting is stable.
    for Sort { by, downwards } in args.sort.iter().rev() {
        rows.sort_by(|a, b| if *downwards { by(b, a) } else { by(a, b) });
    }
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
        (true, ("gen", |row| row.generation().to_string())),
        (
            args.creation || args.snapshots || args.created.is_some(),
            ("cgen", |row| row.created().to_string()),
        ),
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
    /// The transaction of the last change.
    fn generation(&self) -> u64 {
        self.subvolume.item.generation.get()
    }

    /// The transaction of creation.
    fn created(&self) -> u64 {
        self.subvolume.item.otransid.get()
    }

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
