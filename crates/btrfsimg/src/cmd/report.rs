//! What an import has to tell.

use std::io::IsTerminal as _;
use std::time::Duration;

use btrfsimg_compress::PoolStats;
use btrfsimg_fs::import::Report;
use indicatif::ProgressBar;

use crate::exit;
use crate::output::Ui;

/// Says what did not come along; the exit code is then 1.
pub(crate) fn report_failures(ui: &Ui, report: &Report) {
    for failure in &report.failures {
        ui.fail(&format!("{}: {}", failure.path.display(), failure.reason), exit::FAILED);
    }
}

/// A line on a terminal that says how far an import has come; nothing elsewhere, and nothing with `-q`.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(ui: &Ui) -> Progress {
        let shows = !ui.is_quiet() && std::io::stderr().is_terminal();
        let bar = shows.then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Progress { bar }
    }

    pub(crate) fn tell(&self, report: &Report) {
        if let Some(bar) = &self.bar {
            let files = counted(report.files, "file", "files");
            bar.set_message(format!("{files}, {}", shown_size(report.bytes_read)));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `--stats`: the counters of the workspaces, on a line.
pub(crate) fn shown_workspaces(stats: &PoolStats) -> String {
    let PoolStats { allocated, reused, peak_bytes, .. } = stats;
    format!("workspaces: {allocated} allocated, {reused} reused, {} at most", shown_size(*peak_bytes as u64))
}

/// The same in JSON.
pub(crate) fn json_workspaces(stats: &PoolStats) -> serde_json::Value {
    let PoolStats { allocated, reused, bytes, peak_bytes, .. } = stats;
    serde_json::json!({ "allocated": allocated, "reused": reused, "bytes": bytes, "peak_bytes": peak_bytes })
}

/// `1 file`, `2 files`.
pub(crate) fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// What a copy of a tree came to: `2 files, 1 directory, 0 others`.
pub(crate) fn shown_counts(files: u64, directories: u64, others: u64) -> String {
    let directories = counted(directories, "directory", "directories");
    format!("{}, {directories}, {}", counted(files, "file", "files"), counted(others, "other", "others"))
}

/// Bytes for people, in powers of 1024.
pub(crate) fn shown_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, "bytes");
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{value:.2} {unit}") }
}
