//! Quota groups: usage is not counted here, but left to the kernel to count (`format/02 §2.10`).
//!
//! All counts become zero, and the status says that a rescan stands at its beginning. That is the state of a kernel whose
//! power went just after a rescan began: the next one that mounts the image goes on with it, and until it is through
//! nothing relies on the numbers.

use btrfsimg_ondisk::{Key, KeyType, QgroupInfo, QgroupLimit, QgroupStatus, objectid};
use zerocopy::{FromBytes, IntoBytes};

use super::Transaction;
use crate::error::{Error, Result};
use crate::tree::{lookup, walk_items};

const TREE: u64 = objectid::QUOTA_TREE;
/// Bits of [`QgroupStatus::flags`].
const ON: u64 = 1;
const RESCAN: u64 = 2;
const INCONSISTENT: u64 = 4;

impl Transaction<'_> {
    /// Gives the new subvolume `tree` a quota group without limits, where quotas are on. One that is left of an older
    /// subvolume with that id begins anew, as in the kernel.
    ///
    /// # Errors
    /// As any change of a tree.
    pub(crate) fn create_quota_group(&mut self, tree: u64) -> Result<()> {
        if self.current_root(TREE)?.is_none() {
            return Ok(());
        }
        let info = QgroupInfo { generation: self.transid.into(), ..QgroupInfo::zeroed() };
        let limit = QgroupLimit::zeroed();
        for (kind, data) in
            [(KeyType::QGROUP_INFO, info.as_bytes()), (KeyType::QGROUP_LIMIT, limit.as_bytes())]
        {
            let key = Key::new(0, kind, tree);
            match lookup(self, TREE, &key)? {
                Some(_) => self.replace(TREE, key, data)?,
                None => self.insert(TREE, key, data)?,
            }
        }
        Ok(())
    }

    /// Has the next kernel count all quota groups, where quotas are on.
    pub(super) fn reset_quotas(&mut self) -> Result<()> {
        let key = Key::new(0, KeyType::QGROUP_STATUS, 0);
        if self.current_root(TREE)?.is_none() {
            return Ok(());
        }
        let Some(mut data) = lookup(self, TREE, &key)? else { return Ok(()) };
        let transid = self.transid;
        let Ok((status, _)) = QgroupStatus::mut_from_prefix(&mut data) else { return Ok(()) };
        let flags = status.flags.get();
        if flags & ON == 0 {
            return Ok(());
        }
        let at_start = flags & RESCAN != 0 && status.rescan.get() == 0;
        status.flags = (flags | RESCAN | INCONSISTENT).into();
        status.rescan = 0.into();
        // The kernel takes another generation than the superblock's for an old kernel's work.
        status.generation = transid.into();
        if !at_start {
            self.zero_quota_groups()?;
        }
        self.replace(TREE, key, &data)
    }

    fn zero_quota_groups(&mut self) -> Result<()> {
        let (from, to) = (Key::new(0, KeyType::QGROUP_INFO, 0), Key::new(0, KeyType::QGROUP_INFO, u64::MAX));
        let mut counted = Vec::new();
        walk_items(&*self, TREE, &from, &to, |item| {
            let info = QgroupInfo::read_from_bytes(item.data)
                .map_err(|_| Error::corrupt("LEAF-10", format!("{} has an invalid size", item.key)))?;
            let zero = QgroupInfo { generation: info.generation, ..QgroupInfo::zeroed() };
            if info != zero {
                counted.push((item.key, zero));
            }
            Ok(true)
        })?;
        counted.into_iter().try_for_each(|(key, zero)| self.replace(TREE, key, zero.as_bytes()))
    }
}
