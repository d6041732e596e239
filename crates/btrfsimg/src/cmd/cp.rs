//! `cp`: between an image and the host, either way.

use std::ffi::OsString;

use anyhow::{Result, bail};

use crate::address::{ImageArgs, Word, no_image_in};
use crate::exit::usage;
use crate::output::Ui;

/// Copy files into or out of an image
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// What to copy, and where to
    #[arg(required = true, num_args = 2.., value_name = "SRC... DST")]
    words: Vec<OsString>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let _ = ui;
    match args.words.iter().map(|w| args.image.word(w)).any(|w| matches!(w, Word::Image(_))) {
        true => bail!("cp is not here yet"),
        false if args.words.is_empty() => Err(usage("no files given")),
        false => Err(no_image_in(&args.words)),
    }
}
