//! What an inode can be and carry besides contents.

use super::{Builder, names::COLLIDING};
use rustix::fs::FileType;
use std::{fs, io, os::unix::fs::PermissionsExt};

/// Fifo, socket and devices; numbers need up to 12 bits for the major and 20 for the minor.
pub(super) fn special(b: &mut Builder) -> io::Result<()> {
    b.node("fifo", FileType::Fifo, 0o622, (0, 0))?;
    b.node("sock", FileType::Socket, 0o755, (0, 0))?;
    b.node("null", FileType::CharacterDevice, 0o666, (1, 3))?;
    b.node("whiteout", FileType::CharacterDevice, 0, (0, 0))?;
    b.node("blk", FileType::BlockDevice, 0o600, (259, 70_000))?;
    b.node("largest", FileType::BlockDevice, 0o660, (0xfff, 0xf_ffff))?;
    fs::hard_link(b.at("fifo"), b.at("fifo2"))
}

pub(super) fn modes_and_owners(b: &mut Builder) -> io::Result<()> {
    let owned = b.file("owned", "o")?;
    b.owner(&owned, 1000, 100)?;
    let sticky = b.dir("sticky")?;
    b.owner(&sticky, 4_294_967_294, 65_534)?;
    let dangling = b.at("dangling");
    b.owner(&dangling, 7, 8)?;
    b.file("setuid", "#!\n")?;
    b.dir("setgid.d")?;
    // After the owners: changing these clears setuid and setgid.
    for (name, mode) in [("sticky", 0o1777), ("setuid", 0o4755), ("setgid.d", 0o2770)] {
        fs::set_permissions(b.at(name), fs::Permissions::from_mode(mode))?;
    }
    if !rustix::process::geteuid().is_root() {
        b.left_out.insert("a file of mode 0 (only root could read it)".to_owned());
        return Ok(());
    }
    let mode0 = b.file("mode0", "m")?;
    fs::set_permissions(mode0, fs::Permissions::from_mode(0o0))
}

pub(super) fn xattrs(b: &mut Builder) -> io::Result<()> {
    let file = b.file("xattr", "x")?;
    let big = b.rng.bytes(3000);
    b.xattr(&file, "user.big", &big)?;
    b.xattr(&file, "user.empty", b"")?;
    b.xattr(&file, b"user.\xff\xfe", b"a name that is not UTF-8")?;
    b.xattr(&file, "trusted.t", b"\0\x01\x02")?;
    b.xattr(&file, "security.capability", &capability())?;
    let dir = b.dir("coll")?;
    for name in COLLIDING {
        b.xattr(&dir, format!("user.{name}"), name.as_bytes())?;
    }
    let dir = b.dir("several")?;
    for i in 0..20_u8 {
        b.xattr(&dir, format!("user.x{i}"), &[i; 90])?;
    }
    let dangling = b.at("dangling");
    b.xattr(&dangling, "trusted.onlink", b"v")?;
    let fifo = b.at("fifo");
    b.xattr(&fifo, "trusted.onfifo", b"v")?;
    acls(b)
}

fn acls(b: &mut Builder) -> io::Result<()> {
    let file = b.file("acl", "a")?;
    b.xattr(&file, "system.posix_acl_access", &acl())?;
    let dir = b.dir("acl.d")?;
    b.xattr(&dir, "system.posix_acl_default", &acl())?;
    // Inherits the default ACL.
    b.file("acl.d/heir", "h").map(drop)
}

/// `vfs_cap_data`, revision 2 with the effective bit: CAP_NET_RAW permitted.
fn capability() -> Vec<u8> {
    [0x0200_0001_u32, 0x2000, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `posix_acl_xattr_header` (version 2) and entries of (tag, permissions, id): rw- for the owner and for user
/// 1000, r-- for all others.
fn acl() -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(0x01, 6, NO_ID), (0x02, 6, 1000), (0x04, 4, NO_ID), (0x10, 6, NO_ID), (0x20, 4, NO_ID)];
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// Before 1970, after 2106 (more than 32 bits, signed or not), and exactly the epoch.
pub(super) fn times(b: &mut Builder) -> io::Result<()> {
    for (name, time) in [
        ("old", (-86_400 * 365, 123_456_789)),
        ("future", (4_500_000_000, 999_999_999)),
        ("epoch", (0, 0)),
        ("before", (-1, 999_999_999)),
    ] {
        let path = b.file(name, name)?;
        b.times.insert(path, time);
    }
    Ok(())
}

/// The top directory has everything of its own.
pub(super) fn top(b: &mut Builder) -> io::Result<()> {
    let top = b.top.clone();
    b.xattr(&top, "user.top", b"top")?;
    b.owner(&top, 12, 34)?;
    fs::set_permissions(&top, fs::Permissions::from_mode(0o711))?;
    b.times.insert(top, (1_000_000_000, 2));
    Ok(())
}
