//! `batch`: many edits of one image, in one commit.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use btrfsimg_fs::Error;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use crate::address::{Address, ImageArgs};
use crate::args::Global;
use crate::cmd::Command;
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::output::{Ui, shown};

/// Bytes by which a file of lines is told from something else.
const BEGINNING: u64 = 4096;

/// Change an image by many commands, in one commit
///
/// Each line of FILE ('-' or none: standard input) is a command as this program has it, its paths written without the
/// image. Words are split and quoted as in a shell; '#' begins a comment. Sources on the host are relative to the
/// working directory. When a line fails, nothing is changed.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg batch out.img edits.txt
  printf '%s\\n' 'mkdir -p /etc/app' 'cp app.conf :/etc/app/' | btrfsimg batch out.img
In FILE, cp writes a path in the image as ':/path':
  # users and their files
  mkdir -p /home/ann
  cp -r skel/. :/home/ann
  chown -R 1000:1000 /home/ann
  prop set /home compression zstd:3")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// The image (not with -i), and the file with the lines
    #[arg(num_args = 0..=2, value_name = "IMAGE [FILE]")]
    words: Vec<OsString>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let mut words = args.words.iter();
    let image = args.image.image.as_ref().map(|image| image.as_os_str());
    let path = image.or_else(|| words.next().map(OsString::as_os_str));
    let path = PathBuf::from(path.ok_or_else(|| usage("no image given; write IMAGE, or -i IMAGE"))?);
    let file = words.next();
    if words.next().is_some() {
        return Err(usage("one file of lines at a time"));
    }
    let name = file.map_or("standard input".to_owned(), |file| shown(file.as_encoded_bytes()));
    let file = file.filter(|file| *file != "-");
    let text = match file {
        Some(file) => read_lines(File::open(file).map_err(Error::io(&name))?, &name)?,
        None => read_lines(std::io::stdin(), &name)?,
    };
    let image = ImageArgs { image: Some(path.clone()), ..args.image.clone() };
    let lines = parse(&text, &name, &image)?;
    check_stdin(&lines, file.is_none())?;
    let mut change = |cx: &mut EditCx<'_, '_>| {
        lines.iter().try_for_each(|line| {
            cx.line(&line.addresses, line.verbose, |cx| line.edit()?.apply(cx))
                .with_context(|| line.shown.clone())
        })
    };
    args.edit.commit(&image, &path, &[], ui, &mut change)
}

/// All of a file of lines. What is binary is refused by its beginning: it may be an image, and large.
fn read_lines(mut from: impl Read, name: &str) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    from.by_ref().take(BEGINNING).read_to_end(&mut text).map_err(Error::io(name))?;
    if text.contains(&0) {
        return Err(usage(format!(
            "{name}: no lines of commands, but binary; the image comes first: batch IMAGE FILE"
        )));
    }
    from.read_to_end(&mut text).map_err(Error::io(name))?;
    Ok(text)
}

/// A line, understood.
struct Line {
    /// Its place and text, for errors.
    shown: String,
    command: Command,
    image: ImageArgs,
    addresses: Vec<Address>,
    verbose: bool,
}

/// A line's words, as clap sees them.
#[derive(Parser, Debug)]
#[command(
    name = "batch",
    no_binary_name = true,
    subcommand_required = true,
    disable_help_flag = true,
    args_override_self = true
)]
struct Words {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

fn parse(text: &[u8], file: &str, image: &ImageArgs) -> Result<Vec<Line>> {
    // Made once: lines are many, and it knows every command.
    let mut grammar = Words::command();
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.split(|b| *b == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let place = || format!("{file}:{number}: {} (nothing was changed)", shown(line.trim_ascii()));
        let Some(words) = shlex::bytes::split(line) else {
            return Err(usage("a quotation that does not end").context(place()));
        };
        if words.is_empty() {
            continue;
        }
        let parsed = parse_line(&mut grammar, words, image).and_then(|words| {
            let line = Line {
                shown: place(),
                command: words.command,
                image: image.clone(),
                addresses: Vec::new(),
                verbose: words.global.verbose > 0,
            };
            let addresses = line.edit()?.addresses(image)?;
            check_image(line.edit()?, &addresses, image)?;
            Ok(Line { addresses, ..line })
        });
        lines.push(parsed.with_context(place)?);
    }
    Ok(lines)
}

fn parse_line(grammar: &mut clap::Command, words: Vec<Vec<u8>>, image: &ImageArgs) -> Result<Words> {
    let words = words.into_iter().map(OsString::from_vec);
    let matches = grammar.try_get_matches_from_mut(words).map_err(|e| usage(first_paragraph(&e)))?;
    let words = Words::from_arg_matches(&matches).map_err(|e| usage(first_paragraph(&e)))?;
    match words.command.edit(Some(image)) {
        Some(_) => Ok(words),
        None if matches!(words.command, Command::Cp(_)) => {
            Err(usage("does not copy into the image; cp writes a path in the image as ':/path'"))
        }
        None if matches!(words.command, Command::Defrag(_) | Command::Trim(_) | Command::Mkfs(_)) => {
            Err(usage("is no part of one commit; run it by itself, before or after the batch"))
        }
        None => Err(usage("does not change the image; a batch is made of commands that do")),
    }
}

/// What clap says first, on one line.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    lines.join(" ")
}

/// Refuses what is the batch's to say.
fn check_image(edit: &dyn Edit, addresses: &[Address], image: &ImageArgs) -> Result<()> {
    let (own, options) = edit.options();
    if own.image.is_some() || own.offset != 0 || own.subvol.is_some() || !options.is_default() {
        return Err(usage("the image and how it is opened are options of the batch, not of a line"));
    }
    let elsewhere = |a: &&Address| Some(Path::new(&a.image)) != image.image.as_deref();
    match addresses.iter().find(elsewhere) {
        Some(address) => Err(usage(format!("{address}: a batch changes one image"))),
        None => Ok(()),
    }
}

/// Refuses lines that read standard input where it holds the lines, or another line has read it.
fn check_stdin(lines: &[Line], mut taken: bool) -> Result<()> {
    for line in lines {
        if line.edit()?.reads_stdin() && std::mem::replace(&mut taken, true) {
            let error = usage("standard input is read already; give a file");
            return Err(error.context(line.shown.clone()));
        }
    }
    Ok(())
}

impl Line {
    fn edit(&self) -> Result<&dyn Edit> {
        self.command.edit(Some(&self.image)).ok_or_else(|| usage("does not change the image"))
    }
}
