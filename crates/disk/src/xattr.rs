//! Values of extended attributes: the nvlist of `xattr=sa` (data format §21) and POSIX ACLs.

use crate::bytes::{slice_at, u16_at, u32_at, up8};
use base::{bail, Error, Result};

/// Largest value stored in a DXATTR.
pub const MAX_SA_VALUE: usize = 32768;
/// A DXATTR must not be longer packed (it is one system attribute).
pub const MAX_SA_PACKED: usize = 65535;

/// The attributes in a DXATTR, in stored order. Names are bytes: they need not be UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaXattrs {
    /// Name and value of each attribute.
    pub list: Vec<(Vec<u8>, Vec<u8>)>,
}

impl SaXattrs {
    /// Value of the attribute `name`.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.list
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_slice())
    }

    /// Removes the old value (if any) and appends the new one, as the reference does.
    pub fn set(&mut self, name: &[u8], value: Vec<u8>) {
        self.remove(name);
        self.list.push((name.to_vec(), value));
    }

    /// Whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.list.len();
        self.list.retain(|(n, _)| n != name);
        self.list.len() != before
    }

    /// Bytes [`SaXattrs::pack`] will give.
    pub fn packed_size(&self) -> usize {
        let pairs: usize = self
            .list
            .iter()
            .map(|(n, v)| 20 + up4(n.len()) + up4(v.len()))
            .sum();
        12 + pairs + 8
    }

    /// Whether the whole fits into a system attribute and each value may be there.
    pub fn fits(&self) -> bool {
        self.packed_size() <= MAX_SA_PACKED && self.list.iter().all(|p| p.1.len() <= MAX_SA_VALUE)
    }

    /// XDR nvlist with unique names and one byte array per attribute.
    pub fn pack(&self) -> Vec<u8> {
        let mut out = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let put = |out: &mut Vec<u8>, n: usize| {
            out.extend_from_slice(&(n as u32).to_be_bytes());
        };
        for (name, value) in &self.list {
            put(&mut out, 20 + up4(name.len()) + up4(value.len()));
            put(&mut out, up8(16 + name.len() + 1) + up8(value.len()));
            put(&mut out, name.len());
            out.extend_from_slice(name);
            out.resize(up4(out.len()), 0);
            put(&mut out, 10);
            put(&mut out, value.len());
            out.extend_from_slice(value);
            out.resize(up4(out.len()), 0);
        }
        out.extend_from_slice(&[0; 8]);
        out
    }

    /// Reads a DXATTR. Pairs that are not byte arrays are an error.
    pub fn unpack(b: &[u8]) -> Result<SaXattrs> {
        let word = |at: usize| -> Result<usize> { Ok(u32_at(b, at)?.swap_bytes() as usize) };
        if slice_at(b, 0, 1)? != [1] || word(4)? != 0 {
            bail!(Damaged, "xattr list: not an XDR nvlist");
        }
        let mut list = Vec::new();
        let mut at = 12;
        loop {
            let size = word(at)?;
            if size == 0 {
                if word(at + 4)? != 0 {
                    bail!(Damaged, "xattr list: bad end mark");
                }
                return Ok(SaXattrs { list });
            }
            let n = word(at + 8)?;
            let name = slice_at(b, at + 12, n)?;
            let p = at + 12 + up4(n);
            let (kind, len) = (word(p)?, word(p + 4)?);
            let value = slice_at(b, p + 8, len)?;
            if kind != 10 || size != 20 + up4(n) + up4(len) || name.contains(&0) {
                bail!(Damaged, "xattr list: bad pair");
            }
            list.push((name.to_vec(), value.to_vec()));
            at += size;
        }
    }
}

const fn up4(n: usize) -> usize {
    (n + 3) & !3
}

/// Tags of [`PosixAce`].
pub mod tag {
    /// The owner of the file.
    pub const USER_OBJ: u16 = 1;
    /// The user in `id`.
    pub const USER: u16 = 2;
    /// The group of the file.
    pub const GROUP_OBJ: u16 = 4;
    /// The group in `id`.
    pub const GROUP: u16 = 8;
    /// The most that `USER`, `GROUP_OBJ` and `GROUP` entries may grant.
    pub const MASK: u16 = 0x10;
    /// All other users.
    pub const OTHER: u16 = 0x20;
}

/// `id` of entries that are about no particular user or group.
pub const NO_ID: u32 = u32::MAX;

/// One entry of a POSIX ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PosixAce {
    /// See [`tag`].
    pub tag: u16,
    /// 4 read, 2 write, 1 execute.
    pub perm: u16,
    /// User or group id; [`NO_ID`] where it has no meaning.
    pub id: u32,
}

/// A POSIX ACL: the value of `system.posix_acl_access` and `system.posix_acl_default`, in the form
/// Linux system calls use: u32 version 2, then {u16 tag, u16 permissions, u32 id}.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PosixAcl {
    /// The entries in the order of [`PosixAcl::is_valid`].
    pub list: Vec<PosixAce>,
}

impl PosixAcl {
    /// The ACL that says what `mode` says.
    pub fn from_mode(mode: u32) -> PosixAcl {
        let ace = |tag, perm| PosixAce {
            tag,
            perm: perm as u16 & 7,
            id: NO_ID,
        };
        PosixAcl {
            list: vec![
                ace(tag::USER_OBJ, mode >> 6),
                ace(tag::GROUP_OBJ, mode >> 3),
                ace(tag::OTHER, mode),
            ],
        }
    }

    /// Reads and checks a value. Empty (no entries) is allowed and means "remove". A wrong version
    /// is [`base::Kind::Unsupported`], anything else wrong [`base::Kind::Invalid`], as for the
    /// system call.
    pub fn decode(b: &[u8]) -> Result<PosixAcl> {
        let invalid = || Error::new(base::Kind::Invalid, "malformed POSIX ACL");
        if b.is_empty() {
            return Ok(PosixAcl::default());
        }
        if b.len() < 4 || (b.len() - 4) % 8 != 0 {
            return Err(invalid());
        }
        if u32_at(b, 0)? != 2 {
            bail!(Unsupported, "POSIX ACL version");
        }
        let mut list = Vec::new();
        for e in b[4..].chunks_exact(8) {
            let (tag, perm, id) = (u16_at(e, 0)?, u16_at(e, 2)?, u32_at(e, 4)?);
            let named = matches!(tag, tag::USER | tag::GROUP);
            list.push(PosixAce {
                tag,
                perm,
                id: if named { id } else { NO_ID },
            });
        }
        let acl = PosixAcl { list };
        if !acl.is_valid() {
            return Err(invalid());
        }
        Ok(acl)
    }

    /// The value, 4 + 8 bytes for each entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = 2u32.to_le_bytes().to_vec();
        for a in &self.list {
            b.extend_from_slice(&a.tag.to_le_bytes());
            b.extend_from_slice(&a.perm.to_le_bytes());
            b.extend_from_slice(&a.id.to_le_bytes());
        }
        b
    }

    /// Entries in the order user-obj, users, group-obj, groups, mask, other; the three base entries
    /// once; a mask if there are named ones. (Order among the named ones is free, as in Linux.)
    pub fn is_valid(&self) -> bool {
        if self.list.is_empty() {
            return true;
        }
        let count = |t: u16| self.list.iter().filter(|a| a.tag == t).count();
        let ordered = self.list.windows(2).all(|w| w[0].tag <= w[1].tag);
        let known = self
            .list
            .iter()
            .all(|a| a.perm & !7 == 0 && matches!(a.tag, 1 | 2 | 4 | 8 | 0x10 | 0x20));
        let named = count(tag::USER) + count(tag::GROUP) > 0;
        let ids = self
            .list
            .iter()
            .all(|a| !matches!(a.tag, tag::USER | tag::GROUP) || a.id != NO_ID);
        known
            && ordered
            && ids
            && count(tag::USER_OBJ) == 1
            && count(tag::GROUP_OBJ) == 1
            && count(tag::OTHER) == 1
            && count(tag::MASK) <= 1
            && (!named || count(tag::MASK) == 1)
    }

    fn perm(&self, tag: u16) -> Option<u32> {
        self.list
            .iter()
            .find(|a| a.tag == tag)
            .map(|a| u32::from(a.perm))
    }

    /// The nine permission bits: the group bits are the mask where there is one.
    pub fn mode(&self) -> u32 {
        let p = |t| self.perm(t).unwrap_or(0);
        let group = self.perm(tag::MASK).unwrap_or(p(tag::GROUP_OBJ));
        p(tag::USER_OBJ) << 6 | group << 3 | p(tag::OTHER)
    }

    /// Whether the mode says all (no named entries, no mask): then the ACL need not be stored.
    pub fn is_mode_only(&self) -> bool {
        self.list
            .iter()
            .all(|a| matches!(a.tag, tag::USER_OBJ | tag::GROUP_OBJ | tag::OTHER))
    }

    /// The ACL after a chmod.
    pub fn chmod(&mut self, mode: u32) {
        let has_mask = self.perm(tag::MASK).is_some();
        for a in &mut self.list {
            match a.tag {
                tag::USER_OBJ => a.perm = (mode >> 6 & 7) as u16,
                tag::GROUP_OBJ if !has_mask => a.perm = (mode >> 3 & 7) as u16,
                tag::MASK => a.perm = (mode >> 3 & 7) as u16,
                tag::OTHER => a.perm = (mode & 7) as u16,
                _ => {}
            }
        }
    }

    /// The access ACL and mode of a new object created with `mode` under this default ACL.
    pub fn inherit(&self, mode: u32) -> (PosixAcl, u32) {
        let mut acl = self.clone();
        let has_mask = acl.perm(tag::MASK).is_some();
        for a in &mut acl.list {
            let limit = match a.tag {
                tag::USER_OBJ => mode >> 6,
                tag::GROUP_OBJ if !has_mask => mode >> 3,
                tag::MASK => mode >> 3,
                tag::OTHER => mode,
                _ => 7,
            };
            a.perm &= limit as u16 & 7;
        }
        let mode = mode & !0o777 | acl.mode();
        (acl, mode)
    }

    /// Whether access `want` (4 read, 2 write, 1 execute) is granted to a user in these groups, for
    /// a file of that owner and group.
    pub fn permits(&self, want: u32, uid: u32, gids: &[u32], owner: u32, group: u32) -> bool {
        let mask = self.perm(tag::MASK).unwrap_or(7);
        let ok = |perm: u32| perm & want == want;
        if uid == owner {
            return ok(self.perm(tag::USER_OBJ).unwrap_or(0));
        }
        let user = self.list.iter().find(|a| a.tag == tag::USER && a.id == uid);
        if let Some(a) = user {
            return ok(u32::from(a.perm) & mask);
        }
        let mut in_group = false;
        for a in &self.list {
            let mine = match a.tag {
                tag::GROUP_OBJ => gids.contains(&group),
                tag::GROUP => gids.contains(&a.id),
                _ => false,
            };
            if mine {
                in_group = true;
                if ok(u32::from(a.perm) & mask) {
                    return true;
                }
            }
        }
        !in_group && ok(self.perm(tag::OTHER).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;
    use crate::nvlist::{NvList, Value};

    #[test]
    fn sa_list_is_an_nvlist() {
        let mut x = SaXattrs::default();
        let mut l = NvList::new();
        for i in 0..9 {
            let name = format!("user.{}", "n".repeat(i));
            let value = vec![i as u8; i * i];
            x.set(name.as_bytes(), value.clone());
            l.set(&name, Value::ByteArray(value));
        }
        let b = x.pack();
        assert_eq!(b, l.pack_xdr());
        assert_eq!(b.len(), x.packed_size());
        assert_eq!(SaXattrs::unpack(&b).unwrap(), x);
        assert!(x.remove(b"user.nn") && !x.remove(b"user.nn"));
        x.set(b"user.\xff", vec![1]);
        let back = SaXattrs::unpack(&x.pack()).unwrap();
        assert_eq!(back.get(b"user.\xff"), Some(&[1u8][..]));
        assert!(x.fits());
        x.set(b"a", vec![0; MAX_SA_VALUE + 1]);
        assert!(!x.fits());
        let bad = {
            let mut l = NvList::new();
            l.set("a", 1u64);
            l.pack_xdr()
        };
        assert!(SaXattrs::unpack(&bad).is_err());
        Junk(11).torment(&b, 3000, |b| drop(SaXattrs::unpack(b)));
    }

    fn ace(tag: u16, perm: u16, id: u32) -> PosixAce {
        PosixAce { tag, perm, id }
    }

    fn sample() -> PosixAcl {
        PosixAcl {
            list: vec![
                ace(tag::USER_OBJ, 7, NO_ID),
                ace(tag::USER, 6, 1000),
                ace(tag::GROUP_OBJ, 5, NO_ID),
                ace(tag::GROUP, 7, 50),
                ace(tag::MASK, 6, NO_ID),
                ace(tag::OTHER, 4, NO_ID),
            ],
        }
    }

    #[test]
    fn posix_acl() {
        let a = sample();
        assert!(a.is_valid() && !a.is_mode_only());
        assert_eq!(a.mode(), 0o764);
        let b = a.encode();
        assert_eq!(b.len(), 4 + 6 * 8);
        assert_eq!(b[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(PosixAcl::decode(&b).unwrap(), a);
        let mut c = a.clone();
        c.chmod(0o610);
        assert_eq!(c.mode(), 0o610);
        assert_eq!(c.list[2].perm, 5);
        let (i, mode) = a.inherit(0o100640);
        assert_eq!(mode, 0o100640);
        assert_eq!((i.list[0].perm, i.list[4].perm), (6, 4));
        for m in 0..0o1000 {
            let a = PosixAcl::from_mode(m);
            assert!(a.is_valid() && a.is_mode_only());
            assert_eq!(a.mode(), m);
        }
        let mut bad = a.clone();
        bad.list.swap(0, 1);
        assert!(!bad.is_valid());
        bad = a.clone();
        bad.list.remove(4);
        assert!(!bad.is_valid());
        assert!(PosixAcl::decode(&bad.encode()).is_err());
    }

    #[test]
    fn posix_access() {
        let a = sample();
        assert!(a.permits(7, 1, &[], 1, 2));
        assert!(a.permits(6, 1000, &[], 1, 2));
        assert!(!a.permits(1, 1000, &[], 1, 2));
        assert!(a.permits(4, 3, &[2], 1, 2));
        assert!(!a.permits(1, 3, &[2], 1, 2));
        assert!(a.permits(6, 3, &[2, 50], 1, 2));
        assert!(a.permits(4, 3, &[9], 1, 2));
        assert!(!a.permits(2, 3, &[9], 1, 2));
    }

    #[test]
    fn hostile() {
        Junk(12).torment(&sample().encode(), 1000, |b| {
            if let Ok(a) = PosixAcl::decode(b) {
                let _ = (a.mode(), a.inherit(0o777), a.permits(7, 0, &[0], 0, 0));
            }
        });
    }
}
