//! From the host into an image.

use std::fs::FileType as FileTypeOnHost;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use btrfsimg_compress::PoolStats;
use btrfsimg_fs::import::{self, Links, Report, Sparse, import_entry, import_tree};
use btrfsimg_fs::lookup::{self, Place, find_entry};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::contents;
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::names::check_changeable;
use btrfsimg_fs::{Error, Existing};
use btrfsimg_ondisk::FileType;

use super::Args;
use super::goal::{Goal, Target};
use super::made::{Made, OneSource, of_one};
use crate::address::Address;
use crate::cmd::report::{Progress, shown_workspaces};
use crate::cmd::workers;
use crate::cmd::write::{input, stream};
use crate::edit::EditCx;
use crate::exit;

/// Copies `from`, at least one path of the host, to `target`.
pub(super) fn copy_in(
    args: &Args,
    cx: &mut EditCx<'_, '_>,
    from: &[PathBuf],
    target: &Target<'_>,
    made: &mut Made,
) -> Result<()> {
    let stop = cx.stop;
    let progress = Progress::new(cx.ui);
    let tell = |report: &Report| progress.tell(report);
    let options = options(args, cx.verbose, stop, &tell)?;
    let (mut workspaces, mut links) = (Vec::new(), Links::default());
    for source in from {
        let copied = match is_stream(args, source) {
            true => copy_stream(args, cx, source, target).map(|()| Report::default()),
            false => copy_one(cx, args, source, target, &options, (&mut links, made)),
        };
        if let Some(report) = made.outcome(copied)? {
            workspaces.push(report.workspaces);
            tell_of(cx, &report, source, &target.address_of(name_of(source)));
        }
    }
    if args.stats {
        let all = workspaces.into_iter().reduce(PoolStats::and_then).unwrap_or_default();
        cx.print(shown_workspaces(&all));
    }
    Ok(())
}

fn tell_of(cx: &mut EditCx<'_, '_>, report: &Report, source: &Path, to: &Address) {
    for path in &report.copied {
        let from = if path.as_os_str().is_empty() { source.to_owned() } else { source.join(path) };
        cx.say(|| format!("'{}' -> '{}'", from.display(), to.below(path.as_os_str().as_bytes())));
    }
    for failure in &report.failures {
        cx.fail(format!("{}: {}", failure.path.display(), failure.reason), exit::FAILED);
    }
}

/// Whether a source is read from its start to its end: standard input; and without -r, as cp(1) has it, pipes and devices.
fn is_stream(args: &Args, source: &Path) -> bool {
    let meta = || if args.follows() { source.metadata() } else { source.symlink_metadata() };
    let is_special = |t: FileTypeOnHost| t.is_fifo() || t.is_char_device() || t.is_block_device();
    source.as_os_str() == "-" || !args.recursive() && meta().is_ok_and(|m| is_special(m.file_type()))
}

/// What a stream gives, into a file, which is made, or gets new contents.
fn copy_stream(args: &Args, cx: &mut EditCx<'_, '_>, source: &Path, target: &Target<'_>) -> Result<()> {
    let shown = source.display().to_string();
    let own_name = source.file_name().filter(|_| shown != "-").map(|name| name.as_bytes());
    if target.is_dir() && own_name.is_none() {
        return Err(
            Error::IsDirectory(format!("{}: standard input needs the name of a file", target.to)).into()
        );
    }
    let mut from = input(cx, source).context(OneSource(shown.clone()))?;
    let to = target.address_of(own_name);
    let (dir, name) = target.file(cx, own_name)?;
    let place = match find_entry(cx.tx, dir, &name)? {
        None => {
            check_changeable(cx.tx, dir, &to.to_string(), false)?;
            let mut attributes = Attributes::new(0o100_666, cx.tx.now());
            attributes.umask = 0o022;
            create(cx.tx, dir, &name, attributes, Vec::new())?
        }
        Some(_) if args.no_clobber => return Ok(()),
        Some(entry) => {
            let place = lookup::target(cx.tx, dir, &name, entry.location)?;
            check_changeable(cx.tx, place, &to.to_string(), true)?;
            contents::truncate(cx.tx, place, 0)?;
            place
        }
    };
    let said = if shown == "-" { "standard input" } else { &shown };
    stream(cx, &mut from, place, 0, args.policy()).context(said.to_owned())?;
    cx.say(|| format!("'{shown}' -> '{to}'"));
    Ok(())
}

fn options<'a>(
    args: &Args,
    list: bool,
    stop: &'a std::sync::atomic::AtomicBool,
    tell: &'a dyn Fn(&Report),
) -> Result<import::Options<'a>> {
    let epoch = crate::clock::source_date_epoch()?;
    Ok(import::Options {
        preserve: args.keeps(),
        compression: args.policy(),
        workers: workers(),
        sparse: if epoch.is_some() { Sparse::Always } else { Sparse::Auto },
        clamp: epoch,
        exclude: Vec::new(),
        cancel: Some(stop),
        progress: Some(tell),
        existing: args.existing(),
        list,
    })
}

fn copy_one(
    cx: &mut EditCx<'_, '_>,
    args: &Args,
    source: &Path,
    target: &Target<'_>,
    options: &import::Options<'_>,
    (links, made): (&mut Links, &mut Made),
) -> Result<Report> {
    let shown = source.display().to_string();
    let follow = args.follows();
    let meta = if follow { std::fs::metadata(source) } else { std::fs::symlink_metadata(source) };
    let meta =
        meta.map_err(|e| Error::Io { what: shown.clone(), source: e }).context(OneSource(shown.clone()))?;
    if meta.is_dir() && !args.recursive() {
        let error = Error::Invalid(format!("{shown}: is a directory; copy it with -r"));
        return Err(anyhow::Error::new(error).context(OneSource(shown)));
    }
    let name = name_of(source);
    let to = target.address_of(name);
    if !meta.is_dir() {
        of_one(made.check(name, &to.to_string(), options.existing), &shown)?;
    }
    if made.note(name, || cx.resolve(&to, false).is_ok()) {
        *links = Links::default();
    }
    let follows = meta.is_file() && options.existing != Existing::Remove;
    match of_one(target.goal(cx, name, meta.is_dir(), follows), &to)? {
        Goal::Contents(dir) => {
            import::check_target(cx.tx, dir, &target.to.to_string())?;
            Ok(import_tree(cx.tx, source, import::Target::Into(dir), options, links)?)
        }
        Goal::Entry(dir, name) => {
            import::check_target(cx.tx, dir, &target.to.to_string())?;
            let source = HostSource { path: source, follow, meta: &meta };
            replace_existing(cx.tx, (dir, &name), &source, &to, options, links)
        }
    }
}

/// The name that a source has in DST; none of SRC/. and SRC/.., which mean what is in it.
fn name_of(source: &Path) -> Option<&[u8]> {
    let is_contents = source.as_os_str().as_bytes().ends_with(b"/.");
    source.file_name().map(|name| name.as_bytes()).filter(|_| !is_contents)
}

/// A source on the host, and what stat says of it.
struct HostSource<'s> {
    path: &'s Path,
    follow: bool,
    meta: &'s std::fs::Metadata,
}

/// Puts `source` into `dir` as `name`: a directory over a directory is merged, a file over a file replaces it.
fn replace_existing(
    tx: &mut Transaction<'_>,
    (dir, name): (Place, &[u8]),
    source: &HostSource<'_>,
    to: &Address,
    options: &import::Options<'_>,
    links: &mut Links,
) -> Result<Report> {
    if let Some(existing) = find_entry(tx, dir, name)? {
        let place = lookup::target(tx, dir, name, existing.location)?;
        let shown = to.to_string();
        match (existing.file_type == FileType::DIR, source.meta.is_dir()) {
            (true, true) => {
                check_changeable(tx, place, &shown, false)?;
                return Ok(import_tree(tx, source.path, import::Target::Into(place), options, links)?);
            }
            (true, false) => {
                return Err(Error::IsDirectory(format!("{shown}: cannot overwrite it with a file")).into());
            }
            (false, true) => {
                return Err(
                    Error::NotDirectory(format!("{shown}: cannot overwrite it with a directory")).into()
                );
            }
            (false, false) if matches!(options.existing, Existing::Replace | Existing::Remove) => {
                check_changeable(tx, place, &shown, true)?;
            }
            (false, false) => {}
        }
    }
    Ok(import_entry(tx, source.path, (dir, name), source.follow, options, links)?)
}
