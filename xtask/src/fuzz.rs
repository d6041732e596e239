//! `cargo xtask fuzz`: the targets of the testkit, for as long as one likes.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use btrfsimg_testkit::fuzz::{self, Failure, Limits, TARGETS, Target};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Which; all, one after the other, when absent
    target: Option<String>,
    /// How long each
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where the random numbers start; the clock when absent
    #[arg(long)]
    seed: Option<u64>,
    /// Run only this input
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Write the inputs that the corpora start from to testdata/fuzz
    #[arg(long)]
    write_seeds: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen: Vec<&Target> = match &options.target {
        None => TARGETS.iter().collect(),
        Some(name) => {
            let names = TARGETS.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
            vec![fuzz::target(name).with_context(|| format!("no target {name}; there are {names}"))?]
        }
    };
    let limits = Limits::seconds(options.seconds);
    // The driver says what panicked; made smaller, it panics hundreds of times.
    std::panic::set_hook(Box::new(|_| {}));
    for target in chosen {
        let corpus = fuzz::corpus_of(target);
        if options.write_seeds {
            fs::create_dir_all(&corpus)?;
            for (name, bytes) in fuzz::seeds(target.name) {
                fs::write(corpus.join(name), bytes)?;
            }
            continue;
        }
        if let Some(path) = &options.input {
            let took = fuzz::replay(target, &fs::read(path)?, &limits)?;
            println!("{}: nothing wrong, {took:.1?}", target.name);
            continue;
        }
        let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let seed = options.seed.unwrap_or(clock);
        println!("{} (seed {seed}): {}", target.name, target.about);
        match fuzz::run(target, &corpus, seed, &limits) {
            Ok(outcome) => println!("  {} inputs, slowest {:.1?}", outcome.inputs, outcome.slowest),
            Err(e) => match e.downcast_ref::<Failure>() {
                None => return Err(e),
                Some(failure) => {
                    let path = PathBuf::from(format!("{}-{seed}.input", target.name));
                    fs::write(&path, &failure.input)?;
                    bail!("{failure}\nwritten to {}; once mended it belongs into the corpus", path.display());
                }
            },
        }
    }
    Ok(())
}
