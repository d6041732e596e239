//! The driver: takes inputs of a corpus, mutates them, runs a target, and makes what breaks it small.

use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::Target;
use super::mutate::mutate;
use crate::rng::Rng;

/// How long, and how much, a run may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The whole run.
    pub duration: Duration,
    /// One input: longer is a hang.
    pub input: Duration,
    /// Longest input, in bytes.
    pub input_len: usize,
}

impl Limits {
    /// A run of so many seconds.
    pub fn seconds(seconds: u64) -> Limits {
        Limits { duration: Duration::from_secs(seconds), input: Duration::from_secs(10), input_len: 16384 }
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Inputs that ran.
    pub inputs: u64,
    /// The longest that one of them took.
    pub slowest: Duration,
}

/// An input that breaks a target.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The input, made smaller as long as it breaks it.
    pub input: Vec<u8>,
    /// What the panic said, or how long it took.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; input of {} bytes: ", self.reason, self.input.len())?;
        self.input.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::error::Error for Failure {}

/// Runs `target` on the corpus in `dir` and on mutations of it until the time is over; always the same ones for a seed,
/// as far as they get.
///
/// # Errors
/// A [`Failure`] that says how to break the target; an absent or empty corpus.
pub fn run(target: &Target, dir: &Path, seed: u64, limits: &Limits) -> Result<Outcome> {
    let corpus = read_corpus(dir)?;
    let started = Instant::now();
    let mut rng = Rng::new(seed);
    let mut outcome = Outcome { inputs: 0, slowest: Duration::ZERO };
    for input in &corpus {
        attempt(target, input, limits, &mut outcome)?;
    }
    while started.elapsed() < limits.duration {
        let mut input = corpus[rng.index(corpus.len())].clone();
        let other = &corpus[rng.index(corpus.len())];
        mutate(&mut input, other, limits.input_len, &mut rng);
        attempt(target, &input, limits, &mut outcome)?;
    }
    Ok(outcome)
}

/// Runs `target` on one input.
///
/// # Errors
/// Why it breaks the target.
pub fn replay(target: &Target, input: &[u8], limits: &Limits) -> Result<Duration, Failure> {
    let started = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let took = started.elapsed();
    let fail = |reason| Err(Failure { input: input.to_vec(), reason });
    match result {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            fail(format!("{}: panicked: {text}", target.name))
        }
        Ok(()) if took > limits.input => fail(format!("{}: took {took:.1?}", target.name)),
        Ok(()) => Ok(took),
    }
}

fn attempt(target: &Target, input: &[u8], limits: &Limits, outcome: &mut Outcome) -> Result<(), Failure> {
    outcome.inputs += 1;
    match replay(target, input, limits) {
        Ok(took) => {
            outcome.slowest = outcome.slowest.max(took);
            Ok(())
        }
        Err(failure) => Err(smaller(target, failure, limits)),
    }
}

/// The failure with as many parts of its input taken away as can be, in a limited number of tries.
fn smaller(target: &Target, mut failure: Failure, limits: &Limits) -> Failure {
    let mut tries = 200;
    let mut step = failure.input.len() / 2;
    while step > 0 {
        let mut at = 0;
        while at < failure.input.len() && tries > 0 {
            tries -= 1;
            let mut shorter = failure.input.clone();
            shorter.drain(at..(at + step).min(shorter.len()));
            match replay(target, &shorter, limits) {
                Err(same) => failure = same,
                Ok(_) => at += step,
            }
        }
        step /= 2;
    }
    failure
}

fn read_corpus(dir: &Path) -> Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("corpus {}", dir.display()))? {
        paths.push(entry?.path());
    }
    // The order of a directory is not the same everywhere.
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(fs::read).collect::<Result<_, _>>()?;
    ensure!(!inputs.is_empty(), "{}: no inputs", dir.display());
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaks_on_ab(bytes: &[u8]) {
        assert!(!bytes.windows(2).any(|w| w == b"ab"), "has it");
    }

    #[test]
    fn a_fault_is_found_and_made_small() {
        let target = Target { name: "toy", about: "", run: breaks_on_ab };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("1"), b"a xxxxxxxxxxxxxxxxxxxxxxxxxx c").unwrap();
        fs::write(dir.path().join("2"), b"b").unwrap();
        let error = run(&target, dir.path(), 1, &Limits::seconds(20)).unwrap_err();
        let failure = error.downcast::<Failure>().unwrap();
        assert_eq!(failure.input, b"ab");
        assert!(failure.reason.contains("has it"), "{failure}");
        fs::remove_file(dir.path().join("1")).unwrap();
        fs::remove_file(dir.path().join("2")).unwrap();
        assert!(run(&target, dir.path(), 1, &Limits::seconds(1)).is_err());
    }
}
