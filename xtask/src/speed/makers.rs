//! Who makes images, and how.

use crate::{
    images, measure,
    measure::Cost,
    trees::{self, contents},
};
use anyhow::Result;
use btrfsimg_testkit::btrfs_progs;
use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// The name that the others are compared with.
pub(crate) const OURS: &str = "btrfsimg";

/// Where source and image are.
pub(crate) struct Place {
    pub(crate) tmpfs: PathBuf,
    pub(crate) source: PathBuf,
    /// Of the source.
    pub(crate) bytes: u64,
}

impl Place {
    pub(crate) fn image(&self) -> PathBuf {
        self.tmpfs.join("image")
    }
}

/// A program with its way to compress.
pub(crate) struct Maker {
    pub(crate) name: String,
    pub(crate) spec: String,
    how: How,
}

enum How {
    /// A command line; `{image}` and `{source}` stand for the paths.
    Command(Vec<OsString>),
    /// The kernel's driver, through a loop mount with these options.
    Kernel(String),
}

impl Maker {
    /// Makes the image anew. What is done before that is not counted: the kernel's empty file system.
    pub(crate) fn run(&self, place: &Place) -> Result<Cost> {
        let image = place.image();
        match &self.how {
            How::Command(template) => {
                let fill = |word: &OsString| match word.to_str() {
                    Some("{image}") => image.clone().into(),
                    Some("{source}") => place.source.clone().into(),
                    _ => word.clone(),
                };
                measure::run(&template.iter().map(fill).collect::<Vec<_>>())
            }
            How::Kernel(options) => kernel(place, &image, options),
        }
    }
}

/// Mount, `cp -a`, unmount: the image is whole when umount is back.
fn kernel(place: &Place, image: &Path, options: &str) -> Result<Cost> {
    const SCRIPT: &str = r#"mount -t btrfs -o "loop,$1" "$2" "$3" && cp -a "$4" "$3" && umount "$3""#;
    btrfs_progs::mkfs(image, place.bytes.saturating_mul(2).saturating_add(1 << 30), &[])?;
    let mount_point = place.tmpfs.join("mnt");
    fs::create_dir_all(&mount_point)?;
    let words: [OsString; 8] = [
        "sh".into(),
        "-c".into(),
        SCRIPT.into(),
        "sh".into(),
        options.into(),
        image.into(),
        mount_point.clone().into(),
        contents(&place.source).into(),
    ];
    let cost = measure::run(&words);
    if cost.is_err() {
        trees::run("umount", [&mount_point]).ok();
    }
    cost
}

/// All that are installed, for each compression that they have.
pub(crate) fn all(binary: &Path, specs: &[String], btrfs_only: bool) -> Vec<Maker> {
    let mut makers = Vec::new();
    for spec in specs {
        let ours = images::mkfs(binary, "{image}".as_ref(), "{source}".as_ref(), "--compress-force", spec);
        let mut add = |name: &str, how| makers.push(Maker { name: name.to_owned(), spec: spec.clone(), how });
        add(OURS, How::Command(ours));
        if spec == "none" && is_installed("mkfs.btrfs") {
            add("mkfs.btrfs --rootdir", command("mkfs.btrfs -q -f --rootdir {source} {image}"));
        }
        let compress = if spec == "none" { "rw".to_owned() } else { format!("rw,compress-force={spec}") };
        add("kernel, cp -a", How::Kernel(compress));
        if btrfs_only {
            continue;
        }
        if let Some(line) = squashfs(spec)
            && is_installed("mksquashfs")
        {
            add("mksquashfs", command(&line));
        }
        if let Some(line) = erofs(spec)
            && is_installed("mkfs.erofs")
        {
            add("mkfs.erofs", command(line));
        }
    }
    makers
}

fn command(line: &str) -> How {
    How::Command(line.split(' ').map(OsString::from).collect())
}

/// At the same 128 KiB blocks, with the same algorithm and level where it has them.
fn squashfs(spec: &str) -> Option<String> {
    let (algorithm, level) = spec.split_once(':').unwrap_or((spec, ""));
    let compression = match algorithm {
        "none" => "-noI -noD -noF -noX".to_owned(),
        "lzo" => "-comp lzo -Xalgorithm lzo1x_1".to_owned(),
        "zlib" => format!("-comp gzip -Xcompression-level {level}"),
        "zstd" if !level.starts_with('-') => format!("-comp zstd -Xcompression-level {level}"),
        _ => return None,
    };
    Some(format!("mksquashfs {{source}} {{image}} -noappend -quiet -no-progress -b 131072 {compression}"))
}

/// Its lz4 stands beside lzo: the fast end.
fn erofs(spec: &str) -> Option<&'static str> {
    match spec {
        "none" => Some("mkfs.erofs -d0 {image} {source}"),
        "lzo" => Some("mkfs.erofs -d0 -zlz4 {image} {source}"),
        _ => None,
    }
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_compression_has_us_and_the_kernel() {
        let specs = ["none", "zstd:-5"].map(str::to_owned);
        let makers = all("btrfsimg".as_ref(), &specs, true);
        for spec in &specs {
            let of_spec = makers.iter().filter(|m| m.spec == *spec && m.name != "mkfs.btrfs --rootdir");
            assert_eq!(of_spec.map(|m| m.name.as_str()).collect::<Vec<_>>(), [OURS, "kernel, cp -a"]);
        }
    }

    #[test]
    fn squashfs_has_no_negative_levels() {
        assert_eq!(squashfs("zstd:-5"), None);
        assert!(squashfs("zlib:3").unwrap().ends_with("-comp gzip -Xcompression-level 3"));
    }
}
