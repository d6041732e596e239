//! `fixture`: images broken in one way, for testing what reads them.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use btrfsimg_fixture::{Change, Fault, Kernel, Target, faults, find};
use btrfsimg_fs::device::{Access, FileDevice};
use btrfsimg_fs::read::Filesystem;
use btrfsimg_ondisk::{Key, KeyType, Rule};
use serde_json::{Value, json};

use crate::address::image_alone;
use crate::exit::usage;
use crate::output::{Ui, about_image, print_json, stdout};

/// Break an image in one way, its checksums made right again
///
/// For testing what reads, checks or repairs btrfs: each fault breaks one rule of the format and nothing before it, so
/// that what finds it is the check that is meant. The first finding of `btrfsimg verify` names the rule.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg fixture list
  btrfsimg fixture explain dir-item-name-hash
  cp --sparse=always good.img broken.img
  btrfsimg fixture apply broken.img dir-item-name-hash
  btrfsimg fixture apply broken.img csum-data-flip /etc/passwd
  btrfsimg fixture apply broken.img inode-nlink '(257 INODE_ITEM 0)'")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: FixtureCommand,
}

#[derive(clap::Subcommand, Debug)]
enum FixtureCommand {
    List(ListArgs),
    Explain(ExplainArgs),
    Apply(ApplyArgs),
}

/// List the faults
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg fixture list
  btrfsimg fixture list --json | jq -r '.faults[] | select(.kernel_refuses) | .name'")]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Say what a fault does, what it needs, and which rule it breaks
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg fixture explain xattr-data-len
  btrfsimg fixture explain --json xattr-data-len | jq -r .rule")]
struct ExplainArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The fault
    fault: String,
}

/// Break an image
///
/// The image is changed in place, on every copy of what is changed. Where it has no place for the fault, nothing is
/// written and the exit code is 1.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "btrfsimg fixture apply [OPTIONS] IMAGE FAULT [PATH|KEY]\n       \
                      btrfsimg fixture apply [OPTIONS] -i IMAGE FAULT [PATH|KEY]",
    after_help = "\
Examples:
  btrfsimg fixture apply broken.img dir-item-name-len-overflow
  btrfsimg fixture apply -i broken.img file-extent-compression /var/log/messages
  btrfsimg fixture apply broken.img chunk-stripe-len-zero '(256 CHUNK_ITEM 13631488)'"
)]
struct ApplyArgs {
    /// The image, instead of by the first argument
    #[arg(short, long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Where in the image file the file system starts, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = crate::size::parse_size)]
    offset: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image (not with -i), the fault, and what to break: a path in the image, or a key as `inspect tree` prints
    /// it [default: the first that fits]
    #[arg(value_name = "WORDS", num_args = 1..=3, required = true)]
    words: Vec<OsString>,
}

/// What `apply` was asked for.
struct Wanted {
    image: PathBuf,
    fault: &'static Fault,
    place: Option<Place>,
}

impl ApplyArgs {
    fn wanted(&self) -> Result<Wanted> {
        let mut words = self.words.iter();
        let image = match &self.image {
            Some(image) => image.clone(),
            None => image_alone(words.next().ok_or_else(|| usage("no image given"))?)?,
        };
        let missing = || usage("no fault given; `btrfsimg fixture list` has them all");
        let fault = named(&words.next().ok_or_else(missing)?.to_string_lossy())?;
        let place =
            words.next().map(|word| parse_place(&word.to_string_lossy())).transpose().map_err(usage)?;
        if let Some(word) = words.next() {
            return Err(usage(format!("{}: one argument too many", word.to_string_lossy())));
        }
        Ok(Wanted { image, fault, place })
    }
}

/// What was named to be broken.
#[derive(Clone, Debug)]
enum Place {
    Path(String),
    Key(Key),
}

/// `/path`, or `(257 DIR_ITEM 1)` with parentheses or without, the type by its name or its number.
fn parse_place(text: &str) -> Result<Place, String> {
    if text.starts_with('/') {
        return Ok(Place::Path(text.to_owned()));
    }
    let parts: Vec<&str> = text.split(['(', ' ', ',', ')']).filter(|p| !p.is_empty()).collect();
    let key = match parts[..] {
        [objectid, key_type, offset] => number(objectid).zip(key_type_of(key_type)).zip(number(offset)),
        _ => None,
    };
    key.map(|((objectid, key_type), offset)| Place::Key(Key::new(objectid, key_type, offset)))
        .ok_or_else(|| format!("'{text}' is neither a path (/etc/passwd) nor a key ('257 INODE_ITEM 0')"))
}

/// Unsigned, or negative as tree ids are printed.
fn number(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned))
}

fn key_type_of(text: &str) -> Option<KeyType> {
    KeyType::from_name(text).or_else(|| text.parse().ok().map(KeyType))
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    match &args.command {
        FixtureCommand::List(args) => list(args),
        FixtureCommand::Explain(args) => explain(named(&args.fault)?, args.json),
        FixtureCommand::Apply(args) => apply(args, ui),
    }
}

fn named(name: &str) -> Result<&'static Fault> {
    let Some(fault) = find(name) else {
        let near: Vec<_> =
            faults().map(|f| f.name).filter(|f| f.contains(name) || name.contains(f)).collect();
        let hint = if near.is_empty() { String::new() } else { format!("; there is {}", near.join(", ")) };
        bail!("{name}: no such fault (`btrfsimg fixture list` has them all){hint}")
    };
    Ok(fault)
}

fn list(args: &ListArgs) -> Result<()> {
    if args.json {
        return print_json(json!({ "faults": faults().map(as_json).collect::<Vec<_>>() }));
    }
    let width = faults().map(|f| f.name.len()).max().unwrap_or(0);
    let mut out = stdout();
    for fault in faults() {
        let grade = fault.severity().name();
        writeln!(out, "{:width$}  {:7}  {grade:7}  {}", fault.name, fault.rule, fault.does)?;
    }
    out.flush()?;
    Ok(())
}

fn as_json(fault: &Fault) -> Value {
    json!({
        "name": fault.name,
        "rule": fault.rule,
        "twins": fault.twins,
        "severity": fault.severity().name(),
        "kernel_refuses": fault.kernel == Kernel::Refuses,
        "check_names": fault.check,
        "does": fault.does,
        "needs": fault.needs,
    })
}

fn explain(fault: &Fault, json: bool) -> Result<()> {
    if json {
        return print_json(as_json(fault));
    }
    let rule = Rule(fault.rule).info();
    let mut out = stdout();
    writeln!(out, "{}: {}.\n", fault.name, fault.does)?;
    writeln!(out, "Needs {}.", fault.needs)?;
    writeln!(out, "Breaks {} ({}): {}. {}", rule.id, rule.severity.name(), rule.says, rule.why)?;
    if !fault.twins.is_empty() {
        writeln!(out, "Another verifier may name it {}.", fault.twins.join(" or "))?;
    }
    let kernel = match fault.kernel {
        Kernel::Refuses => "does not mount the image, or fails to read some of it",
        Kernel::Reads => "mounts the image read-only and reads all of it",
        Kernel::Loops => "mounts the image, and does not come to the end of a directory",
    };
    let check = if fault.check { "calls it an error" } else { "does not notice" };
    writeln!(out, "Linux 6.18 {kernel}; `btrfs check` 6.2 {check}.")?;
    out.flush()?;
    Ok(())
}

fn apply(args: &ApplyArgs, ui: &Ui) -> Result<()> {
    let Wanted { image, fault, place } = args.wanted()?;
    let name = image.display().to_string();
    let device = Arc::new(FileDevice::open(&image, Access::Write, args.offset)?);
    let target = match &place {
        None => Target::Any,
        Some(Place::Key(key)) => Target::Key(*key),
        Some(Place::Path(path)) => {
            let fs = Filesystem::open(device.clone()).with_context(|| name.clone())?;
            Target::at_path(&fs, path.as_bytes()).with_context(|| format!("{name}:{path}"))?
        }
    };
    let changes = fault.apply(device, &target).map_err(|e| match e {
        btrfsimg_fixture::Error::Image(e) => anyhow::Error::new(e).context(name.clone()),
        e => anyhow::Error::new(e).context(name.clone()),
    })?;
    if args.json {
        let changes: Vec<Value> = changes.iter().map(change_as_json).collect();
        let fields = json!({ "fault": as_json(fault), "changes": changes });
        return print_json(about_image(&image, fields));
    }
    if !ui.is_quiet() {
        let mut out = stdout();
        for change in &changes {
            writeln!(out, "{name}: {change}")?;
        }
        let rules: Vec<_> = std::iter::once(&fault.rule).chain(fault.twins).copied().collect();
        let says = Rule(fault.rule).info().says;
        writeln!(out, "{name}: verify will name {} first: {says}", rules.join(" or "))?;
        out.flush()?;
    }
    Ok(())
}

fn change_as_json(change: &Change) -> Value {
    json!({
        "what": change.what,
        "tree": change.tree,
        "logical": change.logical,
        "physical": change.physical,
        "slot": change.slot,
        "key": change.key.map(|k| json!([k.objectid, k.key_type.0, k.offset])),
        "offset": change.offset,
    })
}
