//! `verify`: finds every fault of an image and names it.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::verify::{Finding, Options, Summary, verify};
use btrfsimg_ondisk::Rule;
use serde_json::{Map, Value, json};

use crate::cmd::report::shown_size;
use crate::exit::{self, usage};
use crate::output::{Ui, print_json, put_bytes, stdout};

/// Judge an image: every rule of the format, on every copy of every block
///
/// Nothing is shared with the code that reads or writes images, and nothing is repaired. Each finding names its
/// rule; --explain says what a rule means.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Exit codes: 0 sound; 4 corrupt; 3 uses what is not supported; 1 cannot be read, or is no btrfs image.

Examples:
  btrfsimg verify out.img
  btrfsimg verify --data out.img
  btrfsimg verify --json out.img | jq '.findings[0].rule'
  btrfsimg verify --explain DIR-08")]
pub(crate) struct Args {
    /// Compare every sector of data with its checksum too, on every copy
    #[arg(long)]
    data: bool,
    /// Exit with 4 for warnings as well
    #[arg(long, value_name = "SEVERITY", value_parser = ["error", "warning"], default_value = "error")]
    fail_on: String,
    /// Threads that read and judge [default: the cores]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Where in the image file the file system starts, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = crate::size::parse_size)]
    offset: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say what a rule means and why it matters
    #[arg(long, value_name = "RULE", conflicts_with = "image")]
    explain: Option<String>,
    /// The image
    image: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    if let Some(rule) = &args.explain {
        return explain(rule);
    }
    let image = args.image.as_ref().ok_or_else(|| usage("no image given"))?;
    let device = FileDevice::open(image, Access::Read, args.offset)?;
    let options = Options::new().with_data(args.data).with_threads(args.threads);
    let mut findings = Vec::new();
    let mut print = |finding: &Finding| {
        if args.json {
            findings.push(as_json(finding));
        } else if !finding.consequence || ui.verbosity() > 0 {
            let follows = if finding.consequence { " (may follow from the above)" } else { "" };
            // A reader that went away is noticed when the summary is printed.
            let _ = writeln!(stdout(), "{}: {finding}{follows}", finding.rule);
        }
    };
    let summary = verify(&device, &options, &mut print).with_context(|| image.display().to_string())?;
    if summary.errors > 0 || (args.fail_on == "warning" && summary.warnings > 0) {
        ui.remember(exit::CORRUPT);
    }
    if args.json {
        print_json(document(image, args.data, &summary, findings))
    } else {
        say(args, image, &summary, ui)
    }
}

fn explain(name: &str) -> Result<()> {
    let Some(rule) = Rule::find(name) else {
        bail!("{name}: no such rule; they are listed in docs/verify.md")
    };
    let mut out = stdout();
    writeln!(out, "{} ({}): {}\n\n{}", rule.id, rule.severity.name(), rule.says, rule.why)?;
    out.flush()?;
    Ok(())
}

fn say(args: &Args, image: &std::path::Path, s: &Summary, ui: &Ui) -> Result<()> {
    if ui.is_quiet() {
        return Ok(());
    }
    let verdict = match (s.is_sound(), args.data) {
        (true, true) => "sound",
        (true, false) => "sound, but for its data",
        (false, _) => "corrupt",
    };
    let mut out = stdout();
    let (errors, warnings) = (s.errors, s.warnings);
    write!(out, "{}: {verdict}: {errors} errors, {warnings} warnings", image.display())?;
    if s.consequences > 0 {
        write!(
            out,
            ", {} that may follow from them{}",
            s.consequences,
            if ui.verbosity() == 0 { " (shown with -v)" } else { "" }
        )?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "  {} trees, {} tree blocks, {} inodes, {} extents",
        s.trees, s.tree_blocks, s.inodes, s.extents
    )?;
    match args.data {
        true => writeln!(out, "  {} of data compared with their checksums", shown_size(s.data_bytes))?,
        false => writeln!(out, "  data not compared with their checksums (--data does)")?,
    }
    out.flush()?;
    Ok(())
}

fn document(image: &std::path::Path, data: bool, s: &Summary, findings: Vec<Value>) -> Value {
    json!({
        "image": image.display().to_string(),
        "sound": s.is_sound(),
        "errors": s.errors,
        "warnings": s.warnings,
        "consequences": s.consequences,
        "trees": s.trees,
        "tree_blocks": s.tree_blocks,
        "inodes": s.inodes,
        "extents": s.extents,
        "data_checked": data,
        "data_bytes": s.data_bytes,
        "findings": findings,
    })
}

fn as_json(finding: &Finding) -> Value {
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
    Value::Object(object)
}
