//! The walk of a host directory: names, attributes and their items, without contents.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/common/writing.rs"]
mod writing;

use btrfsimg_fs::Preserve;
use btrfsimg_fs::import::{Links, Options, Sparse, Target, import_tree};
use btrfsimg_fs::lookup::Place;
use btrfsimg_fs::write::encode::CompressionPolicy;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use writing::{new_file_system, now, open};

const DIRECTORIES: u64 = 20;
const FILES: u64 = 100;

fn walk(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    for d in 0..DIRECTORIES {
        let below = dir.path().join(format!("directory-{d}"));
        std::fs::create_dir(&below).unwrap();
        (0..FILES).for_each(|f| std::fs::write(below.join(format!("file-{f}")), "").unwrap());
    }
    let options = Options {
        preserve: Preserve::ALL,
        compression: CompressionPolicy { request: None, build_default: None, force: false },
        workers: 1,
        sparse: Sparse::Auto,
        clamp: None,
        exclude: Vec::new(),
        existing: Default::default(),
        list: false,
        cancel: None,
        progress: None,
    };
    let mut group = c.benchmark_group("import");
    group.throughput(Throughput::Elements(DIRECTORIES * (FILES + 1)));
    group.bench_function("walk of empty files", |b| {
        b.iter_batched_ref(
            || open(&new_file_system(16384)),
            |volume| {
                let mut tx = volume.begin(now()).unwrap();
                let into = Target::Into(Place::TOP);
                let report = import_tree(&mut tx, dir.path(), into, &options, &mut Links::default()).unwrap();
                assert_eq!(report.files, DIRECTORIES * FILES);
            },
            BatchSize::LargeInput,
        );
    });
}

criterion_group!(benches, walk);
criterion_main!(benches);
