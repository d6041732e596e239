//! `inspect`: the structures of an image, as they are.

use anyhow::Result;

use crate::output::Ui;

/// Show the structures of an image
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: InspectCommand,
}

#[derive(clap::Subcommand, Debug)]
enum InspectCommand {
    Super,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let _ = (args, ui);
    anyhow::bail!("inspect is not here yet")
}
