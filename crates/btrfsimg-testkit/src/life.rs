//! Images that the kernel has used for a while: every feature of mkfs.btrfs, snapshots, reflinks, preallocated space,
//! quotas, balances, deletions, a log. The same seed does the same things, though not the same bytes.

use crate::{Mount, command, rng::Rng};
use anyhow::{Context, Result};
use std::{ffi::OsStr, fs, path::Path};

/// What an image went through.
#[derive(Debug, Clone)]
pub struct Life {
    /// The options of mkfs.btrfs.
    pub mkfs: Vec<&'static str>,
    /// The options of the mount.
    pub mount: String,
    /// Whether quotas are on.
    pub quota: bool,
    /// Whether it is left as a power cut would leave it, with a log.
    pub has_log: bool,
}

const PROFILES: &[&[&str]] = &[
    &[],
    &["-m", "single"],
    &["-d", "dup"],
    &["-O", "^no-holes"],
    &["-O", "^extref,^no-holes", "-R", "^free-space-tree"],
    &["-R", "^free-space-tree"],
    &["-M"],
    &["-O", "^skinny-metadata"],
    &["-O", "mixed-bg,^skinny-metadata", "-n", "4k", "-m", "dup", "-d", "dup"],
    &["-R", "quota"],
    &["-O", "raid1c34,raid56"],
];
const NODES: &[&[&str]] = &[&[], &["-n", "4k"], &["-n", "64k"], &["-n", "8k"], &["-n", "32k"]];
const CSUMS: &[&[&str]] = &[&[], &["--csum", "xxhash"], &["--csum", "sha256"], &["--csum", "blake2"]];
const MOUNTS: &[&str] = &[
    "rw",
    "rw,compress=zstd:3",
    "rw,compress-force=lzo",
    "rw,compress-force=zlib:1,max_inline=0",
    "rw,compress-force=zstd:15,max_inline=4000",
    "rw,nodatasum",
    "rw,nodatacow,flushoncommit",
    "rw,autodefrag,discard",
];

impl Life {
    /// What the image of `seed` is to go through.
    pub fn plan(seed: u64) -> Life {
        let mut rng = Rng::new(seed.wrapping_add(1));
        let profile = usize::try_from(seed).unwrap_or(0) % PROFILES.len();
        let mut mkfs = PROFILES[profile].to_vec();
        let mixed = mkfs.iter().any(|o| *o == "-M" || o.contains("mixed"));
        if !mixed {
            mkfs.extend(NODES[rng.index(NODES.len())]);
        }
        mkfs.extend(CSUMS[rng.index(CSUMS.len())]);
        let mount = MOUNTS[rng.index(MOUNTS.len())].to_owned();
        Life { mkfs, mount, quota: rng.below(3) == 0, has_log: rng.below(6) == 0 }
    }

    /// Lets the kernel use the file system in `image`, which is there.
    ///
    /// # Errors
    /// When the kernel refuses something.
    pub fn live(&self, image: &Path, seed: u64, rounds: u32) -> Result<()> {
        let mount = Mount::open(image, &self.mount)?;
        let quota = if self.quota { "1" } else { "0" };
        let log = if self.has_log { "1" } else { "0" };
        let (seed, rounds) = (seed.to_string(), rounds.to_string());
        let words = ["-c", STORY, "life", &seed, &rounds, quota, log].map(OsStr::new);
        command::run("bash", words.into_iter().chain([mount.path().as_os_str()]))
            .with_context(|| format!("{self:?}"))?;
        if self.has_log {
            // What the device holds now is what a power cut leaves.
            let cut = image.with_extension("cut");
            command::run("cp", [OsStr::new("--sparse=always"), image.as_os_str(), cut.as_os_str()])?;
            mount.unmount()?;
            fs::rename(&cut, image)?;
            return Ok(());
        }
        mount.unmount()?;
        Ok(())
    }
}

/// seed, rounds, quota, log, mount point.
const STORY: &str = r#"
set -e; RANDOM=$1; rounds=$2; quota=$3; log=$4; cd "$5"
pick() { local n=$(ls "$1" | wc -l); [ "$n" -gt 0 ] || return 1; ls "$1" | sed -n "$((RANDOM % n + 1))p"; }
text() { seq $RANDOM $((RANDOM + 40000)) | head -c "$1"; }
noise() { head -c "$1" /dev/urandom; }
btrfs -q subvolume create work; mkdir work/d snaps
if [ $quota = 1 ]; then
  btrfs quota enable . ; btrfs qgroup create 1/7 . ; btrfs qgroup create 2/1 .
  btrfs qgroup assign --rescan 1/7 2/1 . ; btrfs quota rescan -w . >/dev/null || true
fi
chattr +C work/d 2>/dev/null || true
for round in $(seq $rounds); do
  for i in $(seq 40); do
    n=$((RANDOM % 90)); f=work/f$n
    case $((RANDOM % 18)) in
      0) text $((RANDOM % 4000)) > $f;;
      1) text $((RANDOM * 8)) > $f;;
      2) noise $((RANDOM * 4)) > $f;;
      3) [ -f $f ] && noise 5000 | dd of=$f bs=1000 seek=$((RANDOM % 90)) conv=notrunc status=none || true;;
      4) truncate -s $((RANDOM * 6)) $f;;
      5) fallocate -l $((RANDOM * 20)) $f;;
      6) [ -f $f ] && fallocate -n -o $((RANDOM * 9)) -l 200000 $f || true;;
      7) [ -f $f ] && fallocate -p -o $((RANDOM % 20 * 4096)) -l $((RANDOM * 2 + 1)) $f || true;;
      8) g=$(pick work) && [ -f work/$g ] && cp --reflink=always work/$g work/r$n || true;;
      9) g=$(pick work) && [ -f work/$g ] && ln -f work/$g work/l$n || true;;
      10) rm -f $f work/r$((RANDOM % 90));;
      11) ln -sfn "$(text $((RANDOM % 300 + 1)) | tr '\n' '_')" work/s$n;;
      12) mkdir -p work/t$n/u/v; text 3000 > work/t$n/u/v/x; mkfifo work/t$n/p$RANDOM 2>/dev/null || true;;
      13) rm -rf work/t$((RANDOM % 90));;
      14) [ -f $f ] && setfattr -n user.x$((RANDOM % 5)) -v "$(text $((RANDOM % 900 + 1)) | tr '\n' ,)" $f || true;;
      15) [ -f $f ] && mv $f work/m$n || true;;
      16) noise 9000 > work/d/c$n; [ -f work/d/c1 ] && noise 4096 | dd of=work/d/c1 conv=notrunc status=none || true;;
      17) [ -f $f ] && btrfs filesystem defragment -c$( (echo zstd; echo lzo; echo zlib) | sed -n "$((RANDOM % 3 + 1))p") $f >/dev/null || true;;
    esac
  done
  sync -f .
  case $((RANDOM % 6)) in
    0|1) btrfs -q subvolume snapshot -r work snaps/ro$round;;
    2) btrfs -q subvolume snapshot work snaps/rw$round; text 20000 > snaps/rw$round/own; rm -f snaps/rw$round/f1*;;
    3) btrfs -q subvolume create work/sub$round; text 9000 > work/sub$round/in;;
    4) g=$(pick snaps) && btrfs -q subvolume delete -c snaps/$g >/dev/null && btrfs subvolume sync . >/dev/null || true;;
    5) btrfs balance start -musage=90 -dusage=90 . >/dev/null 2>&1 || true;;
  esac
  [ $quota = 1 ] && btrfs qgroup assign --no-rescan 0/$(btrfs inspect-internal rootid work) 1/7 . 2>/dev/null || true
done
[ $quota = 1 ] && { sync -f .; btrfs quota rescan -w . >/dev/null || true; }
sync -f .
if [ $log = 1 ]; then
  for i in 1 2 3; do text $((RANDOM + 5000)) > work/log$i; mkdir -p work/logdir$i; ln work/log$i work/logdir$i/l; sync work/log$i work/logdir$i; done
  noise 70000 | dd of=work/log1 bs=4096 conv=notrunc,fsync status=none; mv work/log2 work/logged; sync work/logged
fi
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_cover_every_profile_and_repeat() {
        let plans: Vec<String> = (0..60).map(|seed| format!("{:?}", Life::plan(seed))).collect();
        assert_eq!(plans[7], format!("{:?}", Life::plan(7)));
        for profile in PROFILES.iter().flat_map(|p| p.iter()) {
            assert!(plans.iter().any(|plan| plan.contains(profile)), "{profile}");
        }
    }
}
