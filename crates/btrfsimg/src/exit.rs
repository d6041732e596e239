//! Exit codes: a contract (DESIGN 7).

use std::io;

use btrfsimg_fs::Error;

/// All was done.
pub(crate) const OK: u8 = 0;
/// Failed, or some of it did.
pub(crate) const FAILED: u8 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: u8 = 2;
/// The image uses a feature that is not supported.
pub(crate) const UNSUPPORTED: u8 = 3;
/// The image is corrupt.
pub(crate) const CORRUPT: u8 = 4;
/// The image is full.
pub(crate) const NO_SPACE: u8 = 5;

/// A command line that parses and still makes no sense.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error that says how to write the command.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// An error whose exit code is known: one that was reported as a failure.
pub(crate) fn with_code(message: String, code: u8) -> anyhow::Error {
    Coded { message, code }.into()
}

#[derive(Debug)]
struct Coded {
    message: String,
    code: u8,
}

impl std::fmt::Display for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// The exit code of an error.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    if error.chain().any(|e| e.is::<Usage>()) {
        return USAGE;
    }
    if let Some(coded) = error.chain().find_map(|e| e.downcast_ref::<Coded>()) {
        return coded.code;
    }
    error.chain().find_map(|e| e.downcast_ref::<Error>()).map_or(FAILED, code_of_library)
}

/// The exit code of an error of the library.
pub(crate) fn code_of_library(error: &Error) -> u8 {
    match error {
        Error::Corrupt(_) => CORRUPT,
        Error::Unsupported(_) => UNSUPPORTED,
        Error::NoSpace { .. } => NO_SPACE,
        _ => FAILED,
    }
}

/// The code that stands for both: 5, 3, 4, 1 in this order. Wrong usage is found before anything is done.
pub(crate) fn combine(a: u8, b: u8) -> u8 {
    let rank = |code| match code {
        OK => 0,
        FAILED => 1,
        CORRUPT => 2,
        UNSUPPORTED => 3,
        NO_SPACE => 4,
        _ => 5,
    };
    if rank(a) >= rank(b) { a } else { b }
}

/// Whether the reader of our output went away, which is no failure of ours.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|e| {
        let io = match e.downcast_ref::<Error>() {
            Some(Error::Io { source, .. }) => Some(source),
            _ => e.downcast_ref::<io::Error>(),
        };
        io.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_several_hold_one_wins() {
        // DESIGN 7: 5, 3, 4, 1.
        for (a, b, both) in [(0, 1, 1), (1, 4, 4), (4, 3, 3), (3, 5, 5), (5, 1, 5), (0, 0, 0), (4, 1, 4)] {
            assert_eq!((combine(a, b), combine(b, a)), (both, both));
        }
    }

    #[test]
    fn errors_below_a_context_keep_their_code() {
        let error = anyhow::Error::new(Error::Unsupported("x".to_owned())).context("a.img");
        assert_eq!(code_of(&error), UNSUPPORTED);
        assert_eq!(code_of(&usage("x").context("y")), USAGE);
        let pipe = Error::io("standard output")(io::ErrorKind::BrokenPipe.into());
        assert!(is_broken_pipe(&anyhow::Error::new(pipe)));
    }
}
