//! The xattrs of source inodes: read by workers into one buffer for each inode, and placed by the walk's thread.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use btrfsimg_compress::Property;
use btrfsimg_ondisk::{DIR_ITEM_HEAD_LEN, max_item_size, name_hash};
use rustix::io::Errno;

use crate::preserve::Preserve;
use crate::write::inode::{COMPRESSION_XATTR, xattr_fits};

/// `u16` length of the name, `u32` length of the value.
const HEAD: usize = 6;
/// Room that most values fit.
const VALUE_LEN: usize = 256;
/// The largest list and value that Linux has (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const LEN_MAX: usize = 64 << 10;

/// Names and values, in the order of the source.
#[derive(Clone, Debug, Default)]
pub(super) struct SourceXattrs {
    /// A head, the name and the value of each.
    bytes: Vec<u8>,
}

impl SourceXattrs {
    /// The xattrs of an open file or directory that come along.
    pub(super) fn of(file: BorrowedFd<'_>, preserve: &Preserve) -> io::Result<SourceXattrs> {
        SourceXattrs::read(
            preserve,
            |buf| rustix::fs::flistxattr(file, buf),
            |name, buf| rustix::fs::fgetxattr(file, name, buf),
        )
    }

    /// Those of an entry that cannot be opened: a symlink's own, a device's. By its path below /proc, so that
    /// the directory is the one that is open.
    pub(super) fn of_entry(
        dir: BorrowedFd<'_>,
        name: &CStr,
        preserve: &Preserve,
    ) -> io::Result<SourceXattrs> {
        let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name.to_bytes()].concat();
        SourceXattrs::read(
            preserve,
            |buf| rustix::fs::llistxattr(path.as_slice(), buf),
            |name, buf| rustix::fs::lgetxattr(path.as_slice(), name, buf),
        )
    }

    fn read(
        preserve: &Preserve,
        list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
        value: impl Fn(&CStr, &mut [u8]) -> rustix::io::Result<usize>,
    ) -> io::Result<SourceXattrs> {
        if !preserve.takes_xattrs() {
            return Ok(SourceXattrs::default());
        }
        let mut buf = [0; 1024];
        let mut long = Vec::new();
        let names = match list(&mut buf) {
            Ok(0) | Err(Errno::NOTSUP) => return Ok(SourceXattrs::default()),
            Ok(len) => &buf[..len],
            Err(Errno::RANGE) => {
                long.resize(LEN_MAX, 0);
                let len = list(&mut long)?;
                &long[..len]
            }
            Err(e) => return Err(e.into()),
        };
        let names = names.split_inclusive(|b| *b == 0).filter_map(|n| CStr::from_bytes_with_nul(n).ok());
        let mut bytes = Vec::with_capacity(1024);
        for name in names.filter(|name| preserve.takes_xattr(name.to_bytes())) {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; HEAD]);
            bytes.extend_from_slice(name.to_bytes());
            let at = bytes.len();
            let read = |bytes: &mut Vec<u8>, room: usize| {
                bytes.resize(at + room, 0);
                value(name, &mut bytes[at..])
            };
            let len = match read(&mut bytes, VALUE_LEN) {
                Err(Errno::RANGE) => read(&mut bytes, LEN_MAX),
                len => len,
            };
            match len {
                Ok(len) => {
                    bytes.truncate(at + len);
                    set_head(&mut bytes[start..], at - start - HEAD, len)?;
                }
                // It went away since it was listed.
                Err(Errno::NODATA | Errno::NOTSUP) => bytes.truncate(start),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(SourceXattrs { bytes })
    }

    /// Name and value of each, in the order of the source.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let ([n0, n1, v0, v1, v2, v3], tail) = rest.split_first_chunk::<HEAD>()?;
            let name_len = usize::from(u16::from_le_bytes([*n0, *n1]));
            let value_len = u32::from_le_bytes([*v0, *v1, *v2, *v3]) as usize;
            let (name, tail) = tail.split_at_checked(name_len)?;
            let (value, tail) = tail.split_at_checked(value_len)?;
            rest = tail;
            Some((name, value))
        })
    }

    /// All but the compression property.
    pub(super) fn but_property(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.iter().filter(|(name, _)| *name != COMPRESSION_XATTR)
    }

    /// By name: where the order in which they are set is seen in the image.
    pub(super) fn sorted(&self) -> Vec<(&[u8], &[u8])> {
        let mut sorted: Vec<_> = self.iter().collect();
        sorted.sort_unstable();
        sorted
    }

    /// The value of one.
    pub(super) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// The xattrs that a new inode gets.
pub(super) struct KeptXattrs<'x> {
    pub(super) property: Option<Property>,
    /// All but the property.
    pub(super) others: Vec<(&'x [u8], &'x [u8])>,
}

impl<'x> KeptXattrs<'x> {
    /// Name and value of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let property = self.property.iter().map(|p| (COMPRESSION_XATTR, p.as_bytes()));
        self.others.iter().copied().chain(property)
    }

    /// Takes out what no leaf holds, and gives it. Names with one hash share an item, which must fit as well.
    pub(super) fn drop_too_large(&mut self, nodesize: usize) -> Vec<(&'x [u8], &'x [u8])> {
        let item_len = |(name, value): &(&[u8], &[u8])| DIR_ITEM_HEAD_LEN + name.len() + value.len();
        let max = max_item_size(nodesize);
        if self.others.iter().map(item_len).sum::<usize>() <= max
            && self.others.iter().all(|(name, value)| xattr_fits(name, value, nodesize))
        {
            return Vec::new();
        }
        let mut items: HashMap<u64, usize> = HashMap::new();
        let too_large = |xattr: &mut (&[u8], &[u8])| {
            let item = items.entry(name_hash(xattr.0)).or_default();
            let fits = xattr_fits(xattr.0, xattr.1, nodesize) && *item + item_len(xattr) <= max;
            *item += if fits { item_len(xattr) } else { 0 };
            !fits
        };
        self.others.extract_if(.., too_large).collect()
    }
}

fn set_head(record: &mut [u8], name_len: usize, value_len: usize) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidData);
    record[..2].copy_from_slice(&u16::try_from(name_len).map_err(too_long)?.to_le_bytes());
    record[2..HEAD].copy_from_slice(&u32::try_from(value_len).map_err(too_long)?.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_source_has_comes_back() {
        let long = vec![7; 5000];
        let xattrs: [(&CStr, &[u8]); 4] =
            [(c"user.b", b"2"), (c"user.empty", b""), (c"user.long", &long), (c"user.gone", b"")];
        let list: Vec<u8> = xattrs.iter().flat_map(|(name, _)| name.to_bytes_with_nul().to_vec()).collect();
        let copy = |from: &[u8], to: &mut [u8]| match to.get_mut(..from.len()) {
            Some(to) => {
                to.copy_from_slice(from);
                Ok(from.len())
            }
            None => Err(Errno::RANGE),
        };
        let read = SourceXattrs::read(
            &Preserve::ALL,
            |buf| copy(&list, buf),
            |name, buf| match name {
                name if name == c"user.gone" => Err(Errno::NODATA),
                name => copy(xattrs.iter().find(|x| x.0 == name).unwrap().1, buf),
            },
        );
        let read = read.unwrap();
        let expected: Vec<(&[u8], &[u8])> = xattrs[..3].iter().map(|(n, v)| (n.to_bytes(), *v)).collect();
        assert_eq!(read.iter().collect::<Vec<_>>(), expected);
        assert_eq!(read.get(b"user.long"), Some(long.as_slice()));
        assert_eq!(read.get(b"user.gone"), None);
    }

    #[test]
    fn a_source_without_xattrs_takes_no_memory() {
        for list in [Ok(0), Err(Errno::NOTSUP)] {
            let read = SourceXattrs::read(&Preserve::ALL, |_| list, |_, _| Err(Errno::IO)).unwrap();
            assert_eq!(read.bytes.capacity(), 0);
        }
        assert!(SourceXattrs::read(&Preserve::ALL, |_| Err(Errno::IO), |_, _| Ok(0)).is_err());
    }
}
