//! The arrows between the modules of `btrfsimg-fs`.

use super::{
    rules::{LAYERED, LAYERS, SHARED},
    source::{Source, find_words, line_of},
};
use std::collections::BTreeSet;

pub(super) fn check(sources: &[Source], faults: &mut Vec<String>) {
    for source in sources {
        let Some(module) = module_of(&source.name) else { continue };
        if SHARED.contains(&module) {
            arrows(source, module, &BTreeSet::new(), faults);
        } else if LAYERS.iter().any(|(name, _)| *name == module) {
            arrows(source, module, &reach(module), faults);
        } else if module != "lib" {
            faults
                .push(format!("{}: module `{module}` has no layer in xtask/src/tidy/rules.rs", source.name));
        }
    }
}

/// The top-level module that a file belongs to.
fn module_of(name: &str) -> Option<&str> {
    let inside = name.strip_prefix(LAYERED)?;
    let first = inside.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first))
}

/// What a module may use: what its line allows, and what those may use.
fn reach(module: &str) -> BTreeSet<&'static str> {
    let direct = LAYERS.iter().find(|(name, _)| *name == module).map_or(&[][..], |(_, uses)| uses);
    direct.iter().flat_map(|used| std::iter::once(*used).chain(reach(used))).collect()
}

fn arrows(source: &Source, module: &str, allowed: &BTreeSet<&str>, faults: &mut Vec<String>) {
    let is_layer = |name: &str| LAYERS.iter().any(|(layer, _)| *layer == name);
    for (at, used) in used_modules(source) {
        if is_layer(used) && used != module && !allowed.contains(used) {
            let line = line_of(&source.product, at);
            faults.push(format!("{}:{line}: `{module}` may not use `{used}`", source.name));
        }
    }
}

/// All names that follow `crate::`, or `super::` where that is the crate, groups included.
fn used_modules(source: &Source) -> Vec<(usize, &str)> {
    let code = &source.product;
    let mut out = Vec::new();
    let mut roots = vec!["crate::".to_owned()];
    if let Some(depth) = depth(&source.name) {
        roots.push("super::".repeat(depth));
    }
    for root in &roots {
        for at in find_words(code, root) {
            // `super::super::x` is found as `super::x` as well; the crate's root is only above the longest.
            let preceded = code[..at].ends_with("super::");
            if !(preceded && root.starts_with("super")) {
                names_after(code, at + root.len(), &mut out);
            }
        }
    }
    out
}

/// How many `super::` lead to the crate's root: 1 in `x.rs` and `x/mod.rs`, 2 in `x/y.rs`.
/// (Inline modules have one more; those of tests are no product.)
fn depth(name: &str) -> Option<usize> {
    let inside = name.strip_prefix(LAYERED)?;
    let parts = inside.split('/').count();
    Some(if inside.ends_with("/mod.rs") { parts - 1 } else { parts })
}

/// `a::b` gives a; `{a::b, c::{d, e}, f}` gives a, c, f.
fn names_after<'a>(code: &'a str, at: usize, out: &mut Vec<(usize, &'a str)>) {
    let name_at = |at: usize| {
        let name = &code[at..];
        let end = name.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(name.len());
        (at, &name[..end])
    };
    if !code[at..].starts_with('{') {
        out.push(name_at(at));
        return;
    }
    let (mut depth, mut expects_name) = (0_usize, true);
    for (offset, c) in code[at..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return,
            '}' => depth -= 1,
            ',' if depth == 1 => expects_name = true,
            c if depth == 1 && expects_name && (c == '_' || c.is_alphanumeric()) => {
                out.push(name_at(at + offset));
                expects_name = false;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_is_the_design() {
        let all = |module| reach(module).into_iter().collect::<Vec<_>>();
        assert_eq!(all("device"), [""; 0]);
        assert_eq!(all("verify"), ["chunk_map", "device"]);
        assert_eq!(all("read"), ["block_store", "chunk_map", "device", "lookup", "tree"]);
        assert_eq!(all("mkfs"), ["block_store", "chunk_map", "device", "lookup", "tree", "txn", "write"]);
        for reader in ["read", "verify", "export", "inspect", "diff"] {
            assert!(!reach(reader).contains("txn") && !reach(reader).contains("write"), "{reader}");
        }
        let shared_with_writer = reach("verify");
        assert!(["txn", "read", "block_store"].iter().all(|m| !shared_with_writer.contains(m)));
    }

    #[test]
    fn wrong_arrows_are_found() {
        // (file below src/, code, faults)
        let cases = [
            ("read/mod.rs", "use crate::txn::Transaction;", 1),
            ("read/mod.rs", "use crate::{error::Error, tree::Tree, write::{self, Dir}};", 1),
            ("read/file.rs", "fn f() { crate::write::go() }", 1),
            ("read.rs", "use super::txn::X;", 1),
            ("read/file.rs", "use super::super::txn::X;", 1),
            ("read/file.rs", "use super::txn::X;", 0),
            ("read/file.rs", "use crate::{Error, Result, device::Device, tree};", 0),
            ("read/file.rs", "// crate::txn\n#[cfg(test)] mod tests { use crate::mkfs; }", 0),
            ("read/tests.rs", "use crate::mkfs;", 0),
            ("verify/mod.rs", "use crate::block_store::BlockStore;", 1),
            ("verify/mod.rs", "use crate::chunk_map::ChunkMap;", 0),
            ("device/mod.rs", "use crate::chunk_map::ChunkMap;", 1),
            ("error.rs", "use crate::txn::X;", 1),
            ("import/walk.rs", "use crate::txn::Transaction;", 0),
            ("lib.rs", "pub use crate::txn::Transaction;", 0),
            ("helpers.rs", "", 1),
        ];
        for (name, text, expect) in cases {
            let mut faults = Vec::new();
            check(&[Source::new(&format!("{LAYERED}{name}"), text)], &mut faults);
            assert_eq!(faults.len(), expect, "{name}: {text}: {faults:?}");
        }
    }
}
