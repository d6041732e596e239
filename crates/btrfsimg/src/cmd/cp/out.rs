//! From an image to the host.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use btrfsimg_fs::export::{self, Destination, LeftOut, Links, Options, Report};
use btrfsimg_fs::{Error, Existing};
use btrfsimg_ondisk::FileType;

use super::Args;
use super::made::Made;
use crate::address::{Address, Opened};
use crate::cmd::report::{counted, shown_counts};
use crate::cmd::{cat, workers};
use crate::exit::usage;
use crate::output::{Ui, stdout};

/// Copies `from`, at least one address, to the path `to` of the host; `-` is standard output.
pub(super) fn copy_out(args: &Args, ui: &Ui, from: &[Address], to: &Path) -> Result<()> {
    if to == Path::new("-") {
        return to_stdout(args, ui, from);
    }
    if args.destination.is_directory() && !to.is_dir() {
        return Err(Error::NotDirectory(to.display().to_string()).into());
    }
    let to_is_dir = to.is_dir() && !args.destination.is_name();
    if from.len() > 1 && !to_is_dir {
        return Err(usage(format!("{}: not a directory, and there are several sources", to.display())));
    }
    let (left_out, mut made) = (LeftOutCounts::default(), Made::default());
    let through = if to_is_dir { Through::find(from, to) } else { Through::default() };
    let mut links: (Option<PathBuf>, Links) = Default::default();
    let open = |image: &Path| match args.salvage {
        true => args.image.salvage(image, ui, |fault| match fault {
            Error::Unsupported(_) => crate::exit::UNSUPPORTED,
            _ => crate::exit::FAILED,
        }),
        false => args.image.open(image, ui),
    };
    args.image.for_each_opened(from, ui, open, |image, address| {
        let target = Target::new(image, address, to, to_is_dir, &through, args)?;
        let name = source_name(&address.path).map(OsStr::as_bytes);
        if !target.is_dir {
            let shown = target.path().display().to_string();
            made.check(name, &shown, args.existing())?;
        }
        // What tells the files of one image apart says nothing of another's.
        if made.note(name, || target.path().symlink_metadata().is_ok())
            || links.0.as_ref() != Some(&address.image)
        {
            links = (Some(address.image.clone()), Links::default());
        }
        let report = |report: Report<'_>| match report {
            Report::Copying { path } => {
                // Whoever reads no more does not need the line.
                let rest = path.strip_prefix(address.path.as_slice()).unwrap_or_default();
                let (from, to) = (in_image(address, path), target.below(rest));
                let _ = writeln!(stdout(), "'{from}' -> '{}'", to.display());
            }
            Report::Failed { path, error } if args.salvage => {
                ui.fail(&format!("{}: {error}", in_image(address, path)), crate::exit::FAILED);
            }
            Report::Failed { path, error } => ui.fail_at(&in_image(address, path), &error),
            Report::Damaged { path, loss } => {
                let what = if loss.kept { "copied as found" } else { "left as zeros" };
                let Range { start, end } = loss.range;
                let message = format!("bytes {start} to {end} {what}: {}", loss.error);
                ui.fail(&format!("{}: {message}", in_image(address, path)), crate::exit::FAILED);
            }
            Report::Nameless { path, place, is_home } => {
                let inode = format!("inode {} of subvolume {}", place.ino, place.tree);
                let message = match is_home {
                    true => format!(
                        "{}: no name leads to {inode} any more; copied to where it says it was",
                        in_image(address, path)
                    ),
                    false => format!(
                        "{}: {inode} has no name any more; copied to here",
                        target.on_host(address, path)
                    ),
                };
                ui.fail(&message, crate::exit::FAILED);
            }
            Report::InPart { path, error } => {
                let message = format!("{}: {error}; copied as far as it is known", in_image(address, path));
                ui.fail(&message, crate::exit::FAILED);
            }
            Report::Block { error } => {
                let message = format!("{}: {error}; read as it is", address.image.display());
                ui.fail(&message, crate::exit::FAILED);
            }
            Report::LeftOut { path, what, reason } => {
                left_out.add(ui, what, &format!("{}: {reason}", in_image(address, path)));
            }
        };
        let copied = export::copy_out(
            &image.fs,
            target.place,
            &address.path,
            target.destination(),
            options(args, ui.verbosity() > 0, &address.image),
            &mut links.1,
            &report,
        )?;
        if args.salvage {
            let export::Summary { directories, files, others, failed, damaged, .. } = copied;
            let copied = shown_counts(files, directories, others);
            let failures = counted(failed, "failure", "failures");
            ui.note(&format!(
                "{address}: {copied} copied; {damaged} of them damaged or without a name; {failures}"
            ));
        }
        Ok(())
    })?;
    left_out.sum_up(ui);
    Ok(())
}

fn options(args: &Args, list: bool, image: &Path) -> Options {
    let root_keeps_all = args.archive && rustix::process::geteuid().is_root();
    let preserve = args.keeps();
    Options {
        recursive: args.recursive(),
        preserve,
        devices: args.devices || root_keeps_all,
        setuid: args.setuid || (root_keeps_all && preserve.keeps_mode() && preserve.owner),
        salvage: args.salvage,
        existing: args.existing(),
        list,
        workers: workers(),
        image: std::fs::metadata(image).ok().map(|m| (m.dev(), m.ino())),
    }
}

fn to_stdout(args: &Args, ui: &Ui, from: &[Address]) -> Result<()> {
    let mut out = stdout();
    args.image.for_each(from, ui, |image, address| {
        let info = image.fs.info(image.resolve(&address.path, true)?)?;
        cat::write_file(&image.fs, &info, &mut out)?;
        Ok(())
    })?;
    out.flush()?;
    Ok(())
}

/// A path of the image for messages, given as the export gives it.
fn in_image(address: &Address, path: &[u8]) -> String {
    Address { image: address.image.clone(), path: path.to_vec() }.to_string()
}

/// Where symlinks lead that stand in the directory that is copied to, under the names of what comes: found before anything is
/// copied, so that none of them is from an image.
#[derive(Default)]
struct Through(HashMap<OsString, Option<PathBuf>>);

impl Through {
    fn find(from: &[Address], dir: &Path) -> Through {
        let names = from.iter().filter_map(|address| source_name(&address.path));
        let links = names.filter(|name| dir.join(name).is_symlink());
        Through(links.map(|name| (name.to_owned(), dir.join(name).canonicalize().ok())).collect())
    }
}

/// What is copied, and where exactly, by the rules of docker cp.
struct Target {
    place: btrfsimg_fs::lookup::Place,
    is_dir: bool,
    dir: PathBuf,
    /// `None`: what is in the source goes into `dir`.
    name: Option<OsString>,
}

impl Target {
    fn new(
        image: &Opened,
        address: &Address,
        to: &Path,
        to_is_dir: bool,
        through: &Through,
        args: &Args,
    ) -> Result<Target> {
        let place = image.resolve(&address.path, args.follows())?;
        let info = match args.salvage {
            true => image.fs.salvage_info(place, FileType::DIR).info,
            false => image.fs.info(place)?,
        };
        let (is_dir, is_file) = (info.is_dir(), info.file_type() == Some(FileType::REG_FILE));
        let follows = is_file && args.existing() != Existing::Remove;
        if is_dir && !args.recursive() {
            return Err(Error::Invalid(format!("{address}: is a directory; copy it with -r")).into());
        }
        let target = |dir: &Path, name: Option<&OsStr>| Target {
            place,
            is_dir,
            dir: if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir.to_owned() },
            name: name.map(OsStr::to_owned),
        };
        // A file is written through a symlink, as by cp(1).
        let file = |path: &Path, real: Option<&Path>| match (real, real.and_then(Path::file_name)) {
            (None, _) => bail!("{}: not writing through a dangling symlink; remove it first", path.display()),
            (Some(real), Some(name)) => Ok(target(real.parent().unwrap_or(real), Some(name))),
            (Some(_), None) => bail!("{}: is a directory: cannot overwrite it with a file", path.display()),
        };
        if to_is_dir {
            let name = source_name(&address.path);
            return match name.and_then(|name| through.0.get(name)).filter(|_| follows) {
                Some(real) => file(&to.join(name.unwrap_or_default()), real.as_deref()),
                None => Ok(target(to, name)),
            };
        }
        let to_text = to.as_os_str().as_bytes();
        // With -T: what is in a directory goes into one that is there.
        match (to.is_dir(), is_dir) {
            (true, true) => return Ok(target(to, None)),
            (true, false) => bail!("{}: is a directory: cannot overwrite it with a file", to.display()),
            (false, _) => {}
        }
        if to.exists() && is_dir {
            bail!("{}: not a directory, so a directory cannot go there", to.display());
        }
        if !is_dir && to_text.ends_with(b"/") {
            bail!("{}: no such directory", to.display());
        }
        if follows && to.is_symlink() {
            return file(to, to.canonicalize().ok().as_deref());
        }
        match (to.parent(), to.file_name()) {
            (Some(dir), Some(name)) => Ok(target(dir, Some(name))),
            _ => bail!("{}: cannot be the name of a copy", to.display()),
        }
    }

    /// Where on the host the copy of `path` is, which the export gives as one of the image.
    fn on_host(&self, address: &Address, path: &[u8]) -> String {
        let below = path.strip_prefix(&address.path[..]).unwrap_or(path);
        let below = below.iter().position(|&b| b != b'/').map_or(&[][..], |first| &below[first..]);
        let top = self.name.as_ref().map_or(self.dir.clone(), |name| self.dir.join(name));
        top.join(OsStr::from_bytes(below)).display().to_string()
    }

    fn destination(&self) -> Destination<'_> {
        match &self.name {
            Some(name) => Destination::Entry { dir: &self.dir, name },
            None => Destination::Contents { dir: &self.dir },
        }
    }

    fn path(&self) -> PathBuf {
        self.name.as_ref().map_or_else(|| self.dir.clone(), |name| self.dir.join(name))
    }

    /// Where what is below the source goes, by its path from there.
    fn below(&self, rest: &[u8]) -> PathBuf {
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        if rest.is_empty() { self.path() } else { self.path().join(OsStr::from_bytes(rest)) }
    }
}

/// The name that a copy of `path` has in a directory; none for `/` and `…/.`, of which the contents are copied.
fn source_name(path: &[u8]) -> Option<&OsStr> {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
    let name = path[..end].rsplit(|&b| b == b'/').next().unwrap_or_default();
    (!matches!(name, b"" | b"." | b"..")).then(|| OsStr::from_bytes(name))
}

/// What was left out, by kind: the first of each is printed, and at the end how many more there were.
#[derive(Default)]
struct LeftOutCounts {
    counts: Mutex<HashMap<LeftOut, u64>>,
}

impl LeftOutCounts {
    fn add(&self, ui: &Ui, what: LeftOut, message: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(what).or_default();
        *count += 1;
        if *count > 1 && ui.verbosity() == 0 {
            return;
        }
        let message = format!("{message} ({})", describe(what));
        match what {
            LeftOut::BtrfsXattr => ui.note(&message),
            // As with cp(1): what could not be made, and rights that were not kept.
            LeftOut::Device | LeftOut::Acl => ui.fail(&message, crate::exit::FAILED),
            LeftOut::Owner | LeftOut::Xattr | LeftOut::Setuid => ui.warn(&message),
        }
    }

    fn sum_up(self, ui: &Ui) {
        let counts = self.counts.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut more: Vec<_> = counts.into_iter().filter(|(_, n)| *n > 1).collect();
        more.sort_by_key(|(what, _)| describe(*what));
        for (what, n) in more.into_iter().filter(|_| ui.verbosity() == 0) {
            ui.note(&format!("{} more: {} (-v shows all)", n - 1, describe(what)));
        }
    }
}

fn describe(what: LeftOut) -> &'static str {
    match what {
        LeftOut::Owner => "owner not kept",
        LeftOut::Xattr => "xattr not kept",
        LeftOut::BtrfsXattr => "a property of btrfs, not kept outside",
        LeftOut::Acl => "ACL not kept; the mode gives nobody more than it did",
        LeftOut::Device => "device not made; it takes -a as root, or --devices",
        LeftOut::Setuid => "setuid and setgid cleared; to keep them takes -a as root, or --setuid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_copies() {
        let cases: [(&[u8], Option<&str>); 7] = [
            (b"/a/b", Some("b")),
            (b"/a/b/", Some("b")),
            (b"b", Some("b")),
            (b"/", None),
            (b"", None),
            (b"/a/.", None),
            (b"/a/..", None),
        ];
        for (path, name) in cases {
            assert_eq!(source_name(path), name.map(OsStr::new));
        }
    }
}
