//! What a cp with several sources has made already.

use std::collections::HashSet;

use anyhow::{Context as _, Result};
use btrfsimg_fs::{Error, Existing};

use crate::edit::EditCx;
use crate::exit;
use crate::output::message;

/// The names in DST to which sources went, and what did not go.
#[derive(Default)]
pub(super) struct Made {
    names: HashSet<Vec<u8>>,
    /// What is in one went into DST itself.
    contents: bool,
    copied: usize,
    refused: Vec<anyhow::Error>,
}

impl Made {
    /// Refuses a file over what this command has made, as cp(1) does: one of the two would be lost.
    pub(super) fn check(&self, name: Option<&[u8]>, to: &str, existing: Existing) -> Result<()> {
        if matches!(existing, Existing::Replace | Existing::Remove)
            && name.is_some_and(|name| self.names.contains(name))
        {
            return Err(Error::Invalid(format!("not copied over {to}, which was just made")).into());
        }
        Ok(())
    }

    /// Notes that a source goes to `name`, or what is in it into DST. Says whether it may meet what was copied before: then
    /// that is no more what later names could be linked to.
    pub(super) fn note(&mut self, name: Option<&[u8]>, is_there: impl FnOnce() -> bool) -> bool {
        match name {
            Some(name) => !self.names.insert(name.to_vec()) || (self.contents && is_there()),
            None => std::mem::replace(&mut self.contents, true) || !self.names.is_empty(),
        }
    }

    /// Keeps what was refused of one source; what ends the command is passed on.
    pub(super) fn outcome<T>(&mut self, copied: Result<T>) -> Result<Option<T>> {
        match copied {
            Ok(copied) => {
                self.copied += 1;
                Ok(Some(copied))
            }
            Err(error) if error.downcast_ref::<OneSource>().is_some() => {
                self.refused.push(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Tells what was refused. Where nothing was copied, that is an error.
    pub(super) fn tell(mut self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        if self.copied == 0 && !self.refused.is_empty() {
            return Err(self.refused.swap_remove(0));
        }
        self.refused.iter().for_each(|e| cx.fail(message(e), exit::code_of(e)));
        Ok(())
    }
}

/// Marks an error as one of a source, or of what stands where that goes: the others still go.
#[derive(Debug)]
pub(super) struct OneSource(pub(super) String);

impl std::fmt::Display for OneSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Marks what is refused of one source before anything is changed, with the place that it is about.
pub(super) fn of_one<T>(result: Result<T>, place: impl ToString) -> Result<T> {
    match result {
        Err(error) => match error.downcast_ref() {
            Some(Error::Invalid(_) | Error::IsDirectory(_) | Error::NotDirectory(_)) => {
                Err(error).context(OneSource(place.to_string()))
            }
            _ => Err(error),
        },
        ok => ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_meets_what() {
        let mut made = Made::default();
        let mut note = |name: Option<&str>, is_there| made.note(name.map(str::as_bytes), || is_there);
        let met = [("a", true), ("b", false), ("a", false)].map(|(name, there)| note(Some(name), there));
        assert_eq!(met, [false, false, true]);
        assert!(note(None, false));
        assert_eq!([("c", false), ("d", true)].map(|(name, there)| note(Some(name), there)), [false, true]);
        assert!(!Made::default().note(None, || true));
        for (name, existing, is_err) in [("a", Existing::Replace, true), ("a", Existing::Keep, false)] {
            assert_eq!(made.check(Some(name.as_bytes()), "y", existing).is_err(), is_err);
        }
        assert!(made.check(Some(b"e"), "y", Existing::Replace).is_ok());
    }
}
