//! Feature bits of a new file system, by the names that mkfs.btrfs gives them.

use btrfsimg_ondisk::{compat_ro, incompat};

use crate::error::{Error, Result};

/// Features of a new file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Incompatible ones, see [`incompat`].
    pub incompat: u64,
    /// Read-only compatible ones, see [`compat_ro`].
    pub compat_ro: u64,
}

impl Default for Features {
    fn default() -> Self {
        Features {
            incompat: incompat::MIXED_BACKREF
                | incompat::EXTENDED_IREF
                | incompat::SKINNY_METADATA
                | incompat::NO_HOLES,
            compat_ro: FREE_SPACE_TREE,
        }
    }
}

const FREE_SPACE_TREE: u64 = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;

/// Names with their incompat and compat_ro bits.
const SUPPORTED: [(&str, u64, u64); 6] = [
    ("extref", incompat::EXTENDED_IREF, 0),
    ("skinny-metadata", incompat::SKINNY_METADATA, 0),
    ("no-holes", incompat::NO_HOLES, 0),
    ("mixed-bg", incompat::MIXED_GROUPS, 0),
    ("free-space-tree", 0, FREE_SPACE_TREE),
    ("block-group-tree", 0, compat_ro::BLOCK_GROUP_TREE),
];

/// What mkfs.btrfs knows and btrfsimg does not make.
const UNSUPPORTED: [&str; 9] = [
    "quota",
    "squota",
    "raid56",
    "raid1c34",
    "zoned",
    "raid-stripe-tree",
    "extent-tree-v2",
    "remap-tree",
    "list-all",
];

impl Features {
    /// Sets and clears (`^name`) the features of a comma-separated list.
    ///
    /// # Errors
    /// `Invalid` for a name that is not known, `Unsupported` for one whose feature is not made.
    pub fn change(&mut self, list: &str) -> Result<()> {
        for word in list.split(',') {
            let (name, on) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
            let Some((_, incompat, compat_ro)) = SUPPORTED.iter().find(|(n, ..)| *n == name) else {
                let valid = SUPPORTED.map(|(name, ..)| name).join(", ");
                return Err(if UNSUPPORTED.contains(&name) {
                    Error::Unsupported(format!("making an image with feature {name}; supported are {valid}"))
                } else {
                    Error::Invalid(format!("unknown feature '{name}'; valid are {valid}, with ^ for off"))
                });
            };
            let put = |bits: u64, these: u64| if on { bits | these } else { bits & !these };
            self.incompat = put(self.incompat, *incompat);
            self.compat_ro = put(self.compat_ro, *compat_ro);
        }
        Ok(())
    }

    /// Whether data and metadata share block groups.
    pub fn mixed(&self) -> bool {
        self.incompat & incompat::MIXED_GROUPS != 0
    }

    /// Bytes of a tree block where nothing else is asked for.
    pub fn default_nodesize(&self, sectorsize: u32) -> u32 {
        if self.mixed() { sectorsize } else { sectorsize.max(16384) }
    }

    /// Judges the combination, and the sizes with it, as the kernel does.
    ///
    /// # Errors
    /// `Invalid`, with what would do.
    pub fn check(&self, sectorsize: u32, nodesize: u32) -> Result<()> {
        let power = |n: u32, least: u32| n.is_power_of_two() && (least..=65536).contains(&n);
        let invalid = |reason: String| Err(Error::Invalid(reason));
        if !power(sectorsize, 4096) {
            return invalid(format!("sectorsize {sectorsize}: must be a power of two from 4096 to 65536"));
        }
        if !power(nodesize, sectorsize) {
            let reason = format!("must be a power of two from {sectorsize} (the sectorsize) to 65536");
            return invalid(format!("nodesize {nodesize}: {reason}"));
        }
        if self.mixed() && nodesize != sectorsize {
            let reason = format!("mixed block groups need nodesize = sectorsize, {sectorsize}");
            return invalid(format!("nodesize {nodesize}: {reason}"));
        }
        let has_tree = self.compat_ro & FREE_SPACE_TREE == FREE_SPACE_TREE;
        let no_holes = self.incompat & incompat::NO_HOLES != 0;
        if self.compat_ro & compat_ro::BLOCK_GROUP_TREE != 0 && !(has_tree && no_holes) {
            return invalid("block-group-tree needs free-space-tree and no-holes".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits that `mkfs.btrfs -O` and `-R` of version 6.2 leave in the superblock.
    #[test]
    fn bits_are_those_of_mkfs_btrfs() {
        for (list, incompat, compat_ro) in [
            ("no-holes", 0x341, 0x3),
            ("^no-holes,^extref", 0x101, 0x3),
            ("^skinny-metadata,^free-space-tree", 0x241, 0),
            ("mixed-bg,^no-holes,no-holes", 0x345, 0x3),
            ("block-group-tree", 0x341, 0xb),
        ] {
            let mut features = Features::default();
            features.change(list).unwrap_or_else(|e| panic!("{list}: {e}"));
            assert_eq!((features.incompat, features.compat_ro), (incompat, compat_ro), "{list}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |list: &str, sectorsize, nodesize| {
            let mut features = Features::default();
            let judged = features.change(list).and_then(|()| features.check(sectorsize, nodesize));
            judged.expect_err(list).to_string()
        };
        for (list, sectorsize, nodesize, says) in [
            ("zoned", 4096, 16384, "zoned"),
            ("quota", 4096, 16384, "quota"),
            ("", 4096, 16384, "unknown feature ''"),
            ("no_holes", 4096, 16384, "unknown feature 'no_holes'"),
            ("extref,^^extref", 4096, 16384, "unknown feature '^extref'"),
            ("mixed-bg", 4096, 16384, "nodesize = sectorsize"),
            ("block-group-tree,^free-space-tree", 4096, 16384, "needs free-space-tree"),
            ("block-group-tree,^no-holes", 4096, 16384, "needs free-space-tree and no-holes"),
            ("no-holes", 2048, 16384, "sectorsize 2048"),
            ("no-holes", 12288, 16384, "sectorsize 12288"),
            ("no-holes", 131_072, 131_072, "sectorsize 131072"),
            ("no-holes", 16384, 4096, "nodesize 4096"),
            ("no-holes", 4096, 131_072, "nodesize 131072"),
        ] {
            let said = refused(list, sectorsize, nodesize);
            assert!(said.contains(says), "{list} {sectorsize} {nodesize}: {said}");
        }
    }
}
