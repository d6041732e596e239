//! `cat`: files of an image to standard output.

use std::ffi::OsString;
use std::io::{self, Write};

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::read::{Filesystem, Info, Piece, stream_file};

use super::workers;
use crate::address::ImageArgs;
use crate::output::{Ui, stdout};

/// Write files of an image to standard output
///
/// Each sector is checked against its checksum before it is written.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg cat out.img:/etc/os-release
  btrfsimg cat -i out.img /etc/passwd /etc/group")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// The files, as IMAGE:/path
    #[arg(required = true, value_name = "FILE")]
    files: Vec<OsString>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let mut out = stdout();
    args.image.for_each(&args.image.addresses(&args.files)?, ui, |image, address| {
        let info = image.fs.info(image.resolve(&address.path, true)?)?;
        write_file(&image.fs, &info, &mut out)?;
        Ok(())
    })?;
    out.flush()?;
    Ok(())
}

/// Writes all bytes of a regular file to `out`.
pub(super) fn write_file(fs: &Filesystem, info: &Info, out: &mut impl Write) -> btrfsimg_fs::Result<()> {
    let written = |result: io::Result<()>| result.map_err(Error::io("standard output"));
    stream_file(fs, info, 0..info.size(), workers(), |piece| match piece {
        Piece::Data(bytes) => written(out.write_all(bytes)),
        Piece::Hole(len) => written(write_zeros(out, len)),
    })
}

fn write_zeros(out: &mut impl Write, mut len: u64) -> io::Result<()> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    while len > 0 {
        let n = len.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..usize::try_from(n).unwrap_or(ZEROS.len())])?;
        len -= n;
    }
    Ok(())
}
