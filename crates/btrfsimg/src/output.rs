//! What is printed: results on standard output, for people or as JSON; all else on standard error.

mod human;
mod mode;
mod time;

use std::io::{self, BufWriter, StdoutLock, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use anyhow::Result;
use base64::Engine as _;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::args::Global;
use crate::exit;

pub(crate) use human::{human_size, pretty_size};
pub(crate) use mode::{mode_string, type_name};
pub(crate) use time::{iso_time, list_time, parse_stamp, parse_time, second};

/// The version of the JSON schema, in every document.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Writes a line to standard error. Where nobody reads that, the command goes on: its exit code tells.
fn say(message: &str) {
    let _ = io::stderr().write_all(format!("btrfsimg: {message}\n").as_bytes());
}

/// The JSON that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Json {
    No,
    /// One document.
    Document,
    /// Documents of a line each.
    Lines,
}

/// Whether a document was printed, or begun.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Notes that a document begins on standard output, other than by [`print_json`].
pub(crate) fn begin_document() {
    REPORTED.store(true, Ordering::Relaxed);
}

/// Where messages go, and what the process will return.
#[derive(Debug)]
pub(crate) struct Ui {
    global: Global,
    json: Json,
    code: AtomicU8,
}

impl Ui {
    /// For one run.
    pub(crate) fn new(global: Global, json: Json) -> Ui {
        Ui { global, json, code: AtomicU8::new(exit::OK) }
    }

    /// Whether `-q` was given.
    pub(crate) fn is_quiet(&self) -> bool {
        self.global.quiet
    }

    /// How often `-v` was given.
    pub(crate) fn verbosity(&self) -> u8 {
        self.global.verbose
    }

    /// Prints something that the user may want to know; not with `-q`.
    pub(crate) fn note(&self, message: &str) {
        if !self.global.quiet {
            say(&format!("note: {message}"));
        }
    }

    /// Prints something that was left undone, and is no failure; not with `-q`.
    pub(crate) fn warn(&self, message: &str) {
        if !self.global.quiet {
            say(&format!("warning: {message}"));
        }
    }

    /// Prints a failure behind which the command goes on, and remembers its exit code.
    pub(crate) fn fail(&self, message: &str, code: u8) {
        say(message);
        self.remember(code);
    }

    /// Reports an error of the library about `what`, and remembers its exit code.
    pub(crate) fn fail_at(&self, what: &str, error: &btrfsimg_fs::Error) {
        self.fail(&format!("{what}: {error}"), exit::code_of_library(error));
    }

    /// Reports a failure so that the next thing can follow; passes on what ends the command.
    pub(crate) fn tolerate(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(e) if exit::is_broken_pipe(&e) || exit::code_of(&e) == exit::USAGE => Err(e),
            Err(e) => {
                self.fail(&message(&e), exit::code_of(&e));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Makes the exit code stand for `code` as well.
    pub(crate) fn remember(&self, code: u8) {
        let merge = |now| Some(exit::combine(now, code));
        // The closure always gives a value.
        let _ = self.code.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
    }

    /// Prints the error that ended the command, if any, and gives the exit code. Where JSON was asked for and none was
    /// printed yet, the error is the document.
    pub(crate) fn finish(&self, result: Result<()>) -> ExitCode {
        if let Err(e) = result
            && !exit::is_broken_pipe(&e)
        {
            let said = message(&e);
            if self.json != Json::No && !REPORTED.load(Ordering::Relaxed) {
                let error = Map::from_iter([("error".to_owned(), said.clone().into())]);
                // What is wrong is said on standard error in any case.
                let _ = match self.json {
                    Json::Lines => print_json_line("summary", error),
                    _ => print_json(error),
                };
            }
            self.fail(&said, exit::code_of(&e));
        }
        ExitCode::from(self.code.load(Ordering::Relaxed))
    }
}

/// An error with its causes, outermost first. A link that the one before it ends with, or that begins with the one
/// before it, is not said twice: most errors name their object and their cause themselves.
pub(crate) fn message(error: &anyhow::Error) -> String {
    let mut links: Vec<String> = Vec::new();
    for link in error.chain().map(ToString::to_string) {
        match links.last() {
            Some(last) if last.ends_with(&link) => {}
            Some(last) if link.strip_prefix(last.as_str()).is_some_and(|r| r.starts_with([':', ' '])) => {
                links.pop();
                links.push(link);
            }
            _ => links.push(link),
        }
    }
    links.join(": ")
}

/// Standard output, buffered. To be flushed.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}

/// Prints one line on standard output.
pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut out = stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Prints a JSON document of the fields of `body`, led by the schema's version.
pub(crate) fn print_json(body: impl Serialize) -> Result<()> {
    let mut document = Map::new();
    document.insert("version".to_owned(), SCHEMA_VERSION.into());
    match serde_json::to_value(body)? {
        Value::Object(fields) => document.extend(fields),
        other => _ = document.insert("value".to_owned(), other),
    }
    begin_document();
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, &document)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// Prints a JSON document on one line, led by the schema's version and what it is.
pub(crate) fn print_json_line(kind: &str, fields: Map<String, Value>) -> Result<()> {
    let mut line = Map::new();
    line.insert("version".to_owned(), SCHEMA_VERSION.into());
    line.insert("type".to_owned(), kind.into());
    line.extend(fields);
    if kind == "summary" {
        begin_document();
    }
    let mut out = stdout();
    serde_json::to_writer(&mut out, &line)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// Adds a path of the host to a JSON object, as [`put_bytes`].
pub(crate) fn put_path(object: &mut Map<String, Value>, field: &str, path: &Path) {
    put_bytes(object, field, path.as_os_str().as_bytes());
}

/// The fields of a JSON object about an image, which leads them.
pub(crate) fn about_image(image: &Path, fields: Value) -> Map<String, Value> {
    let mut object = Map::new();
    put_path(&mut object, "image", image);
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    object
}

/// Adds bytes to a JSON object: as text, lossy, and in base64 under `field_b64` where they are not UTF-8.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, field: &str, bytes: &[u8]) {
    object.insert(field.to_owned(), String::from_utf8_lossy(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        object.insert(format!("{field}_b64"), encoded.into());
    }
}

/// Bytes for people: control characters and what is not UTF-8 as `\xNN`, a backslash doubled, so that no name can
/// move the cursor, and that different names look different.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() => c.to_string().bytes().for_each(|b| push_hex(&mut out, b)),
                c => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|b| push_hex(&mut out, *b));
    }
    out
}

fn push_hex(out: &mut String, byte: u8) {
    out.push_str(&format!("\\x{byte:02x}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_for_people() {
        let cases: [(&[u8], &str); 5] = [
            (b"plain name", "plain name"),
            ("n\u{e4}me".as_bytes(), "n\u{e4}me"),
            (b"a\nb\x1b[31m", "a\\nb\\x1b[31m"),
            (b"\xff\xfe", "\\xff\\xfe"),
            (b"a\\x", "a\\\\x"),
        ];
        for (bytes, text) in cases {
            assert_eq!(shown(bytes), text);
        }
    }

    #[test]
    fn nothing_is_said_twice() {
        let cause = || io::Error::from(io::ErrorKind::NotFound);
        let said = |what: &str| anyhow::Error::new(btrfsimg_fs::Error::io(what)(cause()));
        assert_eq!(message(&said("a")), format!("a: {}", cause()));
        assert_eq!(message(&said("a").context("a")), format!("a: {}", cause()));
        assert_eq!(message(&said("ab").context("a")), format!("a: ab: {}", cause()));
        let exists = btrfsimg_fs::Error::Exists("x.img:/d".to_owned());
        let error = anyhow::Error::new(exists).context("x.img:/d").context("x.img");
        assert_eq!(message(&error), "x.img:/d: already exists");
    }

    #[test]
    fn bytes_in_json() {
        let mut object = Map::new();
        put_bytes(&mut object, "name", b"ok");
        assert_eq!(object.len(), 1);
        put_bytes(&mut object, "name", b"\xff");
        assert_eq!(object["name"], "\u{fffd}");
        assert_eq!(object["name_b64"], "/w==");
    }
}
