//! `verify`: finds every fault of an image and names it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::verify::{Count, Finding, Options, Progress, Summary, verify_watched};
use btrfsimg_ondisk::{RULE_FAMILIES, Rule, RuleInfo, Severity};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::address::image_alone;
use crate::cmd::report::shown_size;
use crate::exit::{self, usage};
use crate::output::{Ui, about_image, print_json, print_json_line, put_bytes, stdout};

/// Judge an image: every rule of the format, on every copy of every block
///
/// Nothing is shared with the code that reads or writes images, and nothing is repaired. Each finding names its
/// rule; --explain says what a rule means. What may only follow from an earlier finding is counted, and shown with -v.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit codes: 0 sound; 4 corrupt; 3 uses what is not supported; 2 no such image; 1 cannot be read, or is no btrfs image.

Examples:
  btrfsimg verify out.img
  btrfsimg verify --data --decode out.img
  btrfsimg verify --json out.img | jq '.findings[0].rule'
  btrfsimg verify --jsonl out.img | grep -m 1 '\"severity\":\"error\"'
  btrfsimg verify --rules | grep -i orphan
  btrfsimg verify --rules --json | jq -r '.rules[] | select(.severity == \"error\") | .rule'
  btrfsimg verify --explain DIR-08")]
pub(crate) struct Args {
    /// Compare every sector of data with its checksum too, on every copy
    #[arg(long)]
    data: bool,
    /// Decode every compressed extent too
    #[arg(long)]
    decode: bool,
    /// Exit with 4 for warnings as well
    #[arg(long, value_name = "SEVERITY", value_parser = ["error", "warning"], default_value = "error")]
    fail_on: String,
    /// Threads that read and judge [default: the cores]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Where in the image file the file system starts, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = crate::size::parse_size)]
    offset: u64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Print findings as JSON as they are found, one a line, and the summary as the last line
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,
    /// Say what a rule means and why it matters
    #[arg(long, value_name = "RULE", conflicts_with_all = ["image", "image_file"])]
    explain: Option<String>,
    /// List all rules, one a line: name, severity, what must hold
    #[arg(long, conflicts_with_all = ["image", "image_file", "explain"])]
    rules: bool,
    /// The image, instead of by the argument
    #[arg(short, long = "image", value_name = "FILE", conflicts_with = "image")]
    image_file: Option<OsString>,
    /// The image
    image: Option<OsString>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    if let Some(rule) = &args.explain {
        return explain(rule, args.json);
    }
    if args.rules {
        return list_rules(args.json);
    }
    let word = args.image_file.as_ref().or(args.image.as_ref()).ok_or_else(|| usage("no image given"))?;
    let image = image_alone(word)?;
    let device = FileDevice::open(&image, Access::Read, args.offset)?;
    if let Some(attached) = device.attached_to() {
        let name = image.display();
        ui.note(&format!("{name}: attached to {attached}; if it is mounted, what is found may not be so"));
    }
    let options = Options::new().with_data(args.data).with_decode(args.decode).with_threads(args.threads);
    let mut findings = Vec::new();
    let mut print = |finding: &Finding| {
        // A reader that went away is noticed when the summary is printed.
        if args.json {
            findings.push(Value::Object(as_json(finding)));
        } else if args.jsonl {
            let _ = print_json_line("finding", as_json(finding));
        } else if !finding.consequence || ui.verbosity() > 0 {
            let follows = if finding.consequence { " (may follow from the above)" } else { "" };
            let _ = writeln!(stdout(), "{}: {finding}{follows}", finding.rule);
        }
    };
    let watched = |progress: &Progress| verify_watched(&device, &options, progress, &mut print);
    let summary = match with_bar(ui, watched) {
        Ok(summary) => summary,
        Err(error) => {
            let fields = json!({ "sound": null, "error": error.to_string() });
            print_document(args, about_image(&image, fields), findings)?;
            return Err(anyhow::Error::new(error).context(image.display().to_string()));
        }
    };
    if summary.errors > 0 || (args.fail_on == "warning" && summary.warnings > 0) {
        ui.remember(exit::CORRUPT);
    }
    if args.json || args.jsonl {
        return print_document(args, document(&image, args, &summary), findings);
    }
    say(args, &image, &summary, ui)
}

/// What was judged, with the findings that were not printed yet; nothing where no JSON was asked for.
fn print_document(args: &Args, mut document: Map<String, Value>, findings: Vec<Value>) -> Result<()> {
    if args.jsonl {
        return print_json_line("summary", document);
    }
    if args.json {
        document.insert("findings".to_owned(), findings.into());
        return print_json(document);
    }
    Ok(())
}

/// Does `work` under a bar on the terminal; without one when standard error is none, and with `-q`.
fn with_bar<T>(ui: &Ui, work: impl FnOnce(&Progress) -> T) -> T {
    let progress = Progress::default();
    if ui.is_quiet() || !std::io::stderr().is_terminal() {
        return work(&progress);
    }
    let bar = ProgressBar::new(0);
    // The template is a constant: that it parses is tested.
    bar.set_style(bar_style().unwrap_or_else(|_| ProgressStyle::default_bar()));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                bar.set_length(progress.total());
                bar.set_position(progress.done().min(progress.total()));
                std::thread::park_timeout(Duration::from_millis(100));
            }
            bar.finish_and_clear();
        });
        let result = work(&progress);
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn bar_style() -> Result<ProgressStyle, indicatif::style::TemplateError> {
    ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left")
}

fn explain(name: &str, json: bool) -> Result<()> {
    let Some(rule) = Rule::find(name) else {
        bail!("{name}: no such rule; `btrfsimg verify --rules` lists them")
    };
    if json {
        return print_json(rule_as_json(rule));
    }
    let mut out = stdout();
    writeln!(out, "{} ({}): {}\n\n{}", rule.id, rule.severity.name(), rule.says, rule.why)?;
    out.flush()?;
    Ok(())
}

fn list_rules(json: bool) -> Result<()> {
    if json {
        return print_json(json!({ "rules": Rule::all().map(rule_as_json).collect::<Vec<_>>() }));
    }
    let mut out = stdout();
    for rule in Rule::all() {
        writeln!(out, "{:8}{:9}{}", rule.id, rule.severity.name(), rule.says)?;
    }
    out.flush()?;
    Ok(())
}

fn rule_as_json(rule: &RuleInfo) -> Value {
    let grade = match rule.severity {
        Severity::Refused => "refused",
        Severity::Inconsistent => "inconsistent",
        Severity::Warning => "warning",
    };
    json!({
        "rule": rule.id,
        "severity": rule.severity.name(),
        "grade": grade,
        "says": rule.says,
        "why": rule.why,
    })
}

/// Findings by the family of their rules.
#[derive(Default)]
struct Groups(BTreeMap<&'static str, [u64; 3]>);

impl Groups {
    fn of(counts: &[Count]) -> Groups {
        let mut groups = Groups::default();
        for count in counts {
            let family = count.rule.0.split('-').next().unwrap_or_default();
            let column = match (count.rule.severity().is_error(), count.consequence) {
                (true, false) => 0,
                (false, _) => 1,
                (true, true) => 2,
            };
            groups.0.entry(family).or_default()[column] += count.found;
        }
        groups
    }

    /// A table, in the order of docs/verify.md; nothing when nothing was found.
    fn write(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        writeln!(out, "  {:<46}{:>8}{:>10}{:>14}", "group of rules", "errors", "warnings", "consequences")?;
        for (name, title) in RULE_FAMILIES {
            if let Some([errors, warnings, consequences]) = self.0.get(name) {
                writeln!(out, "  {name:<5}{title:<41}{errors:>8}{warnings:>10}{consequences:>14}")?;
            }
        }
        Ok(())
    }
}

fn say(args: &Args, image: &Path, s: &Summary, ui: &Ui) -> Result<()> {
    let mut out = stdout();
    for count in s.rules.iter().filter(|c| c.found > c.listed && (!c.consequence || ui.verbosity() > 0)) {
        writeln!(out, "{}: {} more of {0} not listed", count.rule, count.found - count.listed)?;
    }
    if ui.is_quiet() {
        return Ok(out.flush()?);
    }
    let groups = Groups::of(&s.rules);
    let verdict = match (s.is_sound(), args.data) {
        (true, true) => "sound",
        (true, false) => "sound (metadata)",
        (false, _) => "corrupt",
    };
    groups.write(&mut out)?;
    let (errors, warnings) = (s.errors, s.warnings);
    write!(out, "{}: {verdict}: {errors} errors, {warnings} warnings", image.display())?;
    if s.consequences > 0 {
        let how = if ui.verbosity() == 0 { " (shown with -v)" } else { "" };
        write!(out, ", {} that may follow from them{how}", s.consequences)?;
    }
    writeln!(out)?;
    let Summary { trees, tree_blocks, inodes, extents, .. } = s;
    writeln!(out, "  {trees} trees, {tree_blocks} tree blocks, {inodes} inodes, {extents} extents")?;
    if let Some(generation) = s.backup_generation {
        writeln!(
            out,
            "  judged by the backup root of generation {generation}: the current one cannot be read"
        )?;
    }
    if s.unreachable > 0 || s.lost > 0 {
        let reached = inodes.saturating_sub(s.unreachable);
        let lost = s.lost;
        writeln!(
            out,
            "  still readable: {reached} of {inodes} inodes by a path; {lost} more have a name, but are lost"
        )?;
    }
    match args.data {
        true => writeln!(out, "  {} of data compared with their checksums", shown_size(s.data_bytes))?,
        false => writeln!(out, "  data not compared with their checksums (--data does)")?,
    }
    if args.decode {
        let bytes = shown_size(s.decoded_bytes);
        writeln!(out, "  {} compressed extents decoded, {bytes} of data", s.decoded_extents)?;
    }
    if !groups.0.is_empty() {
        writeln!(out, "  `btrfsimg verify --explain RULE` says what a rule means")?;
    }
    out.flush()?;
    Ok(())
}

fn document(image: &Path, args: &Args, s: &Summary) -> Map<String, Value> {
    let fields = json!({
        "sound": s.is_sound(),
        "error": null,
        "errors": s.errors,
        "warnings": s.warnings,
        "consequences": s.consequences,
        "rules": s.rules.iter().map(count_as_json).collect::<Vec<_>>(),
        "trees": s.trees,
        "tree_blocks": s.tree_blocks,
        "inodes": s.inodes,
        "unreachable": s.unreachable,
        "lost": s.lost,
        "backup_generation": s.backup_generation,
        "extents": s.extents,
        "data_checked": args.data,
        "decoded": args.decode,
        "data_bytes": s.data_bytes,
        "decoded_extents": s.decoded_extents,
        "decoded_bytes": s.decoded_bytes,
    });
    about_image(image, fields)
}

fn count_as_json(count: &Count) -> Value {
    json!({
        "rule": count.rule.0,
        "severity": count.rule.severity().name(),
        "consequence": count.consequence,
        "found": count.found,
        "listed": count.listed,
    })
}

fn as_json(finding: &Finding) -> Map<String, Value> {
    let p = &finding.place;
    let mut object = Map::new();
    let mut put = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            object.insert(field.to_owned(), value);
        }
    };
    put("rule", Some(finding.rule.0.into()));
    put("severity", Some(finding.severity().name().into()));
    put("consequence", finding.consequence.then_some(true.into()));
    put("reason", Some(finding.reason.clone().into()));
    put("mirror", p.mirror.map(Value::from));
    put("devid", p.devid.map(|d| d.0.into()));
    put("physical", p.physical.map(|a| a.0.into()));
    put("logical", p.logical.map(|a| a.0.into()));
    put("tree", p.tree.map(Value::from));
    put("slot", p.slot.map(Value::from));
    put("key", p.key.map(|k| json!([k.objectid, k.key_type.0, k.offset])));
    put("inode", p.inode.map(Value::from));
    if let Some(path) = &p.path {
        put_bytes(&mut object, "path", path);
    }
    object
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_bars_template_parses() {
        assert!(super::bar_style().is_ok());
    }
}
