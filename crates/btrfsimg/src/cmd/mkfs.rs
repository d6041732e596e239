//! `mkfs`: a new file system, empty or with a directory's contents.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use btrfsimg_compress::CompressionSpec;
use btrfsimg_fs::Preserve;
use btrfsimg_fs::import::{self, Failure, Links, Report, Sparse, Target, import_tree};
use btrfsimg_fs::mkfs::{Features, ImageOptions, Made, Options, Size, Slack, make_image};
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_ondisk::{CsumType, Uuid, uuid_from_random};
use serde_json::Map;

use crate::cmd::report::{
    Progress, json_workspaces, report_failures, shown_counts, shown_size, shown_workspaces,
};
use crate::cmd::workers;
use crate::exit::usage;
use crate::output::{Ui, about_image, print_json, put_path, stdout};
use crate::size::parse_size;
use crate::{clock, edit};

/// Make a btrfs image, empty or filled from a directory
///
/// An absent file is created. An existing one is replaced when the new image is whole, and never before; one that
/// is not empty needs -f. No root and no mount are needed. Owners, modes, times, hard links, devices and
/// xattrs come along as they are in DIR; what cannot be read is listed, and the exit code is then 1.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
With SOURCE_DATE_EPOCH set, equal contents give equal bytes (give -U or --seed as well).

Examples:
  btrfsimg mkfs out.img
  btrfsimg mkfs out.img -r rootfs --compress zstd:3
  btrfsimg mkfs out.img -r rootfs --compress-force zstd:15 --size min
  btrfsimg mkfs out.img -r rootfs --size 2G -L root -n 16k --csum xxhash
  btrfsimg mkfs old.img -O ^no-holes,^free-space-tree
  btrfsimg mkfs small.img -M -b 16M")]
pub(crate) struct Args {
    /// The image: a file or a block device
    image: PathBuf,
    /// Not an argument: for an error that says how it is meant.
    #[arg(hide = true)]
    second: Option<PathBuf>,
    /// Take the contents of this directory
    #[arg(short, long, value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// auto, min, or exactly so many bytes (k, M, G, T), never more
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "auto", value_parser = parse_wanted)]
    size: Wanted,
    /// Unallocated space with --size auto: a share of what is used, or bytes [default: 10%, at least 16M]
    #[arg(long, value_name = "N%|BYTES", value_parser = parse_slack)]
    slack: Option<Slack>,
    /// Label, up to 255 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: std::ffi::OsString,
    /// UUID of the file system [default: random]
    #[arg(short = 'U', long)]
    uuid: Option<Uuid>,
    /// Draw the UUID from this text
    #[arg(long, conflicts_with = "uuid")]
    seed: Option<String>,
    /// Bytes of a tree block, up to 64k [default: 16k, or the sectorsize where that is more or with -M]
    #[arg(short, long, value_parser = parse_size)]
    nodesize: Option<u64>,
    /// Bytes of a sector: 4k to 64k; kernels whose pages are smaller do not mount it
    #[arg(short, long, default_value = "4k", value_parser = parse_size)]
    sectorsize: u64,
    /// Features to have, or with ^ not to have: extref, skinny-metadata, no-holes, free-space-tree (these are on),
    /// block-group-tree, mixed-bg
    #[arg(short = 'O', long, visible_short_alias = 'R', alias = "runtime-features", value_name = "LIST")]
    features: Vec<String>,
    /// Data and metadata share block groups, for small images: as -O mixed-bg
    #[arg(short = 'M', long)]
    mixed: bool,
    /// crc32c, xxhash, sha256 or blake2b
    #[arg(long, default_value = "crc32c")]
    csum: CsumType,
    /// Compress what looks compressible: none, lzo, zlib[:1-9], zstd[:-15..15]
    #[arg(long, value_name = "ALGO[:LEVEL]")]
    compress: Option<CompressionSpec>,
    /// Compress whatever becomes smaller
    #[arg(long, value_name = "ALGO[:LEVEL]", conflicts_with = "compress")]
    compress_force: Option<CompressionSpec>,
    /// Where holes come from: auto (the source's), always (runs of zeros), never
    #[arg(long, value_name = "WHEN", value_parser = parse_sparse)]
    sparse: Option<Sparse>,
    /// Threads that read and compress [default: the cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Overwrite what holds a file system or the like
    #[arg(short, long)]
    force: bool,
    /// Do not wait until the image is durable: a power cut soon after may destroy it
    #[arg(long)]
    no_sync: bool,
    /// Say how compression used its memory
    #[arg(long)]
    stats: bool,
    /// Say what was made as JSON
    #[arg(long)]
    json: bool,
}

/// `--size`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Auto,
    Min,
    Exact(u64),
}

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    match text {
        "auto" => Ok(Wanted::Auto),
        "min" => Ok(Wanted::Min),
        size => parse_size(size).map(Wanted::Exact).map_err(|e| format!("{e}; or write auto or min")),
    }
}

fn parse_slack(text: &str) -> Result<Slack, String> {
    match text.strip_suffix('%') {
        Some(percent) => {
            let percent = percent.parse().ok().filter(|p| *p <= 10_000);
            percent.map(Slack::Percent).ok_or_else(|| format!("'{text}' is no percentage up to 10000%"))
        }
        None => parse_size(text).map(Slack::Bytes),
    }
}

fn parse_sparse(text: &str) -> Result<Sparse, String> {
    match text {
        "auto" => Ok(Sparse::Auto),
        "always" => Ok(Sparse::Always),
        "never" => Ok(Sparse::Never),
        _ => Err("valid are auto, always, never".to_owned()),
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    if let Some(second) = &args.second {
        let (image, second) = (args.image.display(), second.display());
        let (image, dir) = if args.image.is_dir() { (second, image) } else { (image, second) };
        return Err(usage(format!(
            "a new image takes one name; to fill it from a directory: btrfsimg mkfs {image} -r {dir}"
        )));
    }
    let options = options(args)?;
    if options.reproducible && args.uuid.is_none() && args.seed.is_none() {
        ui.note("the UUID is random: give -U or --seed for equal images");
    }
    if let Some(spec) = args.compress.or(args.compress_force).filter(|_| args.rootdir.is_none()) {
        let lasting = format!("'btrfsimg prop set {} compression {spec}'", args.image.display());
        ui.note(&format!(
            "nothing is compressed: --compress is for what -r copies in; for what comes later use {lasting}"
        ));
    }
    let image =
        ImageOptions { force: args.force, has_content: args.rootdir.is_some(), no_sync: args.no_sync };
    let stop = edit::stop_flag()?;
    let epoch = clock::source_date_epoch()?;
    if let Some(dir) = &args.rootdir
        && !std::fs::metadata(dir).map_err(|e| btrfsimg_fs::Error::io(dir.display().to_string())(e))?.is_dir()
    {
        bail!("{}: not a directory", dir.display());
    }
    let progress = Progress::new(ui);
    let made = make_image(&args.image, &options, &image, |tx, root, itself| {
        tx.stop_on(stop.clone());
        let Some(dir) = &args.rootdir else { return Ok(Report::default()) };
        let import = import::Options {
            preserve: Preserve::ALL,
            compression: CompressionPolicy {
                request: None,
                build_default: args.compress_force.or(args.compress),
                force: args.compress_force.is_some(),
            },
            workers: args.threads.map_or_else(workers, usize::from),
            sparse: args.sparse.unwrap_or(if epoch.is_some() { Sparse::Always } else { Sparse::Auto }),
            clamp: epoch,
            exclude: itself.to_vec(),
            existing: Default::default(),
            list: ui.verbosity() > 0 && !args.json,
            cancel: Some(&stop),
            progress: Some(&|report| progress.tell(report)),
        };
        import_tree(tx, dir, Target::NewRoot(root), &import, &mut Links::default())
    })?;
    drop(progress);
    report_failures(ui, &made.filled);
    if args.json { say_json(args, &made) } else { say(args, ui, &made) }
}

fn options(args: &Args) -> Result<Options> {
    let size = match (args.size, args.slack) {
        (Wanted::Auto, slack) => Size::Auto(slack.unwrap_or_default()),
        (_, Some(_)) => return Err(usage("--slack goes with --size auto")),
        (Wanted::Min, None) => Size::Min,
        (Wanted::Exact(bytes), None) => Size::Exact(bytes),
    };
    let mut features = Features::default();
    args.features.iter().try_for_each(|list| features.change(list)).map_err(|e| usage(e.to_string()))?;
    if args.mixed {
        features.change("mixed-bg")?;
    }
    let size_of = |n: u64, name| u32::try_from(n).map_err(|_| usage(format!("--{name}: at most 64k")));
    let sectorsize = size_of(args.sectorsize, "sectorsize")?;
    let nodesize = match args.nodesize {
        Some(n) => size_of(n, "nodesize")?,
        None => features.default_nodesize(sectorsize),
    };
    let options = Options {
        sectorsize,
        nodesize,
        features,
        csum: args.csum,
        label: std::os::unix::ffi::OsStrExt::as_bytes(args.label.as_os_str()).to_vec(),
        fsid: args.uuid.or_else(|| args.seed.as_deref().map(uuid_from_seed)),
        reproducible: clock::source_date_epoch()?.is_some(),
        now: clock::now()?,
        size,
    };
    // Sizes, features and label are judged before anything is touched.
    options.geometry().map_err(|e| usage(e.to_string()))?;
    Ok(options)
}

fn uuid_from_seed(seed: &str) -> Uuid {
    let digest = CsumType::Sha256.of(seed.as_bytes()).0;
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid_from_random(bytes)
}

fn say(args: &Args, ui: &Ui, made: &Made<Report>) -> Result<()> {
    if ui.is_quiet() {
        return Ok(());
    }
    let r = &made.filled;
    let mut out = stdout();
    writeln!(out, "{}: {}, UUID {}", args.image.display(), shown_size(made.size), made.fsid)?;
    if let Some(dir) = &args.rootdir {
        let mut copied =
            r.copied.iter().map(|path| dir.components().chain(path.components()).collect::<PathBuf>());
        copied.try_for_each(|path| writeln!(out, "'{}' copied", path.display()))?;
        writeln!(out, "  {}", shown_counts(r.files, r.directories, r.others))?;
        let (read, stored) = (shown_size(r.bytes_read), shown_size(r.bytes_stored));
        writeln!(out, "  {read} of file data, {stored} stored")?;
    }
    if args.stats {
        writeln!(out, "  {}", shown_workspaces(&r.workspaces))?;
    }
    out.flush()?;
    Ok(())
}

fn say_json(args: &Args, made: &Made<Report>) -> Result<()> {
    let r = &made.filled;
    let failure = |f: &Failure| {
        let mut object = Map::from_iter([("reason".to_owned(), f.reason.clone().into())]);
        put_path(&mut object, "path", &f.path);
        object
    };
    let mut document = serde_json::json!({
        "size": made.size,
        "uuid": made.fsid.to_string(),
        "files": r.files,
        "directories": r.directories,
        "others": r.others,
        "bytes_read": r.bytes_read,
        "bytes_stored": r.bytes_stored,
        "failures": r.failures.iter().map(failure).collect::<Vec<_>>(),
    });
    if args.stats {
        document["workspaces"] = json_workspaces(&r.workspaces);
    }
    print_json(about_image(&args.image, document))
}
