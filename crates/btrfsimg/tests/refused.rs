//! What the kernel refuses the command refuses: in the kernel's words, with the place, before anything is changed.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;
#[path = "common/writing.rs"]
mod writing;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use btrfsimg_testkit::Oracle;
use common::{Lab, run, sh};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use writing::sha256;

/// One byte more than a name may have.
macro_rules! NAME_256 {
    () => {
        concat!(
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
        )
    };
}
type Kernel = fn(&Path) -> io::Result<()>;

fn set(path: PathBuf, name: &str, value: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())?)
}

fn mode(path: PathBuf) -> io::Result<()> {
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(0o600))?)
}

fn times(path: PathBuf) -> io::Result<()> {
    let time = rustix::fs::Timespec { tv_sec: 5, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::empty())?)
}

fn truncate(path: PathBuf) -> io::Result<()> {
    File::options().write(true).truncate(true).open(path).map(drop)
}

fn overwrite(path: PathBuf) -> io::Result<()> {
    File::options().write(true).open(path).map(drop)
}

fn append(path: PathBuf) -> io::Result<()> {
    File::options().append(true).open(path).map(drop)
}

fn fifo(path: PathBuf) -> io::Result<()> {
    Ok(rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0)?)
}

/// `btrfs subvolume`, whose last words are the kernel's.
fn subvolume(top: &Path, line: &str) -> io::Result<()> {
    let output = Command::new("btrfs").arg("subvolume").args(line.split(' ')).current_dir(top).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let words = said.trim().rsplit(": ").next().unwrap_or_default().to_owned();
    if output.status.success() { Ok(()) } else { Err(io::Error::other(words)) }
}

/// What is refused, and what the kernel is asked for the same.
const REFUSED: &[(&[&str], Kernel)] = &[
    (&["mv", "/immutable", "/x"], |t| fs::rename(t.join("immutable"), t.join("x"))),
    (&["mv", "/append", "/x"], |t| fs::rename(t.join("append"), t.join("x"))),
    (&["mv", "/plain", "/immutable"], |t| fs::rename(t.join("plain"), t.join("immutable"))),
    (&["mv", "/fixed/x", "/x"], |t| fs::rename(t.join("fixed/x"), t.join("x"))),
    (&["mv", "/plain", "/fixed/y"], |t| fs::rename(t.join("plain"), t.join("fixed/y"))),
    (&["rm", "/grows/x"], |t| fs::remove_file(t.join("grows/x"))),
    (&["rm", "/immutable"], |t| fs::remove_file(t.join("immutable"))),
    (&["mv", "/dir", "/dir/sub/deep"], |t| fs::rename(t.join("dir"), t.join("dir/sub/deep"))),
    (&["mv", "-T", "/empty", "/dir"], |t| fs::rename(t.join("empty"), t.join("dir"))),
    (&["mv", "-T", "/dir", "/plain"], |t| fs::rename(t.join("dir"), t.join("plain"))),
    (&["mv", "-T", "/plain", "/dir"], |t| fs::rename(t.join("plain"), t.join("dir"))),
    (&["mv", "-T", "/empty", "/s"], |t| fs::rename(t.join("empty"), t.join("s"))),
    (&["mv", "/none", "/x"], |t| fs::rename(t.join("none"), t.join("x"))),
    (&["mv", "/ro", "/dir/ro"], |t| fs::rename(t.join("ro"), t.join("dir/ro"))),
    (&["mv", "/ro/x", "/ro/y"], |t| fs::rename(t.join("ro/x"), t.join("ro/y"))),
    (&["mkdir", "/ro/d"], |t| fs::create_dir(t.join("ro/d"))),
    (&["touch", "/ro/new"], |t| File::create(t.join("ro/new")).map(drop)),
    (&["rm", "/ro/x"], |t| fs::remove_file(t.join("ro/x"))),
    (&["chmod", "600", "/ro/x"], |t| mode(t.join("ro/x"))),
    (&["ln", "/ro/x", "/ro/y"], |t| fs::hard_link(t.join("ro/x"), t.join("ro/y"))),
    (&["ln", "-s", "x", "/ro/y"], |t| symlink("x", t.join("ro/y"))),
    (&["xattr", "set", "/ro/x", "user.a", "b"], |t| set(t.join("ro/x"), "user.a", b"b")),
    (&["prop", "set", "/ro/x", "compression", "lzo"], |t| set(t.join("ro/x"), "btrfs.compression", b"lzo")),
    (&["mknod", "/ro/p", "p"], |t| fifo(t.join("ro/p"))),
    (&["ln", "/s/x", "/x"], |t| fs::hard_link(t.join("s/x"), t.join("x"))),
    (&["ln", "/dir", "/x"], |t| fs::hard_link(t.join("dir"), t.join("x"))),
    (&["ln", "/immutable", "/x"], |t| fs::hard_link(t.join("immutable"), t.join("x"))),
    (&["ln", "/append", "/x"], |t| fs::hard_link(t.join("append"), t.join("x"))),
    (&["ln", "/linked", "/x"], |t| fs::hard_link(t.join("linked"), t.join("x"))),
    (&["mkdir", concat!("/", NAME_256!())], |t| fs::create_dir(t.join(NAME_256!()))),
    (&["rm", "-d", "/dir"], |t| fs::remove_dir(t.join("dir"))),
    (&["chmod", "600", "/immutable"], |t| mode(t.join("immutable"))),
    (&["chown", "1", "/append"], |t| chown(t.join("append"), Some(1), None)),
    (&["touch", "-d", "@5", "/immutable"], |t| times(t.join("immutable"))),
    (&["prop", "set", "/nocow", "compression", "zstd"], |t| {
        set(t.join("nocow"), "btrfs.compression", b"zstd")
    }),
    (&["xattr", "set", "/nocow", "btrfs.compression", "zstd"], |t| {
        set(t.join("nocow"), "btrfs.compression", b"zstd")
    }),
    (&["xattr", "set", "/plain", "btrfs.compression", "deflate"], |t| {
        set(t.join("plain"), "btrfs.compression", b"deflate")
    }),
    (&["xattr", "set", "/fifo", "user.a", "b"], |t| set(t.join("fifo"), "user.a", b"b")),
    (&["xattr", "rm", "/fifo", "user.a"], |t| Ok(rustix::fs::lremovexattr(t.join("fifo"), "user.a")?)),
    (&["xattr", "rm", "-h", "/sym", "user.a"], |t| Ok(rustix::fs::lremovexattr(t.join("sym"), "user.a")?)),
    (&["xattr", "rm", "/fifo", "trusted.a"], |t| Ok(rustix::fs::lremovexattr(t.join("fifo"), "trusted.a")?)),
    (&["xattr", "set", "-h", "/sym", "user.a", "b"], |t| set(t.join("sym"), "user.a", b"b")),
    (&["xattr", "set", "/plain", "other.a", "b"], |t| set(t.join("plain"), "other.a", b"b")),
    (&["xattr", "set", "/plain", "system.a", "b"], |t| set(t.join("plain"), "system.a", b"b")),
    (&["xattr", "set", "/plain", "btrfs.a", "b"], |t| set(t.join("plain"), "btrfs.a", b"b")),
    (&["xattr", "set", "/plain", "user.", "b"], |t| set(t.join("plain"), "user.", b"b")),
    (&["xattr", "set", "/plain", concat!("user.", NAME_256!()), "b"], |t| {
        set(t.join("plain"), concat!("user.", NAME_256!()), b"b")
    }),
    (&["xattr", "set", "/immutable", "user.a", "b"], |t| set(t.join("immutable"), "user.a", b"b")),
    (&["xattr", "set", "--value-file", "HOST/17000", "/plain", "user.a"], |t| {
        set(t.join("plain"), "user.a", &[b'x'; 17000])
    }),
    (&["xattr", "set", "--value-file", "HOST/66000", "/plain", "user.a"], |t| {
        set(t.join("plain"), "user.a", &[b'x'; 66000])
    }),
    (&["xattr", "rm", "/plain", "user.none"], |t| Ok(rustix::fs::removexattr(t.join("plain"), "user.none")?)),
    (&["xattr", "set", "/plain", "security.capability", "x"], |t| {
        set(t.join("plain"), "security.capability", b"x")
    }),
    (&["xattr", "set", "/plain", "system.posix_acl_access", "0x01000000"], |t| {
        set(t.join("plain"), "system.posix_acl_access", &[1, 0, 0, 0])
    }),
    (&["xattr", "set", "/plain", "system.posix_acl_access", "0x0200000001000700ffffffff"], |t| {
        set(t.join("plain"), "system.posix_acl_access", &[2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255])
    }),
    (
        &[
            "xattr",
            "set",
            "/plain",
            "system.posix_acl_default",
            "0x0200000001000600ffffffff04000400ffffffff20000400ffffffff",
        ],
        |t| {
            let rest = [[1, 0, 6, 0], [255; 4], [4, 0, 4, 0], [255; 4], [32, 0, 4, 0], [255; 4]].concat();
            set(t.join("plain"), "system.posix_acl_default", &[vec![2, 0, 0, 0], rest].concat())
        },
    ),
    // In and out of a read-only subvolume, by each command.
    (&["mv", "/plain", "/ro/y"], |t| fs::rename(t.join("plain"), t.join("ro/y"))),
    (&["mv", "/ro/x", "/y"], |t| fs::rename(t.join("ro/x"), t.join("y"))),
    (&["mv", "-T", "/s/x", "/ro/x"], |t| fs::rename(t.join("s/x"), t.join("ro/x"))),
    (&["rm", "-r", "/ro/sub"], |t| fs::remove_dir(t.join("ro/sub"))),
    (&["rm", "-d", "/ro/sub"], |t| fs::remove_dir(t.join("ro/sub"))),
    (&["chown", "1", "/ro/x"], |t| chown(t.join("ro/x"), Some(1), None)),
    (&["touch", "-d", "@5", "/ro/x"], |t| times(t.join("ro/x"))),
    (&["truncate", "-s", "0", "/ro/x"], |t| truncate(t.join("ro/x"))),
    (&["write", "/ro/x", "HOST/17000"], |t| overwrite(t.join("ro/x"))),
    (&["write", "--append", "/ro/x", "HOST/17000"], |t| append(t.join("ro/x"))),
    (&["cp", "HOST/17000", ":/ro/x"], |t| truncate(t.join("ro/x"))),
    (&["cp", "HOST/17000", ":/ro/new"], |t| File::create(t.join("ro/new")).map(drop)),
    (&["cp", ":/plain", ":/ro/new"], |t| File::create(t.join("ro/new")).map(drop)),
    (&["xattr", "rm", "/ro/x", "user.none"], |t| Ok(rustix::fs::removexattr(t.join("ro/x"), "user.none")?)),
    (&["subvol", "create", "/ro/new"], |t| subvolume(t, "create ro/new")),
    (&["subvol", "snapshot", "/s", "/ro/new"], |t| subvolume(t, "snapshot s ro/new")),
    (&["subvol", "delete", "/fixed-sub/in"], |t| subvolume(t, "delete fixed-sub/in")),
    // Immutable files, and directories.
    (&["chown", "1", "/immutable"], |t| chown(t.join("immutable"), Some(1), None)),
    (&["truncate", "-s", "0", "/immutable"], |t| truncate(t.join("immutable"))),
    (&["write", "/immutable", "HOST/17000"], |t| overwrite(t.join("immutable"))),
    (&["write", "--append", "/immutable", "HOST/17000"], |t| append(t.join("immutable"))),
    (&["cp", "HOST/17000", ":/immutable"], |t| truncate(t.join("immutable"))),
    (&["cp", ":/plain", ":/immutable"], |t| truncate(t.join("immutable"))),
    (&["ln", "-f", "/plain", "/immutable"], |t| fs::remove_file(t.join("immutable"))),
    (&["xattr", "rm", "/immutable", "user.none"], |t| {
        Ok(rustix::fs::removexattr(t.join("immutable"), "user.none")?)
    }),
    (&["prop", "set", "/immutable", "compression", "lzo"], |t| {
        set(t.join("immutable"), "btrfs.compression", b"lzo")
    }),
    (&["mkdir", "/fixed/d"], |t| fs::create_dir(t.join("fixed/d"))),
    (&["touch", "/fixed/new"], |t| File::create(t.join("fixed/new")).map(drop)),
    (&["rm", "/fixed/x"], |t| fs::remove_file(t.join("fixed/x"))),
    (&["rm", "-r", "/fixed"], |t| fs::remove_file(t.join("fixed/x"))),
    (&["ln", "/plain", "/fixed/l"], |t| fs::hard_link(t.join("plain"), t.join("fixed/l"))),
    (&["ln", "-s", "x", "/fixed/l"], |t| symlink("x", t.join("fixed/l"))),
    (&["mknod", "/fixed/p", "p"], |t| fifo(t.join("fixed/p"))),
    (&["chmod", "600", "/fixed"], |t| mode(t.join("fixed"))),
    (&["cp", "HOST/17000", ":/fixed/new"], |t| File::create(t.join("fixed/new")).map(drop)),
    (&["cp", ":/plain", ":/fixed/new"], |t| File::create(t.join("fixed/new")).map(drop)),
    (&["subvol", "create", "/fixed/new"], |t| subvolume(t, "create fixed/new")),
    (&["subvol", "snapshot", "/s", "/fixed/new"], |t| subvolume(t, "snapshot s fixed/new")),
    // Append-only ones.
    (&["chmod", "600", "/append"], |t| mode(t.join("append"))),
    (&["touch", "-d", "@5", "/append"], |t| times(t.join("append"))),
    (&["truncate", "-s", "0", "/append"], |t| truncate(t.join("append"))),
    (&["write", "/append", "HOST/17000"], |t| overwrite(t.join("append"))),
    (&["cp", "HOST/17000", ":/append"], |t| truncate(t.join("append"))),
    (&["rm", "/append"], |t| fs::remove_file(t.join("append"))),
    (&["xattr", "set", "/append", "user.a", "b"], |t| set(t.join("append"), "user.a", b"b")),
    (&["prop", "set", "/append", "compression", "lzo"], |t| {
        set(t.join("append"), "btrfs.compression", b"lzo")
    }),
    (&["mv", "/grows/x", "/y"], |t| fs::rename(t.join("grows/x"), t.join("y"))),
    (&["mv", "-T", "/plain", "/grows/x"], |t| fs::rename(t.join("plain"), t.join("grows/x"))),
    (&["rm", "-r", "/grows"], |t| fs::remove_file(t.join("grows/x"))),
    // Names: too long, there already, below nothing, below a file.
    (&["mv", "/plain", concat!("/", NAME_256!())], |t| fs::rename(t.join("plain"), t.join(NAME_256!()))),
    (&["ln", "/plain", concat!("/", NAME_256!())], |t| fs::hard_link(t.join("plain"), t.join(NAME_256!()))),
    (&["ln", "-s", "x", concat!("/", NAME_256!())], |t| symlink("x", t.join(NAME_256!()))),
    (&["mknod", concat!("/", NAME_256!()), "p"], |t| fifo(t.join(NAME_256!()))),
    (&["touch", concat!("/", NAME_256!())], |t| File::create(t.join(NAME_256!())).map(drop)),
    (&["cp", "HOST/17000", concat!(":/", NAME_256!())], |t| File::create(t.join(NAME_256!())).map(drop)),
    (&["subvol", "create", concat!("/", NAME_256!())], |t| fs::create_dir(t.join(NAME_256!()))),
    (&["subvol", "snapshot", "/s", concat!("/", NAME_256!())], |t| fs::create_dir(t.join(NAME_256!()))),
    (&["mkdir", "/ro/x"], |t| fs::create_dir(t.join("ro/x"))),
    (&["mknod", "/ro/x", "p"], |t| fifo(t.join("ro/x"))),
    (&["ln", "-s", "x", "/ro/x"], |t| symlink("x", t.join("ro/x"))),
    (&["ln", "/plain", "/ro/x"], |t| fs::hard_link(t.join("plain"), t.join("ro/x"))),
    (&["subvol", "create", "/ro/x"], |t| fs::create_dir(t.join("ro/x"))),
    (&["mknod", "/plain", "p"], |t| fifo(t.join("plain"))),
    (&["ln", "/plain", "/append"], |t| fs::hard_link(t.join("plain"), t.join("append"))),
    (&["ln", "-s", "x", "/plain"], |t| symlink("x", t.join("plain"))),
    (&["subvol", "create", "/plain"], |t| fs::create_dir(t.join("plain"))),
    (&["subvol", "snapshot", "/s", "/plain"], |t| fs::create_dir(t.join("plain"))),
    (&["mv", "/plain", "/none/x"], |t| fs::rename(t.join("plain"), t.join("none/x"))),
    (&["ln", "/plain", "/none/x"], |t| fs::hard_link(t.join("plain"), t.join("none/x"))),
    (&["ln", "-s", "x", "/none/x"], |t| symlink("x", t.join("none/x"))),
    (&["truncate", "-s", "0", "/none/x"], |t| File::create(t.join("none/x")).map(drop)),
    (&["subvol", "create", "/none/x"], |t| fs::create_dir(t.join("none/x"))),
    (&["subvol", "snapshot", "/s", "/none/x"], |t| fs::create_dir(t.join("none/x"))),
    (&["subvol", "delete", "/none"], |t| fs::remove_dir(t.join("none"))),
    (&["mv", "/plain", "/append/x"], |t| fs::rename(t.join("plain"), t.join("append/x"))),
    (&["ln", "/plain", "/append/x"], |t| fs::hard_link(t.join("plain"), t.join("append/x"))),
    (&["mknod", "/append/x", "p"], |t| fifo(t.join("append/x"))),
    (&["subvol", "create", "/append/x"], |t| fs::create_dir(t.join("append/x"))),
    (&["subvol", "snapshot", "/s", "/append/x"], |t| fs::create_dir(t.join("append/x"))),
    // Directories with something in them.
    (&["subvol", "delete", "/outer"], |t| subvolume(t, "delete outer")),
    (&["mv", "-T", "/dir/sub", "/outer"], |t| fs::rename(t.join("dir/sub"), t.join("outer"))),
    (&["touch", "/new/"], |t| File::create(t.join("new/")).map(drop)),
    (&["truncate", "-s", "3", "/new/"], |t| File::create(t.join("new/")).map(drop)),
    (&["write", "/new/", "HOST/17000"], |t| File::create(t.join("new/")).map(drop)),
    (&["mknod", "/new/", "p"], |t| fifo(t.join("new/"))),
    (&["ln", "/plain", "/new/"], |t| fs::hard_link(t.join("plain"), t.join("new/"))),
    (&["ln", "-s", "plain", "/new/"], |t| symlink("plain", t.join("new/"))),
    (&["mv", "/plain", "/new/"], |t| fs::rename(t.join("plain"), t.join("new/"))),
    (&["mv", "-T", "/dir/sub", "/dir"], |t| fs::rename(t.join("dir/sub"), t.join("dir"))),
];

#[test]
fn what_the_kernel_refuses_is_refused_before_any_change() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir -p dir/sub empty fixed grows; printf x > plain; printf x > fixed/x; printf x > grows/x
            touch immutable append nocow linked; chattr +C nocow; mkfifo fifo; ln -s plain sym
            btrfs -q subvolume create s; printf x > s/x; mkdir s/sub; btrfs -q subvolume snapshot -r s ro
            for v in outer fixed-sub; do btrfs -q subvolume create $v; btrfs -q subvolume create $v/in; done
            btrfs property set fixed-sub ro true
            chattr +i immutable fixed; chattr +a append grows",
        );
        for i in 1..65535 {
            fs::hard_link(top.join("linked"), top.join(format!("dir/link{i}"))).unwrap();
        }
    }) else {
        return;
    };
    for size in [17000, 66000] {
        fs::write(lab.host(&size.to_string()), vec![b'x'; size]).unwrap();
    }
    let before = sha256(&lab.image);
    let mut kernel = Vec::new();
    let mount = Oracle::new().mount(&lab.image, "rw").unwrap().unwrap();
    for (ours, theirs) in REFUSED {
        let error = theirs(mount.path()).expect_err(&ours.join(" "));
        // As in 'Operation not permitted (os error 1)'.
        kernel.push(error.to_string().split(" (os").next().unwrap().to_lowercase());
    }
    drop(mount);
    let image = lab.image.to_str().unwrap();
    // Mounting wrote; none of what was refused did.
    let (mounted, mut wrong) = (sha256(&lab.image), Vec::new());
    for ((ours, _), kernel) in REFUSED.iter().zip(kernel) {
        let words = ours.iter().map(|w| w.replace("HOST", lab.dir.path().to_str().unwrap()));
        let at = if matches!(ours[0], "prop" | "xattr" | "subvol") { 2 } else { 1 };
        let mut args: Vec<String> = words.collect();
        args.splice(at..at, ["-i".to_owned(), image.to_owned()]);
        let ran = run(&args);
        let said = ran.stderr.to_lowercase();
        let same = said.contains(&kernel) || (kernel == "file exists" && said.contains("already exists"));
        if ran.code != 1 || !same || !ran.stderr.contains(image) {
            wrong.push(format!("{ours:?}: the kernel says {kernel}, we {} {}", ran.code, ran.stderr.trim()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), REFUSED.len(), wrong.join("\n"));
    assert_eq!(sha256(&lab.image), mounted, "something changed (before the mount: {before})");
}
