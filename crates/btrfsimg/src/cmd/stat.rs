//! `stat`: what an image says of a file.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use btrfsimg_fs::lookup;
use btrfsimg_fs::read::{Filesystem, Info};
use btrfsimg_ondisk::{FileType, inode_flags};
use serde_json::{Map, Value, json};

use crate::address::{Address, ImageArgs, Opened};
use crate::output::{Ui, iso_time, mode_string, print_json, put_bytes, put_path, shown, stdout, type_name};

/// Show size, mode, owner, times, flags, property and xattrs of files in an image
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg stat out.img:/etc/passwd
  btrfsimg stat -L --json out.img:/vmlinuz")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Follow a symlink
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The files, as IMAGE:/path
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let addresses = args.image.addresses(&args.paths)?;
    let mut out = stdout();
    let mut documents = Vec::new();
    args.image.for_each(&addresses, ui, |image, address| {
        let found = Found::new(image, address, args.dereference)?;
        if args.json {
            documents.push(found.json(&image.fs)?);
        } else {
            found.print(&image.fs, &mut out)?;
        }
        Ok(())
    })?;
    if args.json {
        return print_json(json!({ "files": documents }));
    }
    out.flush()?;
    Ok(())
}

struct Found<'a> {
    address: &'a Address,
    info: Info,
    target: Option<Vec<u8>>,
}

impl<'a> Found<'a> {
    fn new(image: &Opened, address: &'a Address, follow: bool) -> Result<Found<'a>> {
        let info = image.fs.info(image.resolve(&address.path, follow)?)?;
        let target = match info.file_type() {
            Some(FileType::SYMLINK) => Some(lookup::symlink_target(&image.fs, info.place)?),
            _ => None,
        };
        Ok(Found { address, info, target })
    }

    fn print(&self, fs: &Filesystem, out: &mut impl Write) -> Result<()> {
        let (info, i) = (&self.info, &self.info.item);
        write!(out, "  File: {}", self.address)?;
        if let Some(target) = &self.target {
            write!(out, " -> {}", shown(target))?;
        }
        let kind = type_name(info.mode(), info.size());
        let sectorsize = fs.superblock().sectorsize.get();
        writeln!(
            out,
            "\n  Size: {:<15} Blocks: {:<10} IO Block: {sectorsize:<6} {kind}",
            i.size,
            info.blocks(sectorsize)
        )?;
        write!(out, "Subvol: {:<15} Inode: {:<11} Links: {}", info.place.tree, info.place.ino, i.nlink)?;
        if let Some((major, minor)) = info.device_number() {
            write!(out, "     Device type: {major},{minor}")?;
        }
        let mode = mode_string(info.mode());
        writeln!(
            out,
            "\nAccess: ({:04o}/{mode})  Uid: {:>5}   Gid: {:>5}",
            info.mode() & 0o7777,
            i.uid,
            i.gid
        )?;
        for (name, time) in
            [("Access", i.atime), ("Modify", i.mtime), ("Change", i.ctime), (" Birth", i.otime)]
        {
            writeln!(out, "{name}: {}", iso_time(time))?;
        }
        let flags = i.flags.get();
        writeln!(out, " Flags: 0x{flags:x} ({})", inode_flags::names(flags).join("|"))?;
        if let Some((value, _)) = fs.compression_property(info.place)? {
            writeln!(out, "  Prop: compression={}", shown(&value))?;
        }
        for (name, value) in lookup::xattrs(fs, info.place)? {
            writeln!(out, " Xattr: {}={}", shown(&name), shown(&value))?;
        }
        Ok(())
    }

    fn json(&self, fs: &Filesystem) -> Result<Value> {
        let mut object = Map::new();
        put_path(&mut object, "image", &self.address.image);
        put_bytes(&mut object, "path", &self.address.path);
        put_info(&mut object, fs, &self.info);
        if let Some(target) = &self.target {
            put_bytes(&mut object, "target", target);
        }
        if let Some((value, _)) = fs.compression_property(self.info.place)? {
            put_bytes(&mut object, "compression", &value);
        }
        let xattrs = lookup::xattrs(fs, self.info.place)?.into_iter().map(|(name, value)| {
            let mut xattr = Map::new();
            put_bytes(&mut xattr, "name", &name);
            put_bytes(&mut xattr, "value", &value);
            Value::Object(xattr)
        });
        object.insert("xattrs".to_owned(), xattrs.collect());
        Ok(Value::Object(object))
    }
}

/// Adds the fields of an inode to a JSON object. Times are `[seconds, nanoseconds]`.
pub(super) fn put_info(object: &mut Map<String, Value>, fs: &Filesystem, info: &Info) {
    let i = &info.item;
    let flags = i.flags.get();
    let time = |t: btrfsimg_ondisk::Timespec| json!([t.sec.get(), t.nsec.get()]);
    let fields = json!({
        "type": type_name(info.mode(), 1),
        "subvol": info.place.tree,
        "inode": info.place.ino,
        "size": i.size.get(),
        "blocks": info.blocks(fs.superblock().sectorsize.get()),
        "links": i.nlink.get(),
        "mode": format!("{:04o}", info.mode() & 0o7777),
        "uid": i.uid.get(),
        "gid": i.gid.get(),
        "device": info.device_number().map(|(major, minor)| [major, minor]),
        "atime": time(i.atime),
        "mtime": time(i.mtime),
        "ctime": time(i.ctime),
        "otime": time(i.otime),
        "flags": inode_flags::names(flags),
        "generation": i.generation.get(),
        "transid": i.transid.get(),
    });
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
}
