//! What the corpora start from: `cargo xtask fuzz --write-seeds`. Inputs that broke a target are added by hand.

use std::collections::BTreeSet;

use btrfsimg_compress::{CompressionSpec, Workspace, encode_extent};
use btrfsimg_ondisk::Header;
use zerocopy::FromBytes as _;

use super::base;

/// Inputs with their file names.
pub fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    match target {
        "superblock" => vec![
            ("nothing".to_owned(), Vec::new()),
            ("nodesize".to_owned(), change(144, 65536)),
            ("root".to_owned(), change(80, 1 << 40)),
            ("chunks".to_owned(), [change(160, 4000), change(811, u64::MAX)].concat()),
        ],
        "block" => blocks(),
        "image" => (0..4).map(|kind| (format!("kind-{kind}"), image_change(kind))).collect(),
        "frames" => frames(),
        "operations" => vec![
            ("create".to_owned(), operations(400, &[0, 1, 2, 3, 0, 1, 2, 3])),
            ("remove".to_owned(), operations(511, &[0, 0, 1, 1, 1, 1, 2, 3, 5, 5, 6, 6, 4, 5])),
            ("fails".to_owned(), operations(12, &[0, 0, 1, 1, 1, 1, 2, 3, 5, 5, 6, 6, 4, 5])),
        ],
        _ => Vec::new(),
    }
}

fn change(at: u16, value: u64) -> Vec<u8> {
    [&at.to_le_bytes()[..], &value.to_le_bytes()].concat()
}

/// One leaf of each tree, and one node.
fn blocks() -> Vec<(String, Vec<u8>)> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (bytes, _) in &base::image().blocks {
        let Ok((header, _)) = Header::read_from_prefix(bytes) else { continue };
        if header.nritems.get() > 0 && seen.insert((header.owner.get(), header.level > 0)) {
            found.push((format!("tree-{}-level-{}", header.owner, header.level), bytes.clone()));
        }
    }
    found
}

fn image_change(kind: u8) -> Vec<u8> {
    let one = |block: u8, slot: u8, field: u8, value: u64| {
        [&[block, 0, kind, slot, field, 0, 3, 0][..], &value.to_le_bytes()].concat()
    };
    [one(3, 2, 10, 4096), one(9, 5, 17, u64::MAX)].concat()
}

fn frames() -> Vec<(String, Vec<u8>)> {
    let text = b"to be or not to be, that is the question. ".repeat(300);
    let mut found = Vec::new();
    for (choice, spec) in ["zlib:9", "lzo", "zstd:15"].into_iter().enumerate() {
        let spec: CompressionSpec = spec.parse().expect("a specification");
        let mut out = Vec::new();
        if let CompressionSpec::Method(method) = spec {
            encode_extent(&mut Workspace::new(method), &text, 4096, &mut out);
        }
        let mut input = vec![u8::try_from(choice).unwrap_or(0)];
        input.extend_from_slice(&u16::try_from(text.len() / 4).unwrap_or(u16::MAX).to_le_bytes());
        let used = out.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        input.extend_from_slice(&out[..used]);
        found.push((spec.to_string().replace(':', "-"), input));
    }
    found
}

fn operations(nth: u16, codes: &[u8]) -> Vec<u8> {
    let mut input = nth.to_le_bytes().to_vec();
    input.push(0);
    for (i, code) in codes.iter().enumerate() {
        let i = u8::try_from(i).unwrap_or(0);
        input.extend_from_slice(&[*code, i / 3, i * 5, i * 16]);
    }
    input
}
