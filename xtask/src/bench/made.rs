//! Experiments 2, 3 and 4: images made and read back.

use super::{Bench, codecs::slug, corpus, mb_per_s, plot, published, table};
use crate::{
    images, measure,
    measure::Cost,
    speed::makers::{self, OURS, Place},
    trees,
};
use anyhow::{Context, Result};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// An image made, with what it stores.
struct Made {
    cost: Cost,
    read: u64,
    stored: u64,
}

/// Makes an image of `tree` and keeps it at `image`.
fn make(binary: &Path, image: &Path, tree: &Path, spec: &str) -> Result<Made> {
    let json = image.with_extension("json");
    let mut argv = images::mkfs(binary, image, tree, "--compress-force", spec);
    argv.extend(["--json", "-f"].map(OsString::from));
    // Its document goes to a file: what is measured is run without one.
    let script: Vec<OsString> = ["sh", "-c", r#"out=$1; shift; exec "$@" > "$out""#, "sh"]
        .map(OsString::from)
        .into_iter()
        .chain([json.clone().into_os_string()])
        .chain(argv)
        .collect();
    let cost = measure::run(&script)?;
    let document: serde_json::Value = serde_json::from_slice(&fs::read(&json)?)?;
    let n = |field: &str| document[field].as_u64().with_context(|| format!("no {field}"));
    Ok(Made { cost, read: n("bytes_read")?, stored: n("bytes_stored")? })
}

/// Copies all of the image out, and removes it again.
fn read_back(binary: &Path, image: &Path, out: &Path) -> Result<Cost> {
    let address = format!("{}:/.", image.display());
    let argv: Vec<OsString> =
        vec![binary.into(), "cp".into(), "-q".into(), "-r".into(), address.into(), out.into()];
    let cost = measure::run(&argv)?;
    fs::remove_dir_all(out)?;
    Ok(cost)
}

impl Bench<'_> {
    /// Copies of a corpus on the tmpfs: ten, or two, of about as many bytes as Silesia has.
    fn copies(&self, corpus: &corpus::Corpus) -> Result<PathBuf> {
        let (count, limit) = if self.options.quick { (2, 16 << 20) } else { (10, 212_u64 << 20) };
        let top = self.tmpfs.path().join("copies");
        fs::create_dir_all(&top)?;
        let step = trees::size(&corpus.dir)?.div_ceil(limit).max(1);
        let mut n = 0_u64;
        corpus::read(&corpus.dir, u64::MAX, &mut |_, bytes| {
            n += 1;
            if n.is_multiple_of(step) {
                for copy in 0..count {
                    let dir = top.join(format!("{copy}/{}", n / step / 500));
                    let file =
                        fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join(n.to_string()), &bytes));
                    if file.is_err() {
                        return false;
                    }
                }
            }
            true
        })?;
        Ok(top)
    }

    fn image(&self) -> PathBuf {
        self.tmpfs.path().join("image")
    }
}

pub(super) fn ten_copies(bench: &mut Bench<'_>) -> Result<String> {
    let mut text =
        "\n## 2. Ten copies in an image\nWritten by `mkfs --rootdir --compress-force`, read by `cp -r` to \
                    the tmpfs. Published (in brackets): Silesia through the kernel on an SSD, 2017.\n"
            .to_owned();
    for corpus in bench.corpora.clone() {
        let source = bench.copies(&corpus)?;
        let (image, out) = (bench.image(), bench.tmpfs.path().join("out"));
        let mut rows = Vec::new();
        for (spec, [ratio, write, read]) in published::TEN_COPIES {
            if bench.options.quick && ["zstd:9", "zstd:12", "zstd:15"].contains(spec) {
                continue;
            }
            let made = make(&bench.binary, &image, &source, spec)?;
            let back = read_back(&bench.binary, &image, &out)?;
            let [ours, w, r] = [
                made.read as f64 / made.stored.max(1) as f64,
                mb_per_s(made.read, made.cost.wall),
                mb_per_s(made.read, back.wall),
            ];
            rows.push(vec![
                (*spec).to_owned(),
                format!("{ours:.2} ({ratio})"),
                format!("{w:.0} ({write})"),
                format!("{:.2}", made.cost.cpu),
                format!("{:.0}", made.cost.peak),
                format!("{r:.0} ({read})"),
            ]);
        }
        text.push_str(&format!("\n### {}\n", corpus.name));
        let head = ["method", "ratio", "write MB/s", "CPU s", "peak MiB", "read MB/s"];
        text.push_str(&table(&head, &rows));
        fs::remove_dir_all(source)?;
        fs::remove_file(image)?;
    }
    Ok(text)
}

pub(super) fn levels(bench: &mut Bench<'_>) -> Result<String> {
    let mut text =
        "\n## 4. zstd levels 1 to 15\nAs experiment 2. Published (in brackets): Silesia through the kernel \
                    on an SSD, 2019.\n"
            .to_owned();
    for corpus in bench.corpora.clone() {
        let source = bench.copies(&corpus)?;
        let (image, out) = (bench.image(), bench.tmpfs.path().join("out"));
        let (mut rows, mut lines) = (
            Vec::new(),
            ["write", "read", "published write", "published read"]
                .map(|name| plot::Line { name: name.to_owned(), points: Vec::new() }),
        );
        for (level, [ratio, write, read]) in (1_u8..).zip(published::LEVELS) {
            if bench.options.quick && ![1, 3, 6].contains(&level) {
                continue;
            }
            let made = make(&bench.binary, &image, &source, &format!("zstd:{level}"))?;
            let back = read_back(&bench.binary, &image, &out)?;
            let [w, r] = [made.cost.wall, back.wall].map(|s| mb_per_s(made.read, s));
            for (line, y) in lines.iter_mut().zip([w, r, write, read]) {
                line.points.push((f64::from(level), y));
            }
            let ours = made.read as f64 / made.stored.max(1) as f64;
            rows.push(vec![
                level.to_string(),
                format!("{ours:.3} ({ratio})"),
                format!("{w:.0} ({write:.0})"),
                format!("{r:.0} ({read:.0})"),
            ]);
        }
        text.push_str(&format!("\n### {}\n", corpus.name));
        text.push_str(&table(&["level", "ratio", "write MB/s", "read MB/s"], &rows));
        let svg = plot::lines(&format!("Images, {}", corpus.name), "zstd level", "MB/s", &lines)?;
        text.push_str(&bench.plot(&format!("levels-{}", slug(&corpus.name)), svg));
        fs::remove_dir_all(source)?;
        fs::remove_file(image)?;
    }
    Ok(text)
}

pub(super) fn one_tree(bench: &mut Bench<'_>) -> Result<String> {
    let mut text =
        "\n## 3. A tar copied, its tree made an image and read\nPublished (in brackets): a kernel tree \
                    through the kernel, 2017. Then image makers side by side on the same tree.\n"
            .to_owned();
    let specs: Vec<String> = published::TAR.iter().map(|(spec, _)| (*spec).to_owned()).collect();
    for corpus in bench.corpora.clone() {
        let source = bench.tmpfs.path().join("source");
        sample(&corpus.dir, &source, if bench.options.quick { 48 << 20 } else { 1500 << 20 })?;
        let (tar_dir, image) = (bench.tmpfs.path().join("tar"), bench.image());
        fs::create_dir_all(&tar_dir)?;
        let status =
            Command::new("tar").arg("-cf").arg(tar_dir.join("tar")).arg("-C").arg(&source).arg(".").status();
        anyhow::ensure!(status.context("cannot run tar")?.success(), "tar fails");
        let mut rows = Vec::new();
        for (spec, [tar_ratio, tree_ratio, copy, extract, read]) in published::TAR {
            let tar = make(&bench.binary, &image, &tar_dir, spec)?;
            let tree = make(&bench.binary, &image, &source, spec)?;
            let back = read_back(&bench.binary, &image, &bench.tmpfs.path().join("out"))?;
            let ratio = |m: &Made| m.read as f64 / m.stored.max(1) as f64;
            rows.push(vec![
                (*spec).to_owned(),
                format!("{:.2} ({tar_ratio})", ratio(&tar)),
                format!("{:.2} ({tree_ratio})", ratio(&tree)),
                format!("{:.2} ({copy})", tar.cost.wall),
                format!("{:.2} ({extract})", tree.cost.wall),
                format!("{:.2} ({read})", back.wall),
            ]);
        }
        text.push_str(&format!("\n### {}\n", corpus.name));
        let head = ["method", "tar ratio", "tree ratio", "tar s", "tree s", "read s"];
        text.push_str(&table(&head, &rows));
        text.push_str(&side_by_side(bench, &source, &specs)?);
        fs::remove_dir_all(source)?;
        fs::remove_dir_all(tar_dir)?;
    }
    Ok(text)
}

/// All image makers that are installed, once each.
fn side_by_side(bench: &Bench<'_>, source: &Path, specs: &[String]) -> Result<String> {
    let place = Place {
        tmpfs: bench.tmpfs.path().to_owned(),
        source: source.to_owned(),
        bytes: trees::size(source)?,
    };
    let mut rows = Vec::new();
    let mut ours = Cost::default();
    for maker in makers::all(&bench.binary, specs, false) {
        fs::remove_file(place.image()).ok();
        let cost = maker.run(&place).with_context(|| format!("{} at {}", maker.name, maker.spec))?;
        if maker.name == OURS {
            ours = cost;
        }
        rows.push(vec![
            maker.spec.clone(),
            maker.name.clone(),
            format!("{:.2}", cost.wall),
            format!("{:.2}", ours.wall / cost.wall.max(1e-9)),
            format!("{:.2}", cost.machine),
            format!("{:.2}", ours.machine / cost.machine.max(1e-9)),
            format!("{:.0}", cost.peak),
            format!("{:.1}", measure::allocated(&place.image())?),
        ]);
        fs::remove_file(place.image())?;
    }
    let head = ["method", "maker", "s", "ours / its", "CPU s", "ours / its", "peak MiB", "image MiB"];
    Ok(table(&head, &rows))
}

/// About `limit` bytes of a tree: all of it where it is no larger, else directories from its top, in order.
fn sample(from: &Path, to: &Path, limit: u64) -> Result<()> {
    if trees::size(from)? <= limit {
        return trees::copy(from, to);
    }
    fs::create_dir_all(to)?;
    let mut left = limit;
    corpus::read(from, limit, &mut |path, bytes| {
        let Ok(relative) = path.strip_prefix(from) else { return true };
        let target = to.join(relative);
        let Some(dir) = target.parent() else { return true };
        left = left.saturating_sub(bytes.len() as u64);
        fs::create_dir_all(dir).and_then(|()| fs::write(&target, &bytes)).is_ok() && left > 0
    })
}
