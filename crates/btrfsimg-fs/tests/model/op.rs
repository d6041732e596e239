//! What is done to a file system, at random, and with what.

use btrfsimg_testkit::rng::Rng;
use proptest::prelude::*;

use crate::state::{Bytes, SECTOR};

/// What is done. The numbers of an [`Op`] pick where and how, among what is there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Create,
    Link,
    Unlink,
    Rmdir,
    RemoveTree,
    Rename,
    SetXattr,
    RemoveXattr,
    Property,
    Write,
    Truncate,
    Punch,
    Clone,
    Chmod,
    Chown,
    SetTimes,
    CreateSubvolume,
    Snapshot,
    DeleteSubvolume,
    SetReadonly,
    Commit,
    Reopen,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) c: usize,
    pub(crate) d: usize,
}

pub(crate) fn any_op() -> impl Strategy<Value = Op> {
    let what = prop_oneof![
        18 => Just(What::Create),
        5 => Just(What::Link),
        6 => Just(What::Unlink),
        2 => Just(What::Rmdir),
        1 => Just(What::RemoveTree),
        7 => Just(What::Rename),
        5 => Just(What::SetXattr),
        2 => Just(What::RemoveXattr),
        4 => Just(What::Property),
        18 => Just(What::Write),
        6 => Just(What::Truncate),
        5 => Just(What::Punch),
        8 => Just(What::Clone),
        2 => Just(What::Chmod),
        2 => Just(What::Chown),
        2 => Just(What::SetTimes),
        1 => Just(What::CreateSubvolume),
        2 => Just(What::Snapshot),
        1 => Just(What::DeleteSubvolume),
        1 => Just(What::SetReadonly),
        3 => Just(What::Commit),
        1 => Just(What::Reopen),
    ];
    let number = 0..1_000_000_usize;
    (what, number.clone(), number.clone(), number.clone(), number).prop_map(|(what, a, b, c, d)| Op {
        what,
        a,
        b,
        c,
        d,
    })
}

/// Few enough that they meet again; some share a hash, some are as long as can be, some are no text.
pub(crate) fn name(pick: usize) -> Bytes {
    let within = pick / 8;
    match pick % 8 {
        0 => [&b"ue2r43xy"[..], b"c54cvxdh", b"qlvw434k", b"flotycs9"][within % 4].to_vec(),
        1 => vec![b'a' + u8::try_from(within % 4).unwrap(); 255],
        2 => vec![0xff, 0xfe, u8::try_from(1 + within % 40).unwrap()],
        _ => format!("name{}", within % 40).into_bytes(),
    }
}

/// Compressible or not.
pub(crate) fn some_bytes(len: usize, seed: usize) -> Bytes {
    match seed % 3 {
        0 => Rng::new(seed as u64).bytes(len),
        1 => format!("text {seed} ").into_bytes().into_iter().cycle().take(len).collect(),
        _ => vec![u8::try_from(seed % 256).unwrap(); len],
    }
}

/// Lengths and offsets around the limits: inline, sector, compressed chunk.
pub(crate) fn some_len(pick: usize) -> usize {
    let within = pick / 8;
    match pick % 8 {
        0 => within % 100,
        1 => within % 2100,
        2 => 4090 + within % 12,
        3 => SECTOR * (within % 20),
        4 => 131_060 + within % 30,
        5 => within % 70_000,
        _ => within % 9000,
    }
}
