//! Names, links and directories.

use super::Builder;
use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::symlink},
};

/// Pairs of names with the same hash (crc32c with seed 0xFFFFFFFE); a common prefix keeps them colliding.
pub(super) const COLLIDING: [&str; 4] = ["ue2r43xy", "c54cvxdh", "qlvw434k", "flotycs9"];

/// Everything but NUL and `/` is a name.
pub(super) fn names(b: &mut Builder) -> io::Result<()> {
    b.dir("names")?;
    let plain: &[&[u8]] = &[
        b"\xff\xfe",
        b"\x80",
        b"a\nb",
        b"a\tb",
        b"\x01\x1b[31m",
        b" ",
        b"-rf",
        b"--",
        b"a:b",
        b"a\\b",
        b"...",
        b"..x",
        b"*?[",
        b"'\"",
        b"ro:x",
        b"default:",
        b"hello.txt",
        b"@@1",
    ];
    let long = [vec![b'x'; 255], vec![0xff; 254], "あ".repeat(85).into_bytes(), "·".repeat(127).into_bytes()];
    let all = plain.iter().copied().chain(COLLIDING.map(str::as_bytes)).chain(long.iter().map(Vec::as_slice));
    for name in all {
        b.file([b"names/", name].concat(), name)?;
    }
    for name in [&b"ro:x.d"[..], b"default:.d", b"\xfe\xff.d"] {
        b.dir([b"names/", name].concat())?;
        b.file([b"names/", name, b"/inside"].concat(), name)?;
    }
    Ok(())
}

/// Many names of one file, one with a name outside, and links of what is no regular file.
pub(super) fn hard_links(b: &mut Builder, links: usize) -> io::Result<()> {
    let first = b.file("h1", b"hard".repeat(5000))?;
    let dir = b.dir("hl")?;
    for i in 0..links {
        fs::hard_link(&first, dir.join(format!("l{i:03}{}", "y".repeat(60))))?;
    }
    let mut outside = b.top.clone().into_os_string();
    outside.push(".outside");
    let out = b.file("out", vec![b'o'; 9999])?;
    match fs::hard_link(out, outside) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Targets are bytes, and need not exist.
pub(super) fn symlinks(b: &mut Builder, longest: usize) -> io::Result<()> {
    let to = |target: &[u8], name: &str| symlink(OsStr::from_bytes(target), b.at(name));
    to(b"/nowhere/at/all", "dangling")?;
    to(b"self", "self")?;
    to(b"h1", "tofile")?;
    to(b"hl", "todir")?;
    to(b"..", "updir")?;
    to("é".as_bytes(), "utf8link")?;
    to(b"\xff\n", "bytelink")?;
    to(&vec![b't'; longest], "longlink")?;
    // link(2) does not follow: the link itself gets a second name.
    fs::hard_link(b.at("dangling"), b.at("dangling2"))
}

/// About 3 KB of path.
pub(super) fn deep(b: &mut Builder) -> io::Result<()> {
    let mut path = "deep".to_owned();
    b.dir(&path)?;
    for _ in 0..30 {
        path.push('/');
        path.push_str(&"n".repeat(100));
        b.dir(&path)?;
    }
    b.file(path + "/leaf", "deep").map(drop)
}

/// A directory that needs a tree of its own, and an empty one.
pub(super) fn many(b: &mut Builder, entries: usize) -> io::Result<()> {
    b.dir("empty")?;
    b.dir("many")?;
    for i in 0..entries {
        b.file(format!("many/f{i:06}"), i.to_string().repeat(i % 90))?;
    }
    Ok(())
}
