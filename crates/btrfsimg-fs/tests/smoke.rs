use btrfsimg_fs::device::*;
use btrfsimg_fs::mkfs;
use btrfsimg_fs::txn::*;
use btrfsimg_ondisk::*;
use std::sync::Arc;
#[test]
fn smoke() {
    let path = std::path::Path::new("/tmp/smoke.img");
    let _ = std::fs::remove_file(path);
    let dev = Arc::new(FileDevice::create(path, 0o644).unwrap());
    let options = mkfs::Options {
        nodesize: 16384,
        csum: CsumType::Crc32c,
        label: b"hi".to_vec(),
        fsid: None,
        reproducible: false,
        now: Timespec::new(1_700_000_000, 5),
        size: mkfs::Size::Auto(Default::default()),
    };
    let mut v = Volume::blank(dev, &options.geometry().unwrap(), VolumeOptions::default()).unwrap();
    let mut tx = v.begin(options.now).unwrap();
    mkfs::make(&mut tx, &options).unwrap();
    mkfs::finish_size(&mut tx, options.size, false).unwrap();
    tx.commit().unwrap();
}
