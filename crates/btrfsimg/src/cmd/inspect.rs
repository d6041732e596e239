//! `inspect`: the structures of an image, as they are.

mod compression;
mod superblock;
mod tree;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use crate::address::{ImageArgs, image_alone};
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
fn image_of(image: &ImageArgs, word: Option<&OsString>) -> Result<PathBuf> {
    let word = image.image.as_ref().map(|path| path.as_os_str()).or(word.map(OsString::as_os_str));
    image_alone(word.ok_or_else(|| usage("no image given"))?)
}
