//! `truncate`: a file's size.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup::inode;
use btrfsimg_fs::write::contents;
use btrfsimg_fs::write::names::check_changeable;

use crate::address::{Address, ImageArgs};
use crate::cmd::open_file::{Missing, open_file};
use crate::cmd::report::counted;
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::size::parse_size;

/// Make files in an image shorter or longer
///
/// As truncate(1) does it: what is cut off is gone, what is added is a hole. A file that is not there is made.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Sizes are bytes, or take k, M, G, T (1024 each). Before the number: + grows by so much, - shrinks by so much,
< is at most, > is at least, / rounds down to a multiple, % rounds up to one.

Examples:
  btrfsimg truncate -s 0 out.img:/var/log/lastlog
  btrfsimg truncate -s +1M out.img:/disk.raw
  btrfsimg truncate -c -s %4k out.img:/a out.img:/b
  btrfsimg truncate -r out.img:/a out.img:/b")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// The new size
    #[arg(
        short,
        long,
        value_name = "SIZE",
        value_parser = NewSize::parse,
        allow_hyphen_values = true,
        required_unless_present = "reference"
    )]
    size: Option<NewSize>,
    /// The size of this file in the image; with -s, what that counts from
    #[arg(short, long, value_name = "IMAGE:/PATH")]
    reference: Option<OsString>,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// How a new size comes from the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewSize {
    Exact(u64),
    Grow(u64),
    Shrink(u64),
    AtMost(u64),
    AtLeast(u64),
    RoundDown(u64),
    RoundUp(u64),
}

impl NewSize {
    fn parse(text: &str) -> Result<NewSize, String> {
        let of: fn(u64) -> NewSize = match text.as_bytes().first() {
            Some(b'+') => NewSize::Grow,
            Some(b'-') => NewSize::Shrink,
            Some(b'<') => NewSize::AtMost,
            Some(b'>') => NewSize::AtLeast,
            Some(b'/') => NewSize::RoundDown,
            Some(b'%') => NewSize::RoundUp,
            _ => return parse_size(text).map(NewSize::Exact),
        };
        match (parse_size(&text[1..])?, text.as_bytes()[0]) {
            (0, b'/' | b'%') => Err(format!("{text}: a multiple of 0")),
            (n, _) => Ok(of(n)),
        }
    }

    /// `None` where no file can be so large.
    fn of(self, old: u64) -> Option<u64> {
        match self {
            NewSize::Exact(n) => Some(n),
            NewSize::Grow(n) => old.checked_add(n),
            NewSize::Shrink(n) => Some(old.saturating_sub(n)),
            NewSize::AtMost(n) => Some(old.min(n)),
            NewSize::AtLeast(n) => Some(old.max(n)),
            NewSize::RoundDown(n) => Some(old - old % n),
            NewSize::RoundUp(n) => old.checked_next_multiple_of(n),
        }
    }
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        if self.reference.is_some() && matches!(self.size, Some(NewSize::Exact(_))) {
            return Err(usage(
                "the size is that of the reference, or one of its own: with -r, -s is relative",
            ));
        }
        image.addresses(&self.paths)
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let missing = if self.no_create { Missing::Leave } else { Missing::Make };
        let reference = self.reference.as_ref().map(|word| cx.reference(word, true)).transpose()?;
        let from = reference.map(|place| inode(cx.tx, place)).transpose()?.map(|inode| inode.size.get());
        cx.each(|cx, address| {
            let Some(place) = open_file(cx.tx, cx.start, address, missing)? else { return Ok(()) };
            check_changeable(cx.tx, place, &address.to_string(), true)?;
            let old = inode(cx.tx, place)?.size.get();
            let from = from.unwrap_or(old);
            let size = self.size.map_or(Some(from), |size| size.of(from));
            let size = size.ok_or_else(|| Error::Invalid("file too large".to_owned()))?;
            contents::truncate(cx.tx, place, size)?;
            cx.say(|| format!("{address}: {}, now {size}", counted(old, "byte", "bytes")));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_truncate_has_them() {
        for (text, old, new) in [
            ("10", 5, Some(10)),
            ("+1k", 5, Some(1029)),
            ("-3", 5, Some(2)),
            ("-9", 5, Some(0)),
            ("<3", 5, Some(3)),
            ("<9", 5, Some(5)),
            (">9", 5, Some(9)),
            ("/4", 7, Some(4)),
            ("%4", 5, Some(8)),
            ("%4", 8, Some(8)),
            ("+1", u64::MAX, None),
        ] {
            assert_eq!(NewSize::parse(text).unwrap().of(old), new, "{text} of {old}");
        }
        for text in ["", "+", "+-1", "/0", "%0", "1.5"] {
            assert!(NewSize::parse(text).is_err(), "{text}");
        }
    }
}
