//! From the host into an image.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use btrfsimg_compress::PoolStats;
use btrfsimg_fs::Error;
use btrfsimg_fs::import::{self, Preserve, Report, Sparse, Target, import_entry, import_tree};
use btrfsimg_fs::lookup::{Place, find_entry, inode, resolve_parent, target};
use btrfsimg_fs::txn::Transaction;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::names::check_changeable;
use btrfsimg_fs::write::remove::unlink_checked;
use btrfsimg_ondisk::FileType;

use super::Args;
use crate::address::Address;
use crate::cmd::report::{Progress, shown_workspaces};
use crate::cmd::workers;
use crate::edit::{EditCx, resolve};
use crate::exit::{self, usage};
use crate::output::message;

/// Where one source goes.
enum Goal {
    /// All that is in it, into this directory.
    Contents(Place),
    /// As this new name of this directory.
    Entry(Place, Vec<u8>),
}

/// Copies `from`, at least one path of the host, to `to`.
pub(super) fn copy_in(args: &Args, cx: &mut EditCx<'_, '_>, from: &[PathBuf], to: &Address) -> Result<()> {
    let (stop, start) = (cx.stop, cx.start);
    let progress = Progress::new(cx.ui);
    let tell = |report: &Report| progress.tell(report);
    let options = options(args, stop, &tell)?;
    let into_dir = existing_dir(cx.tx, start, to)?;
    // A directory may become DST, and then DST/ as well.
    let becomes = from.len() == 1 && args.recursive() && from[0].is_dir();
    if into_dir.is_none() && !becomes && (from.len() > 1 || to.path.ends_with(b"/")) {
        return Err(Error::NotDirectory(to.to_string()).into());
    }
    let (mut reports, mut refused) = (Vec::new(), Vec::new());
    for source in from {
        match copy_one(cx.tx, args, source, start, to, into_dir, &options) {
            Ok(report) => reports.push(report),
            Err(error) if is_about_source(&error) => refused.push(error),
            Err(error) => return Err(error),
        }
    }
    if reports.is_empty() && !refused.is_empty() {
        return Err(refused.swap_remove(0));
    }
    refused.iter().for_each(|e| cx.fail(message(e), exit::code_of(e)));
    for failure in reports.iter().flat_map(|r| &r.failures) {
        cx.fail(format!("{}: {}", failure.path.display(), failure.reason), exit::FAILED);
    }
    if args.stats {
        let all = reports.iter().map(|r| r.workspaces).reduce(PoolStats::and_then).unwrap_or_default();
        cx.print(shown_workspaces(&all));
    }
    Ok(())
}

/// A source that cannot be read, or an option that it needs: the others still go.
fn is_about_source(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<Error>(),
        Some(Error::Io { .. } | Error::Invalid(_) | Error::IsDirectory(_))
    ) && error.downcast_ref::<SourceError>().is_some()
}

/// Marks an error as one of a source.
#[derive(Debug)]
struct SourceError(String);

impl std::fmt::Display for SourceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn options<'a>(
    args: &Args,
    stop: &'a std::sync::atomic::AtomicBool,
    tell: &'a dyn Fn(&Report),
) -> Result<import::Options<'a>> {
    let epoch = crate::clock::source_date_epoch()?;
    Ok(import::Options {
        preserve: Preserve {
            owner: args.preserve(),
            times: args.preserve(),
            xattrs: args.archive,
            links: args.archive,
        },
        compression: CompressionPolicy { request: args.compress, build_default: None, force: false },
        workers: workers(),
        sparse: if epoch.is_some() { Sparse::Always } else { Sparse::Auto },
        clamp: epoch,
        exclude: Vec::new(),
        cancel: Some(stop),
        progress: Some(tell),
    })
}

/// The directory that `to` is, if it is one.
fn existing_dir(tx: &Transaction<'_>, start: Place, to: &Address) -> Result<Option<Place>> {
    match resolve(tx, start, &to.path, true) {
        Ok(place) => {
            let is_dir = FileType::from_mode(inode(tx, place)?.mode.get()) == Some(FileType::DIR);
            Ok(is_dir.then_some(place))
        }
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(to.about(error.into())),
    }
}

fn copy_one(
    tx: &mut Transaction<'_>,
    args: &Args,
    source: &Path,
    start: Place,
    to: &Address,
    into_dir: Option<Place>,
    options: &import::Options<'_>,
) -> Result<Report> {
    let shown = source.display().to_string();
    let follow = !args.archive && !args.recursive();
    let meta = if follow { std::fs::metadata(source) } else { std::fs::symlink_metadata(source) };
    let meta =
        meta.map_err(|e| Error::Io { what: shown.clone(), source: e }).context(SourceError(shown.clone()))?;
    // SRC/. and SRC/.. mean what is in it.
    let contents_only = source.as_os_str().as_bytes().ends_with(b"/.") || source.file_name().is_none();
    if meta.is_dir() && !args.recursive() {
        let error = Error::Invalid(format!("{shown}: is a directory; copy it with -r"));
        return Err(anyhow::Error::new(error).context(SourceError(shown)));
    }
    match goal(tx, source, start, to, into_dir, meta.is_dir() && contents_only)? {
        Goal::Contents(dir) => {
            import::check_target(tx, dir, &to.to_string())?;
            Ok(import_tree(tx, source, Target::Into(dir), options)?)
        }
        Goal::Entry(dir, name) => {
            import::check_target(tx, dir, &to.to_string())?;
            replace_existing(tx, dir, &name, meta.is_dir(), source, to, options, follow)
        }
    }
}

fn goal(
    tx: &Transaction<'_>,
    source: &Path,
    start: Place,
    to: &Address,
    into_dir: Option<Place>,
    contents_only: bool,
) -> Result<Goal> {
    if let (Some(dir), true) = (into_dir, contents_only) {
        return Ok(Goal::Contents(dir));
    }
    if let Some(dir) = into_dir {
        let name = source.file_name().ok_or_else(|| usage(format!("{}: has no name", source.display())))?;
        return Ok(Goal::Entry(dir, name.as_bytes().to_vec()));
    }
    let (dir, name) = resolve_parent(tx, start, &to.path).map_err(|e| to.about(e.into()))?;
    Ok(Goal::Entry(dir, name.to_vec()))
}

/// Puts `source` into `dir` as `name`: a directory over a directory is merged, a file over a file replaces it.
#[expect(clippy::too_many_arguments, reason = "what a copy is made of")]
fn replace_existing(
    tx: &mut Transaction<'_>,
    dir: Place,
    name: &[u8],
    is_dir: bool,
    source: &Path,
    to: &Address,
    options: &import::Options<'_>,
    follow: bool,
) -> Result<Report> {
    if let Some(existing) = find_entry(tx, dir, name)? {
        let place = target(tx, dir, name, existing.location)?;
        let shown = format!("{to} ({})", crate::output::shown(name));
        match (existing.file_type == FileType::DIR, is_dir) {
            (true, true) => {
                check_changeable(tx, place, &shown, false)?;
                return Ok(import_tree(tx, source, Target::Into(place), options)?);
            }
            (true, false) => {
                return Err(Error::IsDirectory(format!("{shown}: cannot overwrite it with a file")).into());
            }
            (false, true) => {
                return Err(
                    Error::NotDirectory(format!("{shown}: cannot overwrite it with a directory")).into()
                );
            }
            (false, false) => {
                check_changeable(tx, place, &shown, true)?;
                // A file gets new contents; anything else gives way.
                let both_files = existing.file_type == FileType::REG_FILE && is_file(source, follow);
                if !both_files {
                    unlink_checked(tx, dir, name, place, &shown)?;
                }
            }
        }
    }
    Ok(import_entry(tx, source, dir, name, follow, options)?)
}

fn is_file(path: &Path, follow: bool) -> bool {
    let meta = if follow { std::fs::metadata(path) } else { std::fs::symlink_metadata(path) };
    meta.is_ok_and(|m| m.is_file())
}
