//! What was typed: the options that every subcommand has, and which subcommand it is.

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{ArgAction, ArgMatches, CommandFactory as _, FromArgMatches as _, Parser};

use crate::cmd::Command;
use crate::output::{Json, Ui};

/// Make, fill, read, change and verify btrfs images, without root and without mounting them.
///
/// Paths in an image are written IMAGE:/path, as in 'out.img:/etc/fstab'. A word is such an address when the part
/// before its first ':/' is a regular file or a block device; './a:/b' is always a path of the host.
#[derive(Parser, Debug)]
#[command(name = "btrfsimg", version, long_version = LONG_VERSION.as_str(), after_help = EXIT_CODES,
          subcommand_required = true, args_override_self = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What `--version` prints: the codecs too, since another version may compress to other bytes. `-V` prints one line.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut text = env!("CARGO_PKG_VERSION").to_owned();
    for (codec, version) in btrfsimg_compress::codec_versions() {
        text.push_str(&format!("\n{codec} {version}"));
    }
    text
});

/// Options of every subcommand.
#[derive(clap::Args, Debug, Clone, Copy)]
pub(crate) struct Global {
    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = 1000)]
    pub(crate) quiet: bool,
    /// Say more; twice says more yet
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 1000)]
    pub(crate) verbose: u8,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 failed, or some of it failed; 2 wrong usage; 3 the image uses a feature that is not \
supported; 4 the image is corrupt; 5 no space in the image.

Examples:
  btrfsimg mkfs out.img -r rootfs --compress zstd:3
  btrfsimg verify --data out.img
  btrfsimg ls -l out.img:/etc
  btrfsimg cat out.img:/etc/os-release
  btrfsimg cp -a out.img:/home ./home
  btrfsimg prop get out.img:/data compression";

/// Runs what the command line asks for, and gives the exit code.
pub(crate) fn run() -> ExitCode {
    let (cli, json) = match parse() {
        Ok(parsed) => parsed,
        Err(e) => {
            // Nothing can be done when even the help cannot be printed.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { crate::exit::USAGE } else { 0 });
        }
    };
    let ui = Ui::new(cli.global, json);
    let result = cli.command.run(&ui);
    ui.finish(result)
}

fn parse() -> Result<(Cli, Json), clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    let cli = Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut Cli::command()))?;
    Ok((cli, json_of(&matches)))
}

/// The JSON that the subcommand was asked for.
fn json_of(matches: &ArgMatches) -> Json {
    let mut leaf = matches;
    while let Some((_, below)) = leaf.subcommand() {
        leaf = below;
    }
    let is_set = |name| matches!(leaf.try_get_one::<bool>(name), Ok(Some(true)));
    match (is_set("json"), is_set("jsonl")) {
        (_, true) => Json::Lines,
        (true, false) => Json::Document,
        (false, false) => Json::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }
}
