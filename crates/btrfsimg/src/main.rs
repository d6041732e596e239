//! `btrfsimg`: make, fill, read, change and verify btrfs images without mounting them.
//!
//! Nothing but arguments → library → output. What was typed becomes what is meant in `address` and in each
//! subcommand's file under `cmd`; what is printed goes through `output`; what the process returns is `exit`.

mod address;
mod args;
mod clock;
mod cmd;
mod edit;
mod exit;
mod mode;
mod output;
mod size;

use std::process::ExitCode;

fn main() -> ExitCode {
    args::run()
}
