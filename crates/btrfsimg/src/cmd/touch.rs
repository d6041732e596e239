//! `touch`: times, and empty files.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::lookup;
use btrfsimg_fs::write::attributes::{set_times, touch};
use btrfsimg_ondisk::Timespec;

use crate::address::{Address, ImageArgs};
use crate::cmd::open_file::{Missing, open_file};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::output::{iso_time, parse_stamp, parse_time};

/// Set the times of files in an image, and make those that are not there
///
/// Now, or SOURCE_DATE_EPOCH, unless -d, -t or -r says otherwise. A new file is empty and belongs to 0:0 with mode 0644.
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg touch out.img:/etc/.updated
  btrfsimg touch -m -d '2026-01-31 12:00' out.img:/etc/fstab
  btrfsimg touch -d @1700000000.5 out.img:/a out.img:/b
  btrfsimg touch -t 202601311200 out.img:/a
  btrfsimg touch -c -r out.img:/etc/passwd out.img:/etc/group"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Only the time of the last access
    #[arg(short = 'a')]
    access: bool,
    /// Only the time of the last change
    #[arg(short = 'm')]
    modification: bool,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The time: '@SECONDS', 'YYYY-MM-DD', or 'YYYY-MM-DD HH:MM[:SS[.FRACTION]]', in UTC or with +HHMM behind it
    #[arg(short = 'd', long, value_name = "DATE", value_parser = parse_date, allow_hyphen_values = true)]
    date: Option<Timespec>,
    #[arg(
        short = 't',
        value_name = "STAMP",
        conflicts_with = "date",
        help = "The time as [[CC]YY]MMDDhhmm[.ss], in UTC; without a year, this year's"
    )]
    stamp: Option<String>,
    /// The times of this file in the image
    #[arg(short = 'r', long, value_name = "IMAGE:/PATH", conflicts_with_all = ["date", "stamp"])]
    reference: Option<OsString>,
    /// Symlinks themselves, not what they lead to; makes no files
    #[arg(short = 'h', long = "no-dereference")]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

fn parse_date(text: &str) -> Result<Timespec, String> {
    parse_time(text).ok_or_else(|| {
        format!("'{text}' is no time; write '@SECONDS', 'YYYY-MM-DD', or 'YYYY-MM-DD HH:MM[:SS[.FRACTION]] [+HHMM]'")
    })
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        self.stamp(crate::clock::now()?)?;
        image.addresses(&self.paths)
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let (atime, mtime) = self.times(cx)?;
        let neither = !self.access && !self.modification;
        let is_given = self.date.is_some() || self.stamp.is_some() || self.reference.is_some();
        let atime = (self.access || neither).then_some(atime);
        let mtime = (self.modification || neither).then_some(mtime);
        cx.each(|cx, address| {
            let place = match lookup::resolve(cx.tx, cx.start, &address.path, !self.no_dereference) {
                Err(Error::NotFound(_)) if self.no_create => return Ok(()),
                Err(Error::NotFound(_)) if !self.no_dereference => {
                    let made = open_file(cx.tx, cx.start, address, Missing::Make)?;
                    cx.say(|| format!("created '{address}'"));
                    made.ok_or_else(|| Error::NotFound(address.to_string()))?
                }
                other => other?,
            };
            match neither && !is_given {
                true => touch(cx.tx, place)?,
                false => set_times(cx.tx, place, atime, mtime)?,
            }
            for (name, time) in [("access", atime), ("modification", mtime)] {
                if let Some(time) = time {
                    cx.say(|| format!("{name} time of '{address}' set to {}", iso_time(time)));
                }
            }
            Ok(())
        })
    }
}

impl Args {
    /// Times of access and change to set.
    fn times(&self, cx: &EditCx<'_, '_>) -> Result<(Timespec, Timespec)> {
        let Some(reference) = &self.reference else {
            let now = cx.tx.now();
            let time = self.date.or(self.stamp(now)?).unwrap_or(now);
            return Ok((time, time));
        };
        let inode = lookup::inode(cx.tx, cx.reference(reference, !self.no_dereference)?)?;
        Ok((inode.atime, inode.mtime))
    }

    /// The time of `-t`, which may have the year of `now`.
    fn stamp(&self, now: Timespec) -> Result<Option<Timespec>> {
        let Some(text) = &self.stamp else { return Ok(None) };
        let why = || crate::exit::usage(format!("'{text}' is no time; write [[CC]YY]MMDDhhmm[.ss]"));
        parse_stamp(text, now).map(Some).ok_or_else(why)
    }
}
