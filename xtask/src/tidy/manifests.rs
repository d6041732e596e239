//! Rules about dependencies.

use super::{
    licences::is_allowed,
    rules::{CRATES, LICENCES, NO_ANYHOW},
};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::{env, path::Path, process::Command};

/// What `cargo metadata` says, as far as it is needed.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    license: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// `None` for an ordinary one.
    kind: Option<String>,
}

/// Only of this machine's platform: what others need may never have been downloaded.
pub(super) fn metadata(top: &Path) -> Result<Metadata> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let version = Command::new("rustc").arg("-vV").output().context("cannot ask rustc for its host")?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = version.lines().find_map(|l| l.strip_prefix("host: ")).context("rustc names no host")?;
    let ask = |network: &[&str]| {
        let mut command = Command::new(&cargo);
        command.current_dir(top).arg("metadata").args(network);
        command.args(["--format-version", "1", "--filter-platform", host]);
        command.output().context("cannot run cargo")
    };
    let mut output = ask(&["--offline"])?;
    if !output.status.success() {
        // Only some members were built so far, so not all that the others need is here.
        output = ask(&["--locked"])?;
    }
    ensure!(output.status.success(), "cargo metadata fails: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata's answer")
}

/// Each dependency's line in the workspace manifest has a comment beside it, but our own crates.
pub(super) fn reasons(manifest: &str, faults: &mut Vec<String>) {
    let mut inside = false;
    let mut previous = "";
    for (number, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
        } else if inside && line.contains('=') && !line.starts_with('#') {
            let ours = line.contains("path = ");
            if !ours && !previous.starts_with('#') && !line.contains(" #") {
                let name = line.split('=').next().unwrap_or_default().trim();
                faults.push(format!("Cargo.toml:{}: no reason beside `{name}`", number + 1));
            }
        }
        previous = line;
    }
}

/// Our crates depend on ours as the design says; the libraries have typed errors.
pub(super) fn arrows(metadata: &Metadata, faults: &mut Vec<String>) {
    let ours: Vec<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    for package in metadata.packages.iter().filter(|p| metadata.workspace_members.contains(&p.id)) {
        let Some((_, allowed)) = CRATES.iter().find(|(name, _)| *name == package.name) else {
            faults.push(format!("crate `{}` has no line in xtask/src/tidy/rules.rs", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let for_tests = dependency.kind.as_deref() == Some("dev");
            let testkit = for_tests && name == "btrfsimg-testkit";
            if ours.contains(&name) && !allowed.contains(&name) && !testkit {
                faults.push(format!("crate `{}` may not use `{name}`", package.name));
            }
            if name == "anyhow" && !for_tests && NO_ANYHOW.contains(&package.name.as_str()) {
                faults.push(format!("crate `{}` may not use anyhow: its errors are typed", package.name));
            }
        }
    }
}

pub(super) fn licences(metadata: &Metadata, faults: &mut Vec<String>) {
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or("");
        if !is_allowed(licence, LICENCES) {
            faults.push(format!("crate `{}`: licence {licence:?} is not on the list", package.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(json: &str, rule: fn(&Metadata, &mut Vec<String>)) -> Vec<String> {
        let mut faults = Vec::new();
        rule(&serde_json::from_str(json).unwrap(), &mut faults);
        faults
    }

    fn package(name: &str, dependency: &str, kind: &str, licence: &str) -> String {
        format!(
            r#"{{"workspace_members": ["id"], "packages": [{{"id": "id", "name": "{name}", "license": {licence},
                "dependencies": [{{"name": "{dependency}", "kind": {kind}}}]}}]}}"#
        )
    }

    #[test]
    fn wrong_dependencies_are_found() {
        let cases = [
            ("btrfsimg-ondisk", "btrfsimg-fs", "null", 1),
            ("btrfsimg-ondisk", "zerocopy", "null", 0),
            ("btrfsimg-fs", "btrfsimg-ondisk", "null", 0),
            ("btrfsimg-fs", "btrfsimg-testkit", "null", 1),
            ("btrfsimg-fs", "btrfsimg-testkit", r#""dev""#, 0),
            ("btrfsimg-fs", "btrfsimg", r#""dev""#, 1),
            ("btrfsimg-fs", "anyhow", "null", 1),
            ("btrfsimg", "anyhow", "null", 0),
            ("newcomer", "anyhow", "null", 1),
        ];
        for (name, dependency, kind, expect) in cases {
            let faults = faults_of(&package(name, dependency, kind, "null"), arrows);
            assert_eq!(faults.len(), expect, "{name} on {dependency} ({kind}): {faults:?}");
        }
    }

    #[test]
    fn licences_are_on_the_list() {
        for (licence, expect) in [("null", 1), (r#""MIT OR GPL-2.0-only""#, 0), (r#""GPL-2.0-only""#, 1)] {
            assert_eq!(faults_of(&package("a", "b", "null", licence), licences).len(), expect, "{licence}");
        }
    }

    #[test]
    fn dependencies_need_a_reason() {
        let manifest = "[workspace.dependencies]\nours = { path = \"x\" }\n# Reason.\na = \"1\"\nb = \"1\"\n\
                        c = \"1\" # reason\n[profile.dev]\nopt-level = 1\n";
        let mut faults = Vec::new();
        reasons(manifest, &mut faults);
        assert_eq!(faults, ["Cargo.toml:5: no reason beside `b`"]);
    }
}
