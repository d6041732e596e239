//! `defrag`: files in fewer extents, or compressed otherwise.

use std::ffi::OsString;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use btrfsimg_compress::{CompressionSpec, WorkspacePool};
use btrfsimg_fs::Error;
use btrfsimg_fs::defrag::{Counts, DEFAULT_TARGET, Defrag, Observer, Options};
use serde_json::{Map, Value, json};

use crate::address::{Address, ImageArgs};
use crate::clock;
use crate::cmd::report::{counted, json_workspaces, shown_size, shown_workspaces};
use crate::cmd::workers;
use crate::edit::{EditArgs, stop_flag, tolerate};
use crate::output::{Ui, print_json, put_bytes, put_path, shown, stdout};
use crate::size::parse_size;

/// Bytes of files that one commit makes anew. Their new extents need room beside the old ones.
const STEP: u64 = 128 << 20;
/// The same where there is little room.
const SMALLEST_STEP: u64 = 1 << 20;

/// Make the extents of files anew: fewer, larger, or compressed otherwise
///
/// Contents, times and the compression property stay as they are: -c is for this once, above the property. What a
/// file shares with others or with snapshots stays shared and is left alone, unless --unshare is given. What would
/// gain nothing is left alone as well. The work is committed in steps, each of them whole.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Without -c, files are compressed as their property or the flag c says; what is compressed stays so.

Examples:
  btrfsimg defrag out.img:/var/lib/db
  btrfsimg defrag -r -c zstd:15 out.img:/usr
  btrfsimg defrag -r -c none out.img:/boot
  btrfsimg defrag -r --target-extent-size 1M out.img")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Directories too: all files below, in the same subvolume
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Compress so, above any property: none, lzo, zlib[:1-9], zstd[:-15..15]. With a level, what is of that
    /// algorithm is tried too, and kept where it becomes smaller
    #[arg(short, long, value_name = "ALGO[:LEVEL]", value_parser = parse_request)]
    compress: Option<Request>,
    /// Leave extents of at least so many bytes alone: 128k to 128M
    #[arg(short, long, value_name = "SIZE", default_value_t = DEFAULT_TARGET, value_parser = parse_target)]
    target_extent_size: u64,
    /// Give files extents of their own where they share some; the image may grow by all of them
    #[arg(long)]
    unshare: bool,
    /// Say how compression used its memory
    #[arg(long)]
    stats: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files and directories, as IMAGE:/path or IMAGE
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

/// `-c`.
#[derive(Clone, Copy, Debug)]
struct Request {
    spec: CompressionSpec,
    has_level: bool,
}

fn parse_request(text: &str) -> Result<Request, String> {
    let spec = text.parse().map_err(|e: btrfsimg_compress::SpecError| e.to_string())?;
    Ok(Request { spec, has_level: text.contains(':') })
}

fn parse_target(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    let range = 128 << 10..=128 << 20;
    if range.contains(&size) { Ok(size) } else { Err(format!("'{text}' is not from 128k to 128M")) }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let addresses = args.image.addresses(&args.paths)?;
    let mut documents = Vec::new();
    let ended = addresses
        .chunk_by(|a, b| a.image == b.image)
        .try_for_each(|group| tolerate(ui, one_image(args, ui, group, &mut documents)));
    // When it was interrupted, the images before are done.
    if args.json && (ended.is_ok() || !documents.is_empty()) {
        print_json(json!({ "images": documents }))?;
    }
    ended
}

fn one_image(args: &Args, ui: &Ui, addresses: &[Address], documents: &mut Vec<Value>) -> Result<()> {
    let (stop, pool) = (stop_flag()?, WorkspacePool::new(workers()));
    let mut teller =
        Teller { args, ui, addresses, lines: Vec::new(), failures: Vec::new(), files: Vec::new() };
    let result = work(args, addresses, &stop, &pool, &mut teller);
    let defrag = match result {
        Ok(defrag) => defrag,
        Err(failed) => {
            let (defrag, error) = *failed;
            // The steps before are in the image.
            let done = defrag.report().files_rewritten;
            if done > 0 {
                let done = counted(done, "file was", "files were");
                ui.note(&format!("{}: {done} done before", addresses[0].image.display()));
            }
            return Err(error);
        }
    };
    teller.say()?;
    let report = defrag.report();
    let stats = pool.stats();
    if args.json {
        let mut document = counts_json(&report.total);
        put_path(&mut document, "image", &addresses[0].image);
        document.insert("files".to_owned(), report.files.into());
        document.insert("files_rewritten".to_owned(), report.files_rewritten.into());
        document.insert("rewritten".to_owned(), teller.files.into());
        if args.stats {
            document.insert("workspaces".to_owned(), json_workspaces(&stats));
        }
        documents.push(document.into());
    } else if !ui.is_quiet() {
        let mut out = stdout();
        let image = addresses[0].image.display();
        let (files, all) = (report.files_rewritten, counted(report.files, "file", "files"));
        writeln!(out, "{image}: {files} of {all} made anew: {}", counts_line(&report.total))?;
        if report.total.shared > 0 {
            let extents = counted(report.total.shared, "shared extent", "shared extents");
            let bytes = shown_size(report.total.shared_bytes);
            writeln!(out, "  {extents} with {bytes} of files left alone (--unshare)")?;
        }
        if args.stats {
            writeln!(out, "  {}", shown_workspaces(&stats))?;
        }
        out.flush()?;
    }
    Ok(())
}

/// Step after step. With an error comes what was done and is in the image.
fn work(
    args: &Args,
    addresses: &[Address],
    stop: &Arc<AtomicBool>,
    pool: &WorkspacePool,
    teller: &mut Teller<'_>,
) -> Result<Defrag, Box<(Defrag, anyhow::Error)>> {
    let options = Options {
        request: args.compress.map(|r| r.spec),
        recompress: args.compress.is_some_and(|r| r.has_level),
        target: args.target_extent_size,
        unshare: args.unshare,
    };
    let mut defrag = Defrag::new(options);
    let image = &addresses[0].image;
    let name = || image.display().to_string();
    let opened = || -> Result<_> { Ok((args.edit.volume(&args.image, image, stop)?, clock::now()?)) };
    let (mut volume, now) = match opened() {
        Ok(opened) => opened,
        Err(error) => return Err(Box::new((defrag, error))),
    };
    let (mut bytes, mut is_first) = (STEP, true);
    loop {
        let (mark, heard) = (defrag.mark(), teller.heard());
        let mut step = || -> Result<bool> {
            let mut tx = volume.begin(now)?;
            tx.stop_on(stop.clone());
            if is_first {
                let start = args.image.start_in(&tx).with_context(name)?;
                for address in addresses {
                    let place = btrfsimg_fs::lookup::resolve(&tx, start, &address.path, true)
                        .map_err(|e| address.about(e.into()))?;
                    defrag.add(address.path.clone(), place, args.recursive);
                }
            }
            let more = defrag.step(&mut tx, bytes, pool, stop, teller)?;
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted.into());
            }
            tx.commit()?;
            Ok(more)
        };
        match step() {
            Ok(true) => is_first = false,
            Ok(false) => return Ok(defrag),
            Err(error) => {
                teller.forget_after(heard);
                defrag.rewind(mark);
                let is_full = matches!(error.downcast_ref(), Some(Error::NoSpace { .. }));
                if !is_full || bytes <= SMALLEST_STEP {
                    let advice = if is_full && !args.edit.grow { " (--grow lets the file grow)" } else { "" };
                    return Err(Box::new((defrag, error.context(format!("{}{advice}", name())))));
                }
                bytes /= 4;
            }
        }
    }
}

/// Keeps what there is to say until its step is committed.
struct Teller<'a> {
    args: &'a Args,
    ui: &'a Ui,
    addresses: &'a [Address],
    lines: Vec<String>,
    failures: Vec<(String, Error)>,
    files: Vec<Value>,
}

impl Teller<'_> {
    fn heard(&self) -> [usize; 3] {
        [self.lines.len(), self.failures.len(), self.files.len()]
    }

    fn forget_after(&mut self, [lines, failures, files]: [usize; 3]) {
        self.lines.truncate(lines);
        self.failures.truncate(failures);
        self.files.truncate(files);
    }

    fn say(&mut self) -> Result<()> {
        let mut out = stdout();
        self.lines.drain(..).try_for_each(|line| writeln!(out, "{line}"))?;
        out.flush()?;
        self.failures.drain(..).for_each(|(path, error)| self.ui.fail_at(&path, &error));
        Ok(())
    }
}

impl Observer for Teller<'_> {
    fn file(&mut self, path: &[u8], counts: &Counts) {
        if self.args.json && counts.rewritten > 0 {
            let mut object = counts_json(counts);
            put_bytes(&mut object, "path", path);
            self.files.push(object.into());
        } else if !self.args.json && self.ui.verbosity() > 0 && counts.rewritten > 0 {
            self.lines.push(format!("{}: {}", shown(path), counts_line(counts)));
        }
    }

    fn failed(&mut self, path: &[u8], error: Error) {
        let address = Address { image: self.addresses[0].image.clone(), path: path.to_vec() };
        self.failures.push((address.to_string(), error));
    }
}

fn counts_line(counts: &Counts) -> String {
    let Counts { extents_before, extents_after, .. } = counts;
    let (before, after) = (shown_size(counts.disk_before), shown_size(counts.disk_after));
    let extents = counted(*extents_before, "extent", "extents");
    format!("{extents} of {before} became {extents_after} of {after}")
}

fn counts_json(counts: &Counts) -> Map<String, Value> {
    let fields = [
        ("bytes", counts.rewritten),
        ("extents_before", counts.extents_before),
        ("extents_after", counts.extents_after),
        ("disk_before", counts.disk_before),
        ("disk_after", counts.disk_after),
        ("shared_extents", counts.shared),
        ("shared_bytes", counts.shared_bytes),
    ];
    fields.into_iter().map(|(name, n)| (name.to_owned(), n.into())).collect()
}
