//! What no compiler checks. The rules are data, in [`rules`]; everything else here applies them.

mod layers;
mod licences;
mod manifests;
mod rules;
mod source;
mod text;

use crate::{docs, workspace};
use anyhow::{Context, Result, ensure};
use source::Source;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Prints long files and faults; an error when there are faults.
pub(crate) fn run() -> Result<()> {
    let found = check(workspace())?;
    for note in &found.notes {
        println!("note: {note}");
    }
    for fault in &found.faults {
        println!("fault: {fault}");
    }
    ensure!(found.faults.is_empty(), "tidy: {} faults", found.faults.len());
    println!("tidy: ok");
    Ok(())
}

/// What tidy has to say.
#[derive(Debug, Default)]
struct Findings {
    faults: Vec<String>,
    notes: Vec<String>,
}

fn check(top: &Path) -> Result<Findings> {
    let mut found = Findings::default();
    let files = tracked_files(top)?;
    let mut sources = Vec::new();
    for name in &files {
        // A file may be deleted but not yet committed; a link or a binary file has no text.
        let Ok(text) = fs::read_to_string(top.join(name)) else { continue };
        text::machine_paths(name, &text, &mut found.faults);
        if name.ends_with(".rs") {
            text::length(name, &text, &mut found);
            sources.push(Source::new(name, &text));
        }
    }
    for source in &sources {
        text::bans(source, &mut found.faults);
    }
    layers::check(&sources, &mut found.faults);
    let manifest = fs::read_to_string(top.join("Cargo.toml")).context("no workspace manifest")?;
    manifests::reasons(&manifest, &mut found.faults);
    let metadata = manifests::metadata(top)?;
    manifests::arrows(&metadata, &mut found.faults);
    manifests::licences(&metadata, &mut found.faults);
    docs::check(top, &mut found.faults);
    Ok(found)
}

/// What git knows, and what it would take up; without git, every file outside `target`.
fn tracked_files(top: &Path) -> Result<Vec<String>> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").current_dir(top).args(args).output();
    if let Ok(output) = listed
        && output.status.success()
        && !output.stdout.is_empty()
    {
        let names = output.stdout.split(|&b| b == 0).filter(|name| !name.is_empty());
        let mut names: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        names.sort();
        names.dedup();
        return Ok(names);
    }
    let mut names = Vec::new();
    walk(top, &mut PathBuf::new(), &mut names)?;
    Ok(names)
}

fn walk(top: &Path, at: &mut PathBuf, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(top.join(&at))? {
        let entry = entry?;
        at.push(entry.file_name());
        if entry.file_type()?.is_file() {
            names.push(at.to_string_lossy().into_owned());
        } else if entry.file_type()?.is_dir() && ![".git", "target"].map(Path::new).contains(&at.as_path()) {
            walk(top, at, names)?;
        }
        at.pop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let found = check(workspace()).unwrap();
        assert!(found.faults.is_empty(), "\n{}\n", found.faults.join("\n"));
    }

    #[test]
    fn files_are_found_without_git() {
        let mut names = Vec::new();
        walk(workspace(), &mut PathBuf::new(), &mut names).unwrap();
        assert!(names.iter().any(|n| n == "xtask/src/tidy.rs"));
        assert!(!names.iter().any(|n| n.starts_with("target/")));
    }
}
