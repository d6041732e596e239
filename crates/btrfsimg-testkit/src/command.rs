//! Other programs, run in the C locale without input.

use anyhow::{Context, Result, bail};
use std::{
    env,
    ffi::{OsStr, OsString},
    process::{Command, Output, Stdio},
};

/// A program with the administrator's directories on its path (they are missing for ordinary users).
pub(crate) fn tool(program: &str) -> Command {
    let mut path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    let mut command = Command::new(program);
    command.env("PATH", path).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// What a program said and whether it was content.
pub(crate) struct Said {
    pub(crate) success: bool,
    /// The exit status; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// Both streams, for messages and for looking for words.
    pub(crate) fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Said {
            success: output.status.success(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs to the end whatever the exit status; fails only when the program cannot be started.
pub(crate) fn ask<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<Said> {
    let output = tool(program).args(args).output().with_context(|| format!("cannot start {program}"))?;
    Ok(output.into())
}

/// Runs and insists on success; gives the standard output.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<String> {
    let args: Vec<S> = args.into_iter().collect();
    let said = ask(program, &args)?;
    if !said.success {
        let line: Vec<_> = args.iter().map(|a| a.as_ref().to_string_lossy()).collect();
        bail!("`{program} {}` failed: {}", line.join(" "), said.all().trim());
    }
    Ok(said.stdout)
}
