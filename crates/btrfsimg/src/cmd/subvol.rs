//! `subvol`: subvolumes, as `btrfs subvolume` has them.

mod create;
mod default;
mod delete;
mod list;
mod show;
mod snapshot;
mod sync;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Items, Place};
use btrfsimg_ondisk::Uuid;

use crate::address::Address;
use crate::edit::{self, Edit};
use crate::output::Ui;

/// Make, snapshot, delete and list subvolumes
#[derive(clap::Args, Debug)]
#[command(
    visible_alias = "subvolume",
    after_help = "\
Examples:
  btrfsimg subvol create out.img:/data
  btrfsimg subvol snapshot -r out.img:/data out.img:/data.1
  btrfsimg subvol delete out.img:/data.1
  btrfsimg subvol list out.img"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: SubvolCommand,
}

#[derive(clap::Subcommand, Debug)]
enum SubvolCommand {
    Create(create::Args),
    Snapshot(snapshot::Args),
    Delete(delete::Args),
    List(list::Args),
    Show(show::Args),
    GetDefault(default::GetArgs),
    SetDefault(default::SetArgs),
    Sync(sync::Args),
}

impl Args {
    /// What changes an image.
    pub(crate) fn edit(&self) -> Option<&dyn Edit> {
        match &self.command {
            SubvolCommand::Create(args) => Some(args),
            SubvolCommand::Snapshot(args) => Some(args),
            SubvolCommand::Delete(args) => Some(args),
            SubvolCommand::SetDefault(args) => Some(args),
            SubvolCommand::Sync(args) => Some(args),
            SubvolCommand::List(_) | SubvolCommand::Show(_) | SubvolCommand::GetDefault(_) => None,
        }
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    match &args.command {
        SubvolCommand::List(args) => list::run(args, ui),
        SubvolCommand::Show(args) => show::run(args, ui),
        SubvolCommand::GetDefault(args) => default::get(args, ui),
        // They were edits.
        SubvolCommand::Create(_)
        | SubvolCommand::Snapshot(_)
        | SubvolCommand::Delete(_)
        | SubvolCommand::SetDefault(_)
        | SubvolCommand::Sync(_) => Err(edit::not_run()),
    }
}

/// The id of the subvolume whose root directory `place` is.
fn subvolume_at(items: &impl Items, place: Place, address: &Address) -> Result<u64> {
    if place != Place::root(place.tree) || btrfsimg_fs::lookup::subvolume(items, place.tree)?.is_none() {
        return Err(Error::Invalid(format!("{address}: not a subvolume")).into());
    }
    Ok(place.tree)
}

/// What is said where there is no such subvolume.
fn no_subvolume(address: &Address, what: &str) -> Error {
    let image = address.image.display();
    Error::Invalid(format!("{image}: no {what}; 'btrfsimg subvol list {image}' shows those that there are"))
}

/// A UUID, unless there is none.
fn uuid_of(bytes: [u8; 16]) -> Option<String> {
    (bytes != [0; 16]).then(|| Uuid::from_bytes(bytes).to_string())
}
