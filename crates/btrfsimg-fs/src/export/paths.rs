//! Paths of directories as chains to their parents, so that deep trees cost memory for each name once.

use std::sync::Arc;

/// A directory of the copy: its name and its parent.
#[derive(Debug)]
pub(super) struct PathNode {
    parent: Option<Arc<PathNode>>,
    name: Box<[u8]>,
    /// Whether `name` is the whole path of the only entry.
    is_whole: bool,
}

/// How much of a path a message shows.
const SHOWN_MAX: usize = 4096;

impl PathNode {
    /// The top, shown as `name` in messages.
    pub(super) fn top(name: &[u8]) -> Arc<PathNode> {
        Arc::new(PathNode { parent: None, name: name.into(), is_whole: false })
    }

    /// The place of one file, shown as `path` in messages whatever the copy is named.
    pub(super) fn only(path: &[u8]) -> Arc<PathNode> {
        Arc::new(PathNode { parent: None, name: path.into(), is_whole: true })
    }

    /// The directory `name` in `parent`.
    pub(super) fn below(parent: &Arc<PathNode>, name: &[u8]) -> Arc<PathNode> {
        Arc::new(PathNode { parent: Some(parent.clone()), name: name.into(), is_whole: false })
    }

    /// The names from below the top down to here.
    pub(super) fn names(self: &Arc<PathNode>) -> Vec<Arc<PathNode>> {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(parent) = &at.parent {
            names.push(at.clone());
            at = parent;
        }
        names.reverse();
        names
    }

    /// Whether it is more than so many levels below the top.
    pub(super) fn is_below(&self, levels: usize) -> bool {
        let mut at = self.parent.as_deref();
        for _ in 0..levels {
            let Some(node) = at else { return false };
            at = node.parent.as_deref();
        }
        at.is_some()
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// The entry `name` in here; the directory itself where that is empty.
    pub(super) fn spot<'p>(&'p self, name: &'p [u8]) -> Spot<'p> {
        Spot { dir: self, name }
    }

    /// The path of the entry `name` in here, for messages; of a very long one the end.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        if self.is_whole {
            return self.name.to_vec();
        }
        let mut parts = vec![name];
        let (mut at, mut len) = (Some(self), name.len());
        while let Some(node) = at {
            if len > SHOWN_MAX {
                parts.push(b"...");
                break;
            }
            len += node.name.len() + 1;
            parts.push(&node.name);
            at = node.parent.as_deref();
        }
        let mut path: Vec<u8> = Vec::with_capacity(len);
        for part in parts.iter().rev().filter(|p| !p.is_empty()) {
            if !path.is_empty() && !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        path
    }
}

/// An entry of a directory of the copy, whose path is put together where a message needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot<'p> {
    dir: &'p PathNode,
    name: &'p [u8],
}

impl Spot<'_> {
    /// As [`PathNode::path_of`].
    pub(super) fn path(&self) -> Vec<u8> {
        self.dir.path_of(self.name)
    }
}

impl Drop for PathNode {
    /// Frees a long chain link by link: recursion would be as deep as the tree.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(node) = next {
            next = Arc::into_inner(node).and_then(|mut node| node.parent.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let top = PathNode::top(b"/");
        let a = PathNode::below(&top, b"a");
        let b = PathNode::below(&a, b"b");
        assert_eq!(b.path_of(b"c"), b"/a/b/c");
        assert_eq!(b.path_of(b""), b"/a/b");
        let names: Vec<_> = b.names().iter().map(|n| n.name().to_vec()).collect();
        assert_eq!(names, [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!([0, 1, 2].map(|levels| b.is_below(levels)), [true, true, false]);
        assert!(!top.is_below(0));
    }

    #[test]
    fn a_deep_chain_is_freed_without_recursion() {
        let mut at = PathNode::top(b"/");
        for _ in 0..1_000_000 {
            at = PathNode::below(&at, b"d");
        }
        assert!(at.path_of(b"x").len() < SHOWN_MAX + 300);
    }
}
