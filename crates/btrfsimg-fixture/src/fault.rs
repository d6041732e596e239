//! What a fault is.

use std::sync::Arc;

use btrfsimg_fs::device::Device;
use btrfsimg_ondisk::{Rule, Severity};

use crate::error::{Error, Found, Result};
use crate::image::{Change, Image};
use crate::place::Target;

/// What a kernel does with the image, mounted read-only and read whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// It does not mount it, or fails to read some of it.
    Refuses,
    /// It reads all of it.
    Reads,
    /// It lists a directory without end.
    Loops,
}

/// A way to break an image.
#[derive(Debug)]
pub struct Fault {
    /// Its name: the structure first, then what is wrong with it.
    pub name: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
    /// Rules that name the same fault from another side; a verifier may name these instead.
    pub twins: &'static [&'static str],
    /// What Linux 6.18 does with the image.
    pub kernel: Kernel,
    /// Whether `btrfs check` of btrfs-progs 6.2 calls it an error.
    pub check: bool,
    /// What it does, in a sentence without a subject.
    pub does: &'static str,
    /// What of an image it needs.
    pub needs: &'static str,
    pub(crate) apply: fn(&mut Image, &Target) -> Found<()>,
}

impl Fault {
    /// How grave a breach of its rule is.
    pub fn severity(&self) -> Severity {
        Rule(self.rule).severity()
    }

    /// Whether `rule` names this fault.
    pub fn is_named_by(&self, rule: Rule) -> bool {
        rule.0 == self.rule || self.twins.contains(&rule.0)
    }

    /// Breaks the image on `device` at `target`; says what was changed.
    ///
    /// # Errors
    /// `NoPlace` when the image or the target lacks what the fault needs; nothing is written then.
    pub fn apply(&self, device: Arc<dyn Device>, target: &Target) -> Result<Vec<Change>> {
        let mut image = Image::open(device)?;
        match (self.apply)(&mut image, target)? {
            Some(()) => Ok(image.write()?),
            None => Err(Error::NoPlace { fault: self.name, needs: self.needs }),
        }
    }
}
