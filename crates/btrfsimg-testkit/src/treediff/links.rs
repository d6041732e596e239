//! Hard links: the same names must be the same file in both trees.

use super::{DiffKind, Report, entry::Stats, identity};
use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// All names seen that are no directories.
#[derive(Default)]
pub(super) struct Links {
    names: Vec<Name>,
    a: Groups,
    b: Groups,
}

struct Name {
    path: PathBuf,
    in_a: (u64, u64),
    in_b: (u64, u64),
    nlink_b: u64,
}

/// For each file: its first name and how many it has.
#[derive(Default)]
struct Groups(HashMap<(u64, u64), Group>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Group {
    first: usize,
    names: u64,
}

impl Groups {
    fn add(&mut self, file: (u64, u64), name: usize) {
        self.0.entry(file).or_insert(Group { first: name, names: 0 }).names += 1;
    }
}

impl Links {
    pub(super) fn add(&mut self, path: &Path, stats: &Stats<'_>) {
        let index = self.names.len();
        let name = Name {
            path: path.to_owned(),
            in_a: identity(stats.a),
            in_b: identity(stats.b),
            nlink_b: stats.b.nlink(),
        };
        self.a.add(name.in_a, index);
        self.b.add(name.in_b, index);
        self.names.push(name);
    }

    /// Two partitions of the names are equal when each name's group has the same first name and size in both.
    /// Only names in both trees count here, so a missing or extra name shows in the second tree's link count.
    pub(super) fn compare(&self, report: &mut Report) {
        for name in &self.names {
            let (Some(a), Some(b)) = (self.a.0.get(&name.in_a), self.b.0.get(&name.in_b)) else { continue };
            if a != b {
                report.add(&name.path, DiffKind::Links, format_args!("{} names, {} names", a.names, b.names));
            }
            if name.nlink_b != b.names {
                let detail = format_args!("counted {}, names {}", name.nlink_b, b.names);
                report.add(&name.path, DiffKind::Nlink, detail);
            }
        }
    }
}
