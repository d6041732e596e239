//! `cp`: between an image and the host, either way, within an image, and between two.

mod goal;
mod images;
mod into;
mod made;
mod out;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use btrfsimg_compress::CompressionSpec;
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::{Existing, Modes, Preserve};

use super::destination::DestinationArgs;
use crate::address::{Address, ImageArgs, Word, check_host_target, no_image_in};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::output::Ui;

/// Copy files into, out of, within and between images
///
/// A side in an image is IMAGE:/path (or ':/path' with -i IMAGE), else it is a path of the host; '-' is standard input
/// as SRC, standard output as DST. As cp(1) does it, modes are copied without the setuid and setgid bits, and owner and
/// times are those of a new file; -p keeps mode, owner and times; -a is -r -p with links, devices and xattrs. The umask
/// counts on the host only: into an image modes go as they are, or as the default ACL of the directory has it; standard
/// input becomes a file of mode 644.
///
/// A directory goes into DST when that is a directory, and becomes DST when there is none; of SRC/. only what is in
/// it is copied. Within an image copies share their extents; subvolumes are copied as directories. Between two images,
/// --offset and --subvol apply to both.
///
/// A file is copied through a symlink that stands where it goes, at DST wherever that leads; inside a tree only where it
/// leads to a file of the same tree (and not by an absolute path). A file that has other names gets new contents under all of them, but with -a, -d or
/// --preserve=links: then those keep theirs. ACLs go with the mode; setuid and setgid bits with mode and ownership.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "btrfsimg cp [OPTIONS] <SRC>... <DST>",
    after_help = "\
Examples:
  btrfsimg cp out.img:/etc/fstab .
  btrfsimg cp -r out.img:/etc ./etc
  btrfsimg cp -a --compress zstd:9 ./site out.img:/data/
  btrfsimg cp -a out.img:/. ./all
  btrfsimg cp out.img:/boot/vmlinuz -
  btrfsimg cp -t out.img:/etc fstab hosts passwd
  btrfsimg cp -a --reflink=always out.img:/base out.img:/copy
  btrfsimg cp -a old.img:/etc/. new.img:/etc
  zcat disk.gz | btrfsimg cp - out.img:/disk.raw
  btrfsimg cp -r --salvage broken.img:/ ./rescued
  btrfsimg cp -i out.img :/a :/b ./dir"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    destination: DestinationArgs,
    /// Directories and what is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep mode, owner and times
    #[arg(short = 'p')]
    attributes: bool,
    /// Keep these; without a list mode,ownership,timestamps
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_value = "mode,ownership,timestamps")]
    preserve: Vec<Kept>,
    /// Of what -p, -a and --preserve keep, not these; without the mode, what is new has that of any new file
    #[arg(long, value_name = "LIST", value_delimiter = ',', require_equals = true)]
    no_preserve: Vec<Kept>,
    /// Keep all: -r -p, hard links, devices, xattrs
    #[arg(short, long)]
    archive: bool,
    /// Symlinks themselves (with -r that is done anyway)
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// What symlinks lead to (without -r that is done anyway)
    #[arg(short = 'L', long, conflicts_with_all = ["no_dereference", "links", "recursive", "archive"])]
    dereference: bool,
    /// With -r: what symlinks given as SRC lead to, but those below as such
    #[arg(short = 'H', conflicts_with_all = ["no_dereference", "links"])]
    operands: bool,
    /// Symlinks themselves, and hard links as such
    #[arg(short = 'd')]
    links: bool,
    /// Share extents within an image: always, never, or where that is possible
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "auto",
          default_missing_value = "always")]
    reflink: When,
    /// Accepted for habit: a file that is there is replaced in any case
    #[arg(short, long)]
    force: bool,
    /// Files that are there stay
    #[arg(short, long, conflicts_with = "update")]
    no_clobber: bool,
    /// Files that are there stay unless they are older
    #[arg(short, long)]
    update: bool,
    /// Files and symlinks that are there go first, instead of being written into or through
    #[arg(long, conflicts_with_all = ["no_clobber", "update"])]
    remove_destination: bool,
    /// Compress what is copied in so, above any property; not stored: none, lzo, zlib[:1-9], zstd[:-15..15]
    #[arg(long, value_name = "ALGO[:LEVEL]")]
    compress: Option<CompressionSpec>,
    /// Say how compression used its memory
    #[arg(long)]
    stats: bool,
    /// Make devices outside an image, without -a as root
    #[arg(long)]
    devices: bool,
    /// Keep setuid and setgid bits outside an image, without -a as root
    #[arg(long)]
    setuid: bool,
    /// Copy out of a broken image what can be read: damaged bytes are copied or left as zeros, and listed
    #[arg(long)]
    salvage: bool,
    /// What to copy, and last where to; one side is IMAGE:/path
    #[arg(required = true, num_args = 1.., value_name = "PATH")]
    words: Vec<OsString>,
}

/// What of a source is kept.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Mode,
    Ownership,
    Timestamps,
    Links,
    Xattr,
    All,
}

/// When extents are shared.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Always,
    Auto,
    Never,
}

impl Args {
    fn existing(&self) -> Existing {
        match (self.no_clobber, self.update, self.remove_destination) {
            (true, ..) => Existing::Keep,
            (_, true, _) => Existing::Update,
            (.., true) => Existing::Remove,
            _ => Existing::Replace,
        }
    }

    fn policy(&self) -> CompressionPolicy {
        CompressionPolicy { request: self.compress, ..CompressionPolicy::default() }
    }

    fn recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// Whether a symlink in SRC leads to what is copied.
    fn follows(&self) -> bool {
        self.operands || !(self.recursive() || self.no_dereference || self.links)
    }

    /// What of the sources is kept.
    fn keeps(&self) -> Preserve {
        let lists = |list: &[Kept], what| list.iter().any(|kept| [Kept::All, what].contains(kept));
        let keeps = |what, by_letter| {
            (by_letter || self.archive || lists(&self.preserve, what)) && !lists(&self.no_preserve, what)
        };
        Preserve {
            mode: match keeps(Kept::Mode, self.attributes) {
                true => Modes::Kept,
                false if lists(&self.no_preserve, Kept::Mode) => Modes::Default,
                false => Modes::OfNew,
            },
            owner: keeps(Kept::Ownership, self.attributes),
            times: keeps(Kept::Timestamps, self.attributes),
            xattrs: keeps(Kept::Xattr, false),
            links: keeps(Kept::Links, self.links),
            // Those of a new file, as with cp(1).
            flags: false,
        }
    }
}

/// The words of a cp, its sources by where they are.
struct Words {
    inside: Vec<Address>,
    outside: Vec<PathBuf>,
    to: Word,
}

impl Args {
    fn words(&self, image: &ImageArgs) -> Result<Words> {
        let (sources, to) = self.destination.split(&self.words)?;
        if self.destination.is_name() && sources.len() > 1 {
            return Err(usage("with -T there is one source"));
        }
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for word in sources {
            match image.word(word) {
                Word::Image(address) => inside.push(address),
                Word::Host(path) => outside.push(path),
            }
        }
        let word = image.word(to);
        if let Word::Host(path) = &word {
            check_host_target(to, path)?;
        }
        Ok(Words { inside, outside, to: word })
    }

    /// Whether it changes an image.
    pub(crate) fn goes_into_image(&self, batch: Option<&ImageArgs>) -> bool {
        let to = self.destination.split(&self.words);
        to.is_ok_and(|(_, to)| matches!(batch.unwrap_or(&self.image).word(to), Word::Image(_)))
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let words = args.words(&args.image)?;
    match (words.to, words.inside.is_empty(), words.outside.is_empty()) {
        (Word::Host(to), false, true) => out::copy_out(args, ui, &words.inside, &to),
        (Word::Host(_), false, false) => {
            Err(usage("some sources are in an image and some are not; copy them one after the other"))
        }
        _ => Err(no_image_in(&args.words)),
    }
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        let words = self.words(image)?;
        if self.salvage {
            return Err(usage("--salvage copies out of an image; copy to a directory of the host"));
        }
        match words.to {
            Word::Image(to) => Ok(vec![to]),
            Word::Host(_) => Err(no_image_in(&self.words)),
        }
    }

    fn reads_stdin(&self) -> bool {
        self.destination.split(&self.words).is_ok_and(|(sources, _)| sources.iter().any(|word| word == "-"))
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let words = self.words(cx.image)?;
        if self.reflink == When::Always && !words.outside.is_empty() {
            return Err(usage("--reflink=always shares extents within an image; a source is outside"));
        }
        cx.each(|cx, to| {
            let target = goal::Target::find(self, cx, &words, to)?;
            let mut made = made::Made::default();
            if !words.outside.is_empty() {
                into::copy_in(self, cx, &words.outside, &target, &mut made)?;
            }
            images::copy(self, cx, &words.inside, &target, &mut made)?;
            made.tell(cx)
        })
    }
}
