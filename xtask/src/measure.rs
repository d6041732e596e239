//! What a program costs: time, processor time and memory.

use anyhow::{Context, Result, bail, ensure};
use std::{
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

/// The unit of `/proc/stat`: `USER_HZ`, which is 100 on every Linux.
const TICKS: f64 = 100.0;

/// What one run cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    /// Seconds.
    pub(crate) wall: f64,
    /// Seconds of the process and its children, in user space and in the kernel.
    pub(crate) cpu: f64,
    /// Seconds that all processors of the machine were busy meanwhile. The kernel's driver compresses in threads
    /// of its own, whose time no process is charged for.
    pub(crate) machine: f64,
    /// Largest resident set, in MiB.
    pub(crate) peak: f64,
}

/// Runs a command under GNU time; an error when it fails, with what it said.
pub(crate) fn run(argv: &[OsString]) -> Result<Cost> {
    let report = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("/usr/bin/time");
    command.args(["-f", "%U %S %M", "-o"]).arg(report.path()).args(argv).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let (busy, start) = (busy()?, Instant::now());
    let output = command.output().context("cannot run /usr/bin/time (Debian's package `time`)")?;
    let wall = start.elapsed().as_secs_f64();
    let machine = self::busy()? - busy;
    if !output.status.success() {
        bail!("{:?} fails: {}", argv, String::from_utf8_lossy(&output.stderr).trim());
    }
    let (cpu, peak) = parse_time(&fs::read_to_string(report.path())?)?;
    Ok(Cost { wall, cpu, machine, peak })
}

/// `user system KiB` on the last line.
fn parse_time(report: &str) -> Result<(f64, f64)> {
    let line = report.lines().last().context("time says nothing")?;
    let numbers: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(numbers.len() == 3, "time says {line:?}");
    Ok((numbers[0] + numbers[1], numbers[2] / 1024.0))
}

/// Seconds that the processors were busy since boot.
fn busy() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    parse_stat(&stat).context("/proc/stat has no cpu line")
}

/// user, nice, system, (idle, iowait), irq, softirq
fn parse_stat(stat: &str) -> Option<f64> {
    let line = stat.lines().find(|l| l.starts_with("cpu "))?;
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
    let busy: f64 = [0, 1, 2, 5, 6].iter().filter_map(|&i| ticks.get(i)).sum();
    Some(busy / TICKS)
}

/// Of each value the median, of the peak the largest.
pub(crate) fn summary(costs: &[Cost]) -> Cost {
    let middle = |value: fn(&Cost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    Cost {
        wall: middle(|c| c.wall),
        cpu: middle(|c| c.cpu),
        machine: middle(|c| c.machine),
        peak: costs.iter().map(|c| c.peak).fold(0.0, f64::max),
    }
}

/// MiB that a file takes on its file system.
pub(crate) fn allocated(path: &Path) -> Result<f64> {
    use std::os::unix::fs::MetadataExt;
    let blocks = fs::metadata(path)?.blocks();
    Ok(f64::from(u32::try_from(blocks / 8)?) / 256.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read() {
        assert_eq!(parse_time("Command exited\n1.50 0.25 2048\n").unwrap(), (1.75, 2.0));
        assert!(parse_time("nonsense").is_err());
        assert_eq!(parse_stat("cpu  100 10 200 999 999 30 60 7 0 0\ncpu0 1 1 1\n"), Some(4.0));
    }

    #[test]
    fn medians() {
        let cost = |wall, peak| Cost { wall, cpu: wall, machine: 0.0, peak };
        let costs = [cost(3.0, 1.0), cost(1.0, 9.0), cost(2.0, 5.0)];
        assert_eq!(summary(&costs), Cost { wall: 2.0, cpu: 2.0, machine: 0.0, peak: 9.0 });
    }
}
