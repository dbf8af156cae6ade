//! Access control lists: POSIX ACLs in extended attributes, and the NFSv4 list that every object
//! stores for its mode (data format §21, §22). The coding is in crate `disk`.

use crate::attr::{flag, mode, SetAttr};
use crate::log::Record;
use crate::nfs4::{self, List, Verdict, ALL_FLAGS, WIDE_FLAGS};
use crate::perm::{self, Cred};
use crate::props::{AclInherit, AclMode, AclType, Props};
use crate::zfs::Zfs;
use crate::znode::{Fixed, Form, Znode};
use base::sync::RwLockExt;
use base::{bail, Kind, Result};
use disk::acl::{self, ace_mask, Ace};
use disk::types::ObjType;
pub use disk::xattr::PosixAcl;
use disk::znode::ZnodeAcl;
use dmu::{NewObject, Objset, Tx};
use std::sync::Arc;

/// Names of the extended attributes that hold POSIX ACLs.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// See [`XATTR_ACCESS`].
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

/// A list as a legacy znode has it; one that does not fit gets an object of its own.
pub(crate) fn legacy(os: &Arc<Objset>, tx: &Tx, aces: &[Ace], fuids: bool) -> Result<ZnodeAcl> {
    let (mut stored, long) = ZnodeAcl::from_aces(aces, u16::from(fuids));
    if let Some(b) = long {
        let block_size = b.len().next_multiple_of(512).min(128 << 10);
        let new = match fuids {
            true => NewObject {
                obj_type: ObjType::ACL,
                block_size,
                bonus_type: ObjType::SYSACL,
                bonus: vec![0; 320],
                ..NewObject::default()
            },
            false => NewObject {
                obj_type: ObjType::OLDACL,
                block_size,
                ..NewObject::default()
            },
        };
        let dn = os.alloc(tx, &new)?;
        dn.write(tx, 0, &b)?;
        stored.object = dn.object();
    }
    Ok(stored)
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

    /// The NFSv4 list of an object.
    pub fn nfs4_acl(&self, z: &Znode) -> Result<Vec<Ace>> {
        match z.form() {
            Form::Sa => {
                let tables = self.tables()?;
                let list = tables.load(&z.dnode)?;
                // Some software stores none.
                acl::decode_v1(list.get(tables.zpl().dacl_aces).unwrap_or_default())
            }
            Form::Legacy => z.legacy_aces(),
        }
    }

    /// What a chmod to `bits` of an object that then belongs to `uid` and `gid` makes of its list;
    /// `None` if the list stays. Read before the transaction begins.
    pub(crate) fn list_after_chmod(
        &self,
        p: &Props,
        z: &Znode,
        bits: u32,
        uid: u64,
        gid: u64,
    ) -> Result<Option<List>> {
        let f = z.fixed();
        let m = f.mode32() & mode::FMT | bits & mode::PERM;
        let changed = f.mode32() ^ m;
        let permissions = changed & 0o777 != 0;
        // Set-id bits that go, be it by a write or a chown, are no reason to discard a list.
        let only_kills = changed != 0 && changed & (!(mode::SUID | mode::SGID) | m) == 0;
        if !permissions && (only_kills || f.flags & flag::ACL_TRIVIAL != 0) {
            return Ok(None);
        }
        if f.flags & flag::ACL_TRIVIAL != 0 {
            let mut list = List::trivial(m);
            list.flags |= f.flags & WIDE_FLAGS;
            return Ok(Some(list));
        }
        let old = match p.aclmode {
            AclMode::Discard => Vec::new(),
            _ => self.nfs4_acl(z)?,
        };
        Ok(Some(nfs4::chmod(&old, m, uid, gid, f.flags, p.aclmode)))
    }

    /// Sets mode bits and the list that goes with them, if it changes. `more` changes further
    /// fixed attributes in the same step.
    pub(crate) fn change_mode(
        &self,
        tx: &Tx,
        z: &Znode,
        bits: u32,
        list: Option<List>,
        more: impl FnOnce(&mut Fixed),
    ) -> Result<()> {
        match list {
            Some(list) => self.put_list(tx, z, list, more),
            None => z.update(tx, |f| {
                f.mode = f.mode & u64::from(mode::FMT) | u64::from(bits & mode::PERM);
                more(f);
                Ok(())
            }),
        }
    }

    /// Replaces the NFSv4 list; mode and flags become what goes with it.
    fn put_list(
        &self,
        tx: &Tx,
        z: &Znode,
        list: List,
        more: impl FnOnce(&mut Fixed),
    ) -> Result<()> {
        let apply = |f: &mut Fixed| {
            f.mode = u64::from(list.mode);
            f.flags = f.flags & !ALL_FLAGS | list.flags;
            more(f);
        };
        match z.form() {
            Form::Sa => {
                let tables = self.tables()?;
                z.rewrite(tx, tables, |f, attrs| {
                    apply(f);
                    let n = tables.numbers(tx)?;
                    attrs.set_u64(n.dacl_count, list.aces.len() as u64);
                    attrs.set(n.dacl_aces, acl::encode_v1(&list.aces));
                    Ok(())
                })
            }
            Form::Legacy => {
                let old = z.legacy_acl_object();
                let stored = legacy(&self.os, tx, &list.aces, self.fuids())?;
                z.set_legacy_acl(tx, stored, apply)?;
                if old != 0 {
                    self.os.free(tx, old)?;
                }
                Ok(())
            }
        }
    }

    /// Replaces the NFSv4 list by one of v1 entries; the mode becomes what the list says.
    pub(crate) fn set_nfs4_acl(&self, tx: &Tx, z: &Znode, aces: &[u8], flags: u64) -> Result<()> {
        let aces = acl::decode_v1(aces)?;
        let f = z.fixed();
        let list = List::of(aces, f.mode32(), f.uid, f.gid, flags);
        let now = self.now();
        self.put_list(tx, z, list, |f| f.touch_state(now, self.fuids()))
    }

    /// After a chown: the permission bits that the list amounts to for the new owner, and whether
    /// [`flag::NO_EXECS_DENIED`] is set. `None`: both stay.
    pub(crate) fn mode_after_chown(
        &self,
        p: &Props,
        z: &Znode,
        uid: u64,
        gid: u64,
    ) -> Result<Option<(u32, u64)>> {
        let f = z.fixed();
        if p.acltype == AclType::Posix
            || f.flags & flag::ACL_TRIVIAL != 0
            || (uid, gid) == (f.uid, f.gid)
        {
            return Ok(None);
        }
        let aces = self.nfs4_acl(z)?;
        if aces.is_empty() {
            return Ok(None);
        }
        let list = List::of(aces, f.mode32(), uid, gid, f.flags);
        Ok(Some((
            list.mode & 0o777,
            list.flags & flag::NO_EXECS_DENIED,
        )))
    }

    /// The list of something about to be made with mode `m` in `dir`, if it is not what the mode
    /// says.
    pub(crate) fn inherited_list(
        &self,
        p: &Props,
        dir: &Znode,
        m: u32,
        uid: u64,
        gid: u64,
    ) -> Result<Option<List>> {
        let d = dir.fixed();
        let gives = d.flags & (flag::INHERIT_ACE | flag::XATTR) == flag::INHERIT_ACE;
        if !gives || mode::is_lnk(m) || p.aclinherit == AclInherit::Discard {
            return Ok(None);
        }
        let parent = self
            .nfs4_acl(dir)
            .map_err(|e| e.context(format!("access list of directory {}", dir.object)))?;
        let mut list = nfs4::inherit(&parent, m, uid, gid, p.aclinherit, p.aclmode);
        if p.acltype == AclType::Posix {
            // The POSIX rules have said what the mode is.
            list.mode = m;
            if m & 0o111 != 0o111 {
                list.flags &= !flag::NO_EXECS_DENIED;
            }
        }
        Ok(Some(list))
    }

    /// Whether lists forbid the caller to take the entry of `z` out of `dir`. Mode bits, which
    /// somebody else checks, are the only thing that grants it.
    pub(crate) fn lists_permit_removal(&self, dir: &Znode, z: &Znode, cred: &Cred) -> Result<()> {
        if cred.privileged {
            return Ok(());
        }
        let says = |z: &Znode, want: u32| -> Result<Verdict> {
            let f = z.fixed();
            if f.flags & flag::ACL_TRIVIAL != 0 {
                return Ok(Verdict::Silent);
            }
            Ok(nfs4::verdict(&self.nfs4_acl(z)?, &f, cred, want))
        };
        match says(z, ace_mask::DELETE)? {
            Verdict::Granted => return Ok(()),
            Verdict::Denied => return Err(Kind::NotPermitted.into()),
            Verdict::Silent => {}
        }
        match says(dir, ace_mask::DELETE_CHILD | ace_mask::WRITE_DATA)? {
            Verdict::Denied => Err(Kind::NotPermitted.into()),
            _ => Ok(()),
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
        if !cred.checked && !cred.owns(f.uid32()) {
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
        let _x = z.xlock.acquire_write();
        let stored = z.may_have_xattrs() && self.xattr_raw(z, name)?.is_some();
        if bits.is_none() && list.is_none() && !stored {
            return Ok(());
        }
        let list_after = match bits {
            Some(b) => self.list_after_chmod(&p, z, b, f.uid, f.gid)?,
            None => None,
        };
        let tx = self.tx_write(64 << 10)?;
        if let Some(b) = bits {
            let now = self.now();
            self.change_mode(&tx, z, b, list_after, |f| f.touch_state(now, self.fuids()))?;
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
