//! The kernel's log from a mark on, and the lines in it that accuse one device.

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
};

/// A reader of `/dev/kmsg` that starts at the moment of its creation.
///
/// The open file is the mark: every record written later is read from it, none earlier, whatever else
/// reads the log meanwhile.
#[derive(Debug)]
pub struct KernelLog {
    kmsg: File,
}

impl KernelLog {
    /// Opens the log at its end. Needs root, or `kernel.dmesg_restrict=0`.
    pub fn mark() -> Result<KernelLog> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).context("O_NONBLOCK")?;
        let mut kmsg = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open("/dev/kmsg")
            .context("cannot read the kernel log /dev/kmsg")?;
        kmsg.seek(SeekFrom::End(0)).context("cannot seek in /dev/kmsg")?;
        Ok(KernelLog { kmsg })
    }

    /// The messages since the mark, or since the last call.
    pub fn new_messages(&mut self) -> Result<Vec<String>> {
        let mut messages = Vec::new();
        let mut record = vec![0; 16 << 10];
        loop {
            match self.kmsg.read(&mut record) {
                Ok(0) => return Ok(messages),
                Ok(n) => messages.extend(message_of(&record[..n])),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(messages),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // Records were overwritten before they were read: the next read gives the oldest one left.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                    messages.push("BTRFS error: kernel log overran, lines were lost".to_owned());
                }
                Err(e) => return Err(e).context("cannot read /dev/kmsg"),
            }
        }
    }
}

/// `priority,sequence,timestamp,flags;message\n` and then lines that begin with a space (a dictionary).
fn message_of(record: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    let (_, message) = text.split_once(';')?;
    Some(message.lines().next()?.to_owned())
}

/// Whether a line of the log accuses the device `name` (`loop3`), or the driver as a whole.
///
/// btrfs names the device in nearly all its messages: `BTRFS error (device loop3 state E): …`. Lines that name
/// another device belong to another test.
pub fn accuses(line: &str, name: &str) -> bool {
    let btrfs = ["BTRFS error", "BTRFS critical", "BTRFS warning", "BTRFS alert", "BTRFS emergency"];
    if line.starts_with("kernel BUG") || (line.starts_with("WARNING:") && line.contains("btrfs")) {
        return true;
    }
    if btrfs.iter().any(|p| line.starts_with(p)) {
        return names_device(line, name) || !names_any_device(line);
    }
    line.contains("I/O error") && names_device(line, name)
}

fn names_any_device(line: &str) -> bool {
    line.contains("(device ") || line.contains("/dev/")
}

/// The name as a whole word: `loop1` is not in `loop12`.
fn names_device(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + name.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_attributed_to_their_device() {
        // (line as the kernel writes it, accuses loop1)
        let cases = [
            ("BTRFS error (device loop1): bad tree block start", true),
            ("BTRFS error (device loop1 state EA): Transaction aborted", true),
            ("BTRFS critical (device loop1): corrupt leaf: root=5 block=1", true),
            ("BTRFS warning (device loop1): csum failed root 5 ino 257", true),
            ("BTRFS error (device loop12): bad tree block start", false),
            ("BTRFS error (device loop2): bad tree block start", false),
            ("BTRFS info (device loop1): first mount of filesystem", false),
            ("BTRFS warning: duplicate device /dev/loop1 devid 1 generation 7", true),
            ("BTRFS warning: duplicate device /dev/loop4 devid 1 generation 7", false),
            ("BTRFS error: something without a device", true),
            ("Buffer I/O error on dev loop1, logical block 0", true),
            ("Buffer I/O error on dev loop3, logical block 0", false),
            ("WARNING: CPU: 0 PID: 7 at fs/btrfs/extent-tree.c:3000", true),
            ("WARNING: CPU: 0 PID: 7 at net/core/dev.c:1", false),
            ("kernel BUG at fs/btrfs/inode.c:1!", true),
        ];
        for (line, expect) in cases {
            assert_eq!(accuses(line, "loop1"), expect, "{line}");
        }
    }

    #[test]
    fn a_record_is_its_message() {
        assert_eq!(message_of(b"4,7,99,-;BTRFS a;b\n KEY=v\n").as_deref(), Some("BTRFS a;b"));
        assert_eq!(message_of(b"no header"), None);
    }
}
