//! Access control lists: POSIX ACLs in extended attributes, and the NFSv4 list that every object
//! stores for its mode (data format §21, §22). The coding is in crate `disk`.

use crate::attr::{flag, mode, SetAttr};
use crate::log::Record;
use crate::perm::{self, Cred};
use crate::zfs::{AclType, Zfs};
use crate::znode::{Fixed, Form, Znode};
use base::{bail, Kind, Result};
use disk::xattr::tag;
pub use disk::xattr::PosixAcl;
use disk::{acl, znode::ZnodeAcl};
use dmu::Tx;

/// Names of the extended attributes that hold POSIX ACLs.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Whether somebody who is not the owner has all of `want` by a list.
pub fn permits(list: &PosixAcl, cred: &Cred, gid: u32, want: u32) -> bool {
    let perm_of = |t| list.list.iter().find(|e| e.tag == t).map(|e| e.perm);
    let mask = perm_of(tag::MASK).unwrap_or(7);
    let has = |p: u16| u32::from(p) & want == want;
    let user = |e: &&disk::xattr::PosixAce| e.tag == tag::USER && e.id == cred.uid;
    if let Some(e) = list.list.iter().find(user) {
        return has(e.perm & mask);
    }
    let mut member = false;
    for e in &list.list {
        let mine = match e.tag {
            tag::GROUP_OBJ => cred.in_group(gid),
            tag::GROUP => cred.in_group(e.id),
            _ => false,
        };
        if mine {
            member = true;
            if has(e.perm & mask) {
                return true;
            }
        }
    }
    !member && has(perm_of(tag::OTHER).unwrap_or(0))
}

/// The NFSv4 list that goes with a mode: count, entries in v1 form, and the flags it sets.
pub(crate) struct Trivial {
    pub count: u64,
    pub v1: Vec<u8>,
    pub flags: u64,
}

/// Flags that describe the list.
const ACL_FLAGS: u64 = flag::ACL_TRIVIAL | flag::NO_EXECS_DENIED;

pub(crate) fn trivial(m: u32) -> Trivial {
    let aces = acl::trivial(m, mode::is_dir(m));
    let mut flags = flag::ACL_TRIVIAL;
    if m & 0o111 == 0o111 {
        flags |= flag::NO_EXECS_DENIED;
    }
    Trivial {
        count: aces.len() as u64,
        v1: acl::encode_v1(&aces),
        flags,
    }
}

/// The same for a legacy znode: the 88 bytes of its ACL, of the version the file system uses.
pub(crate) fn trivial_legacy(m: u32, fuids: bool) -> ZnodeAcl {
    let aces = acl::trivial(m, mode::is_dir(m));
    // A trivial list has at most six entries, which is what fits.
    ZnodeAcl::from_aces(&aces, u16::from(fuids)).0
}

impl Zfs {
    /// The POSIX ACL of an object (`default`: the one it gives to its children), if it has one and
    /// the file system honours them.
    pub fn posix_acl(&self, z: &Znode, default: bool) -> Result<Option<PosixAcl>> {
        if self.props().acltype != AclType::Posix || !z.may_have_xattrs() {
            return Ok(None);
        }
        let name = if default { XATTR_DEFAULT } else { XATTR_ACCESS };
        match self.xattr_raw(z, name)? {
            Some(v) => Ok(Some(PosixAcl::decode(&v)?).filter(|a| !a.list.is_empty())),
            None => Ok(None),
        }
    }

    /// Sets mode bits, the NFSv4 list that goes with them and, if the object has one, the access
    /// ACL. `more` changes further fixed attributes in the same step.
    pub(crate) fn change_mode(
        &self,
        tx: &Tx,
        z: &Znode,
        bits: u32,
        more: impl FnOnce(&mut Fixed),
    ) -> Result<()> {
        let old = z.fixed();
        let m = old.mode32() & mode::FMT | bits & mode::PERM;
        let apply = |f: &mut Fixed, flags: u64| {
            f.mode = u64::from(m);
            f.flags = f.flags & !ACL_FLAGS | flags;
        };
        match z.form() {
            _ if (old.mode32() ^ m) & 0o777 == 0 => z.update(tx, |f| {
                f.mode = u64::from(m);
                more(f);
                Ok(())
            }),
            Form::Sa => {
                let t = trivial(m);
                let tables = self.tables()?;
                z.rewrite(tx, tables, |f, list| {
                    apply(f, t.flags);
                    more(f);
                    let n = tables.numbers(tx)?;
                    list.set_u64(n.dacl_count, t.count);
                    list.set(n.dacl_aces, t.v1);
                    Ok(())
                })
            }
            Form::Legacy => {
                let external = z.legacy_acl_object();
                if external != 0 {
                    self.os.free(tx, external)?;
                }
                let flags = trivial(m).flags;
                z.set_legacy_acl(tx, trivial_legacy(m, self.fuids()), |f| {
                    apply(f, flags);
                    more(f);
                })
            }
        }
    }

    /// Replaces the NFSv4 list by one of v1 entries; the mode becomes what the list says.
    pub(crate) fn set_nfs4_acl(
        &self,
        tx: &Tx,
        z: &Znode,
        aces: &[u8],
        count: u64,
        flags: u64,
    ) -> Result<()> {
        let list = acl::decode_v1(aces)?;
        let old = z.fixed();
        let bits = acl::mode_of(&list, old.uid, old.gid);
        let mut acl_flags = flags
            & (flag::INHERIT_ACE
                | flag::ACL_OBJ_ACE
                | flag::ACL_PROTECTED
                | flag::ACL_DEFAULTED
                | flag::ACL_AUTO_INHERIT);
        if acl::is_trivial(&list, old.is_dir()) {
            acl_flags |= flag::ACL_TRIVIAL;
        }
        if acl::no_execs_denied(&list, old.uid, old.gid) {
            acl_flags |= flag::NO_EXECS_DENIED;
        }
        let all = flag::INHERIT_ACE
            | flag::ACL_OBJ_ACE
            | flag::ACL_PROTECTED
            | flag::ACL_DEFAULTED
            | flag::ACL_AUTO_INHERIT
            | ACL_FLAGS;
        let now = self.now();
        let fuids = self.fuids();
        let apply = |f: &mut Fixed| {
            f.mode = u64::from(old.mode32() & !0o777 | bits);
            f.flags = f.flags & !all | acl_flags;
            f.touch_state(now, fuids);
        };
        match z.form() {
            Form::Sa => {
                let tables = self.tables()?;
                z.rewrite(tx, tables, |f, attrs| {
                    apply(f);
                    let n = tables.numbers(tx)?;
                    attrs.set_u64(n.dacl_count, count);
                    attrs.set(n.dacl_aces, aces.to_vec());
                    Ok(())
                })
            }
            Form::Legacy => {
                let (short, long) = ZnodeAcl::from_aces(&list, u16::from(self.fuids()));
                if long.is_some() {
                    bail!(
                        Unsupported,
                        "a long access list in an old file system version"
                    );
                }
                let external = z.legacy_acl_object();
                if external != 0 {
                    self.os.free(tx, external)?;
                }
                z.set_legacy_acl(tx, short, apply)
            }
        }
    }

    /// Sets an access or default ACL (`None` removes it), and for an access ACL the mode bits it
    /// stands for. One that says no more than the mode is not stored.
    pub(crate) fn set_posix_acl(
        &self,
        z: &Znode,
        name: &[u8],
        value: Option<&[u8]>,
        kill_sgid: bool,
        cred: &Cred,
    ) -> Result<()> {
        let p = self.writable()?;
        if p.acltype != AclType::Posix {
            bail!(Unsupported, "acltype is not posix");
        }
        let f = z.fixed();
        if p.enforce && !cred.owns(f.uid32()) {
            return Err(Kind::NotPermitted.into());
        }
        let m = f.mode32();
        if mode::is_lnk(m) {
            bail!(Unsupported, "symbolic links have no ACL");
        }
        let mut list = match value {
            Some(v) => Some(PosixAcl::decode(v)?).filter(|a| !a.list.is_empty()),
            None => None,
        };
        if name == XATTR_DEFAULT && !mode::is_dir(m) {
            return match list {
                Some(_) => Err(Kind::Access.into()),
                None => Ok(()),
            };
        }
        let mut bits = None;
        if let Some(a) = list.as_ref().filter(|_| name == XATTR_ACCESS) {
            let mut b = m & 0o7000 | a.mode();
            if b & mode::SGID != 0 && (kill_sgid || !cred.privileged && !cred.in_group(f.gid32())) {
                b &= !mode::SGID;
            }
            bits = (b != m & mode::PERM).then_some(b);
            if a.is_mode_only() {
                list = None;
            }
        }
        // List and mode change together: one without the other would grant too much.
        let _x = z.xlock.write().unwrap();
        let stored = z.may_have_xattrs() && self.xattr_raw(z, name)?.is_some();
        if bits.is_none() && list.is_none() && !stored {
            return Ok(());
        }
        let tx = self.tx_write(64 << 10)?;
        if let Some(b) = bits {
            let now = self.now();
            self.change_mode(&tx, z, b, |f| f.touch_state(now, self.fuids()))?;
            let set = SetAttr {
                mode: Some(b),
                ..SetAttr::default()
            };
            self.record(&tx, Record::set_attr(z, &set));
        }
        if list.is_some() || stored {
            let value = list.map(|a| a.encode());
            self.xattr_put(&tx, z, name, value.as_deref())?;
        }
        Ok(())
    }

    /// The mode of something about to be made in `dir`, and the ACLs it gets: the umask counts only
    /// if the directory has no default ACL.
    pub(crate) fn inherited(
        &self,
        dir: &Znode,
        m: u32,
        umask: u32,
    ) -> Result<(u32, Option<PosixAcl>, Option<PosixAcl>)> {
        if mode::is_lnk(m) {
            return Ok((m, None, None));
        }
        match self.posix_acl(dir, true)? {
            None => Ok((m & !(umask & 0o777), None, None)),
            Some(default) => {
                let (access, m) = default.inherit(m);
                let access = Some(access).filter(|a| !a.is_mode_only());
                Ok((m, access, mode::is_dir(m).then_some(default)))
            }
        }
    }
}

/// Mode of an object after the kernel's "the caller wrote without the privilege" hint.
pub(crate) fn killed(f: &Fixed) -> Option<u32> {
    let m = f.mode32();
    let k = perm::killed_suid(m);
    (k != m).then_some(k & mode::PERM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::xattr::{PosixAce, NO_ID};

    #[test]
    fn permission_algorithm() {
        let list = [
            (tag::USER_OBJ, 7, NO_ID),
            (tag::USER, 7, 10),
            (tag::GROUP_OBJ, 4, NO_ID),
            (tag::GROUP, 2, 20),
            (tag::MASK, 6, NO_ID),
            (tag::OTHER, 1, NO_ID),
        ];
        let a = PosixAcl {
            list: list
                .iter()
                .map(|&(tag, perm, id)| PosixAce { tag, perm, id })
                .collect(),
        };
        let named = Cred::user(10, 1, &[]);
        assert!(permits(&a, &named, 99, 6));
        assert!(!permits(&a, &named, 99, 1), "limited by the mask");
        let group = Cred::user(11, 99, &[20]);
        assert!(permits(&a, &group, 99, 4));
        assert!(permits(&a, &group, 99, 2));
        assert!(!permits(&a, &group, 99, 6), "no single entry grants both");
        assert!(
            !permits(&a, &group, 99, 1),
            "others do not count for members"
        );
        let other = Cred::user(12, 1, &[]);
        assert!(permits(&a, &other, 99, 1));
        assert!(!permits(&a, &other, 99, 4));
    }
}
