//! `write`: bytes into the middle of a file, or to its end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use btrfsimg_compress::{CompressionSpec, WorkspacePool};
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::{Place, inode};
use btrfsimg_fs::write::contents::{Codec, PIECE, write_at};
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::names::check_changeable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::address::{Address, ImageArgs, Word};
use crate::cmd::open_file::{Missing, open_file};
use crate::cmd::renamed::{Rename, Renamed};
use crate::cmd::report::counted;
use crate::cmd::workers;
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;

/// Write bytes into a file in an image
///
/// They come from FILE, or from standard input, and go over what is there; the rest of the file stays. A file that is
/// not there is made. An append-only file takes --append.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  echo 127.0.0.1 me | btrfsimg write --append out.img:/etc/hosts
  btrfsimg write --offset 1M out.img:/disk.raw boot.bin
  printf x | btrfsimg write --offset 4095 out.img:/f -")]
pub(crate) struct Args {
    #[command(flatten)]
    image: Renamed<FileOffset>,
    #[command(flatten)]
    edit: EditArgs,
    /// Where in the file the bytes go
    #[arg(id = "at", long = "offset", value_name = "BYTES", default_value_t = 0, value_parser = crate::size::parse_size)]
    at: u64,
    /// Behind the last byte of the file
    #[arg(short, long, conflicts_with = "at")]
    append: bool,
    /// Compress what is written so, above any property; not stored: none, lzo, zlib[:1-9], zstd[:-15..15]
    #[arg(long, value_name = "ALGO[:LEVEL]")]
    compress: Option<CompressionSpec>,
    /// The file that is written to, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
    /// Where the bytes come from; '-' is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    from: PathBuf,
}

/// `--offset` is one in the file: that of the file system is `--image-offset`.
#[derive(Debug)]
enum FileOffset {}

impl Rename for FileOffset {
    fn rename(command: clap::Command) -> clap::Command {
        command.mut_arg("offset", |arg| arg.long("image-offset"))
    }
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image.0, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        if image.image.is_none()
            && matches!(image.word(&self.path), Word::Host(_))
            && let Word::Image(to) = image.word(self.from.as_os_str())
        {
            let from = self.path.display();
            return Err(usage(format!("the file in the image comes first: btrfsimg write {to} {from}")));
        }
        Ok(vec![image.address(&self.path)?])
    }

    fn reads_stdin(&self) -> bool {
        self.from.as_os_str() == "-"
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        cx.each(|cx, address| {
            let mut from = input(cx, &self.from)?;
            let place = open_file(cx.tx, cx.start, address, Missing::Make)?
                .ok_or_else(|| Error::NotFound(address.to_string()))?;
            let inode = check_changeable(cx.tx, place, &address.to_string(), !self.append)?;
            let at = if self.append { inode.size.get() } else { self.at };
            let policy = CompressionPolicy { request: self.compress, ..CompressionPolicy::default() };
            let written = stream(cx, &mut from, place, at, policy)
                .with_context(|| format!("from {}", self.from.display()))?;
            cx.say(|| format!("{address}: {} written at {at}", counted(written, "byte", "bytes")));
            Ok(())
        })
    }
}

/// The file, or standard input for `-`.
pub(super) fn input<'a>(cx: &EditCx<'a, '_>, from: &std::path::Path) -> Result<Input<'a>> {
    if from.as_os_str() == "-" {
        return Ok(Input { file: stdin(cx.tx.is_dry_run())?, stop: cx.stop });
    }
    let failed = |source| Error::Io { what: from.display().to_string(), source };
    // A named pipe would wait for somebody to write again.
    if cx.tx.is_dry_run() && std::fs::metadata(from).map_err(failed)?.file_type().is_fifo() {
        return Err(read_once().into());
    }
    Ok(Input { file: File::open(from).map_err(failed)?, stop: cx.stop })
}

/// A file that may keep one waiting: a pipe, a terminal. Reading it fails when the user asks to stop.
pub(super) struct Input<'a> {
    file: File,
    stop: &'a AtomicBool,
}

impl Read for Input<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while !self.stop.load(Ordering::Relaxed) {
            let mut files = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut files, Some(&LOOK_AGAIN)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return self.file.read(buf),
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("interrupted"))
    }
}

/// Between two looks whether to stop.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

fn read_once() -> Error {
    Error::Invalid("a pipe can be read once only".to_owned())
}

/// Standard input, or that once more from its start, to say how large the image would have to be. Only a file can be
/// read twice.
fn stdin(again: bool) -> Result<File> {
    static START: OnceLock<Option<u64>> = OnceLock::new();
    let mut file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let start = *START.get_or_init(|| {
        let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
        is_file.then(|| file.stream_position().ok()).flatten()
    });
    if again {
        let start = start.ok_or_else(read_once)?;
        file.seek(SeekFrom::Start(start))?;
    }
    Ok(file)
}

/// Writes all of `from` at the byte `at` of a file, piece by piece. Says how many bytes there were.
pub(super) fn stream(
    cx: &mut EditCx<'_, '_>,
    from: &mut dyn Read,
    place: Place,
    at: u64,
    policy: CompressionPolicy,
) -> Result<u64> {
    let pool = WorkspacePool::new(workers());
    let mut codec = Codec::new(cx.tx, &pool, policy);
    let (mut piece, mut next) = (Vec::new(), at);
    // The type is the file's to be judged, also where there is nothing to write.
    inode(cx.tx, place)?;
    loop {
        piece.clear();
        // Pieces end at multiples of their size, so that those of a stream are chunks of whole sectors.
        let len = PIECE - next % PIECE;
        let read = from.take(len).read_to_end(&mut piece);
        if cx.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted.into());
        }
        read?;
        write_at(cx.tx, place, next, &piece, &mut codec).map_err(|error| match error {
            // Of what is read once it is all that is known.
            full @ Error::NoSpace { .. } => {
                let taken = counted(next - at, "byte was", "bytes were");
                anyhow::Error::new(full).context(format!("{taken} taken before the image was full"))
            }
            error => error.into(),
        })?;
        next += piece.len() as u64;
        if (piece.len() as u64) < len {
            return Ok(next - at);
        }
    }
}
