//! What is compressed.

use anyhow::{Context, Result};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// A tree and what the page calls it.
#[derive(Debug, Clone)]
pub(crate) struct Corpus {
    pub(super) name: String,
    pub(super) dir: PathBuf,
}

/// `NAME=DIR`, or a directory whose own name will do.
pub(super) fn parse(text: &str) -> Result<Corpus, String> {
    let (name, dir) = match text.split_once('=') {
        Some((name, dir)) => (name.to_owned(), PathBuf::from(dir)),
        None => {
            let dir = PathBuf::from(text);
            let name = dir.file_name().ok_or("a directory without a name needs NAME=")?;
            (name.to_string_lossy().into_owned(), dir)
        }
    };
    if name.is_empty() { Err("an empty name".to_owned()) } else { Ok(Corpus { name, dir }) }
}

/// `/usr`, and the newest of Debian's kernel sources, unpacked in `place`.
pub(super) fn of_this_machine(place: &Path) -> Result<Vec<Corpus>> {
    let mut corpora = vec![Corpus { name: "/usr".to_owned(), dir: PathBuf::from("/usr") }];
    let archives = fs::read_dir("/usr/src").into_iter().flatten().filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        Some(name.strip_prefix("linux-source-")?.strip_suffix(".tar.xz")?.to_owned())
    });
    if let Some(version) = archives.max() {
        let (archive, dir) = (format!("/usr/src/linux-source-{version}.tar.xz"), place.join("linux"));
        fs::create_dir(&dir)?;
        let words = [OsStr::new("-xf"), archive.as_ref(), "-C".as_ref(), dir.as_os_str()];
        crate::trees::run("tar", words)?;
        corpora.push(Corpus { name: format!("Linux {version} source"), dir });
    }
    Ok(corpora)
}

/// A kind of file, as users tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Source,
    Executable,
    Document,
    Compressed,
}

impl Kind {
    pub(super) const ALL: [(Kind, &str); 4] = [
        (Kind::Source, "source"),
        (Kind::Executable, "executables"),
        (Kind::Document, "documents"),
        (Kind::Compressed, "compressed already"),
    ];

    /// By its first bytes, else by its name.
    pub(super) fn of(path: &Path, bytes: &[u8]) -> Option<Kind> {
        let magic: [(&[u8], Kind); 7] = [
            (b"\x7fELF", Kind::Executable),
            (b"\x1f\x8b", Kind::Compressed),
            (b"\xfd7zXZ", Kind::Compressed),
            (b"PK\x03\x04", Kind::Compressed),
            (b"\x89PNG", Kind::Compressed),
            (b"\xff\xd8\xff", Kind::Compressed),
            (b"%PDF", Kind::Document),
        ];
        if let Some((_, kind)) = magic.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return Some(*kind);
        }
        match path.extension()?.to_str()? {
            "c" | "h" | "cc" | "hpp" | "rs" | "py" | "pl" | "pm" | "S" | "sh" | "js" => Some(Kind::Source),
            "txt" | "md" | "rst" | "html" | "xml" | "svg" | "tex" | "json" | "yaml" | "po" => {
                Some(Kind::Document)
            }
            "xz" | "gz" | "zst" | "bz2" | "jpg" | "png" | "whl" | "jar" => Some(Kind::Compressed),
            _ => None,
        }
    }
}

/// The contents of regular files of a tree, names sorted, until `limit` bytes are read or `each` has enough.
pub(super) fn read(dir: &Path, limit: u64, each: &mut dyn FnMut(&Path, Vec<u8>) -> bool) -> Result<()> {
    let (mut pending, mut left) = (vec![dir.to_owned()], limit);
    while let Some(path) = pending.pop() {
        let meta = fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
        if meta.is_dir() {
            let Ok(entries) = fs::read_dir(&path) else { continue };
            let mut below: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
            below.sort_by(|a, b| b.cmp(a));
            pending.extend(below);
        } else if meta.is_file() && meta.len() > 0 {
            let Ok(bytes) = fs::read(&path) else { continue };
            left = left.saturating_sub(bytes.len() as u64);
            if !each(&path, bytes) || left == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// Files in chunks of 128 KiB, about `limit` bytes of them: every file counts, every n-th is taken.
pub(super) fn chunks(dir: &Path, limit: u64) -> Result<Vec<Vec<u8>>> {
    let total = crate::trees::size(dir)?.max(1);
    let step = total.div_ceil(limit.max(1)).max(1);
    let (mut chunks, mut n) = (Vec::new(), 0_u64);
    read(dir, u64::MAX, &mut |_, bytes| {
        n += 1;
        if n.is_multiple_of(step) {
            chunks.extend(bytes.chunks(btrfsimg_compress::MAX_CHUNK).map(<[u8]>::to_vec));
        }
        true
    })?;
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_kinds() {
        let corpus = parse("Linux 6.1 source=/a/b").unwrap();
        assert_eq!((corpus.name.as_str(), corpus.dir), ("Linux 6.1 source", PathBuf::from("/a/b")));
        assert_eq!(parse("/a/b").unwrap().name, "b");
        assert!(parse("/").is_err() && parse("=x").is_err());
        let kind = |name: &str, bytes: &[u8]| Kind::of(Path::new(name), bytes);
        assert_eq!(kind("a.c", b"int"), Some(Kind::Source));
        assert_eq!(kind("a", b"\x7fELF"), Some(Kind::Executable));
        assert_eq!(kind("a.c", b"\x1f\x8b"), Some(Kind::Compressed));
        assert_eq!(kind("a.txt", b"hello"), Some(Kind::Document));
        assert_eq!(kind("Makefile", b"all:"), None);
    }
}
