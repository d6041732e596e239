//! The published experiments repeated, each figure beside the published one: `docs/benchmarks.md` and its plots.

mod codecs;
mod corpus;
mod files;
mod made;
mod plot;
mod published;

use crate::{images, trees::Tmpfs, workspace};
use anyhow::{Context, Result, ensure};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Trees to compress: NAME=DIR, the name for the page [default: the system's /usr, and Debian's kernel source where
    /// its package is installed]
    #[arg(long, value_name = "NAME=DIR", value_parser = corpus::parse)]
    corpus: Vec<corpus::Corpus>,
    /// Only these experiments, by their number (1 to 7); the page keeps what it has of the others
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=7))]
    only: Vec<u8>,
    /// Small samples and few levels: a minute or two instead of an hour
    #[arg(long)]
    quick: bool,
    /// Files of the largest tree of experiment 7 [default: 1,000,000; 1,000 with --quick]
    #[arg(long)]
    files: Option<usize>,
    /// This binary instead of the release build
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where the page and the plots go
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// What every experiment works with.
struct Bench<'o> {
    options: &'o Options,
    binary: PathBuf,
    corpora: Vec<corpus::Corpus>,
    /// Everything is read from and written to it.
    tmpfs: Tmpfs,
    plots: Vec<(String, String)>,
}

const HEAD: &str = "\
# Benchmarks

<!-- Made by `cargo xtask bench`. -->

The experiments of the kernel's own history of compression and properties, on this machine, with the published
figures beside. Those were measured on other machines and data: compare shapes and ratios, not seconds. Everything
here is read from and written to one tmpfs, warm, each experiment in one run. MB are 10^6 bytes. Adjusted: the time of
copying the same bytes without compression taken off.
";

/// Runs the experiments, writes the page, and prints it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let binary = images::binary(options.binary.as_deref())?;
    let tmpfs = Tmpfs::mount(64 << 30)?;
    let mut corpora = options.corpus.clone();
    if corpora.is_empty() {
        corpora = corpus::of_this_machine(tmpfs.path())?;
    }
    for corpus in &corpora {
        ensure!(corpus.dir.is_dir(), "{}: no such directory", corpus.dir.display());
    }
    let mut bench = Bench { options, binary, corpora, tmpfs, plots: Vec::new() };
    let docs = options.output.clone().unwrap_or_else(|| workspace().join("docs"));
    let mut sections = sections(&fs::read_to_string(docs.join("benchmarks.md")).unwrap_or_default());
    type Experiment = fn(&mut Bench<'_>) -> Result<String>;
    let experiments: [(u8, Experiment); 7] = [
        (1, codecs::alone),
        (2, made::ten_copies),
        (3, made::one_tree),
        (4, made::levels),
        (5, codecs::negative_levels),
        (6, codecs::workspaces),
        (7, files::properties),
    ];
    for (number, experiment) in experiments {
        if options.only.is_empty() || options.only.contains(&number) {
            eprintln!("experiment {number}");
            let text = experiment(&mut bench).with_context(|| format!("experiment {number}"))?;
            sections.insert(number, text.trim_start().to_owned());
        }
    }
    let sections: Vec<String> = sections.into_values().collect();
    let page = format!("{HEAD}{}\n{}", bench.about()?, sections.join("\n"));
    bench.write(&docs, &page)?;
    println!("{page}");
    Ok(())
}

impl Bench<'_> {
    fn about(&self) -> Result<String> {
        let cores = std::thread::available_parallelism()?;
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map(|(_, m)| m);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut text = format!(
            "\n{cores} cores ({}), Linux {}. Corpora: ",
            model.unwrap_or("unknown"),
            kernel.split('-').next().unwrap_or_default().trim()
        );
        let names: Vec<&str> = self.corpora.iter().map(|c| c.name.as_str()).collect();
        text.push_str(&names.join(", "));
        text.push_str(if self.options.quick { ". Small samples (--quick).\n" } else { ".\n" });
        Ok(text)
    }

    /// Keeps a plot; gives the Markdown that shows it.
    fn plot(&mut self, name: &str, svg: String) -> String {
        let file = format!("{name}.svg");
        let text = format!("\n![{name}](benchmarks/{file})\n");
        self.plots.push((file, svg));
        text
    }

    fn write(&self, docs: &Path, page: &str) -> Result<()> {
        let dir = docs.join("benchmarks");
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for (file, svg) in &self.plots {
            fs::write(dir.join(file), svg)?;
        }
        fs::write(docs.join("benchmarks.md"), page).context("cannot write benchmarks.md")
    }
}

/// The experiments of a page by their numbers.
fn sections(page: &str) -> BTreeMap<u8, String> {
    let numbered =
        |text: &str| Some((text.split_once('.')?.0.parse().ok()?, format!("## {}\n", text.trim_end())));
    page.split("\n## ").skip(1).filter_map(numbered).collect()
}

/// A Markdown table.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    let rule = vec!["---".to_owned(); head.len()];
    let mut out = format!("\n{}{}", line(&head), line(&rule).replace(' ', ""));
    rows.iter().for_each(|row| out.push_str(&line(row)));
    out
}

/// Bytes a second in MB.
fn mb_per_s(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds.max(1e-9) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_experiments_that_are_not_run() {
        let page = format!("{HEAD}\n2 cores\n\n## 1. One\ntext\n\n### /usr\n\n## 7. Seven\nmore\n");
        let found = sections(&page);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 7]);
        assert_eq!(found[&1], "## 1. One\ntext\n\n### /usr\n");
        assert!(sections("").is_empty());
    }

    #[test]
    fn tables_are_markdown() {
        let rows = [vec!["1".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["a", "b"], &rows), "\n| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
