//! The subcommands, a file each. A new one is a file, a line in [`Command`], and a line in
//! [`Command::run`], or in [`Command::edit`] when it changes an image.

mod batch;
mod below;
mod cat;
mod chattr;
mod chmod;
mod chown;
mod cp;
mod defrag;
mod destination;
mod df;
mod du;
mod entries;
mod fixture;
mod inspect;
mod ln;
mod ls;
mod lsattr;
mod mkdir;
mod mkfs;
mod mknod;
mod mv;
mod open_file;
mod prop;
mod renamed;
mod report;
mod rm;
mod rmdir;
mod stat;
mod subvol;
mod touch;
mod trim;
mod truncate;
mod verify;
mod write;
mod xattr;

use anyhow::Result;

use crate::address::ImageArgs;
use crate::edit::{self, Edit};
use crate::output::Ui;

/// What to do.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    Mkfs(mkfs::Args),
    Cp(cp::Args),
    Defrag(defrag::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Du(du::Args),
    Df(df::Args),
    Mkdir(mkdir::Args),
    Rm(rm::Args),
    Rmdir(rmdir::Args),
    Truncate(truncate::Args),
    Write(write::Args),
    Mv(mv::Args),
    Ln(ln::Args),
    Touch(touch::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Chattr(chattr::Args),
    Lsattr(lsattr::Args),
    Mknod(mknod::Args),
    Xattr(xattr::Args),
    Prop(prop::Args),
    Batch(batch::Args),
    Subvol(subvol::Args),
    Trim(trim::Args),
    Inspect(inspect::Args),
    Verify(verify::Args),
    Fixture(fixture::Args),
}

impl Command {
    /// The change of an image that it is, its words read by its own options or those of a batch.
    pub(crate) fn edit(&self, batch: Option<&ImageArgs>) -> Option<&dyn Edit> {
        match self {
            Command::Cp(args) => args.goes_into_image(batch).then_some(args),
            Command::Mkdir(args) => Some(args),
            Command::Rm(args) => Some(args),
            Command::Rmdir(args) => Some(args),
            Command::Truncate(args) => Some(args),
            Command::Write(args) => Some(args),
            Command::Mv(args) => Some(args),
            Command::Ln(args) => Some(args),
            Command::Touch(args) => Some(args),
            Command::Chmod(args) => Some(args),
            Command::Chown(args) => Some(args),
            Command::Chattr(args) => Some(args),
            Command::Mknod(args) => Some(args),
            Command::Xattr(args) => args.edit(),
            Command::Prop(args) => args.edit(),
            Command::Subvol(args) => args.edit(),
            _ => None,
        }
    }

    /// Does it. Failures that it went on behind are in `ui`.
    pub(crate) fn run(self, ui: &Ui) -> Result<()> {
        if let Some(edit) = self.edit(None) {
            return edit::run(edit, ui);
        }
        match self {
            // They were edits.
            Command::Mkdir(_) | Command::Rm(_) | Command::Mv(_) | Command::Ln(_) | Command::Touch(_) => {
                Err(edit::not_run())
            }
            Command::Chmod(_) | Command::Chown(_) | Command::Chattr(_) => Err(edit::not_run()),
            Command::Mknod(_) | Command::Rmdir(_) => Err(edit::not_run()),
            Command::Truncate(_) | Command::Write(_) => Err(edit::not_run()),
            Command::Xattr(args) => xattr::run(&args, ui),
            Command::Mkfs(args) => mkfs::run(&args, ui),
            Command::Cp(args) => cp::run(&args, ui),
            Command::Defrag(args) => defrag::run(&args, ui),
            Command::Ls(args) => ls::run(&args, ui),
            Command::Cat(args) => cat::run(&args, ui),
            Command::Stat(args) => stat::run(&args, ui),
            Command::Du(args) => du::run(&args, ui),
            Command::Df(args) => df::run(&args, ui),
            Command::Lsattr(args) => lsattr::run(&args, ui),
            Command::Prop(args) => prop::run(&args, ui),
            Command::Batch(args) => batch::run(&args, ui),
            Command::Subvol(args) => subvol::run(&args, ui),
            Command::Trim(args) => trim::run(&args, ui),
            Command::Inspect(args) => inspect::run(&args, ui),
            Command::Verify(args) => verify::run(&args, ui),
            Command::Fixture(args) => fixture::run(&args, ui),
        }
    }
}

/// Threads that encode or decode.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
