//! What an import has to tell.

use btrfsimg_fs::import::Report;

use crate::exit;
use crate::output::Ui;

/// Says what did not come along; the exit code is then 1.
pub(crate) fn report_failures(ui: &Ui, report: &Report) {
    for note in &report.notes {
        ui.note(note);
    }
    for failure in &report.failures {
        ui.fail(&format!("{}: {}", failure.path.display(), failure.reason), exit::FAILED);
    }
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
