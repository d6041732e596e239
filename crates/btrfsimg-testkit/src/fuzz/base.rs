//! The image that inputs change: small, with everything in it that fits.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use btrfsimg_compress::{CompressionSpec, PropertyChange};
use btrfsimg_fs::Preserve;
use btrfsimg_fs::device::{Device as _, MemDevice};
use btrfsimg_fs::import::{self, Links, Sparse, Target};
use btrfsimg_fs::lookup::{self, Place};
use btrfsimg_fs::mkfs::{Features, Options, Size, finish_size, make};
use btrfsimg_fs::read::{FileReader, Filesystem};
use btrfsimg_fs::txn::{Transaction, Volume, VolumeOptions};
use btrfsimg_fs::write::create::{create, symlink};
use btrfsimg_fs::write::encode::CompressionPolicy;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::xattr::{set_compression, set_xattr};
use btrfsimg_ondisk::{
    CsumType, FileType, Header, Physical, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS, Timespec, Uuid,
    superblock_offsets,
};
use zerocopy::FromBytes as _;

use crate::rng::Rng;

pub(super) const NODESIZE: usize = 4096;
const SIZE: u64 = 80 << 20;
const FSID: [u8; 16] = [7; 16];

/// An image in memory, and where its tree blocks are.
pub(super) struct Base {
    device: Arc<MemDevice>,
    /// Each block with the places of its copies, by logical address.
    pub(super) blocks: Vec<(Vec<u8>, Vec<Physical>)>,
}

/// The same for all inputs.
pub(super) fn image() -> &'static Base {
    static IMAGE: OnceLock<Base> = OnceLock::new();
    IMAGE.get_or_init(|| Base::of(build()))
}

impl Base {
    fn of(device: Arc<MemDevice>) -> Base {
        let bytes = device.contents();
        let mut blocks: BTreeMap<u64, (Vec<u8>, Vec<Physical>)> = BTreeMap::new();
        for (i, block) in bytes.chunks_exact(NODESIZE).enumerate() {
            let Ok((header, _)) = Header::read_from_prefix(block) else { continue };
            let at = (i * NODESIZE) as u64;
            if header.fsid == FSID && !SUPERBLOCK_OFFSETS.contains(&at) {
                let new = || (block.to_vec(), Vec::new());
                blocks.entry(header.bytenr.get()).or_insert_with(new).1.push(Physical(at));
            }
        }
        Base { device, blocks: blocks.into_values().collect() }
    }

    pub(super) fn device(&self) -> Arc<dyn btrfsimg_fs::device::Device> {
        self.device.clone()
    }

    pub(super) fn superblock(&self) -> Vec<u8> {
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        self.device.read_at(&mut bytes, Physical(SUPERBLOCK_OFFSETS[0])).expect("the image has one");
        bytes
    }

    /// Where the superblock's copies are, but for the first.
    pub(super) fn superblock_copies(&self) -> impl Iterator<Item = Physical> {
        superblock_offsets(SIZE).skip(1)
    }
}

/// Makes the checksum of a block or superblock right.
pub(super) fn seal_superblock(bytes: &mut [u8]) {
    let sum = CsumType::Crc32c.of_block(bytes);
    bytes[..32].copy_from_slice(&sum.0);
}

fn now() -> Timespec {
    Timespec::new(1_700_000_000, 123)
}

fn build() -> Arc<MemDevice> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut rng = Rng::new(1);
    let text: Vec<u8> = rng.bytes(300_000).iter().map(|b| b'a' + b % 16).collect();
    for (name, bytes) in
        [("zstd", &text[..]), ("random", &rng.bytes(20_000)), ("inline", b"inline"), ("empty", b"")]
    {
        std::fs::write(dir.path().join(name), bytes).expect("a temporary file");
    }
    std::fs::hard_link(dir.path().join("inline"), dir.path().join("second name")).expect("a link");
    new(|tx| {
        let specs = ["zstd:3", "lzo", "zlib:3"];
        for spec in specs {
            let spec: CompressionSpec = spec.parse().expect("a specification");
            let attributes = Attributes::new(0o040_755, now());
            let name = spec.to_string();
            let to = create(tx, Place::TOP, name.as_bytes(), attributes, Vec::new()).expect("a directory");
            let options = import::Options {
                preserve: Preserve { links: true, ..Preserve::NONE },
                compression: CompressionPolicy { request: Some(spec), ..CompressionPolicy::default() },
                workers: 1,
                sparse: Sparse::Always,
                clamp: Some(now()),
                exclude: Vec::new(),
                cancel: None,
                progress: None,
                existing: btrfsimg_fs::Existing::Replace,
                list: false,
            };
            import::import_tree(tx, dir.path(), Target::Into(to), &options, &mut Links::default())
                .expect("an import");
        }
        let many = create(tx, Place::TOP, b"many", Attributes::new(0o040_755, now()), Vec::new())
            .expect("a directory");
        for i in 0..60 {
            let (name, mode) = (format!("entry {i}"), [0o100_644, 0o010_600, 0o140_600][i % 3]);
            create(tx, many, name.as_bytes(), Attributes::new(mode, now()), Vec::new()).expect("an entry");
        }
        // Two names with one hash.
        for name in [b"ue2r43xy", b"c54cvxdh"] {
            create(tx, many, name, Attributes::new(0o100_600, now()), Vec::new()).expect("an entry");
        }
        symlink(tx, Place::TOP, b"link", Attributes::new(0o120_777, now()), b"many/entry 1")
            .expect("a symlink");
        set_xattr(tx, many, b"user.name", &[9; 200]).expect("an xattr");
        set_compression(tx, many, &PropertyChange::parse_strict("zstd:3").expect("a property"), "many")
            .expect("a property");
    })
}

fn new(fill: impl FnOnce(&mut Transaction<'_>)) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::default());
    let options = Options {
        sectorsize: 4096,
        nodesize: 4096,
        features: Features::default(),
        csum: CsumType::Crc32c,
        label: b"fuzz".to_vec(),
        fsid: Some(Uuid::from_bytes(FSID)),
        reproducible: true,
        now: now(),
        size: Size::Exact(SIZE),
    };
    let geometry = options.geometry().expect("a geometry");
    let mut volume = Volume::blank(device.clone(), &geometry, VolumeOptions::default()).expect("a volume");
    let mut tx = volume.begin(now()).expect("a transaction");
    make(&mut tx, &options).expect("a file system");
    fill(&mut tx);
    finish_size(&mut tx, options.size, true).expect("a size");
    tx.commit().expect("a commit");
    device
}

/// Entries that one reading looks at, and bytes of each file.
const ENTRIES_MAX: usize = 2000;
const BYTES_MAX: u64 = 4 << 20;

/// Reads everything, and goes on behind errors.
pub(super) fn read_all(fs: &Filesystem) {
    let mut todo = vec![Place::TOP];
    let mut seen = 0;
    while let Some(place) = todo.pop() {
        seen += 1;
        if seen > ENTRIES_MAX {
            return;
        }
        let _ = lookup::xattrs(fs, place);
        let Ok(info) = fs.info(place) else { continue };
        match info.file_type() {
            Some(FileType::DIR) => {
                let _ = lookup::entries(fs, place, |entry| {
                    if let Ok((_, e)) = entry
                        && let Ok(target) = lookup::target(fs, place, e.name, e.location)
                    {
                        let _ = lookup::find_entry(fs, place, e.name);
                        todo.push(target);
                    }
                    Ok(todo.len() < ENTRIES_MAX)
                });
            }
            Some(FileType::SYMLINK) => _ = lookup::symlink_target(fs, place),
            Some(FileType::REG_FILE) => {
                if let Ok(mut reader) = FileReader::between(fs, &info, 0, BYTES_MAX) {
                    let mut buffer = Vec::new();
                    while let Ok(Some(_)) = reader.next_part(&mut buffer) {}
                }
            }
            _ => {}
        }
    }
}
