//! Copies in all directions, each against what cp(1) makes of the same on a mount.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::path::Path;
use std::process::Command;

use btrfsimg_testkit::oracle::Oracle;

use crate::common::{Lab, sh};

/// A copy: what is there, in a directory of its own, and the words of cp, with `s/` for the source and `d` for that directory.
pub(crate) type Case<'c> = (&'c str, &'c str);

/// All that tells the results of copies apart, but for times.
const LOOK: &str = "find . -printf '%P %y %m %U:%G %n %l\\n' | sort; find . ! -type l | sort | xargs getfacl -n | grep -v ^#.[og]
    find . -type f | sort | while read f; do echo $f: $(head -c 40 $f; cksum < $f); getfattr -d $f; done
    find . -type f -links +1 -printf '%i %P\\n' | sort -k2 | awk '!n[$1] {n[$1]=++c} {print n[$1], $2}'";

/// Makes each copy with cp(1), and with ours in all directions. The trees and the exit codes must be the same.
#[track_caller]
pub(crate) fn as_cp_does(comes: &str, cases: &[Case<'_>]) {
    as_cp_does_under("0", comes, cases);
}

/// The same under a umask.
#[track_caller]
pub(crate) fn as_cp_does_under(umask: &str, comes: &str, cases: &[Case<'_>]) {
    let fill = |top: &Path| drop(sh(top, comes));
    let Some(source) = Lab::kernel_made(&[], "rw", fill) else { return };
    let Some(lab) = Lab::kernel_made(&[], "rw", |top| {
        sh(top, "mkdir theirs out in across within src");
        fill(&top.join("src"));
        for dir in ["theirs", "out", "in", "across", "within"] {
            for (n, (there, _)) in cases.iter().enumerate() {
                sh(&top.join(dir), &format!("mkdir {n}; cd {n}; {there}"));
            }
        }
    }) else {
        return;
    };
    let words = |copy: &str, from: &str, to: &str| {
        let word = |word: &str| match (word.strip_prefix("s/"), word.strip_prefix('d')) {
            (Some(rest), _) => format!("{from}/{rest}"),
            (None, Some(rest)) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => word.to_owned(),
        };
        copy.split(' ').map(word).collect::<Vec<_>>()
    };
    let ours = |dir: &str, from: &str, to: &str| {
        let copy = |(n, (_, copy)): (usize, &Case<'_>)| {
            let mut args = vec!["cp".to_owned(), "--no-sync".to_owned()];
            args.extend(words(copy, from, &format!("{to}/{dir}/{n}")));
            let mut command = Command::new("sh");
            let script = format!("umask {umask}; exec \"$@\"");
            command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_btrfsimg")]).args(&args);
            let output = command.output().unwrap();
            (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        cases.iter().enumerate().map(copy).collect::<Vec<_>>()
    };
    let oracle = Oracle::new();
    let mount = oracle.mount(&lab.image, "rw").unwrap().unwrap();
    let (top, image) = (mount.path().to_str().unwrap(), format!("{}:", source.image.display()));
    let out = ours("out", &image, top);
    let mut theirs = Vec::new();
    source.mounted(|from| {
        for (n, (_, copy)) in cases.iter().enumerate() {
            let words = words(copy, from.to_str().unwrap(), &format!("{top}/theirs/{n}")).join(" ");
            theirs.push(sh(from, &format!("umask {umask}; cp {words} 2>&1 || echo failed")));
        }
    });
    assert_eq!(mount.unmount().unwrap(), [""; 0]);
    let across = ours("across", &image, &lab.at(""));
    let within = ours("within", &lab.at("/src"), &lab.at(""));
    let mut inside = Vec::new();
    source.mounted(|from| inside = ours("in", from.to_str().unwrap(), &lab.at("")));
    lab.mounted(|top| {
        let look = |dir: &str, n: usize| sh(&top.join(dir).join(n.to_string()), LOOK);
        for (dir, said) in [("out", out), ("in", inside), ("across", across), ("within", within)] {
            for (n, case) in cases.iter().enumerate() {
                let code = i32::from(theirs[n].ends_with("failed\n"));
                assert_eq!(said[n].0, code, "{dir}: {case:?}: {} {}", said[n].1, theirs[n]);
                let (ours, theirs) = (look(dir, n), look("theirs", n));
                let lines = |this: &str, other: &str| -> Vec<String> {
                    this.lines().filter(|line| other.lines().all(|o| o != *line)).map(str::to_owned).collect()
                };
                let differ = (lines(&ours, &theirs), lines(&theirs, &ours));
                assert!(ours == theirs, "{dir}: {case:?}: {}\n{differ:#?}", said[n].1);
            }
        }
    });
    oracle.judge(&lab.image, None).unwrap().assert_ok();
}
