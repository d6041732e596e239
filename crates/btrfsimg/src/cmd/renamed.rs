//! [`ImageArgs`] with an option under another name, for commands that mean something else by the usual one.

use std::marker::PhantomData;

use crate::address::ImageArgs;

/// Which option is called otherwise.
pub(super) trait Rename {
    /// Renames it.
    fn rename(command: clap::Command) -> clap::Command;
}

/// The options, one renamed by `R`.
#[derive(Debug)]
pub(super) struct Renamed<R>(pub(super) ImageArgs, PhantomData<R>);

impl<R: Rename> clap::Args for Renamed<R> {
    fn augment_args(command: clap::Command) -> clap::Command {
        R::rename(ImageArgs::augment_args(command))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<R> clap::FromArgMatches for Renamed<R> {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        Ok(Renamed(ImageArgs::from_arg_matches(matches)?, PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}
