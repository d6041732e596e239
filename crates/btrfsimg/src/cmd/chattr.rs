//! `chattr`: inode flags.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::lookup;
use btrfsimg_fs::write::flags::{set_flags, visible};
use btrfsimg_ondisk::{FileType, inode_flags as f};

use super::below::change_each;
use super::renamed::{Rename, Renamed};
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::output::shown;

/// Change inode flags in an image
///
/// As chattr(1): +LETTERS sets, -LETTERS clears, =LETTERS makes them the only ones, = clears all: a append-only, A no access times,
/// c compress, C no copy-on-write (and no checksums), d no dump, D and S synchronous, i immutable, m do not compress.
/// C has no effect on files that are not empty. +c gives the property compression zlib where there was none, -c takes it
/// away; 'prop set' chooses the algorithm. Options come first; there is no -i IMAGE here, as -i is a change.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "btrfsimg chattr [OPTIONS] <CHANGE>... <IMAGE:/PATH>...",
    after_help = "\
Examples:
  btrfsimg chattr +i out.img:/etc/resolv.conf
  btrfsimg chattr -i out.img:/etc/resolv.conf
  btrfsimg chattr -R +C out.img:/var/lib/libvirt/images
  btrfsimg chattr =A out.img:/var/spool"
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: Renamed<NoShortImage>,
    #[command(flatten)]
    edit: EditArgs,
    /// All that is below directories, too; symlinks and devices, which have no such flags, are passed over
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Changes, and what to change as IMAGE:/path
    #[arg(required = true, allow_hyphen_values = true, value_name = "WORD")]
    words: Vec<OsString>,
}

/// `-i` is a change.
#[derive(Debug)]
enum NoShortImage {}

impl Rename for NoShortImage {
    fn rename(command: clap::Command) -> clap::Command {
        command.mut_arg("image", |arg| arg.short(None))
    }
}

/// The letters of flags that kernels show, in the order in which lsattr(1) prints them.
const LETTERS: [(char, u64); 10] = [
    ('S', f::SYNC),
    ('D', f::DIRSYNC),
    ('i', f::IMMUTABLE),
    ('a', f::APPEND),
    ('d', f::NODUMP),
    ('A', f::NOATIME),
    ('c', f::COMPRESS),
    ('C', f::NODATACOW),
    ('V', f::RO_VERITY),
    ('m', f::NOCOMPRESS),
];

/// The letters of an inode's visible flags.
pub(super) fn letters(flags: u64) -> String {
    let set = LETTERS.iter().filter(|(_, bit)| visible(flags) & bit != 0);
    set.map(|(letter, _)| *letter).collect()
}

/// What becomes of the flags.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Change {
    set: u64,
    cleared: u64,
    /// All others are cleared.
    exact: bool,
}

impl Change {
    fn parse(words: &[OsString]) -> Result<Change> {
        let mut change = Change::default();
        for word in words {
            let text = word.to_string_lossy();
            let (op, letters) = text.split_at(1);
            let mut bits = 0;
            for letter in letters.chars() {
                let known = LETTERS.iter().find(|(c, bit)| *c == letter && *bit != f::RO_VERITY);
                bits |= known.map(|(_, bit)| *bit).ok_or_else(|| {
                    usage(format!(
                        "{}: there is no flag '{letter}'; there are a, A, c, C, d, D, i, m, S",
                        shown(word.as_encoded_bytes())
                    ))
                })?;
            }
            match op {
                "-" => change.cleared |= bits,
                op => (change.set, change.exact) = (change.set | bits, change.exact || op == "="),
            }
        }
        if change.set & change.cleared != 0 {
            return Err(usage("a flag is set and cleared at once"));
        }
        Ok(change)
    }

    fn apply(self, flags: u64) -> u64 {
        let kept = if self.exact { 0 } else { flags & !self.cleared };
        kept | self.set
    }
}

impl Args {
    /// The changes, and the words behind them.
    fn split(&self) -> Result<(Change, &[OsString])> {
        let is_change = |word: &OsString| {
            let word = word.as_encoded_bytes();
            word == b"=" || (word.len() > 1 && b"+-=".contains(&word[0]) && !word.starts_with(b"--"))
        };
        let count = self.words.iter().take_while(|word| is_change(word)).count();
        let (changes, paths) = self.words.split_at(count);
        if changes.is_empty() {
            return Err(usage("no change given; write +LETTERS, -LETTERS or =LETTERS before the paths"));
        }
        if let Some(late) = paths.iter().find(|word| word.as_encoded_bytes().starts_with(b"-")) {
            return Err(usage(format!(
                "{}: options and changes come before the paths",
                shown(late.as_encoded_bytes())
            )));
        }
        if paths.is_empty() {
            return Err(usage("no path given"));
        }
        Ok((Change::parse(changes)?, paths))
    }
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image.0, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        image.addresses(self.split()?.1)
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let (change, _) = self.split()?;
        let mut warnings = Vec::new();
        change_each(cx, self.recursive, true, |tx, found, verbose| {
            if self.recursive && !matches!(found.file_type, FileType::DIR | FileType::REG_FILE) {
                return Ok(None);
            }
            let old = visible(lookup::inode(tx, found.place)?.flags.get());
            if !set_flags(tx, found.place, change.apply(old), &found.shown)? {
                warnings.push(format!("{}: C stays as it is: the file is not empty", found.shown));
            }
            let new = lookup::inode(tx, found.place)?.flags.get();
            let shown = |flags| format!("{:-<1}", letters(flags));
            let changed = verbose && visible(new) != old;
            Ok(changed
                .then(|| format!("flags of '{}' changed from {} to {}", found.shown, shown(old), shown(new))))
        })?;
        warnings.into_iter().for_each(|warning| cx.warn(warning));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_as_chattr_makes_them() {
        let parse = |words: &[&str]| Change::parse(&words.iter().map(OsString::from).collect::<Vec<_>>());
        for (words, old, new) in [
            (&["+i"][..], f::APPEND, f::APPEND | f::IMMUTABLE),
            (&["-i"], f::APPEND | f::IMMUTABLE, f::APPEND),
            (&["=A"], f::APPEND | f::IMMUTABLE, f::NOATIME),
            (&["+c", "-iA"], f::IMMUTABLE | f::NOATIME, f::COMPRESS),
            (&["="], f::APPEND, 0),
        ] {
            assert_eq!(parse(words).unwrap().apply(old), new, "{words:?}");
        }
        for words in [&["+x"][..], &["+V"], &["+_"], &["+i", "-i"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
