//! From an image into an image: the same or another.

use std::path::Path;

use anyhow::Result;
use btrfsimg_fs::copy::{self, Links, Reflink, Source, copy_contents, copy_entry};
use btrfsimg_fs::lookup::{self, Place, inode};
use btrfsimg_fs::{Error, Existing};
use btrfsimg_ondisk::FileType;

use super::goal::{Goal, Target};
use super::made::{Made, of_one};
use super::{Args, When};
use crate::address::{Address, Opened};
use crate::cmd::workers;
use crate::edit::EditCx;
use crate::exit;

/// Copies `from` to `target`, which is in the image that is changed.
pub(super) fn copy(
    args: &Args,
    cx: &mut EditCx<'_, '_>,
    from: &[Address],
    target: &Target<'_>,
    made: &mut Made,
) -> Result<()> {
    let mut opened: Option<(&Path, Opened)> = None;
    let mut links: (Option<&Path>, Links) = Default::default();
    for address in from {
        // What tells the files of one image apart says nothing of another's.
        if links.0 != Some(&address.image) {
            links = (Some(&address.image), Links::default());
        }
        let linked = (&mut links.1, &mut *made);
        if address.is_in_image_of(target.to) {
            let place = cx.resolve(address, args.follows())?;
            let copied = copy_one(args, cx, (Source::Here, place), address, target, linked);
            made.outcome(copied)?;
            continue;
        }
        if args.reflink == When::Always {
            let why = "extents are shared within one image only; copy without --reflink=always";
            return Err(Error::Invalid(format!("{address}: {why}")).into());
        }
        if opened.as_ref().is_none_or(|(image, _)| *image != address.image) {
            opened = Some((&address.image, cx.image.open(&address.image, cx.ui)?));
        }
        if let Some((_, image)) = &opened {
            let place = image.resolve(&address.path, args.follows()).map_err(|e| address.about(e.into()))?;
            let copied = copy_one(args, cx, (Source::Other(&image.fs), place), address, target, linked);
            made.outcome(copied)?;
        }
    }
    Ok(())
}

fn copy_one(
    args: &Args,
    cx: &mut EditCx<'_, '_>,
    (source, from): (Source<'_>, Place),
    address: &Address,
    target: &Target<'_>,
    (links, made): (&mut Links, &mut Made),
) -> Result<()> {
    let item = match source {
        Source::Here => inode(cx.tx, from)?,
        Source::Other(fs) => lookup::inode(fs, from)?,
    };
    let file_type = FileType::from_mode(item.mode.get());
    let (is_dir, is_file) = (file_type == Some(FileType::DIR), file_type == Some(FileType::REG_FILE));
    if is_dir && !args.recursive() {
        let error = Error::Invalid(format!("{address}: is a directory; copy it with -r"));
        return of_one(Err(error.into()), address);
    }
    if let Some(device) = file_type.and_then(what_is_read).filter(|_| !args.recursive()) {
        let why = format!("is a {device}: what cp(1) would read of it is not in the image; copy it with -r");
        return of_one(Err(Error::Invalid(format!("{address}: {why}")).into()), address);
    }
    let epoch = crate::clock::source_date_epoch()?;
    let options = copy::Options {
        preserve: args.keeps(),
        reflink: match args.reflink {
            When::Always => Reflink::Always,
            When::Auto => Reflink::Auto,
            When::Never => Reflink::Never,
        },
        existing: args.existing(),
        compression: args.policy(),
        clamp: epoch,
        workers: workers(),
        cancel: Some(cx.stop),
        list: cx.verbose,
    };
    let shown = &address.path;
    let name = name_of(shown);
    let to = target.address_of(name);
    if !is_dir {
        of_one(made.check(name, &to.to_string(), args.existing()), address)?;
    }
    if made.note(name, || cx.resolve(&to, false).is_ok()) {
        *links = Links::default();
    }
    let follows = is_file && args.existing() != Existing::Remove;
    let report = match of_one(target.goal(cx, name, is_dir, follows), &to)? {
        Goal::Contents(dir) => copy_contents(cx.tx, source, from, shown, dir, &options, links)?,
        Goal::Entry(dir, name) => copy_entry(cx.tx, source, from, shown, (dir, &name), &options, links)?,
    };
    let at = |path: &[u8]| Address { image: address.image.clone(), path: path.to_vec() };
    for path in &report.copied {
        let rest = path.strip_prefix(shown.as_slice()).unwrap_or_default();
        cx.say(|| format!("'{}' -> '{}'", at(path), to.below(rest)));
    }
    let mut failures = report.failures;
    // Nothing of a single file is there.
    if let Some(at) = failures.iter().position(|(path, _)| path == shown).filter(|_| !is_dir) {
        return Err(address.about(failures.swap_remove(at).1.into()));
    }
    for (path, error) in failures {
        let error = at(&path).about(error.into());
        cx.fail(crate::output::message(&error), exit::code_of(&error));
    }
    Ok(())
}

/// What cp(1) reads when it copies without -r, and no image has the bytes of.
fn what_is_read(file_type: FileType) -> Option<&'static str> {
    match file_type {
        FileType::CHRDEV | FileType::BLKDEV => Some("device"),
        FileType::FIFO => Some("named pipe"),
        FileType::SOCK => Some("socket"),
        _ => None,
    }
}

/// The last component of a path, unless it is one like `/` or `SRC/.`.
fn name_of(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
    let name = path[..end].rsplit(|&b| b == b'/').next().unwrap_or_default();
    (!matches!(name, b"" | b"." | b"..")).then_some(name)
}
