//! The rules of tidy. A new module, crate or exception is a line here, with its reason.

/// Modules of `btrfsimg-fs` and what each may use directly; what that uses in turn is allowed as well.
/// Nothing else may be used, and no other module may exist.
///
/// The two that matter most: `read` and `verify` reach neither `txn` nor `write`, so that what is opened for
/// reading cannot be written; and `verify` shares only the device and the chunk map with what it judges.
pub(super) const LAYERS: &[(&str, &[&str])] = &[
    ("device", &[]),
    ("chunk_map", &["device"]),
    ("block_store", &["chunk_map", "device"]),
    ("tree", &["block_store"]),
    // Names, inodes and extents by key: readers and writers look things up the same way.
    ("lookup", &["tree"]),
    ("read", &["lookup", "tree"]),
    ("export", &["read"]),
    ("inspect", &["read"]),
    ("diff", &["read"]),
    ("txn", &["tree"]),
    ("write", &["txn", "lookup"]),
    ("import", &["write"]),
    // From one image into another, or within one: a reader on one side, a transaction on the other.
    ("copy", &["read", "write"]),
    ("mkfs", &["write"]),
    ("replay", &["write"]),
    ("resize", &["write"]),
    // Of the committed state, which no transaction is changing.
    ("trim", &["tree"]),
    ("defrag", &["write"]),
    ("verify", &["chunk_map", "device"]),
];

/// Modules that every layer may use; they use none.
pub(super) const SHARED: &[&str] = &["error", "existing", "open_files", "posix_acl", "preserve"];

/// Where the layered modules are.
pub(super) const LAYERED: &str = "crates/btrfsimg-fs/src/";

/// Words that must not occur in code (comments and strings do not count).
pub(super) struct Ban {
    pub(super) words: &'static [&'static str],
    /// Paths that begin so.
    pub(super) within: &'static [&'static str],
    pub(super) except: &'static [&'static str],
    /// In tests too.
    pub(super) tests: bool,
    pub(super) why: &'static str,
}

const LIBRARIES: &[&str] = &[
    "crates/btrfsimg-ondisk/src/",
    "crates/btrfsimg-compress/src/",
    "crates/btrfsimg-fs/src/",
    "crates/btrfsimg-fixture/src/",
];

/// Layers that get at bytes only through `device`.
const NO_OS: &[&str] = &[
    "crates/btrfsimg-fs/src/chunk_map",
    "crates/btrfsimg-fs/src/block_store",
    "crates/btrfsimg-fs/src/tree",
    "crates/btrfsimg-fs/src/read",
    "crates/btrfsimg-fs/src/inspect",
    "crates/btrfsimg-fs/src/diff",
    "crates/btrfsimg-fs/src/trim",
    "crates/btrfsimg-fs/src/txn",
    "crates/btrfsimg-fs/src/write",
    "crates/btrfsimg-fs/src/verify",
    "crates/btrfsimg-ondisk/src/",
    "crates/btrfsimg-compress/src/",
];

pub(super) const BANS: &[Ban] = &[
    Ban {
        words: &["print!", "println!", "eprint!", "eprintln!", "process::exit", "io::stdout", "io::stderr"],
        within: LIBRARIES,
        except: &[],
        tests: false,
        why: "only the command prints or exits",
    },
    Ban {
        words: &["print!", "println!"],
        within: &["crates/btrfsimg/src/"],
        except: &[],
        tests: false,
        why: "they panic when the reader of a pipe goes away; write to output::stdout()",
    },
    Ban {
        words: &["std::fs", "std::os", "std::env", "rustix"],
        within: NO_OS,
        except: &[],
        tests: false,
        why: "only device touches the system for image bytes, only import and export for host files",
    },
    Ban {
        words: &[".sync(", ".sync_all(", ".sync_data("],
        within: &["crates/btrfsimg-fs/src/"],
        except: &[
            "crates/btrfsimg-fs/src/device",
            "crates/btrfsimg-fs/src/txn/commit",
            "crates/btrfsimg-fs/src/mkfs",
            // What it gives back must not be reached by a state that could come back.
            "crates/btrfsimg-fs/src/trim",
        ],
        tests: false,
        why: "only txn/commit, mkfs's last step and trim's first sync",
    },
    Ban {
        words: &["todo!", "unimplemented!", "dbg!", "#[ignore"],
        within: &["crates/", "xtask/", "fuzz/"],
        except: &[],
        tests: true,
        why: "what is not done is not there, and a test that does not run is none",
    },
];

/// Our crates and which of ours each may depend on; for tests, each may use the testkit as well.
pub(super) const CRATES: &[(&str, &[&str])] = &[
    ("btrfsimg-ondisk", &[]),
    ("btrfsimg-compress", &[]),
    ("btrfsimg-fs", &["btrfsimg-ondisk", "btrfsimg-compress"]),
    ("btrfsimg-fixture", &["btrfsimg-fs", "btrfsimg-ondisk", "btrfsimg-compress"]),
    ("btrfsimg", &["btrfsimg-fixture", "btrfsimg-fs", "btrfsimg-ondisk", "btrfsimg-compress"]),
    ("btrfsimg-testkit", &["btrfsimg-fs", "btrfsimg-ondisk", "btrfsimg-compress"]),
    (
        "xtask",
        &["btrfsimg-testkit", "btrfsimg-fixture", "btrfsimg-fs", "btrfsimg-ondisk", "btrfsimg-compress"],
    ),
];

/// Crates whose errors are typed.
pub(super) const NO_ANYHOW: &[&str] =
    &["btrfsimg-ondisk", "btrfsimg-compress", "btrfsimg-fs", "btrfsimg-fixture"];

/// Licences that may be linked into a work under GPL-3.0-or-later. GPL-2.0-only may not.
pub(super) const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "GPL-3.0-or-later",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Lines of a source file: above the first it is listed, above the second refused.
pub(super) const LONG: usize = 500;
pub(super) const TOO_LONG: usize = 800;

/// Places of one machine, which nobody else has. (Split, or this file would hold them.)
pub(super) const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/sr", "v/"), concat!("/ro", "ot/")];
