//! docs/json.md against what the commands print: every field that is printed is there, and every field that is there is
//! printed by some command.
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod common;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use base64::Engine as _;
use common::run;
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/json.md");

/// What docs/json.md says under the heading that begins so, without examples.
fn section(heading: &str) -> String {
    let all = PAGE.split("\n## ").find(|s| s.starts_with(&format!("`{heading}")));
    let all = all.unwrap_or_else(|| panic!("no section of `{heading}`"));
    all.split("```").step_by(2).collect()
}

/// Every word in backticks, those in braces one by one.
fn words(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let spans = text.split('`').skip(1).step_by(2);
    spans.flat_map(|span| span.split(|c| !is_name(c))).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// The fields that a section has: in the first column of a table, or in front of a colon.
fn fields(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with("| `") || line.starts_with('`'));
    lines
        .flat_map(|line| match line.strip_prefix("| ") {
            Some(row) => words(row.split(" | ").next().unwrap()),
            None => match line.split_once("`: ") {
                Some((name, _)) if !name.contains(' ') => words(&format!("{name}`")),
                _ => BTreeSet::new(),
            },
        })
        .collect()
}

/// The fields of all objects in a document.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            found.insert(key.strip_suffix("_b64").unwrap_or(key).to_owned());
            keys(value, found);
        }),
        Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

fn printed(args: &[&OsStr], code: i32) -> Vec<Value> {
    let ran = run(args).expect(code);
    if args.contains(&OsStr::new("--jsonl")) {
        return ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    }
    let document: Value =
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", ran.stderr));
    assert_eq!(document["version"], 1, "{args:?}");
    vec![document]
}

/// The commands of one section, with their exit codes. `@` in them is the image, `@d` a damaged one, `@u` one with an
/// unknown feature, `@n` no image.
struct Case {
    heading: &'static str,
    /// Sections whose fields these documents have as well.
    like: &'static [&'static str],
    runs: &'static [(&'static str, i32)],
}

const CASES: &[Case] = &[
    Case { heading: "mkfs", like: &[], runs: &[("mkfs --stats --compress zstd -r TREE NEW", 0)] },
    Case { heading: "ls", like: &[], runs: &[("ls -R @:/", 0), ("ls @:/d/f", 0), ("ls -R @d:/", 4)] },
    Case { heading: "stat", like: &["ls"], runs: &[("stat @:/d @:/l @:/d/f", 0)] },
    Case { heading: "lsattr", like: &[], runs: &[("lsattr @:/", 0)] },
    Case { heading: "du", like: &[], runs: &[("du -a @:/", 0)] },
    Case { heading: "df", like: &[], runs: &[("df @", 0)] },
    Case { heading: "prop get", like: &[], runs: &[("prop get @:/d compression", 0), ("prop list @:/d", 0)] },
    Case { heading: "xattr get", like: &[], runs: &[("xattr get @:/d/f", 0), ("xattr list @:/d/f", 0)] },
    Case { heading: "inspect tree", like: &[], runs: &[("inspect tree @", 0), ("inspect tree -t 999 @", 1)] },
    Case { heading: "inspect compression", like: &[], runs: &[("inspect compression --depth 1 @:/", 0)] },
    Case {
        heading: "verify --json",
        like: &[],
        runs: &[
            ("verify --data --decode @", 0),
            ("verify --data @d", 4),
            ("verify --jsonl @d", 4),
            ("verify @u", 3),
        ],
    },
    Case {
        heading: "verify --rules",
        like: &[],
        runs: &[("verify --rules", 0), ("verify --explain DIR-08", 0)],
    },
    Case {
        heading: "subvol list",
        like: &[],
        runs: &[("subvol list @", 0), ("subvol show @:/sub", 0), ("subvol get-default @", 0)],
    },
    Case { heading: "trim", like: &[], runs: &[("trim --dry-run @", 0)] },
    Case { heading: "defrag", like: &["mkfs"], runs: &[("defrag -r --stats --compress zstd:9 @:/", 0)] },
    Case {
        heading: "fixture list",
        like: &[],
        runs: &[
            ("fixture list", 0),
            ("fixture explain csum-data-flip", 0),
            ("fixture apply @ csum-data-flip", 0),
        ],
    },
];

/// Makes the images in `dir`.
fn make_images(dir: &Path) {
    let tree = dir.join("TREE");
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("d/f"), "some text ".repeat(50_000)).unwrap();
    fs::write(tree.join(OsStr::from_bytes(b"n\xff")), "x").unwrap();
    std::os::unix::fs::symlink(OsStr::from_bytes(b"\xfe"), tree.join("l")).unwrap();
    let image = dir.join("image");
    let image = image.to_str().unwrap();
    let at = |path: &str| format!("{image}:{path}");
    run(&["mkfs", "-r", tree.to_str().unwrap(), "--size", "256M", image]).expect(0);
    run(&["xattr", "set", &at("/d/f"), "user.note", "0xff"]).expect(0);
    run(&["prop", "set", &at("/d"), "compression", "zstd"]).expect(0);
    run(&["subvol", "create", &at("/sub")]).expect(0);
    run(&["subvol", "snapshot", &at("/sub"), &at("/snap")]).expect(0);
    for (name, faults) in
        [("damaged", &["block-checksum-mirror", "inode-size"][..]), ("unknown", &["super-incompat-unknown"])]
    {
        let copy = dir.join(name);
        fs::copy(image, &copy).unwrap();
        faults.iter().for_each(|f| _ = run(&["fixture", "apply", copy.to_str().unwrap(), f]).expect(0));
    }
    fs::write(dir.join("no-image"), vec![0; 1 << 20]).unwrap();
}

/// The words of a command, with the images' names in them.
fn arguments(dir: &Path, line: &str) -> Vec<OsString> {
    let path = |name: &str| dir.join(name).into_os_string();
    let mut args: Vec<OsString> = line
        .split(' ')
        .map(|word| match word.strip_prefix('@') {
            None if word == "TREE" || word == "NEW" => path(word),
            None => word.into(),
            Some(rest) => match rest.chars().next() {
                Some('d') => path(&format!("damaged{}", &rest[1..])),
                Some('u') => path(&format!("unknown{}", &rest[1..])),
                Some('n') => path(&format!("no-image{}", &rest[1..])),
                _ => path(&format!("image{rest}")),
            },
        })
        .collect();
    if !line.contains("--jsonl") {
        args.push("--json".into());
    }
    args
}

#[test]
fn the_page_has_the_fields_that_are_printed_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    make_images(dir.path());
    let mut wrong = Vec::new();
    for case in CASES {
        let text = section(case.heading);
        let mut known = words(&text);
        case.like.iter().for_each(|like| known.extend(words(&section(like))));
        known.insert("version".to_owned());
        let mut found = BTreeSet::new();
        for (line, code) in case.runs {
            let args = arguments(dir.path(), line);
            let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
            printed(&args, *code).iter().for_each(|document| keys(document, &mut found));
        }
        let heading = case.heading;
        wrong.extend(found.difference(&known).map(|field| format!("{heading}: {field} is not on the page")));
        wrong.extend(
            fields(&text).difference(&found).map(|field| format!("{heading}: {field} is not printed")),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let missing: Vec<&str> = PAGE
        .split("\n## `")
        .skip(1)
        .filter(|s| !CASES.iter().any(|case| s.starts_with(case.heading)) && !s.starts_with("inspect super"))
        .map(|s| s.lines().next().unwrap())
        .collect();
    assert_eq!(missing, [""; 0], "sections without a command here");
}

/// The superblock's fields are the kernel's; those that the page adds are there.
#[test]
fn superblocks_have_what_the_page_adds() {
    let dir = tempfile::tempdir().unwrap();
    make_images(dir.path());
    let args = arguments(dir.path(), "inspect super -f @");
    let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
    let mut found = BTreeSet::new();
    printed(&args, 0).iter().for_each(|document| keys(document, &mut found));
    let missing: Vec<String> = fields(&section("inspect super")).difference(&found).cloned().collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn an_error_is_a_document() {
    let dir = tempfile::tempdir().unwrap();
    make_images(dir.path());
    let only = BTreeSet::from(["version".to_owned(), "error".to_owned()]);
    for line in [
        "df @n",
        "ls @n:/",
        "stat @n:/",
        "inspect tree @n",
        "trim @n",
        "xattr list @:/none",
        "subvol list @n",
    ] {
        let args = arguments(dir.path(), line);
        let ran = run(&args);
        assert_ne!(ran.code, 0, "{line}");
        let document: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{line}: {e}"));
        let mut found = BTreeSet::new();
        keys(&document, &mut found);
        // Commands that go on with other images have an array without this one.
        if found != only {
            assert!(document.as_object().unwrap().values().any(|v| v == &Value::Array(Vec::new())), "{line}");
        }
        assert!(ran.stderr.starts_with("btrfsimg: "), "{line}: {}", ran.stderr);
    }
    for (line, kind) in [("verify @n", None), ("verify --jsonl @n", Some("summary"))] {
        let document =
            &printed(&arguments(dir.path(), line).iter().map(OsString::as_os_str).collect::<Vec<_>>(), 1)[0];
        assert!(document["error"].is_string() && document["type"].as_str() == kind, "{document}");
    }
}

#[test]
fn a_name_that_is_not_utf8_is_whole_in_base64() {
    let dir = tempfile::tempdir().unwrap();
    make_images(dir.path());
    let name = OsString::from_vec([dir.path().as_os_str().as_bytes(), b"/i\xff"].concat());
    fs::rename(dir.path().join("image"), &name).unwrap();
    let top = OsString::from_vec([name.as_bytes(), b":/"].concat());
    let json = OsStr::new("--json");
    let of: [(&[&str], &OsStr, Option<&str>); 6] = [
        (&["verify"], &name, None),
        (&["df"], &name, Some("images")),
        (&["stat"], &top, Some("files")),
        (&["inspect", "compression"], &top, Some("compression")),
        (&["trim", "--dry-run"], &name, None),
        (&["defrag", "-r"], &top, Some("images")),
    ];
    for (command, object, list) in of {
        let args: Vec<&OsStr> = command.iter().map(OsStr::new).chain([json, object]).collect();
        let document = &printed(&args, 0)[0];
        let about = list.map_or(document, |list| &document[list][0]);
        let encoded = base64::engine::general_purpose::STANDARD.encode(name.as_bytes());
        assert_eq!(about["image_b64"], encoded, "{command:?}: {document}");
        assert!(about["image"].as_str().unwrap().ends_with("/i\u{fffd}"), "{command:?}");
    }
}
