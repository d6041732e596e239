use super::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, makedev, mknodat};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::{fs::FileTimes, os::unix::fs::FileExt, time::SystemTime};
use tempfile::TempDir;

/// The tree that every mutation starts from.
fn build(top: &Path) {
    fs::create_dir_all(top.join("dir/sub")).unwrap();
    fs::write(top.join("file"), "some contents").unwrap();
    fs::write(top.join("dir/one"), "linked").unwrap();
    fs::hard_link(top.join("dir/one"), top.join("dir/two")).unwrap();
    fs::write(top.join("dir/alone"), "linked").unwrap();
    symlink("target", top.join("symlink")).unwrap();
    mknodat(CWD, top.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.set_len(6 << 30).unwrap();
    sparse.write_all_at(b"data", 5 << 30).unwrap();
    lsetxattr(top.join("file"), "user.a", b"1", XattrFlags::empty()).unwrap();
    for path in ["sparse", "dir/one", "dir/alone", "file", "dir/sub", "dir", ""] {
        set_mtime(&top.join(path), 1_000_000_000);
    }
    rustix::fs::utimensat(
        CWD,
        top.join("symlink"),
        &times(1_000_000_000),
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    set_fifo_time(top);
}

fn times(nanos: i64) -> rustix::fs::Timestamps {
    let at = rustix::fs::Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: 0 };
    rustix::fs::Timestamps { last_access: at, last_modification: at }
}

fn set_fifo_time(top: &Path) {
    rustix::fs::utimensat(CWD, top.join("fifo"), &times(1), rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn set_mtime(path: &Path, nanos: u64) {
    let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(nanos);
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(at)).unwrap();
}

/// Two equal trees, the second then changed by `mutate`; what is seen without a look at the times of directories
/// (which most mutations change as well).
fn seen(mutate: impl Fn(&Path), options: &DiffOptions) -> Vec<(String, DiffKind)> {
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    build(a.path());
    build(b.path());
    mutate(b.path());
    let report = diff(a.path(), b.path(), options).unwrap();
    let name = |d: &Difference| (d.path.to_str().unwrap().to_owned(), d.kind);
    report.differences.iter().map(name).collect()
}

type Mutation = (&'static str, DiffKind, fn(&Path));

/// One mutation for each kind of difference: the entry at which it must be seen, the kind, the change.
const MUTATIONS: &[Mutation] = &[
    ("file", DiffKind::Missing, |t| fs::remove_file(t.join("file")).unwrap()),
    ("dir/sub", DiffKind::Missing, |t| fs::remove_dir(t.join("dir/sub")).unwrap()),
    ("new", DiffKind::Extra, |t| fs::write(t.join("new"), "").unwrap()),
    ("dir/sub/new", DiffKind::Extra, |t| fs::create_dir(t.join("dir/sub/new")).unwrap()),
    ("file", DiffKind::Type, |t| {
        fs::remove_file(t.join("file")).unwrap();
        fs::create_dir(t.join("file")).unwrap();
    }),
    ("fifo", DiffKind::Type, |t| {
        fs::remove_file(t.join("fifo")).unwrap();
        mknodat(CWD, t.join("fifo"), FileType::Socket, Mode::from_raw_mode(0o644), 0).unwrap();
    }),
    ("file", DiffKind::Mode, |t| {
        fs::set_permissions(t.join("file"), fs::Permissions::from_mode(0o4755)).unwrap()
    }),
    ("", DiffKind::Mode, |t| fs::set_permissions(t, fs::Permissions::from_mode(0o711)).unwrap()),
    ("file", DiffKind::Size, |t| fs::write(t.join("file"), "some content").unwrap()),
    ("file", DiffKind::Content, |t| fs::write(t.join("file"), "some c0ntents").unwrap()),
    ("sparse", DiffKind::Content, |t| {
        File::options().write(true).open(t.join("sparse")).unwrap().write_all_at(b"x", 3 << 30).unwrap();
    }),
    ("sparse", DiffKind::Content, |t| {
        File::options()
            .write(true)
            .open(t.join("sparse"))
            .unwrap()
            .write_all_at(b"\0", (5 << 30) + 3)
            .unwrap();
    }),
    ("file", DiffKind::Mtime, |t| set_mtime(&t.join("file"), 1_000_000_001)),
    ("symlink", DiffKind::Target, |t| {
        fs::remove_file(t.join("symlink")).unwrap();
        symlink("targeu", t.join("symlink")).unwrap();
    }),
    ("file", DiffKind::Xattrs, |t| lsetxattr(t.join("file"), "user.a", b"2", XattrFlags::empty()).unwrap()),
    ("dir", DiffKind::Xattrs, |t| lsetxattr(t.join("dir"), "user.b", b"", XattrFlags::empty()).unwrap()),
    ("", DiffKind::Xattrs, |t| lsetxattr(t, "user.top", b"", XattrFlags::empty()).unwrap()),
    ("file", DiffKind::Xattrs, |t| rustix::fs::lremovexattr(t.join("file"), "user.a").unwrap()),
    ("dir/two", DiffKind::Links, |t| {
        fs::remove_file(t.join("dir/two")).unwrap();
        fs::write(t.join("dir/two"), "linked").unwrap();
    }),
    ("dir/alone", DiffKind::Links, |t| {
        fs::remove_file(t.join("dir/alone")).unwrap();
        fs::hard_link(t.join("dir/one"), t.join("dir/alone")).unwrap();
    }),
    ("dir/one", DiffKind::Nlink, |t| fs::hard_link(t.join("dir/one"), t.join("dir/three")).unwrap()),
];

#[test]
fn equal_trees_are_equal() {
    assert_eq!(seen(|_| {}, &DiffOptions::default()), []);
}

#[test]
fn each_kind_of_difference_is_seen() {
    for (path, kind, mutate) in MUTATIONS {
        let seen = seen(mutate, &DiffOptions::default());
        assert!(seen.contains(&((*path).to_owned(), *kind)), "{kind:?} at {path:?} not in {seen:?}");
    }
}

#[test]
fn what_only_root_can_change_is_seen() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: owners and device numbers (not root)");
        return;
    }
    let owner = seen(
        |t| chown(t.join("symlink").parent().unwrap(), Some(1000), None).unwrap(),
        &DiffOptions::default(),
    );
    assert_eq!(owner, [(String::new(), DiffKind::Owner)]);
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (top, minor) in [(&a, 70000), (&b, 70000 & 0xff)] {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, top.path().join("dev"), FileType::BlockDevice, mode, makedev(259, minor)).unwrap();
    }
    let report = diff(a.path(), b.path(), &DiffOptions { times: false, ..DiffOptions::default() }).unwrap();
    assert_eq!(report.differences.iter().map(|d| d.kind).collect::<Vec<_>>(), [DiffKind::Device], "{report}");
}

#[test]
fn what_is_switched_off_is_not_seen() {
    let none = DiffOptions {
        times: false,
        modes: false,
        owners: false,
        links: false,
        xattrs: true,
        ignore_xattrs: vec!["user.".to_owned()],
    };
    let off = [DiffKind::Mode, DiffKind::Mtime, DiffKind::Xattrs, DiffKind::Links];
    for (path, kind, mutate) in MUTATIONS.iter().filter(|(_, kind, _)| off.contains(kind)) {
        assert_eq!(seen(mutate, &none), [], "{kind:?} at {path:?}");
    }
}

/// A link whose twin lies outside the tree is no difference: the second tree counts its own names.
#[test]
fn a_twin_outside_does_not_count() {
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    build(a.path());
    build(b.path());
    let outside = TempDir::new().unwrap();
    fs::hard_link(a.path().join("file"), outside.path().join("twin")).unwrap();
    diff(a.path(), b.path(), &DiffOptions::default()).unwrap().assert_equal();
    fs::hard_link(b.path().join("file"), outside.path().join("twin2")).unwrap();
    let report = diff(a.path(), b.path(), &DiffOptions::default()).unwrap();
    assert_eq!(report.differences.iter().map(|d| d.kind).collect::<Vec<_>>(), [DiffKind::Nlink], "{report}");
}

/// Deeper than PATH_MAX, which `mkdir -p` in steps can make.
#[test]
fn paths_longer_than_the_system_allows() {
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (top, contents) in [(&a, "x"), (&b, "y")] {
        let mut side = Side::open(top.path()).unwrap();
        for _ in 0..25 {
            let name = "d".repeat(250);
            fs::create_dir(side.path(OsStr::new(&name))).unwrap();
            side = Side::open(&side.path(OsStr::new(&name))).unwrap();
        }
        fs::write(side.path(OsStr::new("leaf")), contents).unwrap();
    }
    let report = diff(a.path(), b.path(), &DiffOptions { times: false, ..DiffOptions::default() }).unwrap();
    assert_eq!(report.entries, 27);
    assert_eq!(
        report.differences.iter().map(|d| d.kind).collect::<Vec<_>>(),
        [DiffKind::Content],
        "{report}"
    );
}
