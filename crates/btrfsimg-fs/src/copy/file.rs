//! The contents of one file.

use btrfsimg_compress::WorkspacePool;
use btrfsimg_ondisk::InodeItem;

use super::{Options, Reflink, Source};
use crate::error::{Error, Result};
use crate::lookup::{Place, SegmentKind, Segments};
use crate::read::{Filesystem, Info, Piece, stream_file};
use crate::txn::Transaction;
use crate::write::contents::{Codec, PIECE, check_source, clone_range, read_stored, truncate, write_at};

/// An error, and whose: a source that cannot be read ends one file, an image that cannot be written the whole copy.
pub(super) enum Fault {
    Source(Error),
    Target(Error),
}

/// Copies the contents of the regular file `from`, whose inode is `inode`, into `to`, which is empty.
pub(super) fn copy_contents(
    tx: &mut Transaction<'_>,
    source: Source<'_>,
    (from, inode): (Place, &InodeItem),
    to: Place,
    pool: &WorkspacePool,
    options: &Options<'_>,
) -> Result<(), Fault> {
    let size = inode.size.get();
    if source.is_here() && options.reflink != Reflink::Never {
        check_source(tx, from).map_err(Fault::Source)?;
        match clone_range(tx, from, 0..size, to, 0) {
            Ok(()) => return Ok(()),
            Err(Error::Invalid(why)) if options.reflink == Reflink::Always => {
                return Err(Fault::Source(Error::Invalid(why)));
            }
            Err(Error::Invalid(_)) => {}
            Err(e) => return Err(Fault::Target(e)),
        }
    }
    let mut codec = Codec::new(tx, pool, options.compression);
    match source {
        Source::Here => copy_here(tx, (from, inode), to, &mut codec, options)?,
        Source::Other(fs) => copy_from(tx, fs, Info { place: from, item: *inode }, to, &mut codec, options)?,
    }
    // A hole at the end.
    truncate(tx, to, size).map_err(Fault::Target)
}

/// From another image: decoded by several threads, and encoded by them where a piece is together.
fn copy_from(
    tx: &mut Transaction<'_>,
    fs: &Filesystem,
    info: Info,
    to: Place,
    codec: &mut Codec<'_>,
    options: &Options<'_>,
) -> Result<(), Fault> {
    let mut piece = Gathered { start: 0, bytes: Vec::new() };
    let mut target = None;
    let mut stop = |done: Result<()>| {
        done.map_err(|error| {
            target = Some(error);
            Error::Interrupted
        })
    };
    let streamed = stream_file(fs, &info, 0..info.size(), options.workers, |next| {
        stop(options.check_cancelled())?;
        match next {
            Piece::Hole(len) => {
                stop(piece.put(tx, to, codec))?;
                piece.start += len;
            }
            Piece::Data(bytes) => {
                piece.bytes.extend_from_slice(bytes);
                if piece.bytes.len() as u64 >= PIECE {
                    stop(piece.put(tx, to, codec))?;
                }
            }
        }
        Ok(())
    });
    let streamed = streamed.and_then(|()| stop(piece.put(tx, to, codec)));
    match (streamed, target) {
        (_, Some(error)) => Err(Fault::Target(error)),
        (Err(error), None) => Err(Fault::Source(error)),
        (Ok(()), None) => Ok(()),
    }
}

/// Neighbouring bytes of a file that wait to be stored together.
struct Gathered {
    start: u64,
    bytes: Vec<u8>,
}

impl Gathered {
    fn put(&mut self, tx: &mut Transaction<'_>, to: Place, codec: &mut Codec<'_>) -> Result<()> {
        write_at(tx, to, self.start, &self.bytes, codec)?;
        self.start += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }
}

/// Within an image, without sharing extents.
fn copy_here(
    tx: &mut Transaction<'_>,
    (from, inode): (Place, &InodeItem),
    to: Place,
    codec: &mut Codec<'_>,
    options: &Options<'_>,
) -> Result<(), Fault> {
    let mut segments = Segments::of(from, 0..inode.size.get());
    while let Some(segment) = segments.next(&*tx).map_err(Fault::Source)? {
        if matches!(segment.kind, SegmentKind::Hole) {
            continue;
        }
        let (mut at, end) = (segment.offset, segment.offset + segment.len);
        while at < end {
            options.check_cancelled().map_err(Fault::Target)?;
            // Reading wants the checksums of what was written so far in the tree; that this fails is no fault of the source.
            tx.flush_csums().map_err(Fault::Target)?;
            let next = end.min(at + PIECE);
            let bytes = read_stored(tx, from, inode.flags.get(), at..next).map_err(Fault::Source)?;
            write_at(tx, to, at, &bytes, codec).map_err(Fault::Target)?;
            at = next;
        }
    }
    Ok(())
}
