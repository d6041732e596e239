//! POSIX ACLs as xattrs hold them: a version, then entries of tag, permissions and id, little-endian
//! (`linux/posix_acl_xattr.h`); what they mean for modes, and what new inodes inherit.

/// The xattr of the ACL that says who may do what.
pub const ACCESS_XATTR: &[u8] = b"system.posix_acl_access";
/// The xattr of a directory with the ACL that its entries start with.
pub const DEFAULT_XATTR: &[u8] = b"system.posix_acl_default";

/// Whether the xattr `name` is an ACL: cp(1) keeps those with the mode, and not as xattrs.
pub fn is_acl(name: &[u8]) -> bool {
    [ACCESS_XATTR, DEFAULT_XATTR].contains(&name)
}

/// An xattr.
type NameAndValue = (Vec<u8>, Vec<u8>);

const VERSION: u32 = 2;
const ENTRY_LEN: usize = 8;
/// The id in entries that are about no user or group by number.
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// A valid ACL: owner, named users, group, named groups, mask, others, in this order; a mask where anybody is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// Why bytes are no ACL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclFault {
    /// Another version of the form: the kernel says EOPNOTSUPP.
    Version(u32),
    /// Not entries, or entries that make no ACL: EINVAL.
    Invalid,
}

impl Acl {
    /// The ACL in an xattr's value; none in a value that has no entries, which means the same as no xattr.
    ///
    /// # Errors
    /// As [`AclFault`] says.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>, AclFault> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, rest) = value.split_first_chunk::<4>().ok_or(AclFault::Invalid)?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(AclFault::Version(version));
        }
        let (entries, []) = rest.as_chunks::<ENTRY_LEN>() else { return Err(AclFault::Invalid) };
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl { entries: entries.iter().map(Entry::parse).collect() };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(AclFault::Invalid) }
    }

    /// As xattrs hold it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    fn is_valid(&self) -> bool {
        // Tags in the order of their numbers; owner, group and others once, nobody named without a mask.
        let tags: Vec<u16> = self.entries.iter().map(|e| e.tag).collect();
        let count = |tag| tags.iter().filter(|t| **t == tag).count();
        let names_anybody = count(USER) + count(GROUP) > 0;
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        tags.is_sorted()
            && tags.iter().all(|tag| known.contains(tag))
            && [USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(|tag| count(tag) == 1)
            && (count(MASK) == 1 || (count(MASK) == 0 && !names_anybody))
            && self.entries.iter().all(|e| e.perm <= 7 && (!matches!(e.tag, USER | GROUP) || e.id != NO_ID))
    }

    /// The permission bits that it stands for.
    pub fn mode(&self) -> u32 {
        let bits = |tag| self.entries.iter().find(|e| e.tag == tag).map(|e| u32::from(e.perm));
        let group = bits(MASK).or_else(|| bits(GROUP_OBJ)).unwrap_or(0);
        bits(USER_OBJ).unwrap_or(0) << 6 | group << 3 | bits(OTHER).unwrap_or(0)
    }

    /// The permission bits for what cannot have it: the most with which nobody gets more than it gives them, by the
    /// order of acl(5). The group's own entry stands as the mask has it, not the mask; who is named may be in that group
    /// or not, so the group has no more than each named user, and others no more than each that is named.
    pub fn mode_alone(&self) -> u32 {
        let mask = self.entries.iter().find(|e| e.tag == MASK).map_or(7, |e| e.perm);
        let common = |tags: &[u16]| {
            let perms = self.entries.iter().filter(|e| tags.contains(&e.tag));
            perms.map(|e| if e.tag == OTHER { e.perm } else { e.perm & mask }).fold(7, |all, perm| all & perm)
        };
        let (group, other) = (common(&[GROUP_OBJ, USER]), common(&[OTHER, USER, GROUP]));
        self.mode() & 0o700 | u32::from(group) << 3 | u32::from(other)
    }

    /// Whether a mode says all that it does.
    pub fn is_only_a_mode(&self) -> bool {
        self.entries.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// The same after a chmod: owner and others as `mode` says, and the mask, or the group where there is none.
    #[must_use]
    pub fn with_mode(&self, mode: u32) -> Acl {
        self.map_mode_entries(mode, |_, bits| bits)
    }

    /// The same with no more rights for owner, group class and others than `mode` has.
    #[must_use]
    pub fn masked_by(&self, mode: u32) -> Acl {
        self.map_mode_entries(mode, |perm, bits| perm & bits)
    }

    /// Changes the entries that mode bits stand for.
    fn map_mode_entries(&self, mode: u32, change: impl Fn(u16, u16) -> u16) -> Acl {
        let group_class = if self.entries.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ };
        let bits = |shift: u32| u16::try_from(mode >> shift & 7).unwrap_or(0);
        let mut entries = self.entries.clone();
        for e in &mut entries {
            e.perm = match e.tag {
                USER_OBJ => change(e.perm, bits(6)),
                OTHER => change(e.perm, bits(0)),
                tag if tag == group_class => change(e.perm, bits(3)),
                _ => e.perm,
            };
        }
        Acl { entries }
    }

    /// What a new inode gets where its directory has this default ACL: its mode, and its ACLs. A directory passes the
    /// default on. Symlinks have no ACLs and are not to be asked about.
    pub fn inherit(&self, mode: u32, is_dir: bool) -> (u32, Vec<NameAndValue>) {
        let access = self.masked_by(mode);
        let mut xattrs = Vec::new();
        if !access.is_only_a_mode() {
            xattrs.push((ACCESS_XATTR.to_vec(), access.to_bytes()));
        }
        if is_dir {
            xattrs.push((DEFAULT_XATTR.to_vec(), self.to_bytes()));
        }
        (mode & !0o777 | access.mode(), xattrs)
    }
}

impl Entry {
    fn parse(bytes: &[u8; ENTRY_LEN]) -> Entry {
        let [t0, t1, p0, p1, id @ ..] = *bytes;
        let tag = u16::from_le_bytes([t0, t1]);
        let named = matches!(tag, USER | GROUP);
        let id = if named { u32::from_le_bytes(id) } else { NO_ID };
        Entry { tag, perm: u16::from_le_bytes([p0, p1]), id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect();
        Acl { entries }.to_bytes()
    }

    /// What acl(5) gives who is not the owner: whether by one entry all of `wanted` is granted.
    fn grants(entries: &[(u16, u16, u32)], user: u32, groups: &[u32], wanted: u16) -> bool {
        let has = |perm: u16| perm & wanted == wanted;
        let mask = entries.iter().find(|e| e.0 == MASK).map_or(7, |e| e.1);
        if let Some(named) = entries.iter().find(|e| e.0 == USER && e.2 == user) {
            return has(named.1 & mask);
        }
        let mut of_groups = entries
            .iter()
            .filter(|e| e.0 == GROUP_OBJ && groups.contains(&OWNING) || e.0 == GROUP && groups.contains(&e.2))
            .peekable();
        if of_groups.peek().is_some() {
            return of_groups.any(|e| has(e.1 & mask));
        }
        entries.iter().any(|e| e.0 == OTHER && has(e.1))
    }

    const OWNING: u32 = 1;

    /// All ACLs of read and write for a user, two groups and the three that are always there; all who are named or not, in
    /// all groups or none. Of what the mode gives nobody had less, and with one bit more somebody would get more.
    #[test]
    fn a_mode_alone_gives_nobody_more_and_is_the_most_that_does_not() {
        const PERMS: [u16; 4] = [0, 2, 4, 6];
        let people: Vec<(u32, Vec<u32>)> = [1000, 1001]
            .into_iter()
            .flat_map(|user| {
                let subsets = (0..8u32).map(move |set| (0..3).filter(move |i| set >> i & 1 != 0));
                subsets.map(move |set| (user, set.map(|i| i + OWNING).collect()))
            })
            .collect();
        for n in 0..4usize.pow(6) {
            let perm = |place: u32| PERMS[n / 4usize.pow(place) % 4];
            let entries = [
                (USER_OBJ, 6, NO_ID),
                (USER, perm(0), 1000),
                (GROUP_OBJ, perm(1), NO_ID),
                (GROUP, perm(2), OWNING + 1),
                (GROUP, perm(3), OWNING + 2),
                (MASK, perm(4), NO_ID),
                (OTHER, perm(5), NO_ID),
            ];
            let widens = |mode: u32| {
                let bits = |shift: u32| u16::try_from(mode >> shift & 7).unwrap();
                let alone = [(USER_OBJ, 6, NO_ID), (GROUP_OBJ, bits(3), NO_ID), (OTHER, bits(0), NO_ID)];
                people.iter().any(|(user, groups)| {
                    let gets = |entries: &[_], wanted| grants(entries, *user, groups, wanted);
                    [2, 4, 6].into_iter().any(|wanted| gets(&alone, wanted) && !gets(&entries, wanted))
                })
            };
            let mode = Acl::parse(&value(&entries)).unwrap().unwrap().mode_alone();
            assert_eq!(mode & 0o700, 0o600, "{entries:?}");
            assert!(!widens(mode), "{mode:o}: {entries:?}");
            for more in [0o40, 0o20, 0o4, 0o2].into_iter().filter(|bit| mode & bit == 0) {
                assert!(widens(mode | more), "{mode:o} could have {more:o}: {entries:?}");
            }
        }
        let owner_group_other = [(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 4, NO_ID)];
        assert_eq!(Acl::parse(&value(&owner_group_other)).unwrap().unwrap().mode_alone(), 0o754);
    }

    /// What setxattr(2) says of each on a kernel (6.18): 0, EINVAL or EOPNOTSUPP. See also the test against a mount.
    #[test]
    fn what_is_an_acl() {
        let base = [(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 5, NO_ID)];
        assert!(Acl::parse(&value(&base)).unwrap().unwrap().is_only_a_mode());
        assert_eq!(Acl::parse(&[]), Ok(None));
        assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None));
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(AclFault::Version(1)));
        let u = NO_ID;
        let bad: [&[(u16, u16, u32)]; 9] = [
            &base[..2],
            &[base[1], base[0], base[2]],
            &[base[0], (USER, 7, 1000), base[1], base[2]],
            &[base[0], base[1], (MASK, 7, u), (MASK, 7, u), base[2]],
            &[base[0], base[1], (0x40, 7, u), base[2]],
            &[(USER_OBJ, 8, u), base[1], base[2]],
            &[base[0], (USER, 7, u), base[1], (MASK, 7, u), base[2]],
            &[base[0], base[0], base[1], base[2]],
            &[base[0], base[1], (GROUP, 1, 5), base[2]],
        ];
        for entries in bad {
            assert_eq!(Acl::parse(&value(entries)), Err(AclFault::Invalid), "{entries:x?}");
        }
        assert_eq!(Acl::parse(&value(&base)[..9]), Err(AclFault::Invalid));
    }
}
