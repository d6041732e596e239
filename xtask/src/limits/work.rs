//! The works, and what they are measured against.

use super::Limits;
use crate::{
    images,
    many::Place,
    measure::{self, Cost},
    speed::makers::{self, OURS},
    trees,
};
use anyhow::{Context, Result, ensure};
use btrfsimg_compress::{CompressionSpec, MAX_CHUNK, Method, Workspace, encode_extent};
use btrfsimg_testkit::mount::Mount;
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

/// MiB that making an image of a tree may take.
const TREE_MEMORY: f64 = 120.0;

impl Limits<'_> {
    fn image(&self) -> PathBuf {
        self.tmpfs.path().join("image")
    }

    fn place(&self) -> Place<'_> {
        Place { binary: &self.binary, dir: self.tmpfs.path() }
    }

    fn median(&self, mut run: impl FnMut() -> Result<Cost>) -> Result<Cost> {
        let costs = (0..self.options.runs).map(|_| run()).collect::<Result<Vec<_>>>()?;
        Ok(measure::summary(&costs))
    }

    fn mkfs(&self, tree: &Path, spec: &str) -> Result<Cost> {
        fs::remove_file(self.image()).ok();
        measure::run(&images::mkfs(&self.binary, &self.image(), tree, "--compress-force", spec))
    }

    pub(super) fn tree(&mut self) -> Result<()> {
        for (spec, most) in [("zstd:3", 0.35), ("zlib:3", 0.30), ("lzo", 0.35), ("none", 0.25)] {
            let place = makers::Place {
                tmpfs: self.tmpfs.path().to_owned(),
                source: self.source.clone(),
                bytes: self.bytes,
            };
            let makers = makers::all(&self.binary, &[spec.to_owned()], false);
            let find = |name: &str| {
                makers.iter().find(|m| m.name == name).with_context(|| format!("{name} is not installed"))
            };
            let mut in_turn = vec![find(OURS)?, find("kernel, cp -a")?];
            if spec == "zstd:3" {
                in_turn.push(find("mksquashfs")?);
            }
            let mut costs = vec![Vec::new(); in_turn.len()];
            for _ in 0..self.options.runs {
                for (maker, costs) in in_turn.iter().zip(&mut costs) {
                    fs::remove_file(place.image()).ok();
                    costs.push(maker.run(&place)?);
                }
            }
            let mut costs = costs.iter().map(|c| measure::summary(c));
            let (ours, kernel) = (costs.next().unwrap_or_default(), costs.next().unwrap_or_default());
            self.row(&format!("tree, {spec}, s against the kernel"), ours.wall, kernel.wall, most);
            if let Some(squashfs) = costs.next() {
                self.row("tree, zstd:3, s against mksquashfs", ours.wall, squashfs.wall, 0.75);
            }
            self.bound(&format!("tree, {spec}, MiB"), ours.peak, TREE_MEMORY);
            fs::remove_file(self.image())?;
        }
        Ok(())
    }

    /// One file, against half of the processor time that the codec alone takes for its chunks on two threads.
    pub(super) fn tar(&mut self) -> Result<()> {
        let dir = self.tmpfs.path().join("tar");
        fs::create_dir(&dir)?;
        let (from, tar) = (self.source.clone().into_os_string(), dir.join("tar"));
        let words = ["-cf".into(), tar.clone().into_os_string(), "-C".into(), from, ".".into()];
        trees::run("tar", words)?;
        for (spec, most) in [("zstd:3", 1.25), ("zlib:9", 1.05), ("zstd:15", 1.05)] {
            let method = spec.parse::<CompressionSpec>()?.method().context("none is no method")?;
            let (mut ours, mut codec) = (Vec::new(), Vec::new());
            for _ in 0..self.options.runs {
                ours.push(self.mkfs(&dir, spec)?);
                codec.push(Cost { wall: codec_seconds(&tar, method)? / 2.0, ..Cost::default() });
            }
            let [ours, codec] = [ours, codec].map(|costs| measure::summary(&costs).wall);
            self.row(&format!("tar, {spec}, s against half the codec's CPU"), ours, codec, most);
        }
        fs::remove_dir_all(dir)?;
        fs::remove_file(self.image())?;
        Ok(())
    }

    pub(super) fn property(&mut self) -> Result<()> {
        const FILES: usize = 100_000;
        let place = self.place();
        let source = place.files(FILES, 0)?;
        let ours = self.median(|| Ok(place.copy_into_property(&source)?.0))?;
        fs::remove_dir_all(&source)?;
        let kernel = self.median(|| Ok(Cost { wall: place.by_the_kernel(FILES)?, ..Cost::default() }))?;
        self.row("100,000 files of 64 KiB, property lzo, s against the kernel", ours.wall, kernel.wall, 0.30);
        Ok(())
    }

    pub(super) fn many(&mut self) -> Result<()> {
        let (many, some) = (self.options.files, self.options.files / 10);
        let mut costs = Vec::new();
        for n in [some, many] {
            let small = small_files(&self.tmpfs.path().join("small"), n)?;
            costs.push(self.median(|| {
                self.touch_memory(n as u64 * (6 << 10))?;
                self.mkfs(&small, "zstd:3")
            })?);
            fs::remove_file(self.image())?;
            fs::remove_dir_all(small)?;
        }
        for n in [some, many] {
            let place = self.place();
            let names = place.names_of_one_inode(n, 0)?;
            costs.push(self.median(|| {
                self.touch_memory(n as u64 * (6 << 10))?;
                Ok(place.copy_into_property(&names)?.0)
            })?);
            fs::remove_dir_all(names)?;
        }
        for (what, pair) in ["4 KiB", "64 KiB"].into_iter().zip(costs.chunks(2)) {
            let [some, many] = pair else { continue };
            self.row(&format!("ten times as many files of {what}, s"), many.wall, some.wall, 11.0);
            self.bound(&format!("{} files of {what}, MiB", self.options.files), many.peak, 600.0);
        }
        Ok(())
    }

    /// A virtual machine gets memory from its host when it is first touched, and that costs more than what is measured
    /// here: so much is touched beforehand.
    fn touch_memory(&self, bytes: u64) -> Result<()> {
        let path = self.tmpfs.path().join("touched");
        std::io::copy(&mut std::io::repeat(1).take(bytes), &mut File::create(&path)?)?;
        Ok(fs::remove_file(path)?)
    }

    pub(super) fn xattrs(&mut self) -> Result<()> {
        const FILES: usize = 100_000;
        let place = self.place();
        let (mut none, mut ten) = (Vec::new(), Vec::new());
        // Of one inode with many names two threads would wait for each other to read its xattrs.
        for _ in 0..self.options.runs {
            for (xattrs, costs) in [(0, &mut none), (10, &mut ten)] {
                let files = place.files(FILES, xattrs)?;
                self.touch_memory(1 << 30)?;
                costs.push(place.copy_into_property(&files)?.0);
                fs::remove_dir_all(files)?;
            }
        }
        let [none, ten] = [none, ten].map(|costs| measure::summary(&costs).wall);
        self.row("10 xattrs for each file, s against none", ten, none, 1.15);
        Ok(())
    }

    pub(super) fn out(&mut self) -> Result<()> {
        self.mkfs(&self.source, "zstd:3")?;
        let image = self.image();
        let out = self.tmpfs.path().join("out");
        let words = ["cp".into(), "-a".into(), format!("{}:/", image.display()).into(), out.clone().into()];
        let argv: Vec<OsString> = [self.binary.clone().into_os_string()].into_iter().chain(words).collect();
        let ours = self.median(|| {
            drop_caches()?;
            let cost = measure::run(&argv)?;
            fs::remove_dir_all(&out)?;
            Ok(cost)
        })?;
        let kernel = self.median(|| {
            let mount = Mount::open(&image, "ro")?;
            drop_caches()?;
            let script = "tar cf - -C \"$1\" . | cat > /dev/null";
            let words = ["sh", "-c", script, "sh"].map(OsString::from).into_iter();
            let cost = measure::run(&words.chain([mount.path().into()]).collect::<Vec<_>>())?;
            mount.unmount()?;
            Ok(cost)
        })?;
        self.row("tree copied out of zstd:3, s against tar on a mount", ours.wall, kernel.wall, 0.45);
        fs::remove_file(image)?;
        Ok(())
    }

    pub(super) fn memory(&mut self) -> Result<()> {
        for spec in ["zstd:-15", "zstd:9", "zlib:9", "zstd:15"] {
            let cost = self.mkfs(&self.source, spec)?;
            self.bound(&format!("tree, {spec}, MiB"), cost.peak, TREE_MEMORY);
        }
        fs::remove_file(self.image())?;
        Ok(())
    }
}

/// What is in the page cache is given up: both sides read the image anew.
fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches")
}

/// Files of 4 KiB of noise, 10,000 in each directory.
fn small_files(top: &Path, n: usize) -> Result<PathBuf> {
    let mut noise = [0; 4096];
    File::open("/dev/urandom")?.read_exact(&mut noise)?;
    for i in 0..n {
        let dir = top.join((i / 10_000).to_string());
        if i.is_multiple_of(10_000) {
            fs::create_dir_all(&dir)?;
        }
        File::create_new(dir.join(i.to_string()))?.write_all(&noise)?;
    }
    Ok(top.to_owned())
}

/// Processor seconds of compressing a file's chunks, on two threads at once, as two processors of one core are slower
/// than one of them alone.
fn codec_seconds(path: &Path, method: Method) -> Result<f64> {
    let bytes = fs::read(path)?;
    let chunks: Vec<&[u8]> = bytes.chunks(MAX_CHUNK).collect();
    let next = AtomicUsize::new(0);
    let before = own_seconds()?;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut workspace, mut out) = (Workspace::new(method), Vec::new());
                while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    encode_extent(&mut workspace, chunk, 4096, &mut out);
                }
            });
        }
    });
    Ok(own_seconds()? - before)
}

/// User and system time of this process, in units of 10 ms.
fn own_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name before may hold anything; user and system time are the 14th and 15th field of all.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11);
    let ticks: Vec<f64> = fields.take(2).map(str::parse).collect::<Result<_, _>>()?;
    ensure!(ticks.len() == 2, "/proc/self/stat is short");
    Ok(ticks.iter().sum::<f64>() / 100.0)
}
