//! Sound blocks, broken in one way each: the rule that is named must be the one that was broken.

mod fixtures;
mod frame;
mod fs_items;
mod space_items;
mod superblock;

use fixtures::{LOGICAL, ctx, seal};

use crate::{FramedBlock, ParentExpectation, Rule, Severity, TreeBlock, check_strict};

/// Every rule that `block` breaks once sealed: the kernel's first, then the strict ones.
fn broken_rules(block: &TreeBlock) -> Vec<&'static str> {
    let bytes = seal(block.clone());
    let mut rules = Vec::new();
    let mut sink = |v: super::Violation| rules.push(v.rule.0);
    let framed = FramedBlock::examine(bytes, LOGICAL, &ctx(), &ParentExpectation::default(), &mut sink);
    framed.check_items(&ctx(), &mut sink);
    check_strict(&framed, &ctx(), &mut sink);
    rules
}

/// Breaks a copy of `sound` by `break_it` and expects `rule` first; kernels refuse the block exactly when the rule
/// says so.
fn check(sound: &TreeBlock, rule: &'static str, break_it: impl FnOnce(&mut TreeBlock)) {
    assert_eq!(broken_rules(sound), Vec::<&str>::new(), "the sound block of {rule}");
    let mut block = sound.clone();
    break_it(&mut block);
    let rules = broken_rules(&block);
    assert_eq!(rules.first(), Some(&rule), "all: {rules:?}");
    let parsed = TreeBlock::parse(seal(block.clone()), LOGICAL, &ctx(), &ParentExpectation::default());
    let refused = Rule(rule).severity() == Severity::Refused;
    assert_eq!(parsed.as_ref().err().map(|v| v.rule.0), refused.then_some(rule), "{rule} as a tree block");
    assert_eq!(block.check(&ctx()).err().map(|v| v.rule.0), refused.then_some(rule), "{rule} before writing");
}

/// [`check`] for the side of a rule that kernels take: named, though the block reads.
fn check_taken(sound: &TreeBlock, rule: &'static str, break_it: impl FnOnce(&mut TreeBlock)) {
    let mut block = sound.clone();
    break_it(&mut block);
    assert_eq!(broken_rules(&block).first(), Some(&rule));
    assert_eq!(block.check(&ctx()), Ok(()), "{rule}");
}

/// [`check`], by writing `bytes` at byte `at` of the item in `slot`.
fn check_patch(sound: &TreeBlock, rule: &'static str, slot: usize, at: usize, bytes: &[u8]) {
    check(sound, rule, |block| {
        let mut data = block.item(slot).data.to_vec();
        data[at..at + bytes.len()].copy_from_slice(bytes);
        block.replace_item(slot, &data);
    });
}

/// [`check`], by cutting or padding (with zeros) the item in `slot` to `len` bytes.
fn check_len(sound: &TreeBlock, rule: &'static str, slot: usize, len: usize) {
    check(sound, rule, |block| {
        let mut data = block.item(slot).data.to_vec();
        data.resize(len, 0);
        block.replace_item(slot, &data);
    });
}
