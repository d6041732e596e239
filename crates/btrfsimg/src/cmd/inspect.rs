//! `inspect`: the structures of an image, as they are.

mod compression;
mod superblock;
mod tree;

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

use crate::address::ImageArgs;
use crate::exit::usage;
use crate::output::Ui;

/// Show the structures of an image, damaged ones too
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg inspect super out.img
  btrfsimg inspect tree -t fs out.img
  btrfsimg inspect compression out.img")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: InspectCommand,
}

#[derive(clap::Subcommand, Debug)]
enum InspectCommand {
    Super(superblock::Args),
    Tree(tree::Args),
    Compression(compression::Args),
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    match &args.command {
        InspectCommand::Super(args) => superblock::run(args, ui),
        InspectCommand::Tree(args) => tree::run(args, ui),
        InspectCommand::Compression(args) => compression::run(args, ui),
    }
}

/// The image that these commands look at: one word, or `-i`.
fn image_of<'a>(image: &'a ImageArgs, word: Option<&'a OsString>) -> Result<&'a Path> {
    image.image.as_deref().or_else(|| word.map(Path::new)).ok_or_else(|| usage("no image given"))
}
