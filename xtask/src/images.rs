//! The command under test, and the command lines that make images with it.

use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The given binary, or the release build of `btrfsimg`, built now.
pub(crate) fn binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return path.canonicalize().with_context(|| format!("no {}", path.display()));
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = ["build", "--release", "--package", "btrfsimg", "--message-format", "json-render-diagnostics"];
    let mut command = Command::new(cargo);
    command.current_dir(workspace()).args(args).stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo")?;
    ensure!(output.status.success(), "btrfsimg does not build");
    String::from_utf8_lossy(&output.stdout).lines().find_map(executable).context("cargo names no executable")
}

/// The path in cargo's message about the command itself.
fn executable(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_command = message["target"]["name"] == "btrfsimg" && message["executable"].is_string();
    is_command.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
}

/// `btrfsimg mkfs IMAGE --rootdir TREE [--compress-force SPEC]`; `none` is no option at all.
pub(crate) fn mkfs(binary: &Path, image: &Path, tree: &Path, option: &str, spec: &str) -> Vec<OsString> {
    let mut argv = vec![binary.into(), "mkfs".into(), image.into(), "--rootdir".into(), tree.into()];
    if spec != "none" {
        // One word, or a level such as -5 might look like an option.
        argv.push(format!("{option}={spec}").into());
    }
    argv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_in_cargos_messages() {
        let line =
            r#"{"reason":"compiler-artifact","target":{"name":"btrfsimg"},"executable":"/x/btrfsimg"}"#;
        assert_eq!(executable(line), Some(PathBuf::from("/x/btrfsimg")));
        let library = r#"{"reason":"compiler-artifact","target":{"name":"btrfsimg"},"executable":null}"#;
        assert_eq!(executable(library), None);
        assert_eq!(executable("warning: not json"), None);
    }

    #[test]
    fn command_lines() {
        let line = |spec| {
            let argv = mkfs("b".as_ref(), "i".as_ref(), "t".as_ref(), "--compress-force", spec);
            argv.join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(line("none"), "b mkfs i --rootdir t");
        assert_eq!(line("zstd:-5"), "b mkfs i --rootdir t --compress-force=zstd:-5");
    }
}
