//! `xattr`: extended attributes, of any namespace, values of any bytes.

mod change;
mod show;
mod value;

use anyhow::Result;

use crate::edit::{self, Edit};
use crate::output::Ui;

/// Show and change extended attributes
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg xattr list out.img:/bin/ping
  btrfsimg xattr get out.img:/bin/ping security.capability
  btrfsimg xattr set out.img:/data user.origin 'build 7'
  btrfsimg xattr rm out.img:/data user.origin")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: XattrCommand,
}

#[derive(clap::Subcommand, Debug)]
enum XattrCommand {
    Get(show::GetArgs),
    List(show::ListArgs),
    Set(change::SetArgs),
    Rm(change::RmArgs),
}

impl Args {
    /// What changes an image.
    pub(crate) fn edit(&self) -> Option<&dyn Edit> {
        match &self.command {
            XattrCommand::Set(args) => Some(args),
            XattrCommand::Rm(args) => Some(args),
            XattrCommand::Get(_) | XattrCommand::List(_) => None,
        }
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    match &args.command {
        XattrCommand::Get(args) => show::get(args, ui),
        XattrCommand::List(args) => show::list(args, ui),
        XattrCommand::Set(args) => edit::run(args, ui),
        XattrCommand::Rm(args) => edit::run(args, ui),
    }
}
