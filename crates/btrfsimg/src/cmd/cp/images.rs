//! From an image into an image: the same or another.

use std::path::Path;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::copy::{self, Reflink, Source, copy_contents, copy_entry};
use btrfsimg_fs::lookup::{self, Place, inode};
use btrfsimg_ondisk::FileType;

use super::goal::{Goal, Target};
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
) -> Result<()> {
    let mut opened: Option<(&Path, Opened)> = None;
    for address in from {
        if address.is_in_image_of(target.to) {
            let place = cx.resolve(address, args.follows())?;
            copy_one(args, cx, Source::Here, place, address, target)?;
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
            copy_one(args, cx, Source::Other(&image.fs), place, address, target)?;
        }
    }
    Ok(())
}

fn copy_one(
    args: &Args,
    cx: &mut EditCx<'_, '_>,
    source: Source<'_>,
    from: Place,
    address: &Address,
    target: &Target<'_>,
) -> Result<()> {
    let item = match source {
        Source::Here => inode(cx.tx, from)?,
        Source::Other(fs) => lookup::inode(fs, from)?,
    };
    let file_type = FileType::from_mode(item.mode.get());
    let (is_dir, is_file) = (file_type == Some(FileType::DIR), file_type == Some(FileType::REG_FILE));
    if is_dir && !args.recursive() {
        return Err(Error::Invalid(format!("{address}: is a directory; copy it with -r")).into());
    }
    let epoch = crate::clock::source_date_epoch()?;
    let options = copy::Options {
        preserve: args.keeps_attributes(),
        xattrs: args.keeps_xattrs(),
        links: args.keeps_links(),
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
    let report = match target.goal(cx, name_of(shown), is_dir, is_file)? {
        Goal::Contents(dir) => copy_contents(cx.tx, source, from, shown, dir, &options)?,
        Goal::Entry(dir, name) => copy_entry(cx.tx, source, from, shown, dir, &name, &options)?,
    };
    let at = |path: &[u8]| Address { image: address.image.clone(), path: path.to_vec() };
    for path in &report.copied {
        cx.say(|| format!("'{}' copied", at(path)));
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

/// The last component of a path, unless it is one like `/` or `SRC/.`.
fn name_of(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
    let name = path[..end].rsplit(|&b| b == b'/').next().unwrap_or_default();
    (!matches!(name, b"" | b"." | b"..")).then_some(name)
}
