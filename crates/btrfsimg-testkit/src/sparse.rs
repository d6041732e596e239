//! Files with holes: where their data lies, and copies that keep the holes.

use anyhow::{Context, Result};
use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};
use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, path::Path};

/// Read and write this much at a time.
const BUFFER: usize = 256 << 10;

/// The byte ranges of `file` that are not holes, ascending, inside `0..len`.
/// A file system without `SEEK_DATA` gives one range.
pub fn data_ranges(file: &File, len: u64) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) if at == 0 => return Ok(std::iter::once(0..len).collect()),
            Err(e) => return Err(e.into()),
        };
        if start >= len {
            break;
        }
        let end = seek(file, SeekFrom::Hole(start))?.clamp(start + 1, len);
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

/// The union of two ascending lists of ranges.
pub fn union(a: Vec<Range<u64>>, b: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = a.into_iter().chain(b).collect();
    all.sort_by_key(|r| (r.start, r.end));
    let mut out: Vec<Range<u64>> = Vec::with_capacity(all.len());
    for range in all {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

/// Fills `buf` from `offset` on, as far as the file goes; the number of bytes read.
pub fn read_full_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Calls `each(offset, bytes)` for all bytes of `range`, in pieces; ends early where the file does.
pub fn read_range(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buf = vec![0; BUFFER];
    let mut at = range.start;
    while at < range.end {
        let want = usize::try_from(range.end - at).unwrap_or(BUFFER).min(BUFFER);
        let got = read_full_at(file, &mut buf[..want], at)?;
        if got == 0 {
            break;
        }
        each(at, &buf[..got])?;
        at += got as u64;
    }
    Ok(())
}

/// Copies a file and keeps its holes.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let inner = || -> io::Result<()> {
        let source = File::open(from)?;
        let len = source.metadata()?.len();
        let target = File::options().create(true).write(true).truncate(true).open(to)?;
        target.set_len(len)?;
        for range in data_ranges(&source, len)? {
            read_range(&source, range, |at, bytes| target.write_all_at(bytes, at))?;
        }
        Ok(())
    };
    inner().with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn union_of_ranges() {
        let ranges = |r: &[(u64, u64)]| r.iter().map(|&(start, end)| start..end).collect::<Vec<_>>();
        for (a, b, expect) in [
            (&[][..], &[][..], &[][..]),
            (&[(0, 4)], &[(8, 9)], &[(0, 4), (8, 9)]),
            (&[(0, 4), (10, 20)], &[(4, 6), (12, 13)], &[(0, 6), (10, 20)]),
            (&[(5, 9)], &[(0, 100)], &[(0, 100)]),
        ] {
            assert_eq!(union(ranges(a), ranges(b)), ranges(expect), "{a:?} and {b:?}");
        }
    }

    #[test]
    fn a_copy_has_the_same_bytes_and_no_more_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let file = File::create(&a).unwrap();
        file.set_len(6 << 30).unwrap();
        file.write_all_at(b"near", 100).unwrap();
        file.write_all_at(b"far", (5 << 30) + 1).unwrap();
        copy(&a, &b).unwrap();
        let copied = File::open(&b).unwrap();
        assert_eq!(copied.metadata().unwrap().len(), 6 << 30);
        assert!(copied.metadata().unwrap().blocks() * 512 <= 1 << 20);
        let mut bytes = [0; 5];
        assert_eq!(read_full_at(&copied, &mut bytes, 5 << 30).unwrap(), 5);
        assert_eq!(&bytes, b"\0far\0");
        assert_eq!(read_full_at(&copied, &mut bytes, 99).unwrap(), 5);
        assert_eq!(&bytes, b"\0near");
    }
}
