//! The subcommands, a file each. A new one is a file, a line in [`Command`], and a line in [`Command::run`].

mod cat;
mod cp;
mod inspect;
mod ls;
mod prop;
mod stat;

use anyhow::Result;

use crate::output::Ui;

/// What to do.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    Cp(cp::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Prop(prop::Args),
    Inspect(inspect::Args),
}

impl Command {
    /// Does it. Failures that it went on behind are in `ui`.
    pub(crate) fn run(self, ui: &Ui) -> Result<()> {
        match self {
            Command::Cp(args) => cp::run(&args, ui),
            Command::Ls(args) => ls::run(&args, ui),
            Command::Cat(args) => cat::run(&args, ui),
            Command::Stat(args) => stat::run(&args, ui),
            Command::Prop(args) => prop::run(&args, ui),
            Command::Inspect(args) => inspect::run(&args, ui),
        }
    }
}

/// Threads that decode.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
