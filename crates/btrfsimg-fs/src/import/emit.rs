//! What was read goes into the image: data are placed, items built, in the order of the walk.

use btrfsimg_compress::{Algorithm, Property};
use btrfsimg_ondisk::{InodeItem, Key, KeyType, objectid};
use zerocopy::IntoBytes as _;

use super::listing::Listing;
use super::walk::{Node, Ready, Role};
use super::worker::Done;
use super::xattrs::{KeptXattrs, SourceXattrs};
use super::{Failure, Importer, Pending, Report, own_property};
use crate::error::{Error, Result};
use crate::lookup::Place;
use crate::posix_acl::{ACCESS_XATTR, DEFAULT_XATTR};
use crate::txn::ItemBatch;
use crate::write::create::push_symlink;
use crate::write::data::{Placement, place, push_extents, push_hole};
use crate::write::encode::{EncodedData, EncodedExtent};
use crate::write::inode::{COMPRESSION_XATTR, borrowed, push_inode, push_xattrs};
use crate::write::names;
use crate::write::xattr::{feature_of, remove_xattr, set_property_as_stored, set_xattr};

/// Bytes of items that are gathered before they go into the tree.
const ITEMS_BYTES: usize = 128 << 10;

/// A large file that is being put together.
pub(super) struct Current {
    node: Node,
    inode: InodeItem,
    nbytes: u64,
    /// How far its pieces have come.
    arrived: u64,
    /// Where its last extent ends.
    covered: u64,
    /// Where its bytes ended, if before its size.
    short: Option<u64>,
    failed: Option<String>,
}

impl Importer<'_, '_> {
    /// Puts in all that is at the front of the queue and whose results are there.
    pub(super) fn emit_arrived(&mut self, current: &mut Option<Current>) -> Result<()> {
        loop {
            let waits_for = match self.pending.front() {
                None => return Ok(()),
                Some(Pending::Nodes { job, .. }) => *job,
                Some(Pending::LargePiece { job, .. }) => Some(*job),
                Some(Pending::LargeStart { .. } | Pending::LargeEnd { .. }) => None,
            };
            let done = match waits_for {
                None => None,
                Some(job) => match self.arrived.remove(&job) {
                    None => return Ok(()),
                    done => done,
                },
            };
            match (self.pending.pop_front(), done) {
                (Some(Pending::Nodes { nodes, .. }), done) => {
                    self.emit_nodes(nodes, done)?;
                    self.options.progress.inspect(|tell| tell(&self.report));
                }
                (Some(Pending::LargeStart { node, xattrs }), _) => {
                    *current = Some(self.start_file(*node, xattrs)?)
                }
                (Some(Pending::LargePiece { end, .. }), Some(done)) => {
                    self.add_piece(current.as_mut(), done, end)?
                }
                (Some(Pending::LargeEnd { size }), _) => {
                    if let Some(mut current) = current.take() {
                        if size < current.node.stat.size {
                            current.short.get_or_insert(size);
                        }
                        self.end_file(current)?;
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    fn emit_nodes(&mut self, nodes: Vec<Ready>, done: Option<Done>) -> Result<()> {
        let done = done.unwrap_or_else(|| Done { id: 0, data: EncodedData::default(), files: Vec::new() });
        let extents: Vec<&EncodedExtent> = done.files.iter().flatten().flat_map(|f| &f.extents).collect();
        let placement = place(self.tx, &done.data, &extents)?;
        self.report.bytes_stored += stored_bytes(&placement, &done.data, extents);
        let mut files = done.files.into_iter();
        for node in nodes {
            match node {
                Ready::Directory(node, listing, xattrs) => self.emit_directory(&node, &listing, xattrs)?,
                Ready::Symlink(node, target, xattrs) => self.emit_symlink(&node, &target, xattrs)?,
                Ready::Special(node, xattrs) => {
                    self.report.others += 1;
                    let (inode, kept) = self.inode_and_xattrs(&node, &xattrs, 0, 0);
                    self.push_first_items(&node, &inode, &kept);
                }
                Ready::Merged => self.report.directories += 1,
                Ready::Lost(node) => self.lost.push(node),
                Ready::File(mut node) => match files.next() {
                    Some(Ok(file)) => {
                        node.stat.attributes.flags = file.flags;
                        if file.size < node.stat.size {
                            self.fail_short(&node, file.size);
                        }
                        self.emit_file(&node, file.xattrs, file.size, &done.data, &placement, &file.extents)?;
                    }
                    Some(Err(error)) => {
                        self.walker.fail(&node.relative(), &error.to_string());
                        self.lost.push(node);
                    }
                    None => {}
                },
            }
            if self.items.data_len() > ITEMS_BYTES {
                self.flush_items()?;
            }
        }
        // Full, or nobody there: then the buffer goes.
        let _ = self.placed.try_send(done.data);
        Ok(())
    }

    fn emit_file(
        &mut self,
        node: &Node,
        xattrs: SourceXattrs,
        size: u64,
        data: &EncodedData,
        placement: &Placement,
        extents: &[EncodedExtent],
    ) -> Result<()> {
        self.report.files += 1;
        self.report.bytes_read += size;
        if node.role == Role::Replace {
            let mut inode = self.start_replacing(node, &xattrs, size)?;
            let mut items = std::mem::take(&mut self.items);
            let mut covered = 0;
            let nbytes =
                self.push_file_extents(&mut items, node, &inode, data, placement, extents, &mut covered)?;
            self.push_hole(&mut items, node.ino, covered..size);
            self.items = items;
            self.flush_items()?;
            inode.nbytes = nbytes.into();
            return self.put_inode(node.ino, &inode);
        }
        // Checksums are left out where the flags say so; the flags do not depend on the contents.
        let (mut inode, kept) = self.inode_and_xattrs(node, &xattrs, size, 0);
        let mut after = std::mem::take(&mut self.items);
        let at = after.len();
        self.push_first_items_into(&mut after, node, &inode, &kept);
        let mut covered = 0;
        let nbytes =
            self.push_file_extents(&mut after, node, &inode, data, placement, extents, &mut covered)?;
        inode.nbytes = nbytes.into();
        self.push_hole(&mut after, node.ino, covered..size);
        after.replace_data(at, inode.as_bytes());
        self.items = after;
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "what an extent is made of")]
    fn push_file_extents(
        &mut self,
        items: &mut ItemBatch,
        node: &Node,
        inode: &InodeItem,
        data: &EncodedData,
        placement: &Placement,
        extents: &[EncodedExtent],
        covered: &mut u64,
    ) -> Result<u64> {
        for algorithm in Algorithm::ALL {
            if extents.iter().any(|e| e.compression == algorithm.code()) {
                self.tx.set_incompat(feature_of(algorithm));
            }
        }
        let owner = crate::write::data::Owner { tree: self.tree, ino: node.ino, flags: inode.flags.get() };
        let mut nbytes = 0;
        for run in extents.chunk_by(|a, b| a.file_offset + a.num_bytes == b.file_offset) {
            self.push_hole(items, node.ino, *covered..run[0].file_offset);
            nbytes += push_extents(self.tx, items, &owner, data, placement, run)?;
            *covered = run.last().map_or(*covered, |e| e.file_offset + e.num_bytes);
        }
        Ok(nbytes)
    }

    /// The item of a hole, where the image needs one: over the sectors that `range` begins.
    fn push_hole(&self, items: &mut ItemBatch, ino: u64, range: std::ops::Range<u64>) {
        let sectorsize = u64::from(self.tx.sectorsize());
        let range = range.start.next_multiple_of(sectorsize)..range.end.next_multiple_of(sectorsize);
        if !self.tx.no_holes() && !range.is_empty() {
            push_hole(items, ino, self.tx.transid(), range);
        }
    }

    fn emit_symlink(&mut self, node: &Node, target: &[u8], xattrs: SourceXattrs) -> Result<()> {
        self.report.others += 1;
        let len = target.len() as u64;
        let (inode, kept) = self.inode_and_xattrs(node, &xattrs, len, len);
        self.push_first_items(node, &inode, &kept);
        push_symlink(&mut self.items, node.ino, self.tx.transid(), target);
        Ok(())
    }

    fn emit_directory(&mut self, node: &Node, listing: &Listing, xattrs: SourceXattrs) -> Result<()> {
        self.report.directories += 1;
        let (inode, kept) = self.inode_and_xattrs(node, &xattrs, listing.size(), 0);
        if node.role == Role::Adopt {
            self.flush_items()?;
            let key = Key::new(node.ino, KeyType::INODE_ITEM, 0);
            self.tx.replace(self.tree, key, inode.as_bytes())?;
            push_xattrs(&mut self.items, node.ino, self.tx.transid(), kept.iter());
        } else {
            self.push_first_items(node, &inode, &kept);
        }
        let (transid, tree) = (self.tx.transid(), self.tree);
        let (items, tx) = (&mut self.items, &mut *self.tx);
        listing.items(node.ino, transid, |key, data| {
            items.push(key, data);
            if items.data_len() > ITEMS_BYTES {
                tx.insert_batch(tree, items)?;
                items.clear();
            }
            Ok(())
        })
    }

    /// The inode item, and the xattrs that it keeps: its own property or the inherited one, and none that no leaf
    /// holds.
    fn inode_and_xattrs<'x>(
        &mut self,
        node: &'x Node,
        xattrs: &'x SourceXattrs,
        size: u64,
        nbytes: u64,
    ) -> (InodeItem, KeptXattrs<'x>) {
        let (flags, property) = own_property(node.stat.attributes.flags, node.property.as_ref(), xattrs);
        if let Some(algorithm) = property.as_ref().and_then(Property::algorithm) {
            self.tx.set_incompat(feature_of(algorithm));
        }
        let mut kept = KeptXattrs { property, others: borrowed(&node.acls).collect() };
        kept.others.extend(xattrs.but_property());
        for (name, value) in kept.drop_too_large(self.tx.nodesize() as usize) {
            let reason =
                format!("xattr {} of {} bytes is too large", String::from_utf8_lossy(name), value.len());
            self.walker.fail(&node.relative(), &reason);
        }
        let mut attributes = node.stat.attributes.clone();
        attributes.flags = flags;
        (attributes.inode_item(self.tx.transid(), size, nbytes), kept)
    }

    fn push_first_items(&mut self, node: &Node, inode: &InodeItem, kept: &KeptXattrs<'_>) {
        let mut items = std::mem::take(&mut self.items);
        self.push_first_items_into(&mut items, node, inode, kept);
        self.items = items;
    }

    fn push_first_items_into(
        &self,
        items: &mut ItemBatch,
        node: &Node,
        inode: &InodeItem,
        kept: &KeptXattrs<'_>,
    ) {
        let name = self.walker.renamed.get(&node.ino).map_or(node.name.as_bytes(), Vec::as_slice);
        push_inode(items, node.ino, inode, node.parent, node.index, name);
        push_xattrs(items, node.ino, self.tx.transid(), kept.iter());
    }

    fn start_file(&mut self, node: Node, xattrs: SourceXattrs) -> Result<Current> {
        let inode = if node.role == Role::Replace {
            self.start_replacing(&node, &xattrs, node.stat.size)?
        } else {
            let (inode, kept) = self.inode_and_xattrs(&node, &xattrs, node.stat.size, 0);
            self.push_first_items(&node, &inode, &kept);
            inode
        };
        Ok(Current { node, inode, nbytes: 0, arrived: 0, covered: 0, short: None, failed: None })
    }

    fn add_piece(&mut self, current: Option<&mut Current>, mut done: Done, end: u64) -> Result<()> {
        let (Some(current), Some(piece)) = (current, done.files.pop()) else { return Ok(()) };
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                current.failed.get_or_insert(error.to_string());
                return Ok(());
            }
        };
        // What comes behind a short piece was not there when that was read.
        if current.short.is_some() || current.failed.is_some() {
            return Ok(());
        }
        current.arrived = piece.size;
        if piece.size < end {
            current.short = Some(piece.size);
        }
        let placement = place(self.tx, &done.data, &piece.extents.iter().collect::<Vec<_>>())?;
        self.report.bytes_stored += stored_bytes(&placement, &done.data, &piece.extents);
        let mut items = std::mem::take(&mut self.items);
        let (node, inode) = (&current.node, &current.inode);
        current.nbytes += self.push_file_extents(
            &mut items,
            node,
            inode,
            &done.data,
            &placement,
            &piece.extents,
            &mut current.covered,
        )?;
        self.items = items;
        let _ = self.placed.try_send(done.data);
        if self.items.data_len() > ITEMS_BYTES { self.flush_items() } else { Ok(()) }
    }

    fn end_file(&mut self, mut current: Current) -> Result<()> {
        if let Some(reason) = current.failed {
            self.walker.fail(&current.node.relative(), &reason);
            if current.node.role == Role::New {
                self.lost.push(current.node);
                return Ok(());
            }
            // An old file keeps its name, and what of the new contents was there.
            current.inode.size = current.arrived.into();
        } else if let Some(size) = current.short {
            self.fail_short(&current.node, size);
            current.inode.size = size.into();
        }
        let size = current.inode.size.get();
        let mut items = std::mem::take(&mut self.items);
        self.push_hole(&mut items, current.node.ino, current.covered..size);
        self.items = items;
        self.flush_items()?;
        self.report.files += 1;
        self.report.bytes_read += size;
        current.inode.nbytes = current.nbytes.into();
        self.put_inode(current.node.ino, &current.inode)
    }

    fn put_inode(&mut self, ino: u64, inode: &InodeItem) -> Result<()> {
        self.tx.replace(self.tree, Key::new(ino, KeyType::INODE_ITEM, 0), inode.as_bytes())
    }

    /// Takes the old contents out of a file that exists, and gives it the source's xattrs. Returns its inode as it
    /// will be, but for `nbytes`.
    fn start_replacing(&mut self, node: &Node, xattrs: &SourceXattrs, size: u64) -> Result<InodeItem> {
        self.flush_items()?;
        let place = Place { tree: self.tree, ino: node.ino };
        crate::write::contents::drop_range(self.tx, place, 0..u64::MAX)?;
        remove_xattr(self.tx, place, crate::write::setxattr::CAPABILITY_XATTR)?;
        self.put_xattrs(place, &node.relative(), xattrs)?;
        let mut inode = crate::lookup::inode(self.tx, place)?;
        let from = &node.stat.attributes;
        inode.size = size.into();
        inode.transid = self.tx.transid().into();
        inode.sequence = inode.sequence.get().wrapping_add(1).into();
        (inode.mtime, inode.ctime) = (from.mtime, self.tx.now());
        if self.options.preserve.times {
            (inode.atime, inode.ctime) = (from.atime, from.ctime);
        }
        self.options.preserve.put_access(&mut inode, (from.mode, from.uid, from.gid));
        Ok(inode)
    }

    /// Gives what was there the source's xattrs. Those that no leaf holds are failures.
    pub(super) fn put_xattrs(&mut self, place: Place, relative: &[u8], xattrs: &SourceXattrs) -> Result<()> {
        if self.options.preserve.keeps_mode() {
            for acl in [ACCESS_XATTR, DEFAULT_XATTR] {
                remove_xattr(self.tx, place, acl)?;
            }
        }
        for (name, value) in xattrs.sorted() {
            let set = match name == COMPRESSION_XATTR {
                true => set_property_as_stored(self.tx, place, value),
                false => set_xattr(self.tx, place, name, value),
            };
            match set {
                Err(Error::Invalid(reason)) => self.walker.fail(relative, &reason),
                set => set?,
            }
        }
        Ok(())
    }

    fn fail_short(&mut self, node: &Node, size: u64) {
        let reason = format!("shrank while it was read: {size} of {} bytes are in the image", node.stat.size);
        self.walker.fail(&node.relative(), &reason);
    }

    pub(super) fn flush_items(&mut self) -> Result<()> {
        self.tx.insert_batch(self.tree, &self.items)?;
        self.items.clear();
        Ok(())
    }

    /// What could not be done in the order of the walk: further names of inodes, and names of files that turned out
    /// to be unreadable.
    pub(super) fn finish(mut self) -> Result<Report> {
        let lost: std::collections::HashSet<u64> = self.lost.iter().map(|n| n.ino).collect();
        let links = std::mem::take(&mut self.walker.extra_links);
        let mut counts = std::collections::BTreeMap::new();
        for link in &links {
            if lost.contains(&link.ino) {
                let dir = Place { tree: self.tree, ino: link.parent };
                names::remove_entry(self.tx, dir, &link.name, link.index)?;
                continue;
            }
            let place = Place { tree: self.tree, ino: link.ino };
            names::add_inode_ref(self.tx, place, link.parent, link.index, &link.name)?;
            *counts.entry(link.ino).or_insert(0u32) += 1;
        }
        for (ino, count) in counts {
            self.raise_link_count(ino, count)?;
        }
        if !lost.is_empty() {
            self.walker.forget_links(&lost);
        }
        // One that was there stays as it was.
        for node in std::mem::take(&mut self.lost).iter().filter(|node| node.role == Role::New) {
            self.remove_lost(node)?;
        }
        if self.tree != objectid::ROOT_TREE {
            self.tx.touch_subvolume(self.tree)?;
        }
        self.settle_merged()?;
        self.report.copied = std::mem::take(&mut self.walker.copied);
        self.report.failures.append(&mut self.walker.failures);
        self.report.failures.sort_by(|a: &Failure, b| a.path.cmp(&b.path));
        Ok(self.report)
    }

    /// An imported inode's times are the source's: its number of names changes nothing else.
    fn raise_link_count(&mut self, ino: u64, by: u32) -> Result<()> {
        let place = Place { tree: self.tree, ino };
        let mut inode = crate::lookup::inode(self.tx, place)?;
        inode.nlink = inode.nlink.get().saturating_add(by).into();
        self.tx.replace(self.tree, place.key(KeyType::INODE_ITEM, 0), inode.as_bytes())
    }

    /// Takes the name of a file that could not be read out of its directory, whose times stay the source's.
    fn remove_lost(&mut self, node: &Node) -> Result<()> {
        let dir = Place { tree: self.tree, ino: node.parent };
        let name =
            self.walker.renamed.get(&node.ino).cloned().unwrap_or_else(|| node.name.as_bytes().to_vec());
        let before = crate::lookup::inode(self.tx, dir)?;
        names::remove_entry(self.tx, dir, &name, node.index)?;
        names::drop_inode(self.tx, Place { tree: self.tree, ino: node.ino })?;
        let mut after = crate::lookup::inode(self.tx, dir)?;
        (after.mtime, after.ctime, after.sequence) = (before.mtime, before.ctime, before.sequence);
        self.tx.replace(self.tree, dir.key(KeyType::INODE_ITEM, 0), after.as_bytes())
    }
}

fn stored_bytes<'e>(
    placement: &'e Placement,
    data: &'e EncodedData,
    extents: impl IntoIterator<Item = &'e EncodedExtent>,
) -> u64 {
    placement.disk_extents(data, extents).map(|(_, len)| len).sum()
}
