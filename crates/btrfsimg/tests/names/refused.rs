//! What the kernel refuses is refused, in the kernel's words, and nothing is changed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use btrfsimg_testkit::Oracle;
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use crate::common::{Lab, run, sh};
use crate::writing::sha256;

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
    (&["ln", "-s", "x", "/ro/y"], |t| std::os::unix::fs::symlink("x", t.join("ro/y"))),
    (&["xattr", "set", "/ro/x", "user.a", "b"], |t| set(t.join("ro/x"), "user.a", b"b")),
    (&["prop", "set", "/ro/x", "compression", "lzo"], |t| set(t.join("ro/x"), "btrfs.compression", b"lzo")),
    (&["mknod", "/ro/p", "p"], |t| {
        Ok(rustix::fs::mknodat(CWD, t.join("ro/p"), FileType::Fifo, Mode::RUSR, 0)?)
    }),
    (&["ln", "/s/x", "/x"], |t| fs::hard_link(t.join("s/x"), t.join("x"))),
    (&["ln", "/dir", "/x"], |t| fs::hard_link(t.join("dir"), t.join("x"))),
    (&["ln", "/immutable", "/x"], |t| fs::hard_link(t.join("immutable"), t.join("x"))),
    (&["ln", "/append", "/x"], |t| fs::hard_link(t.join("append"), t.join("x"))),
    (&["ln", "/linked", "/x"], |t| fs::hard_link(t.join("linked"), t.join("x"))),
    (&["mkdir", concat!("/", NAME_256!())], |t| fs::create_dir(t.join(NAME_256!()))),
    (&["rm", "-d", "/dir"], |t| fs::remove_dir(t.join("dir"))),
    (&["chmod", "600", "/immutable"], |t| mode(t.join("immutable"))),
    (&["chown", "1", "/append"], |t| std::os::unix::fs::chown(t.join("append"), Some(1), None)),
    (&["touch", "-d", "@5", "/immutable"], |t| {
        let time = std::time::SystemTime::UNIX_EPOCH;
        File::open(t.join("immutable"))?.set_modified(time)
    }),
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
];

#[test]
fn what_the_kernel_refuses_is_refused_before_any_change() {
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(
            top,
            "mkdir -p dir/sub empty fixed grows; printf x > plain; printf x > fixed/x; printf x > grows/x
            touch immutable append nocow linked; chattr +C nocow; mkfifo fifo; ln -s plain sym
            btrfs -q subvolume create s; printf x > s/x; btrfs -q subvolume snapshot -r s ro
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
    let mounted = sha256(&lab.image);
    for ((ours, _), kernel) in REFUSED.iter().zip(kernel) {
        let words = ours.iter().map(|w| w.replace("HOST", lab.dir.path().to_str().unwrap()));
        let at = if matches!(ours[0], "prop" | "xattr") { 2 } else { 1 };
        let mut args: Vec<String> = words.collect();
        args.splice(at..at, ["-i".to_owned(), image.to_owned()]);
        let ran = run(&args);
        assert_eq!(ran.code, 1, "{ours:?}: {}", ran.stderr);
        let said = ran.stderr.to_lowercase();
        let same = said.contains(&kernel) || (kernel == "file exists" && said.contains("already exists"));
        assert!(same, "{ours:?}: the kernel says {kernel}, we {}", ran.stderr);
        assert!(ran.stderr.contains(image), "no place in {}", ran.stderr);
    }
    assert_eq!(sha256(&lab.image), mounted, "something changed (before the mount: {before})");
}
